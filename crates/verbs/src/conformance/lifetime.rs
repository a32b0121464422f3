//! Objects can be dropped in any order, and memory stays where it is as long as something is in flight.

use std::sync::Arc;

use fulmen_memory::{Block, Exposed, Pool, Region};

use super::bed::{BOTH, Bed, Case, Failure, Need, Outcome, RC, ensure, ensure_eq};
use super::pattern;
use super::rig::{Rig, Setup, connect};
use super::watch::{Watch, check_done, check_one_of, check_status};
use crate::{
    Access, AckTimeout, CompletionOpcode, CompletionQueue, CompletionStatus, Device, MemoryRegion, Piece,
    ProtectionDomain, QueuePair, QueuePairState, RecvRequest, SendRequest, Transition,
};

pub(super) const CASES: &[Case] = &[
    Case::new("lifetime: destruction in any order", BOTH, &[], any_order),
    Case::new("lifetime: destruction in any order with work posted", BOTH, &[], any_order_with_work),
    Case::new("lifetime: a queue pair outlives the handles of what it uses", BOTH, &[], outlives),
    Case::new("lifetime: blocks of a pool are exposed while in flight", BOTH, &[], blocks),
    Case::new("lifetime: a destroyed queue pair lets go of its memory", BOTH, &[], lets_go),
    Case::new("lifetime: a peer that is gone fails the SEND", RC, &[Need::ReportsDeadPeers], peer_gone),
    Case::new("lifetime: a peer in ERR fails the SEND", RC, &[], peer_in_error),
];

/// One thing to drop.
enum Handle {
    QueuePair(Arc<dyn QueuePair>),
    CompletionQueues([Arc<dyn CompletionQueue>; 2]),
    Registration(Arc<dyn MemoryRegion>),
    Domain(Arc<dyn ProtectionDomain>),
    Device(Arc<dyn Device>),
}

/// All orders of `0..COUNT`.
fn orders(count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for order in orders(count - 1) {
        for at in 0..count {
            let mut longer = order.clone();
            longer.insert(at, count - 1);
            all.push(longer);
        }
    }
    all
}

fn any_order(bed: &Bed) -> Outcome {
    destroy(bed, false)
}

fn any_order_with_work(bed: &Bed) -> Outcome {
    destroy(bed, true)
}

fn destroy(bed: &Bed, with_work: bool) -> Outcome {
    const HANDLES: usize = 5;
    let setup = Setup { depth: 8, bytes: 64 << 10, ..Setup::default() };
    for order in orders(HANDLES) {
        // Devices of their own, so that the handle that is dropped here is the last one.
        let own = bed.again()?;
        let rig = Rig::connected(&own, &setup)?;
        drop(own);
        if with_work {
            rig.a.recv_range(1, 0..64)?;
            rig.a.recv_range(2, 64..128)?;
            rig.b.send_range(3, 0..64)?;
            rig.a.send_range(4, 0..64)?;
            rig.a.send_range(5, 0..20_000)?;
        }
        let Rig { a, b, watch, .. } = rig;
        // The watch holds handles of queues, too.
        drop(watch);
        let mut handles = [
            Some(Handle::QueuePair(a.qp)),
            Some(Handle::CompletionQueues([a.send_cq, a.recv_cq])),
            Some(Handle::Registration(a.memory.mr)),
            Some(Handle::Domain(a.pd)),
            Some(Handle::Device(a.device)),
        ];
        for index in &order {
            match handles[*index].take().expect("each once") {
                Handle::QueuePair(handle) => drop(handle),
                Handle::CompletionQueues(handles) => drop(handles),
                Handle::Registration(handle) => drop(handle),
                Handle::Domain(handle) => drop(handle),
                Handle::Device(handle) => drop(handle),
            }
        }
        // The peer is in one piece: it can be flushed, and used again with a new peer.
        b.qp.modify(&Transition::Error)?;
        b.qp.modify(&Transition::Reset)?;
    }
    // Nothing is left behind that would keep a new pair from working.
    Rig::connected(bed, &Setup::default())?.check_alive()
}

fn outlives(bed: &Bed) -> Outcome {
    let mut rig = Rig::connected(bed, &Setup::default())?;
    // The domains' handles go; the queue pairs and registrations stay.
    for side in [&mut rig.a, &mut rig.b] {
        let spare = side.device.alloc_pd();
        // A device may have no other domain left; then its handle stays.
        if let Ok(spare) = spare {
            side.pd = spare;
        }
    }
    rig.check_alive()
}

/// A block as exposed memory, with its registration.
fn exposed_block(pool: &Pool, mr: &Arc<dyn MemoryRegion>, len: usize) -> Outcome<Piece> {
    let block = pool.take(len).map_err(|error| error.to_string())?;
    Ok(Piece { memory: block.into_exposed(), lkey: mr.lkey() })
}

/// The block, now or a little later: a device may let go of memory in a thread of its own.
fn block_back(watch: &mut Watch, memory: Exposed, why: &str) -> Outcome<Block> {
    let mut memory = Some(memory);
    watch.until(why, |_| {
        let handle = memory.take().expect("put back below");
        match handle.into_block() {
            Ok(block) => Ok(Some(block)),
            Err(handle) => {
                memory = Some(handle);
                Ok(None)
            }
        }
    })
}

