//! Peers that are killed while they send into a receive queue that others share, and while nobody polls.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use fulmen_memory::{Exposed, Region};
use fulmen_reach::Node;
use fulmen_soft::{Profile, SoftDevice};
use fulmen_testbed::{Child, Parent};
use fulmen_verbs::{
    Access, AckTimeout, Completion, CompletionOpcode, CompletionQueue, CompletionStatus, Device, MemoryRegion, Mtu,
    Path, Piece, ProtectionDomain, QueuePair, QueuePairInit, QueuePairKind, QueuePairLimits, RecvRequest, RemoteAddr,
    RnrTimer, SendRequest, SharedReceiveQueue, Transition,
};

use super::endpoint::{Endpoint, Kept, Name};
use super::{LONG, Random, rounds, until};

const DEPTH: u32 = 32;
const SLOT: usize = 40_000;
const VICTIMS: usize = 3;

/// A process that many send to, through one receive queue.
struct Server {
    device: Arc<dyn Device>,
    pd: Arc<dyn ProtectionDomain>,
    cq: Arc<dyn CompletionQueue>,
    srq: Arc<dyn SharedReceiveQueue>,
    memory: Exposed,
    mr: Arc<dyn MemoryRegion>,
}

impl Server {
    fn open() -> Server {
        let node = Node::open().expect("a node opens");
        let device = SoftDevice::open(&node, Profile::Infiniband).expect("a device opens");
        let pd = device.alloc_pd().expect("a domain");
        let region = Region::alloc(DEPTH as usize * SLOT).expect("memory");
        let mr = pd.register(&region, 0..region.len(), Access::LOCAL_WRITE).expect("a registration");
        let cq = device.create_cq(4000, None).expect("a completion queue");
        let srq = pd.create_srq(DEPTH, 1).expect("a shared receive queue");
        let server = Server { memory: region.expose().expect("memory"), device, pd, cq, srq, mr };
        (0..DEPTH.into()).for_each(|slot| server.recv(slot));
        server
    }

    fn recv(&self, slot: u64) {
        let at = slot as usize * SLOT;
        let piece = Piece { memory: self.memory.slice(at..at + SLOT), lkey: self.mr.lkey() };
        self.srq.post_recv(&[RecvRequest::new(slot, [piece])]).expect("each slot is posted once");
    }

    /// A queue pair for a client, connected to it.
    fn admit(&self, child: &mut Child) -> Arc<dyn QueuePair> {
        let limits = QueuePairLimits { send_depth: 4, recv_depth: 0, send_pieces: 1, recv_pieces: 0, inline_bytes: 0 };
        let init = QueuePairInit {
            kind: QueuePairKind::Rc,
            send_cq: self.cq.clone(),
            recv_cq: self.cq.clone(),
            limits,
            signal_all: true,
            srq: Some(self.srq.clone()),
        };
        let qp = self.pd.create_qp(&init).expect("a queue pair");
        qp.modify(&Transition::Init { port: 1, access: Access::empty() }).expect("INIT");
        let peer = Name::from_line(&child.hear());
        let gid = self.device.gid_table(1).expect("port 1")[0].gid;
        let own = Name { gid, lid: 0, qp_num: qp.qp_num(), memory: RemoteAddr { addr: 0, rkey: 0 } };
        child.tell(&own.to_line());
        let path =
            Path { remote_gid: peer.gid, remote_lid: 0, local_gid_index: 0, remote_qp: peer.qp_num, mtu: Mtu::B4096 };
        let min_rnr_timer = RnrTimer(1);
        qp.modify(&Transition::ReadyToReceive { path, recv_psn: 0, reads_served: 0, min_rnr_timer }).expect("RTR");
        let timeout = AckTimeout(22);
        let send = Transition::ReadyToSend { send_psn: 0, timeout, retries: 7, rnr_retries: 7, reads_in_flight: 0 };
        qp.modify(&send).expect("RTS");
        qp
    }

