use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::cable::{Look, keep};
use super::domain::SharedBooks;
use super::plan::{Fault, KillMode};
use super::queue::QueueShared;
use super::{Core, lock};
use crate::{
    Carrier, Completion, CompletionOpcode, CompletionStatus, Pieces, PostError, QueuePair, QueuePairInit,
    QueuePairKind, QueuePairLimits, QueuePairState, RecvRequest, SendOp, SendRequest, Transition, VerbsError,
    check_post_recv, check_post_send,
};

/// One of a queue pair's queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Send,
    Recv,
}

/// A queue pair on which the plan acts.
pub(crate) struct FaultyPair {
    inner: Arc<dyn QueuePair>,
    books: Arc<Mutex<Books>>,
    kind: QueuePairKind,
    limits: QueuePairLimits,
    signal_all: bool,
    core: Arc<Core>,
}

/// What is posted to a queue pair and has not been told to the program yet.
pub(crate) struct Books {
    pub(super) qp_num: u32,
    core: Arc<Core>,
    inner: Arc<dyn QueuePair>,
    ordinal: u64,
    reliable: bool,
    /// Requests to a peer that does not answer wait for ever, and nobody is told.
    holds: bool,
    /// How long a peer may be silent; `None` for ever.
    patience: Option<Duration>,
    /// The state that the program brought it to.
    shown: QueuePairState,
    /// Where its RECVs come from, if they are shared.
    shared: Option<Arc<Mutex<SharedBooks>>>,
    /// The number of the next request, for the schedule and, doubled, for the device below.
    next: u64,
    sends: VecDeque<Entry>,
    recvs: VecDeque<Entry>,
    /// A failed send was released, or ERR was asked for: what the device below never saw is flushed.
    failed: bool,
}

struct Entry {
    /// How the device below knows it.
    token: u64,
    wr_id: u64,
    /// Whether its success is told.
    visible: bool,
    /// Whether it is told at all: not for duplicates.
    hidden: bool,
    depth: u64,
    delay: u32,
    fate: Fate,
    /// Where a message lies that is to be damaged.
    damage: Option<Pieces>,
}

enum Fate {
    /// The device below has it.
    Below,
    /// The cable is out: it goes to the device below when it is back, if that is possible, or ends without an answer.
    CutOff { request: Option<SendRequest>, until: Option<Instant> },
    /// It has ended so.
    Ended(Completion),
    /// The device below never saw it; it ends so once it is the first.
    MadeUp { status: CompletionStatus, opcode: CompletionOpcode, byte_len: u32 },
}

fn opcode(op: &SendOp) -> CompletionOpcode {
    match op {
        SendOp::Send { .. } | SendOp::SendTo { .. } => CompletionOpcode::Send,
        SendOp::Write { .. } => CompletionOpcode::Write,
        SendOp::Read { .. } => CompletionOpcode::Read,
        SendOp::FetchAdd { .. } => CompletionOpcode::FetchAdd,
        SendOp::CompareSwap { .. } => CompletionOpcode::CompareSwap,
    }
}

impl Books {
    /// The state as the program is to see it.
    fn state(&self) -> QueuePairState {
        // Without a cable, the device below is in ERR so that it answers nobody; the program finds out by time-outs.
        if !self.failed && self.core.cable() == Look::Gone { self.shown } else { self.inner.state() }
    }

    /// A number for a request: for the schedule, and as the device below is to know it.
    fn number(&mut self) -> (u64, u64) {
        let number = self.next;
        self.next += 1;
        (number, number * 2)
    }

    fn delay(&self, request: u64) -> u32 {
        let delayed = self.core.strikes(Fault::Delay, self.ordinal, request);
        if delayed { self.core.plan.delay_polls } else { 0 }
    }

    /// Keeps how a request ended below.
    pub(super) fn note(&mut self, completion: &Completion) {
        if self.core.cable() == Look::Gone {
            self.lose();
        }
        if let Some(posted) = self.shared.as_ref().and_then(|shared| lock(shared).take(completion.wr_id)) {
            let (number, token) = self.number();
            let damaged = !self.reliable && self.core.decides(Fault::Corrupt, self.ordinal, number);
            let delay = self.delay(number);
            let fate = Fate::Ended(Completion { wr_id: posted.wr_id, ..*completion });
            let damage = damaged.then_some(posted.pieces);
            let (wr_id, depth) = (posted.wr_id, 0);
            self.recvs.push_back(Entry { token, wr_id, visible: true, hidden: false, depth, delay, fate, damage });
            return;
        }
        let mut entries = self.sends.iter_mut().chain(&mut self.recvs);
        // What was lost on its way ends without the word of the device below.
        let known = |entry: &&mut Entry| entry.token == completion.wr_id && matches!(entry.fate, Fate::Below);
        if let Some(entry) = entries.find(known) {
            entry.fate = Fate::Ended(Completion { wr_id: entry.wr_id, ..*completion });
        }
    }

