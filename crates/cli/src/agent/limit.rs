//! What is said behind `--limit`.

use fulmen_cluster::agent::api::Limit;

use super::AgentError;

/// The ends of sizes, and how many bytes they stand for.
const UNITS: [(char, u64); 4] = [('K', 1 << 10), ('M', 1 << 20), ('G', 1 << 30), ('T', 1 << 40)];

/// `mem=SIZE`, `cpu=NUMBER`, or both with a comma between them.
pub(super) fn limit(text: &str) -> Result<Limit, AgentError> {
    let mut limit = Limit::default();
    for part in text.split(',') {
        let twice = match part.split_once('=') {
            Some(("mem", size)) => limit.memory_bytes.replace(bytes(size)?).is_some(),
            Some(("cpu", number)) => limit.cpu_millis.replace(millis(number)?).is_some(),
            _ => return Err(AgentError(format!("{part:?} is no limit: give mem=512M, cpu=1.5, or mem=512M,cpu=1.5"))),
        };
        if twice {
            return Err(AgentError(format!("{part:?} says it twice: one of each is enough")));
        }
    }
    Ok(limit)
}

fn bytes(text: &str) -> Result<u64, AgentError> {
    let unit = UNITS.iter().find(|(end, _)| text.to_ascii_uppercase().ends_with(*end));
    let (number, unit) = unit.map_or((text, 1), |(_, unit)| (&text[..text.len() - 1], *unit));
    let bytes = number.parse().ok().and_then(|number: u64| number.checked_mul(unit)).filter(|bytes| *bytes > 0);
    bytes.ok_or_else(|| AgentError(format!("mem={text}: give bytes, such as 512M or 2G (K, M, G or T)")))
}

fn millis(text: &str) -> Result<u64, AgentError> {
    let number = text.parse().ok().filter(|number: &f64| (0.01..=10_000.0).contains(number));
    let millis = number.map(|number| (number * 1000.0).round() as u64);
    millis.ok_or_else(|| AgentError(format!("cpu={text}: give processors, such as 0.5 or 2, and 0.01 at least")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read() {
        let read = |text: &str| limit(text).map(|limit| (limit.memory_bytes, limit.cpu_millis)).ok();
        assert_eq!(read("mem=512M"), Some((Some(512 << 20), None)));
        assert_eq!(read("cpu=0.5,mem=2g"), Some((Some(2 << 30), Some(500))));
        assert_eq!(read("mem=1000,cpu=2"), Some((Some(1000), Some(2000))));
        for bad in ["", "mem", "mem=", "mem=0", "mem=1.5G", "mem=-1", "mem=99999999T", "mem=1\u{fc}", "disk=1"] {
            assert_eq!(read(bad), None, "{bad}");
        }
        for bad in ["cpu=0", "cpu=-1", "cpu=nan", "cpu=inf", "cpu=1,cpu=2", "mem=1M,", "cpu=1 mem=1"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
