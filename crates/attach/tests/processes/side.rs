//! A program's attached device, and queue pairs of it.

use std::path::Path;
use std::sync::Arc;

use fulmen_attach::{Attached, LONGEST_MESSAGE};
use fulmen_memory::{Exposed, Region};
use fulmen_verbs::{
    Access, AckTimeout, Completion, CompletionQueue, Device, Gid, MemoryRegion, Mtu, Piece, ProtectionDomain,
    QueuePair, QueuePairInit, QueuePairKind, QueuePairLimits, RecvRequest, RnrTimer, SendRequest, Transition,
    VerbsError,
};

use super::support::NAME;
use super::until;

/// Requests of a queue pair in each direction.
pub const DEPTH: u32 = 64;

pub struct Side {
    pub pairs: Vec<Arc<dyn QueuePair>>,
    pub cq: Arc<dyn CompletionQueue>,
    pub memory: Exposed,
    pub device: Arc<dyn Device>,
    mr: Arc<dyn MemoryRegion>,
    pd: Arc<dyn ProtectionDomain>,
}

/// How a peer finds a program's queue pairs.
#[derive(Clone, Debug)]
pub struct Name {
    pub gid: Gid,
    pub numbers: Vec<u32>,
}

impl Side {
    /// With memory for so many of the longest messages, and no queue pair.
    pub fn open(socket: &Path, messages: usize) -> Side {
        let device = Attached::open(socket, NAME).expect("the owner serves");
        let region = Region::alloc(messages * LONGEST_MESSAGE).expect("memory");
        let pd = device.alloc_pd().expect("a domain");
        let mr = pd.register(&region, 0..region.len(), Access::LOCAL_WRITE).expect("a registration");
        let cq = device.create_cq(16_000, None).expect("a completion queue");
        Side { pairs: Vec::new(), cq, memory: region.expose().expect("memory"), device, mr, pd }
    }

    /// One more queue pair, in state INIT.
    pub fn create(&mut self) -> Result<(), VerbsError> {
        let limits =
            QueuePairLimits { send_depth: DEPTH, recv_depth: DEPTH, send_pieces: 1, recv_pieces: 1, inline_bytes: 0 };
        let init = QueuePairInit {
            kind: QueuePairKind::Uc,
            send_cq: self.cq.clone(),
            recv_cq: self.cq.clone(),
            limits,
            signal_all: true,
            srq: None,
        };
        let pair = self.pd.create_qp(&init)?;
        pair.modify(&Transition::Init { port: 1, access: Access::LOCAL_WRITE })?;
        self.pairs.push(pair);
        Ok(())
    }

    /// The same, with so many queue pairs.
    pub fn with(socket: &Path, pairs: usize, messages: usize) -> Side {
        let mut side = Side::open(socket, messages);
        (0..pairs).for_each(|_| side.create().expect("a queue pair"));
        side
    }

    pub fn name(&self) -> Name {
        let gid = self.device.gid_table(1).expect("port 1")[0].gid;
        Name { gid, numbers: self.pairs.iter().map(|pair| pair.qp_num()).collect() }
    }

    /// Connects each queue pair to one of the peer's.
    pub fn connect(&self, peer: &Name) -> Result<(), VerbsError> {
        let remote_lid = self.device.port(1)?.lid;
        for (pair, remote_qp) in self.pairs.iter().zip(&peer.numbers) {
            let (remote_gid, remote_qp) = (peer.gid, *remote_qp);
            let path = fulmen_verbs::Path { remote_gid, remote_lid, local_gid_index: 0, remote_qp, mtu: Mtu::B4096 };
            let min_rnr_timer = RnrTimer(1);
            pair.modify(&Transition::ReadyToReceive { path, recv_psn: 0, reads_served: 0, min_rnr_timer })?;
            let timeout = AckTimeout(14);
            pair.modify(&Transition::ReadyToSend {
                send_psn: 0,
                timeout,
                retries: 7,
                rnr_retries: 7,
                reads_in_flight: 0,
            })?;
        }
        Ok(())
    }

    /// A place for a message.
    pub fn piece(&self, place: usize, len: usize) -> Piece {
        let at = place * LONGEST_MESSAGE;
        Piece { memory: self.memory.slice(at..at + len), lkey: self.mr.lkey() }
    }

    pub fn send(&self, pair: usize, wr_id: u64, place: usize, len: usize) {
        self.try_send(pair, wr_id, place, len).expect("a SEND is posted");
    }

    pub fn try_send(&self, pair: usize, wr_id: u64, place: usize, len: usize) -> Result<(), VerbsError> {
        self.pairs[pair].post_send(&[SendRequest::send(wr_id, [self.piece(place, len)])]).map_err(|error| error.cause)
    }

    pub fn recv(&self, pair: usize, wr_id: u64, place: usize) {
        self.try_recv(pair, wr_id, place).expect("a RECV is posted");
    }

    pub fn try_recv(&self, pair: usize, wr_id: u64, place: usize) -> Result<(), VerbsError> {
        let request = RecvRequest::new(wr_id, [self.piece(place, LONGEST_MESSAGE)]);
        self.pairs[pair].post_recv(&[request]).map_err(|error| error.cause)
    }

    /// The next completion, if there is one.
    pub fn poll(&self) -> Option<Completion> {
        let mut completions = [Completion::BLANK];
        let count = self.cq.poll(&mut completions).expect("the queue is large enough");
        (count == 1).then_some(completions[0])
    }

    /// The next completion, which is a good one.
    #[track_caller]
    pub fn next(&self) -> Completion {
        let completion = until("a completion", || self.poll());
        assert!(completion.status.is_success(), "{completion:?}");
        completion
    }
}

impl Name {
    pub fn to_line(&self) -> String {
        let numbers: Vec<String> = self.numbers.iter().map(u32::to_string).collect();
        format!("{:x} {}", u128::from_be_bytes(self.gid.0), numbers.join(" "))
    }

    pub fn from_line(line: &str) -> Name {
        let mut words = line.split(' ');
        let gid = u128::from_str_radix(words.next().expect("a GID"), 16).expect("a GID");
        let numbers = words.map(|word| word.parse().expect("a number")).collect();
        Name { gid: Gid(gid.to_be_bytes()), numbers }
    }
}
