//! Messages in parts, more than a ring holds, of which the first ones are gone when it shows that the rest may not follow.

use super::*;
use crate::sides::{plain_side, unmappable};

/// More than a ring holds, and than goes through one if the system copies.
const LONG_MESSAGE: usize = crate::layout::PULLED + 4096;

/// Memory of a side for a long message, which goes in parts.
struct Long {
    memory: fulmen_memory::Exposed,
    mr: Arc<dyn fulmen_verbs::MemoryRegion>,
}

impl Long {
    fn of(side: &Side) -> Long {
        let region = unmappable(LONG_MESSAGE);
        let mr = side.pd.register(&region, 0..LONG_MESSAGE, Access::all()).unwrap();
        Long { memory: region.expose().unwrap(), mr }
    }

    fn piece(&self) -> fulmen_verbs::Piece {
        fulmen_verbs::Piece { memory: self.memory.clone(), lkey: self.mr.lkey() }
    }
}

/// Two sides that copy through rings alone, and wait for each other for ever.
fn connected() -> [Side; 2] {
    connected_by(false)
}

fn connected_by(process_vm: bool) -> [Side; 2] {
    let sides = [(); 2].map(|()| plain_side(fulmen_verbs::QueuePairKind::Rc, process_vm));
    sides[0].connect(&sides[1]);
    sides[1].connect(&sides[0]);
    for side in &sides {
        pair_of(side).inner().timers = Timers::default();
    }
    sides
}

#[test]
fn no_part_is_placed_in_memory_that_was_given_back() {
    let [one, other] = connected();
    let [from, into] = [&one, &other].map(Long::of);
    from.memory.fill(0..LONG_MESSAGE, 1);
    other.qp.post_recv(&[RecvRequest::new(2, [into.piece()])]).unwrap();
    let [sender, receiver] = [&one, &other].map(pair_of);
    let stopped = receiver.inner();
    one.qp.post_send(&[SendRequest::send(1, [from.piece()])]).unwrap();
    let waits = sender.inner();
    drop(stopped);
    let filled = until("the parts that a ring holds", || {
        let mut inner = receiver.inner();
        let filled = inner.filled as usize;
        (filled > 0 && matches!(inner.link.as_mut()?.near().ring.peek(), Ok(None))).then_some(filled)
    });
    let Long { memory, mr } = into;
    drop(mr);
    drop(waits);
    assert_eq!(next(&other).status, CompletionStatus::LocalProtection);
    assert_eq!(next(&one).status, CompletionStatus::RemoteOperation);
    let mut bytes = vec![0; LONG_MESSAGE];
    memory.read(0, &mut bytes);
    assert!(bytes[..filled].iter().all(|byte| *byte == 1) && bytes[filled..].iter().all(|byte| *byte == 0));
}

#[test]
fn no_part_is_read_out_of_memory_that_was_given_back() {
    let [one, other] = connected();
    let [from, into] = [&one, &other].map(Long::of);
    other.qp.post_recv(&[RecvRequest::new(2, [into.piece()])]).unwrap();
    let receiver = pair_of(&other);
    let stopped = receiver.inner();
    one.qp.post_send(&[SendRequest::send(1, [from.piece()])]).unwrap();
    drop(from);
    drop(stopped);
    assert_eq!(next(&one).status, CompletionStatus::LocalProtection);
}

#[test]
fn a_write_that_is_denied_half_way_fails() {
    let [one, other] = connected();
    let [from, into] = [&one, &other].map(Long::of);
    let receiver = pair_of(&other);
    let stopped = receiver.inner();
    let remote = RemoteAddr { addr: into.memory.addr() as u64, rkey: into.mr.rkey() };
    one.qp.post_send(&[SendRequest::new(1, SendOp::Write { remote, imm: None }, [from.piece()])]).unwrap();
    let device = &receiver.domain.device;
    device.registrations.remove(&device.node, &device.directory, into.mr.rkey());
    drop(stopped);
    // Most of it has not gone out yet.
    assert_eq!(next(&one).status, CompletionStatus::RemoteAccess);
}

#[test]
fn a_message_that_is_too_long_fails_at_its_first_part() {
    let [one, other] = connected();
    let from = Long::of(&one);
    recv(&other, 2);
    one.qp.post_send(&[SendRequest::send(1, [from.piece()])]).unwrap();
    assert_eq!(next(&other).status, CompletionStatus::LocalLength);
    assert_eq!(next(&one).status, CompletionStatus::RemoteInvalidRequest);
}

/// The system tells it before the node's thread does.
#[test]
fn a_sender_that_is_gone_while_its_message_is_pulled_breaks_nothing_here() {
    let [one, other] = connected_by(true);
    let [from, into] = [&one, &other].map(Long::of);
    // As if the process had ended.
    pair_of(&one).domain.device.proof.as_ref().unwrap().forge();
    other.qp.post_recv(&[RecvRequest::new(2, [into.piece()])]).unwrap();
    one.qp.post_send(&[SendRequest::send(1, [from.piece()])]).unwrap();
    let gone = || {
        pair_of(&other).inner().link.as_mut().is_some_and(|link| link.near().remote.fault() == crate::vm::Fault::Gone)
    };
    until("a look at the sender's memory", || {
        assert_eq!(other.poll(), []);
        gone().then_some(())
    });
    assert_eq!(other.poll(), []);
    assert_eq!(other.qp.state(), QueuePairState::ReadyToSend);
}
