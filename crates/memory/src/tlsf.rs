//! A two-level segregated-fit allocator of abstract units, whose books are an array of nodes.
//!
//! Free pieces hang in lists by size: a first level by powers of two, a second by eighths between them. Bitmaps find the
//! first list that surely fits, so that giving back is O(1) whatever the history, and so is taking as long as a larger
//! class has a piece. If none has, the pieces of the size's own class are searched: slower, but nothing that would fit
//! is refused. Neighbours that are free are joined at once, so that everything that comes back is one piece again.

/// Eighths of a power of two.
const SECOND_BITS: u32 = 3;
const SECOND: usize = 1 << SECOND_BITS;
const FIRST: usize = 64;
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Node {
    start: usize,
    len: usize,
    /// The pieces before and after this one in the same span.
    before: u32,
    after: u32,
    /// Neighbours in the list of free pieces of like size.
    previous: u32,
    next: u32,
    free: bool,
}

#[derive(Debug)]
pub(crate) struct Tlsf {
    nodes: Vec<Node>,
    /// Nodes that stand for no piece at present.
    spare: Vec<u32>,
    first: u64,
    second: [u8; FIRST],
    heads: Box<[[u32; SECOND]; FIRST]>,
    total: usize,
    free: usize,
}

impl Tlsf {
    pub(crate) fn new() -> Tlsf {
        Tlsf {
            nodes: Vec::new(),
            spare: Vec::new(),
            first: 0,
            second: [0; FIRST],
            heads: Box::new([[NONE; SECOND]; FIRST]),
            total: 0,
            free: 0,
        }
    }

    /// Adds a span that is never joined with another.
    pub(crate) fn add(&mut self, start: usize, len: usize) {
        let node = self.node(Node { start, len, before: NONE, after: NONE, previous: NONE, next: NONE, free: false });
        self.total += len;
        self.link(node);
    }

    /// Takes `len` units: the piece's node and its start.
    pub(crate) fn take(&mut self, len: usize) -> Option<(u32, usize)> {
        let node = self.find(len)?;
        self.unlink(node);
        let Node { start, len: found, after, .. } = self.nodes[node as usize];
        if found > len {
            let rest = Node {
                start: start + len,
                len: found - len,
                before: node,
                after,
                previous: NONE,
                next: NONE,
                free: false,
            };
            let rest = self.node(rest);
            if after != NONE {
                self.nodes[after as usize].before = rest;
            }
            self.nodes[node as usize].after = rest;
            self.nodes[node as usize].len = len;
            self.link(rest);
        }
        Some((node, start))
    }

    /// Gives a piece back and joins it with free neighbours.
    pub(crate) fn give_back(&mut self, node: u32) {
        let mut node = node;
        let before = self.nodes[node as usize].before;
        if before != NONE && self.nodes[before as usize].free {
            self.unlink(before);
            self.join(before, node);
            node = before;
        }
        let after = self.nodes[node as usize].after;
        if after != NONE && self.nodes[after as usize].free {
            self.unlink(after);
            self.join(node, after);
        }
        self.link(node);
    }

    pub(crate) fn total(&self) -> usize {
        self.total
    }

    pub(crate) fn free(&self) -> usize {
        self.free
    }

    /// The pieces that are out: their starts and lengths.
    pub(crate) fn taken(&self) -> impl Iterator<Item = (usize, usize)> {
        self.nodes.iter().filter(|node| !node.free && node.len > 0).map(|node| (node.start, node.len))
    }

    /// The longest free piece.
    pub(crate) fn largest(&self) -> usize {
        let Some(first) = self.first.checked_ilog2() else { return 0 };
        let second = self.second[first as usize].ilog2();
        let mut at = self.heads[first as usize][second as usize];
        let mut largest = 0;
        while at != NONE {
            largest = largest.max(self.nodes[at as usize].len);
            at = self.nodes[at as usize].next;
        }
        largest
    }

    fn find(&self, len: usize) -> Option<u32> {
        // Every piece in the list of the next larger size fits.
        if let Some((first, second)) = round_up(len).and_then(|len| self.list_at_least(class(len))) {
            return Some(self.heads[first][second]);
        }
        // Pieces of its own size class may fit, too: without this look a pool could not give all it has.
        let (first, second) = class(len);
        let mut at = self.heads[first][second];
        while at != NONE {
            if self.nodes[at as usize].len >= len {
                return Some(at);
            }
            at = self.nodes[at as usize].next;
        }
        None
    }

