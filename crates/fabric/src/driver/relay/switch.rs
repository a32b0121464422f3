use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Mesh, ROOM};
use crate::Loss;
use crate::driver::Broken;
use crate::engine::{Carried, Link};
use crate::liveness::Life;
use crate::topology::{Graph, Paths};

/// Frames of others that a link is given at a time: what a dead neighbour takes with it comes again only after a while.
const BATCH: usize = 16;

/// What a rank passed on for others, or has to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Relayed {
    /// Frames of other ranks that this one passed on.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Frames that were dropped, since no path was left or their flow had no room: they come again if they are missing.
    pub dropped: u64,
    /// Bytes of frames that are on their way through this rank now, its own among them.
    pub held: u64,
    /// The most that there were.
    pub most_held: u64,
    /// The most that there can be.
    pub bound: u64,
}

/// Takes frames between links: see the [module](super). Its lock is taken inside those of lanes, and none of theirs inside
/// it.
#[derive(Debug)]
pub(crate) struct Switch {
    rank: u32,
    longest: usize,
    /// By rank: whether a device leads there.
    near: Vec<bool>,
    /// Frames that wait for a lane, by rank: to be looked at without the lock.
    waiting: Vec<AtomicUsize>,
    /// The losses that the paths go by.
    losses: AtomicU32,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    graph: Graph,
    /// By rank, whether it passes nothing on any more, and why.
    gone: Vec<Option<String>>,
    /// The paths at the start, and now.
    first: Paths,
    paths: Paths,
    /// The pairs that talk over this rank.
    over: Vec<(u32, u32)>,
    /// By rank: frames that its lane is to take: of neighbours, to be carried; of others, those that have come from there.
    queues: Vec<VecDeque<Carried>>,
    /// By source and destination: frames in queues.
    flows: Vec<Vec<u32>>,
    /// Whether a neighbour has said that it talks no more.
    finished: Vec<bool>,
    spare: Vec<Vec<u8>>,
    relayed: Relayed,
}

impl Switch {
    pub(crate) fn new(rank: u32, mesh: &Mesh) -> Switch {
        let size = mesh.graph.size();
        let paths = Paths::new(&mesh.graph);
        let over = paths.over(rank);
        let own = 2 * (0..size).filter(|peer| *peer != rank && !mesh.graph.is_joined(rank, *peer)).count();
        let flows = over.len() + own;
        let bound = flows as u64 * u64::from(ROOM) * mesh.longest as u64;
        let state = State {
            graph: mesh.graph.clone(),
            gone: vec![None; size as usize],
            first: paths.clone(),
            paths,
            over,
            queues: (0..size).map(|_| VecDeque::new()).collect(),
            flows: vec![vec![0; size as usize]; size as usize],
            finished: vec![false; size as usize],
            spare: Vec::new(),
            relayed: Relayed { bound, ..Relayed::default() },
        };
        Switch {
            rank,
            longest: mesh.longest,
            near: (0..size).map(|peer| mesh.graph.is_joined(rank, peer)).collect(),
            waiting: (0..size).map(|_| AtomicUsize::new(0)).collect(),
            losses: AtomicU32::new(0),
            state: Mutex::new(state),
        }
    }

    /// Whether other ranks lie between this one and `peer`.
    pub(crate) fn is_far(&self, peer: u32) -> bool {
        peer != self.rank && self.near.get(peer as usize).is_some_and(|near| !near)
    }

    /// Whether frames wait for the lane to this rank.
    #[inline]
    pub(crate) fn waits(&self, peer: u32) -> bool {
        self.waiting[peer as usize].load(Ordering::Acquire) > 0
    }

