//! Encodings, arithmetic, the table of transitions, and what is refused before a device is asked.

use std::time::Duration;

use fulmen_memory::{ChunkRule, Region};
use fulmen_verbs::{
    Access, AckTimeout, Budget, Capabilities, DeviceInfo, DeviceLimits, Gid, Mtu, Path, QueuePairKind, QueuePairLimits,
    QueuePairState as State, RnrTimer, SendOp, SendRequest, Transition, VerbsError, check_access, check_post_recv,
    check_post_send, check_transition,
};
use proptest::prelude::*;

/// A device with everything, or one with SEND over UC, frames, and little else.
fn info(rich: bool) -> DeviceInfo {
    DeviceInfo {
        name: "model".to_string(),
        provider: "test",
        ports: 1,
        limits: DeviceLimits {
            queue_pairs: 10,
            completion_queues: 10,
            completion_entries: 4096,
            memory_regions: 100,
            protection_domains: 10,
            queue_depth: 4095,
            pieces: if rich { 8 } else { 1 },
            inline_bytes: if rich { 64 } else { 0 },
            message_bytes: 4095 * 4096,
            frame: (!rich).then_some(4096),
            registration: ChunkRule::NONE,
            reads_in_flight: if rich { 16 } else { 0 },
        },
        capabilities: Capabilities {
            rc: rich,
            uc: true,
            ud: false,
            srq: false,
            write: rich,
            read: rich,
            atomics: rich,
            atomics_with_cpu: rich,
            immediate: rich,
            holds_sends: !rich,
            acknowledges: rich,
            reports_dead_peers: rich,
            dma_buf: false,
        },
    }
}

#[test]
fn acknowledgement_time_outs() {
    assert_eq!(AckTimeout(0).duration(), None);
    assert_eq!(AckTimeout(1).duration(), Some(Duration::from_nanos(8192)));
    assert_eq!(AckTimeout(14).duration(), Some(Duration::from_nanos(67_108_864)));
    assert_eq!(AckTimeout(31).duration(), Some(Duration::from_nanos(4096 << 31)));
}

#[test]
fn rnr_timers() {
    let micros = |code| RnrTimer(code).duration().as_micros();
    assert_eq!([micros(1), micros(2), micros(5), micros(12)], [10, 20, 60, 640]);
    assert_eq!([micros(16), micros(31), micros(0)], [2560, 491_520, 655_360]);
    // Each is longer than the one before, and 0 is the longest.
    assert!((1..31).all(|code| RnrTimer(code).duration() < RnrTimer(code + 1).duration()));
    assert!(RnrTimer(31).duration() < RnrTimer(0).duration());
}

#[test]
fn transmission_units() {
    let units = [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096];
    assert!(units.iter().map(|unit| unit.bytes()).eq((8..13).map(|bits| 1 << bits)));
    assert!(units.is_sorted());
}

const STATES: [State; 6] =
    [State::Reset, State::Init, State::ReadyToReceive, State::ReadyToSend, State::SendDrain, State::Error];

fn to(state: State) -> Transition {
    let path = Path { remote_gid: Gid::default(), remote_lid: 0, local_gid_index: 0, remote_qp: 1, mtu: Mtu::B1024 };
    match state {
        State::Reset => Transition::Reset,
        State::Init => Transition::Init { port: 1, access: Access::empty() },
        State::ReadyToReceive => {
            Transition::ReadyToReceive { path, recv_psn: 0, reads_served: 0, min_rnr_timer: RnrTimer(0) }
        }
        State::ReadyToSend => Transition::ReadyToSend {
            send_psn: 0,
            timeout: AckTimeout(0),
            retries: 0,
            rnr_retries: 0,
            reads_in_flight: 0,
        },
        State::SendDrain => Transition::SendDrain,
        State::Error => Transition::Error,
    }
}

