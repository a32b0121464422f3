//! What a rank's part of the control window looks like. The rank itself is its only writer, but for slots and the stage, where two ranks
//! [take turns](whose).
//!
//! ```text
//! 0        hello: ready, the pool's key, the pool's length, whether the rank has a processor
//! 128      poison: the sequence of the call that failed, the text's length, the text
//! 1024     counters, each in a pair of lines of its own
//! 2048     sixteen announcements, each in a pair of lines of its own: the call, with up to 40 bytes inline or where its data lies
//! 4096     four slots of 16 KiB, for what does not fit into an announcement
//! 69632    four boards of 64 KiB: what this rank has heard of other hosts, for those of its own
//! 331776   the stage: pieces of plain memory
//! ```

use std::ops::Range;

/// A pair of lines: processors fetch lines in pairs, so that words of different uses lie this far apart.
pub(super) const PAIR: usize = 128;

pub(super) const HELLO: usize = 0;
pub(super) const POISON: usize = PAIR;
pub(super) const POISON_TEXT: usize = POISON + 16;
pub(super) const POISON_TEXT_MAX: usize = COUNTERS - POISON_TEXT;

const COUNTERS: usize = 1024;

/// What a rank counts for its peers.
#[derive(Clone, Copy)]
pub(crate) enum Counter {
    /// The last call in which it has done all that it does to its peers' memory.
    Done,
    /// Pieces that it has put into its stage.
    Posted,
    /// Pieces of which it has reduced its share.
    Reduced,
    /// Pieces that it has taken from its peers' stages.
    Taken,
    /// The last call in which it has put on its board what other hosts had to say.
    Told,
}

impl Counter {
    pub(super) const fn word(self) -> usize {
        (COUNTERS + self as usize * PAIR) / 8
    }
}

const ANNOUNCEMENTS: usize = 2048;

/// So many calls a rank may be ahead of the last one that it knows all others to have announced: whoever waits for nobody need not look at the
/// others each time.
pub(super) const LEAD: u64 = 7;

/// Announcements that are kept. Another rank's is compared by call s + 1 + LEAD at the latest, before this one's is announced, and nobody is
/// further ahead of it than LEAD.
pub(super) const LINES: u64 = 16;
const _: () = assert!(LINES > 2 * LEAD + 1);

/// The same for what fills a slot: it is written anew when all have announced the call after the one that it was written for.
pub(super) const SLOT_LEAD: u64 = TURNS - 1;
const TURNS: u64 = 4;
const _: () = assert!(SLOT_LEAD <= LEAD);

/// The first word of the announcement of a call.
pub(super) const fn announcement(sequence: u64) -> usize {
    // Not one behind the other: processors would take them for what is read in order, and fetch from the peers what these are about to write. (Of two
    // ranks far apart, all-gathers of 8 B took 1.06 of the time that they took with two lines, and take 0.98 so.)
    (ANNOUNCEMENTS + (sequence.wrapping_mul(9) % LINES) as usize * PAIR) / 8
}

/// Words of an announcement, which is one line: sequence, call (2), and inline data (5) or where the data lies (2).
pub(super) const LINE_WORDS: usize = 8;
pub(super) const CALL: usize = 1;
const INLINE: usize = 3;
pub(super) const INPUT_AT: usize = INLINE;
pub(super) const OUTPUT_AT: usize = INLINE + 1;

/// The longest contribution that travels in the announcement, in bytes.
pub(super) const INLINE_MAX: usize = (LINE_WORDS - INLINE) * 8;

const SLOTS: usize = ANNOUNCEMENTS + LINES as usize * PAIR;

/// The longest contribution that may go through a slot, in bytes: where ranks share processors, twice as fast as through the stages.
pub(crate) const SLOT: usize = 16 << 10;

// And where each rank has a processor. What peers wrote last is in their caches, and it takes long to write it there anew.

/// The shortest contribution that peers read where it lies, if it is a buffer that is not written meanwhile, in bytes. Measured of
/// all-reduces of two ranks: 4 KiB take 0.9 of the time that they take through slots (0.55 with the processors far apart), 8 KiB 0.4 (0.2).
pub(super) const READ_IN_PLACE: usize = 3 << 10;

