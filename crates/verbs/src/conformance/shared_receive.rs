//! Receive queues that several queue pairs share.

use std::ops::Range;
use std::sync::Arc;

use super::bed::{BOTH, Bed, Case, Need, Outcome, RC, ensure, ensure_eq};
use super::events::Events;
use super::rig::{Memory, Setup, Side, all_access, connect, queue_pair_limits};
use super::watch::{Watch, check_done, check_status};
use crate::{
    AsyncEvent, Completion, CompletionOpcode, CompletionStatus, QueuePairInit, QueuePairState, RecvRequest,
    SharedReceiveQueue, Transition, VerbsError,
};

const SRQ: &[Need] = &[Need::SharedReceive];

pub(super) const CASES: &[Case] = &[
    Case::new("shared receive: requests are taken in order by whoever needs one", BOTH, SRQ, in_turn),
    Case::new("shared receive: several senders at a time", BOTH, SRQ, at_a_time),
    Case::new("shared receive: messages wait for requests that come late", RC, SRQ, late),
    Case::new("shared receive: without a request and without retries the SEND fails", RC, SRQ, none),
    Case::new("shared receive: it is as deep as it says", RC, SRQ, depth),
    Case::new("shared receive: more than the device has is refused", RC, SRQ, limits),
    Case::new("shared receive: its queue pairs take no RECVs of their own", BOTH, SRQ, no_own),
    Case::new("shared receive: a limit is told of once", RC, SRQ, limit),
    Case::new("shared receive: an error leaves the requests to the others", BOTH, SRQ, error),
    Case::new("shared receive: a request that does not suit fails who took it", RC, SRQ, misfit),
    Case::new("shared receive: it outlives its queue pairs, and they its handle", BOTH, SRQ, lifetimes),
];

/// Queue pairs of B that share a receive queue, and a client of A for each.
struct Hall {
    clients: Vec<Side>,
    servers: Vec<Side>,
    srq: Arc<dyn SharedReceiveQueue>,
    memory: Memory,
    /// First what the servers received, then what each client sent.
    watch: Watch,
}

const RECEIVED: usize = 0;
const SLOT: usize = 1024;
const SLOTS: usize = 64;

impl Hall {
    fn new(bed: &Bed, pairs: usize, depth: u32, setup: &Setup) -> Outcome<Hall> {
        let [left, right] = &bed.devices;
        let pd = right.alloc_pd()?;
        let srq = pd.create_srq(depth, 1)?;
        let memory = Memory::new(bed, &**right, &*pd, SLOT * SLOTS, all_access(right.info()))?;
        let (send_cq, recv_cq) = (right.create_cq(256, None)?, right.create_cq(256, None)?);
        let mut hall = Hall { clients: vec![], servers: vec![], srq, memory, watch: Watch::new([recv_cq.clone()]) };
        for _ in 0..pairs {
            let init = QueuePairInit {
                kind: bed.kind,
                send_cq: send_cq.clone(),
                recv_cq: recv_cq.clone(),
                limits: queue_pair_limits(right.info(), setup.depth),
                signal_all: false,
                srq: Some(hall.srq.clone()),
            };
            let server = Side {
                device: right.clone(),
                port: bed.port,
                pd: pd.clone(),
                send_cq: send_cq.clone(),
                recv_cq: recv_cq.clone(),
                memory: hall.memory.clone(),
                qp: pd.create_qp(&init)?,
            };
            let client = Side::new(left, bed, setup)?;
            connect(&client, &server, setup)?;
            hall.clients.push(client);
            hall.servers.push(server);
        }
        let sent = hall.clients.iter().map(|client| client.send_cq.clone());
        hall.watch = Watch::new([recv_cq].into_iter().chain(sent));
        Ok(hall)
    }

    fn slot(number: u64) -> Range<usize> {
        let at = number as usize % SLOTS * SLOT;
        at..at + SLOT
    }

    fn request(&self, number: u64) -> RecvRequest {
        RecvRequest::new(number, [self.memory.piece(Hall::slot(number))])
    }

    fn post(&self, numbers: Range<u64>) -> Outcome {
        let requests: Vec<_> = numbers.map(|number| self.request(number)).collect();
        Ok(self.srq.post_recv(&requests)?)
    }

    /// Sends a message of a client, by whose number its bytes are known.
    fn send(&self, client: usize, number: u64) -> Outcome {
        let side = &self.clients[client];
        side.write(Hall::slot(number), seed(client, number));
        side.send_range(number, Hall::slot(number))
    }

    fn sent(&mut self, client: usize) -> Outcome<Completion> {
        self.watch.next(1 + client)
    }

    /// The next message, which is this one.
    fn check_received(&mut self, request: u64, client: usize, number: u64) -> Outcome {
        let received = self.watch.next(RECEIVED)?;
        check_done(&received, request, CompletionOpcode::Recv)?;
        ensure_eq!(received.qp_num, self.servers[client].qp.qp_num(), "the queue pair that received");
        ensure_eq!(received.byte_len as usize, SLOT, "the bytes received");
        self.check_bytes(request, client, number)
    }

