//! What is known of a kind of cable, and from where.

use fulmen::parts::fabric::model::{Cable, Host};
use serde::Serialize;

/// How a figure is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Basis {
    /// Users of such hardware published it.
    MeasuredByUsers,
    /// Those who make it state it.
    Stated,
    /// It follows from others.
    Derived,
    /// Nobody measured it.
    Assumed,
}

impl Basis {
    pub fn words(self) -> &'static str {
        match self {
            Basis::MeasuredByUsers => "measured by users",
            Basis::Stated => "stated",
            Basis::Derived => "derived",
            Basis::Assumed => "assumed",
        }
    }
}

/// One figure, with what makes predictions better and worse where it has a range.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Figure {
    pub name: &'static str,
    pub unit: &'static str,
    pub best: f64,
    pub expected: f64,
    pub worst: f64,
    pub basis: Basis,
    /// Why, and where it stands.
    pub source: &'static str,
}

/// All that is reckoned with.
pub struct Figures {
    pub name: &'static str,
    pub latency: Figure,
    pub bandwidth: Figure,
    pub send: Figure,
    pub byte: Figure,
    pub copy: Figure,
    /// What a cable carries in each direction at most.
    pub line: Figure,
    /// What it carries in one direction while the other has less.
    pub boost: Figure,
    /// What a PCIe tunnel carries.
    pub tunnel: Figure,
    /// Measurements with which the figures above agree.
    pub published: [Published; 2],
}

/// What users measured for a SEND.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Published {
    pub bytes: u64,
    #[serde(rename = "measured_us")]
    pub measured: f64,
}

/// Which of a figure's three values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    Best,
    Expected,
    Worst,
}

impl Figure {
    pub fn of(&self, case: Case) -> f64 {
        match case {
            Case::Best => self.best,
            Case::Expected => self.expected,
            Case::Worst => self.worst,
        }
    }
}

impl Figures {
    pub fn cable(&self, case: Case) -> Cable {
        Cable { latency: self.latency.of(case), bandwidth: self.bandwidth.of(case) * 1000.0 }
    }

    pub fn host(&self, case: Case) -> Host {
        Host { send: self.send.of(case), byte: self.byte.of(case) / 1000.0 }
    }

    /// Microseconds for a byte.
    pub fn copy(&self, case: Case) -> f64 {
        1e-3 / self.copy.of(case)
    }

    /// Microseconds that a SEND of so many bytes takes by itself.
    pub fn bare(&self, bytes: u64) -> f64 {
        let cable = self.cable(Case::Expected);
        cable.latency + bytes as f64 / cable.bandwidth
    }

    /// Each, in the order in which they are told.
    pub fn all(&self) -> [Figure; 8] {
        [self.latency, self.bandwidth, self.send, self.byte, self.copy, self.line, self.boost, self.tunnel]
    }

    /// Those with this name.
    pub fn named(name: &str) -> Option<&'static Figures> {
        ALL.iter().find(|figures| figures.name == name)
    }
}

/// All that there are figures for.
pub static ALL: [Figures; 1] = [Figures {
    name: "thunderbolt5",
    latency: Figure {
        name: "latency of a SEND without its bytes",
        unit: "us",
        best: 3.0,
        expected: 4.19,
        worst: 5.55,
        basis: Basis::MeasuredByUsers,
        source: "64 B in 4.2 us, less its bytes; best: about 3 us in another report (NetworkChuck's of four Mac Studios); worst: the p99 of 4 KiB, 6.0 us, less its \
                 bytes. That the reports mean half a round trip is assumed",
    },
    bandwidth: Figure {
        name: "bandwidth of a port, each way",
        unit: "GB/s",
        best: 9.5,
        expected: 9.0,
        worst: 8.5,
        basis: Basis::MeasuredByUsers,
        source: "about 9 GB/s; best and worst: what rounds to it",
    },
    send: Figure {
        name: "a processor's work for a SEND, at each end",
        unit: "us",
        best: 0.2,
        expected: 0.5,
        worst: 1.07,
        basis: Basis::Assumed,
        source: "worst: half of what 8 B take over the software device on the Linux machine of docs/benchmarks.md, 2.13 us, as \
                 if the device itself were free",
    },
    byte: Figure {
        name: "a processor's work for a byte of a frame, at each end",
        unit: "ns",
        best: 0.08,
        expected: 0.15,
        worst: 0.47,
        basis: Basis::Assumed,
        source: "two copies and a CRC-32C; worst: from the same table, what 4 KiB take longer than 8 B",
    },
    copy: Figure {
        name: "copying and reducing in an all-reduce",
        unit: "GB/s",
        best: 50.0,
        expected: 20.0,
        worst: 10.0,
        basis: Basis::Assumed,
        source: "one processor of such machines",
    },
    line: Figure {
        name: "rate of a cable, each way",
        unit: "Gb/s",
        best: 80.0,
        expected: 80.0,
        worst: 80.0,
        basis: Basis::Stated,
        source: "two lanes of 40 Gb/s in each direction (PAM-3, 25.6 GBaud, 11 bits in 7 symbols): synopsys.com, \"PAM-3 \
                 Technology Implementation in USB4 v2\"; Macs that are joined tell 80 Gb/s: github.com/exo-explore/exo, pull \
                 request 2063",
    },
    boost: Figure {
        name: "rate of a cable with bandwidth boost, one way (40 Gb/s the other)",
        unit: "Gb/s",
        best: 120.0,
        expected: 120.0,
        worst: 120.0,
        basis: Basis::Stated,
        source: "for displays: tidbits.com, \"Thunderbolt 5: Only Necessary for the Most Demanding Uses\"; no report of it \
                 between two hosts",
    },
    tunnel: Figure {
        name: "a PCIe tunnel, each way",
        unit: "Gb/s",
        best: 63.0,
        expected: 63.0,
        worst: 63.0,
        basis: Basis::Derived,
        source: "PCIe 4.0 with four lanes: 4 x 16 GT/s x 128/130, stated as 64 Gb/s. It is the way to devices. Two hosts are not \
                 joined by it: the 72 Gb/s that users measured would not go through",
    },
    published: [Published { bytes: 64, measured: 4.2 }, Published { bytes: 4096, measured: 4.6 }],
}];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_agree_with_what_was_published() {
        for figures in &ALL {
            for published in figures.published {
                let reckoned = figures.bare(published.bytes);
                assert!((reckoned - published.measured).abs() <= 0.051, "{reckoned} beside {published:?}");
            }
            // The p99 of 4 KiB.
            let worst = figures.cable(Case::Worst);
            assert!((worst.latency + 4096.0 / worst.bandwidth - 6.0).abs() < 0.051);
            // Eight bits.
            assert!(figures.bandwidth.best * 8.0 <= figures.line.expected);
        }
    }

    #[test]
    fn no_case_is_better_than_the_best() {
        for figures in &ALL {
            for [better, other] in [[Case::Best, Case::Expected], [Case::Expected, Case::Worst]] {
                let (one, two) = (figures.cable(better), figures.cable(other));
                assert!(one.latency <= two.latency && one.bandwidth >= two.bandwidth);
                let (one, two) = (figures.host(better), figures.host(other));
                assert!(one.send <= two.send && one.byte <= two.byte);
                assert!(figures.copy(better) <= figures.copy(other));
            }
        }
    }
}
