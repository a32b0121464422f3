//! The memory of another process, copied by the system: `process_vm_readv` and `process_vm_writev`.
//!
//! This is the only place of this crate where memory is named by bare addresses. Those of this process come from
//! [`Exposed`] memory and slices, which keep it; those of the other process are its own to be right about, and the system
//! checks them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fulmen_memory::Exposed;

#[cfg_attr(target_os = "linux", path = "vm/linux.rs")]
#[cfg_attr(not(target_os = "linux"), path = "vm/other.rs")]
mod system;

/// Programs wait for the last bytes of a WRITE to change, so that they are written last.
pub(crate) const LAST: usize = 8;

/// How long nobody else can have a process's number once it was seen to be the process's own. Numbers come again after
/// thousands of others; what takes longer is that this process was stopped, or the other one executed another program.
const PROVEN_FOR: Duration = Duration::from_millis(5);

/// A word in a process's own memory that proves who it is: a number that nobody can guess, and where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Probe {
    pub(crate) addr: u64,
    pub(crate) nonce: u64,
}

/// The word behind this process's [`Probe`], where it stays as long as this lives.
pub(crate) struct Proof(Box<AtomicU64>);

impl Proof {
    pub(crate) fn new(nonce: u64) -> Proof {
        Proof(Box::new(AtomicU64::new(nonce)))
    }

    pub(crate) fn probe(&self) -> Probe {
        let addr = self.0.as_ptr().expose_provenance() as u64;
        Probe { addr, nonce: self.0.load(Ordering::Relaxed) }
    }
}

#[cfg(test)]
impl Proof {
    /// As if this were another process.
    pub(crate) fn forge(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Why the system did not copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A range is not mapped, or not for this.
    Memory,
    /// The process cannot be reached: the system refuses.
    Process,
    /// The process has ended, or executes another program.
    Gone,
}

/// A process whose memory the system copies for this one.
pub(crate) struct Process {
    pid: u32,
    probe: Probe,
    found: Instant,
    /// When it was last seen to be itself: nanoseconds since it was found.
    proven: AtomicU64,
    lost: AtomicBool,
    gone: AtomicBool,
}

impl Process {
    /// Proves that `pid` is the process of `probe`, and that the system lets this one read its memory; or says why not.
    pub(crate) fn find(pid: Option<u32>, probe: Probe) -> Result<Process, String> {
        if probe.addr == 0 {
            return Err("it does not want its memory to be copied by the system".to_owned());
        }
        let Some(pid) = pid else {
            return Err("it is in another namespace of processes, where it has no number here".to_owned());
        };
        let process = Process {
            pid,
            probe,
            found: Instant::now(),
            proven: AtomicU64::new(0),
            lost: AtomicBool::new(false),
            gone: AtomicBool::new(false),
        };
        let mut seen = [0; 8];
        let into = &mut [system::own_bytes_mut(&mut seen)];
        // SAFETY: `seen` is there until the end of this function, and nobody else refers to it meanwhile.
        unsafe { system::read(pid, into, &mut [system::Range::new(probe.addr, 8)]) }
            .map_err(|error| format!("the system refuses it: {error}{}", system::why(&error)))?;
        if u64::from_ne_bytes(seen) != probe.nonce {
            return Err(format!("process {pid} is another one than it says"));
        }
        Ok(process)
    }

    /// Whether it could be reached so far.
    pub(crate) fn is_reached(&self) -> bool {
        !self.lost.load(Ordering::Relaxed)
    }

    /// Whether it was found to be gone.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Copies runs of this process's memory, one after the other, to there. The last bytes are written last.
    pub(crate) fn write(&self, mut from: Runs<'_>, addr: u64) -> Result<(), Fault> {
        if self.age() > self.proven.load(Ordering::Relaxed) + PROVEN_FOR.as_nanos() as u64 {
            // What is written to a wrong process cannot be taken back.
            self.read(self.probe.addr, Runs::new())?;
        }
        let last = from.len.min(LAST);
        let first = from.len - last;
        let mut there = [system::Range::new(addr, first), system::Range::new(addr.wrapping_add(first as u64), last)];
        let there = if first == 0 { &mut there[1..] } else { &mut there[..] };
        // SAFETY: `Runs` refers to memory of this process that is readable as long as it lives.
        self.judge(unsafe { system::write(self.pid, &mut from.ranges, there) })
    }

