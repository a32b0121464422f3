//! Figures of messages, fitted to what all-reduces take: what two ranks do alone is not what several do at once, who share processors and
//! caches.

use fulmen::parts::collectives::plan::{self, Links, Operation, Question};
use fulmen::parts::kernels::ReduceOp;
use fulmen::{Algorithm, DType, Order};

/// Bytes of the all-reduces by shares that are measured: one for messages, one for bytes, and others for what bytes take longer where fewer
/// and fewer of them have room in the caches.
pub const FITTED: [u64; 6] = [64 << 10, 1 << 20, 2 << 20, 4 << 20, 16 << 20, 64 << 20];

/// Bytes of an all-reduce by shares and a broadcast of two ranks that are measured besides: where both send, and one alone, it shows which end
/// has the work.
pub const ENDS: u64 = 2 << 20;

/// In turns, since each figure changes what the others have to be.
const TURNS: usize = 8;

/// How many times as long copies into memory that is sent from are taken to last: so many quarters of powers of two, and none.
const STAGINGS: u32 = 24;

/// The logarithm of a ratio that is near enough to one.
const NEAR: f64 = 0.05;

/// Changes figures so that these all-reduces take what was measured, in microseconds; and nearly so the broadcast of two ranks, if both calls of
/// two were measured and took this long.
pub fn fit(links: &mut Links, ranks: u32, measured: [f64; 6], ends: Option<[f64; 2]>) {
    let [of_few, of_many, longer @ ..] = FITTED;
    let [few, many, measured @ ..] = measured;
    links.staging = ends.map_or(1.0, |ends| staging(links, ends));
    let alone = links.clone();
    for _ in 0..TURNS {
        let of_messages = |links: &mut Links, factor: f64| {
            links.message_us *= factor;
            links.latency_us *= factor;
        };
        scale(links, of_bytes, |links| shares(links, ranks, of_many), many);
        scale(links, of_messages, |links| shares(links, ranks, of_few), few);
        // A message is hardly faster than between two ranks alone, whatever bytes are taken to cost.
        links.message_us = links.message_us.max(0.5 * alone.message_us);
        links.latency_us = links.latency_us.max(0.5 * alone.latency_us);
    }
    // A vector and a result of each rank.
    let worked_on = |bytes: u64| 2 * ranks as usize * bytes as usize;
    let more = |(bytes, measured): (u64, f64)| {
        let with = |ns| shares(&Links { uncached_ns: vec![(1, ns)], ..links.clone() }, ranks, bytes);
        (worked_on(bytes), links.copy_ns * between(with(0.0), with(links.copy_ns), measured).max(0.0))
    };
    links.uncached_ns =
        std::iter::once((worked_on(of_many), 0.0)).chain(longer.into_iter().zip(measured).map(more)).collect();
}

/// How many times as long copies into memory that is sent from take, if an all-reduce and a broadcast of two ranks take so long: the more of the
/// work is at the end that sends, the more the broadcast takes of the other.
fn staging(links: &Links, [both, one]: [f64; 2]) -> f64 {
    let off = |staging: f64| {
        let mut links = Links { staging, ..links.clone() };
        for _ in 0..TURNS {
            scale(&mut links, of_bytes, |links| shares(links, 2, ENDS), both);
        }
        (broadcast(&links, 2, ENDS) / one).ln().abs()
    };
    let all =
        (0..=STAGINGS).map(|step| 2_f64.powf(f64::from(step) / 4.0)).map(|staging| (staging, off(staging).max(NEAR)));
    // The least of those that are near.
    all.min_by(|(_, one), (_, other)| one.total_cmp(other)).map_or(1.0, |(staging, _)| staging)
}

fn of_bytes(links: &mut Links, factor: f64) {
    for figure in [&mut links.byte_ns, &mut links.offered_byte_ns, &mut links.copy_ns, &mut links.reduce_ns] {
        *figure *= factor;
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
    time(links, ranks, Operation::AllReduce, bytes, Algorithm::Shares)
}

/// What the planner says of a broadcast in which the root sends to all.
fn broadcast(links: &Links, ranks: u32, bytes: u64) -> f64 {
    time(links, ranks, Operation::Broadcast, bytes, Algorithm::Whole)
}

/// What the planner says of a call by this algorithm.
fn time(links: &Links, ranks: u32, operation: Operation, bytes: u64, algorithm: Algorithm) -> f64 {
    let question = Question {
        operation,
        ranks: ranks as usize,
        bytes: bytes as usize,
        dtype: DType::F32,
        op: ReduceOp::Sum,
        order: Order::Ranks,
    };
    let all = plan::predict(&question, links);
    all.iter().find(|one| one.algorithm == algorithm).map_or(f64::NAN, |one| one.time_us)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fitted_figures_foretell_what_was_measured() {
        let figures = |scale: f64, uncached_ns: &[(usize, f64)], staging: f64| {
            let links = serde_json::json!({
                "name": "x", "source": "y", "shape": "host", "processors": 2, "wake_us": plan::WAKE,
                "latency_us": 3.0 * scale, "message_us": 0.4 * scale, "byte_ns": 0.2 * scale, "offered_byte_ns": 0.2 * scale,
                "copy_ns": 0.05 * scale, "reduce_ns": 0.06 * scale, "uncached_ns": uncached_ns,
                "staging": staging,
            });
            Links::parse("x", &links.to_string()).unwrap()
        };
        for ranks in [2, 4] {
            // Slower in memory than in caches of some sizes, and not at all; and at the end that sends.
            for (uncached_ns, mebibytes, staging) in
                [(0.1, 24, 1.0), (0.3, 45, 10.0), (0.1, 15, 3.0), (0.1, 60, 1.0), (0.0, 24, 30.0)]
            {
                let caches = (ranks as usize * mebibytes) << 20;
                let uncached_ns = [(caches / 2, 0.0), (caches, uncached_ns / 2.0), (2 * caches, uncached_ns)];
                let real = figures(1.0, &uncached_ns, staging);
                let measured = FITTED.map(|bytes| shares(&real, ranks, bytes));
                let ends = |links: &Links| [shares(links, 2, ENDS), broadcast(links, 2, ENDS)];
                for scale in [0.5, 1.8] {
                    let mut links = figures(scale, &[], 1.0);
                    fit(&mut links, ranks, measured, Some(ends(&real)));
                    for (bytes, measured) in FITTED.into_iter().zip(measured) {
                        let ratio = shares(&links, ranks, bytes) / measured;
                        assert!(
                            (0.97..1.03).contains(&ratio),
                            "{ranks} ranks, {bytes} B: {ratio} of {measured} us; {links:?}"
                        );
                    }
                    let [_, one] = ends(&links);
                    let ratio = one / ends(&real)[1];
                    assert!((0.9..1.1).contains(&ratio), "{ranks} ranks: {ratio} of a broadcast; {links:?}, {real:?}");
                }
            }
        }
    }
}