#[test]
fn the_table_of_transitions() {
    // Rows: from RESET, INIT, RTR, RTS, SQD, ERR; columns: to the same.
    const TABLE: [[u8; 6]; 6] = [
        [1, 1, 0, 0, 0, 1],
        [1, 1, 1, 0, 0, 1],
        [1, 0, 0, 1, 0, 1],
        [1, 0, 0, 1, 1, 1],
        [1, 0, 0, 1, 1, 1],
        [1, 0, 0, 0, 0, 1],
    ];
    for (from, row) in STATES.into_iter().zip(TABLE) {
        for (target, legal) in STATES.into_iter().zip(row) {
            let transition = to(target);
            assert_eq!(transition.target(), target);
            assert_eq!(transition.is_legal_from(from), legal == 1, "{from} → {target}");
            match check_transition(9, from, &transition) {
                Ok(()) => assert_eq!(legal, 1, "{from} → {target}"),
                Err(VerbsError::State { qp_num, state, .. }) => assert_eq!((legal, qp_num, state), (0, 9, from)),
                Err(error) => panic!("{from} → {target}: {error}"),
            }
        }
    }
}

#[test]
fn posting_needs_a_state() {
    let sends = STATES.map(|state| check_post_send(1, state).is_ok());
    assert_eq!(sends, [false, false, false, true, true, true]);
    let recvs = STATES.map(|state| check_post_recv(1, state).is_ok());
    assert_eq!(recvs, [false, true, true, true, true, true]);
}

#[test]
fn rights_need_each_other() {
    for bits in 0..16 {
        let access = Access::from_bits(bits).expect("four rights");
        let changes = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        assert_eq!(check_access(access).is_ok(), !changes || access.contains(Access::LOCAL_WRITE), "{access:?}");
    }
}

#[test]
fn queue_pairs_and_their_limits() {
    let rich = info(true);
    let narrow = info(false);
    let limits =
        QueuePairLimits { send_depth: 4095, recv_depth: 4095, send_pieces: 1, recv_pieces: 1, inline_bytes: 0 };
    rich.check_queue_pair(QueuePairKind::Rc, &limits).expect("within its limits");
    narrow.check_queue_pair(QueuePairKind::Uc, &limits).expect("within its limits");
    let refused = narrow.check_queue_pair(QueuePairKind::Rc, &limits);
    assert!(matches!(refused, Err(VerbsError::NoSuchKind { kind: QueuePairKind::Rc, .. })));
    let deep = QueuePairLimits { recv_depth: 4096, ..limits };
    let refused = narrow.check_queue_pair(QueuePairKind::Uc, &deep).expect_err("one too many");
    assert_eq!(refused.to_string(), "model allows 4095 frames in a receive queue, and 4096 were asked for");
    assert!(narrow.check_queue_pair(QueuePairKind::Uc, &QueuePairLimits { send_pieces: 2, ..limits }).is_err());
    assert!(narrow.check_queue_pair(QueuePairKind::Uc, &QueuePairLimits { inline_bytes: 1, ..limits }).is_err());
}

#[test]
fn a_registration_is_one_piece() {
    let region = Region::alloc(3 << 12).expect("memory");
    let mut info = info(true);
    let all = 0..region.len();
    info.check_registration(&region, &all, Access::LOCAL_WRITE).expect("no rule");
    info.limits.registration = ChunkRule { boundary: None, max_len: Some(1 << 12) };
    let refused = info.check_registration(&region, &all, Access::LOCAL_WRITE).expect_err("three pieces");
    assert!(refused.to_string().contains("3 pieces"), "{refused}");
    for piece in region.registrations(info.limits.registration) {
        info.check_registration(&region, &piece, Access::LOCAL_WRITE).expect("a piece by the rule");
    }
    for range in [0..0, 5..5, 0..region.len() + 1] {
        assert!(info.check_registration(&region, &range, Access::empty()).is_err(), "{range:?}");
    }
}

