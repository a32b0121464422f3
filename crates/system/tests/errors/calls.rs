//! Calls that fail with the numbers that were seen in the field: each is explained, with the way out.

use std::sync::Arc;

use fulmen_memory::{Exposed, Region};
use fulmen_system::{OpenError, SystemDevice};
use fulmen_verbs::{
    Access, AckTimeout, Completion, CompletionQueue, Device, Gid, MemoryRegion, Mtu, Path, Piece, PostError,
    ProtectionDomain, QueuePair, QueuePairInit, QueuePairKind, QueuePairLimits, RecvRequest, RnrTimer, SendRequest,
    Transition, VerbsError,
};

use super::{Fake, LOG, says};

/// One end of a connection, and memory for it.
struct End {
    device: Arc<SystemDevice>,
    pd: Arc<dyn ProtectionDomain>,
    queue: Arc<dyn CompletionQueue>,
    pair: Arc<dyn QueuePair>,
    registration: Arc<dyn MemoryRegion>,
    memory: Exposed,
}

const DEPTH: u32 = 8;

impl End {
    fn new(fake: &Fake, device: &str, kind: QueuePairKind) -> End {
        let device = fake.open(device);
        let pd = device.alloc_pd().expect("a domain");
        let queue = device.create_cq(4 * DEPTH, None).expect("a queue");
        let limits =
            QueuePairLimits { send_depth: DEPTH, recv_depth: DEPTH, send_pieces: 1, recv_pieces: 1, inline_bytes: 0 };
        let init = QueuePairInit {
            kind,
            send_cq: queue.clone(),
            recv_cq: queue.clone(),
            limits,
            signal_all: false,
            srq: None,
        };
        let pair = pd.create_qp(&init).expect("a queue pair");
        let region = Region::alloc(1 << 16).expect("memory");
        let registration = pd.register(&region, 0..region.len(), Access::LOCAL_WRITE).expect("registered");
        let memory = region.expose().expect("nobody else has it");
        End { device, pd, queue, pair, registration, memory }
    }

    fn init(&self) -> Result<(), VerbsError> {
        self.pair.modify(&Transition::Init { port: 1, access: Access::empty() })
    }

    fn receive_from(&self, peer: &End) -> Result<(), VerbsError> {
        let table = peer.device.gid_table(1).expect("a table");
        let remote_gid = table.last().expect("an address").gid;
        self.receive_from_gid(remote_gid, peer.device.port(1).expect("a port").lid, peer.pair.qp_num())
    }

    fn receive_from_gid(&self, remote_gid: Gid, remote_lid: u16, remote_qp: u32) -> Result<(), VerbsError> {
        let local = self.device.gid_table(1).expect("a table");
        let local_gid_index = local.last().expect("an address").index;
        let path = Path { remote_gid, remote_lid, local_gid_index, remote_qp, mtu: Mtu::B1024 };
        let (reads_served, min_rnr_timer) = (0, RnrTimer(12));
        self.pair.modify(&Transition::ReadyToReceive { path, recv_psn: 1, reads_served, min_rnr_timer })
    }

    fn send_on(&self) -> Result<(), VerbsError> {
        let (timeout, retries, rnr_retries) = (AckTimeout(14), 7, 7);
        self.pair.modify(&Transition::ReadyToSend { send_psn: 1, timeout, retries, rnr_retries, reads_in_flight: 0 })
    }

    fn piece(&self) -> Piece {
        Piece { memory: self.memory.slice(0..64), lkey: self.registration.lkey() }
    }
}

/// Both ends of a connection over the device.
fn connected(fake: &Fake, device: &str, kind: QueuePairKind) -> [End; 2] {
    let ends = [(); 2].map(|()| End::new(fake, device, kind));
    for end in &ends {
        end.init().expect("INIT");
    }
    for (end, peer) in [(&ends[0], &ends[1]), (&ends[1], &ends[0])] {
        end.receive_from(peer).expect("RTR");
        end.send_on().expect("RTS");
    }
    ends
}

