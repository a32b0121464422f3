//! The exchanges, written by hand for ranks that share memory, and nothing around them.
//!
//! Four ways, of which a case takes the one that is fastest where it runs:
//! - `Lines`: up to 56 bytes, payload and flag in one cache line, one line a rank.
//! - `Direct`: the users' buffers lie in shared memory; every rank reads and writes its peers' buffers in place.
//! - `Staged`: the payload passes in pieces through windows of shared memory, which also serves private buffers.
//! - `Pull`: the kernel copies from the peer's private buffer (`process_vm_readv`), where it is allowed.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use super::{
    kernels::{copy, sum_into},
    shared::{Flag, LINE_WORDS, Line, MAX_RANKS, SLOTS, Shared, Span},
};
use crate::case::Op;

/// A wait that lasts this long means that a peer is gone.
const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// How a case's exchange is done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Plan {
    Lines,
    Direct { stream: bool },
    Staged { piece: usize, stream: bool },
    Pull,
}

/// One rank of the floor.
pub struct Rank {
    pub rank: usize,
    pub ranks: usize,
    /// More ranks than processors: waits give the processor away.
    pub crowded: bool,
    pub shared: Shared,
    /// The buffers of the case at hand, in shared or in private memory.
    pub input: Span,
    pub output: Span,
    /// Whether every rank may read the others' memory through the kernel.
    pub can_pull: bool,
    /// Barriers so far.
    pub barriers: u64,
    /// Pieces or small messages so far in this case.
    pub turn: u64,
}

/// The words of slice `rank` when `words` are divided among `ranks`: whole cache lines, so that no two ranks write one line.
fn slice(words: usize, rank: usize, ranks: usize) -> (usize, usize) {
    let share = words.div_ceil(ranks).next_multiple_of(16);
    let from = (share * rank).min(words);
    (from, if rank == ranks - 1 { words } else { (from + share).min(words) })
}

pub fn publish(flag: &Flag, value: u64) {
    flag.0.store(value, Ordering::Release);
}

impl Rank {
    pub fn wait(&self, at: &AtomicU64, want: u64) {
        let (mut spins, mut since) = (0u32, None);
        while at.load(Ordering::Acquire) < want {
            if self.crowded {
                std::thread::yield_now()
            } else {
                std::hint::spin_loop()
            }
            spins = spins.wrapping_add(1);
            if spins.is_multiple_of(1 << 18) && since.get_or_insert_with(Instant::now).elapsed() > WAIT_LIMIT {
                eprintln!("floor: rank {} waited {WAIT_LIMIT:?} for a peer; it is gone or stopped", self.rank);
                std::process::exit(1);
            }
        }
    }

    pub fn peers(&self) -> impl Iterator<Item = usize> + use<> {
        let (rank, ranks) = (self.rank, self.ranks);
        (1..ranks).map(move |k| (rank + k) % ranks)
    }

    /// Waits until every rank is here.
    pub fn meet(&mut self) {
        self.barriers += 1;
        publish(&self.shared.control.arrived[self.rank], self.barriers);
        for r in self.peers() {
            self.wait(&self.shared.control.arrived[r].0, self.barriers);
        }
    }

    /// One call of the operation on `bytes` bytes (as [`Op::bytes`] counts them); of p2p, one round trip.
    pub fn call(&mut self, op: Op, bytes: usize, plan: Plan) {
        let words = bytes / 4;
        match (op, plan) {
            (Op::Barrier, _) => self.meet(),
            (Op::P2p, _) if self.rank > 1 => {}
            (Op::P2p, Plan::Lines) => self.p2p_lines(words),
            (Op::P2p, Plan::Direct { stream }) => self.p2p_direct(words, stream),
            (Op::P2p, Plan::Staged { piece, stream }) => {
                self.one_way_staged(0, 1, words, piece, stream);
                self.one_way_staged(1, 0, words, piece, stream);
            }
            (Op::P2p, Plan::Pull) => self.p2p_pull(words),
            (Op::AllGather, Plan::Pull) => self.all_gather_pull(words),
            (Op::Broadcast, Plan::Pull) => self.broadcast_pull(words),
            (Op::AllReduce | Op::ReduceScatter, Plan::Pull) => unreachable!("sums need the data twice; not planned"),
            (Op::AllReduce, Plan::Lines) => self.all_reduce_lines(words),
            (Op::AllReduce, Plan::Direct { stream }) => self.all_reduce_direct(words, stream),
            (Op::AllReduce, Plan::Staged { piece, stream }) => self.all_reduce_staged(words, piece, stream),
            (Op::AllGather, Plan::Lines) => self.all_gather_lines(words),
            (Op::AllGather, Plan::Direct { stream }) => self.all_gather_direct(words, stream),
            (Op::AllGather, Plan::Staged { piece, stream }) => self.all_gather_staged(words, piece, stream),
            (Op::ReduceScatter, Plan::Lines) => self.reduce_scatter_lines(words),
            (Op::ReduceScatter, Plan::Direct { stream }) => self.reduce_scatter_direct(words, stream),
            (Op::ReduceScatter, Plan::Staged { piece, stream }) => self.reduce_scatter_staged(words, piece, stream),
            (Op::Broadcast, Plan::Lines) => self.broadcast_lines(words),
            (Op::Broadcast, Plan::Direct { stream }) => self.broadcast_direct(words, stream),
            (Op::Broadcast, Plan::Staged { piece, stream }) => self.broadcast_staged(words, piece, stream),
            _ => unreachable!("the floor takes no part in the others; refused before"),
        }
    }

