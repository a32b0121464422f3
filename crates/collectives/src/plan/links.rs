//! What joins ranks, and how fast it is, as link files say it.

use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::Mapped;

/// How hosts are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Shape {
    /// There is one host.
    Host,
    /// Each two by a cable of their own.
    Mesh,
    /// Each with the two beside it, the last one with the first. Others are reached through those between.
    Ring,
    /// Each by one cable with a switch that carries all at once.
    Switch,
    /// Each by one cable with the switch of its rack; racks are joined by cables of the same kind.
    FatTree {
        /// Hosts of a rack.
        rack: usize,
        /// Cables from a rack to the switches above, each way.
        uplinks: usize,
    },
}

/// How ranks of one host reach one another, where hosts have several.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Inside {
    /// As [`Links::latency_us`].
    pub latency_us: f64,
    /// As [`Links::message_us`].
    pub message_us: f64,
    /// As [`Links::byte_ns`].
    pub byte_ns: f64,
}

/// What joins ranks. Times are of one message; all figures are at least 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Links {
    /// What it is called.
    pub name: String,
    /// Where the figures are from.
    pub source: String,
    /// How hosts are joined.
    pub shape: Shape,
    /// The most hosts that can be joined so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most_hosts: Option<usize>,
    /// Ranks of each host.
    #[serde(default = "one")]
    pub ranks_per_host: usize,
    /// Processors of each host, which its ranks share.
    #[serde(default = "many")]
    pub processors: usize,
    /// Microseconds from when a message is sent until its receiver sees it, without its bytes and what the receiver does for it.
    pub latency_us: f64,
    /// Bytes a nanosecond (GB/s) of a cable, each way. None where nothing but processors moves them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<f64>,
    /// Microseconds that a processor is at work for a message, at each end.
    pub message_us: f64,
    /// Nanoseconds that a processor is at work for each byte, at each end: 0 where devices move them.
    #[serde(default)]
    pub byte_ns: f64,
    /// Messages of at least so many bytes are offered and granted first, which takes another way there and back,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offered_from: Option<usize>,
    /// and then so many nanoseconds of a processor for each byte.
    #[serde(default)]
    pub offered_byte_ns: f64,
    /// Microseconds that a switch or a rank that passes messages on adds.
    #[serde(default)]
    pub hop_us: f64,
    /// Microseconds of a processor that a message takes to wake its receiver, where ranks share processors, and as long again until that has
    /// its turn.
    #[serde(default)]
    pub wake_us: f64,
    /// Nanoseconds for each byte that is copied out of memory that was received into.
    pub copy_ns: f64,
    /// How many times as long a byte takes that is copied into memory that is sent from: more where what the receiver has read of it has to
    /// be got back from its caches.
    #[serde(default = "as_long", skip_serializing_if = "is_as_long")]
    pub staging: f64,
    /// Nanoseconds for each byte of a contribution that is combined.
    pub reduce_ns: f64,
    /// By how many bytes all ranks of a host work on, which have room in its caches or not, from the fewest to the most: nanoseconds more for
    /// each byte that is copied or combined.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uncached_ns: Vec<(usize, f64)>,
    /// Within a host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inside: Option<Inside>,
    /// Where the ranks of one host map one another's memory: then there is one way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mapped: Option<Mapped>,
    /// The very cables, where ranks know them, instead of the shape. No file says them.
    #[serde(skip)]
    pub ways: Option<Arc<Ways>>,
}

/// The cables on a way, each with how many of them there are side by side.
type Way = SmallVec<[(usize, usize); 4]>;

/// Which cables lead from host to host, as a group's ranks know it.
#[derive(Debug, PartialEq)]
pub struct Ways {
    hosts: usize,
    /// By both ends.
    ways: Vec<Way>,
    cables: usize,
}