#[test]
fn a_message_arrives() {
    for (device, like, kind) in [
        ("mlx5_0", "roce", QueuePairKind::Rc),
        ("mlx5_0", "roce", QueuePairKind::Uc),
        ("mlx5_0", "infiniband\nlid=7", QueuePairKind::Rc),
        ("rdma_en5", "thunderbolt", QueuePairKind::Uc),
    ] {
        let Some(fake) = Fake::new(&format!("device={device}\nlike={like}\n")) else { return };
        let [one, other] = connected(&fake, device, kind);
        one.memory.write(0, b"fulmen");
        other.pair.post_recv(&[RecvRequest::new(7, [other.piece()])]).expect("posted");
        one.pair.post_send(&[SendRequest::send(9, [one.piece()])]).expect("posted");
        for (end, wr_id) in [(&one, 9), (&other, 7)] {
            let mut done = [Completion::BLANK; 2];
            assert_eq!(end.queue.poll(&mut done).expect("polled"), 1);
            assert!(done[0].wr_id == wr_id && done[0].status.is_success(), "{:?}", done[0]);
        }
        let mut bytes = [0; 6];
        other.memory.read(0, &mut bytes);
        assert_eq!(&bytes, b"fulmen");
    }
}

/// What going to RTR says when the library returns this number.
fn to_rtr(errno: i32) -> Option<VerbsError> {
    let fake = Fake::new(&format!("device=rdma_en5\nlike=thunderbolt\non.modify_qp=fail {errno} state rtr\n"))?;
    let [one, other] = [(); 2].map(|()| End::new(&fake, "rdma_en5", QueuePairKind::Uc));
    one.init().expect("INIT");
    Some(one.receive_from(&other).expect_err("it is refused"))
}

#[test]
fn refusals_on_the_way_to_rtr_are_explained() {
    for (errno, words) in [
        (22, ["GID", "bridge"]),
        (60, ["GID", "cable"]),
        (110, ["GID", "cable"]),
        (16, ["earlier connection", "end the processes"]),
        (96, ["protection domain", "end other programs"]),
    ] {
        let Some(error) = to_rtr(errno) else { return };
        says(&error, &words);
        says(&error, &[&format!("(error {errno})")]);
    }
}

#[test]
fn an_index_without_an_address_is_refused() {
    let Some(fake) = Fake::new("device=mlx5_0\nlike=roce\n") else { return };
    let [one, other] = [(); 2].map(|()| End::new(&fake, "mlx5_0", QueuePairKind::Rc));
    one.init().expect("INIT");
    let remote_gid = other.device.gid_table(1).expect("a table")[0].gid;
    let path = Path { remote_gid, remote_lid: 0, local_gid_index: 6, remote_qp: other.pair.qp_num(), mtu: Mtu::B1024 };
    let (reads_served, min_rnr_timer) = (0, RnrTimer(12));
    let rtr = Transition::ReadyToReceive { path, recv_psn: 1, reads_served, min_rnr_timer };
    let error = one.pair.modify(&rtr).expect_err("nothing is at that index");
    says(&error, &["mlx5_0", "GID", "index"]);
}

#[test]
fn other_changes_of_state_are_explained() {
    for (state, word) in [("init", "INIT"), ("rts", "RTS")] {
        let config = format!("device=rdma_en5\nlike=thunderbolt\non.modify_qp=fail 5 state {state}\n");
        let Some(fake) = Fake::new(&config) else { return };
        let [one, other] = [(); 2].map(|()| End::new(&fake, "rdma_en5", QueuePairKind::Uc));
        let made = one.init().and_then(|()| one.receive_from(&other)).and_then(|()| one.send_on());
        says(&made.expect_err("one of them is refused"), &["rdma_en5", word, "gone", "(error 5)"]);
    }
}

