//! Memory that another rank shares.

use std::fmt;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fulmen_memory::Exposed;

use super::table::{self, Area};
use super::{Batch, RemoteKey, check_word};
use crate::driver::device::DeviceKey;
use crate::engine::{Atomic, Rights};
use crate::map::MAP_TIMEOUT;
use crate::{Fabric, FabricError, OpName, Operation, clock};

pub(super) const PUT: OpName = "put";
pub(super) const GET: OpName = "get";
pub(super) const FETCH_ADD: OpName = "fetch_add";
pub(super) const COMPARE_SWAP: OpName = "compare_swap";

/// Memory that a rank shares, to be worked on from here. See [`Fabric::remote`].
///
/// All operations end within their timeout with what they did or with an error: [`FabricError::NoSuchKey`] if the share has
/// ended, [`FabricError::OutOfBounds`], [`FabricError::NotPermitted`] and [`FabricError::Misaligned`], after which nothing is
/// changed (but see [`Remote::put_counted`]); [`FabricError::PeerLost`] and [`FabricError::TimedOut`], after which an operation may have been done or not.
pub struct Remote {
    pub(super) fabric: Fabric,
    pub(super) rank: u32,
    pub(super) len: u64,
    pub(super) rights: Rights,
    pub(super) tag: u64,
    /// Where the owner's device that leads here does something with it.
    pub(super) device: Option<DeviceKey>,
    pub(super) path: Path,
}

/// How operations get there.
pub(super) enum Path {
    /// By this rank's own instructions.
    Mapped(Mapped),
    /// Over the link to its owner.
    Link,
}

/// Shared memory of a rank, mapped here.
pub(super) struct Mapped {
    /// The owner's.
    area: Area,
    slot: usize,
    tag: u64,
    memory: Exposed,
    /// How hazards name it.
    name: u64,
    /// The owner sees to the fences.
    light: bool,
}

impl Remote {
    pub(super) fn open(fabric: &Fabric, rank: u32, key: &RemoteKey) -> Result<Remote, FabricError> {
        const OP: OpName = "remote";
        fabric.check_one_sided(OP, rank)?;
        let onesided = &fabric.inner.onesided;
        let unknown = FabricError::NoSuchKey { op: OP, rank };
        if key.generation != fabric.generation() || key.rank != rank || key.slot as usize >= table::SLOTS {
            return Err(unknown);
        }
        let (fabric, tag) = (fabric.clone(), key.tag);
        let Some(area) = onesided.area(rank) else {
            // The owner looks at the rest.
            let (len, rights) = (key.len, key.rights());
            let asked = fabric.inner.lanes.lock(rank).and_then(|mut lane| Some(lane.wire.rdma()?.there()));
            let device = key.devices.iter().copied().find(|device| Some(device.number()) == asked);
            return Ok(Remote { fabric, rank, len, rights, tag, device, path: Path::Link });
        };
        let Some(export) = area.line(key.slot as usize).read(tag) else { return Err(unknown) };
        let (offset, len, rights) = (export.offset, export.len, Rights::from_bits_truncate(export.rights));
        let memory = if rank == fabric.rank() {
            onesided.memory(key.slot, tag).ok_or(unknown)?
        } else if export.region == 0 {
            return Ok(Remote { fabric, rank, len, rights, tag, device: None, path: Path::Link });
        } else {
            let neighbours = fabric.inner.neighbours.as_ref().ok_or(FabricError::NoWindows { op: OP })?;
            let region = neighbours.borrow(OP, rank, export.region, MAP_TIMEOUT)?;
            let inside = offset.checked_add(len).filter(|end| *end <= region.len() as u64);
            let end =
                inside.ok_or(FabricError::OutOfBounds { op: OP, rank, offset, len, region: region.len() as u64 })?;
            region.slice(offset as usize..end as usize)
        };
        let mapped = Mapped {
            light: onesided.trusts_fences_of(area),
            area: area.clone(),
            slot: key.slot as usize,
            tag,
            memory,
            name: table::name(rank, key.slot as usize),
        };
        Ok(Remote { fabric: fabric.clone(), rank, len, rights, tag, device: None, path: Path::Mapped(mapped) })
    }

