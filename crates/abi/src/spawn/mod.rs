//! A process that a node is to start.

mod record;
mod request;
mod status;
mod text;

pub use record::{ExitKind, SPAWN_MAGIC, SpawnFlags, SpawnRequest, SpawnState, TEXT_MAX, TEXT_ROOM};
pub use request::{Limits, Spawn, SpawnText};
pub use status::{Exit, SpawnControl, SpawnOutcome, SpawnStatus};
pub use text::{Command, Strings, TextCounts};

pub(crate) use record::CONSTANTS;

/// As errors call the record.
const NAME: &str = "SpawnRequest";
