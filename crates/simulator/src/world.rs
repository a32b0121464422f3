//! Nodes, the links of every pair of them, and what strikes them.

mod strikes;

use std::collections::VecDeque;
use std::time::Duration;

use fulmen_fabric::engine::{Config, Link, ReliableConfig, Rendezvous};
use fulmen_memory::{Exposed, Pool, Region};

use crate::Options;
use crate::book::Book;
use crate::end::End;
use crate::messages::{CANARY, Lane, TAGS, Wrong};
use crate::network::{Carrier, Clock, EndId, Happening, MICRO, MILLI, Time};
use crate::random::{Dice, Digest, mix};
use crate::report::{Broken, Counts, Failure, Told};
use crate::schedule::Choice;
use crate::share::{Keys, Share};

/// Bytes of a node's memory. Pages that are not used cost nothing.
const MEMORY: usize = 8 << 20;
/// How long a link over a carrier that promises nothing waits for an acknowledgement.
const PATIENCE: Time = 60 * MILLI;
/// How long a device sends a frame again before it gives its link up.
const RETRIES: Time = 40 * MILLI;
/// Buffers of a node that were written and are watched for late writes.
const WATCHED: usize = 12;

/// Which of a step's, a frame's or a link's random numbers are drawn. Each draws from dice of its own.
pub(crate) enum Draw {
    Strike = 1,
    Operation = 2,
    Gap = 3,
    Frame = 4,
    Pump = 5,
    Pair = 6,
    Chunk = 7,
    Detection = 8,
}

pub(crate) type Checked<T = ()> = Result<T, Failure>;

/// One node.
pub(crate) struct Node {
    pub alive: bool,
    /// Until then it does nothing.
    pub paused: Time,
    /// What came meanwhile.
    pub inbox: VecDeque<Happening>,
    pub pool: Pool,
    /// Buffers of receives that have ended, which nobody may write any more.
    pub watched: VecDeque<Exposed>,
    /// Where the next memory that peers can map is found.
    pub next_key: u64,
    /// What peers reach. Gone while it is dead.
    pub share: Option<Share>,
}

/// Two nodes and the link between them.
pub(crate) struct Pair {
    pub nodes: [usize; 2],
    pub carrier: Carrier,
    /// Of its newest link. 0: there was none.
    pub generation: u32,
    pub ends: [Option<End>; 2],
    /// Messages by the side that sends them, and by tag.
    pub lanes: [Vec<Lane>; 2],
    /// One-sided operations by the side that starts them.
    pub books: [Book; 2],
    /// Something that can break the link has happened, at this time.
    pub struck: Option<Time>,
    /// Whose end vanished with its node.
    pub killed: [bool; 2],
    /// It was connected, and its books are open.
    pub open: bool,
}

/// Nodes that cannot reach the others.
#[derive(Clone, Copy)]
pub(crate) struct Partition {
    pub number: u64,
    /// By bits.
    pub nodes: u64,
    pub until: Time,
}

/// Everything.
pub(crate) struct World<'a> {
    pub options: &'a Options,
    pub clock: Clock,
    pub nodes: Vec<Node>,
    pub pairs: Vec<Pair>,
    pub partition: Option<Partition>,
    pub step: u64,
    /// No more faults.
    pub calm: bool,
    /// Frames of this step, by sender and receiver.
    pub sent: Vec<u32>,
    pub digest: Digest,
    pub counts: Counts,
    pub story: Vec<Told>,
    pub scratch: Vec<u8>,
    /// Keys of the memory that each node had before it died.
    stale: Vec<Option<u64>>,
}

