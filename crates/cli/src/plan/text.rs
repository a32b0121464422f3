//! The tables for people.

use std::fmt::Write as _;

use super::figures::Figure;
use super::predict::{Counted, Scenario, Span};
use super::{Check, Plan};

/// Bytes as people write them.
pub fn size(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units.into_iter().find(|(shift, _)| bytes > 0 && bytes.trailing_zeros() >= *shift);
    unit.map_or_else(|| format!("{bytes} B"), |(shift, name)| format!("{} {name}", bytes >> shift))
}

pub fn amount(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// Three digits, and no zeros behind them.
pub fn number(number: f64) -> String {
    let text = match number.abs() {
        0.0 => return "0".to_string(),
        ..0.1 => format!("{number:.4}"),
        ..10.0 => format!("{number:.2}"),
        ..1000.0 => format!("{number:.1}"),
        _ => format!("{number:.0}"),
    };
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_string() } else { text }
}

/// What is expected, and the range. Of times the best is the least, of rates the most: the smaller comes first.
fn span(span: Span) -> String {
    let [low, high] = if span.best <= span.worst { [span.best, span.worst] } else { [span.worst, span.best] };
    format!("{} ({}-{})", number(span.expected), number(low), number(high))
}

pub fn show(plan: &Plan) -> String {
    let mut text = format!(
        "{}: reckoned, not measured here. Expected (best to worst of the figures below).\nMessages between registered \
         memory, into a receive that is posted; large ones dealt out to all cables of a pair.\n",
        plan.profile
    );
    for scenario in &plan.scenarios {
        show_scenario(scenario, &mut text);
    }
    if let Some(cells) = &plan.seed {
        text += "\nbeside the seed of the design\n";
        for cell in cells {
            let [from, to] = cell.claim.map(number);
            let claim = if from == to { from } else { format!("{from}-{to}") };
            let nodes = amount(cell.nodes, "node", "nodes");
            let cables = amount(cell.cables_a_pair, "cable", "cables");
            let _ = writeln!(
                text,
                "  {}, {nodes}, {cables}: claimed {claim} {unit}, reckoned {} {unit}: {}\n      {}",
                cell.what,
                span(cell.predicted),
                cell.verdict.word(),
                cell.reason,
                unit = cell.unit
            );
        }
    }
    text += "\nfigures: best, expected, worst\n";
    for figure in &plan.figures {
        show_figure(figure, &mut text);
    }
    for Check { published, reckoned } in &plan.published {
        let (size, measured) = (size(published.bytes), number(published.measured));
        let _ = writeln!(
            text,
            "  check: users measured {measured} us for a SEND of {size}; these figures give {}",
            number(*reckoned)
        );
    }
    text
}

fn show_scenario(scenario: &Scenario, text: &mut String) {
    let nodes = amount(scenario.nodes, "node", "nodes");
    let cables = amount(scenario.cables_a_pair, "cable", "cables");
    let ports = amount(scenario.ports_a_node, "port", "ports");
    let _ = writeln!(text, "\n{nodes}, {cables} between each two: {ports} a node");
    let heads = ["", "delivered, us", "both know, us", "stream, GB/s", "SENDs (bytes) there", "back"];
    let row = |cells: [&str; 6]| {
        let [size, delivered, done, stream, there, back] = cells;
        format!("  {size:<9} {delivered:<22} {done:<22} {stream:<22} {there:<20} {back}").trim_end().to_string() + "\n"
    };
    *text += &row(heads);
    for message in &scenario.messages {
        let counted = |counted: &Counted| match counted {
            Counted { sends: 0, .. } => "-".to_string(),
            Counted { sends, bytes, more_at_most: 0, .. } => format!("{sends} ({bytes})"),
            Counted { sends, bytes, more_at_most, .. } => format!("{sends} to {} ({bytes}…)", sends + more_at_most),
        };
        let (delivered, done, stream) = (span(message.delivered), span(message.done), span(message.stream));
        let (there, back) = (counted(&message.there), counted(&message.back));
        *text += &row([&size(message.bytes), &delivered, &done, &stream, &there, &back]);
    }
    let levels = [("a link", &scenario.link), ("a node", &scenario.node)];
    for (what, rates) in levels.iter().take(if scenario.nodes > 2 { 2 } else { 1 }) {
        let _ = writeln!(
            text,
            "  {what} sends {} Gb/s of payload; its cables carry {} Gb/s each way at most",
            span(rates.dealt_out),
            number(rates.most)
        );
    }
    let all_reduce: Vec<_> = scenario
        .all_reduce
        .iter()
        .map(|each| format!("{} {} us ({})", size(each.bytes), span(each.time), each.algorithm))
        .collect();
    let _ = writeln!(text, "  all-reduce: {}", all_reduce.join(", "));
}

fn show_figure(figure: &Figure, text: &mut String) {
    let values = if figure.best == figure.worst {
        number(figure.expected)
    } else {
        format!("{}, {}, {}", number(figure.best), number(figure.expected), number(figure.worst))
    };
    let _ = writeln!(
        text,
        "  {}: {values} {}, {}\n      {}",
        figure.name,
        figure.unit,
        figure.basis.words(),
        figure.source
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_numbers_are_short() {
        let sizes = [0, 64, 1000, 4096, 1 << 20, (1 << 20) + 1, 3 << 30].map(size);
        assert_eq!(sizes, ["0 B", "64 B", "1000 B", "4 KiB", "1 MiB", "1048577 B", "3 GiB"]);
        let numbers = [0.0, 0.0064, 4.2, 5.25, 80.0, 104.8576, 216.04, 4096.0].map(number);
        assert_eq!(numbers, ["0", "0.0064", "4.2", "5.25", "80", "104.9", "216", "4096"]);
    }
}
