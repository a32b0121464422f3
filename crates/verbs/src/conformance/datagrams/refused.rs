//! What datagram queue pairs refuse, and how they end.

use super::*;

pub(super) fn unknown_handle(bed: &Bed) -> Outcome {
    let mut rig = rig(bed)?;
    let handle = handle_for(&rig.a, &rig.b)?;
    let op = to(&handle, &rig.b);
    drop(handle);
    let refused = rig.a.qp.post_send(&[SendRequest::new(1, op, [])]).map_err(|error| error.cause);
    ensure!(matches!(refused, Err(VerbsError::Invalid { .. })), "a handle that is gone: {refused:?}");
    let path = AddressPath {
        port: rig.a.port + 1,
        remote_gid: usable_gid(&rig.b)?.gid,
        remote_lid: 1,
        local_gid_index: usable_gid(&rig.a)?.index,
    };
    for wrong in [path, AddressPath { port: rig.a.port, local_gid_index: 200, ..path }] {
        let refused = rig.a.pd.create_ah(&wrong).map(|_| ());
        ensure!(matches!(refused, Err(VerbsError::Invalid { .. })), "{wrong:?}: {refused:?}");
    }
    check_alive(&mut rig)
}

/// The transitions of connected queue pairs.
fn with_a_peer(side: &Side) -> Outcome<[Transition; 3]> {
    let own = usable_gid(side)?;
    let (remote_gid, local_gid_index) = (own.gid, own.index);
    let path = Path { remote_gid, remote_lid: 0, local_gid_index, remote_qp: side.qp.qp_num(), mtu: Mtu::B1024 };
    Ok([
        Transition::Init { port: side.port, access: Access::empty() },
        Transition::ReadyToReceive { path, recv_psn: 0, reads_served: 0, min_rnr_timer: RnrTimer(1) },
        crate::conformance::rig::to_rts(side.info(), &Setup::default()),
    ])
}

fn are_refused(side: &Side, transitions: &[Transition]) -> Outcome {
    for transition in transitions {
        let refused = side.qp.modify(transition);
        ensure!(matches!(refused, Err(VerbsError::Invalid { .. })), "{transition:?}: {refused:?}");
    }
    Ok(())
}

const DATAGRAM_INIT: Transition = Transition::DatagramInit { port: 1, qkey: QKEY };

pub(super) fn no_peer(bed: &Bed) -> Outcome {
    let rig = Rig::reset(bed, &Setup::default())?;
    let [init, receive, send] = with_a_peer(&rig.a)?;
    are_refused(&rig.a, &[init])?;
    rig.a.qp.modify(&Transition::DatagramInit { port: rig.a.port, qkey: QKEY })?;
    are_refused(&rig.a, &[receive])?;
    rig.a.qp.modify(&Transition::DatagramReceive)?;
    are_refused(&rig.a, &[send])?;
    ensure_eq!(rig.a.qp.state(), QueuePairState::ReadyToReceive, "the state after refusals");
    Ok(())
}

pub(super) fn connected(bed: &Bed) -> Outcome {
    if !bed.info().capabilities.has(QueuePairKind::Ud) {
        return Err(Failure::Missing("UD queue pairs".to_owned()));
    }
    let setup = Setup::default();
    let mut rig = Rig::reset(bed, &setup)?;
    are_refused(&rig.a, &[DATAGRAM_INIT])?;
    crate::conformance::rig::connect(&rig.a, &rig.b, &setup)?;
    are_refused(&rig.a, &[Transition::DatagramSend { send_psn: 0 }])?;
    let handle = handle_for(&rig.a, &rig.b)?;
    let refused = rig.a.qp.post_send(&[SendRequest::new(1, to(&handle, &rig.b), [])]).map_err(|error| error.cause);
    ensure!(matches!(refused, Err(VerbsError::Unsupported { .. })), "an addressed SEND: {refused:?}");
    rig.check_alive()
}

pub(super) fn no_address(bed: &Bed) -> Outcome {
    let mut rig = rig(bed)?;
    let remote = rig.b.memory.remote(0);
    for op in [SendOp::Send { imm: None }, SendOp::Write { remote, imm: None }, SendOp::Read { remote }] {
        let refused = rig.a.qp.post_send(&[SendRequest::new(1, op, [rig.a.memory.piece(0..8)])]);
        let refused = refused.map_err(|error| error.cause);
        ensure!(matches!(refused, Err(VerbsError::Unsupported { .. })), "{op:?}: {refused:?}");
    }
    check_alive(&mut rig)
}

pub(super) fn wrong_local_key(bed: &Bed) -> Outcome {
    let mut rig = rig(bed)?;
    let handle = handle_for(&rig.a, &rig.b)?;
    let mut piece = rig.a.memory.piece(0..64);
    piece.lkey ^= 1 << 20;
    rig.b.recv_range(1, 0..HEAD + 64)?;
    rig.a.send(SendRequest::new(7, to(&handle, &rig.b), [piece]))?;
    check_status(&rig.a_sent()?, 7, CompletionStatus::LocalProtection)?;
    rig.b_recvs_quiet("a message with a wrong local key")
}

pub(super) fn flushes(bed: &Bed) -> Outcome {
    let mut rig = rig(bed)?;
    let handle = handle_for(&rig.a, &rig.b)?;
    rig.b.recv_range(1, 0..HEAD + 64)?;
    rig.b.recv_range(2, 0..HEAD + 64)?;
    rig.b.qp.modify(&Transition::Error)?;
    for wr_id in [1, 2] {
        check_status(&rig.b_received()?, wr_id, CompletionStatus::Flushed)?;
    }
    let back = handle_for(&rig.b, &rig.a)?;
    rig.b.post(3, to(&back, &rig.a), 0..64)?;
    check_status(&rig.b_sent()?, 3, CompletionStatus::Flushed)?;
    // What comes for it is dropped. That it has come is known when the next message to its device has.
    let neighbour = Side::new(&rig.b.device, bed, &Setup::default())?;
    ready(&neighbour, QKEY)?;
    neighbour.recv_range(40, 0..HEAD + 64)?;
    for (wr_id, side) in [(4, &rig.b), (40, &neighbour)] {
        rig.a.post(wr_id, to(&handle, side), 0..64)?;
    }
    for wr_id in [4, 40] {
        check_done(&rig.a_sent()?, wr_id, CompletionOpcode::Send)?;
    }
    check_taken(&Watch::new([neighbour.recv_cq.clone()]).next(0)?, 40, 64, &rig.a)?;
    rig.b.qp.modify(&Transition::Reset)?;
    rig.b.qp.modify(&Transition::DatagramInit { port: rig.b.port, qkey: QKEY })?;
    rig.b.recv_range(5, 0..HEAD + 64)?;
    rig.b.qp.modify(&Transition::Reset)?;
    ready(&rig.b, QKEY)?;
    rig.b_recvs_quiet("RESET forgets RECVs")?;
    check_alive(&mut rig)
}
