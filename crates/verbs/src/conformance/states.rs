//! The states of a queue pair.

use super::bed::{BOTH, Bed, Case, Outcome, ensure, ensure_eq};
use super::rig::{Rig, Setup, Side, connect, to_rtr, to_rts};
use super::watch::{check_done, check_status};
use crate::{Access, AckTimeout, CompletionOpcode, CompletionStatus, QueuePairState, RnrTimer, Transition, VerbsError};

pub(super) const CASES: &[Case] = &[
    Case::new("states: every transition, legal and illegal", BOTH, &[], every_transition),
    Case::new("states: attributes out of range are refused", BOTH, &[], attribute_ranges),
    Case::new("states: posting in the wrong state is refused", BOTH, &[], posting),
    Case::new("states: SQD holds new sends until RTS", BOTH, &[], drain),
    Case::new("states: posting in ERR is flushed", BOTH, &[], posting_in_error),
    Case::new("states: RESET forgets what was posted, and starts anew", BOTH, &[], reset),
];

const STATES: [QueuePairState; 6] = [
    QueuePairState::Reset,
    QueuePairState::Init,
    QueuePairState::ReadyToReceive,
    QueuePairState::ReadyToSend,
    QueuePairState::SendDrain,
    QueuePairState::Error,
];

/// A transition to a state, with attributes that suit.
fn to(state: QueuePairState, side: &Side, peer: &Side) -> Outcome<Transition> {
    Ok(match state {
        QueuePairState::Reset => Transition::Reset,
        QueuePairState::Init => Transition::Init { port: side.port, access: super::rig::all_access(side.info()) },
        QueuePairState::ReadyToReceive => to_rtr(side, peer)?,
        QueuePairState::ReadyToSend => to_rts(side.info(), &Setup::default()),
        QueuePairState::SendDrain => Transition::SendDrain,
        QueuePairState::Error => Transition::Error,
    })
}

/// Takes a queue pair from RESET into a state, on the usual way.
fn bring(state: QueuePairState, side: &Side, peer: &Side) -> Outcome {
    let way: &[QueuePairState] = match state {
        QueuePairState::Reset => &[],
        QueuePairState::Error => &STATES[5..],
        QueuePairState::Init | QueuePairState::ReadyToReceive => &STATES[1..3],
        QueuePairState::ReadyToSend | QueuePairState::SendDrain => &STATES[1..5],
    };
    for step in way {
        side.qp.modify(&to(*step, side, peer)?)?;
        ensure_eq!(side.qp.state(), *step, "the state after going to {step}");
        if *step == state {
            break;
        }
    }
    Ok(())
}

fn every_transition(bed: &Bed) -> Outcome {
    let setup = Setup { depth: 4, bytes: 4096, ..Setup::default() };
    for from in STATES {
        for target in STATES {
            let rig = Rig::reset(bed, &setup)?;
            // The peer is there and ready, so that a device may look.
            rig.b.init(&setup)?;
            rig.b.ready_to_receive(&rig.a)?;
            bring(from, &rig.a, &rig.b)?;
            let transition = to(target, &rig.a, &rig.b)?;
            let done = rig.a.qp.modify(&transition);
            if transition.is_legal_from(from) {
                ensure!(done.is_ok(), "{from} → {target} was refused: {done:?}");
                ensure_eq!(rig.a.qp.state(), target, "the state after {from} → {target}");
            } else {
                let refused = matches!(done, Err(VerbsError::State { state, .. }) if state == from);
                ensure!(refused, "{from} → {target} is illegal, and the device said {done:?}");
                ensure_eq!(rig.a.qp.state(), from, "the state after {from} → {target} was refused");
            }
        }
    }
    Ok(())
}

fn attribute_ranges(bed: &Bed) -> Outcome {
    let setup = Setup { depth: 4, bytes: 4096, ..Setup::default() };
    let rig = Rig::reset(bed, &setup)?;
    let refuse = |transition: &Transition, what: &str| -> Outcome {
        let before = rig.a.qp.state();
        let done = rig.a.qp.modify(transition);
        let refused = matches!(done, Err(VerbsError::Invalid { .. } | VerbsError::Limit { .. }));
        ensure!(refused, "{what} was to be refused as invalid, and the device said {done:?}");
        ensure_eq!(rig.a.qp.state(), before, "the state after {what} was refused");
        Ok(())
    };
    for port in [0, rig.a.info().ports + 1] {
        refuse(&Transition::Init { port, access: Access::empty() }, &format!("port {port}"))?;
    }
    rig.b.init(&setup)?;
    rig.a.init(&setup)?;

    let good = to_rtr(&rig.a, &rig.b)?;
    let Transition::ReadyToReceive { path, recv_psn, reads_served, min_rnr_timer } = good else {
        unreachable!("a transition to RTR was asked for");
    };
    let rtr = |recv_psn, min_rnr_timer, local_gid_index| Transition::ReadyToReceive {
        path: crate::Path { local_gid_index, ..path },
        recv_psn,
        reads_served,
        min_rnr_timer,
    };
    refuse(&rtr(1 << 24, min_rnr_timer, path.local_gid_index), "a recv_psn of 25 bits")?;
    refuse(&rtr(recv_psn, RnrTimer(32), path.local_gid_index), "an RNR timer of 32")?;
    let table = rig.a.device.gid_table(rig.a.port)?;
    let unused = (0..=u8::MAX).rev().find(|index| table.iter().all(|entry| entry.index != *index));
    if let Some(unused) = unused {
        refuse(&rtr(recv_psn, min_rnr_timer, unused), "a GID index that the table has not")?;
    }
    rig.a.qp.modify(&good)?;

    let rts = |send_psn, timeout, retries, rnr_retries| Transition::ReadyToSend {
        send_psn,
        timeout,
        retries,
        rnr_retries,
        reads_in_flight: rig.a.info().limits.reads_in_flight.min(16),
    };
    refuse(&rts(1 << 24, AckTimeout(14), 7, 7), "a send_psn of 25 bits")?;
    refuse(&rts(7, AckTimeout(32), 7, 7), "an acknowledgement time-out of 32")?;
    refuse(&rts(7, AckTimeout(14), 8, 7), "8 retries")?;
    refuse(&rts(7, AckTimeout(14), 7, 8), "8 RNR retries")?;
    rig.a.qp.modify(&rts(7, AckTimeout(31), 7, 7))?;
    ensure_eq!(rig.a.qp.state(), QueuePairState::ReadyToSend, "the state after attributes in range");
    Ok(())
}