/// The shortest contribution that goes through the stages if it cannot be read where it lies, in bytes: all-reduces of 8 KiB take 1.1 of the
/// time that they take through slots (1.1 with the processors far apart), 12 KiB 0.72 (1.15), 16 KiB 0.61 (1.12). Where the
/// stages have each rank reduce its share, and more ranks read all of each through slots, that pays sooner: of eight ranks with a processor each,
/// 5 KiB take 0.73 of the time and 8 KiB 0.57, of sixteen, 3 KiB 0.75 and 8 KiB 0.52; of four, 8 KiB take the same either way.
pub(super) fn staged(shares: bool, ranks: usize) -> usize {
    const LEN: usize = 10 << 10;
    const RANKS: usize = 4;
    if shares { LEN * RANKS / ranks.max(RANKS) } else { LEN }
}

/// The shortest vector of which each rank reduces its share for all, in bytes: 8 KiB take 1.35 of the time that they take if each reads
/// all (1.35 with the processors far apart), 16 KiB 1.0 (0.95).
pub(super) const REDUCE_SHARES: usize = 12 << 10;

/// Where a rank puts what it contributes to a call to which none contributes more than `longest` bytes: into its announcement, or a slot.
pub(super) const fn slot(sequence: u64, longest: usize) -> usize {
    match longest <= INLINE_MAX {
        true => (announcement(sequence) + INLINE) * 8,
        false => SLOTS + (sequence % TURNS) as usize * SLOT,
    }
}

/// Whether ranks take turns with their slots and stages in calls of all: two that have a processor each. What a processor has just read is in its
/// caches, whereas its own lines that the other one has read have to be got back from it. (Measured of plain memory, beside stages of their own
/// gone through all the way, with the places of below: all-gathers of 64 KiB to 4 MiB and all-reduces of 64 KiB to 256 KiB of an AMD EPYC of family
/// 1Ah take 0.9 to 1.0 of the time near and 0.6 to 0.8 far; of 64 KiB to 16 MiB of an Intel Xeon, 0.6 to 0.85. Of four ranks of that, 0.85 to 1.1, and of
/// eight 0.85 to 1.45.)
pub(super) const fn take_turns(ranks: usize, busy: bool) -> bool {
    busy && ranks == 2
}

/// The shortest contribution whose slots they take turns with, in bytes; `reduces`: each reduces all of both. Of 2 to 8 KiB, all-gathers and
/// reduce-scatters take 0.8 to 0.85 of the time near and 0.8 to 0.96 far, and all-reduces of 8 KiB 0.88; of less, all-gathers take 1.0 to 1.05, and
/// all-reduces of 1 to 2 KiB 1.2 where the processors are far apart.
pub(super) const fn turning(reduces: bool) -> usize {
    if reduces { 4 << 10 } else { 2 << 10 }
}
const _: () = assert!(turning(false) > INLINE_MAX, "announcements are their rank's alone to write");

/// In whose part a rank of two writes in this turn: its own and the other's alternate, and the other rank's are the opposite.
#[inline]
fn whose(turn: u64, rank: usize) -> usize {
    rank ^ (turn as usize & 1)
}

/// The same of the slot of a call in which they take turns.
#[inline]
pub(super) fn whose_slot(sequence: u64, rank: usize) -> usize {
    whose(sequence / TURNS, rank)
}

const BOARDS: usize = SLOTS + TURNS as usize * SLOT;

/// Bytes of a board, which is written anew when a slot is.
pub(crate) const BOARD: usize = 64 << 10;

/// Where a rank puts what other hosts had to say in a call.
pub(super) const fn board(sequence: u64) -> usize {
    BOARDS + (sequence % TURNS) as usize * BOARD
}

const STAGE: usize = BOARDS + TURNS as usize * BOARD;

/// Bytes of the stage.
pub(crate) const STAGE_LEN: usize = 4 << 20;

/// How data goes over the stages.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Cut {
    /// Bytes of a piece.
    pub(crate) piece: usize,
    /// Pieces that have places of their own on a stage.
    pub(crate) places: u64,
    /// Ranks take turns with their stages, each time that they have been at all places.
    pub(super) turns: bool,
}