    fn list_at_least(&self, (first, second): (usize, usize)) -> Option<(usize, usize)> {
        let here = self.second[first] & (u8::MAX << second);
        if here != 0 {
            return Some((first, here.trailing_zeros() as usize));
        }
        let above = if first + 1 < FIRST { self.first & (u64::MAX << (first + 1)) } else { 0 };
        if above == 0 {
            return None;
        }
        let first = above.trailing_zeros() as usize;
        Some((first, self.second[first].trailing_zeros() as usize))
    }

    fn node(&mut self, node: Node) -> u32 {
        if let Some(at) = self.spare.pop() {
            self.nodes[at as usize] = node;
            return at;
        }
        let at = u32::try_from(self.nodes.len()).ok().filter(|at| *at != NONE).expect("fewer than 2^32 pieces");
        self.nodes.push(node);
        at
    }

    fn join(&mut self, left: u32, right: u32) {
        let Node { len, after, .. } = self.nodes[right as usize];
        // A spare node is no piece that is out.
        self.nodes[right as usize].len = 0;
        self.nodes[left as usize].len += len;
        self.nodes[left as usize].after = after;
        if after != NONE {
            self.nodes[after as usize].before = left;
        }
        self.spare.push(right);
    }

    fn link(&mut self, node: u32) {
        let (first, second) = class(self.nodes[node as usize].len);
        let head = self.heads[first][second];
        let entry = &mut self.nodes[node as usize];
        entry.free = true;
        entry.previous = NONE;
        entry.next = head;
        self.free += entry.len;
        if head != NONE {
            self.nodes[head as usize].previous = node;
        }
        self.heads[first][second] = node;
        self.first |= 1 << first;
        self.second[first] |= 1 << second;
    }

    fn unlink(&mut self, node: u32) {
        let Node { len, previous, next, .. } = self.nodes[node as usize];
        let (first, second) = class(len);
        self.nodes[node as usize].free = false;
        self.free -= len;
        if previous == NONE {
            self.heads[first][second] = next;
        } else {
            self.nodes[previous as usize].next = next;
        }
        if next != NONE {
            self.nodes[next as usize].previous = previous;
        }
        if self.heads[first][second] == NONE {
            self.second[first] &= !(1 << second);
            if self.second[first] == 0 {
                self.first &= !(1 << first);
            }
        }
    }
}

/// The list in which a piece of `len` units hangs.
fn class(len: usize) -> (usize, usize) {
    debug_assert!(len > 0, "no piece is empty");
    if len < SECOND {
        return (0, len);
    }
    let log = len.ilog2();
    ((log - SECOND_BITS + 1) as usize, (len >> (log - SECOND_BITS)) & (SECOND - 1))
}