    /// The rank whose memory it is.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Its bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Writes `data` at `offset`.
    ///
    /// # Errors
    /// See [`Remote`].
    #[inline]
    pub fn put(&self, offset: u64, data: &Exposed, timeout: Duration) -> Result<(), FabricError> {
        self.check(PUT, Rights::WRITE, offset, data.len())?;
        match &self.path {
            Path::Mapped(mapped) => {
                self.on_mapped(PUT, mapped, || data.copy_to(0, &mapped.memory, offset as usize, data.len()))
            }
            Path::Link => self.link_put(offset, data, None, timeout),
        }
    }

    /// Writes plain bytes at `offset`.
    ///
    /// # Errors
    /// See [`Remote`].
    #[inline]
    pub fn put_bytes(&self, offset: u64, data: &[u8], timeout: Duration) -> Result<(), FabricError> {
        self.check(PUT, Rights::WRITE, offset, data.len())?;
        match &self.path {
            Path::Mapped(mapped) => self.on_mapped(PUT, mapped, || mapped.memory.write(offset as usize, data)),
            Path::Link => self.link_put_bytes(offset, data, timeout),
        }
    }

    /// Reads as many bytes as `into` has, from `offset` on.
    ///
    /// # Errors
    /// See [`Remote`].
    #[inline]
    pub fn get(&self, offset: u64, into: &Exposed, timeout: Duration) -> Result<(), FabricError> {
        self.check(GET, Rights::READ, offset, into.len())?;
        match &self.path {
            Path::Mapped(mapped) => {
                self.on_mapped(GET, mapped, || mapped.memory.copy_to(offset as usize, into, 0, into.len()))
            }
            Path::Link => self.link_get(offset, into, timeout),
        }
    }

    /// Reads into plain memory. After an error, some of it may have been written.
    ///
    /// # Errors
    /// See [`Remote`].
    #[inline]
    pub fn get_bytes(&self, offset: u64, into: &mut [u8], timeout: Duration) -> Result<(), FabricError> {
        self.check(GET, Rights::READ, offset, into.len())?;
        match &self.path {
            Path::Mapped(mapped) => self.on_mapped(GET, mapped, || mapped.memory.read(offset as usize, into)),
            Path::Link => self.link_get_bytes(offset, into, timeout),
        }
    }

    /// Adds to the 64-bit word at `offset`, wrapping, and returns what was there before.
    ///
    /// # Errors
    /// See [`Remote`].
    #[inline]
    pub fn fetch_add(&self, offset: u64, add: u64, timeout: Duration) -> Result<u64, FabricError> {
        self.check(FETCH_ADD, Rights::ATOMIC, offset, 8)?;
        match &self.path {
            Path::Mapped(mapped) => mapped.fetch_add(self, FETCH_ADD, offset, add),
            Path::Link => self.link_atomic(FETCH_ADD, offset, Atomic::FetchAdd(add), timeout),
        }
    }

    /// Replaces the 64-bit word at `offset` by `new` if it is `expect`, and returns what was there before.
    ///
    /// # Errors
    /// See [`Remote`].
    #[inline]
    pub fn compare_swap(&self, offset: u64, expect: u64, new: u64, timeout: Duration) -> Result<u64, FabricError> {
        self.check(COMPARE_SWAP, Rights::ATOMIC, offset, 8)?;
        match &self.path {
            Path::Mapped(mapped) => mapped.compare_swap(self, offset, expect, new),
            Path::Link => self.link_atomic(COMPARE_SWAP, offset, Atomic::CompareSwap { expect, new }, timeout),
        }
    }