    /// What becomes of a send request while the cable is out; `None` if it can go on when it is back.
    fn cut_off(&self, request: Option<SendRequest>, opcode: CompletionOpcode, byte_len: u32) -> Fate {
        if self.reliable || self.holds {
            let patience = self.patience.filter(|_| self.reliable);
            return Fate::CutOff { request, until: patience.map(|patience| Instant::now() + patience) };
        }
        Fate::MadeUp { status: CompletionStatus::Success, opcode, byte_len }
    }

    /// The cable is out for ever: nothing of what the device below has is answered.
    fn lose(&mut self) {
        for at in 0..self.sends.len() {
            if matches!(self.sends[at].fate, Fate::Below) {
                self.sends[at].fate = self.cut_off(None, CompletionOpcode::Send, 0);
            }
        }
    }

    /// Looks after requests that wait for the cable.
    fn mind_the_cable(&mut self) {
        if !self.sends.iter().any(|entry| matches!(entry.fate, Fate::CutOff { .. })) {
            return;
        }
        let cut_off = self.core.is_cut_off();
        let mut failing = self.failed;
        for entry in &mut self.sends {
            let Fate::CutOff { request, until } = &mut entry.fate else { continue };
            let over = until.is_some_and(|until| Instant::now() >= until);
            if !failing
                && !cut_off
                && let Some(request) = request.take()
                && self.inner.post_send(&[request]).is_ok()
            {
                entry.fate = Fate::Below;
            } else if failing || over || !cut_off {
                let (status, opcode) = (CompletionStatus::RetryExceeded, CompletionOpcode::Send);
                entry.fate = Fate::MadeUp { status, opcode, byte_len: 0 };
                // Nothing behind a request that failed is done.
                failing = true;
            }
        }
    }

    /// Hands out what is due on one side, in order. Counts as a poll for what is withheld.
    pub(super) fn release(&mut self, side: Side, out: &mut dyn FnMut(Completion)) {
        let killed = self.core.killed();
        if killed == Some(KillMode::Silent) {
            return;
        }
        self.mind_the_cable();
        if side == Side::Recv && killed.is_none() && !self.failed && self.core.is_cut_off() {
            return;
        }
        loop {
            let entries = if side == Side::Send { &mut self.sends } else { &mut self.recvs };
            let Some(first) = entries.front_mut() else { return };
            let known = !matches!(first.fate, Fate::Below | Fate::CutOff { .. });
            if killed.is_none() && (!known || first.delay > 0) {
                if known {
                    first.delay -= 1;
                }
                return;
            }
            let entry = entries.pop_front().expect("looked at");
            self.end(side, entry, killed.is_some(), out);
        }
    }

    fn end(&mut self, side: Side, entry: Entry, killed: bool, out: &mut dyn FnMut(Completion)) {
        let qp_num = self.qp_num;
        let failed = |status, opcode| Completion {
            wr_id: entry.wr_id,
            status,
            opcode,
            byte_len: 0,
            imm: None,
            qp_num,
            origin: None,
        };
        let completion = match entry.fate {
            _ if killed => failed(CompletionStatus::Fatal, CompletionOpcode::Send),
            Fate::Ended(completion) => completion,
            Fate::Below | Fate::CutOff { .. } => unreachable!("waited for, unless the device was killed"),
            Fate::MadeUp { opcode, .. } if self.failed => failed(CompletionStatus::Flushed, opcode),
            Fate::MadeUp { status, opcode, byte_len } => Completion { byte_len, ..failed(status, opcode) },
        };
        if side == Side::Send && !completion.status.is_success() && !self.failed {
            self.failed = true;
            if matches!(entry.fate, Fate::MadeUp { .. }) {
                // As if the device below had found out: its receives are flushed, and the peer gets no more answers.
                let _ = self.inner.modify(&Transition::Error);
            }
        }
        if let (Some(pieces), true) = (&entry.damage, completion.status.is_success()) {
            self.damage(entry.token / 2, pieces, completion.byte_len);
        }
        // Memory is let go of before the program hears of its completion.
        let tell = !entry.hidden && (entry.visible || !completion.status.is_success());
        drop(entry.damage);
        if tell {
            out(completion);
        }
    }