    /// Copies from there into runs of this process's memory, one after the other. That it is still the same process is
    /// proven by the same call, which looks its memory up once.
    pub(crate) fn read(&self, addr: u64, mut into: Runs<'_>) -> Result<(), Fault> {
        assert!(into.writable, "bytes are read into memory that can be written");
        let mut seen = [0; 8];
        into.ranges.insert(0, system::own_bytes_mut(&mut seen));
        let now = self.age();
        let there = &mut [system::Range::new(self.probe.addr, 8), system::Range::new(addr, into.len)];
        // SAFETY: `Runs` refers to memory of this process that is writable as long as it lives, and to which there are
        // no references; `seen` is there until the end of this function.
        self.judge(unsafe { system::read(self.pid, &mut into.ranges, there) })?;
        if u64::from_ne_bytes(seen) == self.probe.nonce {
            self.proven.store(now, Ordering::Relaxed);
            return Ok(());
        }
        Err(self.lose(Fault::Gone))
    }

    fn age(&self) -> u64 {
        self.found.elapsed().as_nanos() as u64
    }

    fn lose(&self, fault: Fault) -> Fault {
        self.gone.fetch_or(fault == Fault::Gone, Ordering::Relaxed);
        self.lost.store(true, Ordering::Relaxed);
        fault
    }

    fn judge(&self, result: std::io::Result<()>) -> Result<(), Fault> {
        result.map_err(|error| {
            if system::is_about_memory(&error) {
                return Fault::Memory;
            }
            self.lose(if system::is_gone(&error) { Fault::Gone } else { Fault::Process })
        })
    }
}

/// Runs of bytes of this process's memory, which they borrow.
pub(crate) struct Runs<'a> {
    ranges: smallvec::SmallVec<[system::Range; 4]>,
    len: usize,
    writable: bool,
    borrowed: std::marker::PhantomData<&'a Exposed>,
}

impl<'a> Runs<'a> {
    pub(crate) fn new() -> Runs<'a> {
        Runs { ranges: smallvec::SmallVec::new(), len: 0, writable: true, borrowed: std::marker::PhantomData }
    }

    /// Appends `len` bytes from offset `at` of exposed memory.
    pub(crate) fn push(&mut self, memory: &'a Exposed, at: usize, len: usize) {
        let inside = at.checked_add(len).is_some_and(|end| end <= memory.len());
        assert!(inside, "{len} bytes at {at} do not lie in memory of {} bytes", memory.len());
        self.writable &= memory.region().is_writable();
        self.append(memory.addr() as u64 + at as u64, len);
    }

    /// Appends bytes, to be read only.
    pub(crate) fn push_bytes(&mut self, bytes: &'a [u8]) {
        self.writable = false;
        self.append(bytes.as_ptr().expose_provenance() as u64, bytes.len());
    }

    fn append(&mut self, addr: u64, len: usize) {
        if len > 0 {
            self.ranges.push(system::Range::new(addr, len));
            self.len += len;
        }
    }
}

/// Lets processes of this user copy from and to this process's memory where the system's policy asks for leave
/// (Yama, `ptrace_scope` 1). It changes nothing elsewhere.
pub(crate) fn invite() {
    system::invite();
}

/// Whether this process may copy from and to the memory of process `pid`, as soft devices do with memory that cannot be
/// mapped; or why not, for people. Without it such memory is copied twice, through a ring, and its owner's process has to
/// take part.
///
/// # Errors
/// What the system said, and which policy it may be.
pub fn process_vm_check(pid: u32) -> Result<(), String> {
    let mut byte = [0];
    let into = &mut [system::own_bytes_mut(&mut byte)];
    // Nothing is mapped there: who may look is told so, and who may not is told that.
    // SAFETY: `byte` is there until the end of this function.
    match unsafe { system::read(pid, into, &mut [system::Range::new(1, 1)]) } {
        Err(error) if !system::is_about_memory(&error) => Err(format!("{error}{}", system::why(&error))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