/// The smallest length whose list holds only pieces of at least `len` units.
fn round_up(len: usize) -> Option<usize> {
    if len < SECOND {
        return Some(len);
    }
    let step = 1_usize << (len.ilog2() - SECOND_BITS);
    len.checked_add(step - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    /// Rounds of a property: few under miri, which runs these tests thousands of times slower.
    fn config() -> ProptestConfig {
        let cases = if cfg!(miri) { 4 } else { 256 * fulmen_testbed::by_tier(1, 10, 50) };
        ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
    }

    /// Everything that the books promise among themselves.
    fn check(tlsf: &Tlsf) {
        let (mut free, mut seen) = (0, 0);
        for first in 0..FIRST {
            for second in 0..SECOND {
                let head = tlsf.heads[first][second];
                assert_eq!(tlsf.second[first] & (1 << second) != 0, head != NONE, "bitmap and list agree");
                let (mut at, mut previous) = (head, NONE);
                while at != NONE {
                    let node = tlsf.nodes[at as usize];
                    assert!(node.free);
                    assert_eq!(node.previous, previous);
                    assert_eq!(class(node.len), (first, second));
                    for neighbour in [node.before, node.after] {
                        assert!(
                            neighbour == NONE || !tlsf.nodes[neighbour as usize].free,
                            "free neighbours are joined"
                        );
                    }
                    free += node.len;
                    seen += 1;
                    (previous, at) = (at, node.next);
                }
            }
            assert_eq!(tlsf.first & (1 << first) != 0, tlsf.second[first] != 0);
        }
        assert_eq!(tlsf.free(), free);
        assert_eq!(
            tlsf.nodes.iter().enumerate().filter(|(at, node)| node.free && !tlsf.spare.contains(&(*at as u32))).count(),
            seen
        );
    }

    proptest! {
        #![proptest_config(config())]

        #[test]
        fn a_larger_class_holds_larger_pieces_only(len in prop_oneof![1_usize..5000, any::<usize>()], other in prop_oneof![1_usize..5000, any::<usize>()]) {
            let (len, other) = (len.max(1), other.max(1));
            // Classes are ordered as lengths are.
            prop_assert!((len <= other) || class(len) >= class(other));
            // Whatever hangs in the list of the rounded size, or above, fits.
            if let Some(rounded) = round_up(len) {
                prop_assert!(class(other) < class(rounded) || other >= len);
            }
        }

        #[test]
        fn pieces_are_disjoint_and_come_back_as_whole_spans(
            spans in prop::collection::vec(1_usize..400, 1..5),
            steps in prop::collection::vec((any::<bool>(), 1_usize..120, any::<prop::sample::Index>()), 0..200),
        ) {
            let mut tlsf = Tlsf::new();
            // Spans touch one another, and still must not be joined.
            let mut start = 7;
            let mut ranges = Vec::new();
            for len in &spans {
                tlsf.add(start, *len);
                ranges.push(start..start + len);
                start += len;
            }
            let total: usize = spans.iter().sum();
            let mut out: Vec<(u32, usize, usize)> = Vec::new();
            for (take, len, which) in steps {
                if take {
                    let largest = tlsf.largest();
                    match tlsf.take(len) {
                        Some((node, at)) => {
                            prop_assert!(ranges.iter().any(|range| range.start <= at && at + len <= range.end), "in one span");
                            prop_assert!(out.iter().all(|(_, other, other_len)| at + len <= *other || other + other_len <= at));
                            out.push((node, at, len));
                        }
                        None => prop_assert!(largest < len, "{len} refused, though {largest} are in one piece"),
                    }
                } else if !out.is_empty() {
                    let (node, ..) = out.swap_remove(which.index(out.len()));
                    tlsf.give_back(node);
                }
                check(&tlsf);
                prop_assert_eq!(tlsf.free() + out.iter().map(|(.., len)| len).sum::<usize>(), total);
            }
            for (node, ..) in out {
                tlsf.give_back(node);
            }
            check(&tlsf);
            prop_assert_eq!(tlsf.free(), total);
            prop_assert_eq!(tlsf.nodes.len() - tlsf.spare.len(), spans.len(), "one piece a span, no node lost");
            prop_assert_eq!(tlsf.largest(), *spans.iter().max().unwrap());
        }
    }

    #[test]
    fn the_whole_of_the_largest_span_can_be_taken() {
        for len in [1, 7, 8, 9, 63, 64, 65, (1 << 40) - 1, 1 << 40, usize::MAX - 1, usize::MAX] {
            let mut tlsf = Tlsf::new();
            tlsf.add(0, len);
            assert_eq!(tlsf.take(len).map(|(_, start)| start), Some(0), "{len}");
            assert_eq!((tlsf.free(), tlsf.largest(), tlsf.total()), (0, 0, len));
            assert_eq!(tlsf.take(1), None);
        }
    }

    #[test]
    fn nodes_are_used_again() {
        let mut tlsf = Tlsf::new();
        tlsf.add(0, 1000);
        // Miri takes a minute for a thousand.
        for _ in 0..if cfg!(miri) { 50 } else { 1000 } {
            let pieces: Vec<_> = (0..10).map(|_| tlsf.take(10).unwrap().0).collect();
            pieces.into_iter().for_each(|node| tlsf.give_back(node));
        }
        assert!(tlsf.nodes.len() <= 11, "{} nodes", tlsf.nodes.len());
    }
}
