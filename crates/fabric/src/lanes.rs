//! The links of a rank, and whoever moves them on.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use fulmen_memory::Exposed;

use crate::driver::{Broken, Parker, Wire};
use crate::engine::{Copy, Into, Lent, Link};
use crate::liveness::Life;
use crate::map::{MAP_TIMEOUT, Neighbours, RegionRef};
use crate::{FabricError, Loss};

/// A link and what carries it.
pub(crate) struct Lane {
    pub(crate) link: Link,
    pub(crate) wire: Box<dyn Wire>,
    /// The losses that were known when this lane was last looked after.
    losses: u32,
}

impl Lane {
    pub(crate) fn new(link: Link, wire: Box<dyn Wire>) -> Lane {
        Lane { link, wire, losses: 0 }
    }

    /// Ends everything with a peer that is lost.
    pub(crate) fn sever(&mut self) {
        self.wire.sever();
        self.link.sever();
    }

    /// Whether frames are still to go out to a peer that may take them.
    fn is_leaving(&self) -> bool {
        !self.link.is_severed() && !self.link.peer_left() && !self.wire.is_idle()
    }
}

/// All lanes of a rank. Held by the fabric and by its progress thread.
pub(crate) struct Lanes {
    /// By rank; none for this one, or where there is nothing that carries messages.
    lanes: Vec<Option<Mutex<Lane>>>,
    pub(crate) life: Arc<Life>,
    pub(crate) neighbours: Option<Arc<Neighbours>>,
    pub(crate) parker: Arc<dyn Parker>,
    /// Threads of the program that wait, and so move everything on.
    pollers: AtomicU32,
}

impl Lanes {
    pub(crate) fn new(
        lanes: Vec<Option<Lane>>,
        life: Arc<Life>,
        neighbours: Option<Arc<Neighbours>>,
        parker: Arc<dyn Parker>,
    ) -> Lanes {
        let lanes = lanes.into_iter().map(|lane| lane.map(Mutex::new)).collect();
        Lanes { lanes, life, neighbours, parker, pollers: AtomicU32::new(0) }
    }

    /// A thread of the program begins to wait.
    #[inline]
    pub(crate) fn enter(&self) {
        self.pollers.fetch_add(1, Ordering::Relaxed);
    }

    /// It has ended to wait.
    #[inline]
    pub(crate) fn leave(&self) {
        self.pollers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether a thread of the program moves everything on.
    pub(crate) fn is_polled(&self) -> bool {
        self.pollers.load(Ordering::Relaxed) > 0
    }

    /// The lane to a rank.
    #[inline]
    pub(crate) fn lock(&self, rank: u32) -> Option<MutexGuard<'_, Lane>> {
        let lane = self.lanes.get(rank as usize)?.as_ref()?;
        Some(lane.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Moves one lane on: true if anything moved. The lane is unlocked while large copies are made.
    #[inline]
    pub(crate) fn pump<'a>(
        &'a self,
        rank: u32,
        mut lane: MutexGuard<'a, Lane>,
        lent: &mut Lent<'_>,
    ) -> (bool, MutexGuard<'a, Lane>) {
        let mut moved = self.pump_frames(rank, &mut lane, lent);
        while let Some(copy) = lane.link.next_copy(lent) {
            drop(lane);
            let (op, copied) = (copy.op, self.copy(rank, copy, lent));
            if let Err(error) = &copied {
                tracing::warn!(rank, %error, "a message could not be copied");
            }
            lane = self.lock(rank).expect("the lane that was unlocked");
            lane.link.copied(op, copied.is_ok());
            self.pump_frames(rank, &mut lane, lent);
            moved = true;
        }
        (moved, lane)
    }

    #[inline]
    fn pump_frames(&self, rank: u32, lane: &mut Lane, lent: &mut Lent<'_>) -> bool {
        if lane.link.is_severed() {
            return false;
        }
        // Looked at before the frames, so that all that came before the loss is taken.
        let losses = self.life.count();
        let moved = match lane.wire.pump(&mut lane.link, lent) {
            Ok(moved) => moved,
            Err(Broken(problem)) => {
                self.life.lose(rank, Loss::Broken(problem));
                lane.sever();
                return true;
            }
        };
        if moved && lane.link.peer_left() {
            self.life.lose(rank, Loss::Left);
        }
        if losses != lane.losses {
            lane.losses = losses;
            if self.life.loss(rank).is_some() {
                lane.sever();
                return true;
            }
        }
        moved
    }

    /// Moves all lanes on that nobody else is at: true if anything moved.
    pub(crate) fn pump_all(&self) -> bool {
        let mut moved = false;
        for (rank, lane) in (0..).zip(&self.lanes) {
            let Some(lane) = lane else { continue };
            let lane = match lane.try_lock() {
                Ok(lane) => lane,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => continue,
            };
            moved |= self.pump(rank, lane, &mut Lent::Nothing).0;
        }
        moved
    }

    /// Operations that have not ended.
    pub(crate) fn unfinished(&self) -> usize {
        self.count(Link::unfinished)
    }

    /// Sends that have not ended.
    pub(crate) fn sending(&self) -> usize {
        self.count(Link::sending)
    }

    fn count(&self, of: impl Fn(&Link) -> usize) -> usize {
        let ranks = 0..self.lanes.len() as u32;
        ranks.filter_map(|rank| self.lock(rank)).map(|lane| of(&lane.link)).sum()
    }

    /// Whether frames are still to go out.
    pub(crate) fn is_leaving(&self) -> bool {
        (0..self.lanes.len() as u32).filter_map(|rank| self.lock(rank)).any(|lane| lane.is_leaving())
    }

    /// Tells all peers that nothing more comes.
    pub(crate) fn close(&self) {
        for rank in 0..self.lanes.len() as u32 {
            if let Some(mut lane) = self.lock(rank) {
                lane.link.close();
            }
        }
    }

    /// Makes the copy of a rendezvous.
    fn copy(&self, rank: u32, copy: Copy, lent: &mut Lent<'_>) -> Result<(), FabricError> {
        const OP: &str = "recv";
        let neighbours = self.neighbours.as_ref().ok_or(FabricError::NoWindows { op: OP })?;
        let at = RegionRef { key: copy.from.key, offset: copy.from.offset, len: copy.len };
        let from: Exposed = neighbours.map(OP, rank, at, MAP_TIMEOUT)?;
        match copy.into {
            Into::Memory(memory) => from.copy_to(0, &memory, 0, from.len()),
            Into::Lent => {
                let bytes = lent.target(copy.op).expect("the copy was given to the thread that lends its target");
                from.read(0, &mut bytes[..from.len()]);
            }
        }
        Ok(())
    }
}