#[test]
fn used_up_domains_are_explained() {
    // The first was made and given back when the device was opened.
    let Some(fake) = Fake::new("device=rdma_en5\nlike=thunderbolt\non.alloc_pd=fail 96 after 1\n") else { return };
    let Err(error) = fake.open("rdma_en5").alloc_pd() else { panic!("they are used up") };
    says(&error, &["rdma_en5", "ibv_alloc_pd", "protection domain", "end other programs", "(error 96)"]);

    let Some(fake) = Fake::new("device=rdma_en5\nlike=thunderbolt\non.alloc_pd=fail 96\n") else { return };
    let error = fake.refusal("rdma_en5");
    assert!(matches!(error, OpenError::Call { call: "ibv_alloc_pd", errno: 96, .. }), "{error:?}");
    says(&error, &["rdma_en5", "protection domain", "end other programs"]);
}

#[test]
fn posts_that_fail_with_negative_numbers_are_explained() {
    let config = "device=rdma_en5\nlike=thunderbolt\non.post_send=fail -12 after 2\non.post_recv=fail -12 after 3\n";
    let Some(fake) = Fake::new(config) else { return };
    let [one, _other] = connected(&fake, "rdma_en5", QueuePairKind::Uc);
    let sends: Vec<SendRequest> = (0..4).map(|wr_id| SendRequest::send(wr_id, [one.piece()])).collect();
    let recvs: Vec<RecvRequest> = (0..4).map(|wr_id| RecvRequest::new(wr_id, [one.piece()])).collect();
    let check = |error: PostError, index: usize, queue: &str| {
        assert_eq!(error.index, index, "those before it were posted: {error:?}");
        assert!(matches!(error.cause, VerbsError::QueueFull { .. }), "layers above wait for room: {error:?}");
        says(&error.cause, &[queue, "full", "poll for completions"]);
    };
    check(one.pair.post_send(&sends).expect_err("the third is refused"), 2, "send");
    check(one.pair.post_recv(&recvs).expect_err("the fourth is refused"), 3, "receive");
}

#[test]
fn completions_before_a_failure_are_told_first() {
    // They are asked for sixteen at a time, and eight sends and eight receives are sixteen.
    let config = "device=mlx5_0\nlike=roce\non.poll_cq=fail -5 after 1 times 1\n";
    let Some(fake) = Fake::new(config) else { return };
    let [one, other] = connected(&fake, "mlx5_0", QueuePairKind::Rc);
    for end in [&one, &other] {
        let recvs: Vec<_> = (0..8).map(|wr_id| RecvRequest::new(100 + wr_id, [end.piece()])).collect();
        end.pair.post_recv(&recvs).expect("posted");
    }
    for end in [&one, &other] {
        let sends: Vec<_> = (0..8).map(|wr_id| SendRequest::send(wr_id, [end.piece()])).collect();
        end.pair.post_send(&sends).expect("posted");
    }
    let mut done = [Completion::BLANK; 32];
    assert_eq!(one.queue.poll(&mut done).expect("what had come"), 16);
    assert!(done[..16].iter().all(|completion| completion.status.is_success()), "{done:?}");
    let error = one.queue.poll(&mut done).expect_err("what failed then");
    says(&error, &["mlx5_0", "ibv_poll_cq", "gone", "(error 5)"]);
    assert_eq!(one.queue.poll(&mut done).expect("it is told once"), 0);
    assert_eq!(other.queue.poll(&mut done).expect("the other queue goes on"), 16);
}

#[test]
fn a_poll_that_fails_without_a_reason_names_none() {
    for returned in [-1, -2] {
        let Some(fake) = Fake::new(&format!("device=mlx5_0\nlike=roce\non.poll_cq=fail {returned}\n")) else { return };
        let queue = fake.open("mlx5_0").create_cq(1, None).expect("a queue");
        says(&queue.poll(&mut [Completion::BLANK]).expect_err("it fails"), &["mlx5_0", "ibv_poll_cq", "no reason"]);
    }
}

#[test]
fn a_flush_that_fails_refuses_no_request() {
    // The second change to ERR is the flush behind the post.
    let config = format!("{LOG}device=mlx5_0\nlike=roce\non.modify_qp=fail 5 state err after 1\n");
    let Some(fake) = Fake::new(&config) else { return };
    let [one, _other] = connected(&fake, "mlx5_0", QueuePairKind::Rc);
    one.pair.modify(&Transition::Error).expect("ERR");
    one.pair.post_recv(&[RecvRequest::new(7, [one.piece()])]).expect("the device took it");
    assert!(fake.log().contains("modify_qp rule"), "the flush failed: {}", fake.log());
}