    fn check_bytes(&self, request: u64, client: usize, number: u64) -> Outcome {
        super::pattern::check(&self.memory.bytes.slice(Hall::slot(request)), seed(client, number), "a message")
    }

    /// One message of a client goes through, with a request for it.
    fn check_alive(&mut self, client: usize, request: u64) -> Outcome {
        self.post(request..request + 1)?;
        self.send(client, 60)?;
        self.check_received(request, client, 60)?;
        check_done(&self.sent(client)?, 60, CompletionOpcode::Send)
    }
}

fn seed(client: usize, number: u64) -> u64 {
    (client as u64) << 32 | number
}

fn in_turn(bed: &Bed) -> Outcome {
    const COUNT: u64 = 30;
    let mut hall = Hall::new(bed, 3, 64, &Setup::default())?;
    hall.post(0..COUNT)?;
    for number in 0..COUNT {
        let client = (number * 7 % 3) as usize;
        hall.send(client, number)?;
        hall.check_received(number, client, number)?;
        check_done(&hall.sent(client)?, number, CompletionOpcode::Send)?;
    }
    Ok(())
}

fn at_a_time(bed: &Bed) -> Outcome {
    const CLIENTS: usize = 4;
    const EACH: u64 = 16;
    let mut hall = Hall::new(bed, CLIENTS, 64, &Setup::default())?;
    hall.post(0..CLIENTS as u64 * EACH)?;
    for number in 0..EACH {
        for client in 0..CLIENTS {
            hall.send(client, number)?;
        }
    }
    let (mut next, mut used) = ([0; CLIENTS], vec![]);
    for _ in 0..CLIENTS as u64 * EACH {
        let received = hall.watch.next(RECEIVED)?;
        check_done(&received, received.wr_id, CompletionOpcode::Recv)?;
        let client = hall.servers.iter().position(|server| server.qp.qp_num() == received.qp_num);
        let Some(client) = client else { return Err(format!("{received:?} is of no queue pair").into()) };
        hall.check_bytes(received.wr_id, client, next[client])?;
        next[client] += 1;
        used.push(received.wr_id);
    }
    ensure_eq!(next, [EACH; CLIENTS], "the messages of each sender");
    used.sort_unstable();
    ensure!(used.into_iter().eq(0..CLIENTS as u64 * EACH), "each request is used once");
    for client in 0..CLIENTS {
        for number in 0..EACH {
            check_done(&hall.sent(client)?, number, CompletionOpcode::Send)?;
        }
    }
    Ok(())
}

fn late(bed: &Bed) -> Outcome {
    let mut hall = Hall::new(bed, 3, 8, &Setup::default())?;
    for client in 0..3 {
        hall.send(client, 0)?;
    }
    hall.watch.quiet(RECEIVED, "no request is posted")?;
    let mut served = vec![];
    for request in 0..3 {
        hall.post(request..request + 1)?;
        let received = hall.watch.next(RECEIVED)?;
        check_done(&received, request, CompletionOpcode::Recv)?;
        hall.watch.quiet(RECEIVED, "one request is for one message")?;
        served.push(received.qp_num);
    }
    served.sort_unstable();
    let mut numbers: Vec<u32> = hall.servers.iter().map(|server| server.qp.qp_num()).collect();
    numbers.sort_unstable();
    ensure_eq!(served, numbers, "the queue pairs that waited");
    for client in 0..3 {
        check_done(&hall.sent(client)?, 0, CompletionOpcode::Send)?;
        hall.check_alive(client, 7)?;
    }
    Ok(())
}

fn none(bed: &Bed) -> Outcome {
    let mut hall = Hall::new(bed, 2, 8, &Setup { rnr_retries: 0, ..Setup::default() })?;
    hall.send(0, 1)?;
    check_status(&hall.sent(0)?, 1, CompletionStatus::RnrRetryExceeded)?;
    ensure_eq!(
        hall.servers[0].qp.state(),
        QueuePairState::ReadyToSend,
        "the receiver's state, which did nothing wrong"
    );
    hall.check_alive(1, 7)
}

fn depth(bed: &Bed) -> Outcome {
    let hall = Hall::new(bed, 1, 5, &Setup::default())?;
    let deep = hall.srq.depth();
    ensure!(deep >= 5, "5 requests were asked for, and {deep} were given");
    ensure!(hall.srq.pieces() >= 1, "a request has no piece");
    let requests: Vec<_> = (0..u64::from(deep) + 2).map(|number| hall.request(number)).collect();
    let refused = hall.srq.post_recv(&requests);
    let index = refused.as_ref().err().map(|error| error.index);
    ensure_eq!(index, Some(deep as usize), "the first request that was refused");
    let full = matches!(refused.map_err(|error| error.cause), Err(VerbsError::QueueFull { .. }));
    ensure!(full, "the request was refused, and not because the queue is full");
    Ok(())
}

