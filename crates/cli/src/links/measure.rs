//! How fast a link is, by messages over it while nothing else goes over any.

use std::time::{Duration, Instant};

use fulmen::{CollectiveError, Element, Group};

/// Memory for buffers: one of a message at each end.
pub const POOL: u64 = 64 << 20;

const TAG: u64 = 0x11;
/// The longest message, and the shortest one of a slow link.
const LONGEST: usize = 16 << 20;
const SHORTEST: usize = 64 << 10;
/// About how long a long message is to take.
const WANTED: Duration = Duration::from_millis(50);
/// Short messages back and forth; the first ones find out how many it may be.
const FIRST: u32 = 10;
const MOST: u32 = 1000;
/// About how long these may take.
const BUDGET: Duration = Duration::from_millis(100);
/// Long messages each way.
const ROUNDS: u32 = 4;

/// What one end of a link has measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Half of the shortest round trip.
    pub latency: Duration,
    /// Bytes a second of the fastest long message to this rank.
    pub received: f64,
    /// What the long messages had.
    pub bytes: usize,
}

/// Measures the link with a rank. Both ranks call it.
pub fn measure(group: &Group, peer: u32) -> Result<Measured, CollectiveError> {
    let begins = group.rank() < peer;
    let first = echoes(group, peer, FIRST)?;
    let count = agree(group, peer, u64::from(times(BUDGET, first, MOST)))?;
    let latency = first.min(echoes(group, peer, count as u32)?) / 2;

    let mut trial = group.alloc::<u8>(SHORTEST)?;
    let trial = stream(group, peer, &mut trial, begins)?.min(stream(group, peer, &mut trial, !begins)?);
    let many = u64::from(times(WANTED, trial, (LONGEST / SHORTEST) as u32));
    let bytes = agree(group, peer, many)? as usize * SHORTEST;
    let mut buffer = group.alloc::<u8>(bytes)?;
    let mut fastest = Duration::MAX;
    for _ in 0..ROUNDS {
        for sends in [begins, !begins] {
            let took = stream(group, peer, &mut buffer, sends)?;
            if !sends {
                fastest = fastest.min(took);
            }
        }
    }
    Ok(Measured { latency, received: bytes as f64 / fastest.as_secs_f64().max(1e-9), bytes })
}

/// Has both ends know the number that the one with the smaller rank has come to.
pub fn agree(group: &Group, peer: u32, number: u64) -> Result<u64, CollectiveError> {
    let mut agreed = [number];
    if group.rank() < peer {
        group.send(&agreed[..], peer, TAG)?;
    } else {
        group.recv(&mut agreed[..], peer, TAG)?;
    }
    Ok(agreed[0])
}

/// The other end's number, for the one with the smaller rank; the other one tells it.
pub fn tell<T: Element>(group: &Group, peer: u32, number: T) -> Result<T, CollectiveError> {
    let mut told = [number];
    if group.rank() < peer {
        group.recv(&mut told[..], peer, TAG)?;
    } else {
        group.send(&told[..], peer, TAG)?;
    }
    Ok(told[0])
}

/// The shortest round trip of a short message.
fn echoes(group: &Group, peer: u32, count: u32) -> Result<Duration, CollectiveError> {
    let mut word = [0u64];
    let mut shortest = Duration::MAX;
    for _ in 0..count {
        let start = Instant::now();
        if group.rank() < peer {
            group.send(&word[..], peer, TAG)?;
            group.recv(&mut word[..], peer, TAG)?;
        } else {
            group.recv(&mut word[..], peer, TAG)?;
            group.send(&word[..], peer, TAG)?;
        }
        shortest = shortest.min(start.elapsed());
    }
    Ok(shortest)
}

/// How long a message takes from when the receiver asks for it until it is there; about the same at both ends.
fn stream(group: &Group, peer: u32, buffer: &mut fulmen::Buffer<u8>, sends: bool) -> Result<Duration, CollectiveError> {
    let mut ready = [0u8];
    if sends {
        group.recv(&mut ready[..], peer, TAG)?;
        let start = Instant::now();
        group.send(buffer, peer, TAG)?;
        group.recv(&mut ready[..], peer, TAG)?;
        return Ok(start.elapsed());
    }
    let start = Instant::now();
    group.send(&ready[..], peer, TAG)?;
    group.recv(buffer, peer, TAG)?;
    let took = start.elapsed();
    group.send(&ready[..], peer, TAG)?;
    Ok(took)
}

/// How often something fits into a time: once at least.
fn times(span: Duration, one: Duration, most: u32) -> u32 {
    let times = span.as_nanos() / one.as_nanos().max(1);
    u32::try_from(times).unwrap_or(u32::MAX).clamp(1, most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_links_are_asked_less() {
        let micros = Duration::from_micros;
        assert_eq!(times(micros(100), micros(10), 1000), 10);
        assert_eq!(times(micros(100), micros(1000), 1000), 1);
        assert_eq!(times(BUDGET, Duration::ZERO, MOST), MOST);
    }
}
