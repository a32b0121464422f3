//! A queue pair whose peer on another host says whatever it likes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use fulmen_memory::{Exposed, Region};
use fulmen_verbs::{
    Access, CompletionStatus, MemoryRegion, QueuePairKind, RecvRequest, RemoteAddr, SendOp, SendRequest, Transition,
};

use super::{PANICS, count_panics};
use crate::Profile;
use crate::network::{Out, Stream};
use crate::pair::network::frames::{HEAD, Head, KINDS, Words};
use crate::sides::{FENCED, LEN, Side, far_side};

/// What is connected over the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// RC.
    Reliable,
    /// UC.
    Unreliable,
    /// UC of the `thunderbolt` profile.
    Thunderbolt,
}

impl Transport {
    /// All of them.
    pub const ALL: [Transport; 3] = [Transport::Reliable, Transport::Unreliable, Transport::Thunderbolt];
}

/// What a frame says. Numbers are small ones, so that they mean something often; what they are added to is right.
#[derive(Clone, Copy, Debug)]
pub struct Said {
    /// Which kind, counted round.
    pub kind: u8,
    /// Immediate data, and whether it is solicited.
    pub flags: u8,
    /// Bytes that follow, of which `behind` do.
    pub len: u32,
    /// Bytes of the whole message.
    pub total: u32,
    /// Where in it they belong.
    pub offset: u32,
    /// Which key: the victim's, one that allows less, or others.
    pub key: u8,
    /// Where, from 4 KiB before the victim's registered memory on; or another number.
    pub addr: u16,
    /// What was taken.
    pub acked: u8,
    /// What was posted.
    pub granted: u8,
    /// Bytes that really follow.
    pub behind: u16,
}

/// A victim, and the connection to it that somebody hostile has.
pub struct HostileStream {
    victim: Side,
    _peer: Side,
    stream: Option<Stream>,
    /// Memory that peers may not reach.
    own: Exposed,
    own_key: Arc<dyn MemoryRegion>,
    guard: [u8; 8],
}

impl HostileStream {
    /// Connects a victim.
    ///
    /// # Panics
    /// If that fails.
    #[must_use]
    pub fn new(transport: Transport) -> HostileStream {
        count_panics();
        let (profile, kind) = match transport {
            Transport::Reliable => (Profile::Infiniband, QueuePairKind::Rc),
            Transport::Unreliable => (Profile::Infiniband, QueuePairKind::Uc),
            Transport::Thunderbolt => (Profile::Thunderbolt, QueuePairKind::Uc),
        };
        let (victim, peer) = (far_side(profile, kind), far_side(profile, kind));
        victim.connect(&peer);
        peer.connect(&victim);
        // Whichever opened it, both have it after a few looks.
        let stream = loop {
            let (_, stream) = (victim.poll(), crate::pair::steal_stream(&peer.cq));
            if stream.is_some() {
                break stream;
            }
        };
        let region = Region::alloc(LEN).unwrap();
        let own_key = victim.pd.register(&region, 0..LEN, Access::LOCAL_WRITE).unwrap();
        let guard = getrandom::u64().unwrap().to_ne_bytes();
        let pattern: Vec<u8> = guard.into_iter().cycle().take(LEN).collect();
        let own = region.expose().unwrap();
        own.write(0, &pattern);
        victim.memory.write(0, &pattern);
        victim.memory.fill(FENCED, 0x11);
        HostileStream { victim, _peer: peer, stream, own, own_key, guard }
    }

    /// Says a frame, or what looks like one.
    pub fn say(&mut self, said: Said) {
        let kind = KINDS[usize::from(said.kind) % KINDS.len()];
        let rkey = match said.key {
            0..200 => self.victim.key,
            200..240 => self.own_key.rkey(),
            other => self.victim.key.wrapping_add(other.into()),
        };
        let near = self.victim.memory.addr() as u64 + u64::from(said.addr);
        let addr = if said.key % 4 == 3 { said.addr.into() } else { near };
        let words = Words { acked: said.acked.into(), granted: said.granted.into() };
        let imm = (said.flags & 1 != 0).then_some(7);
        let Said { len, total, offset, .. } = said;
        let [solicited, ack_req] = [2, 4].map(|flag| said.flags & flag != 0);
        let head = Head { kind, solicited, ack_req, imm, len, total, offset, rkey, addr, words };
        let mut bytes = head.to_bytes().to_vec();
        bytes.resize(HEAD + usize::from(said.behind), 0x99);
        self.bytes(&bytes);
    }

