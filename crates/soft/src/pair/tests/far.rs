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
