//! How long it takes.

use super::{Leg, Operation, Toward, Wire};

/// What one cable does, in each direction, both at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cable {
    /// Microseconds from the post of a SEND of no bytes until its RECV has completed.
    pub latency: f64,
    /// Bytes a microsecond.
    pub bandwidth: f64,
}

/// What a processor does for a SEND, at each of its two ends, that is not in the cable's figures: the link's protocol,
/// checksums, copies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Host {
    /// Microseconds for each SEND.
    pub send: f64,
    /// Microseconds for each byte of a frame. Chunks have none: the device carries them.
    pub byte: f64,
}

/// How long an operation takes that has the link to itself, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Until the bytes are where they belong.
    pub delivered: f64,
    /// Until both ranks know.
    pub done: f64,
}

impl Host {
    /// For one SEND of so many bytes.
    fn of(&self, chunk: bool, bytes: u64) -> f64 {
        self.send + if chunk { 0.0 } else { self.byte * bytes as f64 }
    }
}

impl Leg {
    /// From the first post until the last SEND has come. Chunks are dealt out to so many cables; frames go over one.
    ///
    /// The sending processor, the cable and the receiving processor work at once on SENDs that follow one another, so that
    /// the slowest of the three sets the pace.
    #[must_use]
    pub fn time(&self, cable: &Cable, host: &Host, cables: u64) -> f64 {
        let wire = |bytes: u64| bytes as f64 / cable.bandwidth;
        if self.chunks {
            let busiest = self.bytes.min(self.sends.div_ceil(cables.max(1)) * self.longest);
            return cable.latency + 2.0 * host.of(true, 0) + wire(busiest);
        }
        let (others, rest) = (self.sends - 1, self.bytes - self.longest);
        let pace = wire(rest).max(others as f64 * host.send + host.byte * rest as f64);
        cable.latency + 2.0 * host.of(false, self.longest) + wire(self.longest) + pace
    }
}

impl Wire {
    /// How long an operation takes that has the link to itself, if its chunks are dealt out to so many cables.
    #[must_use]
    pub fn time(&self, operation: Operation, bytes: u64, cable: &Cable, host: &Host, cables: u64) -> Cost {
        let steps = self.steps(operation, bytes);
        let time = |legs: &[Leg]| legs.iter().map(|leg| leg.time(cable, host, cables)).sum();
        Cost { delivered: time(&steps.legs[..steps.delivered]), done: time(&steps.legs) }
    }

    /// How long a processor is at work for an operation, at either end: it sends or receives each SEND.
    #[must_use]
    pub fn work(&self, operation: Operation, bytes: u64, host: &Host) -> f64 {
        let of = |leg: &Leg| leg.sends as f64 * host.send + if leg.chunks { 0.0 } else { host.byte * leg.bytes as f64 };
        self.steps(operation, bytes).legs.iter().map(of).sum()
    }

    /// Bytes a microsecond of messages of this length that follow one another in one direction, many of them under way.
    ///
    /// The slowest of these sets the pace: the cables, the busier processor, the credits of frames and the receives that
    /// can be posted for chunks, each of which is used again after a round trip.
    #[must_use]
    pub fn stream(&self, bytes: u64, cable: &Cable, host: &Host, cables: u64) -> f64 {
        let cables = cables.max(1) as f64;
        let wire = |bytes: u64| bytes as f64 / cable.bandwidth;
        let round_trip = 2.0 * (cable.latency + 2.0 * host.send);
        let (mut carried, mut window) = (0.0, 0.0_f64);
        for leg in self.steps(Operation::Message, bytes).legs.iter().filter(|leg| leg.toward == Toward::There) {
            let sends = leg.sends as f64;
            if leg.chunks {
                carried += wire(leg.bytes) / cables;
                window = window.max(sends * (round_trip + wire(leg.longest)) / (self.chunks as f64 * cables));
            } else {
                carried += wire(leg.bytes);
                let mean = leg.bytes / leg.sends;
                let each = wire(mean).max(host.of(false, mean));
                // Credits come back so many at a time; those that are left are used meanwhile.
                let overhang = (2 * self.credited).saturating_sub(self.credits) as f64;
                window = window.max(sends * (round_trip + overhang * each) / self.credited as f64);
            }
        }
        let pace = carried.max(window).max(self.work(Operation::Message, bytes, host));
        bytes as f64 / pace
    }
}

#[cfg(test)]
#[path = "tests/time.rs"]
mod tests;
