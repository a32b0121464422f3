//! What is kept, and what is told of it.

use super::*;

fn recorder() -> Recorder {
    Recorder::new(Owner { rank: 2, size: 4, generation: 7 }, true, None)
}

fn call(sequence: u64) -> What {
    What { action: Action::AllReduce, group: 1, sequence, peer: None, bytes: 8, started: false, composed: false }
}

#[test]
fn every_action_is_found_by_its_number() {
    for (number, action) in (0..).zip(Action::ALL) {
        assert_eq!(action as u8, number, "{action:?}");
    }
}

#[test]
fn a_record_says_what_was_done_and_what_is_under_way() {
    let recorder = recorder();
    assert_eq!((recorder.formed_group(4), recorder.formed_group(4)), (1, 2));
    recorder.end(recorder.begin(call(1)), true);
    recorder.end(recorder.begin(What::of(Action::Send, 3, 9, 100)), false);
    let _running = recorder.begin(What::of(Action::Recv, 0, 1 << 40, 5).started());
    recorder.let_go(recorder.begin(call(u64::MAX)));
    recorder.failed("all_reduce", 1, "it broke");
    recorder.failed("all_reduce", 1, "and again");
    let (header, lines) = recorder.record.as_ref().unwrap().take(Reason::Command);
    assert_eq!((header.rank, header.size, header.generation.as_str()), (2, 4, "0000000000000007"));
    assert_eq!((header.operations, header.torn), (4, 0));
    assert_eq!(header.failure.as_ref().unwrap().text, "it broke");
    let operations: Vec<&Operation> = lines
        .iter()
        .filter_map(|line| if let Line::Operation(operation) = line { Some(operation) } else { None })
        .collect();
    let told = |operation: &&Operation| (operation.op.to_string(), operation.phase, operation.sequence, operation.peer);
    assert_eq!(
        operations.iter().map(told).collect::<Vec<_>>(),
        [
            ("all_reduce".to_owned(), Phase::Done, 1, None),
            ("send".to_owned(), Phase::Failed, 9, Some(3)),
            ("recv".to_owned(), Phase::Running, 1 << 40, Some(0)),
            ("all_reduce".to_owned(), Phase::LetGo, u64::MAX, None),
        ]
    );
    assert!(operations[2].started && operations[2].end.is_none() && !operations[1].started);
    assert!(lines.is_sorted_by_key(Line::at));
    let all = lines.iter().map(Line::at);
    assert!(all.clone().all(|at| (header.began..=header.written).contains(&at)), "{header:?} {lines:?}");
    let notes = lines.iter().filter(|line| matches!(line, Line::Note(_))).count();
    assert_eq!(notes, 4);
}

fn operations(recorder: &Recorder) -> Vec<Operation> {
    let (_, lines) = recorder.record.as_ref().unwrap().take(Reason::Command);
    let told = lines.into_iter().filter_map(|line| match line {
        Line::Operation(operation) => Some(operation),
        _ => None,
    });
    told.collect()
}

#[test]
fn the_clock_is_looked_at_for_waits_failures_long_ones_and_some_others() {
    let recorder = recorder();
    for sequence in 0..EVERY + 1 {
        recorder.end(recorder.begin(call(sequence)), true);
    }
    let exact: Vec<u64> = operations(&recorder).iter().filter(|op| op.exact).map(|op| op.sequence).collect();
    assert_eq!(exact, [0, EVERY]);
    recorder.waits();
    assert!(!operations(&recorder)[1].exact, "it has ended");
    let waits = recorder.begin(call(50));
    recorder.waits();
    recorder.end(waits, true);
    recorder.end(recorder.begin(call(51)), false);
    recorder.let_go(recorder.begin(call(52).started()));
    recorder.end(recorder.begin(What { bytes: LONG, ..call(53) }), true);
    recorder.end(recorder.begin(What { composed: true, ..call(54) }), true);
    recorder.end(recorder.begin(call(55)), true);
    let told = operations(&recorder);
    let exact: Vec<_> = told.iter().filter(|op| op.sequence >= 50).map(|op| op.exact).collect();
    // That which failed has a stamp at its end only.
    assert_eq!(exact, [true, false, true, true, true, false]);
    assert!(told.is_sorted_by_key(|op| (op.begin, op.n)), "{told:?}");
}