    // Lines. Where all ranks exchange, two places a rank in turn suffice: a rank that posts turn k has seen every peer's
    // turn k - 1, so every peer has taken what the place held at turn k - 2. Two short messages share one line.

    /// Where `rank` posts `words` words at `turn` when every rank posts: a line, and the first word in it.
    fn place(&self, rank: usize, turn: u64, words: usize) -> (&'static Line, usize) {
        let (lines, half) = (&self.shared.control.lines[rank], LINE_WORDS / 2);
        let odd = turn as usize % 2;
        if words <= half { (&lines[0], odd * half) } else { (&lines[odd], 0) }
    }

    fn post(&self, (line, first): (&Line, usize), from: Span, turn: u64) {
        for i in 0..from.words() {
            line.words[first + i].store(from.get(i).to_bits(), Ordering::Relaxed);
        }
        line.sequence.store(turn, Ordering::Release);
    }

    fn take(&self, (line, first): (&Line, usize), turn: u64, words: usize, mut with: impl FnMut(usize, f32)) {
        self.wait(&line.sequence, turn);
        for i in 0..words {
            with(i, f32::from_bits(line.words[first + i].load(Ordering::Relaxed)));
        }
    }

    fn p2p_lines(&mut self, words: usize) {
        self.turn += 1;
        let (turn, input, output) = (self.turn, self.input.part(0, words), self.output);
        let lines = &self.shared.control.lines;
        if self.rank == 0 {
            self.post((&lines[0][0], 0), input, turn);
        }
        self.take((&lines[1 - self.rank][0], 0), turn, words, |i, value| output.set(i, value));
        if self.rank == 1 {
            self.post((&lines[1][0], 0), input, turn);
        }
    }

    fn all_reduce_lines(&mut self, words: usize) {
        self.turn += 1;
        let (turn, mine, output) = (self.turn, self.input.part(0, words), self.output);
        self.post(self.place(self.rank, turn, words), mine, turn);
        let mut sum: [f32; LINE_WORDS] = std::array::from_fn(|i| if i < words { mine.get(i) } else { 0.0 });
        for r in self.peers() {
            self.take(self.place(r, turn, words), turn, words, |i, value| sum[i] += value);
        }
        (0..words).for_each(|i| output.set(i, sum[i]));
    }

    fn all_gather_lines(&mut self, words: usize) {
        self.turn += 1;
        let (turn, share, output) = (self.turn, words / self.ranks, self.output);
        let mine = self.input.part(0, share);
        self.post(self.place(self.rank, turn, share), mine, turn);
        (0..share).for_each(|i| output.set(self.rank * share + i, mine.get(i)));
        for r in self.peers() {
            self.take(self.place(r, turn, share), turn, share, |i, value| output.set(r * share + i, value));
        }
    }

    fn reduce_scatter_lines(&mut self, words: usize) {
        self.turn += 1;
        let (turn, share) = (self.turn, words / self.ranks);
        let (mine, first) = (self.input.part(0, words), self.rank * share);
        self.post(self.place(self.rank, turn, words), mine, turn);
        let mut sum: [f32; LINE_WORDS] = std::array::from_fn(|i| if i < share { mine.get(first + i) } else { 0.0 });
        for r in self.peers() {
            let (line, start) = self.place(r, turn, words);
            self.take((line, start + first), turn, share, |i, value| sum[i] += value);
        }
        (0..share).for_each(|i| self.output.set(i, sum[i]));
    }

