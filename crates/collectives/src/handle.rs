//! The handle of what was started.

use std::fmt;
use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use fulmen_fabric::{FabricError, Operation};

use crate::CollectiveError;

/// How something ended, and its data.
type Ended<D, R> = (D, Result<R, CollectiveError>);

/// A call or a message that was started. It goes on whatever becomes of this; forgotten, its data is dropped when it has ended.
#[must_use = "whether it succeeded is told by `wait`"]
pub struct Handle<D, R = ()>(Way<D, R>);

enum Way<D, R> {
    /// A thread tells how it ended.
    Call(Receiver<thread::Result<Ended<D, R>>>),
    Message(Box<Message<D, R>>),
    /// It could not be started.
    Ended(Box<Ended<D, R>>),
}

/// A message under way.
pub(crate) struct Message<D, R> {
    pub(crate) operation: Operation,
    /// None that the clock can tell if it is far.
    pub(crate) until: Option<Instant>,
    /// Says how it ended, and gives the data back.
    pub(crate) end: End<D, R>,
}

type End<D, R> = Box<dyn FnOnce(Result<u64, FabricError>) -> Ended<D, R> + Send>;

impl<D, R> Message<D, R> {
    fn left(&self) -> Duration {
        self.until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()))
    }

    fn wait(self) -> Ended<D, R> {
        let left = self.left();
        (self.end)(self.operation.wait(left))
    }
}

impl<D, R> Handle<D, R> {
    pub(crate) fn of_call(outcome: Receiver<thread::Result<Ended<D, R>>>) -> Handle<D, R> {
        Handle(Way::Call(outcome))
    }

    pub(crate) fn of_message(message: Message<D, R>) -> Handle<D, R> {
        Handle(Way::Message(Box::new(message)))
    }

    pub(crate) fn failed(data: D, error: CollectiveError) -> Handle<D, R> {
        Handle(Way::Ended(Box::new((data, Err(error)))))
    }

    /// Waits for its end, and gives back the data. What it holds if the call failed is said at the call.
    ///
    /// # Panics
    /// If what was started has panicked, with the same payload.
    pub fn wait(self) -> (D, Result<R, CollectiveError>) {
        match self.0 {
            Way::Message(message) => message.wait(),
            Way::Ended(ended) => *ended,
            Way::Call(outcome) => match outcome.recv() {
                Ok(Ok(ended)) => ended,
                Ok(Err(panic)) => resume_unwind(panic),
                Err(_) => unreachable!("whatever is started tells how it ended"),
            },
        }
    }

    /// As [`Handle::wait`], if it has ended; else gives the handle back.
    ///
    /// # Errors
    /// The handle: it goes on.
    ///
    /// # Panics
    /// As [`Handle::wait`].
    pub fn test(self) -> Result<(D, Result<R, CollectiveError>), Handle<D, R>> {
        match self.0 {
            Way::Message(mut message) => match message.operation.test() {
                Some(outcome) => Ok((message.end)(outcome)),
                None if message.left().is_zero() => Ok(message.wait()),
                None => Err(Handle(Way::Message(message))),
            },
            Way::Ended(ended) => Ok(*ended),
            Way::Call(outcome) => match outcome.try_recv() {
                Ok(Ok(ended)) => Ok(ended),
                Ok(Err(panic)) => resume_unwind(panic),
                Err(TryRecvError::Empty) => Err(Handle(Way::Call(outcome))),
                Err(TryRecvError::Disconnected) => unreachable!("whatever is started tells how it ended"),
            },
        }
    }
}

impl<D, R> fmt::Debug for Handle<D, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}