    /// Writes `data` at `offset`, and when all of it has landed, adds to the 64-bit word at an offset of `counter`, which
    /// is memory of the same rank, and wakes the owner if it [waits](super::Shared::wait_counter) for that.
    ///
    /// # Errors
    /// See [`Remote`]; [`FabricError::NoSuchKey`] also for a counter of another rank. Where the owner refuses the counter
    /// alone, because its share has just ended, the bytes may have been written: devices write before they count.
    #[inline]
    pub fn put_counted(
        &self,
        offset: u64,
        data: &Exposed,
        counter: (&Remote, u64, u64),
        timeout: Duration,
    ) -> Result<(), FabricError> {
        let (remote, at, add) = counter;
        self.check(PUT, Rights::WRITE, offset, data.len())?;
        remote.check_counter(self.rank, at)?;
        match (&self.path, &remote.path) {
            (Path::Link, Path::Link) => self.link_put(offset, data, Some(counter), timeout),
            (Path::Mapped(_), Path::Mapped(counting)) => {
                // Nothing is written if it cannot be counted.
                remote.on_mapped(PUT, counting, || ())?;
                self.put(offset, data, timeout)?;
                counting.fetch_add(remote, PUT, at, add).map(drop)
            }
            // One of them cannot be mapped.
            _ => {
                let until = clock::after(timeout);
                self.put(offset, data, timeout)?;
                remote.fetch_add(at, add, clock::until(until)).map(drop)
            }
        }
    }

    /// Starts to put. The handle owns the memory until the operation has ended, and then gives the number of bytes.
    ///
    /// # Errors
    /// See [`Remote`]; what happens later, the handle tells.
    pub fn start_put(&self, offset: u64, data: &Exposed) -> Result<Operation, FabricError> {
        if let Path::Link = self.path {
            self.check(PUT, Rights::WRITE, offset, data.len())?;
            return self.link_start_put(offset, data, None);
        }
        self.put(offset, data, Duration::ZERO)?;
        Ok(self.ended(PUT, data.len() as u64))
    }

    /// Starts to get. As [`Remote::start_put`].
    ///
    /// # Errors
    /// See [`Remote`]; what happens later, the handle tells.
    pub fn start_get(&self, offset: u64, into: &Exposed) -> Result<Operation, FabricError> {
        if let Path::Link = self.path {
            self.check(GET, Rights::READ, offset, into.len())?;
            return self.link_start_get(offset, into);
        }
        self.get(offset, into, Duration::ZERO)?;
        Ok(self.ended(GET, into.len() as u64))
    }

    /// Starts to add to a word. The handle then gives what was there before.
    ///
    /// # Errors
    /// See [`Remote`]; what happens later, the handle tells.
    pub fn start_fetch_add(&self, offset: u64, add: u64) -> Result<Operation, FabricError> {
        if let Path::Link = self.path {
            self.check(FETCH_ADD, Rights::ATOMIC, offset, 8)?;
            return self.link_start_atomic(FETCH_ADD, offset, Atomic::FetchAdd(add));
        }
        let old = self.fetch_add(offset, add, Duration::ZERO)?;
        Ok(self.ended(FETCH_ADD, old))
    }

    /// Starts to compare and swap a word. The handle then gives what was there before.
    ///
    /// # Errors
    /// See [`Remote`]; what happens later, the handle tells.
    pub fn start_compare_swap(&self, offset: u64, expect: u64, new: u64) -> Result<Operation, FabricError> {
        if let Path::Link = self.path {
            self.check(COMPARE_SWAP, Rights::ATOMIC, offset, 8)?;
            return self.link_start_atomic(COMPARE_SWAP, offset, Atomic::CompareSwap { expect, new });
        }
        let old = self.compare_swap(offset, expect, new, Duration::ZERO)?;
        Ok(self.ended(COMPARE_SWAP, old))
    }

