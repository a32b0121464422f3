//! What happens when something is posted.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use fulmen_memory::{Exposed, Region};
use fulmen_verbs::{
    Access, AsyncEvent, Completion, CompletionOpcode, CompletionStatus as Status, Piece, QueuePairInit, QueuePairKind,
    QueuePairState as State, RecvRequest, RemoteAddr, SendOp, SendRequest, Transition,
};

use super::objects::Inbox;
use super::{Bug, Shared, tell};

#[derive(Default)]
pub struct World {
    next: u32,
    pub pairs: BTreeMap<u32, Pair>,
    pub registrations: BTreeMap<u32, Registration>,
}

#[derive(Clone)]
pub struct Registration {
    pub domain: u32,
    pub region: Region,
    pub range: Range<usize>,
    pub access: Access,
}

pub struct Entry {
    request: SendRequest,
    inline: Option<Vec<u8>>,
    pub depth: u64,
    held: bool,
}

impl Entry {
    pub fn new(request: SendRequest, inline: bool, depth: u64, held: bool) -> Entry {
        let inline = inline.then(|| gather(&request.pieces));
        Entry { request, inline, depth, held }
    }
}

pub struct Pair {
    shared: Arc<Shared>,
    kind: QueuePairKind,
    domain: u32,
    pub state: State,
    access: Access,
    peer: Option<u32>,
    rnr_retries: u8,
    send: Arc<Inbox>,
    recv: Arc<Inbox>,
    established: bool,
    pub sends: VecDeque<Entry>,
    pub recvs: VecDeque<RecvRequest>,
}

impl Pair {
    pub fn new(init: &QueuePairInit, domain: u32, shared: Arc<Shared>, send: Arc<Inbox>, recv: Arc<Inbox>) -> Pair {
        Pair {
            shared,
            kind: init.kind,
            domain,
            state: State::Reset,
            access: Access::empty(),
            peer: None,
            rnr_retries: 0,
            send,
            recv,
            established: false,
            sends: VecDeque::new(),
            recvs: VecDeque::new(),
        }
    }

    fn flush(&mut self, qp_num: u32) {
        self.state = State::Error;
        let mut sends: Vec<u64> = self.sends.drain(..).map(|entry| entry.request.wr_id).collect();
        if self.shared.has(Bug::OrderOfFlush) {
            sends.reverse();
        }
        for wr_id in sends {
            self.send.push(failed(wr_id, Status::Flushed, qp_num), false);
        }
        for request in self.recvs.drain(..) {
            self.recv.push(failed(request.wr_id, Status::Flushed, qp_num), false);
        }
    }
}

fn failed(wr_id: u64, status: Status, qp_num: u32) -> Completion {
    Completion { wr_id, status, opcode: CompletionOpcode::Send, byte_len: 0, imm: None, qp_num, origin: None }
}

fn gather(pieces: &[Piece]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for piece in pieces {
        let at = bytes.len();
        bytes.resize(at + piece.memory.len(), 0);
        piece.memory.read(0, &mut bytes[at..]);
    }
    bytes
}

fn scatter(pieces: &[Piece], mut bytes: &[u8]) {
    for piece in pieces {
        let (now, rest) = bytes.split_at(bytes.len().min(piece.memory.len()));
        piece.memory.write(0, now);
        bytes = rest;
    }
}

/// How a request at the head of a queue goes on.
enum Step {
    Wait,
    Done { opcode: CompletionOpcode, byte_len: u32 },
    Fails(Status),
}

