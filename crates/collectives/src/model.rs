//! What an all-reduce by messages costs over cables, one or more between each two ranks, reckoned beforehand.
//!
//! It has the rounds of the implementation: all call its own rules for what is short, for pieces and for shares. Times are in
//! microseconds, lengths in bytes.

use fulmen_fabric::model::{Cable, Host, Operation, Wire};

use crate::messages::{HEADER, SHORT, block, goes_in_rounds, is_exchanged_whole, pieces, rounds, share};

/// What the ranks have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mesh {
    /// How many ranks there are, each joined with each.
    pub ranks: usize,
    /// How many cables join two of them.
    pub cables: u64,
    /// How links run.
    pub wire: Wire,
    /// What a cable does.
    pub cable: Cable,
    /// What processors do for a SEND.
    pub host: Host,
    /// Microseconds for each byte that is copied or reduced.
    pub copy: f64,
}

/// The messages that a rank sends in an all-reduce of so many bytes, round by round: each to another rank.
#[must_use]
pub fn all_reduce_messages(bytes: usize, ranks: usize, rank: usize) -> Vec<Vec<usize>> {
    let others = ranks.saturating_sub(1);
    if bytes <= SHORT && goes_in_rounds(ranks, false) {
        return rounds(ranks).map(|(_, count)| vec![count * block(bytes)]).collect();
    }
    if is_exchanged_whole(bytes, ranks) {
        return vec![vec![HEADER + bytes; others]];
    }
    let mut rounds = Vec::new();
    for piece in pieces(bytes, ranks) {
        let of = |rank| share(&piece, ranks, rank).len();
        let some = |lens: Vec<usize>| lens.into_iter().filter(|len| *len > 0).collect::<Vec<_>>();
        let header = if rounds.is_empty() { HEADER } else { 0 };
        rounds.push(some((0..ranks).filter(|peer| *peer != rank).map(|peer| header + of(peer)).collect()));
        rounds.push(some(vec![of(rank); others]));
    }
    rounds
}

/// How long an all-reduce of so many bytes takes, from when all have called it.
#[must_use]
pub fn all_reduce(bytes: usize, mesh: &Mesh) -> f64 {
    let Mesh { ranks, cables, wire, cable, host, copy } = mesh;
    let rounds = |rank| all_reduce_messages(bytes, *ranks, rank);
    // The first rank has the largest share, and the last one gets it: every round is as long as for the slower of the two.
    let (first, last) = (rounds(0), rounds(ranks - 1));
    let messages = first.iter().zip(&last).map(|(first, last)| {
        let longest = first.iter().chain(last).copied().max().unwrap_or(0) as u64;
        let others = first.len().max(last.len());
        if others == 0 {
            return 0.0;
        }
        // The cables work at once; a processor does one thing after the other, for what it sends and what it gets.
        let work = wire.work(Operation::Message, longest, host);
        wire.time(Operation::Message, longest, cable, host, *cables).done + 2.0 * (others - 1) as f64 * work
    });
    messages.sum::<f64>() + copy * touched(bytes, *ranks) as f64
}

/// Bytes that a rank copies or reads to reduce: its data into memory that is sent from, everybody's data, and the result; or of
/// its share alone, the result into that memory, and the others' results out of it.
fn touched(bytes: usize, ranks: usize) -> usize {
    if is_exchanged_whole(bytes, ranks) {
        return bytes * (ranks + 2);
    }
    let share = bytes.div_ceil(ranks);
    2 * (bytes - share) + share * (ranks + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_ones_are_one_round() {
        assert_eq!(all_reduce_messages(64, 4, 1), [vec![88; 3]]);
        assert_eq!(all_reduce_messages(SHORT, 4, 1).len(), 1);
        assert_eq!(all_reduce_messages(64, 1, 0), [Vec::<usize>::new()]);
    }

    #[test]
    fn short_ones_of_many_ranks_are_passed_on() {
        assert_eq!(all_reduce_messages(64, 20, 3), [88, 176, 352, 704, 352].map(|len| vec![len]));
    }

    #[test]
    fn all_others_exchange_shares_and_results() {
        let rounds = all_reduce_messages(1 << 20, 4, 2);
        assert_eq!(rounds, [vec![24 + (256 << 10); 3], vec![256 << 10; 3]]);
        // What a rank sends is in all twice the data, but for its own share.
        let sum: usize = all_reduce_messages(10 << 20, 4, 0).iter().flatten().sum();
        assert_eq!(sum, 24 * 3 + 2 * (10 << 20) * 3 / 4);
    }

    #[test]
    fn few_ranks_exchange_more_in_one_round() {
        assert_eq!(all_reduce_messages(16 << 10, 3, 1), [vec![24 + (16 << 10); 2]]);
        assert_eq!(all_reduce_messages(256 << 10, 2, 1), [vec![24 + (256 << 10)]]);
        assert_eq!(all_reduce_messages(512 << 10, 2, 1), [vec![24 + (256 << 10)], vec![256 << 10]]);
    }

    #[test]
    fn the_last_share_may_be_empty() {
        let rounds = all_reduce_messages(4160, 70, 69);
        assert_eq!(rounds[1], Vec::<usize>::new());
        // Those without a share get the header alone.
        assert_eq!(rounds[0].len(), 69);
        assert_eq!(rounds[0].iter().filter(|len| **len == HEADER).count(), 4);
    }
}
