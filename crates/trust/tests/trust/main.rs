//! Connections between those who belong together, and attempts of those who do not.

mod common;
mod flow;
mod strangers;