    /// Flips a bit of a message.
    fn damage(&self, request: u64, pieces: &Pieces, len: u32) {
        if len == 0 {
            return;
        }
        let number = self.core.plan.number(Fault::Corrupt, self.ordinal, !request);
        let mut at = (number % u64::from(len)) as usize;
        for piece in pieces {
            if let Some(further) = at.checked_sub(piece.memory.len()) {
                at = further;
                continue;
            }
            let mut byte = [0];
            piece.memory.read(at, &mut byte);
            piece.memory.write(at, &[byte[0] ^ (1 << (number >> 61))]);
            self.core.count(Fault::Corrupt);
            return;
        }
    }
}

impl FaultyPair {
    pub(super) fn new(
        inner: Arc<dyn QueuePair>,
        init: &QueuePairInit,
        core: Arc<Core>,
        ordinal: u64,
        [send, recv]: [Arc<QueueShared>; 2],
        shared: Option<Arc<Mutex<SharedBooks>>>,
    ) -> FaultyPair {
        let limits = QueuePairLimits { send_depth: init.limits.send_depth, ..inner.limits() };
        let books = Books {
            qp_num: inner.qp_num(),
            core: core.clone(),
            inner: inner.clone(),
            ordinal,
            reliable: init.kind == QueuePairKind::Rc,
            holds: core.info.capabilities.holds_sends,
            patience: None,
            shown: QueuePairState::Reset,
            shared,
            next: 0,
            sends: VecDeque::new(),
            recvs: VecDeque::new(),
            failed: false,
        };
        let books = Arc::new(Mutex::new(books));
        send.add_user(&books, Side::Send);
        recv.add_user(&books, Side::Recv);
        FaultyPair { inner, books, kind: init.kind, limits, signal_all: init.signal_all, core }
    }

    fn post_one_send(&self, request: &SendRequest) -> Result<(), VerbsError> {
        let mut books = lock(&self.books);
        // What the device below never sees is refused here as it would be there.
        check_post_send(books.qp_num, books.state())?;
        let depth = self.core.info.check_send(self.kind, &self.limits, request)?;
        let used: u64 = books.sends.iter().map(|entry| entry.depth).sum();
        if used + depth > u64::from(self.limits.send_depth) {
            return Err(VerbsError::QueueFull { queue: "send", qp_num: books.qp_num, depth: self.limits.send_depth });
        }
        let (number, token) = books.number();
        let killed = self.core.note_post();
        if killed == Some(KillMode::FailsEverything) {
            return Err(self.core.error("post_send"));
        }
        if self.core.strikes(Fault::FailPost, books.ordinal, number) {
            return Err(self.core.error("post_send"));
        }
        // What waits for the cable goes first.
        books.mind_the_cable();
        let status = books.swallows(number, killed.is_some());
        let (opcode, byte_len) = (opcode(&request.op), u32::try_from(request.bytes()).unwrap_or(u32::MAX));
        let mut entry = Entry {
            token,
            wr_id: request.wr_id,
            visible: request.signaled || self.signal_all,
            hidden: false,
            depth,
            delay: books.delay(number),
            fate: Fate::Below,
            damage: None,
        };
        let Some(status) = status else {
            // Every success is seen here, so that what is made up behind it waits for it.
            let below = SendRequest { wr_id: token, signaled: true, ..request.clone() };
            let waits = |entry: &Entry| matches!(entry.fate, Fate::CutOff { .. });
            if !books.failed && (books.sends.iter().any(waits) || self.core.is_cut_off()) {
                entry.fate = books.cut_off(Some(keep(below)?), opcode, byte_len);
                books.sends.push_back(entry);
                return Ok(());
            }
            self.inner.post_send(std::slice::from_ref(&below)).map_err(|error| error.cause)?;
            books.sends.push_back(entry);
            self.duplicate(&mut books, number, below);
            return Ok(());
        };
        entry.fate = Fate::MadeUp { status, opcode, byte_len };
        books.sends.push_back(entry);
        Ok(())
    }