impl World {
    pub fn fresh(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    pub fn change(&mut self, number: u32, transition: &Transition) {
        let pair = self.pairs.get_mut(&number).expect("made with the handle");
        pair.state = transition.target();
        match *transition {
            Transition::Reset => {
                pair.sends.clear();
                pair.recvs.clear();
                pair.peer = None;
            }
            Transition::Init { access, .. } => pair.access = access,
            Transition::ReadyToReceive { path, .. } => pair.peer = Some(path.remote_qp),
            Transition::ReadyToSend { rnr_retries, .. } => {
                pair.rnr_retries = rnr_retries;
                pair.sends.iter_mut().for_each(|entry| entry.held = false);
            }
            Transition::DatagramInit { .. } | Transition::DatagramReceive | Transition::DatagramSend { .. } => {
                unreachable!("the model has connected queue pairs alone")
            }
            Transition::SendDrain => {}
            Transition::Error => pair.flush(number),
        }
    }

    /// Does everything that can be done.
    pub fn progress(&mut self) {
        loop {
            let numbers: Vec<u32> = self.pairs.keys().copied().collect();
            if !numbers.into_iter().any(|number| self.step(number)) {
                return;
            }
        }
    }

    fn step(&mut self, number: u32) -> bool {
        let pair = self.pairs.get_mut(&number).expect("listed");
        if pair.state == State::Error {
            let some = !pair.sends.is_empty() || !pair.recvs.is_empty();
            pair.flush(number);
            return some;
        }
        let sends = matches!(pair.state, State::ReadyToSend | State::SendDrain);
        if !sends || pair.sends.front().is_none_or(|entry| entry.held) {
            return false;
        }
        let entry = pair.sends.pop_front().expect("looked at");
        let step = self.execute(number, &entry);
        let pair = self.pairs.get_mut(&number).expect("listed");
        let wr_id = entry.request.wr_id;
        match step {
            Step::Wait => {
                pair.sends.push_front(entry);
                return false;
            }
            Step::Done { opcode, byte_len } => {
                if entry.request.signaled {
                    let status = Status::Success;
                    let done = Completion { wr_id, status, opcode, byte_len, imm: None, qp_num: number, origin: None };
                    pair.send.push(done, false);
                }
            }
            Step::Fails(status) => {
                pair.send.push(failed(wr_id, status, number), false);
                pair.flush(number);
            }
        }
        true
    }

    /// Whether a local piece may be used.
    fn local(&self, domain: u32, piece: &Piece, write: bool, shared: &Shared) -> bool {
        let Some(found) = self.registrations.get(&piece.lkey) else { return false };
        let (start, end) = (piece.memory.offset(), piece.memory.offset() + piece.memory.len());
        let slack = usize::from(shared.has(Bug::BoundsByOne));
        (found.domain == domain || shared.has(Bug::ForeignKeys))
            && found.region.id() == piece.memory.region().id()
            && start >= found.range.start
            && end <= found.range.end + slack
            && (!write || found.access.contains(Access::LOCAL_WRITE) || shared.has(Bug::IgnoresRights))
    }

    /// The peer's memory, if it may be used so.
    fn remote(&self, domain: u32, at: RemoteAddr, len: usize, right: Access, shared: &Shared) -> Option<Exposed> {
        let found = self.registrations.get(&at.rkey)?;
        let start = usize::try_from(at.addr).ok()?.checked_sub(found.region.addr())?;
        let end = start.checked_add(len)?;
        let slack = usize::from(shared.has(Bug::BoundsByOne));
        let inside = start >= found.range.start && end <= (found.range.end + slack).min(found.region.len());
        let mine = found.domain == domain || shared.has(Bug::ForeignKeys);
        let allowed = found.access.contains(right) || shared.has(Bug::IgnoresRights);
        (inside && mine && allowed).then(|| found.region.expose().ok().map(|memory| memory.slice(start..end)))?
    }

    fn execute(&mut self, number: u32, entry: &Entry) -> Step {
        let pair = &self.pairs[&number];
        let (shared, request) = (pair.shared.clone(), &entry.request);
        let brings = !matches!(request.op, SendOp::Send { .. } | SendOp::Write { .. });
        let keys = entry.inline.is_none()
            && !request.inline
            && !request.pieces.iter().all(|piece| self.local(pair.domain, piece, brings, &shared));
        if keys {
            return Step::Fails(Status::LocalProtection);
        }
        let reliable = pair.kind == QueuePairKind::Rc;
        let holds = shared.info.capabilities.holds_sends;
        let peer_number = pair.peer.expect("set on the way to RTS");
        let rnr_retries = pair.rnr_retries;
        let ready = self.pairs.get(&peer_number).is_some_and(|peer| {
            let receives = matches!(peer.state, State::ReadyToReceive | State::ReadyToSend | State::SendDrain);
            receives && peer.peer == Some(number)
        });
        let opcode = match request.op {
            SendOp::Send { .. } | SendOp::SendTo { .. } => CompletionOpcode::Send,
            SendOp::Write { .. } => CompletionOpcode::Write,
            SendOp::Read { .. } => CompletionOpcode::Read,
            SendOp::FetchAdd { .. } => CompletionOpcode::FetchAdd,
            SendOp::CompareSwap { .. } => CompletionOpcode::CompareSwap,
        };
        let byte_len = u32::try_from(request.bytes()).expect("limited");
        let done = Step::Done { opcode, byte_len };
        if !ready {
            return match (reliable, holds) {
                (true, _) => Step::Fails(Status::RetryExceeded),
                (false, true) => Step::Wait,
                (false, false) => done,
            };
        }
        let peer = &self.pairs[&peer_number];
        let takes_recv = matches!(request.op, SendOp::Send { .. } | SendOp::Write { imm: Some(_), .. });
        if takes_recv && peer.recvs.is_empty() {
            return match (reliable, holds) {
                (true, _) if rnr_retries == 7 => Step::Wait,
                (true, _) => Step::Fails(Status::RnrRetryExceeded),
                (false, true) => Step::Wait,
                (false, false) => done,
            };
        }
        let told = |status| if reliable { Step::Fails(status) } else { Step::Done { opcode, byte_len } };
        let mut bytes = entry.inline.clone().unwrap_or_else(|| gather(&request.pieces));
        if shared.has(Bug::CorruptsOneByte) && bytes.len() > 1000 {
            bytes[1000] ^= 1;
        }
        let (domain, access) = (peer.domain, peer.access);
        let may = |right| access.contains(right) || shared.has(Bug::IgnoresRights);
        match request.op {
            SendOp::Send { imm } => match self.deliver(peer_number, &bytes, imm, request.solicited) {
                Ok(()) => done,
                Err(status) => told(status),
            },
            SendOp::SendTo { .. } => unreachable!("checked: the model has connected queue pairs alone"),
            SendOp::Write { remote, imm } => {
                if !bytes.is_empty() {
                    let target = self.remote(domain, remote, bytes.len(), Access::REMOTE_WRITE, &shared);
                    let Some(target) = target.filter(|_| may(Access::REMOTE_WRITE)) else {
                        return told(Status::RemoteAccess);
                    };
                    target.write(0, &bytes);
                }
                if imm.is_some() {
                    let peer = self.pairs.get_mut(&peer_number).expect("looked at");
                    let recv = peer.recvs.pop_front().expect("looked at");
                    let (wr_id, opcode) = (recv.wr_id, CompletionOpcode::RecvWriteWithImm);
                    let status = Status::Success;
                    let completion =
                        Completion { wr_id, status, opcode, byte_len, imm, qp_num: peer_number, origin: None };
                    peer.recv.push(completion, request.solicited);
                }
                done
            }
            SendOp::Read { remote } => {
                if byte_len > 0 {
                    let source = self.remote(domain, remote, bytes.len(), Access::REMOTE_READ, &shared);
                    let Some(source) = source.filter(|_| may(Access::REMOTE_READ)) else {
                        return told(Status::RemoteAccess);
                    };
                    source.read(0, &mut bytes);
                    scatter(&request.pieces, &bytes);
                }
                done
            }
            SendOp::FetchAdd { remote, .. } | SendOp::CompareSwap { remote, .. } => {
                if !remote.addr.is_multiple_of(8) {
                    return told(Status::RemoteInvalidRequest);
                }
                let word = self.remote(domain, remote, 8, Access::REMOTE_ATOMIC, &shared);
                let Some(word) = word.filter(|_| may(Access::REMOTE_ATOMIC)) else {
                    return told(Status::RemoteAccess);
                };
                let mut old = [0; 8];
                word.read(0, &mut old);
                let old = u64::from_ne_bytes(old);
                let new = match request.op {
                    SendOp::FetchAdd { add, .. } => old.wrapping_add(add),
                    SendOp::CompareSwap { compare, swap, .. } if old == compare => swap,
                    _ => old,
                };
                word.write(0, &new.to_ne_bytes());
                scatter(&request.pieces, &old.to_ne_bytes());
                done
            }
        }
    }

    /// Puts a message into the peer's next RECV; the error is what a reliable sender is told.
    fn deliver(&mut self, number: u32, bytes: &[u8], imm: Option<u32>, solicited: bool) -> Result<(), Status> {
        let pair = self.pairs.get_mut(&number).expect("looked at");
        let early = pair.state == State::ReadyToReceive && !std::mem::replace(&mut pair.established, true);
        if early || pair.shared.has(Bug::EstablishesAlways) {
            tell(&pair.shared.teller, AsyncEvent::Established { qp_num: number });
        }
        let recv = pair.recvs.pop_front().expect("looked at");
        let (shared, domain) = (pair.shared.clone(), pair.domain);
        let limits = &shared.info.limits;
        let frames = limits.depth_of(bytes.len() as u64) == limits.depth_of(recv.bytes());
        let suits =
            bytes.len() as u64 <= recv.bytes() && (frames || shared.has(Bug::AnyFrames) || limits.frame.is_none());
        let outcome = if !suits {
            Err((Status::LocalLength, Status::RemoteInvalidRequest))
        } else if !recv.pieces.iter().all(|piece| self.local(domain, piece, true, &shared)) {
            Err((Status::LocalProtection, Status::RemoteOperation))
        } else {
            Ok(())
        };
        let pair = self.pairs.get_mut(&number).expect("looked at");
        match outcome {
            Ok(()) => {
                scatter(&recv.pieces, bytes);
                let imm = if shared.has(Bug::ReorderedImmediate) { imm.map(u32::swap_bytes) } else { imm };
                let byte_len = u32::try_from(bytes.len()).expect("limited");
                let (status, opcode) = (Status::Success, CompletionOpcode::Recv);
                let wr_id = recv.wr_id;
                pair.recv
                    .push(Completion { wr_id, status, opcode, byte_len, imm, qp_num: number, origin: None }, solicited);
                Ok(())
            }
            Err((here, there)) => {
                pair.recv.push(failed(recv.wr_id, here, number), false);
                pair.flush(number);
                Err(there)
            }
        }
    }
}