#[test]
fn the_eleventh_queue_pair_is_refused() {
    let Some(fake) = Fake::new("device=rdma_en5\nlike=thunderbolt\nmax_qp=3\n") else { return };
    let ends = [(); 3].map(|()| End::new(&fake, "rdma_en5", QueuePairKind::Uc));
    let limits = QueuePairLimits { send_depth: 1, recv_depth: 1, send_pieces: 1, recv_pieces: 1, inline_bytes: 0 };
    let (kind, queue) = (QueuePairKind::Uc, &ends[0].queue);
    let init =
        QueuePairInit { kind, send_cq: queue.clone(), recv_cq: queue.clone(), limits, signal_all: false, srq: None };
    // Each end opened the device for itself, so only the device knows that all are gone.
    let Err(error) = ends[0].pd.create_qp(&init) else { panic!("there are no more") };
    says(&error, &["rdma_en5", "in use", "end other programs", "(error 16)"]);
}

#[test]
fn after_a_hundred_registrations_there_are_no_more() {
    // The device says a thousand, and has a hundred, or says so.
    for config in ["max_mr=1000\non.reg_mr=fail 12 live 100\n", "max_mr=100\n"] {
        let Some(fake) = Fake::new(&format!("{LOG}device=rdma_en5\nlike=thunderbolt\n{config}")) else { return };
        let device = fake.open("rdma_en5");
        let pd = device.alloc_pd().expect("a domain");
        let region = Region::alloc(4096).expect("memory");
        let register = || pd.register(&region, 0..region.len(), Access::LOCAL_WRITE);
        let mut kept: Vec<_> = (0..100).map(|_| register().expect("there are a hundred")).collect();
        let Err(error) = register() else { panic!("there are no more") };
        match &error {
            VerbsError::Limit { limit: 100, .. } => says(&error, &["rdma_en5 allows 100 registrations"]),
            _ => says(&error, &["rdma_en5", "ibv_reg_mr", "no registration left", "release", "(error 12)"]),
        }
        // Beside those of this test, the device was tried when it was opened.
        kept.pop();
        register().expect("one was given back");
        drop(kept);
        assert_eq!(fake.log().matches(" dereg_mr ").count(), 102);
    }
}

#[test]
fn memory_that_the_device_refuses_is_explained() {
    for (errno, words) in
        [(14, ["LOCAL_WRITE", "read"]), (22, ["rights", "length"]), (12, ["ulimit -l", "locked memory"])]
    {
        let Some(fake) = Fake::new(&format!("device=mlx5_0\nlike=roce\non.reg_mr=fail {errno}\n")) else { return };
        let pd = fake.open("mlx5_0").alloc_pd().expect("a domain");
        let region = Region::alloc(4096).expect("memory");
        let Err(error) = pd.register(&region, 0..4096, Access::LOCAL_WRITE) else { panic!("it is refused") };
        says(&error, &words);
        says(&error, &["mlx5_0", "ibv_reg_mr", &format!("(error {errno})")]);
        // Nobody is told to leave out what was left out.
        let Err(error) = pd.register(&region, 0..4096, Access::empty()) else { panic!("it is refused") };
        says(&error, &["mlx5_0", "ibv_reg_mr without LOCAL_WRITE failed", &format!("(error {errno})"), ": "]);
        assert!(!error.to_string().contains("leave out"), "{error}");
    }
}

