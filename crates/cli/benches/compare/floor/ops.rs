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
    shared::{Flag, LINE_WORDS, LINES, Line, MAX_RANKS, Shared, Span},
};
use crate::case::Op;

/// The longest all-reduce that two ranks sum each for itself, in words: it needs one meeting less.
const WHOLE: usize = 8 << 10;

/// A wait that lasts this long means that a peer is gone.
const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// How a case's exchange is done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Plan {
    Lines,
    Direct { stream: bool },
    Staged(Staging),
    Pull,
}

/// How pieces go through a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Staging {
    /// Words of a piece.
    pub piece: usize,
    /// Pieces after which the next one lies where the first did.
    pub places: usize,
    /// Past the cache.
    pub stream: bool,
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
            (Op::P2p, Plan::Staged(staging)) => {
                self.one_way_staged(0, 1, words, staging);
                self.one_way_staged(1, 0, words, staging);
            }
            (Op::P2p, Plan::Pull) => self.p2p_pull(words),
            (Op::AllGather, Plan::Pull) => self.all_gather_pull(words),
            (Op::Broadcast, Plan::Pull) => self.broadcast_pull(words),
            (Op::AllReduce | Op::ReduceScatter, Plan::Pull) => unreachable!("sums need the data twice; not planned"),
            (Op::AllReduce, Plan::Lines) => self.all_reduce_lines(words),
            (Op::AllReduce, Plan::Direct { stream }) => self.all_reduce_direct(words, stream),
            (Op::AllReduce, Plan::Staged(staging)) => self.all_reduce_staged(words, staging),
            (Op::AllGather, Plan::Lines) => self.all_gather_lines(words),
            (Op::AllGather, Plan::Direct { stream }) => self.all_gather_direct(words, stream),
            (Op::AllGather, Plan::Staged(staging)) => self.all_gather_staged(words, staging),
            (Op::ReduceScatter, Plan::Lines) => self.reduce_scatter_lines(words),
            (Op::ReduceScatter, Plan::Direct { stream }) => self.reduce_scatter_direct(words, stream),
            (Op::ReduceScatter, Plan::Staged(staging)) => self.reduce_scatter_staged(words, staging),
            (Op::Broadcast, Plan::Lines) => self.broadcast_lines(words),
            (Op::Broadcast, Plan::Direct { stream }) => self.broadcast_direct(words, stream),
            (Op::Broadcast, Plan::Staged(staging)) => self.broadcast_staged(words, staging),
            _ => unreachable!("the floor takes no part in the others; refused before"),
        }
    }

    // Lines. Where all ranks exchange, two places a rank in turn suffice: a rank that posts turn k has seen every peer's
    // turn k - 1, so every peer has taken what the place held at turn k - 2. Two short messages share one line.

    /// Where `rank` posts `words` words at `turn` when every rank posts: a line, and the first word in it.
    fn line(&self, rank: usize, turn: u64, words: usize) -> (&'static Line, usize) {
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
        self.post(self.line(self.rank, turn, words), mine, turn);
        let mut sum: [f32; LINE_WORDS] = std::array::from_fn(|i| if i < words { mine.get(i) } else { 0.0 });
        for r in self.peers() {
            self.take(self.line(r, turn, words), turn, words, |i, value| sum[i] += value);
        }
        (0..words).for_each(|i| output.set(i, sum[i]));
    }

    fn all_gather_lines(&mut self, words: usize) {
        self.turn += 1;
        let (turn, share, output) = (self.turn, words / self.ranks, self.output);
        let mine = self.input.part(0, share);
        self.post(self.line(self.rank, turn, share), mine, turn);
        (0..share).for_each(|i| output.set(self.rank * share + i, mine.get(i)));
        for r in self.peers() {
            self.take(self.line(r, turn, share), turn, share, |i, value| output.set(r * share + i, value));
        }
    }

    fn reduce_scatter_lines(&mut self, words: usize) {
        self.turn += 1;
        let (turn, share) = (self.turn, words / self.ranks);
        let (mine, first) = (self.input.part(0, words), self.rank * share);
        self.post(self.line(self.rank, turn, words), mine, turn);
        let mut sum: [f32; LINE_WORDS] = std::array::from_fn(|i| if i < share { mine.get(first + i) } else { 0.0 });
        for r in self.peers() {
            let (line, start) = self.line(r, turn, words);
            self.take((line, start + first), turn, share, |i, value| sum[i] += value);
        }
        (0..share).for_each(|i| self.output.set(i, sum[i]));
    }

    /// The root runs ahead of the others by as many messages as it has lines.
    fn broadcast_lines(&mut self, words: usize) {
        self.turn += 1;
        let (turn, data) = (self.turn, self.output.part(0, words));
        let line = &self.shared.control.lines[0][turn as usize % LINES];
        if self.rank == 0 {
            self.reclaim(turn, LINES);
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

    /// Where a rank's piece of `words` words lies in its window at `turn`.
    fn place(&self, rank: usize, turn: u64, words: usize, staging: Staging) -> Span {
        self.shared.window(rank, turn as usize % staging.places * staging.piece, words)
    }

    /// Waits until no peer needs what lay in this rank's place for `turn` before, of so many.
    fn reclaim(&self, turn: u64, places: usize) {
        if turn > places as u64 {
            for r in self.peers() {
                self.wait(&self.shared.control.taken[r].0, turn - places as u64);
            }
        }
    }

    fn one_way_staged(&mut self, from: usize, to: usize, words: usize, staging: Staging) {
        let control = self.shared.control;
        for at in (0..words).step_by(staging.piece) {
            let n = staging.piece.min(words - at);
            self.turn += 1;
            let (turn, slot) = (self.turn, self.place(from, self.turn, n, staging));
            if self.rank == from {
                self.wait(&control.taken[to].0, turn.saturating_sub(staging.places as u64));
                copy(slot, self.input.part(at, at + n), staging.stream);
                publish(&control.posted[from], turn);
            } else {
                self.wait(&control.posted[from].0, turn);
                copy(self.output.part(at, at + n), slot, false);
            }
            publish(&control.taken[self.rank], turn);
        }
    }

    fn all_reduce_staged(&mut self, words: usize, staging: Staging) {
        if self.ranks == 2 && words <= WHOLE {
            self.all_reduce_swapped(words, staging);
        } else {
            self.all_reduce_divided(words, staging);
        }
    }

    /// Two ranks swap pieces and sum for themselves.
    fn all_reduce_swapped(&mut self, words: usize, staging: Staging) {
        let control = self.shared.control;
        for at in (0..words).step_by(staging.piece) {
            let n = staging.piece.min(words - at);
            self.turn += 1;
            let (turn, mine) = (self.turn, self.input.part(at, at + n));
            self.reclaim(turn, staging.places);
            copy(self.place(self.rank, turn, n, staging), mine, staging.stream);
            publish(&control.posted[self.rank], turn);
            let peer = 1 - self.rank;
            self.wait(&control.posted[peer].0, turn);
            sum_into(&[self.output.part(at, at + n)], &[mine, self.place(peer, turn, n, staging)], false);
            publish(&control.taken[self.rank], turn);
        }
    }

    /// Each rank sums its slice of a piece for all, into its output and its window at once. While a piece is put, the one before it is summed
    /// and the one before that is taken.
    fn all_reduce_divided(&mut self, words: usize, staging: Staging) {
        let control = self.shared.control;
        let (first, count) = (self.turn + 1, words.div_ceil(staging.piece) as u64);
        self.turn += count;
        let (rank, ranks, input, output) = (self.rank, self.ranks, self.input, self.output);
        // Where a piece begins, and its length.
        let piece = |turn: u64| {
            let at = (turn - first) as usize * staging.piece;
            (at, staging.piece.min(words - at))
        };
        let window = |r: usize, turn: u64, (from, to): (usize, usize)| {
            let slot = self.place(r, turn, piece(turn).1, staging);
            slot.part(from, to)
        };
        let of = |span: Span, turn: u64, (from, to): (usize, usize)| {
            let at = piece(turn).0;
            span.part(at + from, at + to)
        };
        for step in 0..count + 2 {
            if step < count {
                let turn = first + step;
                self.reclaim(turn, staging.places);
                for r in self.peers() {
                    let theirs = slice(piece(turn).1, r, ranks);
                    copy(window(rank, turn, theirs), of(input, turn, theirs), staging.stream);
                }
                publish(&control.posted[rank], turn);
            }
            if (1..=count).contains(&step) {
                let turn = first + step - 1;
                let mine = slice(piece(turn).1, rank, ranks);
                let mut sources = [of(input, turn, mine); MAX_RANKS];
                for r in self.peers() {
                    self.wait(&control.posted[r].0, turn);
                    sources[r] = window(r, turn, mine);
                }
                sum_into(&[of(output, turn, mine), window(rank, turn, mine)], &sources[..ranks], false);
                publish(&control.reduced[rank], turn);
            }
            if step >= 2 {
                let turn = first + step - 2;
                for r in self.peers() {
                    self.wait(&control.reduced[r].0, turn);
                    let theirs = slice(piece(turn).1, r, ranks);
                    copy(of(output, turn, theirs), window(r, turn, theirs), false);
                }
                publish(&control.taken[rank], turn);
            }
        }
    }

    fn all_gather_staged(&mut self, words: usize, staging: Staging) {
        let Staging { piece, places, stream } = staging;
        let (control, share) = (self.shared.control, words / self.ranks);
        for at in (0..share).step_by(piece) {
            let n = piece.min(share - at);
            self.turn += 1;
            let (turn, mine) = (self.turn, self.input.part(at, at + n));
            let to = |r: usize| self.output.part(r * share + at, r * share + at + n);
            self.reclaim(turn, places);
            copy(self.place(self.rank, turn, n, staging), mine, stream);
            publish(&control.posted[self.rank], turn);
            copy(to(self.rank), mine, false);
            for r in self.peers() {
                self.wait(&control.posted[r].0, turn);
                copy(to(r), self.place(r, turn, n, staging), false);
            }
            publish(&control.taken[self.rank], turn);
        }
    }

    /// A slot holds a piece for each rank.
    fn reduce_scatter_staged(&mut self, words: usize, staging: Staging) {
        let (control, share) = (self.shared.control, words / self.ranks);
        let piece = (staging.piece / self.ranks).max(16) / 16 * 16;
        for at in (0..share).step_by(piece) {
            let n = piece.min(share - at);
            self.turn += 1;
            let turn = self.turn;
            let part =
                |of: usize, r: usize| self.place(of, turn, staging.piece, staging).part(r * piece, r * piece + n);
            self.reclaim(turn, staging.places);
            for r in self.peers() {
                copy(part(self.rank, r), self.input.part(r * share + at, r * share + at + n), staging.stream);
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

    fn broadcast_staged(&mut self, words: usize, staging: Staging) {
        let Staging { piece, places, stream } = staging;
        let control = self.shared.control;
        for at in (0..words).step_by(piece) {
            let n = piece.min(words - at);
            self.turn += 1;
            let (turn, data) = (self.turn, self.output.part(at, at + n));
            let slot = self.place(0, turn, n, staging);
            if self.rank == 0 {
                self.reclaim(turn, places);
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
