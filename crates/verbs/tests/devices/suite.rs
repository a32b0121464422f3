//! The suite, run over a device that is right, and over ones that are wrong on purpose.

use crate::model::{Bug, Likeness, ModelBench};
use fulmen_verbs::conformance::{self, Verdict};

#[test]
fn the_model_of_infiniband_passes() {
    let report = conformance::run(&ModelBench { likeness: Likeness::Infiniband, bug: None });
    report.assert_passed();
    // What it cannot do is skipped by name: it loses UC messages, counts no frames, and lacks nothing else.
    assert!(report.passed.len() > 100, "{} passed", report.passed.len());
    assert!(
        report.skipped.iter().any(|(case, missing)| case.contains("UC without a RECV holds") && !missing.is_empty())
    );
}

#[test]
fn the_model_of_thunderbolt_passes() {
    let report = conformance::run(&ModelBench { likeness: Likeness::Thunderbolt, bug: None });
    report.assert_passed();
    assert!(report.skipped.iter().any(|(case, missing)| case.contains("(RC)") && missing == "RC queue pairs"));
    assert!(report.passed.iter().any(|case| case == "queues: depth counts frames (UC)"), "{:?}", report.passed);
}

#[test]
fn every_broken_promise_is_noticed() {
    use Likeness::{Infiniband, Thunderbolt};
    let bugs = [
        (Bug::AnyTransition, Infiniband, "states: every transition, legal and illegal (RC)"),
        (Bug::OrderOfFlush, Infiniband, "queues: flush on error keeps the order of both queues (RC)"),
        (Bug::BoundsByOne, Infiniband, "faults: a SEND out of bounds (RC)"),
        (Bug::BoundsByOne, Infiniband, "faults: a RECV out of bounds (UC)"),
        (Bug::BoundsByOne, Infiniband, "faults: a WRITE out of the peer's bounds (UC)"),
        (Bug::BoundsByOne, Infiniband, "faults: a READ out of bounds"),
        (Bug::StaleKeys, Infiniband, "faults: a SEND with a wrong, stale or foreign key (UC)"),
        (Bug::StaleKeys, Infiniband, "faults: a WRITE with a wrong, stale or foreign key (RC)"),
        (Bug::ForeignKeys, Infiniband, "faults: a RECV with a wrong, stale or foreign key (UC)"),
        (Bug::ForeignKeys, Infiniband, "faults: a READ with a wrong, stale or foreign key"),
        (Bug::IgnoresRights, Infiniband, "faults: a RECV into memory without LOCAL_WRITE (UC)"),
        (Bug::IgnoresRights, Infiniband, "faults: a WRITE without the right (RC)"),
        (Bug::IgnoresRights, Infiniband, "faults: a READ without the right"),
        (Bug::IgnoresRights, Infiniband, "faults: an atomic without the right"),
        (Bug::CorruptsOneByte, Infiniband, "messages: every length around a border, up to 4 MiB (RC)"),
        (Bug::CorruptsOneByte, Infiniband, "traffic: 10,000 mixed messages in order (RC)"),
        (Bug::ReorderedImmediate, Infiniband, "messages: SEND with immediate data (RC)"),
        (Bug::SignalsAll, Infiniband, "messages: unsignalled sends complete silently (UC)"),
        (Bug::LateInline, Infiniband, "messages: inline data is copied when it is posted (RC)"),
        (Bug::DeepQueue, Infiniband, "queues: a receive queue is as deep as it says (UC)"),
        (Bug::DeepQueue, Infiniband, "queues: a send queue is as deep as it says (RC)"),
        (Bug::LeaksQueuePairs, Infiniband, "limits: queue pairs (RC)"),
        (Bug::StaysArmed, Infiniband, "notify: one request, one event (RC)"),
        (Bug::StaysArmed, Thunderbolt, "notifier: one request, one call (UC)"),
        (Bug::EstablishesAlways, Infiniband, "events: the first message before RTS is told of once (RC)"),
        (Bug::EstablishesAlways, Infiniband, "events: nobody is told of messages after RTS (UC)"),
        (Bug::ShrinksTooFar, Infiniband, "queues: a completion queue grows and shrinks (UC)"),
        (Bug::AnyFrames, Thunderbolt, "receive: a message of fewer frames than its RECV (UC)"),
    ];
    for (bug, likeness, case) in bugs {
        let bench = ModelBench { likeness, bug: Some(bug) };
        let mut told = Vec::new();
        conformance::run_some(&bench, &|name| name == case, &mut |_, verdict| told.push(verdict.clone()));
        assert!(matches!(&told[..], [Verdict::Failed(_)]), "{bug:?} in {case:?}: {told:?}");
    }
}

#[test]
fn names_are_unique() {
    let mut names = conformance::names();
    let count = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), count);
}