    /// The next message, whole: each is of one byte value, which is its last one.
    fn next(&self) -> Option<Completion> {
        let mut completions = [Completion::BLANK];
        if self.cq.poll(&mut completions).expect("the queue is large enough") == 0 {
            return None;
        }
        let [completion] = completions;
        assert_eq!((completion.status, completion.opcode), (CompletionStatus::Success, CompletionOpcode::Recv));
        let mut bytes = vec![0; completion.byte_len as usize];
        self.memory.read(completion.wr_id as usize * SLOT, &mut bytes);
        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a message came in pieces of several");
        Some(completion)
    }
}

/// No RECV is lost with the peers that are killed, whatever they were in the middle of.
#[test]
fn killed_while_they_share() {
    let mut random = Random(31);
    let server = Server::open();
    let mut received = 0_u64;
    for round in 0..rounds(6, 60) {
        let mut victims: Vec<_> =
            (0..VICTIMS).map(|number| Child::start(&format!("shared {}", round as usize * VICTIMS + number))).collect();
        let mut pairs: Vec<_> = victims.iter_mut().map(|child| server.admit(child)).collect();
        for (index, child) in victims.into_iter().enumerate() {
            let enough = received + 50 + random.below(500);
            until("messages of those who live", || {
                let completion = server.next()?;
                server.recv(completion.wr_id);
                received += 1;
                (received >= enough).then_some(())
            });
            child.kill();
            if index == 0 {
                // Before what it has sent was taken.
                drop(pairs.remove(0));
            }
        }
    }
    println!("{received} messages");
    // What the dead had sent whole is still taken; every RECV comes back for that.
    let mut last = Child::start("shared 7");
    let pair = server.admit(&mut last);
    let mut held = vec![];
    until("a message in each RECV", || {
        held.push(server.next()?.wr_id);
        (held.len() == DEPTH as usize).then_some(())
    });
    held.sort_unstable();
    assert!(held.into_iter().eq(0..u64::from(DEPTH)), "each slot once");
    drop(pair);
    last.kill();
}

/// A program that sleeps until it is called hears of a death, though nothing arrives.
#[test]
fn a_death_calls_the_notifier() {
    for round in 0..4 {
        let mut child = Child::start("shared silent");
        let side = Endpoint::open(Profile::Infiniband, SLOT);
        let peer = Name::from_line(&child.hear());
        child.tell(&side.name().to_line());
        side.connect(&peer);
        assert_eq!(child.hear(), "ready");
        let (call, called) = channel();
        let call = Mutex::new(call);
        let notifier = move || call.lock().expect("no thread panics with it").send(()).expect("the test waits");
        side.cq.set_notifier(Arc::new(notifier)).expect("the device calls");
        side.cq.request_notify(round % 2 == 1).expect("armed");
        // It waits for its RECV, for ever if need be.
        side.qp.post_send(&[SendRequest::send(1, [side.piece(0, 64)])]).expect("posted");
        child.kill();
        called.recv_timeout(LONG).expect("word of the death");
        let failed = side.poll().expect("it was there before the call");
        assert_eq!((failed.wr_id, failed.status), (1, CompletionStatus::RetryExceeded));
    }
}

pub fn child(words: &[&str]) {
    // Messages are pulled out of the sender, or come in parts.
    let kept = words[1].parse().map_or(Kept::Mapped, |seed: usize| Kept::ALL[seed % 3]);
    let side = Endpoint::keeping(Profile::Infiniband, kept, 2 * SLOT);
    Parent.tell(&side.name().to_line());
    side.connect(&Name::from_line(&Parent.hear()));
    if words[1] == "silent" {
        Parent.tell("ready");
        std::thread::sleep(LONG);
        return;
    }
    // It sends for as long as it lives.
    let mut random = Random(words[1].parse().expect("a seed"));
    for number in 0_u64.. {
        let len = if random.below(3) == 0 { random.below(SLOT as u64 - 1) + 1 } else { random.below(1000) + 1 };
        let at = (number % 2) as usize * SLOT;
        side.memory.fill(at..at + len as usize, random.below(256) as u8);
        side.qp.post_send(&[SendRequest::send(number, [side.piece(at, len as usize)])]).expect("posted");
        if number > 0 {
            let sent = until("the end of a message", || side.poll());
            assert_eq!((sent.wr_id, sent.status), (number - 1, CompletionStatus::Success));
        }
    }
}
