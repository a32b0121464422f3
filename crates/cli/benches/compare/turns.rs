//! The paired run: rounds of turns, each between two probes of the placement.

use std::io::{IsTerminal, Write};

use crate::{
    Settings,
    case::{Memory, Op},
    contender::Contender,
    placement::{Placement, probe},
    table::Measured,
};

/// How often a turn is run before it is left out.
const ATTEMPTS: usize = 3;

/// Runs all rounds. Gives what was measured and how many turns were left out because the placement kept changing.
pub fn run(settings: &Settings, contenders: &[Contender]) -> anyhow::Result<(Vec<Measured>, usize)> {
    let (mut measured, mut dropped) = (Vec::new(), 0);
    for round in 0..settings.rounds {
        for (op, memory) in turns(settings) {
            let sizes = op.sizes(&settings.sizes, settings.ranks);
            if sizes.is_empty() {
                continue;
            }
            match turn(settings, contenders, round, op, memory, &sizes)? {
                Some(cases) => measured.extend(cases),
                None => dropped += 1,
            }
        }
    }
    Ok((measured, dropped))
}

/// A barrier and a word have no buffers, so their memory makes no difference to them.
fn turns(settings: &Settings) -> Vec<(Op, Memory)> {
    let memories = |op: Op| if op.has_one_size() { &[Memory::Registered][..] } else { &settings.memories[..] };
    settings.ops.iter().flat_map(|&op| memories(op).iter().map(move |&memory| (op, memory))).collect()
}

fn turn(
    settings: &Settings,
    contenders: &[Contender],
    round: usize,
    op: Op,
    memory: Memory,
    sizes: &[usize],
) -> anyhow::Result<Option<Vec<Measured>>> {
    let title = format!("round {}/{} {op} {memory}", round + 1, settings.rounds);
    for _ in 0..ATTEMPTS {
        let before = probe(&settings.cpus)?;
        progress(&format!("{title}: {before}"));
        let mut times = vec![None; contenders.len()];
        for k in 0..contenders.len() {
            let at = (round + k) % contenders.len();
            if !contenders[at].takes_part(op) {
                continue;
            }
            match contenders[at].measure(settings, op, memory, sizes) {
                Ok(medians) => times[at] = Some(medians),
                // A peer that fails spoils no comparison but its own.
                Err(error) if contenders[at].is_peer() => {
                    eprintln!("compare: {title}: {} FAILED: {error:#}", contenders[at].name);
                }
                Err(error) => return Err(error),
            }
        }
        let after = probe(&settings.cpus)?;
        if before.like(after) {
            return Ok(Some(cases(op, memory, sizes, before, &times)));
        }
        eprintln!("compare: {title}: MOVED from {before} to {after}; measured again");
    }
    eprintln!("compare: {title}: LEFT OUT, the placement changed {ATTEMPTS} times");
    Ok(None)
}

fn cases(op: Op, memory: Memory, sizes: &[usize], placement: Placement, times: &[Option<Vec<f64>>]) -> Vec<Measured> {
    let of_size = |(at, &bytes): (usize, &usize)| Measured {
        op,
        memory,
        bytes,
        placement: placement.name(),
        times: times.iter().map(|medians| medians.as_ref().map(|medians| medians[at])).collect(),
    };
    sizes.iter().enumerate().map(of_size).collect()
}

/// What is going on, for somebody who watches.
fn progress(line: &str) {
    let mut err = std::io::stderr().lock();
    if err.is_terminal() {
        // A terminal that went away needs no progress.
        let _ = writeln!(err, "compare: {line}");
    }
}
