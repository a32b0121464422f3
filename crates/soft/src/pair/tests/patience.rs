//! Messages over UC that find no RECV.

use super::*;
use crate::{SoftDevice, SoftOptions};

/// A side whose device keeps messages for so long.
fn patient(patience: Duration) -> Side {
    let options = SoftOptions { recv_patience: patience, ..SoftOptions::new(Profile::Infiniband) };
    let device = SoftDevice::open_as(&Node::open().unwrap(), options).unwrap();
    side_on(device, Profile::Infiniband, QueuePairKind::Uc)
}

fn connected(patience: Duration) -> [Side; 2] {
    let sides = [patient(patience), patient(patience)];
    sides[0].connect(&sides[1]);
    sides[1].connect(&sides[0]);
    sides
}

#[test]
fn a_message_waits_for_its_recv() {
    let [sender, receiver] = connected(LONG);
    for wr_id in 0..3 {
        send(&sender, wr_id);
    }
    assert_eq!(receiver.poll(), []);
    for wr_id in 0..3 {
        recv(&receiver, wr_id);
        assert_eq!((next(&receiver).wr_id, next(&sender).wr_id), (wr_id, wr_id));
    }
}

#[test]
fn what_waited_too_long_is_lost_and_what_follows_at_once_until_there_is_a_recv() {
    let [sender, receiver] = connected(Duration::from_millis(20));
    // Nobody polls at the receiver: its thread keeps the time.
    send(&sender, 0);
    assert_eq!((next(&sender).wr_id, next_status(&sender, 1)), (0, CompletionStatus::Success));
    let pair = pair_of(&receiver);
    until("the loss of both", || (pair.inner().taken == 2).then_some(()));
    assert_eq!(pair.inner().patience.until(), None, "the second one does not wait");
    recv(&receiver, 7);
    send(&sender, 2);
    assert_eq!((next(&receiver).wr_id, next(&sender).wr_id), (7, 2));
    // Patience is back. Under the lock nobody else takes the message, nor lets it go.
    let mut inner = pair.inner();
    send(&sender, 3);
    pair.receive(&mut inner);
    assert!(inner.patience.until().is_some(), "it waits");
}

fn next_status(side: &Side, wr_id: u64) -> CompletionStatus {
    send(side, wr_id);
    next(side).status
}

#[test]
fn nothing_waits_any_more_once_the_sender_gave_up() {
    let [sender, receiver] = connected(LONG);
    send(&sender, 0);
    let pair = pair_of(&receiver);
    until("a message that waits", || pair.inner().patience.until());
    sender.qp.modify(&Transition::Error).unwrap();
    // A time that nobody waits for would keep the device's thread awake for ever.
    until("the end of its wait", || pair.inner().patience.until().is_none().then_some(()));
}