    /// The root runs ahead of the others by as many messages as it has lines.
    fn broadcast_lines(&mut self, words: usize) {
        self.turn += 1;
        let (turn, data) = (self.turn, self.output.part(0, words));
        let line = &self.shared.control.lines[0][turn as usize % SLOTS];
        if self.rank == 0 {
            self.reclaim(turn);
            self.post((line, 0), data, turn);
        } else {
            self.take((line, 0), turn, words, |i, value| data.set(i, value));
        }
        publish(&self.shared.control.taken[self.rank], turn);
    }

    // Direct.

    fn inputs<'a>(&self, spans: &'a mut [Span; MAX_RANKS], from: usize, to: usize) -> &'a [Span] {
        for (r, span) in spans.iter_mut().enumerate().take(self.ranks) {
            *span = self.shared.input(r).part(from, to);
        }
        &spans[..self.ranks]
    }

    fn outputs<'a>(&self, spans: &'a mut [Span; MAX_RANKS], from: usize, to: usize) -> &'a [Span] {
        for (r, span) in spans.iter_mut().enumerate().take(self.ranks) {
            *span = self.shared.output(r).part(from, to);
        }
        &spans[..self.ranks]
    }

    fn p2p_direct(&mut self, words: usize, stream: bool) {
        self.turn += 1;
        let posted = &self.shared.control.posted;
        if self.rank == 1 {
            self.wait(&posted[0].0, self.turn);
        }
        copy(self.shared.output(1 - self.rank).part(0, words), self.input.part(0, words), stream);
        publish(&posted[self.rank], self.turn);
        if self.rank == 0 {
            self.wait(&posted[1].0, self.turn);
        }
    }

    /// Rank r reads slice r of every rank's input and writes its sum to every rank's output.
    fn all_reduce_direct(&mut self, words: usize, stream: bool) {
        self.meet();
        let (from, to) = slice(words, self.rank, self.ranks);
        if from < to {
            let (mut sources, mut targets) = ([self.input; MAX_RANKS], [self.output; MAX_RANKS]);
            sum_into(self.outputs(&mut targets, from, to), self.inputs(&mut sources, from, to), stream);
        }
        self.meet();
    }

    fn all_gather_direct(&mut self, words: usize, stream: bool) {
        let share = words / self.ranks;
        self.meet();
        for r in std::iter::once(self.rank).chain(self.peers()) {
            copy(self.output.part(r * share, (r + 1) * share), self.shared.input(r).part(0, share), stream);
        }
        self.meet();
    }

    fn reduce_scatter_direct(&mut self, words: usize, stream: bool) {
        let share = words / self.ranks;
        self.meet();
        let mut spans = [self.input; MAX_RANKS];
        let sources = self.inputs(&mut spans, self.rank * share, (self.rank + 1) * share);
        sum_into(&[self.output.part(0, share)], sources, stream);
        self.meet();
    }

    fn broadcast_direct(&mut self, words: usize, stream: bool) {
        self.turn += 1;
        let control = self.shared.control;
        if self.rank == 0 {
            publish(&control.posted[0], self.turn);
            for r in self.peers() {
                self.wait(&control.taken[r].0, self.turn);
            }
        } else {
            self.wait(&control.posted[0].0, self.turn);
            copy(self.output.part(0, words), self.shared.output(0).part(0, words), stream);
            publish(&control.taken[self.rank], self.turn);
        }
    }

    // Staged.

    /// Waits until no peer needs what this rank's slot for `turn` held before.
    fn reclaim(&self, turn: u64) {
        if turn > SLOTS as u64 {
            for r in self.peers() {
                self.wait(&self.shared.control.taken[r].0, turn - SLOTS as u64);
            }
        }
    }

    fn one_way_staged(&mut self, from: usize, to: usize, words: usize, piece: usize, stream: bool) {
        let control = self.shared.control;
        for at in (0..words).step_by(piece) {
            let n = piece.min(words - at);
            self.turn += 1;
            let (turn, slot) = (self.turn, self.shared.slot(from, self.turn).part(0, n));
            if self.rank == from {
                self.wait(&control.taken[to].0, turn.saturating_sub(SLOTS as u64));
                copy(slot, self.input.part(at, at + n), stream);
                publish(&control.posted[from], turn);
            } else {
                self.wait(&control.posted[from].0, turn);
                copy(self.output.part(at, at + n), slot, false);
            }
            publish(&control.taken[self.rank], turn);
        }
    }

    /// Two ranks swap pieces and sum for themselves; more ranks divide each piece.
    fn all_reduce_staged(&mut self, words: usize, piece: usize, stream: bool) {
        let control = self.shared.control;
        for at in (0..words).step_by(piece) {
            let n = piece.min(words - at);
            self.turn += 1;
            let (turn, mine) = (self.turn, self.input.part(at, at + n));
            let output = self.output.part(at, at + n);
            let slot = |r| self.shared.slot(r, turn);
            self.reclaim(turn);
            copy(slot(self.rank).part(0, n), mine, stream);
            publish(&control.posted[self.rank], turn);
            for r in self.peers() {
                self.wait(&control.posted[r].0, turn);
            }
            if self.ranks == 2 {
                sum_into(&[output], &[mine, slot(1 - self.rank).part(0, n)], false);
                publish(&control.taken[self.rank], turn);
                continue;
            }
            let (from, to) = slice(n, self.rank, self.ranks);
            if from < to {
                let sources: [Span; MAX_RANKS] = std::array::from_fn(|r| slot(r.min(self.ranks - 1)).part(from, to));
                sum_into(&[slot(self.rank).part(from, to)], &sources[..self.ranks], false);
            }
            publish(&control.reduced[self.rank], turn);
            for r in std::iter::once(self.rank).chain(self.peers()) {
                self.wait(&control.reduced[r].0, turn);
                let (from, to) = slice(n, r, self.ranks);
                copy(output.part(from, to), slot(r).part(from, to), false);
            }
            publish(&control.taken[self.rank], turn);
        }
    }

    fn all_gather_staged(&mut self, words: usize, piece: usize, stream: bool) {
        let (control, share) = (self.shared.control, words / self.ranks);
        for at in (0..share).step_by(piece) {
            let n = piece.min(share - at);
            self.turn += 1;
            let (turn, mine) = (self.turn, self.input.part(at, at + n));
            let to = |r: usize| self.output.part(r * share + at, r * share + at + n);
            self.reclaim(turn);
            copy(self.shared.slot(self.rank, turn).part(0, n), mine, stream);
            publish(&control.posted[self.rank], turn);
            copy(to(self.rank), mine, false);
            for r in self.peers() {
                self.wait(&control.posted[r].0, turn);
                copy(to(r), self.shared.slot(r, turn).part(0, n), false);
            }
            publish(&control.taken[self.rank], turn);
        }
    }

    /// A slot holds a piece for each rank.
    fn reduce_scatter_staged(&mut self, words: usize, piece: usize, stream: bool) {
        let (control, share) = (self.shared.control, words / self.ranks);
        let piece = (piece / self.ranks).max(16) / 16 * 16;
        for at in (0..share).step_by(piece) {
            let n = piece.min(share - at);
            self.turn += 1;
            let turn = self.turn;
            let part = |of: usize, r: usize| self.shared.slot(of, turn).part(r * piece, r * piece + n);
            self.reclaim(turn);
            for r in self.peers() {
                copy(part(self.rank, r), self.input.part(r * share + at, r * share + at + n), stream);
            }
            publish(&control.posted[self.rank], turn);
            let mine = self.input.part(self.rank * share + at, self.rank * share + at + n);
            let mut sources = [mine; MAX_RANKS];
            for r in self.peers() {
                self.wait(&control.posted[r].0, turn);
                sources[r] = part(r, self.rank);
            }
            sum_into(&[self.output.part(at, at + n)], &sources[..self.ranks], false);
            publish(&control.taken[self.rank], turn);
        }
    }

    fn broadcast_staged(&mut self, words: usize, piece: usize, stream: bool) {
        let control = self.shared.control;
        for at in (0..words).step_by(piece) {
            let n = piece.min(words - at);
            self.turn += 1;
            let (turn, data) = (self.turn, self.output.part(at, at + n));
            let slot = self.shared.slot(0, turn).part(0, n);
            if self.rank == 0 {
                self.reclaim(turn);
                copy(slot, data, stream);
                publish(&control.posted[0], turn);
            } else {
                self.wait(&control.posted[0].0, turn);
                copy(data, slot, false);
            }
            publish(&control.taken[self.rank], turn);
        }
    }
}