#[test]
fn requests_and_what_they_take() {
    let narrow = info(false);
    let given = QueuePairLimits { send_depth: 8, recv_depth: 8, send_pieces: 1, recv_pieces: 1, inline_bytes: 0 };
    let request = SendRequest::send(1, []);
    assert_eq!(narrow.check_send(QueuePairKind::Uc, &given, &request), Ok(1));
    let unsupported = SendRequest { op: SendOp::Send { imm: Some(1) }, ..request.clone() };
    let refused = narrow.check_send(QueuePairKind::Uc, &given, &unsupported).expect_err("no immediate data");
    assert_eq!(refused.to_string(), "model has no immediate data");
    let rich = info(true);
    let remote = fulmen_verbs::RemoteAddr { addr: 0, rkey: 0 };
    let read = SendRequest { op: SendOp::Read { remote }, ..request };
    assert_eq!(rich.check_send(QueuePairKind::Rc, &given, &read), Ok(1));
    assert!(matches!(rich.check_send(QueuePairKind::Uc, &given, &read), Err(VerbsError::Unsupported { .. })));
    let inline = SendRequest { inline: true, ..read };
    assert!(matches!(rich.check_send(QueuePairKind::Rc, &given, &inline), Err(VerbsError::Invalid { .. })));
}

#[test]
fn a_budget_is_given_back() {
    let budget = Budget::new("model", "queue pairs", 3);
    let two = budget.take_many(2).expect("two of three");
    let one = budget.take().expect("the third");
    let refused = budget.take().expect_err("a fourth");
    assert_eq!(refused.to_string(), "model allows 3 queue pairs, and 4 were asked for");
    drop(two);
    assert_eq!((budget.used(), budget.limit()), (1, 3));
    assert!(budget.take_many(3).is_err() && budget.take_many(u64::MAX).is_err(), "all or nothing, and no overflow");
    assert_eq!(budget.used(), 1);
    drop(one);
    drop(budget.take_many(3).expect("all of it"));
    assert_eq!(budget.used(), 0);
}

#[test]
fn a_budget_holds_among_threads() {
    let budget = Budget::new("model", "queue pairs", 3);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..2000 {
                    let claim = budget.take();
                    assert!(budget.used() <= 3);
                    drop(claim);
                }
            });
        }
    });
    assert_eq!(budget.used(), 0);
}

proptest! {
    #[test]
    fn depth_counts_whole_frames(bytes in 0_u64..1 << 40, shift in 6_u32..16) {
        let mut limits = info(false).limits;
        limits.frame = None;
        prop_assert_eq!(limits.depth_of(bytes), 1);
        let frame = 1_u64 << shift;
        limits.frame = Some(frame as u32);
        let depth = limits.depth_of(bytes);
        prop_assert!(depth >= 1 && depth * frame >= bytes);
        prop_assert!(depth == 1 || (depth - 1) * frame < bytes);
    }

    #[test]
    fn attributes_out_of_range_are_refused(psn: u32, timeout: u8, retries: u8, rnr_retries: u8, timer: u8) {
        let rts = Transition::ReadyToSend {
            send_psn: psn,
            timeout: AckTimeout(timeout),
            retries,
            rnr_retries,
            reads_in_flight: 0,
        };
        let good = psn < 1 << 24 && timeout < 32 && retries < 8 && rnr_retries < 8;
        let checked = check_transition(1, State::ReadyToReceive, &rts);
        prop_assert_eq!(checked.is_ok(), good);
        let invalid = matches!(checked, Err(VerbsError::Invalid { .. }));
        prop_assert!(good || invalid);
        let Transition::ReadyToReceive { path, .. } = to(State::ReadyToReceive) else { unreachable!() };
        let min_rnr_timer = RnrTimer(timer);
        let rtr = Transition::ReadyToReceive { path, recv_psn: psn, reads_served: 0, min_rnr_timer };
        let checked = check_transition(1, State::Init, &rtr);
        prop_assert_eq!(checked.is_ok(), psn < 1 << 24 && timer < 32);
    }
}
