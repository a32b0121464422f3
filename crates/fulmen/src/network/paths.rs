//! Which address of one host meets which of another: what may be a path, and what turned out to be one.
//!
//! All ranks know what all have said, and both ends of a link come to the same paths in the same order.

use serde::{Deserialize, Serialize};

use super::interfaces::Address;

/// What a rank says of its host, before anything is tried. The first address is that by which the others reach it in any case.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Home {
    /// Which host it is: devices there say the same.
    pub host: [u8; 16],
    pub addresses: Vec<Address>,
}

/// An address here, an address there, as indices.
pub(super) type Pair = (usize, usize);

/// What may be paths between two ranks, the best first: pairs of one subnet, and those that the user has named on both sides. The two
/// first addresses may always be one.
pub(super) fn candidates(homes: &[Home], from: usize, to: usize) -> Vec<Pair> {
    // Both ends have to come to the same order.
    if from > to {
        return candidates(homes, to, from).into_iter().map(swap).collect();
    }
    let (here, there) = (&homes[from], &homes[to]);
    let mut pairs = vec![(0, 0)];
    if here.host == there.host {
        // They share memory.
        return pairs;
    }
    let all = (0..here.addresses.len()).flat_map(|i| (0..there.addresses.len()).map(move |j| (i, j)));
    let may_be = |&(i, j): &Pair| {
        let (one, other) = (&here.addresses[i], &there.addresses[j]);
        let alike = one.ip.is_ipv4() == other.ip.is_ipv4();
        // Where the first addresses do not meet, others of these two interfaces do not either.
        let is_first = one.interface == here.addresses[0].interface && other.interface == there.addresses[0].interface;
        !is_first && alike && (one.is_beside(other) || one.named && other.named)
    };
    pairs.extend(all.filter(may_be));
    let beside = |i: usize, j: usize| here.addresses[i].is_beside(&there.addresses[j]);
    pairs[1..].sort_by_key(|&(i, j)| (!beside(i, j), i != j, i, j));
    pairs
}

/// The paths between two ranks: of the candidates, those over which both found each other, each interface once.
pub(super) fn agree(homes: &[Home], from: usize, to: usize, met: impl Fn(Pair) -> bool) -> Vec<Pair> {
    let candidates = candidates(homes, from, to);
    let interface = |rank: usize, at: usize| homes[rank].addresses[at].interface.as_str();
    let mut paths: Vec<Pair> = Vec::new();
    for (i, j) in candidates.into_iter().filter(|pair| met(*pair)) {
        let is_used = |&(a, b): &Pair| interface(from, a) == interface(from, i) || interface(to, b) == interface(to, j);
        if !paths.iter().any(is_used) {
            paths.push((i, j));
        }
    }
    if paths.is_empty() {
        // Nobody was found: the link says why when it is made.
        paths.push((0, 0));
    }
    paths
}

pub(super) fn swap((i, j): Pair) -> Pair {
    (j, i)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home(host: u8, addresses: &[(&str, &str, bool)]) -> Home {
        let address = |(text, interface, named): &(&str, &str, bool)| {
            let (ip, prefix) = text.split_once('/').unwrap();
            let (ip, prefix) = (ip.parse().unwrap(), prefix.parse().unwrap());
            Address { ip, prefix, interface: (*interface).to_owned(), named: *named }
        };
        Home { host: [host; 16], addresses: addresses.iter().map(address).collect() }
    }

    fn both_ways(homes: &[Home], met: impl Fn(Pair) -> bool + Copy) -> Vec<Pair> {
        let paths = agree(homes, 0, 1, met);
        let back: Vec<Pair> = agree(homes, 1, 0, |pair| met(swap(pair))).into_iter().map(swap).collect();
        assert_eq!(paths, back);
        paths
    }

    #[test]
    fn subnets_pair_and_bridges_with_one_address_do_not() {
        let one = home(
            1,
            &[("10.0.0.1/24", "eth0", false), ("10.0.1.1/24", "eth1", false), ("172.17.0.1/16", "docker0", false)],
        );
        let two = home(
            2,
            &[("10.0.0.2/24", "eno1", false), ("172.17.0.1/16", "docker0", false), ("10.0.1.2/24", "eno2", false)],
        );
        let homes = [one, two];
        assert_eq!(candidates(&homes, 0, 1), [(0, 0), (1, 2)]);
        assert_eq!(both_ways(&homes, |_| true), [(0, 0), (1, 2)]);
        // One that is not answered does not count, were it the first.
        assert_eq!(both_ways(&homes, |pair| pair != (0, 0)), [(1, 2)]);
        assert_eq!(both_ways(&homes, |_| false), [(0, 0)]);
    }

    #[test]
    fn two_addresses_of_an_interface_are_one_path() {
        let two = |last: &str, host| {
            let texts = [
                format!("10.0.0.{last}/24"),
                format!("10.0.1.{last}/24"),
                format!("fd00::{last}/64"),
                format!("fd01::{last}/64"),
            ];
            let names = ["a", "b", "a", "b"];
            let list: Vec<_> = texts.iter().zip(names).map(|(text, name)| (text.as_str(), name, false)).collect();
            home(host, &list)
        };
        let homes = [two("1", 1), two("2", 2)];
        assert_eq!(candidates(&homes, 0, 1), [(0, 0), (1, 1), (3, 3)]);
        assert_eq!(both_ways(&homes, |_| true), [(0, 0), (1, 1)]);
        // Where only one of both works, it is the path.
        assert_eq!(both_ways(&homes, |pair| pair != (1, 1)), [(0, 0), (3, 3)]);
    }

    #[test]
    fn named_addresses_pair_across_subnets_in_their_order() {
        let one = home(1, &[("10.0.0.1/24", "a", true), ("10.0.1.1/24", "b", true)]);
        let two = home(2, &[("10.0.2.1/24", "a", true), ("10.0.3.1/24", "b", true)]);
        let homes = [one, two];
        assert_eq!(both_ways(&homes, |_| true), [(0, 0), (1, 1)]);
        assert_eq!(both_ways(&homes, |(i, j)| i != j), [(0, 1), (1, 0)]);
    }

    #[test]
    fn ranks_of_one_host_share_memory() {
        let list = [("10.0.0.1/24", "a", true), ("10.0.1.1/24", "b", true)];
        let homes = [home(1, &list), home(1, &list)];
        assert_eq!(both_ways(&homes, |_| true), [(0, 0)]);
    }
}
