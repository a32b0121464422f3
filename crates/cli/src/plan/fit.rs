//! Figures of messages, fitted to what all-reduces take: what two ranks do alone is not what several do at once, who share processors and
//! caches.

use fulmen::parts::collectives::plan::{self, Links, Operation, Question};
use fulmen::parts::kernels::ReduceOp;
use fulmen::{Algorithm, DType, Order};

/// Bytes of the all-reduces by shares that are measured: one for messages, one for bytes, and two for what bytes take longer where some of them,
/// and all, have no room in the caches.
pub const FITTED: [u64; 4] = [64 << 10, 4 << 20, 16 << 20, 64 << 20];

/// In turns, since each figure changes what the others have to be.
const TURNS: usize = 8;

/// Changes figures so that these all-reduces take what was measured, in microseconds.
pub fn fit(links: &mut Links, ranks: u32, [few, many, part, long]: [f64; 4]) {
    let [of_few, of_many, of_part, of_long] = FITTED;
    let (room, alone) = (links.caches, links.clone());
    for _ in 0..TURNS {
        let of_bytes = |links: &mut Links, factor: f64| {
            for figure in [&mut links.byte_ns, &mut links.offered_byte_ns, &mut links.copy_ns, &mut links.reduce_ns] {
                *figure *= factor;
            }
        };
        let of_messages = |links: &mut Links, factor: f64| {
            links.message_us *= factor;
            links.latency_us *= factor;
        };
        scale(links, of_bytes, |links| shares(links, ranks, of_many), many);
        scale(links, of_messages, |links| shares(links, ranks, of_few), few);
        // A message is hardly faster than between two ranks alone, whatever bytes are taken to cost.
        links.message_us = links.message_us.max(0.5 * alone.message_us);
        links.latency_us = links.latency_us.max(0.5 * alone.latency_us);

        // All bytes of a long one wait for memory; of the other one, as many as it takes longer.
        let waiting = |links: &Links, uncached_ns: f64, bytes: u64, measured: f64| {
            let with = |caches| shares(&Links { uncached_ns, caches, ..links.clone() }, ranks, bytes);
            between(with(None), with(Some(1)), measured).max(0.0)
        };
        links.uncached_ns = links.copy_ns * waiting(links, links.copy_ns, of_long, long);
        let share = waiting(links, links.uncached_ns, of_part, part).min(1.0);
        let touched = 2 * u64::from(ranks) * of_part;
        let fitting = (touched as f64 / (share + 0.5)) as usize;
        // If all of them do, caches may have any number of bytes less.
        links.caches = Some(if share < 1.0 { fitting } else { room.map_or(fitting, |room| room.min(fitting)) });
    }
}

/// Scales figures so that the model says what was measured. It is nearly linear in them.
fn scale(links: &mut Links, figures: impl Fn(&mut Links, f64), model: impl Fn(&Links) -> f64, measured: f64) {
    let mut without = links.clone();
    figures(&mut without, 0.0);
    // No more at once than some times as much, since it is not quite linear.
    figures(links, between(model(&without), model(links), measured).clamp(0.2, 5.0));
}

/// How far from the first to the second the third is; 1 if these are one.
fn between(first: f64, second: f64, third: f64) -> f64 {
    if second > first { (third - first) / (second - first) } else { 1.0 }
}

/// What the planner says of an all-reduce by shares.
fn shares(links: &Links, ranks: u32, bytes: u64) -> f64 {
    let question = Question {
        operation: Operation::AllReduce,
        ranks: ranks as usize,
        bytes: bytes as usize,
        dtype: DType::F32,
        op: ReduceOp::Sum,
        order: Order::Ranks,
    };
    let all = plan::predict(&question, links);
    all.iter().find(|one| one.algorithm == Algorithm::Shares).map_or(f64::NAN, |one| one.time_us)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fitted_figures_foretell_what_was_measured() {
        let figures = |scale: f64, uncached_ns: f64, caches: usize| {
            let links = serde_json::json!({
                "name": "x", "source": "y", "shape": "host", "processors": 2, "wake_us": plan::WAKE,
                "latency_us": 3.0 * scale, "message_us": 0.4 * scale, "byte_ns": 0.2 * scale, "offered_byte_ns": 0.2 * scale,
                "copy_ns": 0.05 * scale, "reduce_ns": 0.06 * scale, "uncached_ns": uncached_ns, "caches": caches,
            });
            Links::parse("x", &links.to_string()).unwrap()
        };
        for ranks in [2, 4] {
            // Slower and faster in memory than in the caches; of which a part, all and nothing of 16 MiB has room in them.
            let rooms = [(0.1, 24), (0.3, 45), (0.1, 15), (0.1, 60), (0.0, 24)];
            for (uncached_ns, mebibytes) in rooms {
                let real = figures(1.0, uncached_ns, (ranks as usize * mebibytes) << 20);
                let measured = FITTED.map(|bytes| shares(&real, ranks, bytes));
                for scale in [0.5, 1.8] {
                    let mut links = figures(scale, 0.0, 32 << 20);
                    fit(&mut links, ranks, measured);
                    for (bytes, measured) in FITTED.into_iter().zip(measured) {
                        let ratio = shares(&links, ranks, bytes) / measured;
                        assert!(
                            (0.97..1.03).contains(&ratio),
                            "{ranks} ranks, {bytes} B: {ratio} of {measured} us; {links:?}"
                        );
                    }
                }
            }
        }
    }
}
