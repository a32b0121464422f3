//! Streams of messages in one direction, with as many under way as the queues hold.

use std::time::{Duration, Instant};

use fulmen::parts::verbs::{Completion, QueuePairKind, SendOp};

use super::{BUDGET, Line, SENDS};
use crate::probe::answer::Bandwidth;
use crate::probe::ends::poll;

/// Messages before those that count.
const WARM_UP: usize = SENDS as usize;
const FEWEST: usize = 2 * SENDS as usize;
const MOST: usize = 20_000;
/// Completions that are taken at a time.
const BATCH: usize = 16;

/// Measures a stream of SENDs; the far end has nothing to tell.
pub fn sends(line: &Line, bytes: usize) -> anyhow::Result<Option<Bandwidth>> {
    let stream = |messages: usize| {
        if line.near {
            line.meet()?;
            let sent = send(line, SendOp::Send { imm: None }, bytes, messages)?;
            let received: f64 = line.voice.hear()?;
            // A completion means delivery on RC alone; elsewhere the receiver's clock counts.
            return Ok(if line.end.kind == QueuePairKind::Rc { sent } else { received });
        }
        let received = receive(line, bytes, messages)?;
        line.voice.tell(&received)?;
        Ok(received)
    };
    measure(line, "SEND", bytes, stream)
}

/// Measures a stream of WRITEs, in which the far end has no part.
pub fn writes(line: &Line, bytes: usize) -> anyhow::Result<Option<Bandwidth>> {
    let stream = |messages: usize| {
        line.meet()?;
        let seconds = match line.near {
            true => send(line, SendOp::Write { remote: line.remote, imm: None }, bytes, messages)?,
            false => 0.0,
        };
        line.meet()?;
        Ok(seconds)
    };
    measure(line, "WRITE", bytes, stream)
}

/// Streams a little to find out how much fits into the time, then as much as that.
fn measure(
    line: &Line,
    operation: &str,
    bytes: usize,
    mut stream: impl FnMut(usize) -> anyhow::Result<f64>,
) -> anyhow::Result<Option<Bandwidth>> {
    let warm_up = stream(WARM_UP)?;
    let messages = line.agree(|| {
        let fitting = BUDGET.as_secs_f64() / (warm_up / WARM_UP as f64).max(1e-9);
        (fitting as usize).clamp(FEWEST, MOST)
    })?;
    let seconds = stream(messages)?;
    Ok(line.near.then(|| Bandwidth {
        operation: operation.to_string(),
        bytes: bytes as u64,
        messages: messages as u64,
        bytes_per_second: (messages * bytes) as f64 / seconds.max(1e-9),
        of_nominal: None,
    }))
}

/// Posts as many as there is room for, until all have completed: the seconds from the first post to the last completion.
fn send(line: &Line, op: SendOp, bytes: usize, messages: usize) -> anyhow::Result<f64> {
    let (qp, cq) = (&*line.end.qp, &*line.end.send_cq);
    let room = line.end.windows(bytes as u64).0;
    let every = line.signaled.min(room);
    let (quiet, told) = ([line.request(op, bytes, false)], [line.request(op, bytes, true)]);
    let mut completions = [Completion::BLANK; BATCH];
    let (mut posted, mut completed) = (0, 0);
    let begun = Instant::now();
    while completed < messages {
        while posted < messages && posted - completed < room {
            let tells = posted % every == every - 1 || posted + 1 == messages;
            qp.post_send(if tells { &told } else { &quiet })?;
            posted += 1;
        }
        // Each stands for those before it that did not tell; the last one for a rest of them.
        completed = (completed + every * poll(cq, &mut completions, "a message")?).min(messages);
    }
    Ok(begun.elapsed().as_secs_f64())
}

/// Takes them all: the seconds that they took, judged by those from the first arrival to the last.
fn receive(line: &Line, bytes: usize, messages: usize) -> anyhow::Result<f64> {
    let (qp, cq) = (&*line.end.qp, &*line.end.recv_cq);
    let receives = line.receives(bytes, messages);
    let mut completions = [Completion::BLANK; BATCH];
    qp.post_recv(&receives)?;
    let (mut posted, mut completed) = (receives.len(), 0);
    line.meet()?;
    let (mut begun, mut first) = (Instant::now(), 0);
    while completed < messages {
        let count = poll(cq, &mut completions, "a RECV")?;
        if completed == 0 {
            (begun, first) = (Instant::now(), count);
        }
        completed += count;
        let again = count.min(messages - posted);
        if again > 0 {
            qp.post_recv(&receives[..again])?;
            posted += again;
        }
    }
    let after_first: Duration = begun.elapsed();
    Ok(after_first.as_secs_f64() * messages as f64 / (messages - first).max(1) as f64)
}
