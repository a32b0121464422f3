//! The flight recorder: what this rank did last.
//!
//! Every operation is noted when it begins and when it ends, in a ring in this process's memory (`ring`) that keeps the
//! last 4,096. The first threads have a ring each, where that costs plain stores (`lanes`). What happens rarely (a group
//! formed, a rank lost, a failure) goes into a list of its own, so that no burst of operations pushes it out.
//!
//! The clock is looked at when an operation has to wait (and not for the first fraction of a microsecond of that), goes on by
//! itself, moves much data, or fails, and for each 16th of the others; and by all operations of threads that share a ring.
//! These have the times of their beginning and end to the nanosecond, but that one that had to wait seems to begin with
//! its wait. All others have the time of the system's last tick, and are placed between their neighbours when the record is
//! written (`times`): in the right order, and right to a tick, which is 1 to 10 ms. They are marked: `exact` is `false`.
//!
//! What a rank does by its own instructions on memory that it maps is not recorded: it waits for nobody, and is done sooner
//! than it could be noted.
//!
//! The record is written to a file, for `fulmen trace`, when an operation fails for good, on SIGUSR1, and by
//! [`Recorder::write`]; the first two only into the directory that `FULMEN_TRACE_DIR` names (`dump`). Without the variable
//! nothing is written and no signal is listened to. `FULMEN_RECORD=0` turns the recorder off.

mod dump;
pub mod file;
mod lanes;
mod ring;
mod times;

use std::collections::VecDeque;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fulmen_reach::Ticks;

use crate::{FabricError, Loss};
pub use dump::LISTENER;
use file::{Failure, Header, Line, Note, Operation, Phase, Reason};
use lanes::{KEPT, Lane, Lanes, thread};
use ring::{Begun, Entry, FIELDS};
use times::{Moment, Pace, Span};

/// Of the operations of a thread that are over at once, the clock is looked at for each so-many-th.
const EVERY: u64 = 16;

/// From so many bytes on, an operation lasts far longer than a look at the clock.
const LONG: u64 = 64 << 10;

/// Rare events that are kept.
const NOTES: usize = 256;

/// The longest text of a note, in bytes.
const TEXT: usize = 1024;

/// A wait between two ranks that was given up after less than this was a look, and no failure.
const LOOK: Duration = Duration::from_secs(1);

/// No rank.
const NOBODY: u32 = u32::MAX;

/// What is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names of the operations")]
pub enum Action {
    Barrier,
    AllReduce,
    AllGather,
    ReduceScatter,
    Broadcast,
    Send,
    Recv,
    Put,
    Get,
    FetchAdd,
    CompareSwap,
    PutCounted,
    Batch,
    Flush,
    WaitCounter,
    Reduce,
    Gather,
    Scatter,
    AllToAll,
    Scan,
}

impl Action {
    const ALL: [Action; 20] = [
        Action::Barrier,
        Action::AllReduce,
        Action::AllGather,
        Action::ReduceScatter,
        Action::Broadcast,
        Action::Send,
        Action::Recv,
        Action::Put,
        Action::Get,
        Action::FetchAdd,
        Action::CompareSwap,
        Action::PutCounted,
        Action::Batch,
        Action::Flush,
        Action::WaitCounter,
        Action::Reduce,
        Action::Gather,
        Action::Scatter,
        Action::AllToAll,
        Action::Scan,
    ];

    /// Its name, as errors have it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Action::Barrier => "barrier",
            Action::AllReduce => "all_reduce",
            Action::AllGather => "all_gather",
            Action::ReduceScatter => "reduce_scatter",
            Action::Broadcast => "broadcast",
            Action::Send => "send",
            Action::Recv => "recv",
            Action::Put => "put",
            Action::Get => "get",
            Action::FetchAdd => "fetch_add",
            Action::CompareSwap => "compare_swap",
            Action::PutCounted => "put_counted",
            Action::Batch => "batch",
            Action::Flush => "flush",
            Action::WaitCounter => "wait_counter",
            Action::Reduce => "reduce",
            Action::Gather => "gather",
            Action::Scatter => "scatter",
            Action::AllToAll => "all_to_all",
            Action::Scan => "scan",
        }
    }
}

