//! Ping-pong: one SEND to and one fro.

use std::time::{Duration, Instant};

use fulmen::parts::verbs::{Completion, SendOp, SendRequest};

use super::{BUDGET, Line};
use crate::probe::answer::Latency;
use crate::probe::ends::poll;

/// Round trips before those that count.
const WARM_UP: usize = 100;
const FEWEST: usize = 100;
const MOST: usize = 20_000;

/// Measures round trips of so many bytes; the far end has nothing to tell.
pub fn measure(line: &Line, bytes: usize) -> anyhow::Result<Option<Latency>> {
    let mut samples = vec![Duration::ZERO; WARM_UP];
    play(line, bytes, &mut samples)?;
    let rounds = line.agree(|| {
        let mean = samples.iter().sum::<Duration>() / WARM_UP as u32;
        let rounds = BUDGET.as_nanos() / mean.as_nanos().max(1);
        (rounds as usize).clamp(FEWEST, MOST)
    })?;
    samples.resize(rounds, Duration::ZERO);
    play(line, bytes, &mut samples)?;
    if !line.near {
        return Ok(None);
    }
    samples.sort_unstable();
    let half = |share: f64| {
        let index = ((samples.len() - 1) as f64 * share).round() as usize;
        samples[index].as_nanos() as f64 / 2000.0
    };
    Ok(Some(Latency {
        bytes: bytes as u64,
        median_us: half(0.5),
        p99_us: half(0.99),
        round_trips: rounds as u64,
        inline: line.goes_inline(bytes),
    }))
}

/// Goes to and fro as often as there are samples, and times each round at the near end.
fn play(line: &Line, bytes: usize, samples: &mut [Duration]) -> anyhow::Result<()> {
    let (qp, send_cq, recv_cq) = (&*line.end.qp, &*line.end.send_cq, &*line.end.recv_cq);
    let rounds = samples.len();
    let receives = line.receives(bytes, rounds);
    let again = &receives[..1];
    let send = |signaled| [line.request(SendOp::Send { imm: None }, bytes, signaled)];
    let (quiet, told): ([SendRequest; 1], [SendRequest; 1]) = (send(false), send(true));
    // No more of them at a time than the queue holds: they leave it when a later one is told.
    let every = line.signaled.min(line.end.windows(bytes as u64).0);
    let mut completion = [Completion::BLANK];

    qp.post_recv(&receives)?;
    let mut posted = receives.len();
    line.meet()?;
    let mut begun = Instant::now();
    for (round, sample) in samples.iter_mut().enumerate() {
        let tells = round % every == every - 1 || round + 1 == rounds;
        let request = if tells { &told } else { &quiet };
        if line.near {
            qp.post_send(request)?;
        }
        poll(recv_cq, &mut completion, "a RECV")?;
        if !line.near {
            qp.post_send(request)?;
        }
        if posted < rounds {
            qp.post_recv(again)?;
            posted += 1;
        }
        if tells {
            poll(send_cq, &mut completion, "a SEND")?;
        }
        if line.near {
            let now = Instant::now();
            *sample = now - begun;
            begun = now;
        }
    }
    Ok(())
}