fn pool_on(bed: &Bed, side: &super::rig::Side, len: usize) -> Outcome<(Pool, Arc<dyn MemoryRegion>)> {
    let region = super::rig::region_in_one_piece(bed, &*side.device, len)?;
    let mr = side.pd.register(&region, 0..len, Access::LOCAL_WRITE)?;
    Ok((pool_of(&region)?, mr))
}

fn pool_of(region: &Region) -> Outcome<Pool> {
    Ok(Pool::new(region)?)
}

fn blocks(bed: &Bed) -> Outcome {
    let mut rig = Rig::connected(bed, &Setup::default())?;
    let (near, near_mr) = pool_on(bed, &rig.a, 1 << 20)?;
    let (far, far_mr) = pool_on(bed, &rig.b, 1 << 20)?;
    for (wr_id, len) in (0..).zip([64, 1000, 4096, 40_000]) {
        let from = exposed_block(&near, &near_mr, len)?;
        let to = exposed_block(&far, &far_mr, len)?;
        pattern::write(&from.memory, wr_id);
        rig.b.recv(RecvRequest::new(wr_id, [to.clone()]))?;
        // The RECV is in flight: nobody may have slices of its memory.
        let Err(target) = to.memory.into_block() else {
            return Err(Failure::Failed("memory of a RECV in flight became a block".to_string()));
        };
        rig.a.send(SendRequest::send(wr_id, [from.clone()]))?;
        check_done(&rig.a_sent()?, wr_id, CompletionOpcode::Send)?;
        check_done(&rig.b_received()?, wr_id, CompletionOpcode::Recv)?;
        drop(from);
        let block = block_back(&mut rig.watch, target, "the memory of a RECV that is done")?;
        ensure!(block.as_slice::<u8>() == pattern::bytes(wr_id, len), "the message of {len} bytes in its block");
    }
    drop_all(&mut rig, &near, &far)
}

/// Everything returns to the pools once it is done.
fn drop_all(rig: &mut Rig, near: &Pool, far: &Pool) -> Outcome {
    rig.watch.until("all blocks to return to their pools", |_| {
        Ok((near.stats().blocks == 0 && far.stats().blocks == 0).then_some(()))
    })
}

fn lets_go(bed: &Bed) -> Outcome {
    for how in ["dropped", "reset", "flushed"] {
        let rig = Rig::connected(bed, &Setup::default())?;
        let (pool, mr) = pool_on(bed, &rig.b, 64 << 10)?;
        let piece = exposed_block(&pool, &mr, 4096)?;
        rig.b.recv(RecvRequest::new(1, [piece.clone()]))?;
        rig.b.recv(RecvRequest::new(2, [piece.clone()]))?;
        let Err(memory) = piece.memory.into_block() else {
            return Err(Failure::Failed("memory of RECVs in flight became a block".to_string()));
        };
        let Rig { a: _a, b, mut watch, .. } = rig;
        match how {
            "reset" => b.qp.modify(&Transition::Reset)?,
            "flushed" => {
                b.qp.modify(&Transition::Error)?;
                for wr_id in [1, 2] {
                    check_status(&watch.next(3)?, wr_id, CompletionStatus::Flushed)?;
                }
            }
            _ => drop(b.qp),
        }
        block_back(&mut watch, memory, &format!("the memory of a queue pair that was {how}"))?;
    }
    Ok(())
}

/// 4.2 ms, three times in all.
fn short() -> Setup {
    Setup { timeout: AckTimeout(10), retries: 2, ..Setup::default() }
}

fn peer_gone(bed: &Bed) -> Outcome {
    // Gone before the SEND, and gone while the SEND waits for its RECV.
    for while_waiting in [false, true] {
        let Rig { a, b, mut watch, .. } = Rig::connected(bed, &short())?;
        if while_waiting {
            a.send_range(1, 0..64)?;
            watch.quiet(0, "no RECV is posted")?;
            drop(b.qp);
        } else {
            drop(b.qp);
            a.send_range(1, 0..64)?;
        }
        a.send_range(2, 0..64)?;
        check_status(&watch.next(0)?, 1, CompletionStatus::RetryExceeded)?;
        check_status(&watch.next(0)?, 2, CompletionStatus::Flushed)?;
        ensure_eq!(a.qp.state(), QueuePairState::Error, "the sender's state");
    }
    // A new queue pair at the same place is no peer of the old one.
    let setup = short();
    let first = Rig::connected(bed, &setup)?;
    let Rig { a, b, mut watch, .. } = first;
    drop(b);
    let again = Rig::reset(bed, &setup)?;
    connect(&again.a, &again.b, &setup)?;
    again.b.memory.bytes.fill(0..64, 0x55);
    again.b.recv_range(9, 0..64)?;
    a.send_range(1, 0..64)?;
    check_status(&watch.next(0)?, 1, CompletionStatus::RetryExceeded)?;
    pattern::check_all(&again.b.memory.bytes.slice(0..64), 0x55, "memory of a stranger")
}

fn peer_in_error(bed: &Bed) -> Outcome {
    let mut rig = Rig::connected(bed, &short())?;
    rig.b.qp.modify(&Transition::Error)?;
    rig.a.send_range(1, 0..64)?;
    let sent = rig.a_sent()?;
    check_one_of(&sent, 1, &[CompletionStatus::RetryExceeded, CompletionStatus::RemoteOperation])?;
    ensure_eq!(rig.a.qp.state(), QueuePairState::Error, "the sender's state");
    Ok(())
}
