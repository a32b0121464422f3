//! What the seed of the design claimed, beside what is reckoned and what the cables allow.

use fulmen::parts::fabric::model::Wire;
use serde::Serialize;

use super::figures::Figures;
use super::predict::{Message, Scenario, Shape, Span};
use super::text::{amount, number, size};

/// How a claim stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The cables cannot do it, whatever the software.
    Impossible,
    /// The cables could. It is not what is expected.
    Slower,
    /// What is expected is what was claimed.
    Holds,
    /// What is expected is better.
    Better,
}

impl Verdict {
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Impossible => "impossible",
            Verdict::Slower => "slower",
            Verdict::Holds => "holds",
            Verdict::Better => "better",
        }
    }
}

/// One claim about one arrangement.
#[derive(Debug, Serialize)]
pub struct Cell {
    pub what: String,
    pub nodes: u64,
    pub cables_a_pair: u64,
    pub unit: &'static str,
    /// From, to; the same twice where it was one number.
    pub claim: [f64; 2],
    pub predicted: Span,
    /// The least time, or the highest rate, that the cables' own rate allows.
    pub limit: f64,
    /// Whether the limits of the cables allow any of the claim.
    pub allowed: bool,
    pub verdict: Verdict,
    pub reason: String,
}

/// Bytes, and microseconds from and to.
const TIMES: [(u64, [f64; 2]); 3] = [(64, [2.0, 5.0]), (4 << 10, [5.0, 8.0]), (1 << 20, [50.0, 100.0])];

/// Gb/s.
const RATES: [(Shape, f64); 3] = [
    (Shape { nodes: 2, cables: 1 }, 100.0),
    (Shape { nodes: 2, cables: 2 }, 180.0),
    (Shape { nodes: 4, cables: 1 }, 300.0),
];

/// All claims.
pub fn cells(figures: &Figures, wire: &Wire) -> Vec<Cell> {
    let times =
        [1, 2].into_iter().flat_map(|cables| TIMES.map(|(bytes, claim)| time(figures, wire, cables, bytes, claim)));
    let rates =
        RATES.iter().flat_map(|(shape, claim)| [1.0, 2.0].map(|ways| rate(figures, wire, *shape, *claim, ways)));
    times.chain(rates).collect()
}

fn time(figures: &Figures, wire: &Wire, cables: u64, bytes: u64, claim: [f64; 2]) -> Cell {
    let message = Message::new(figures, wire, cables, bytes);
    let predicted = message.delivered;
    let [from, to] = claim;
    let rate = figures.line.expected * cables as f64;
    // Gb/s are bits a nanosecond.
    let limit = bytes as f64 * 8.0 / rate / 1000.0;
    let over = amount(cables, "cable", "cables");
    let verdict = match predicted.expected {
        _ if limit > to => Verdict::Impossible,
        expected if expected > to => Verdict::Slower,
        expected if expected < from => Verdict::Better,
        _ => Verdict::Holds,
    };
    let needs = |time: f64| number(bytes as f64 * 8.0 / time / 1000.0);
    let mut reason = format!("{over}, {} Gb/s in all: the bytes alone take {} us", number(rate), number(limit));
    match verdict {
        Verdict::Impossible => {
            reason +=
                &format!("; {} us would need {} Gb/s, {} us {}", number(to), needs(to), number(from), needs(from));
        }
        _ if limit > from => reason += &format!("; {} us would need {} Gb/s", number(from), needs(from)),
        _ => {}
    }
    if predicted.best > from && limit <= from {
        reason += &format!("; {} us is less than the best report gives ({} us)", number(from), number(predicted.best));
    }
    if verdict == Verdict::Slower {
        reason += &format!("; a SEND of it takes {} us by itself, before any protocol", number(figures.bare(bytes)));
        if predicted.best <= to {
            reason += &format!("; {} us is within the range", number(to));
        }
    }
    Cell {
        what: format!("latency of {}", size(bytes)),
        nodes: 2,
        cables_a_pair: cables,
        unit: "us",
        claim,
        predicted,
        limit: (limit * 1e4).round() / 1e4,
        allowed: limit <= to,
        verdict,
        reason,
    }
}

/// What a node sends, or (two ways) sends and receives.
fn rate(figures: &Figures, wire: &Wire, shape: Shape, claim: f64, ways: f64) -> Cell {
    let scenario = Scenario::new(figures, wire, shape, &[]);
    let both = |rate: f64| rate * ways;
    let dealt_out = scenario.node.dealt_out;
    let predicted =
        Span { best: both(dealt_out.best), expected: both(dealt_out.expected), worst: both(dealt_out.worst) };
    let limit = both(scenario.node.most);
    let verdict = match predicted.expected {
        _ if limit < claim => Verdict::Impossible,
        expected if expected < claim => Verdict::Slower,
        _ => Verdict::Holds,
    };
    let ports = amount(scenario.ports_a_node, "port", "ports");
    let direction = if ways > 1.0 { "both ways together" } else { "each way" };
    let mut reason =
        format!("{ports} at {} Gb/s {direction}: {} Gb/s at most", number(both(figures.line.expected)), number(limit));
    if ways == 1.0 && limit < claim {
        let boosted = figures.boost.expected * scenario.ports_a_node as f64;
        let spare = if boosted >= claim { "would do it one way" } else { "would not do it either" };
        reason +=
            &format!("; bandwidth boost ({} Gb/s) {spare}, at 40 the other way, and is for displays", number(boosted));
    }
    if ways > 1.0 && verdict == Verdict::Holds {
        reason += "; as a sum of sending and receiving it is met";
    }
    if shape.nodes > 2 {
        reason += "; that a node's memory keeps up with all its ports at once is assumed";
    }
    Cell {
        what: format!("bandwidth of a node, {direction}"),
        nodes: shape.nodes,
        cables_a_pair: shape.cables,
        unit: "Gb/s",
        claim: [claim, claim],
        predicted,
        limit,
        allowed: limit >= claim,
        verdict,
        reason,
    }
}
