//! Programs of others that speak libibverbs run unmodified over the software device: `fulmen run --verbs`.
//!
//! Each program with each set of options is a test of its own, made from the tables in the modules. The fast tier runs a
//! selection, `FULMEN_TEST_TIER=full` most and `soak` all of them. A program that is not installed is skipped aloud.
//!
//! With `FULMEN_TEST_TABLE=FILE`, the outcome by program is written there as the table of docs/verbs.md; a test compares which
//! programs that table names.

#![forbid(unsafe_code)]

mod adverse;
mod case;
mod devices;
mod mpi;
mod pair;
mod perftest;
mod pingpong;
mod port;
mod table;
mod ucx;

use std::process::ExitCode;

use libtest_mimic::Arguments;

use case::Case;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let cases: Vec<Case> =
        [devices::cases(), pingpong::cases(), perftest::cases(), ucx::cases(), mpi::cases(), adverse::cases()]
            .into_iter()
            .flatten()
            .collect();
    table::run(&arguments, cases)
}