/// An operation that begins. [`What::of`] makes one between two ranks.
#[derive(Clone, Copy, Debug)]
pub struct What {
    /// The operation.
    pub action: Action,
    /// The group, from 1; 0 for operations between two ranks.
    pub group: u32,
    /// Which call of the group it is; between two ranks, the tag or the offset.
    pub sequence: u64,
    /// The other rank, or the root.
    pub peer: Option<u32>,
    /// Bytes of its data.
    pub bytes: u64,
    /// Whether it goes on by itself, while its thread does other things.
    pub started: bool,
    /// Whether it consists of other operations that are recorded.
    pub composed: bool,
}

impl What {
    /// An operation with another rank. `sequence` is its tag or offset.
    #[inline]
    #[must_use]
    pub fn of(action: Action, peer: u32, sequence: u64, bytes: usize) -> What {
        What { action, group: 0, sequence, peer: Some(peer), bytes: bytes as u64, started: false, composed: false }
    }

    /// The same operation, going on by itself.
    #[inline]
    #[must_use]
    pub fn started(self) -> What {
        What { started: true, ..self }
    }

    /// Whether the clock is looked at in any case. A wait looks for the newest operation of its thread only, which is neither
    /// one that goes on by itself nor one that began others.
    #[inline]
    fn is_stamped(self) -> bool {
        self.started || self.composed || self.bytes >= LONG
    }

    /// In words: operation, flags and peer; thread and group; sequence; bytes.
    #[inline]
    fn pack(self, thread: u32) -> [u64; FIELDS] {
        let peer = self.peer.unwrap_or(NOBODY);
        let what = self.action as u64 | u64::from(self.started) << 8 | u64::from(peer) << 32;
        [what, u64::from(thread) << 32 | u64::from(self.group), self.sequence, self.bytes]
    }
}

/// An operation that was recorded when it began, to be told how it ends.
///
/// Two words, so that it stays in registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "tell the recorder how it ends"]
pub struct Running {
    /// Its place in a ring, below the number of the ring, from 1; 0 for an operation that is not recorded.
    at: u64,
    sum: u64,
}

/// Bits of a place: as many as no process ever begins.
const PLACE_BITS: u32 = 56;

impl Running {
    /// An operation that is not recorded.
    pub const NONE: Running = Running { at: 0, sum: 0 };

    #[inline]
    fn new(lane: u8, begun: Begun) -> Running {
        Running { at: (u64::from(lane) + 1) << PLACE_BITS | begun.place, sum: begun.sum }
    }

    /// The number of the ring, and what it began there.
    #[inline]
    fn begun(self) -> Option<(u8, Begun)> {
        let lane = ((self.at >> PLACE_BITS) as u8).checked_sub(1)?;
        Some((lane, Begun { place: self.at & ((1 << PLACE_BITS) - 1), sum: self.sum }))
    }
}

/// The last operations of a rank. A clone is another handle.
#[derive(Clone)]
pub struct Recorder {
    record: Option<Arc<Record>>,
}

/// Who records.
#[derive(Clone, Debug)]
pub(crate) struct Owner {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) generation: u64,
}

pub(crate) struct Record {
    owner: Owner,
    clock: Ticks,
    began: Moment,
    lanes: Lanes,
    notes: Mutex<Notes>,
    groups: AtomicU32,
    directory: Option<PathBuf>,
}

#[derive(Default)]
struct Notes {
    /// The first failure, which is never pushed out.
    failure: Option<(u64, Failure)>,
    list: VecDeque<(u64, Note)>,
}

impl Recorder {
    /// A recorder that is `on`, or one that does nothing. With a directory, it writes there by itself.
    pub(crate) fn new(owner: Owner, on: bool, directory: Option<PathBuf>) -> Recorder {
        if !on {
            return Recorder { record: None };
        }
        let clock = Ticks::new();
        let record = Arc::new(Record {
            owner,
            clock,
            began: Moment::now(clock),
            lanes: Lanes::default(),
            notes: Mutex::default(),
            groups: AtomicU32::new(0),
            directory,
        });
        if record.directory.is_some() {
            dump::watch(&record);
        }
        Recorder { record: Some(record) }
    }