    /// The ranks whose lanes have something to take.
    pub(crate) fn waited_for(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.waiting.len() as u32).filter(|peer| self.waits(*peer))
    }

    /// The ranks between this one and `peer`; none if there is no path.
    pub(crate) fn path(&self, peer: u32) -> Option<Vec<u32>> {
        self.lock().paths.between(self.rank, peer)
    }

    pub(crate) fn relayed(&self) -> Relayed {
        self.lock().relayed
    }

    /// Finds other paths if more ranks are lost than were known.
    #[inline]
    pub(crate) fn heed(&self, life: &Life) {
        let count = life.count();
        if self.losses.load(Ordering::Acquire) == count {
            return;
        }
        let mut state = self.lock();
        // One far away that has ended its link to this rank alone, or says goodbye, still passes on.
        let is_gone = |rank: u32, loss: &Loss| !self.is_far(rank) || matches!(loss, Loss::Ended | Loss::Session(_));
        let lost = |rank| life.loss(rank).filter(|loss| is_gone(rank, loss)).map(|loss| loss.to_string());
        let lost = (0..self.near.len() as u32).map(lost).collect();
        state.reroute(self.rank, lost, &self.near);
        self.losses.store(count, Ordering::Release);
        self.count(&state);
    }

    /// Why no path leads to a rank, if none does.
    pub(crate) fn cut_off(&self, peer: u32) -> Option<String> {
        let state = self.lock();
        if state.paths.next(self.rank, peer).is_some() {
            return None;
        }
        let between = state.first.between(self.rank, peer).unwrap_or_default();
        let lost = between.iter().find_map(|rank| Some((rank, state.gone[*rank as usize].as_ref()?)));
        Some(match lost {
            Some((rank, cause)) => {
                format!(
                    "no path leads to rank {peer} any more: rank {rank}, which passed its messages on, is lost ({cause})"
                )
            }
            None => format!("no path leads to rank {peer} any more"),
        })
    }

    /// How many more frames of the flow to `peer` have room here.
    pub(crate) fn room(&self, peer: u32) -> u32 {
        ROOM.saturating_sub(self.lock().flows[self.rank as usize][peer as usize])
    }

    /// Sends a frame of this rank's, in two parts.
    pub(crate) fn send(&self, peer: u32, seal: &[u8], frame: &[u8]) {
        let mut state = self.lock();
        let mut bytes = state.memory();
        bytes.extend_from_slice(seal);
        bytes.extend_from_slice(frame);
        let hops = u8::try_from(self.near.len()).unwrap_or(u8::MAX);
        state.send(self.rank, Carried { source: self.rank as u16, destination: peer as u16, hops, bytes });
        self.count(&state);
    }

    /// Takes what has come from a rank far away: exchanges it for what was taken before.
    pub(crate) fn take(&self, peer: u32, taken: &mut VecDeque<Carried>) {
        if !self.waits(peer) && taken.is_empty() {
            return;
        }
        let mut state = self.lock();
        for frame in taken.drain(..) {
            state.spare.push(frame.bytes);
        }
        std::mem::swap(&mut state.queues[peer as usize], taken);
        for frame in &*taken {
            state.left(frame);
        }
        self.count(&state);
    }

    /// Gives the link to a neighbour what it is to carry.
    pub(crate) fn load(&self, peer: u32, link: &mut Link) {
        if self.is_far(peer) || !self.waits(peer) || link.carrying() >= BATCH {
            return;
        }
        let mut state = self.lock();
        while let Some(memory) = link.spare_carried() {
            state.spare.push(memory);
        }
        while link.carrying() < BATCH {
            let Some(frame) = state.queues[peer as usize].pop_front() else { break };
            state.left(&frame);
            link.carry(frame);
        }
        self.count(&state);
    }

    /// Takes what a neighbour carried here.
    ///
    /// # Errors
    /// It is nothing that a neighbour carries.
    pub(crate) fn unload(&self, peer: u32, link: &mut Link) -> Result<(), Broken> {
        let Some(mut frame) = link.next_carried() else { return Ok(()) };
        let mut state = self.lock();
        loop {
            self.pass(&mut state, peer, frame)?;
            if let Some(memory) = state.spare.pop() {
                link.lend_carried(memory);
            }
            match link.next_carried() {
                Some(next) => frame = next,
                None => break,
            }
        }
        self.count(&state);
        Ok(())
    }

    fn pass(&self, state: &mut State, peer: u32, mut frame: Carried) -> Result<(), Broken> {
        let (source, destination) = (u32::from(frame.source), u32::from(frame.destination));
        let size = self.near.len() as u32;
        let wrong = |what: &str| Err(Broken(format!("rank {peer} carried a frame {what}")));
        if source >= size || destination >= size || source == destination || source == self.rank {
            return wrong("between ranks that do not talk over it");
        }
        if frame.bytes.len() > self.longest {
            return wrong("that is too long");
        }
        if destination == self.rank && !self.is_far(source) {
            // Neighbours have a link of their own: this says that all is said.
            if source != peer || !frame.bytes.is_empty() {
                return wrong("of a neighbour");
            }
            state.finished[peer as usize] = true;
            return Ok(());
        }
        if destination != self.rank {
            // Ranks may take different paths for a moment, until all have heard of a loss.
            let Some(hops) = frame.hops.checked_sub(1) else {
                state.drop(frame);
                return Ok(());
            };
            frame.hops = hops;
            state.relayed.frames += 1;
            state.relayed.bytes += frame.bytes.len() as u64;
        }
        state.send(self.rank, frame);
        Ok(())
    }

    /// Tells all neighbours that this rank talks no more.
    pub(crate) fn finish(&self) {
        let mut state = self.lock();
        for peer in (0..self.near.len()).filter(|peer| self.near[*peer]) {
            let bytes = state.memory();
            let (source, destination) = (self.rank as u16, peer as u16);
            state.queues[peer].push_back(Carried { source, destination, hops: 0, bytes });
            state.flows[self.rank as usize][peer] += 1;
        }
        self.count(&state);
    }

    /// Whether nobody needs this rank any more to talk to others.
    pub(crate) fn may_leave(&self, life: &Life) -> bool {
        let over = {
            let state = self.lock();
            let finished = |rank: u32| state.finished[rank as usize];
            state.over.iter().copied().filter(|(one, other)| !finished(*one) && !finished(*other)).collect::<Vec<_>>()
        };
        over.iter().all(|(one, other)| life.loss(*one).is_some() || life.loss(*other).is_some())
    }

    fn count(&self, state: &State) {
        for (waiting, queue) in self.waiting.iter().zip(&state.queues) {
            waiting.store(queue.len(), Ordering::Release);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn memory(&mut self) -> Vec<u8> {
        let mut memory = self.spare.pop().unwrap_or_default();
        memory.clear();
        memory
    }

    /// A frame has come here, or begins here: it waits for its next lane.
    fn send(&mut self, rank: u32, frame: Carried) {
        let (source, destination) = (u32::from(frame.source), u32::from(frame.destination));
        let next = if destination == rank { Some(source) } else { self.paths.next(rank, destination) };
        let flow = &mut self.flows[source as usize][destination as usize];
        let Some(next) = next.filter(|_| *flow < ROOM) else { return self.drop(frame) };
        *flow += 1;
        self.relayed.held += frame.bytes.len() as u64;
        self.relayed.most_held = self.relayed.most_held.max(self.relayed.held);
        self.queues[next as usize].push_back(frame);
    }

    fn drop(&mut self, frame: Carried) {
        self.relayed.dropped += 1;
        self.spare.push(frame.bytes);
    }

    /// A frame has left its queue.
    fn left(&mut self, frame: &Carried) {
        self.flows[usize::from(frame.source)][usize::from(frame.destination)] -= 1;
        self.relayed.held -= frame.bytes.len() as u64;
    }

    /// Ranks are lost: what waits for them, and is for others, goes another way.
    fn reroute(&mut self, rank: u32, lost: Vec<Option<String>>, near: &[bool]) {
        self.gone = lost;
        let gone = &self.gone;
        self.paths = Paths::new(&self.graph.without(|rank| gone[rank as usize].is_some()));
        self.over = self.paths.over(rank);
        let lost = |(peer, near): (usize, &bool)| (*near && self.gone[peer].is_some()).then_some(peer);
        let lost: Vec<usize> = near.iter().enumerate().filter_map(lost).collect();
        for peer in lost {
            for frame in std::mem::take(&mut self.queues[peer]) {
                self.left(&frame);
                self.send(rank, frame);
            }
        }
    }
}
