//! Private buffers read through the kernel: one copy, at the price of a system call.

use std::sync::atomic::Ordering;

use super::{
    kernels::copy,
    ops::{Rank, publish},
    shared::Span,
};
use crate::platform;

/// Which of a rank's buffers to pull from.
#[derive(Clone, Copy)]
enum Of {
    Input = 1,
    Output = 2,
}

impl Rank {
    /// Tells the peers where this rank's buffers are, and finds out whether all may read all. Every rank calls it.
    pub fn try_pulling(&mut self) {
        platform::allow_reads();
        let me = &self.shared.control.process[self.rank];
        let address = |span: Span| span.as_ptr() as u64;
        let facts = [u64::from(std::process::id()), address(self.input), address(self.output)];
        me.iter().zip(facts).for_each(|(cell, fact)| cell.store(fact, Ordering::Relaxed));
        self.meet();
        let works = self.peers().all(|r| self.pull(self.output.part(0, 1), r, Of::Input).is_ok());
        self.can_pull = self.tell(u64::from(works)).into_iter().all(|works| works == 1);
    }

    /// Copies from the peer's buffer as many words as `to` has.
    fn pull(&self, to: Span, peer: usize, of: Of) -> std::io::Result<()> {
        let process = &self.shared.control.process[peer];
        let from = process[of as usize].load(Ordering::Relaxed) as usize;
        let pid = process[0].load(Ordering::Relaxed) as u32;
        // SAFETY: the span has that room, and it is this rank's own until the next flag.
        unsafe { platform::read_process(pid, from, to.as_ptr().cast(), to.words() * 4) }
    }

    fn must_pull(&self, to: Span, peer: usize, of: Of) {
        if let Err(error) = self.pull(to, peer, of) {
            eprintln!("floor: rank {} cannot read the memory of rank {peer}: {error}", self.rank);
            std::process::exit(1);
        }
    }

    pub fn p2p_pull(&mut self, words: usize) {
        self.turn += 1;
        let (posted, other) = (&self.shared.control.posted, 1 - self.rank);
        if self.rank == 0 {
            publish(&posted[0], self.turn);
        }
        self.wait(&posted[other].0, self.turn);
        self.must_pull(self.output.part(0, words), other, Of::Input);
        if self.rank == 1 {
            publish(&posted[1], self.turn);
        }
    }

    pub fn all_gather_pull(&mut self, words: usize) {
        let share = words / self.ranks;
        self.meet();
        let mine = self.output.part(self.rank * share, (self.rank + 1) * share);
        copy(mine, self.input.part(0, share), false);
        for r in self.peers() {
            self.must_pull(self.output.part(r * share, (r + 1) * share), r, Of::Input);
        }
        self.meet();
    }

    pub fn broadcast_pull(&mut self, words: usize) {
        self.meet();
        if self.rank > 0 {
            self.must_pull(self.output.part(0, words), 0, Of::Output);
        }
        self.meet();
    }
}
