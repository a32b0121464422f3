//! A two-level segregated-fit allocator of abstract units, whose books are an array of nodes.
//!
//! Free pieces hang in lists by size: a first level by powers of two, a second by eighths between them. Bitmaps find the
//! first list that surely fits, so that taking and giving back are O(1) whatever the history. Neighbours that are free
//! are joined at once, so that everything that comes back is one piece again.

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
        if let Some((first, second)) = self.list_at_least(class(round_up(len)?)) {
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