    /// Posts a SEND once more, if the plan says so.
    fn duplicate(&self, books: &mut Books, number: u64, below: SendRequest) {
        let possible = !books.reliable && matches!(below.op, SendOp::Send { .. } | SendOp::SendTo { .. });
        if !possible || !self.core.decides(Fault::Duplicate, books.ordinal, number) {
            return;
        }
        let token = below.wr_id + 1;
        // A queue below without room has no duplicates.
        if self.inner.post_send(&[SendRequest { wr_id: token, ..below }]).is_ok() {
            self.core.count(Fault::Duplicate);
            let fate = Fate::Below;
            let twin = Entry { token, wr_id: 0, visible: false, hidden: true, depth: 0, delay: 0, fate, damage: None };
            books.sends.push_back(twin);
        }
    }

    fn post_one_recv(&self, request: &RecvRequest) -> Result<(), VerbsError> {
        let mut books = lock(&self.books);
        check_post_recv(books.qp_num, books.state())?;
        let (number, token) = books.number();
        match self.core.note_post() {
            None => {}
            Some(KillMode::FailsEverything) => return Err(self.core.error("post_recv")),
            Some(KillMode::Silent) => return Ok(()),
        }
        let below = RecvRequest { wr_id: token, pieces: request.pieces.clone() };
        self.inner.post_recv(std::slice::from_ref(&below)).map_err(|error| error.cause)?;
        let damaged = !books.reliable && self.core.decides(Fault::Corrupt, books.ordinal, number);
        let delay = books.delay(number);
        books.recvs.push_back(Entry {
            token,
            wr_id: request.wr_id,
            visible: true,
            hidden: false,
            depth: 0,
            delay,
            fate: Fate::Below,
            damage: damaged.then_some(below.pieces),
        });
        Ok(())
    }
}

impl Books {
    /// How a request ends that the device below is not to see; `None` if it is to see it.
    fn swallows(&self, number: u64, killed: bool) -> Option<CompletionStatus> {
        let made_up = |entry: &Entry| matches!(entry.fate, Fate::MadeUp { status, .. } if !status.is_success());
        if self.failed && self.inner.state() == QueuePairState::Error {
            // The device below flushes it.
            None
        } else if self.sends.iter().any(made_up) {
            // A failure is on its way; nothing behind it may be done.
            Some(CompletionStatus::Flushed)
        } else if killed {
            Some(CompletionStatus::Flushed)
        } else if self.core.strikes(Fault::FailCompletion, self.ordinal, number) {
            Some(self.core.plan.fail_status)
        } else if self.core.strikes(Fault::Drop, self.ordinal, number) {
            Some(if self.reliable { CompletionStatus::RetryExceeded } else { CompletionStatus::Success })
        } else {
            None
        }
    }
}

impl QueuePair for FaultyPair {
    fn qp_num(&self) -> u32 {
        self.inner.qp_num()
    }

    fn state(&self) -> QueuePairState {
        lock(&self.books).state()
    }

    fn limits(&self) -> QueuePairLimits {
        self.limits
    }

    fn is_peer_gone(&self) -> bool {
        self.inner.is_peer_gone()
    }

    fn is_dormant(&self) -> bool {
        self.inner.is_dormant()
    }

    fn carrier(&self) -> Carrier {
        self.inner.carrier()
    }

    fn modify(&self, transition: &Transition) -> Result<(), VerbsError> {
        self.core.check_alive("modify_qp")?;
        let mut books = lock(&self.books);
        let target = transition.target();
        let gone = self.core.cable() == Look::Gone;
        if gone && !matches!(target, QueuePairState::Reset | QueuePairState::Error) {
            // It is a matter of this side alone; the device below stays in ERR, where nobody reaches it.
            self.core.info.check_transition(books.qp_num, books.shown, transition)?;
        } else {
            self.inner.modify(transition)?;
            if gone {
                self.inner.modify(&Transition::Error)?;
            }
        }
        books.shown = target;
        if let Transition::ReadyToSend { timeout, retries, .. } = *transition {
            books.patience = timeout.duration().map(|once| once * (u32::from(retries) + 1));
        }
        match transition.target() {
            QueuePairState::Reset => {
                books.sends.clear();
                books.recvs.clear();
                books.failed = false;
            }
            QueuePairState::Error => books.failed = true,
            _ => {}
        }
        Ok(())
    }

    fn post_send(&self, requests: &[SendRequest]) -> Result<(), PostError> {
        for (index, request) in requests.iter().enumerate() {
            self.post_one_send(request).map_err(|cause| PostError { index, cause })?;
        }
        Ok(())
    }

    fn post_recv(&self, requests: &[RecvRequest]) -> Result<(), PostError> {
        for (index, request) in requests.iter().enumerate() {
            self.post_one_recv(request).map_err(|cause| PostError { index, cause })?;
        }
        Ok(())
    }
}