    /// An operation begins.
    #[inline]
    pub fn begin(&self, what: What) -> Running {
        self.record.as_ref().map_or(Running::NONE, |record| record.begin(what))
    }

    /// It has ended well, or else failed.
    #[inline]
    pub fn end(&self, running: Running, well: bool) {
        self.finish(running, if well { Phase::Done } else { Phase::Failed });
    }

    /// Nobody waits for its end any more.
    #[inline]
    pub fn let_go(&self, running: Running) {
        self.finish(running, Phase::LetGo);
    }

    #[inline]
    fn finish(&self, running: Running, phase: Phase) {
        if let (Some(record), Some((lane, begun))) = (&self.record, running.begun())
            && let Some(ring) = record.lanes.ring(lane)
        {
            ring.end(begun, |begin| {
                let stamped = times::is_stamped(begin) || phase != Phase::Done;
                times::end(phase, stamped.then_some(record.clock))
            });
        }
    }

    /// The operation that this thread is in, if any, was not over at once.
    #[cold]
    pub(crate) fn waits(&self) {
        let Some(record) = &self.record else { return };
        let Lane { ring, alone, .. } = record.lanes.of(thread());
        // In a ring that is shared, all have stamps.
        if alone {
            ring.change_newest(|begin| (!times::is_stamped(begin)).then(|| times::stamped(record.clock)));
        }
    }

    /// An operation between two ranks has ended. One that failed for good is noted, and the record written.
    #[inline]
    pub fn ended<T>(&self, running: Running, outcome: Result<T, FabricError>) -> Result<T, FabricError> {
        self.end(running, outcome.is_ok());
        if let Err(error) = &outcome {
            self.check_fatal(error);
        }
        outcome
    }

    #[cold]
    fn check_fatal(&self, error: &FabricError) {
        let op = match error {
            // Ranks leave when they are done.
            FabricError::PeerLost { cause: Loss::Left, .. } => return,
            FabricError::PeerLost { op, .. } => op,
            FabricError::TimedOut { op, waited, .. } if *waited >= LOOK => op,
            _ => return,
        };
        self.failed(op, 0, &error.to_string());
    }

    /// A group of all ranks was formed: gives its number, from 1, which is the same on all ranks, since they form such groups in the same
    /// order.
    #[must_use]
    pub fn formed_group(&self, size: u32) -> u32 {
        let Some(record) = &self.record else { return 0 };
        let group = record.groups.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        self.note("group", group, None, &format!("formed by {size} ranks"));
        group
    }

