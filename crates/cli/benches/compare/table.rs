//! From what the rounds gave to rows of medians and ratios, as a table and as JSON.

use std::collections::BTreeMap;

use crate::case::{Memory, Op, format_size};

/// One case of one round.
#[derive(Clone, Debug)]
pub struct Measured {
    pub op: Op,
    pub memory: Memory,
    pub bytes: usize,
    pub placement: &'static str,
    /// Microseconds of each contender, in the contenders' order; nothing where it failed.
    pub times: Vec<Option<f64>>,
}

/// A median over rounds, with the least and the greatest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub least: f64,
    pub greatest: f64,
}

impl Spread {
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (least, greatest) = (*values.first()?, *values.last()?);
        let half = values.len() / 2;
        let median = if values.len() % 2 == 1 { values[half] } else { (values[half - 1] + values[half]) / 2.0 };
        Some(Spread { median, least, greatest })
    }
}

/// A contender's part of a row.
#[derive(Clone, Debug)]
pub struct Cell {
    pub name: String,
    /// Microseconds.
    pub time: Option<Spread>,
    /// Fulmen's time divided by this contender's, of the rounds that have both; nothing for Fulmen itself.
    pub ratio: Option<Spread>,
}

/// A case over all rounds.
#[derive(Clone, Debug)]
pub struct Row {
    pub op: Op,
    pub memory: Memory,
    pub bytes: usize,
    /// How many rounds had which placement.
    pub placements: BTreeMap<&'static str, usize>,
    pub cells: Vec<Cell>,
}

/// The rows, in the order in which their cases were first measured. `names` are the contenders'.
pub fn rows(names: &[String], measured: &[Measured]) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    let fulmen = names.iter().position(|name| name == "Fulmen");
    for first in measured {
        if rows.iter().any(|row| (row.op, row.memory, row.bytes) == (first.op, first.memory, first.bytes)) {
            continue;
        }
        let same = |case: &&Measured| (case.op, case.memory, case.bytes) == (first.op, first.memory, first.bytes);
        let rounds: Vec<&Measured> = measured.iter().filter(same).collect();
        let mut placements = BTreeMap::new();
        rounds.iter().for_each(|case| *placements.entry(case.placement).or_default() += 1);
        let cell = |(at, name): (usize, &String)| Cell {
            name: name.clone(),
            time: Spread::of(rounds.iter().filter_map(|case| case.times[at])),
            ratio: fulmen.filter(|&fulmen| fulmen != at).and_then(|fulmen| {
                Spread::of(rounds.iter().filter_map(|case| Some(case.times[fulmen]? / case.times[at]?)))
            }),
        };
        let cells = names.iter().enumerate().map(cell).collect();
        rows.push(Row { op: first.op, memory: first.memory, bytes: first.bytes, placements, cells });
    }
    rows
}

impl Row {
    /// The row as one JSON object.
    pub fn json(&self) -> String {
        let spread = |spread: Option<Spread>| {
            spread.map(|s| serde_json::json!({"median": s.median, "least": s.least, "greatest": s.greatest}))
        };
        let contender = |cell: &Cell| serde_json::json!({"name": cell.name, "us": spread(cell.time), "fulmen_ratio": spread(cell.ratio)});
        let contenders: Vec<_> = self.cells.iter().map(contender).collect();
        serde_json::json!({
            "op": self.op.name(),
            "memory": self.memory.name(),
            "bytes": self.bytes,
            "placements": self.placements,
            "contenders": contenders,
        })
        .to_string()
    }

    fn markdown(&self) -> String {
        let memory = if self.op.has_one_size() { "–" } else { self.memory.name() };
        let placements: Vec<String> = self.placements.iter().map(|(name, rounds)| format!("{name} {rounds}")).collect();
        let mut line = format!("| {} | {memory} | {} |", self.op, format_size(self.bytes));
        let with_ratios = self.cells.iter().any(|cell| cell.name == "Fulmen");
        for cell in &self.cells {
            line += &format!(" {} |", cell.time.map_or("–".into(), |time| microseconds(time.median)));
            if with_ratios && cell.name != "Fulmen" {
                let ratio = |r: Spread| format!("**{:.2}** ({:.2}–{:.2})", r.median, r.least, r.greatest);
                line += &format!(" {} |", cell.ratio.map_or("–".into(), ratio));
            }
        }
        format!("{line} {} |\n", placements.join(", "))
    }
}

/// Three digits that mean something.
fn microseconds(us: f64) -> String {
    match us {
        _ if us < 10.0 => format!("{us:.3}"),
        _ if us < 100.0 => format!("{us:.1}"),
        _ => format!("{us:.0}"),
    }
}

/// The whole table. Columns: microseconds of each contender (median over rounds) and Fulmen's ratio to it.
pub fn markdown(names: &[String], rows: &[Row]) -> String {
    let mut head = "| operation | memory | size |".to_string();
    let mut rule = "|---|---|--:|".to_string();
    let with_ratios = names.iter().any(|name| name == "Fulmen");
    for name in names {
        head += &format!(" {name} µs |");
        rule += "--:|";
        if with_ratios && name != "Fulmen" {
            head += &format!(" Fulmen / {name} |");
            rule += "--:|";
        }
    }
    let body: String = rows.iter().map(Row::markdown).collect();
    format!("{head} rounds |\n{rule}---|\n{body}")
}
