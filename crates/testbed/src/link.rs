//! What a wire does to frames, and what it did.

use std::time::Duration;

/// What a wire does to the frames of one direction. [`Link::new`] does nothing to them.
///
/// Chances are from 0 to 1, and each frame has its own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    pub(crate) delay: Duration,
    pub(crate) jitter: Duration,
    pub(crate) loss: f64,
    pub(crate) reorder: f64,
    pub(crate) duplicate: f64,
    pub(crate) corrupt: f64,
    pub(crate) rate: Option<u64>,
    pub(crate) queue: Duration,
    pub(crate) mtu: Option<usize>,
    pub(crate) seed: u64,
}

impl Link {
    /// Frames cross as they are, as fast as they can.
    #[must_use]
    pub const fn new() -> Link {
        Link {
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            loss: 0.0,
            reorder: 0.0,
            duplicate: 0.0,
            corrupt: 0.0,
            rate: None,
            queue: Duration::from_millis(250),
            mtu: None,
            seed: 0,
        }
    }

    /// Each frame takes so long.
    #[must_use]
    pub const fn delay(self, delay: Duration) -> Link {
        Link { delay, ..self }
    }

    /// Each frame takes up to so much longer, evenly drawn. Frames stay in order.
    #[must_use]
    pub const fn jitter(self, jitter: Duration) -> Link {
        Link { jitter, ..self }
    }

    /// The chance of a frame to be lost.
    #[must_use]
    pub const fn loss(self, chance: f64) -> Link {
        Link { loss: chance, ..self }
    }

    /// The chance of a frame to be overtaken by the next one to three; if none follow, it comes 10 ms late.
    #[must_use]
    pub const fn reorder(self, chance: f64) -> Link {
        Link { reorder: chance, ..self }
    }

    /// The chance of a frame to come twice.
    #[must_use]
    pub const fn duplicate(self, chance: f64) -> Link {
        Link { duplicate: chance, ..self }
    }

    /// The chance of one bit of an IP packet's payload to be turned over, which the checksums of TCP and UDP find.
    #[must_use]
    pub const fn corrupt(self, chance: f64) -> Link {
        Link { corrupt: chance, ..self }
    }

    /// How many bits of frames cross in a second, Ethernet's header counted, its gaps not.
    #[must_use]
    pub const fn rate(self, bits_per_second: u64) -> Link {
        Link { rate: Some(bits_per_second), ..self }
    }

    /// How long a frame may wait for its turn under a rate before it is dropped instead: 250 ms unless said otherwise.
    #[must_use]
    pub const fn queue(self, longest: Duration) -> Link {
        Link { queue: longest, ..self }
    }

    /// The bytes of the longest packet that crosses, IP header counted. Longer ones vanish, and nobody is told: where the
    /// interfaces at the ends believe in more ([`Net::set_mtu`](crate::Net::set_mtu)), this is a black hole.
    #[must_use]
    pub const fn mtu(self, bytes: usize) -> Link {
        Link { mtu: Some(bytes), ..self }
    }

    /// What chances are drawn from.
    #[must_use]
    pub const fn seed(self, seed: u64) -> Link {
        Link { seed, ..self }
    }
}

impl Default for Link {
    fn default() -> Link {
        Link::new()
    }
}

/// What became of the frames of one direction since the net was made. Each frame that entered, and each copy that the wire made
/// of one, is in exactly one of the others, or still under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Frames that a host sent.
    pub entered: u64,
    /// Second copies made.
    pub duplicated: u64,
    /// Frames handed to the other host's device.
    pub delivered: u64,
    /// Dropped by chance.
    pub lost: u64,
    /// Dropped because the direction is blocked or a cable is pulled.
    pub blocked: u64,
    /// Dropped as longer than the MTU.
    pub too_big: u64,
    /// Dropped because too much waited.
    pub overflowed: u64,
    /// Dropped by the other host, whose interface is down.
    pub refused: u64,
    /// Of those that were not dropped, how many had a bit turned over.
    pub corrupted: u64,
    /// Of those that were not dropped, how many were held back to be overtaken.
    pub reordered: u64,
}

impl Counts {
    /// Frames and copies that never come.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.lost + self.blocked + self.too_big + self.overflowed + self.refused
    }
}