/// Who gives and who takes.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Flow {
    /// One gives or one takes.
    Rooted,
    /// All may give, and each takes of some.
    Partial,
    /// All may give, and each takes of all.
    Mutual,
    /// All give, and each takes its share of a piece for all.
    Shares,
}

impl Cut {
    /// For calls of so many ranks that put so many bytes on a stage.
    ///
    /// The stage is gone through from piece to piece and from call to call. Most calls go all the way, so that what is written anew is in
    /// nobody's second-level cache any more: to take it from there costs more than all else. (Measured of two ranks whose processors share
    /// the last cache, 32 MiB, with second-level caches of 1 MiB: with 4 MiB of stage, broadcasts of 64 KiB to 4 MiB take 0.3 to 0.45 of the
    /// time that they take with 512 KiB, all-reduces of 16 KiB to 256 KiB 0.5 to 0.7.)
    ///
    /// Where one gives and others take, pieces are short, so that these need not wait long for the first one. Where all give and take, that is
    /// the same for all, and each piece costs meetings: theirs are long (beside 64 KiB, all-reduces of 1 MiB take 0.85 of the time with 256 KiB,
    /// all-gathers 0.8; among four ranks that share two processors 0.7 and 0.8), and no longer than the data, so that they lie close on the stage.
    /// Long calls drive it out of the caches by themselves, and need the room in the last one: all-gathers of 4 MiB take 1.2 of the time with
    /// 2 MiB of stage, and 1.4 with 4 MiB. So do they where ranks share processors; `busy` says that they do not. Who takes all from more ranks
    /// has more of it in its caches.
    pub(super) fn of(len: usize, flow: Flow, ranks: usize, busy: bool) -> Cut {
        let (piece, way) = match flow {
            Flow::Rooted => (if len <= SHORT { LEAST_PIECE } else { PIECE }, longest_way(ranks)),
            Flow::Partial | Flow::Mutual | Flow::Shares => {
                let takes = if flow == Flow::Shares { 2 } else { ranks };
                let longest = 1 << (2 * LONGEST_PIECE / takes).clamp(PIECE, LONGEST_PIECE).ilog2();
                let piece = len.clamp(LEAST_PIECE, longest).next_power_of_two();
                (piece, if len > longest || !busy { LEAST_WAY } else { longest_way(ranks) })
            }
        };
        // Few places stay in the caches of both. One is put while another is taken, and one reduced between them.
        match flow {
            Flow::Mutual if take_turns(ranks, busy) => return Cut { piece, places: 2, turns: true },
            Flow::Shares if take_turns(ranks, busy) => return Cut { piece, places: 3, turns: true },
            _ => {}
        }
        // One is put while another is reduced, a third one taken, and a fourth one waited for.
        Cut { piece, places: (way / (piece + GAP)).max(LEAST_PLACES) as u64, turns: false }
    }

    /// For pieces of so many bytes.
    pub(crate) fn of_pieces(piece: usize) -> Cut {
        Cut { piece, places: (STAGE_LEN / (piece + GAP)) as u64, turns: false }
    }

    /// Bytes that it goes over.
    pub(super) fn way(self) -> usize {
        self.places as usize * (self.piece + GAP)
    }

    /// On whose stage a rank puts a piece.
    #[inline]
    pub(super) fn whose(self, piece: u64, rank: usize) -> usize {
        if self.turns { whose(piece / self.places, rank) } else { rank }
    }

    /// Where a piece lies.
    pub(crate) fn at(self, piece: u64) -> usize {
        STAGE + (piece % self.places) as usize * (self.piece + GAP)
    }
}

const SHORT: usize = 128 << 10;
const LEAST_PIECE: usize = 32 << 10;
const PIECE: usize = 64 << 10;
const LONGEST_PIECE: usize = 256 << 10;
const LEAST_WAY: usize = 512 << 10;
const LEAST_PLACES: usize = 4;

/// Bytes between a piece and the next one. Processors fetch ahead beyond what is read: without a gap, that which the peer is about to write. (Of
/// two ranks, all-gathers and all-reduces of 64 KiB take 0.91 of the time with 16 KiB, and 0.93 to 0.97 with 4 KiB.)
pub(crate) const GAP: usize = 16 << 10;

