//! One measured case as every contender prints it: one JSON object a line.

use serde::{Deserialize, Serialize};

/// A case's figures. Times are per call (of p2p: half of a round trip), in microseconds, of the slowest rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    pub op: String,
    pub bytes: u64,
    pub ranks: u32,
    pub dtype: String,
    pub memory: String,
    pub samples: u64,
    pub min_us: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    #[serde(rename = "algbw_GBps")]
    pub algbw_gbps: f64,
    #[serde(rename = "busbw_GBps")]
    pub busbw_gbps: f64,
    /// Elements of a checked result that were not what they should be.
    pub wrong: u64,
}

/// Reads what a contender printed. Lines that are no JSON object are left out, since launchers print remarks of their own;
/// an object that is no record, a time that is none and a wrong result are errors.
pub fn parse(output: &str) -> Result<Vec<Record>, String> {
    let mut records = Vec::new();
    for line in output.lines().map(str::trim).filter(|line| line.starts_with('{')) {
        let record: Record =
            serde_json::from_str(line).map_err(|error| format!("unreadable record ({error}): {line}"))?;
        if !(record.p50_us.is_finite() && record.p50_us > 0.0) {
            return Err(format!("{} {} has no usable median: {line}", record.op, record.bytes));
        }
        if record.wrong > 0 {
            return Err(format!("{} {} gave {} wrong elements", record.op, record.bytes, record.wrong));
        }
        records.push(record);
    }
    Ok(records)
}