impl Ways {
    /// Of so many hosts. `between(from, to)` says over which others it goes, and `beside(one, other)` how many cables join two; both may speak
    /// of more than these hosts, but of none from `all` on.
    pub(crate) fn new(
        hosts: &[u32],
        all: usize,
        between: impl Fn(u32, u32) -> Vec<u32>,
        beside: impl Fn(u32, u32) -> u32,
    ) -> Ways {
        let way = |from: u32, to: u32| -> Way {
            let mut at = from;
            let on = if from == to { Vec::new() } else { [between(from, to), vec![to]].concat() };
            let cable = |next: u32| {
                let cable = (at as usize * all + next as usize, beside(at, next).max(1) as usize);
                at = next;
                cable
            };
            on.into_iter().map(cable).collect()
        };
        let ways = hosts.iter().flat_map(|from| hosts.iter().map(|to| way(*from, *to))).collect();
        Ways { hosts: hosts.len(), ways, cables: all * all }
    }
}

fn one() -> usize {
    1
}

fn many() -> usize {
    64
}

fn as_long() -> f64 {
    1.0
}

// By reference, as serde asks.
fn is_as_long(times: &f64) -> bool {
    *times == as_long()
}

/// A link file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LinksError {
    /// It cannot be read.
    #[error("cannot read the link file {path}: {cause}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        cause: std::io::Error,
    },
    /// It is no link file.
    #[error("{path} is no link file: {cause}; docs/planner.md says what is in one")]
    Parse {
        /// The file.
        path: String,
        /// What is wrong, and where.
        cause: serde_json::Error,
    },
    /// Its figures make no sense.
    #[error("{path} is no link file: {what}")]
    Figure {
        /// The file.
        path: String,
        /// What is wrong.
        what: String,
    },
}

/// The link files that come with this library, by name.
const KNOWN: [(&str, &str); 4] = [
    ("thunderbolt5-mesh-4", include_str!("../../links/thunderbolt5-mesh-4.json")),
    ("thunderbolt5-mesh-8", include_str!("../../links/thunderbolt5-mesh-8.json")),
    ("thunderbolt5-ring", include_str!("../../links/thunderbolt5-ring.json")),
    ("roce-fat-tree", include_str!("../../links/roce-fat-tree.json")),
];

/// The most of anything that is counted.
const MOST: usize = 1 << 16;

