//! What came of a probe: the JSON object, and the lines for people.

use std::fmt::Write as _;

use serde::Serialize;

use super::Kind;
use super::answer::{Answer, Limit, Memory, Pool, Rail, Refusal, Subject, Symbol};
use super::supervise::Outcome;
use crate::bench::short;

/// Everything that came of a probe.
#[derive(Serialize)]
pub struct Found {
    pub probe: Kind,
    pub device: Option<Subject>,
    pub passed: bool,
    /// What went wrong.
    pub problem: Option<String>,
    /// What the driver was asked to do when it crashed or hung.
    pub last: Option<String>,
    #[serde(flatten)]
    pub answer: Option<Answer>,
}

impl Found {
    pub fn new(probe: Kind) -> Found {
        Found { probe, device: None, passed: false, problem: None, last: None, answer: None }
    }

    /// Adds what a worker found; rails and kinds of memory come one by one.
    pub fn take(&mut self, outcome: Outcome) {
        self.device = self.device.take().or(outcome.device);
        self.answer = match (self.answer.take(), outcome.answer) {
            (Some(Answer::Rails(mut rails)), Some(Answer::Rails(more))) => {
                rails.extend(more);
                Some(Answer::Rails(rails))
            }
            (Some(Answer::Memory(mut kinds)), Some(Answer::Memory(more))) => {
                kinds.extend(more);
                Some(Answer::Memory(kinds))
            }
            (before, now) => now.or(before),
        };
        self.problem = self.problem.take().or(outcome.problem);
        self.last = self.last.take().or(outcome.last);
        self.passed = self.problem.is_none();
    }
}

/// As people read it.
pub fn text(found: &Found) -> String {
    let mut text = String::new();
    if let Some(device) = &found.device {
        let _ = writeln!(text, "{} {}", device.provider, device.name);
    }
    match &found.answer {
        Some(Answer::Limits(limits)) => limits.iter().for_each(|found| limit(&mut text, found)),
        Some(Answer::Pools(pools)) => pools.iter().for_each(|found| pool(&mut text, found)),
        Some(Answer::Rails(rails)) => rails.iter().for_each(|found| rail(&mut text, found)),
        Some(Answer::Memory(kinds)) => kinds.iter().for_each(|found| memory(&mut text, found)),
        Some(Answer::Symbols(symbols)) => symbols.iter().for_each(|found| symbol(&mut text, found)),
        None => {}
    }
    text
}

fn refused(refusal: &Refusal) -> String {
    match refusal.errno {
        Some(errno) => format!("{} (errno {errno})", refusal.words),
        None => refusal.words.clone(),
    }
}

fn limit(text: &mut String, limit: &Limit) {
    let Limit { what, stated, made, made_again, .. } = limit;
    let end = limit
        .refusal
        .as_ref()
        .map_or_else(|| "and more may be possible".into(), |refusal| format!("then: {}", refused(refusal)));
    let _ = writeln!(text, "{what}: {made} made (the device states {stated}), {end}");
    let _ = writeln!(text, "  given back, and {made_again} made again");
}

fn pool(text: &mut String, pool: &Pool) {
    let size = pool.bytes >> 20;
    if let Some(refusal) = &pool.refusal {
        let _ = writeln!(text, "{size} MiB: refused: {}", refused(refusal));
        return;
    }
    let _ = writeln!(text, "{size} MiB in one registration, {} buffers of 512 KiB", pool.buffers);
    for transfer in &pool.transfers {
        let outcome = transfer.problem.as_deref().unwrap_or("every byte right");
        let _ = writeln!(text, "  {:<42} {outcome}", transfer.what);
    }
}

fn rail(text: &mut String, rail: &Rail) {
    let _ = writeln!(
        text,
        "port {} to port {} of {}: {}, {}, MTU {}{}",
        rail.port,
        rail.peer_port,
        rail.peer,
        rail.link_layer,
        rail.queue_pairs,
        rail.mtu,
        rail.nominal_bits_per_second.map_or_else(String::new, |bits| format!(", {} Gb/s", short(bits as f64 / 1e9)))
    );
    for row in &rail.latency {
        let _ = writeln!(
            text,
            "  SEND  {:>8} B  half a round trip: median {} us, p99 {} us{}",
            row.bytes,
            short(row.median_us),
            short(row.p99_us),
            if row.inline { ", inline" } else { "" }
        );
    }
    for row in &rail.bandwidth {
        let share = row.of_nominal.map_or_else(String::new, |share| format!(", {:.0}% of the port", 100.0 * share));
        let _ = writeln!(
            text,
            "  {:<5} {:>8} B  {} GB/s{share}",
            row.operation,
            row.bytes,
            short(row.bytes_per_second / 1e9)
        );
    }
    for line in &rail.left_out {
        let _ = writeln!(text, "  left out: {line}");
    }
}

fn memory(text: &mut String, row: &Memory) {
    let kind = &row.kind;
    if let Some(absent) = &row.absent {
        let _ = writeln!(text, "{kind:<20} not here: {absent}");
        return;
    }
    let given = row.rights.iter().filter(|right| right.refusal.is_none()).map(|right| right.rights.as_str());
    let given = given.collect::<Vec<_>>().join(", ");
    let messages = match (row.messages_out, row.messages_in) {
        (Some(true), Some(true)) => "; messages go out of it and into it",
        (Some(true), _) => "; messages go out of it",
        (Some(false), _) => "; messages do not pass",
        (None, _) => "",
    };
    let _ = writeln!(text, "{kind:<20} {}{messages}", if given.is_empty() { "not registered" } else { &given });
    for right in &row.rights {
        if let Some(refusal) = &right.refusal {
            let _ = writeln!(text, "{:<20} not for {}: {}", "", right.rights, refused(refusal));
        }
    }
    if let Some(problem) = &row.problem {
        let _ = writeln!(text, "{:<20} {problem}", "");
    }
}

fn symbol(text: &mut String, symbol: &Symbol) {
    let state = match (symbol.present, symbol.needed) {
        (true, _) => "present",
        (false, true) => "MISSING",
        (false, false) => "absent",
    };
    let _ = writeln!(text, "{:<28} {state:<8} {}", symbol.name, symbol.purpose);
}