fn posting(bed: &Bed) -> Outcome {
    let setup = Setup::default();
    for state in [QueuePairState::Reset, QueuePairState::Init, QueuePairState::ReadyToReceive] {
        let rig = Rig::reset(bed, &setup)?;
        rig.b.init(&setup)?;
        bring(state, &rig.a, &rig.b)?;
        let request = crate::SendRequest::send(1, [rig.a.memory.piece(0..8)]);
        let refused = rig.a.qp.post_send(&[request]);
        let right = refused.as_ref().is_err_and(|error| {
            error.index == 0 && matches!(error.cause, VerbsError::State { state: told, .. } if told == state)
        });
        ensure!(right, "posting a SEND in {state} is to be refused for its state, and the device said {refused:?}");
        let received = rig.a.qp.post_recv(&[crate::RecvRequest::new(2, [rig.a.memory.piece(0..8)])]);
        if state == QueuePairState::Reset {
            let right = received.as_ref().is_err_and(|error| matches!(error.cause, VerbsError::State { .. }));
            ensure!(right, "posting a RECV in RESET is to be refused for its state, and the device said {received:?}");
        } else {
            ensure!(received.is_ok(), "posting a RECV in {state} was refused: {received:?}");
        }
    }
    // What was posted in INIT serves messages that come later.
    let mut rig = Rig::reset(bed, &setup)?;
    rig.b.init(&setup)?;
    rig.b.recv_range(5, 0..64)?;
    rig.a.init(&setup)?;
    rig.a.ready_to_receive(&rig.b)?;
    rig.b.ready_to_receive(&rig.a)?;
    rig.a.ready_to_send(&setup)?;
    // The receiver stays in RTR: it can receive, and that is all it needs here.
    rig.a.write(0..64, 1);
    rig.a.send_range(6, 0..64)?;
    check_done(&rig.a_sent()?, 6, CompletionOpcode::Send)?;
    check_done(&rig.b_received()?, 5, CompletionOpcode::Recv)?;
    rig.b.check(0..64, 1, "a message to a queue pair in RTR")
}

fn drain(bed: &Bed) -> Outcome {
    let setup = Setup::default();
    let mut rig = Rig::connected(bed, &setup)?;
    rig.check_alive()?;
    rig.a.qp.modify(&Transition::SendDrain)?;
    rig.b.recv_range(2, 0..64)?;
    rig.a.write(0..64, 3);
    rig.a.send_range(1, 0..64)?;
    rig.a_sends_quiet("in SQD nothing new is sent")?;
    rig.b_recvs_quiet("in SQD nothing new is sent")?;
    // Receiving goes on meanwhile.
    rig.a.recv_range(3, 128..192)?;
    rig.b.send_range(4, 128..192)?;
    check_done(&rig.b_sent()?, 4, CompletionOpcode::Send)?;
    check_done(&rig.a_received()?, 3, CompletionOpcode::Recv)?;
    rig.a.ready_to_send(&setup)?;
    check_done(&rig.a_sent()?, 1, CompletionOpcode::Send)?;
    check_done(&rig.b_received()?, 2, CompletionOpcode::Recv)?;
    rig.b.check(0..64, 3, "the message that waited")
}

fn posting_in_error(bed: &Bed) -> Outcome {
    let mut rig = Rig::connected(bed, &Setup::default())?;
    rig.a.qp.modify(&Transition::Error)?;
    rig.a.send_range(1, 0..64)?;
    let request = crate::SendRequest { signaled: false, ..crate::SendRequest::send(2, [rig.a.memory.piece(0..64)]) };
    rig.a.send(request)?;
    rig.a.recv_range(3, 64..128)?;
    check_status(&rig.a_sent()?, 1, CompletionStatus::Flushed)?;
    // A failure completes visibly, whatever was asked for.
    check_status(&rig.a_sent()?, 2, CompletionStatus::Flushed)?;
    check_status(&rig.a_received()?, 3, CompletionStatus::Flushed)
}

fn reset(bed: &Bed) -> Outcome {
    let setup = Setup::default();
    let mut rig = Rig::connected(bed, &setup)?;
    rig.b.memory.bytes.fill(0..64, 0xEE);
    rig.b.recv_range(1, 0..64)?;
    rig.b.qp.modify(&Transition::Reset)?;
    rig.a.qp.modify(&Transition::Reset)?;
    rig.b_recvs_quiet("RESET forgets without completions")?;
    connect(&rig.a, &rig.b, &setup)?;
    rig.check_alive()?;
    super::pattern::check_all(&rig.b.memory.bytes.slice(0..64), 0xEE, "memory of a forgotten RECV")?;
    // And out of ERR.
    rig.a.qp.modify(&Transition::Error)?;
    rig.b.qp.modify(&Transition::Error)?;
    rig.a.qp.modify(&Transition::Reset)?;
    rig.b.qp.modify(&Transition::Reset)?;
    connect(&rig.a, &rig.b, &setup)?;
    rig.check_alive()
}