    /// Starts to put and count. As [`Remote::start_put`]. Where only one of both is mapped here, it waits for the put.
    ///
    /// # Errors
    /// See [`Remote::put_counted`]; what happens later, the handle tells.
    pub fn start_put_counted(
        &self,
        offset: u64,
        data: &Exposed,
        counter: (&Remote, u64, u64),
    ) -> Result<Operation, FabricError> {
        if let (Path::Link, Path::Link) = (&self.path, &counter.0.path) {
            self.check(PUT, Rights::WRITE, offset, data.len())?;
            counter.0.check_counter(self.rank, counter.1)?;
            return self.link_start_put(offset, data, Some(counter));
        }
        self.put_counted(offset, data, counter, self.fabric.timeout())?;
        Ok(self.ended(PUT, data.len() as u64))
    }

    /// Collects small operations, to be posted together.
    #[must_use]
    pub fn batch(&self) -> Batch<'_> {
        Batch::new(self)
    }

    fn ended(&self, name: OpName, value: u64) -> Operation {
        Operation::ended(&self.fabric, self.rank, name, value)
    }

    /// What can be refused without looking at the owner's tables.
    #[inline]
    pub(super) fn check(&self, op: OpName, need: Rights, offset: u64, len: usize) -> Result<(), FabricError> {
        let len = len as u64;
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(FabricError::OutOfBounds { op, rank: self.rank, offset, len, region: self.len });
        }
        if !self.rights.contains(need) {
            return Err(FabricError::NotPermitted { op, rank: self.rank, need });
        }
        self.fabric.check_alive(op, self.rank)
    }

    /// As a counter of a put to this rank.
    pub(super) fn check_counter(&self, rank: u32, at: u64) -> Result<(), FabricError> {
        if self.rank != rank {
            return Err(FabricError::NoSuchKey { op: PUT, rank });
        }
        self.check(PUT, Rights::ATOMIC, at, 8)?;
        match &self.path {
            Path::Mapped(mapped) => check_word(PUT, rank, &mapped.memory, at),
            Path::Link => Ok(()),
        }
    }

    /// Works on mapped memory, if the owner's word still stands.
    #[inline]
    fn on_mapped<T>(&self, op: OpName, mapped: &Mapped, work: impl FnOnce() -> T) -> Result<T, FabricError> {
        let _announced = self.fabric.inner.onesided.hazards.announce(mapped.name, mapped.light);
        if !mapped.area.line(mapped.slot).stands(mapped.tag) {
            return Err(FabricError::NoSuchKey { op, rank: self.rank });
        }
        Ok(work())
    }
}

impl Mapped {
    #[inline]
    fn fetch_add(&self, remote: &Remote, op: OpName, offset: u64, add: u64) -> Result<u64, FabricError> {
        check_word(op, remote.rank, &self.memory, offset)?;
        let word = self.memory.atomic_u64(offset as usize);
        let old = remote.on_mapped(op, self, || word.fetch_add(add, Ordering::SeqCst))?;
        self.tell(remote);
        Ok(old)
    }

    #[inline]
    fn compare_swap(&self, remote: &Remote, offset: u64, expect: u64, new: u64) -> Result<u64, FabricError> {
        check_word(COMPARE_SWAP, remote.rank, &self.memory, offset)?;
        let word = self.memory.atomic_u64(offset as usize);
        let swap = || word.compare_exchange(expect, new, Ordering::SeqCst, Ordering::SeqCst);
        let old = remote.on_mapped(COMPARE_SWAP, self, swap)?.unwrap_or_else(|found| found);
        self.tell(remote);
        Ok(old)
    }

    /// Wakes the owner if it waits for one of its words: they are changed and looked at in one order for all.
    #[inline]
    fn tell(&self, remote: &Remote) {
        if self.area.line(self.slot).listeners().load(Ordering::SeqCst) != 0 {
            remote.fabric.wake(remote.rank);
        }
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote")
            .field("rank", &self.rank)
            .field("len", &self.len)
            .field("rights", &self.rights)
            .finish_non_exhaustive()
    }
}