#[test]
fn rights_that_a_device_refuses_alone_are_asked_for_together() {
    // Some systems take LOCAL_WRITE (1) alone, others only with REMOTE_READ (4) and REMOTE_WRITE (2).
    for (rule, write, read, pair) in
        [("", 1, 0, 0), ("on.reg_mr=fail 22 access_is 1\n", 7, 4, 6), ("on.reg_mr=fail 12\n", 1, 0, 0)]
    {
        let Some(fake) = Fake::new(&format!("{LOG}device=rdma_en5\nlike=thunderbolt\n{rule}")) else { return };
        let device = fake.open("rdma_en5");
        let pd = device.alloc_pd().expect("a domain");
        let region = Region::alloc(4096).expect("memory");
        let before = fake.log().len();
        let made = [Access::LOCAL_WRITE, Access::empty()].map(|access| pd.register(&region, 0..4096, access));
        let log = fake.log();
        let asked: Vec<&str> = log[before..].lines().filter(|line| line.contains(" reg_mr len=")).collect();
        let answer = if rule.contains("fail 12") { "refused" } else { "ok" };
        let expected = [write, read].map(|access| format!("rdma_en5 reg_mr len=4096 access={access} {answer}"));
        assert_eq!(asked, expected, "{rule}");
        for (registration, asked) in made.iter().flatten().zip([Access::LOCAL_WRITE, Access::empty()]) {
            assert_eq!(registration.access(), asked, "what the user asked for");
        }
        if answer == "ok" {
            End::new(&fake, "rdma_en5", QueuePairKind::Uc).init().expect("INIT");
            assert!(fake.log().contains(&format!("state=init access={pair} result=0")), "{}", fake.log());
        }
    }
    let Some(fake) = Fake::new(&format!("{LOG}device=mlx5_0\nlike=roce\n")) else { return };
    fake.open("mlx5_0");
    assert!(!fake.log().contains("reg_mr"), "others are not tried: {}", fake.log());
}

#[test]
fn registrations_do_not_cross_four_gibibytes() {
    let Some(fake) = Fake::new("device=rdma_en5\nlike=thunderbolt\n") else { return };
    let device = fake.open("rdma_en5");
    let pd = device.alloc_pd().expect("a domain");
    // Wherever it lies, it crosses a multiple; nothing of it is touched.
    let region = Region::alloc((4 << 30) + (1 << 20)).expect("address space");
    let pieces = region.registrations(device.info().limits.registration);
    assert!(pieces.len() >= 2, "{pieces:?}");
    let kept: Vec<_> = pieces.into_iter().map(|piece| pd.register(&region, piece, Access::LOCAL_WRITE)).collect();
    assert!(kept.iter().all(Result::is_ok), "the device takes each piece");
    let Err(error) = pd.register(&region, 0..region.len(), Access::LOCAL_WRITE) else { panic!("it crosses one") };
    says(&error, &["registration", "piece"]);
}

#[test]
fn a_lowered_depth_is_told() {
    let Some(fake) = Fake::new("device=rdma_en5\nlike=thunderbolt\ngranted_wr=5\n") else { return };
    let end = End::new(&fake, "rdma_en5", QueuePairKind::Uc);
    let limits = end.pair.limits();
    assert_eq!((limits.send_depth, limits.recv_depth), (5, 5), "asked for {DEPTH}, and got what the device has");
}

#[test]
fn a_failure_without_a_reason_says_so() {
    let Some(fake) = Fake::new("device=mlx5_0\nlike=roce\non.reg_mr=fail 0\n") else { return };
    let pd = fake.open("mlx5_0").alloc_pd().expect("a domain");
    let region = Region::alloc(4096).expect("memory");
    let Err(error) = pd.register(&region, 0..4096, Access::LOCAL_WRITE) else { panic!("it is refused") };
    says(&error, &["mlx5_0", "ibv_reg_mr", "no reason", "system's log"]);
}

#[test]
fn infiniband_wants_the_lid_of_the_peers_port() {
    let Some(fake) = Fake::new("device=mlx5_0\nlike=infiniband\nlid=7\n") else { return };
    let end = End::new(&fake, "mlx5_0", QueuePairKind::Rc);
    assert_eq!(end.device.port(1).expect("a port").lid, 7);
    end.init().expect("INIT");
    let gid = end.device.gid_table(1).expect("a table")[0].gid;
    let error = end.receive_from_gid(gid, 0, end.pair.qp_num()).expect_err("switches would not find it");
    says(&error, &["mlx5_0", "LID"]);
    end.receive_from_gid(gid, 7, end.pair.qp_num()).expect("RTR");
}
