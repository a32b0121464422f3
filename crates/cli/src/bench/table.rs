//! The table for people.

use super::operation::Row;

/// What the columns are called.
pub fn heading(overlap: bool) -> String {
    let overlap = if overlap { format!(" {:>9}", "overlap %") } else { String::new() };
    format!(
        "{:>12} {:>9} {:>11} {:>11} {:>11} {:>12} {:>12} {:>7}{overlap}",
        "bytes", "samples", "min us", "p50 us", "p99 us", "algbw GB/s", "busbw GB/s", "wrong"
    )
}

/// One size.
pub fn line(row: &Row) -> String {
    let overlap = row.overlap.map_or_else(String::new, |share| format!(" {:>9.0}", share * 100.0));
    format!(
        "{:>12} {:>9} {:>11} {:>11} {:>11} {:>12} {:>12} {:>7}{overlap}",
        row.bytes,
        row.samples,
        short(row.min_us),
        short(row.p50_us),
        short(row.p99_us),
        short(row.algbw),
        short(row.busbw),
        row.wrong
    )
}

/// A number with as many decimals as say something.
pub fn short(number: f64) -> String {
    match number {
        0.0 => "0".to_string(),
        ..1.0 => format!("{number:.3}"),
        ..100.0 => format!("{number:.2}"),
        _ => format!("{number:.1}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_under_their_names() {
        let row = Row {
            op: "all-reduce".into(),
            bytes: 1 << 30,
            ranks: 2,
            dtype: "f32".into(),
            memory: "plain".into(),
            samples: 1000,
            min_us: 123_456.7,
            p50_us: 0.1234,
            p99_us: 12.345,
            algbw: 0.0,
            busbw: 99.999,
            wrong: 3,
            target_cpu_us: None,
            overlap: None,
        };
        let all = ["1073741824", "1000", "123456.7", "0.123", "12.35", "0", "100.00", "3", "98"];
        for (overlap, cells) in [(None, &all[..8]), (Some(0.981), &all)] {
            let line = line(&Row { overlap, ..row.clone() });
            assert_eq!(line.len(), heading(overlap.is_some()).len());
            assert!(line.split_whitespace().eq(cells.iter().copied()), "{line}");
        }
    }
}
