//! A peer on another host.

use fulmen_verbs::Piece;

use super::*;
use crate::sides::far_side;

/// The owner of memory ends its registration when a part of an answer is on its way.
#[test]
fn an_answer_that_was_cut_short_is_refused() {
    const LEN: usize = 1 << 20;
    // More than lies in the kernel while the asking side takes nothing.
    const READS: usize = 16;
    let [one, owner] = [(); 2].map(|()| far_side(Profile::Infiniband, QueuePairKind::Rc));
    one.connect(&owner);
    owner.connect(&one);
    let [from, into] = [LEN, READS * LEN].map(|len| Region::alloc(len).unwrap());
    let from_mr = owner.pd.register(&from, 0..LEN, Access::all()).unwrap();
    let into_mr = one.pd.register(&into, 0..READS * LEN, Access::all()).unwrap();
    from.expose().unwrap().fill(0..LEN, 0x77);
    let into = into.expose().unwrap();
    let remote = RemoteAddr { addr: from.addr() as u64, rkey: from_mr.rkey() };
    let read = |wr_id: usize, range| {
        let piece = Piece { memory: into.slice(range), lkey: into_mr.lkey() };
        SendRequest::new(wr_id as u64, SendOp::Read { remote }, [piece])
    };
    // From then on they are connected.
    one.qp.post_send(&[read(READS, 0..8)]).unwrap();
    assert_eq!(next(&one).status, CompletionStatus::Success);
    let [asking, answering] = [&one, &owner].map(pair_of);
    let stopped = answering.inner();
    one.qp.post_send(&(0..READS).map(|index| read(index, index * LEN..(index + 1) * LEN)).collect::<Vec<_>>()).unwrap();
    let waits = asking.inner();
    drop(stopped);
    until("a part of an answer", || {
        let inner = answering.inner();
        let device = &answering.domain.device;
        let amid = inner.link.as_ref()?.far()?.is_amid_answer();
        amid.then(|| device.registrations.remove(&device.node, &device.directory, from_mr.rkey()))
    });
    drop(waits);
    let refused = (0..READS).find(|index| {
        let Completion { wr_id, status, .. } = next(&one);
        assert_eq!(wr_id, *index as u64);
        let mut bytes = vec![0; LEN];
        into.read(index * LEN, &mut bytes);
        let whole = bytes.iter().all(|byte| *byte == 0x77);
        assert!(whole || status == CompletionStatus::RemoteAccess, "READ {index} ended with {status:?}");
        status == CompletionStatus::RemoteAccess
    });
    for _ in refused.expect("memory that was given back was read")..READS - 1 {
        assert_eq!(next(&one).status, CompletionStatus::Flushed);
    }
}

/// A side that stands still for longer than a peer may be silent finds what that said meanwhile.
#[test]
fn a_peer_that_was_not_listened_to_is_not_silent() {
    // Until this thread is at the queue pair before the device's is, which reads what the peer says.
    until("a peer that was not heard yet", || {
        let [one, other] = [(); 2].map(|()| far_side(Profile::Infiniband, QueuePairKind::Uc));
        one.connect(&other);
        other.connect(&one);
        let pair = pair_of(&one);
        let mut stopped = pair.inner();
        let Some(Link::Far(far)) = &mut stopped.link else { panic!("it is on another host") };
        if far.takes() || !far.is_open() {
            return None;
        }
        recv(&other, 1);
        until("it has spoken", || pair_of(&other).inner().link.as_ref()?.far()?.is_open().then_some(()));
        far.age(LONG);
        drop(stopped);
        send(&one, 2);
        assert_eq!(next(&one).status, CompletionStatus::Success);
        assert_eq!(next(&other).wr_id, 1, "the message arrives");
        Some(())
    });
}

/// What UC had sent in part when its peer went into error is lost, as what it had not begun.
#[test]
fn a_long_message_to_a_peer_in_error_is_lost() {
    const LEN: usize = 64 << 20;
    let [one, other] = [(); 2].map(|()| far_side(Profile::Infiniband, QueuePairKind::Uc));
    one.connect(&other);
    other.connect(&one);
    recv(&other, 1);
    send(&one, 1);
    assert_eq!([next(&one).status, next(&other).status], [CompletionStatus::Success; 2]);
    let region = Region::alloc(LEN).unwrap();
    let mr = one.pd.register(&region, 0..LEN, Access::empty()).unwrap();
    let piece = Piece { memory: region.expose().unwrap().slice(0..LEN), lkey: mr.lkey() };
    // Its goodbye is there before the end of the connection is.
    let stopped = pair_of(&other);
    let stopped = stopped.inner();
    one.qp.post_send(&[SendRequest::send(2, [piece.clone()]), SendRequest::send(3, [piece])]).unwrap();
    until("a part of the message", || {
        let pair = pair_of(&one);
        let mut inner = pair.inner();
        let Some(Link::Far(far)) = &mut inner.link else { panic!("it is on another host") };
        far.is_over_amid_send().then_some(())
    });
    for wr_id in [2, 3] {
        let Completion { wr_id: ended, status, .. } = next(&one);
        assert_eq!((ended, status), (wr_id, CompletionStatus::Success));
    }
    send(&one, 4);
    assert_eq!(next(&one).wr_id, 4, "the queue pair is as good as before");
    drop(stopped);
}
