//! How long calls take where ranks map one another's memory: as long as they did when they were measured.
//!
//! There is one way then, and nothing to choose. What a call takes hangs on which of its bytes find room in which caches, which of them are
//! written past these, and on what several processors get of the memory at once: each operation has a curve of its own, with steps in it
//! where vectors outgrow a cache. So it is measured at many lengths rather than reckoned from a few rates.

use std::collections::BTreeMap;

use fulmen_kernels::DType;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{Links, Operation, Question};

/// How long calls of ranks took that map one another's memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mapped {
    /// How many ranks they were.
    pub ranks: usize,
    /// The type of the elements.
    #[serde(serialize_with = "by_name", deserialize_with = "named")]
    pub dtype: DType,
    /// By operation, [`Question::bytes`] and microseconds, from the shortest call to the longest.
    pub calls: BTreeMap<Operation, Vec<(usize, f64)>>,
}

fn by_name<S: Serializer>(dtype: &DType, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(dtype)
}

fn named<'de, D: Deserializer<'de>>(deserializer: D) -> Result<DType, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
}

impl Mapped {
    /// Why these figures make no sense.
    pub(super) fn problem(&self) -> Option<String> {
        if self.ranks < 2 {
            return Some(format!("mapped ranks is {}: give 2 or more", self.ranks));
        }
        let wrong = |calls: &[(usize, f64)]| {
            let times = calls.iter().all(|(bytes, time)| *bytes > 0 && (1e-6..=1e12).contains(time));
            calls.is_empty() || !times || !calls.is_sorted_by(|(one, _), (next, _)| one < next)
        };
        let (operation, _) = self.calls.iter().find(|(_, calls)| wrong(calls))?;
        let name = operation.name();
        Some(format!(
            "mapped calls of {name}: give pairs of bytes and microseconds, each with more bytes than the one before"
        ))
    }

    fn time(&self, question: &Question) -> Option<f64> {
        let asked = (question.ranks, question.dtype) == (self.ranks, self.dtype);
        let calls = self.calls.get(&question.operation).filter(|_| asked)?;
        let bytes = question.bytes as f64;
        let behind = calls.partition_point(|(measured, _)| *measured < question.bytes);
        match (behind.checked_sub(1).map(|at| calls[at]), calls.get(behind)) {
            // Nothing takes less than the least, and of the longest calls the bytes alone count.
            (None, Some((_, time))) => Some(*time),
            (Some((last, time)), None) => Some(time * bytes / last as f64),
            // A time that is in proportion to the bytes is a straight line of logarithms, and so is one that does not hang on them.
            (Some((from, shorter)), Some((to, longer))) => {
                let part = (bytes / from as f64).ln() / (*to as f64 / from as f64).ln();
                Some(shorter * (longer / shorter).powf(part))
            }
            (None, None) => None,
        }
    }
}

/// What it takes, in microseconds, where ranks map one another's memory, on buffers; `None` if these links do not say: no such calls of
/// so many ranks were measured.
#[must_use]
pub fn predict_mapped(question: &Question, links: &Links) -> Option<f64> {
    links.mapped.as_ref()?.time(question)
}

#[cfg(test)]
#[path = "tests/mapped.rs"]
mod tests;
