//! Ranks that meet at a coordinator: as threads, as a real process that is killed, and as hostile strangers.
//!
//! No verdict depends on time: deadlines that must not pass are a minute long, and one that must pass always does.

mod common;
mod losses;
mod meeting;
mod regroup;
mod strangers;