    /// Says any bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        let mut at = 0;
        // The victim takes what it can, and may have ended the connection.
        for _ in 0..64 {
            let Some(stream) = &mut self.stream else { return };
            match stream.send(&[Out::Bytes(&bytes[at..])]) {
                Ok(sent) => at += sent,
                Err(_) => self.stream = None,
            }
            if at == bytes.len() {
                return;
            }
            self.look();
        }
    }

    /// The victim does one of eight things.
    pub fn act(&self, what: u8) {
        let side = &self.victim;
        let remote = RemoteAddr { addr: 8192, rkey: 1 };
        let (op, len) = match what % 8 {
            0 => (SendOp::Send { imm: None }, 64),
            1 => (SendOp::Send { imm: None }, 4096),
            2 => (SendOp::Write { remote, imm: None }, 4096),
            3 => (SendOp::Write { remote, imm: Some(2) }, 100),
            4 => (SendOp::Read { remote }, 4096),
            5 => (SendOp::FetchAdd { remote, add: 1 }, 8),
            6 => {
                let _ = side.qp.post_recv(&[RecvRequest::new(1, [side.piece(4096..8192)])]);
                return;
            }
            _ => return self.look(),
        };
        let _ = side.qp.post_send(&[SendRequest::new(7, op, [side.piece(8192..8192 + len)])]);
    }

    fn look(&self) {
        for completion in self.victim.poll() {
            let fits =
                completion.byte_len <= 4096 || completion.opcode == fulmen_verbs::CompletionOpcode::RecvWriteWithImm;
            assert!(fits, "no more than there was room for: {completion:?}");
        }
    }

    /// Looks at everything that nobody may have written, and ends the queue pair.
    ///
    /// # Panics
    /// If somebody has, or a device's thread has panicked, or a request does not end.
    pub fn finish(self) {
        self.look();
        self.victim.qp.modify(&Transition::Error).unwrap();
        let posted = self.victim.qp.post_recv(&[RecvRequest::new(2, [self.victim.piece(4096..8192)])]);
        posted.unwrap();
        let last = self.victim.poll().into_iter().last();
        assert!(last.is_some_and(|last| (last.wr_id, last.status) == (2, CompletionStatus::Flushed)), "{last:?}");
        assert_eq!(PANICS.load(Ordering::SeqCst), 0, "a device's thread panicked");
        let outside =
            [(&self.victim.memory, 0..FENCED.start), (&self.victim.memory, FENCED.end..LEN), (&self.own, 0..LEN)];
        for (memory, range) in outside {
            let mut seen = vec![0; range.len()];
            memory.read(range.start, &mut seen);
            assert!(seen.chunks(8).all(|word| word == self.guard), "memory that peers may not reach");
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Say(Said),
        Bytes(Vec<u8>),
        Act(u8),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let small = || prop_oneof![0_u32..70, Just(4096), Just(8), Just(16), any::<u32>()];
        let lens = (small(), small(), prop_oneof![4 => Just(0_u32), 1 => small()], any::<bool>());
        let rest = (any::<u8>(), any::<u16>(), 0_u8..9, 0_u8..9);
        let say = (0_u8..12, 0_u8..4, lens, rest).prop_map(
            |(kind, flags, (len, total, offset, whole), (key, addr, acked, granted))| {
                let (len, total) = if whole { (len.min(4096), len.min(4096)) } else { (len, total) };
                let flags = if kind == 2 || kind == 3 { flags } else { 0 };
                Step::Say(Said {
                    kind,
                    flags,
                    len,
                    total,
                    offset,
                    key,
                    addr,
                    acked,
                    granted,
                    behind: len.min(5000) as u16,
                })
            },
        );
        let bytes = prop::collection::vec(any::<u8>(), 0..100).prop_map(Step::Bytes);
        let act = (0_u8..8).prop_map(Step::Act);
        prop::collection::vec(prop_oneof![6 => say, 1 => bytes, 6 => act], 1..40)
    }

    /// What a right frame says is done, so that wrong ones meet more than a closed door.
    #[test]
    fn right_frames_are_heard() {
        let mut hostile = HostileStream::new(Transport::Reliable);
        let said = Said {
            kind: 3,
            flags: 0,
            len: 64,
            total: 64,
            offset: 0,
            key: 0,
            addr: 4096,
            acked: 0,
            granted: 0,
            behind: 64,
        };
        hostile.say(said);
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        let mut seen = [0; 64];
        while seen != [0x99; 64] {
            hostile.look();
            hostile.victim.memory.read(4096, &mut seen);
            assert!(std::time::Instant::now() < end, "the WRITE was not done");
        }
        hostile.finish();
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn hostile_frames_break_connections_only(transport in prop::sample::select(&Transport::ALL), steps in steps()) {
            let mut hostile = HostileStream::new(transport);
            for step in steps {
                match step {
                    Step::Say(said) => hostile.say(said),
                    Step::Bytes(bytes) => hostile.bytes(&bytes),
                    Step::Act(what) => hostile.act(what),
                }
            }
            hostile.finish();
        }
    }
}