impl Links {
    /// The names of the link files that come with this library.
    pub fn known() -> impl Iterator<Item = &'static str> {
        KNOWN.iter().map(|(name, _)| *name)
    }

    /// One that comes with this library, or else the one in this file.
    ///
    /// # Errors
    /// [`LinksError`] if the file cannot be read, or its figures make no sense.
    pub fn load(name: &str) -> Result<Links, LinksError> {
        match KNOWN.iter().find(|(known, _)| *known == name) {
            Some((_, text)) => Links::parse(name, text),
            None => {
                let text = std::fs::read_to_string(Path::new(name))
                    .map_err(|cause| LinksError::Read { path: name.to_owned(), cause })?;
                Links::parse(name, &text)
            }
        }
    }

    /// What a link file says: JSON, one object with the fields of this type.
    ///
    /// # Errors
    /// [`LinksError`], which names it by `path`.
    pub fn parse(path: &str, text: &str) -> Result<Links, LinksError> {
        let links: Links =
            serde_json::from_str(text).map_err(|cause| LinksError::Parse { path: path.to_owned(), cause })?;
        match links.problem() {
            None => Ok(links),
            Some(what) => Err(LinksError::Figure { path: path.to_owned(), what }),
        }
    }

    fn problem(&self) -> Option<String> {
        let mut figures = vec![
            ("latency_us", self.latency_us),
            ("message_us", self.message_us),
            ("byte_ns", self.byte_ns),
            ("offered_byte_ns", self.offered_byte_ns),
            ("hop_us", self.hop_us),
            ("wake_us", self.wake_us),
            ("copy_ns", self.copy_ns),
            ("staging", self.staging),
            ("reduce_ns", self.reduce_ns),
        ];
        figures.extend(self.uncached_ns.iter().map(|(_, figure)| ("uncached_ns", *figure)));
        if let Some(Inside { latency_us, message_us, byte_ns }) = self.inside {
            figures.extend([("inside latency_us", latency_us), ("message_us", message_us), ("byte_ns", byte_ns)]);
        }
        let wrong = |figure: f64| !(0.0..=1e9).contains(&figure);
        if let Some((name, figure)) = figures.into_iter().find(|(_, figure)| wrong(*figure)) {
            return Some(format!("{name} is {figure}: give a number from 0 to 1e9"));
        }
        if let Some(bandwidth) = self.bandwidth.filter(|bandwidth| !(1e-6..=1e9).contains(bandwidth)) {
            return Some(format!("bandwidth is {bandwidth}: give gigabytes a second, from 1e-6 to 1e9"));
        }
        let mut counts = vec![("ranks_per_host", self.ranks_per_host), ("processors", self.processors)];
        counts.extend(self.most_hosts.map(|most| ("most_hosts", most)));
        if let Shape::FatTree { rack, uplinks } = self.shape {
            counts.extend([("rack", rack), ("uplinks", uplinks)]);
        }
        if let Some((name, count)) = counts.into_iter().find(|(_, count)| !(1..=MOST).contains(count)) {
            return Some(format!("{name} is {count}: give a number from 1 to {MOST}"));
        }
        if !self.uncached_ns.is_sorted_by(|(bytes, _), (more, _)| bytes < more)
            || self.uncached_ns.first().is_some_and(|(bytes, _)| *bytes == 0)
        {
            return Some(
                "uncached_ns: give pairs of bytes and nanoseconds, each with more bytes than the one before".to_owned(),
            );
        }
        if let Some(problem) = self.mapped.as_ref().and_then(Mapped::problem) {
            return Some(problem);
        }
        match self.shape {
            Shape::Host if self.most_hosts.is_some_and(|most| most != 1) => Some("one host is not several".to_owned()),
            _ => None,
        }
    }

    /// The most ranks that it joins.
    #[must_use]
    pub fn most_ranks(&self) -> Option<usize> {
        Some(self.most_hosts? * self.ranks_per_host)
    }

    /// By rank, its host, of so many ranks that are placed host by host.
    #[must_use]
    pub fn hosts(&self, ranks: usize) -> Vec<u32> {
        let each = if self.shape == Shape::Host { ranks.max(1) } else { self.ranks_per_host };
        (0..ranks).map(|rank| (rank / each) as u32).collect()
    }

    /// Nanoseconds more for each byte that is copied or combined by ranks of a host that work on so many: little by little, what is needed again
    /// has gone from the caches.
    pub(crate) fn uncached(&self, bytes: usize) -> f64 {
        let figures = &self.uncached_ns;
        let behind = figures.partition_point(|(worked_on, _)| *worked_on < bytes);
        match (behind.checked_sub(1).map(|at| figures[at]), figures.get(behind)) {
            (Some((from, few)), Some((to, many))) => {
                let part = (bytes as f64 / from as f64).ln() / (*to as f64 / from as f64).ln();
                few + (many - few) * part
            }
            (Some((_, figure)), None) | (None, Some(&(_, figure))) => figure,
            (None, None) => 0.0,
        }
    }

    /// How many cables there are, one for each direction and with numbers of their own, if there are so many hosts.
    pub(crate) fn cables(&self, hosts: usize) -> usize {
        if let Some(ways) = &self.ways {
            return ways.cables;
        }
        match self.shape {
            Shape::Host => 0,
            Shape::Mesh => hosts * hosts,
            Shape::Ring | Shape::Switch => 2 * hosts,
            Shape::FatTree { rack, .. } => 2 * hosts + 2 * hosts.div_ceil(rack),
        }
    }

    /// The cables on the way from one host to another, of so many, each with how many of them there are side by side.
    pub(crate) fn way(&self, from: usize, to: usize, hosts: usize) -> Way {
        if let Some(ways) = &self.ways {
            return ways.ways[from * ways.hosts + to].clone();
        }
        let mut way = SmallVec::new();
        match self.shape {
            _ if from == to => {}
            Shape::Host => {}
            Shape::Mesh => way.push((from * hosts + to, 1)),
            Shape::Switch => way.extend([(from, 1), (hosts + to, 1)]),
            Shape::Ring => {
                let up = (to + hosts - from) % hosts;
                let hops = up.min(hosts - up);
                way.extend((0..hops).map(|hop| match up <= hosts - up {
                    true => (2 * ((from + hop) % hosts), 1),
                    false => (2 * ((from + hosts - hop) % hosts) + 1, 1),
                }));
            }
            Shape::FatTree { rack, uplinks } => {
                way.push((from, 1));
                let (up, down) = (from / rack, to / rack);
                if up != down {
                    way.extend([(2 * hosts + 2 * up, uplinks), (2 * hosts + 2 * down + 1, uplinks)]);
                }
                way.push((hosts + to, 1));
            }
        }
        way
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_come_with_this_library_are_right() {
        for name in Links::known() {
            let links = Links::load(name).unwrap();
            assert_eq!(links.name, name);
            let text = serde_json::to_string(&links).unwrap();
            assert_eq!(Links::parse(name, &text).unwrap(), links);
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_a_reason() {
        let good = serde_json::json!({
            "name": "x", "source": "y", "shape": "mesh", "latency_us": 1, "message_us": 1, "copy_ns": 0.1, "reduce_ns": 0.1
        });
        assert!(Links::parse("x", &good.to_string()).is_ok());
        for (field, value, words) in [
            ("latency_us", serde_json::json!(-1), "latency_us"),
            ("bandwidth", serde_json::json!(0), "bandwidth"),
            ("processors", serde_json::json!(0), "processors"),
            ("processors", serde_json::json!(1u64 << 60), "processors"),
            ("most_hosts", serde_json::json!(0), "most_hosts"),
            ("colour", serde_json::json!("red"), "colour"),
            ("shape", serde_json::json!({"fat-tree": {"rack": 0, "uplinks": 1}}), "rack"),
            ("shape", serde_json::json!("star"), "star"),
            ("uncached_ns", serde_json::json!([[0, 0.1]]), "uncached_ns"),
            ("uncached_ns", serde_json::json!([[8, 0.1], [8, 0.2]]), "uncached_ns"),
            ("uncached_ns", serde_json::json!([[8, -0.1]]), "uncached_ns"),
        ] {
            let mut bad = good.clone();
            bad[field] = value;
            let error = Links::parse("a file", &bad.to_string()).unwrap_err().to_string();
            assert!(error.contains(words) && error.contains("a file"), "{error}");
        }
        assert!(matches!(Links::load("/nonexistent"), Err(LinksError::Read { .. })));
    }

    #[test]
    fn bytes_cost_more_little_by_little_as_caches_have_less_room() {
        let links = |uncached_ns: &[(usize, f64)]| Links {
            uncached_ns: uncached_ns.to_vec(),
            ..Links::load("thunderbolt5-ring").unwrap()
        };
        let some = links(&[(1 << 20, 0.0), (1 << 22, 0.5), (1 << 24, 0.3)]);
        for (bytes, ns) in [(1, 0.0), (1 << 20, 0.0), (1 << 21, 0.25), (1 << 22, 0.5), (1 << 23, 0.4), (1 << 30, 0.3)] {
            assert!((some.uncached(bytes) - ns).abs() < 1e-12, "{bytes} B: {}", some.uncached(bytes));
        }
        assert_eq!((links(&[]).uncached(1 << 30), links(&[(8, 0.2)]).uncached(1)), (0.0, 0.2));
    }

    #[test]
    fn ways_lead_over_cables_that_there_are() {
        for name in Links::known() {
            let links = Links::load(name).unwrap();
            let hosts = links.most_hosts.unwrap_or(20);
            for (from, to) in (0..hosts).flat_map(|from| (0..hosts).map(move |to| (from, to))) {
                let way = links.way(from, to, hosts);
                assert!(way.iter().all(|(cable, many)| *cable < links.cables(hosts) && *many > 0));
                assert_eq!(way.is_empty(), from == to);
            }
        }
        let ring = Links { shape: Shape::Ring, ..Links::load("thunderbolt5-ring").unwrap() };
        assert_eq!(ring.way(6, 1, 8).as_slice(), [(12, 1), (14, 1), (0, 1)]);
        assert_eq!(ring.way(1, 7, 8).as_slice(), [(3, 1), (1, 1)]);
    }
}
