//! What a device has only so many of: one more is refused, and what is dropped can be had again.

use super::bed::{BOTH, Bed, Case, Failure, Outcome, ensure};
use super::rig::{all_access, queue_pair_limits, region_in_one_piece};
use crate::{DeviceLimits, QueuePairInit, QueuePairKind, VerbsError};

pub(super) const CASES: &[Case] = &[
    Case::new("limits: queue pairs", BOTH, &[], queue_pairs),
    Case::new("limits: registrations", BOTH, &[], registrations),
    Case::new("limits: protection domains", BOTH, &[], protection_domains),
    Case::new("limits: completion queues", BOTH, &[], completion_queues),
    Case::new("limits: what a queue pair may ask for", BOTH, &[], queue_pair_asks),
    Case::new("limits: a kind of queue pairs that is not there", BOTH, &[], no_such_kind),
];

/// Limits above this are not tried.
const REACHABLE: u32 = 5000;

/// Makes as many as allowed, then one more; drops one, and makes another.
fn fill<T>(what: &str, limit: u32, mut make: impl FnMut() -> Result<T, VerbsError>) -> Outcome {
    if limit > REACHABLE {
        return Err(Failure::Missing(format!("limit on {what} that can be reached ({limit})")));
    }
    let mut made = Vec::new();
    for number in 0..limit {
        made.push(make().map_err(|error| format!("number {number} of {limit} {what} was refused: {error}"))?);
    }
    for _ in 0..2 {
        let refused = make().map(|_| ());
        let right = matches!(refused, Err(VerbsError::Limit { .. }));
        ensure!(right, "one more than {limit} {what} was to be refused as such, and gave {refused:?}");
    }
    made.swap_remove(limit as usize / 2);
    made.push(make().map_err(|error| format!("dropping one of {limit} {what} did not give it back: {error}"))?);
    let refused = make().map(|_| ());
    ensure!(
        matches!(refused, Err(VerbsError::Limit { .. })),
        "{what} are all in use again, and one more gave {refused:?}"
    );
    drop(made);
    make().map_err(|error| format!("dropping all {what} did not give them back: {error}"))?;
    Ok(())
}

fn limits(bed: &Bed) -> DeviceLimits {
    bed.info().limits
}

fn queue_pairs(bed: &Bed) -> Outcome {
    let device = &bed.devices[0];
    let pd = device.alloc_pd()?;
    let cq = device.create_cq(16, None)?;
    let init = QueuePairInit {
        kind: bed.kind,
        send_cq: cq.clone(),
        recv_cq: cq,
        limits: queue_pair_limits(bed.info(), 1),
        signal_all: false,
        srq: None,
    };
    fill("queue pairs", limits(bed).queue_pairs, || pd.create_qp(&init))
}

fn registrations(bed: &Bed) -> Outcome {
    let device = &bed.devices[0];
    let pd = device.alloc_pd()?;
    let region = region_in_one_piece(bed, &**device, 4096)?;
    let access = all_access(bed.info());
    fill("registrations", limits(bed).memory_regions, || pd.register(&region, 0..4096, access))
}

fn protection_domains(bed: &Bed) -> Outcome {
    fill("protection domains", limits(bed).protection_domains, || bed.devices[0].alloc_pd())
}

fn completion_queues(bed: &Bed) -> Outcome {
    fill("completion queues", limits(bed).completion_queues, || bed.devices[0].create_cq(1, None))?;
    let entries = limits(bed).completion_entries;
    for entries in [0].into_iter().chain(entries.checked_add(1)) {
        let refused = bed.devices[0].create_cq(entries, None).map(|_| ());
        let right = matches!(refused, Err(VerbsError::Limit { .. } | VerbsError::Invalid { .. }));
        ensure!(right, "a completion queue of {entries} entries was to be refused, and gave {refused:?}");
    }
    Ok(())
}

fn queue_pair_asks(bed: &Bed) -> Outcome {
    let device = &bed.devices[0];
    let pd = device.alloc_pd()?;
    let cq = device.create_cq(16, None)?;
    let limits = limits(bed);
    let good = queue_pair_limits(bed.info(), 1);
    let make = |limits| {
        let init = QueuePairInit {
            kind: bed.kind,
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            limits,
            signal_all: false,
            srq: None,
        };
        pd.create_qp(&init).map(|_| ())
    };
    make(good)?;
    let mut tries = Vec::new();
    if let Some(depth) = limits.queue_depth.checked_add(1) {
        tries.push(crate::QueuePairLimits { send_depth: depth, ..good });
        tries.push(crate::QueuePairLimits { recv_depth: depth, ..good });
    }
    if let Some(pieces) = limits.pieces.checked_add(1) {
        tries.push(crate::QueuePairLimits { send_pieces: pieces, ..good });
        tries.push(crate::QueuePairLimits { recv_pieces: pieces, ..good });
    }
    if let Some(bytes) = limits.inline_bytes.checked_add(1) {
        tries.push(crate::QueuePairLimits { inline_bytes: bytes, ..good });
    }
    for asked in tries {
        let refused = make(asked);
        let right = matches!(refused, Err(VerbsError::Limit { .. }));
        ensure!(right, "{asked:?} exceeds {limits:?}, and gave {refused:?}");
    }
    Ok(())
}

fn no_such_kind(bed: &Bed) -> Outcome {
    let other = match bed.kind {
        QueuePairKind::Rc => QueuePairKind::Uc,
        QueuePairKind::Uc | QueuePairKind::Ud => QueuePairKind::Rc,
    };
    if bed.info().capabilities.has(other) {
        return Err(Failure::Missing(format!("lack of {other} queue pairs")));
    }
    let device = &bed.devices[0];
    let cq = device.create_cq(16, None)?;
    let init = QueuePairInit {
        kind: other,
        send_cq: cq.clone(),
        recv_cq: cq,
        limits: queue_pair_limits(bed.info(), 1),
        signal_all: false,
        srq: None,
    };
    let refused = device.alloc_pd()?.create_qp(&init).map(|_| ());
    let right = matches!(refused, Err(VerbsError::NoSuchKind { kind, .. }) if kind == other);
    ensure!(right, "the device has no {other} queue pairs, and making one gave {refused:?}");
    Ok(())
}
