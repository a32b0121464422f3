//! The conformance suite and the fault-injecting decorator, tested over a device that is made for that.

mod cable;
mod faulty;
mod model;
mod suite;