#[test]
fn one_that_is_stuck_began_when_its_wait_did_however_long_nothing_was_done_before() {
    let recorder = recorder();
    recorder.end(recorder.begin(call(1)), true);
    recorder.end(recorder.begin(call(2)), true);
    let pause = Duration::from_millis(300);
    std::thread::sleep(pause);
    let _stuck = recorder.begin(call(3));
    recorder.waits();
    let told = operations(&recorder);
    // The two clocks are compared with one another on a machine that may be busy.
    let most = Duration::from_millis(250).as_nanos() as u64;
    let gap = told[2].begin - told[0].begin;
    assert!(told[2].exact && told[2].end.is_none() && gap >= most, "{told:?}");
    // The one before has no stamp, and yet ended before the pause did.
    let pause = told[2].begin - told[1].end.unwrap();
    assert!(!told[1].exact && pause >= most, "{told:?}");
}

#[test]
fn what_one_thread_waits_in_outlives_what_others_do() {
    let recorder = recorder();
    let _stuck = recorder.begin(call(7));
    std::thread::spawn({
        let recorder = recorder.clone();
        move || (0..2 * KEPT as u64).for_each(|number| recorder.end(recorder.begin(call(100 + number)), true))
    })
    .join()
    .unwrap();
    let (header, lines) = recorder.record.as_ref().unwrap().take(Reason::Command);
    assert_eq!((header.operations, lines.len()), (2 * KEPT as u64 + 1, KEPT + 1));
    assert!(matches!(&lines[0], Line::Operation(stuck) if stuck.sequence == 7 && stuck.phase == Phase::Running));
    assert_eq!(header.since, Some(lines[1].at()));
}

#[test]
fn rare_events_outlive_operations_and_are_bounded() {
    let recorder = recorder();
    recorder.note("lost", 0, Some(1), &"é".repeat(TEXT));
    for sequence in 0..2 * KEPT as u64 {
        recorder.end(recorder.begin(call(sequence)), true);
    }
    let (header, lines) = recorder.record.as_ref().unwrap().take(Reason::Command);
    assert_eq!((header.operations, lines.len()), (2 * KEPT as u64, KEPT + 1));
    assert!(matches!(&lines[0], Line::Note(note) if note.event == "lost" && note.text.len() == TEXT));
    for _ in 0..2 * NOTES {
        recorder.note("lost", 0, None, "");
    }
    assert_eq!(recorder.record.as_ref().unwrap().take(Reason::Command).1.len(), KEPT + NOTES);
}

#[test]
fn a_recorder_that_is_off_does_nothing() {
    let recorder = Recorder::new(Owner { rank: 0, size: 1, generation: 0 }, false, Some("/nowhere".into()));
    recorder.end(recorder.begin(call(1)), true);
    recorder.failed("all_reduce", 1, "it broke");
    assert_eq!(recorder.formed_group(1), 0);
    assert_eq!(recorder.write(Path::new("/nowhere")).unwrap(), None);
}

#[test]
fn only_what_ends_a_link_or_a_long_wait_counts_as_fatal() {
    let link = crate::LinkKind::SharedMemory;
    let timed_out =
        |seconds| FabricError::TimedOut { op: "recv", link, waited: Duration::from_secs(seconds), missing: vec![1] };
    let lost = |cause| FabricError::PeerLost { rank: 1, link, op: "recv", cause };
    for (error, fatal) in [
        (timed_out(0), false),
        (timed_out(1), true),
        (lost(Loss::Left), false),
        (lost(Loss::Ended), true),
        (FabricError::NoWindows { op: "window" }, false),
    ] {
        let recorder = recorder();
        let running = recorder.begin(What::of(Action::Recv, 1, 0, 8));
        assert!(recorder.ended::<()>(running, Err(error.clone())).is_err());
        assert_eq!(recorder.record.unwrap().notes().failure.is_some(), fatal, "{error}");
    }
}

#[test]
fn groups_of_some_ranks_have_numbers_that_their_ranks_agree_on() {
    let recorder = recorder();
    assert_eq!(recorder.formed_group(4), 1);
    let split = recorder.split_group(&[0, 2], 1, 7);
    assert!(split > file::SPLIT && split == recorder.split_group(&[0, 2], 1, 7));
    assert!(split != recorder.split_group(&[1, 3], 1, 7) && split != recorder.split_group(&[0, 2], 1, 8));
    assert_eq!(recorder.formed_group(4), 2, "they do not count");
    let (_, lines) = recorder.record.as_ref().unwrap().take(Reason::Command);
    let members = lines.iter().filter_map(|line| match line {
        Line::Note(note) => Some(note.members.as_slice()),
        _ => None,
    });
    assert_eq!(members.collect::<Vec<_>>(), [&[][..], &[0, 2], &[0, 2], &[1, 3], &[0, 2], &[]]);
}