/// Bytes of a stage that so many ranks go over. Who reads the stages of more has more of them in its cache.
fn longest_way(ranks: usize) -> usize {
    (2 * STAGE_LEN / ranks).clamp(LEAST_WAY, STAGE_LEN)
}

/// What so many ranks use of a stage.
pub(super) fn stage(ranks: usize) -> Range<usize> {
    STAGE..STAGE + longest_way(ranks).max(LEAST_PLACES * (LONGEST_PIECE + GAP))
}

/// Bytes of a rank's part.
pub(super) const LEN: usize = STAGE + STAGE_LEN;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_under_way_lie_apart_and_on_the_stage() {
        for ranks in 2..=1024 {
            let stage = stage(ranks);
            assert!(stage.end <= LEN, "{ranks} ranks");
            let flows = [Flow::Rooted, Flow::Partial, Flow::Mutual, Flow::Shares];
            let flows = flows.map(|flow| [(flow, true), (flow, false)]);
            for (flow, busy) in flows.concat() {
                for len in [1, 8 << 10, SHORT, SHORT + 1, LONGEST_PIECE, LONGEST_PIECE + 1] {
                    let cut = Cut::of(len, flow, ranks, busy);
                    // Whoever puts a piece has taken the one that lay there, and reduced it before.
                    let least = match flow {
                        Flow::Mutual if cut.turns => 2,
                        Flow::Shares if cut.turns => 3,
                        _ => 4,
                    };
                    assert!(cut.places >= least, "{ranks} ranks");
                    let mut places: Vec<usize> = (7..7 + cut.places).map(|piece| cut.at(piece)).collect();
                    places.sort_unstable();
                    assert!(
                        places[0] >= stage.start && places[places.len() - 1] + cut.piece <= stage.end,
                        "{ranks} ranks"
                    );
                    assert!(places.windows(2).all(|pair| pair[1] - pair[0] >= cut.piece + GAP), "{ranks} ranks");
                }
            }
        }
    }

    /// Two ranks that make the same calls, in an order of steps that looks as if it was drawn: some of all, in which they take turns or do not,
    /// and some in which one rank gives. Whether what each reads in a slot is what the other wrote there for this call, if a slot may be
    /// written `lead` calls ahead.
    fn turns_are_kept(lead: u64) -> bool {
        let mut drawn = 1_u64;
        let mut below = |end: u64| {
            drawn = drawn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (drawn >> 33) % end
        };
        let calls: Vec<u64> = (0..20_000).map(|_| below(6)).collect();
        let gives = |rank: usize, call: u64| !matches!((calls[call as usize], rank), (4, 1) | (5, 0));
        let part = |rank: usize, call: u64| if calls[call as usize] < 2 { whose_slot(call, rank) } else { rank };
        let mut slots = [[(0, 0); TURNS as usize]; 2];
        let mut ranks = [Rank { done: true, ..Rank::default() }; 2];
        let mut favoured = 0;
        while ranks.iter().any(|rank| rank.announced + 1 < calls.len() as u64) {
            // One is much faster than the other for a while.
            favoured = if below(50) == 0 { below(2) as usize } else { favoured };
            let at = if below(4) > 0 { favoured } else { below(2) as usize };
            let (Rank { announced, met, done }, peer) = (ranks[at], ranks[1 - at].announced);
            if !done {
                let reads = gives(1 - at, announced);
                if reads && peer < announced {
                    continue;
                }
                if reads && slots[part(1 - at, announced)][(announced % TURNS) as usize] != (announced, 1 - at) {
                    return false;
                }
                ranks[at] = Rank { announced, met: if reads { announced } else { met }, done: true };
                continue;
            }
            let call = announced + 1;
            if call == calls.len() as u64 {
                continue;
            }
            let lead = if gives(at, call) { lead } else { LEAD };
            if announced >= met + lead {
                let needed = call - lead.div_ceil(2);
                ranks[at].met = if peer >= needed { needed } else { met };
                continue;
            }
            if gives(at, call) {
                slots[part(at, call)][(call % TURNS) as usize] = (call, at);
            }
            ranks[at] = Rank { announced: call, met, done: false };
        }
        true
    }

    #[test]
    fn what_two_ranks_read_in_turns_was_not_written_anew() {
        assert!(turns_are_kept(SLOT_LEAD));
        assert!(!turns_are_kept(SLOT_LEAD + 1), "the other would have to read at once");
    }

    #[test]
    fn two_ranks_write_where_they_have_read() {
        assert!(take_turns(2, true) && !take_turns(2, false) && !take_turns(3, true));
        for flow in [Flow::Mutual, Flow::Shares] {
            for len in [1, 64 << 10, LONGEST_PIECE + 1, 64 << 20] {
                let cut = Cut::of(len, flow, 2, true);
                for piece in cut.places..100 * cut.places {
                    let before = piece - cut.places;
                    assert_eq!(cut.at(piece), cut.at(before));
                    assert_eq!([0, 1].map(|rank| cut.whose(piece, rank)), [1, 0].map(|rank| cut.whose(before, rank)));
                }
            }
        }
        for sequence in TURNS..1000 {
            assert_eq!(slot(sequence, SLOT), slot(sequence - TURNS, SLOT));
            let before = [1, 0].map(|rank| whose_slot(sequence - TURNS, rank));
            assert_eq!([0, 1].map(|rank| whose_slot(sequence, rank)), before);
        }
        // Nobody else's are written.
        for flow in [Flow::Rooted, Flow::Partial] {
            assert!((0..100).all(|piece| Cut::of(1 << 20, flow, 2, true).whose(piece, 1) == 1));
        }
    }

    const RANKS: usize = 3;

    /// A rank as far as the rules of announcements and slots go.
    #[derive(Clone, Copy, Default)]
    struct Rank {
        announced: u64,
        met: u64,
        /// It has read what it needs for the call that it has announced.
        done: bool,
    }

    /// Ranks that make the same calls and take their steps in an order that looks as if it was drawn; each call is one of all, or one rank
    /// gives or takes. Whether what a rank wrote for call s is there whenever another one reads it, if call s + `lines` writes over its
    /// announcement, and call s + `slots` over its slot, which is read in that call alone.
    fn is_kept(lead: u64, lines: u64, slots: u64) -> bool {
        let mut drawn = 1_u64;
        let mut below = |end: u64| {
            drawn = drawn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (drawn >> 33) % end
        };
        let mut ranks = [Rank { done: true, ..Rank::default() }; RANKS];
        let calls: Vec<(u64, usize)> = (0..20_000).map(|_| (below(6), below(RANKS as u64) as usize)).collect();
        let awaits = |rank: usize, peer: usize, call: u64| match calls[call as usize] {
            (0, _) => true,
            (1..4, root) => peer == root,
            (_, root) => rank == root,
        };
        let mut favoured = 0;
        while ranks.iter().any(|rank| rank.announced + 1 < calls.len() as u64) {
            // One is much faster than the others for a while.
            favoured = if below(50) == 0 { below(RANKS as u64) as usize } else { favoured };
            let at = if below(4) > 0 { favoured } else { below(RANKS as u64) as usize };
            let Rank { announced, met, done } = ranks[at];
            let peers = (0..RANKS).filter(|peer| *peer != at);
            // Where it looks for the others' announcements now, if they are there.
            let (call, kept, of): (u64, u64, Vec<usize>) = match done {
                true if announced + 1 == calls.len() as u64 => continue,
                true if announced < met + lead => {
                    ranks[at] = Rank { announced: announced + 1, met, done: false };
                    continue;
                }
                true => (announced + 1 - lead.div_ceil(2), lines, peers.collect()),
                false => (announced, slots.min(lines), peers.filter(|peer| awaits(at, *peer, announced)).collect()),
            };
            if of.iter().any(|peer| ranks[*peer].announced < call) {
                continue;
            }
            if of.iter().any(|peer| ranks[*peer].announced >= call + kept) {
                return false;
            }
            let all = of.len() + 1 == RANKS;
            ranks[at] = Rank { announced, met: if all { met.max(call) } else { met }, done: true };
        }
        true
    }

    #[test]
    fn what_is_read_was_not_written_anew() {
        assert!(is_kept(LEAD, LINES, LINES));
        assert!(is_kept(SLOT_LEAD, LINES, TURNS));
        assert!(
            !is_kept(SLOT_LEAD, LINES, TURNS - 1) && !is_kept(LEAD, LEAD, LINES),
            "others would have to read at once"
        );
    }
}
