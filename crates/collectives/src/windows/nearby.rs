//! What calls among ranks of several hosts do with the windows of those of one host.
//!
//! Each of them is announced here, also if it goes by messages: a rank whose call uses the windows for its data finds at once that another one calls
//! something else, and tells all.

use fulmen_kernels::{Stores, copy_in_with};
use fulmen_memory::Exposed;

use super::layout::{self, Counter, Cut};
use super::{Ongoing, Progress, Windows};
use crate::CollectiveError;
use crate::call::Call;
use crate::request::Request;

impl Windows {
    /// Announces a call that goes by messages. Ranks may be some calls ahead of others of their host, and no more.
    pub(crate) fn note(
        &self,
        call: &Call,
        ongoing: &mut Ongoing<'_>,
        progress: &mut Progress,
    ) -> Result<(), CollectiveError> {
        let history = &mut progress.history;
        self.make_room(ongoing, history, layout::LEAD)?;
        let words = call.encode(0);
        self.announce(words, ongoing, history);
        self.settle(ongoing);
        history.add(words);
        Ok(())
    }

    /// Announces a short call with what this rank has for it, and waits until all of this host have done so.
    pub(crate) fn bring(
        &self,
        request: &Request<'_>,
        ongoing: &mut Ongoing<'_>,
        progress: &mut Progress,
    ) -> Result<(), CollectiveError> {
        let history = &mut progress.history;
        self.make_room(ongoing, history, layout::SLOT_LEAD)?;
        let slot = layout::slot(ongoing.sequence, request.longest());
        copy_in_with(request.contribution(), self.window.local(), slot, Stores::Cached);
        self.announce(request.call.encode(0), ongoing, history);
        self.agree(&request.call, ongoing, history, |_| true)
    }

    /// Where what a rank of this host has brought to such a call lies.
    pub(crate) fn brought(&self, rank: usize, request: &Request<'_>, sequence: u64) -> (&Exposed, usize) {
        (self.window.peer(rank as u32), layout::slot(sequence, request.longest()))
    }

    /// The board of a rank of this host for a call, and where it begins.
    pub(crate) fn board(&self, rank: usize, sequence: u64) -> (&Exposed, usize) {
        (self.window.peer(rank as u32), layout::board(sequence))
    }

    /// All on this rank's board of the call may be read.
    pub(crate) fn show_board(&self, ongoing: &mut Ongoing<'_>) {
        self.count(Counter::Told, ongoing.sequence);
        ongoing.owes_ring = false;
    }

    /// Announces a long call, whose pieces go over the stages in this way. Returns the number of its first piece, and how many pieces all must
    /// have taken before any of it is put: those of another cut lie across its places.
    pub(crate) fn begin_pieces(
        &self,
        (call, cut, pieces): (&Call, Cut, u64),
        ongoing: &mut Ongoing<'_>,
        progress: &mut Progress,
    ) -> Result<(u64, u64), CollectiveError> {
        self.make_room(ongoing, &mut progress.history, layout::LEAD)?;
        self.announce(call.encode(0), ongoing, &progress.history);
        if progress.pieces == 0 {
            self.touch_stages();
        }
        let base = progress.pieces;
        progress.pieces = base + pieces;
        let recut = progress.cut.replace(cut) != Some(cut);
        Ok((base, if recut { base } else { 0 }))
    }

    /// Waits until all of this host have announced it.
    pub(crate) fn begun_pieces(
        &self,
        call: &Call,
        ongoing: &mut Ongoing<'_>,
        progress: &mut Progress,
    ) -> Result<(), CollectiveError> {
        self.agree(call, ongoing, &mut progress.history, |_| true)?;
        self.set_about(ongoing);
        Ok(())
    }

    /// The part of the window of a rank of this host.
    pub(crate) fn part(&self, rank: usize) -> &Exposed {
        self.window.peer(rank as u32)
    }
}
