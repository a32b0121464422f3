//! What comes of a run.

use std::fmt;
use std::time::Duration;

use crate::schedule::Choice;

/// What kind of promise was broken. A schedule is shortened for as long as it breaks the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// A message has other bytes, or another length, than were sent; or came twice, or out of order.
    Message,
    /// An operation ended in a way that nothing explains.
    Outcome,
    /// A frame was refused though its carrier is healthy, or more frames came than there is room for.
    Protocol,
    /// Memory that a peer may write changed in a way that no operation explains.
    Memory,
    /// Operations took effect in another order than their fence asks for.
    Fence,
    /// A counter moved before its bytes had landed.
    Counter,
    /// An atomic operation took effect twice, not at all, or told a wrong old value.
    Atomic,
    /// A get brought other bytes than there were.
    Get,
    /// Something of an old generation took effect.
    Generation,
    /// An operation did not end.
    Hang,
    /// Memory was still held at the end, or used after its release.
    Release,
    /// The engine stopped at an assertion of its own.
    Panic,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Broken::Message => "a message is not what was sent",
            Broken::Outcome => "an operation ended for no reason",
            Broken::Protocol => "the protocol was broken on a healthy carrier",
            Broken::Memory => "memory changed without an operation",
            Broken::Fence => "a fence was passed",
            Broken::Counter => "a counter was early",
            Broken::Atomic => "an atomic operation is not exact",
            Broken::Get => "a get is not what was there",
            Broken::Generation => "an old generation took effect",
            Broken::Hang => "an operation does not end",
            Broken::Release => "memory is not released",
            Broken::Panic => "an assertion failed",
        })
    }
}

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The promise.
    pub broken: Broken,
    /// What is wrong, with its place.
    pub what: String,
    /// At which step, from 0. The number of steps, if it came out after the last one.
    pub step: u64,
    /// At which virtual time.
    pub at: Duration,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} (step {}, {:?})", self.broken, self.what, self.step, self.at)
    }
}

/// How much happened in a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Steps.
    pub steps: u64,
    /// Operations that were started.
    pub operations: u64,
    /// Those that ended well.
    pub succeeded: u64,
    /// Those that ended with an error, all explained.
    pub failed: u64,
    /// Frames that were sent, those sent again included.
    pub frames: u64,
    /// Frames that were lost.
    pub drop: u64,
    /// Frames that came twice.
    pub dup: u64,
    /// Frames that were held up.
    pub reorder: u64,
    /// Frames that came with wrong bits.
    pub corrupt: u64,
    /// Nodes that were cut off for a while.
    pub partition: u64,
    /// Nodes that did nothing for a while.
    pub pause: u64,
    /// Links that broke.
    pub cut: u64,
    /// Nodes that died.
    pub kill: u64,
    /// Nodes that came back.
    pub rejoin: u64,
}

impl Counts {
    /// Adds those of another run.
    pub fn add(&mut self, other: &Counts) {
        let pairs: [(&mut u64, u64); 14] = [
            (&mut self.steps, other.steps),
            (&mut self.operations, other.operations),
            (&mut self.succeeded, other.succeeded),
            (&mut self.failed, other.failed),
            (&mut self.frames, other.frames),
            (&mut self.drop, other.drop),
            (&mut self.dup, other.dup),
            (&mut self.reorder, other.reorder),
            (&mut self.corrupt, other.corrupt),
            (&mut self.partition, other.partition),
            (&mut self.pause, other.pause),
            (&mut self.cut, other.cut),
            (&mut self.kill, other.kill),
            (&mut self.rejoin, other.rejoin),
        ];
        for (own, others) in pairs {
            *own += others;
        }
    }
}

/// A choice that had an effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// The choice.
    pub choice: Choice,
    /// The ranks that have to do with it, by bits. None: all.
    pub ranks: u64,
    /// What happened.
    pub what: String,
}

/// A run from its beginning to its end.
#[derive(Clone, Debug)]
pub struct Run {
    /// How much happened.
    pub counts: Counts,
    /// Virtual time.
    pub time: Duration,
    /// A hash of all events: equal for equal runs.
    pub digest: u64,
    /// The promise that was broken, if one was.
    pub failure: Option<Failure>,
    /// The choices that had an effect and what each was, in the order of the run, if it was asked for.
    pub story: Vec<Told>,
}