    /// A group of these ranks was split off another one, by its call of this number: gives its number, which is the same on all of them,
    /// and all but certainly no other group's.
    #[must_use]
    pub fn split_group(&self, members: &[u32], from: u32, call: u64) -> u32 {
        if self.record.is_none() {
            return 0;
        }
        let words = [u64::from(from), call].into_iter().chain(members.iter().map(|rank| u64::from(*rank)));
        // FNV-1a.
        let digest = words
            .flat_map(u64::to_le_bytes)
            .fold(0xcbf2_9ce4_8422_2325_u64, |digest, byte| (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        let group = (digest >> 32) as u32 | file::SPLIT;
        self.keep(Note {
            members: members.to_vec(),
            ..note("group", group, None, &format!("split off by call {call} of group {from}"))
        });
        group
    }

    /// An operation failed in a way that ends its group (0 for none) or its link. The first time that the rank sees one, and
    /// whenever a group fails, the record is written.
    pub fn failed(&self, op: &str, group: u32, text: &str) {
        let Some(record) = &self.record else { return };
        self.note("failed", group, None, text);
        let first = {
            let mut notes = record.notes();
            let first = notes.failure.is_none();
            if first {
                // The clock's place is taken by the time when the record is written.
                let failure = Failure { at: 0, op: op.to_owned(), group, text: cut(text) };
                notes.failure = Some((record.clock.now(), failure));
            }
            first
        };
        if (first || group != 0)
            && let Some(directory) = &record.directory
        {
            dump::write(record, directory, Reason::Error);
        }
    }

    /// Something that happens rarely: a loss, a new generation.
    pub fn note(&self, event: &'static str, group: u32, peer: Option<u32>, text: &str) {
        self.keep(note(event, group, peer, text));
    }

    fn keep(&self, note: Note) {
        let Some(record) = &self.record else { return };
        let mut notes = record.notes();
        if notes.list.len() == NOTES {
            notes.list.pop_front();
        }
        notes.list.push_back((record.clock.now(), note));
    }

    /// Writes the record into a directory, which is made if it is not there, and gives the file. `None` if the recorder is off.
    ///
    /// # Errors
    /// What the system says, with the file's name.
    pub fn write(&self, directory: &Path) -> std::io::Result<Option<PathBuf>> {
        self.record.as_ref().map(|record| dump::try_write(record, directory, Reason::Command)).transpose()
    }
}

impl Record {
    #[inline]
    fn begin(&self, what: What) -> Running {
        let thread = thread();
        let Lane { number, ring, alone } = self.lanes.of(thread);
        let place = if alone { ring.take_alone() } else { ring.take() };
        let stamped = !alone || place.is_multiple_of(EVERY) || what.is_stamped();
        let begin = if stamped { times::stamped(self.clock) } else { times::unstamped() };
        Running::new(number, ring.begin(place, what.pack(thread), begin))
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything that is known, on the clock that all processes of the host share.
    fn take(&self, reason: Reason) -> (Header, Vec<Line>) {
        let now = Moment::now(self.clock);
        let pace = Pace { began: self.began, now };
        let (mut operations, mut begun, mut torn, mut since) = (Vec::new(), 0, 0, None);
        for ring in self.lanes.rings() {
            let contents = ring.read();
            let spans = times::place(&contents.entries, pace, Ticks::tick());
            begun += contents.begun;
            torn += contents.torn;
            if contents.begun > KEPT as u64 {
                since = since.max(Some(spans.first().map_or(now.monotonic, |oldest| oldest.begin)));
            }
            let told = contents.entries.iter().zip(spans).filter_map(|(entry, span)| operation(entry, span));
            operations.extend(told.map(Line::Operation));
        }
        let (failure, notes) = {
            let notes = self.notes();
            (notes.failure.clone(), notes.list.clone())
        };
        let header = Header {
            fulmen: file::MAGIC.into(),
            version: file::VERSION,
            rank: self.owner.rank,
            size: self.owner.size,
            generation: format!("{:016x}", self.owner.generation),
            reason,
            clock: self.clock.name().into(),
            began: self.began.monotonic,
            written: now.monotonic,
            unix: now.unix,
            operations: begun,
            torn,
            capacity: KEPT as u64,
            since,
            failure: failure.map(|(ticks, failure)| Failure { at: pace.of(ticks), ..failure }),
            ..dump::process()
        };
        let notes = notes.into_iter().map(|(ticks, note)| Line::Note(Note { at: pace.of(ticks), ..note }));
        let mut lines: Vec<Line> = operations.into_iter().chain(notes).collect();
        lines.sort_by_key(Line::at);
        (header, lines)
    }
}

/// What an entry of the ring says.
fn operation(entry: &Entry, span: Span) -> Option<Operation> {
    let [what, place, sequence, bytes] = entry.fields;
    let action = Action::ALL.get(what as usize & 0xff)?;
    let peer = Some((what >> 32) as u32).filter(|peer| *peer != NOBODY);
    Some(Operation {
        n: entry.place,
        op: action.name().into(),
        phase: times::phase(entry),
        group: place as u32,
        sequence,
        peer,
        bytes,
        begin: span.begin,
        end: span.end,
        exact: span.exact,
        thread: (place >> 32) as u32,
        started: what >> 8 & 1 == 1,
    })
}

fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(TEXT)].to_owned()
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("on", &self.record.is_some()).finish_non_exhaustive()
    }
}

/// A note whose time is not known yet.
fn note(event: &'static str, group: u32, peer: Option<u32>, text: &str) -> Note {
    Note { at: 0, event: event.into(), group, peer, text: cut(text), members: Vec::new() }
}

#[cfg(test)]
mod tests;