fn limits(bed: &Bed) -> Outcome {
    let device = &bed.devices[1];
    let pd = device.alloc_pd()?;
    let limits = &device.info().limits;
    for (depth, pieces) in [(limits.queue_depth.saturating_add(1), 1), (8, limits.pieces.saturating_add(1))] {
        let refused = pd.create_srq(depth, pieces).map(|_| ());
        ensure!(
            matches!(refused, Err(VerbsError::Limit { .. })),
            "{depth} requests of {pieces} pieces are more than the device has, and it said {refused:?}"
        );
    }
    Ok(())
}

fn no_own(bed: &Bed) -> Outcome {
    let mut hall = Hall::new(bed, 1, 8, &Setup::default())?;
    let refused = hall.servers[0].qp.post_recv(&[hall.request(1)]);
    ensure!(refused.is_err(), "a RECV was posted to a queue pair that has no receive queue");
    hall.check_alive(0, 2)
}

fn limit(bed: &Bed) -> Outcome {
    let mut hall = Hall::new(bed, 2, 16, &Setup::default())?;
    let events = Events::of(&*bed.devices[1])?;
    let told = AsyncEvent::SharedReceiveLimit { number: hall.srq.number() };
    hall.post(0..8)?;
    hall.srq.arm_limit(6)?;
    ensure_eq!(hall.srq.limit(), 6, "the limit that is armed");
    for number in 0..2 {
        hall.send(0, number)?;
        hall.check_received(number, 0, number)?;
    }
    events.is_still(told, 0)?;
    ensure_eq!(hall.srq.limit(), 6, "the limit, which is not reached with six left");
    hall.send(1, 2)?;
    hall.check_received(2, 1, 2)?;
    events.expect(&mut hall.watch, told)?;
    ensure_eq!(hall.srq.limit(), 0, "the limit after it was told of");
    hall.send(1, 3)?;
    hall.check_received(3, 1, 3)?;
    events.is_still(told, 1)?;
    let refused = hall.srq.arm_limit(hall.srq.depth() + 1);
    ensure!(matches!(refused, Err(VerbsError::Limit { .. })), "a limit above the depth: {refused:?}");
    hall.srq.arm_limit(4)?;
    hall.srq.arm_limit(0)?;
    hall.send(1, 4)?;
    hall.check_received(4, 1, 4)?;
    events.is_still(told, 1)
}

fn error(bed: &Bed) -> Outcome {
    let mut hall = Hall::new(bed, 2, 16, &Setup::default())?;
    let events = Events::of(&*bed.devices[1])?;
    let told = |hall: &Hall, which: usize| AsyncEvent::LastReceive { qp_num: hall.servers[which].qp.qp_num() };
    hall.post(0..4)?;
    hall.servers[0].qp.modify(&Transition::Error)?;
    let last = told(&hall, 0);
    events.expect(&mut hall.watch, last)?;
    hall.watch.quiet(RECEIVED, "the requests belong to nobody yet")?;
    for number in 0..4 {
        hall.send(1, number)?;
        hall.check_received(number, 1, number)?;
    }
    hall.servers[0].qp.modify(&Transition::Error)?;
    events.is_still(last, 1)?;
    events.is_still(told(&hall, 1), 0)
}

fn misfit(bed: &Bed) -> Outcome {
    let mut hall = Hall::new(bed, 2, 16, &Setup::default())?;
    let short = RecvRequest::new(1, [hall.memory.piece(0..SLOT - 1)]);
    hall.srq.post_recv(&[short, hall.request(2)])?;
    hall.send(0, 0)?;
    check_status(&hall.watch.next(RECEIVED)?, 1, CompletionStatus::LocalLength)?;
    check_status(&hall.sent(0)?, 0, CompletionStatus::RemoteInvalidRequest)?;
    ensure_eq!(hall.servers[0].qp.state(), QueuePairState::Error, "the state of who took it");
    ensure_eq!(hall.servers[1].qp.state(), QueuePairState::ReadyToSend, "the state of the other one");
    hall.send(1, 9)?;
    hall.check_received(2, 1, 9)
}

fn lifetimes(bed: &Bed) -> Outcome {
    let mut hall = Hall::new(bed, 2, 16, &Setup::default())?;
    hall.post(0..4)?;
    hall.send(0, 0)?;
    hall.check_received(0, 0, 0)?;
    drop(hall.servers.remove(0));
    // The others find what is left.
    hall.clients.swap(0, 1);
    hall.send(0, 1)?;
    let received = hall.watch.next(RECEIVED)?;
    check_done(&received, 1, CompletionOpcode::Recv)?;
    hall.check_bytes(1, 0, 1)?;
    let Hall { clients, servers, srq, mut watch, memory, .. } = hall;
    drop(srq);
    clients[0].write(0..SLOT, 77);
    clients[0].send_range(2, 0..SLOT)?;
    check_done(&watch.next(RECEIVED)?, 2, CompletionOpcode::Recv)?;
    drop(servers);
    super::pattern::check(&memory.bytes.slice(Hall::slot(2)), 77, "a message after the handle was dropped")
}