impl<'a> World<'a> {
    pub(crate) fn new(options: &'a Options) -> World<'a> {
        let count = options.nodes;
        let nodes = (0..count).map(|_| {
            let region = Region::alloc(MEMORY).expect("memory for a node");
            let pool = Pool::new(&region).expect("a pool over a node's memory");
            let share = Some(Share::new(&pool, count, None));
            Node { alive: true, paused: 0, inbox: VecDeque::new(), pool, watched: VecDeque::new(), next_key: 1, share }
        });
        let mut pairs = Vec::new();
        for higher in 1..count {
            for lower in 0..higher {
                let mut dice = Dice::new(options.seed, &[Draw::Pair as u64, lower as u64, higher as u64]);
                let drawn = [Carrier::Unreliable, Carrier::Unreliable, Carrier::Mapped, Carrier::Matched];
                let drawn = drawn[dice.index(drawn.len())];
                pairs.push(Pair {
                    nodes: [lower, higher],
                    carrier: options.carrier.unwrap_or(drawn),
                    generation: 0,
                    ends: [None, None],
                    lanes: [Vec::new(), Vec::new()],
                    books: [Book::new(Keys::default(), &[]), Book::new(Keys::default(), &[])],
                    struck: None,
                    killed: [false; 2],
                    open: false,
                });
            }
        }
        let mut world = World {
            options,
            clock: Clock::default(),
            nodes: nodes.collect(),
            pairs,
            partition: None,
            step: 0,
            calm: false,
            sent: vec![0; count * count],
            digest: Digest::default(),
            counts: Counts::default(),
            story: Vec::new(),
            scratch: Vec::new(),
            stale: vec![None; count],
        };
        for pair in 0..world.pairs.len() {
            world.connect(pair);
        }
        world
    }

    pub(crate) fn node(&self, end: EndId) -> usize {
        self.pairs[end.pair].nodes[end.side]
    }

    /// The end of `from` towards `to`.
    pub(crate) fn end_of(&self, from: usize, to: usize) -> EndId {
        let (lower, higher) = (from.min(to), from.max(to));
        EndId { pair: higher * (higher - 1) / 2 + lower, side: usize::from(from > to) }
    }

    pub(crate) fn end(&mut self, end: EndId) -> Option<&mut End> {
        self.pairs[end.pair].ends[end.side].as_mut()
    }

    pub(crate) fn dice(&self, draw: Draw, place: &[u64]) -> Dice {
        Dice::new(mix(self.options.seed, draw as u64), place)
    }

    pub(crate) fn virtual_time(&self) -> Duration {
        Duration::from_nanos(self.clock.now)
    }

    pub(crate) fn failure(&self, broken: Broken, what: String) -> Failure {
        Failure { broken, what, step: self.step, at: self.virtual_time() }
    }

    /// Completes what is wrong with the messages from one end.
    pub(crate) fn wrong(&self, from: EndId, tag: u64, (broken, what): Wrong) -> Failure {
        let (from, to) = (self.node(from), self.node(from.peer()));
        self.failure(broken, format!("rank {from} to rank {to}, tag {tag}: {what}"))
    }

    /// Whether a choice is to be made.
    pub(crate) fn keeps(&self, choice: Choice) -> bool {
        self.options.keep.as_ref().is_none_or(|keep| keep.has(choice))
    }

    /// Notes a choice that had an effect, on these ranks.
    pub(crate) fn tell(&mut self, choice: Choice, ranks: &[usize], what: impl FnOnce() -> String) {
        if self.options.story {
            let ranks = ranks.iter().fold(0, |ranks, rank| ranks | 1 << rank);
            self.story.push(Told { choice, ranks, what: what() });
        }
    }

    /// Whether two nodes cannot reach one another.
    pub(crate) fn apart(&self, one: usize, other: usize) -> Option<Partition> {
        self.partition.filter(|partition| (partition.nodes >> one ^ partition.nodes >> other) & 1 == 1)
    }

    pub(crate) fn take(&self, node: usize, len: usize) -> Checked<Exposed> {
        let block = self.nodes[node].pool.take(len);
        let block = block.map_err(|error| self.failure(Broken::Release, format!("rank {node}: {error}")))?;
        Ok(block.into_exposed())
    }

    /// A link between two nodes that have none.
    fn connect(&mut self, index: usize) {
        let options = self.options;
        let pair = &mut self.pairs[index];
        let alive = pair.nodes.iter().all(|node| self.nodes[*node].alive);
        if pair.open || !alive {
            return;
        }
        if let Some(partition) = self.apart(self.pairs[index].nodes[0], self.pairs[index].nodes[1]) {
            self.clock.plan(partition.until + MILLI, Happening::Connect { pair: index });
            return;
        }
        let pair = &mut self.pairs[index];
        pair.generation += 1;
        let rendezvous = if pair.carrier == Carrier::Mapped { Rendezvous::Mapped } else { Rendezvous::Matched };
        let reliable = (pair.carrier == Carrier::Unreliable).then(|| ReliableConfig {
            window: 16,
            generation: pair.generation,
            rto: Duration::from_micros(500),
            rto_most: Duration::from_millis(4),
            ack_delay: Duration::from_micros(100),
            patience: Duration::from_nanos(PATIENCE),
            #[cfg(feature = "planted-bugs")]
            planted: options.planted,
        });
        let config = Config {
            frame: 256,
            long: None,
            credits: 16,
            unexpected: 2000,
            rendezvous,
            verify: false,
            #[cfg(feature = "planted-bugs")]
            planted: options.planted,
        };
        for (side, end) in pair.ends.iter_mut().enumerate() {
            let (own, peer) = (pair.nodes[side], pair.nodes[1 - side]);
            let share = |node: usize| self.nodes[node].share.as_ref().expect("a live node has shared memory");
            *end = Some(End::new(Link::with_exports(config, share(own).exports.clone()), reliable));
            pair.books[side] = Book::new(share(peer).keys, share(peer).shadow_area(own));
            let salt =
                |tag| mix(mix(options.seed, index as u64), u64::from(pair.generation) << 8 | tag << 1 | side as u64);
            pair.lanes[side] = (0..TAGS).map(|tag| Lane::new(salt(tag), tag)).collect();
        }
        // A node that does nothing lets its newest links wait as well.
        let paused = pair.nodes.iter().map(|node| self.nodes[*node].paused).max();
        (pair.struck, pair.killed, pair.open) = (paused.filter(|until| *until > 0), [false; 2], true);
        self.digest.add(&[1, self.clock.now, index as u64, u64::from(self.pairs[index].generation)]);
    }

    /// One end of a link is over, for a reason that is known.
    pub(crate) fn sever(&mut self, end: EndId) -> Checked {
        let Some(own) = self.end(end) else { return Ok(()) };
        own.sever();
        self.close_book(end);
        self.collect(end)?;
        let own = self.pairs[end.pair].ends[end.side].take().expect("it was there");
        if let Some(live) = own.live.first() {
            return Err(self.failure(Broken::Hang, format!("{:?} outlives its severed link", live.what)));
        }
        if own.link.unfinished() > 0 {
            return Err(self.failure(Broken::Hang, format!("{} operations outlive their link", own.link.unfinished())));
        }
        self.digest.add(&[2, self.clock.now, end.pair as u64, end.side as u64]);
        self.after(end)
    }

    /// An end serves its peer no more.
    fn close_book(&mut self, end: EndId) {
        let (node, peer) = (self.node(end), self.node(end.peer()));
        if let Some(share) = &self.nodes[node].share {
            self.pairs[end.pair].books[end.peer().side].close(share.shadow_area(peer));
        }
    }

    /// An end is gone: its peer learns of it, or the books of the link are closed.
    fn after(&mut self, end: EndId) -> Checked {
        let generation = self.pairs[end.pair].generation;
        let (own, other) = (self.node(end), self.node(end.peer()));
        let mut dice = self.dice(Draw::Detection, &[end.pair as u64, u64::from(generation), end.side as u64]);
        let mut at = self.clock.now + 20 * MICRO + dice.below(MILLI);
        if self.pairs[end.pair].ends[end.peer().side].is_some() {
            if let Some(partition) = self.apart(own, other) {
                at = partition.until + dice.below(MILLI);
            }
            self.clock.plan(at, Happening::Lost { end: end.peer(), generation });
            return Ok(());
        }
        let pair = &mut self.pairs[end.pair];
        pair.open = false;
        let pair = &self.pairs[end.pair];
        for side in 0..2 {
            for (tag, lane) in pair.lanes[side].iter().enumerate() {
                let checked = lane.over(!pair.killed[1 - side]);
                checked.map_err(|wrong| self.wrong(EndId { pair: end.pair, side }, tag as u64, wrong))?;
            }
        }
        self.clock.plan(at, Happening::Connect { pair: end.pair });
        Ok(())
    }

    /// Lets time go on.
    pub(crate) fn advance(&mut self, until: Time) -> Checked {
        while let Some(happening) = self.clock.next(until) {
            self.happen(happening)?;
        }
        Ok(())
    }

    fn happen(&mut self, happening: Happening) -> Checked {
        let end = match &happening {
            Happening::Frame { to: end, .. }
            | Happening::Chunk { to: end, .. }
            | Happening::ChunkSent { end, .. }
            | Happening::Pump { end, .. }
            | Happening::Lost { end, .. } => *end,
            Happening::Connect { pair } => {
                self.connect(*pair);
                return Ok(());
            }
            Happening::Wake { node } => {
                for happening in std::mem::take(&mut self.nodes[*node].inbox) {
                    self.happen(happening)?;
                }
                return Ok(());
            }
            Happening::Heal { partition } => {
                self.partition = self.partition.filter(|now| now.number != *partition);
                return Ok(());
            }
        };
        let node = self.node(end);
        if !self.nodes[node].alive {
            return Ok(());
        }
        if self.nodes[node].paused > self.clock.now {
            self.nodes[node].inbox.push_back(happening);
            return Ok(());
        }
        let current = self.pairs[end.pair].generation;
        match happening {
            Happening::Frame { generation, bytes, .. } => self.frame_arrives(end, generation, bytes),
            // A device knows the queue pairs of an old link no more.
            Happening::Chunk { generation, bytes, .. } if generation == current => self.chunk_arrives(end, &bytes),
            Happening::ChunkSent { generation, .. } if generation == current => {
                if let Some(own) = self.end(end) {
                    own.chunk_sent();
                    self.pump_soon(end, 0);
                }
                Ok(())
            }
            Happening::Pump { generation, .. } if generation == current => self.pump(end),
            Happening::Lost { generation, .. } if generation == current => self.sever(end),
            _ => Ok(()),
        }
    }

    /// Why a link over a carrier that promises nothing may have been given up.
    pub(crate) fn may_be_dead(&self, pair: usize) -> bool {
        let faults = &self.options.faults;
        let struck = self.pairs[pair].struck.is_some_and(|at| at + 3 * PATIENCE >= self.clock.now);
        // So many lost frames in a row explain it by themselves.
        struck || (faults.drop + faults.corrupt + faults.reorder > 0.2)
    }

    /// Watches the buffer of a receive that has ended: nobody may write it any more.
    pub(crate) fn watch(&mut self, node: usize, memory: Exposed) -> Checked {
        memory.fill(0..memory.len(), CANARY);
        self.nodes[node].watched.push_back(memory);
        if self.nodes[node].watched.len() > WATCHED { self.unwatch(node) } else { Ok(()) }
    }

    fn unwatch(&mut self, node: usize) -> Checked {
        let Some(memory) = self.nodes[node].watched.pop_front() else { return Ok(()) };
        self.scratch.resize(memory.len(), 0);
        memory.read(0, &mut self.scratch);
        if self.scratch.iter().any(|byte| *byte != CANARY) {
            let what = format!("rank {node}: a buffer was written after its operation had ended");
            return Err(self.failure(Broken::Release, what));
        }
        self.release(node, memory)
    }

    /// The memory of an operation that has ended: nobody else may hold it.
    pub(crate) fn release(&self, node: usize, memory: Exposed) -> Checked {
        if memory.into_block().is_err() {
            let what = format!("rank {node}: memory is held after its operation has ended");
            return Err(self.failure(Broken::Release, what));
        }
        Ok(())
    }

    /// After the last step: all faults stop, and everything comes to its end.
    pub(crate) fn drain(&mut self) -> Checked {
        self.calm = true;
        self.settle()?;
        // What was given up leaves messages of unknown number behind: some rounds may be needed.
        let mut rounds = 0;
        while self.ask_for_the_rest()? && rounds < 100 {
            self.settle()?;
            rounds += 1;
        }
        self.give_up_receives()?;
        self.settle()?;
        for index in 0..self.pairs.len() {
            let pair = &self.pairs[index];
            let nodes = pair.nodes;
            if nodes.iter().any(|node| !self.nodes[*node].alive) {
                continue;
            }
            if !pair.open {
                return Err(
                    self.failure(Broken::Hang, format!("rank {} and rank {} do not connect", nodes[0], nodes[1]))
                );
            }
            for side in 0..2 {
                let from = EndId { pair: index, side };
                for (tag, lane) in self.pairs[index].lanes[side].iter().enumerate() {
                    lane.at_rest().map_err(|wrong| self.wrong(from, tag as u64, wrong))?;
                }
                self.end(from).expect("an open pair has both ends").link.close();
                self.pump_soon(from, 0);
            }
        }
        self.settle()?;
        for index in 0..self.pairs.len() {
            for side in 0..2 {
                let Some(end) = self.pairs[index].ends[side].take() else { continue };
                let node = self.pairs[index].nodes[side];
                if !end.link.peer_left() || end.link.unfinished() > 0 {
                    let (left, open) = (end.link.peer_left(), end.link.unfinished());
                    let what =
                        format!("rank {node}: a closed link does not end (peer left: {left}, operations: {open})");
                    return Err(self.failure(Broken::Hang, what));
                }
            }
        }
        for node in 0..self.nodes.len() {
            while !self.nodes[node].watched.is_empty() {
                self.unwatch(node)?;
            }
            self.inspect_all(node)?;
            self.nodes[node].share = None;
            let blocks = self.nodes[node].pool.stats().blocks;
            if blocks > 0 {
                return Err(self.failure(Broken::Release, format!("rank {node}: {blocks} buffers are held at the end")));
            }
        }
        Ok(())
    }

    /// Lets everything happen that happens by itself.
    fn settle(&mut self) -> Checked {
        const LONG: Time = 20_000 * MILLI;
        let until = self.clock.now + LONG;
        self.advance(until)?;
        self.clock.now = until;
        Ok(())
    }
}
