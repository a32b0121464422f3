//! Measuring one rail of a link by itself.

use std::time::{Duration, Instant};

use fulmen_memory::Exposed;

use crate::{Fabric, FabricError, OpName, RailState, clock};

const OP: OpName = "probe_rail";

/// Tags that neither programs nor groups use, and whose label is 0.
const TAG: u64 = 0xff00_ffff_ffff_ff00;
const READY: u64 = TAG;
const DATA: u64 = TAG + 1;
const ECHO: u64 = TAG + 2;

/// Short messages that go back and forth.
const ECHOES: u32 = 100;
/// Long messages each way.
const ROUNDS: u32 = 3;

/// What was measured of one rail.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct RailProbe {
    /// Half of the shortest round trip of a few bytes.
    pub latency: Duration,
    /// Bytes a second of the fastest of three long messages to this rank.
    pub bytes_per_second: f64,
}

impl Fabric {
    /// Measures the rail `index` of the link with a rank alone, by messages of so many bytes (out of the pools: twice as many are
    /// taken). Both ranks call it, with the same values, while nothing else goes between them. Tags from 2^48 on are not to
    /// be used by the program meanwhile.
    ///
    /// # Errors
    /// [`FabricError::NoSuchRail`] if the rail is not there or not up, here; [`FabricError::Pool`]; as [`Fabric::send`].
    pub fn probe_rail(
        &self,
        rank: u32,
        index: usize,
        bytes: usize,
        timeout: Duration,
    ) -> Result<RailProbe, FabricError> {
        let until = clock::after(timeout);
        let rails = self.rails(rank);
        self.inner.check_peer(OP, rank)?;
        if rails.get(index).is_none_or(|rail| rail.state != RailState::Up) {
            return Err(FabricError::NoSuchRail { op: OP, rank, rail: index, rails: rails.len() });
        }
        let (out, into) = (self.alloc(bytes.max(1))?.into_exposed(), self.alloc(bytes.max(1))?.into_exposed());
        let restricted = Restricted::new(self, rank, index)?;
        let echo = self.echo(rank, until)?;
        let mut fastest = Duration::MAX;
        for _ in 0..ROUNDS {
            for receives in [self.rank() < rank, self.rank() > rank] {
                if receives {
                    fastest = fastest.min(self.receive_alone(rank, &into, until)?);
                } else {
                    self.recv_bytes(rank, READY, &mut [0], clock::until(until))?;
                    self.send(rank, DATA, &out, clock::until(until))?;
                }
            }
        }
        // Nothing of the probe is under way at either end then.
        self.echo(rank, until)?;
        drop(restricted);
        let measured = self.rails(rank).get(index).and_then(|rail| rail.latency);
        let bytes_per_second = bytes as f64 / fastest.max(Duration::from_nanos(1)).as_secs_f64();
        Ok(RailProbe { latency: measured.unwrap_or(echo), bytes_per_second })
    }

    /// Half of the shortest round trip of a short message, which takes any rail.
    fn echo(&self, rank: u32, until: Instant) -> Result<Duration, FabricError> {
        let mut shortest = Duration::MAX;
        for _ in 0..ECHOES {
            let start = Instant::now();
            if self.rank() < rank {
                self.send_bytes(rank, ECHO, &[1; 8], clock::until(until))?;
            }
            self.recv_bytes(rank, ECHO, &mut [0; 8], clock::until(until))?;
            if self.rank() > rank {
                self.send_bytes(rank, ECHO, &[1; 8], clock::until(until))?;
            }
            shortest = shortest.min(start.elapsed());
        }
        Ok(shortest / 2)
    }

    /// How long a message takes for which this end is ready.
    fn receive_alone(&self, rank: u32, into: &Exposed, until: Instant) -> Result<Duration, FabricError> {
        let operation = self.start_recv(rank, DATA, into)?;
        let start = Instant::now();
        self.send_bytes(rank, READY, &[1], clock::until(until))?;
        operation.wait(clock::until(until))?;
        Ok(start.elapsed())
    }
}

/// As long as it lives, large messages from a rank come over one rail.
struct Restricted<'a> {
    fabric: &'a Fabric,
    rank: u32,
}

impl Restricted<'_> {
    fn new(fabric: &Fabric, rank: u32, index: usize) -> Result<Restricted<'_>, FabricError> {
        fabric.lane(OP, rank)?.wire.restrict(Some(index));
        Ok(Restricted { fabric, rank })
    }
}

impl Drop for Restricted<'_> {
    fn drop(&mut self) {
        if let Ok(mut lane) = self.fabric.lane(OP, self.rank) {
            lane.wire.restrict(None);
        }
    }
}
