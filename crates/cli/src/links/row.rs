//! What is told of a rail: as JSON between the ranks and the command, and for people.

use serde::{Deserialize, Serialize};

use crate::bench::short;

/// One rail between two ranks, all of their rails at once, or a link that has none.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The two ranks, the smaller one first, and the names of their hosts.
    pub from: u32,
    pub to: u32,
    pub from_host: String,
    pub to_host: String,
    /// Which of the link's rails it is, from 0; null for all at once, and for a link without rails.
    pub rail: Option<usize>,
    /// What it runs between.
    pub cable: Option<Cable>,
    /// `shared-memory`, `thunderbolt`, `infiniband`, `roce`, `rdma`, `tcp-sealed`, `tcp-plain`, `all-rails` or `relayed`.
    pub kind: String,
    /// `up`, or what stands in the way.
    pub state: String,
    /// Half of a round trip.
    pub latency_us: Option<f64>,
    /// 10^9 bytes a second from the first rank to the second one,
    #[serde(rename = "out_GBps")]
    pub out: Option<f64>,
    /// and back.
    #[serde(rename = "back_GBps")]
    pub back: Option<f64>,
    /// Why this is TCP although something faster is there, or was expected.
    pub fallback: Option<String>,
}

/// The ends of a cable.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Cable {
    pub from: End,
    pub to: End,
}

/// One end: a device, which over TCP bears the name of its interface, and its address.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct End {
    pub device: String,
    pub port: u8,
    pub address: String,
}

/// What the columns are called.
pub fn heading() -> String {
    columns(["from", "to", "cable", "kind"], ["latency us", "out GB/s", "back GB/s"], "state")
}

impl Row {
    /// The row of the table.
    pub fn line(&self) -> String {
        let cable = match &self.cable {
            Some(Cable { from, to }) => format!("{} {} - {} {}", from.device, from.address, to.device, to.address),
            None => "-".to_owned(),
        };
        let number = |number: Option<f64>| number.map_or("-".to_owned(), short);
        let rank = |rank: u32, host: &str| format!("{rank} {host}");
        columns(
            [&rank(self.from, &self.from_host), &rank(self.to, &self.to_host), &cable, &self.kind],
            [&number(self.latency_us), &number(self.out), &number(self.back)],
            &self.state,
        )
    }
}

fn columns(words: [&str; 4], numbers: [&str; 3], last: &str) -> String {
    let [from, to, cable, kind] = words;
    let [latency, out, back] = numbers;
    format!("{from:<16} {to:<16} {cable:<44} {kind:<13} {latency:>10} {out:>9} {back:>9}  {last}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_its_columns_and_crosses_as_it_is() {
        let end = |device: &str, address: &str| End { device: device.into(), port: 1, address: address.into() };
        let row = Row {
            from: 0,
            to: 11,
            from_host: "a".into(),
            to_host: "b".into(),
            rail: Some(1),
            cable: Some(Cable { from: end("eth1", "10.0.1.1"), to: end("eno2", "10.0.1.2") }),
            kind: "tcp-sealed".into(),
            state: "up".into(),
            latency_us: Some(12.345),
            out: Some(1.25),
            back: None,
            fallback: None,
        };
        let line = row.line();
        let words: Vec<&str> = line.split_whitespace().collect();
        let wanted = "0 a 11 b eth1 10.0.1.1 - eno2 10.0.1.2 tcp-sealed 12.35 1.25 - up";
        assert_eq!(words, wanted.split(' ').collect::<Vec<_>>());
        assert_eq!(line.find("12.35").map(|at| at + 5), heading().find("latency us").map(|at| at + 10));
        let text = serde_json::to_string(&row).unwrap();
        assert_eq!(serde_json::from_str::<Row>(&text).unwrap(), row);
        assert!(text.contains("\"out_GBps\":1.25,\"back_GBps\":null"), "{text}");
    }
}
