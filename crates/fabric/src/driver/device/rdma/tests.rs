use std::sync::Mutex;

use fulmen_memory::Region;
use fulmen_reach::Node;
use fulmen_soft::{Profile, SoftDevice};
use fulmen_verbs::{QueuePairLimits, QueuePairState, RecvRequest, Transition, VerbsError};

use super::super::hub::Berth;
use super::*;
use crate::engine::{Config, Exports};

/// A queue pair that keeps what is posted.
#[derive(Default)]
struct Posted(Mutex<Vec<u64>>);

impl QueuePair for Posted {
    fn qp_num(&self) -> u32 {
        1
    }
    fn state(&self) -> QueuePairState {
        QueuePairState::ReadyToSend
    }
    fn limits(&self) -> QueuePairLimits {
        QueuePairLimits { send_depth: 256, recv_depth: 1, send_pieces: 1, recv_pieces: 1, inline_bytes: 0 }
    }
    fn modify(&self, _transition: &Transition) -> Result<(), VerbsError> {
        Ok(())
    }
    fn post_send(&self, requests: &[SendRequest]) -> Result<(), PostError> {
        let added = |request: &SendRequest| match request.op {
            SendOp::FetchAdd { add, .. } => add,
            _ => panic!("only additions were started"),
        };
        self.0.lock().unwrap().extend(requests.iter().map(added));
        Ok(())
    }
    fn post_recv(&self, _requests: &[RecvRequest]) -> Result<(), PostError> {
        Ok(())
    }
}

fn rdma() -> (Rdma, Arc<Posted>, Link) {
    let device = SoftDevice::open(&Node::open().unwrap(), Profile::Infiniband).unwrap();
    let domain = device.alloc_pd().unwrap();
    let region = Region::alloc(DEPTH * CELL).unwrap();
    let registered = Arc::new(Registered::new(&*domain, device.info().limits.registration, &region).unwrap());
    let memory = region.expose().unwrap();
    let cell = |index| {
        let memory = memory.slice(index * CELL..(index + 1) * CELL);
        Piece { lkey: registered.key(&memory).unwrap(), memory }
    };
    let cells = (0..DEPTH).map(cell).collect();
    let posted = Arc::new(Posted::default());
    let pairs = RdmaPairs { out: posted.clone(), into: Arc::new(Posted::default()), there: 0 };
    let rdma = Rdma::new(Berth { peer: 1, rail: 0 }, device.info(), pairs, cells, (registered.clone(), registered));
    let config: Config = crate::driver::reach::config(2, &crate::Flow::default(), false);
    (rdma, posted, Link::with_exports(config, Exports::new()))
}

fn add(rdma: &mut Rdma, add: u64) -> RdmaId {
    let at = At { key: 1, offset: 0 };
    let remote = RemoteAddr { addr: 64, rkey: 1 };
    rdma.start(Request { verb: Verb::Atomic(Atomic::FetchAdd(add)), remote, at, then: None })
}

#[test]
fn what_was_given_up_before_it_was_posted_is_never_done() {
    let (mut rdma, posted, mut link) = rdma();
    let all: Vec<_> = (0..DEPTH as u64 + 3).map(|number| add(&mut rdma, number)).collect();
    assert!(rdma.advance().unwrap());
    assert_eq!(rdma.cancel(all[0], &mut link), Cancel::Busy, "the device is at it");
    assert_eq!(rdma.cancel(all[DEPTH + 1], &mut link), Cancel::Released);
    for number in 0..2 {
        rdma.completed(number).unwrap();
    }
    assert_eq!(rdma.cancel(all[1], &mut link), Cancel::Finished);
    rdma.advance().unwrap();
    let expected: Vec<u64> = (0..=DEPTH as u64).chain([DEPTH as u64 + 2]).collect();
    assert_eq!(*posted.0.lock().unwrap(), expected);
}

#[test]
fn no_slot_is_free_twice() {
    let (mut rdma, _posted, mut link) = rdma();
    let (told, cancelled) = (add(&mut rdma, 1), add(&mut rdma, 2));
    assert_eq!(rdma.cancel(cancelled, &mut link), Cancel::Released);
    rdma.advance().unwrap();
    rdma.completed(0).unwrap();
    assert!(rdma.poll(told, &mut link).is_ready());
    for gone in [told, cancelled, told] {
        rdma.detach(gone, &mut link);
        assert_eq!(rdma.cancel(gone, &mut link), Cancel::Released);
        assert!(rdma.has_ended(gone));
    }
    let again: Vec<_> = (0..4).map(|number| add(&mut rdma, number).index).collect();
    assert_eq!(again.iter().collect::<std::collections::HashSet<_>>().len(), 4, "{again:?}");
    assert_eq!(rdma.open().unwrap().len(), 4);
}
