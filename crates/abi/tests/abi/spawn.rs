//! Requests for processes.

use fulmen_abi::{
    AbiError, Buffer, Command, ErrorCode, Exit, Field, Lease, NODE_MAX, Rights, SPAWN_MAGIC, Spawn, SpawnControl,
    SpawnFlags, SpawnOutcome, SpawnRequest, SpawnState, SpawnStatus, SpawnText, Strings, TEXT_MAX, TEXT_ROOM, Target,
    TextCounts, Writer,
};
use proptest::prelude::*;

use crate::samples::{any_spawn, buffer, slices, spawn};

fn field(name: &'static str) -> Field {
    Field { of: "SpawnRequest", name }
}

/// Why the sample is refused once it was changed so.
fn refused(change: impl FnOnce(&mut SpawnRequest)) -> AbiError {
    let mut record = SpawnRequest::encode(&spawn()).unwrap();
    change(&mut record);
    record.decode().expect_err("it is wrong")
}

fn command<'a>(args: &'a [&'a str], env: &'a [&'a str], cwd: Option<&'a str>) -> Spawn<'a> {
    let text = SpawnText::Inline(Command { args: Strings::new(args), env: Strings::new(env), cwd });
    Spawn { text, ..spawn() }
}

#[test]
fn what_is_asked_comes_back() {
    let record = SpawnRequest::encode(&spawn()).unwrap();
    assert_eq!(record.decode(), Ok(spawn()));
    assert_eq!(record.status().unwrap().state, SpawnState::Free);
    let nothing = SpawnControl {
        lease_deadline_ns: 5,
        stdin_written: 0,
        stdin_closed: false,
        stdout_read: 0,
        stderr_read: 0,
        cancel: false,
    };
    assert_eq!(record.control(), Ok(nothing));
}

#[test]
fn words_of_the_record_are_checked() {
    let unknown = |name, value| AbiError::Unknown { field: field(name), value };
    let not_zero = |name| AbiError::NotZero { field: field(name) };
    assert_eq!(refused(|bad| bad.magic = 1), AbiError::Magic { record: "SpawnRequest", found: 1 });
    assert_eq!(refused(|bad| bad.version = 0), AbiError::Version { record: "SpawnRequest", found: 0 });
    assert_eq!(refused(|bad| bad.flags |= 1 << 31), unknown("flags", 1 << 31));
    assert_eq!(refused(|bad| bad.state = 5), unknown("state", 5));
    assert_eq!(refused(|bad| bad.state = 1 << 32), unknown("state", 1 << 32));
    assert_eq!(refused(|bad| bad.cwd_count = 2), unknown("cwd_count", 2));
    assert_eq!(refused(|bad| bad.source_node = NODE_MAX + 1), unknown("source_node", u64::from(NODE_MAX) + 1));
    assert_eq!(refused(|bad| bad.target_node = NODE_MAX + 1), unknown("target_node", u64::from(NODE_MAX) + 1));
    assert_eq!(refused(|bad| bad.reserved[4] = 1), not_zero("reserved"));
    assert_eq!(refused(|bad| bad.reserved_requester[1] = 1), not_zero("reserved_requester"));
    assert_eq!(refused(|bad| bad.lease_id = 0), AbiError::Missing { field: field("lease_id") });
    assert_eq!(SpawnRequest::ZERO.decode(), Err(AbiError::Magic { record: "SpawnRequest", found: 0 }));
    let size = AbiError::Size { record: "SpawnRequest", given: 4097, needed: 4096 };
    assert_eq!(SpawnRequest::from_bytes(&[0; 4097]), Err(size));
    let mut control = SpawnRequest::encode(&spawn()).unwrap();
    control.stdin_closed = 2;
    assert_eq!(control.control(), Err(unknown("stdin_closed", 2)));
    (control.stdin_closed, control.cancel) = (1, 3);
    assert_eq!(control.control(), Err(unknown("cancel", 3)));
}

#[test]
fn texts_are_checked() {
    let text = field("text");
    assert_eq!(refused(|bad| bad.arg_count = 0), AbiError::Missing { field: field("arg_count") });
    assert_eq!(refused(|bad| bad.arg_count = 2), AbiError::Count { field: text, found: 7, counted: 6 });
    assert_eq!(refused(|bad| bad.env_count = 4), AbiError::Count { field: text, found: 7, counted: 8 });
    let len = u64::from(SpawnRequest::encode(&spawn()).unwrap().text_len);
    let most = |name, value, max| AbiError::TooLarge { field: field(name), value, max };
    assert_eq!(refused(|bad| bad.arg_count = u32::MAX), most("arg_count", u32::MAX.into(), len));
    assert_eq!(refused(|bad| bad.env_count = u32::MAX), most("env_count", u32::MAX.into(), len));
    assert_eq!(refused(|bad| bad.text_len = 3521), most("text_len", 3521, TEXT_ROOM as u64));
    assert_eq!(refused(|bad| bad.text_len = u32::MAX), most("text_len", u32::MAX.into(), TEXT_ROOM as u64));
    assert_eq!(refused(|bad| bad.text_len -= 1), AbiError::Unterminated { field: text });
    assert_eq!(refused(|bad| bad.text[1] = 0xff), AbiError::NotUtf8 { field: text, at: 1 });
    // A NUL inside of a string makes two of it.
    assert_eq!(refused(|bad| bad.text[1] = 0), AbiError::Count { field: text, found: 8, counted: 7 });
    let program = AbiError::Missing { field: field("text (the program)") };
    let why = |result: Result<SpawnRequest, AbiError>| result.expect_err("it is wrong");
    assert_eq!(why(SpawnRequest::encode(&command(&["", "x"], &[], None))), program);
    assert_eq!(why(SpawnRequest::encode(&command(&[], &[], None))), program);
    assert_eq!(why(SpawnRequest::encode(&command(&["a\0b"], &[], None))), AbiError::Nul { field: text });
    for variable in ["NAME", "=value", ""] {
        let refused = why(SpawnRequest::encode(&command(&["a"], &["A=1", variable], None)));
        assert_eq!(refused, AbiError::Malformed { field: text, why: "a variable must be NAME=value" });
    }
    for path in ["", "tmp", "./"] {
        let refused = why(SpawnRequest::encode(&command(&["a"], &[], Some(path))));
        assert_eq!(refused, AbiError::Malformed { field: text, why: "the directory must be an absolute path" });
    }
    let long = "x".repeat(TEXT_ROOM);
    assert_eq!(why(SpawnRequest::encode(&command(&[&long], &[], None))), most("text", 3521, 3520));
    let record = SpawnRequest::encode(&command(&[&long[1..]], &[], None)).expect("it fits in exactly");
    assert_eq!(record.text_len as usize, TEXT_ROOM);
    assert!(record.decode().is_ok());
}

#[test]
fn a_long_text_lies_elsewhere() {
    let long = ["program".to_owned(), "x".repeat(100_000)];
    let args = [&*long[0], &*long[1]];
    let told = Command { args: Strings::new(&args), env: Strings::new(&["A=1"]), cwd: None };
    let mut memory = vec![0xff; 1 << 20];
    let len = told.write(&mut memory).unwrap();
    assert_eq!((len, len), (told.text_len(), 8 + 100_001 + 4));
    let place = Buffer { len: len as u64, ..buffer(4, Rights::READ) };
    let asked = Spawn { text: SpawnText::Buffer { buffer: place, counts: told.counts().unwrap() }, ..spawn() };
    let record = SpawnRequest::encode(&asked).unwrap();
    assert_eq!(record.decode(), Ok(asked));
    let SpawnText::Buffer { counts, .. } = record.decode().unwrap().text else { panic!("it is elsewhere") };
    assert_eq!(Command::parse(&memory[..len], counts), Ok(told));
    let mut other = record;
    other.text_len -= 1;
    assert!(matches!(other.decode(), Err(AbiError::Malformed { .. })));
    let too_long = |value| AbiError::TooLarge { field: field("text_len"), value, max: 1 << 20 };
    let larger = Buffer { len: (1 << 20) + 1, region_len: 1 << 40, ..place };
    let text = SpawnText::Buffer { buffer: larger, counts: told.counts().unwrap() };
    assert_eq!(SpawnRequest::encode(&Spawn { text, ..spawn() }), Err(too_long((1 << 20) + 1)));
    assert!(matches!(Command::parse(&vec![0; TEXT_MAX + 1], counts), Err(AbiError::TooLarge { .. })));
    assert!(matches!(told.write(&mut memory[..len - 1]), Err(AbiError::TooLarge { .. })));
    let none = TextCounts { args: 0, env: 0, cwd: false };
    assert_eq!(Command::parse(b"", none), Err(AbiError::Missing { field: field("text (the program)") }));
}

#[test]
fn buffers_are_checked() {
    let of = |of, name| Field { of, name };
    let stdout = "SpawnRequest.stdout_buffer";
    let rights = AbiError::Rights { field: of(stdout, "rights"), needed: Rights::WRITE, given: Rights::READ };
    assert_eq!(refused(|bad| bad.stdout_buffer.rights = 1), rights);
    let stale = AbiError::Stale { field: of(stdout, "generation"), found: 78, expected: 77 };
    assert_eq!(refused(|bad| bad.stdout_buffer.generation = 78), stale);
    assert_eq!(
        refused(|bad| bad.stderr_buffer.magic = 0),
        AbiError::Magic { record: "SpawnRequest.stderr_buffer", found: 0 }
    );
    assert_eq!(
        refused(|bad| bad.stdin_buffer = fulmen_abi::RdmaBuffer::ZERO),
        AbiError::Missing { field: field("stdin_buffer") }
    );
    assert_eq!(refused(|bad| bad.flags = 0), AbiError::NotZero { field: field("stdin_buffer") });
    let overlap = AbiError::Overlap { field: field("stderr_buffer"), other: field("stdout_buffer") };
    let share = |bad: &mut SpawnRequest, offset| {
        bad.stderr_buffer = bad.stdout_buffer;
        bad.stderr_buffer.offset = offset;
    };
    assert_eq!(refused(|bad| share(bad, 4096 + 8191)), overlap);
    assert_eq!(overlap.to_string(), "SpawnRequest.stderr_buffer lies in the same memory as SpawnRequest.stdout_buffer");
    let mut beside = SpawnRequest::encode(&spawn()).unwrap();
    share(&mut beside, 4096 + 8192);
    assert!(beside.decode().is_ok(), "one behind the other");
}

#[test]
fn numbers_that_would_mean_something_else_are_not_written() {
    let asked = Spawn { target: Target::Node(u32::MAX), ..spawn() };
    assert!(matches!(SpawnRequest::encode(&asked), Err(AbiError::Unknown { .. })));
    let asked = Spawn { flags: SpawnFlags::from_bits_retain(1 << 20), ..spawn() };
    assert!(matches!(SpawnRequest::encode(&asked), Err(AbiError::Unknown { .. })));
}

fn done(outcome: SpawnOutcome) -> SpawnStatus {
    SpawnStatus {
        state: SpawnState::Done,
        process_id: 12,
        pid: 4711,
        serving_node: 1,
        stdin_read: 1,
        stdout_written: 2,
        stderr_written: 3,
        outcome: Some(outcome),
    }
}

#[test]
fn outcomes_come_back_and_have_one_form() {
    let mut record = SpawnRequest::encode(&spawn()).unwrap();
    let ended = SpawnOutcome { error: None, os_error: 0, exit: Some(Exit::Code(255)), ran_ns: 9 };
    let killed = SpawnOutcome { error: Some(ErrorCode::TimedOut), exit: Some(Exit::Signal(9)), ..ended };
    let never = SpawnOutcome { error: Some(ErrorCode::NotFound), os_error: 2, exit: None, ran_ns: 0 };
    for outcome in [ended, killed, never] {
        record.set_status(&done(outcome)).unwrap();
        assert_eq!(record.status(), Ok(done(outcome)));
        assert_eq!(record.decode(), Ok(spawn()), "the request is as it was");
    }
    let before = record;
    for bad in [
        SpawnOutcome { exit: None, ..ended },
        SpawnOutcome { os_error: 1, ..ended },
        SpawnOutcome { exit: Some(Exit::Signal(0)), ..ended },
        SpawnOutcome { exit: Some(Exit::Signal(128)), ..ended },
        SpawnOutcome { ran_ns: 1, ..never },
    ] {
        assert!(record.set_status(&done(bad)).is_err(), "{bad:?}");
        assert!(record.set_status(&SpawnStatus { state: SpawnState::Running, ..done(bad) }).is_err());
    }
    assert!(record.set_status(&SpawnStatus { outcome: None, ..done(ended) }).is_err());
    assert!(record == before, "what was refused has changed nothing");
    let wrong = |change: &dyn Fn(&mut SpawnRequest)| {
        let mut record = SpawnRequest::encode(&spawn()).unwrap();
        record.set_status(&done(ended)).unwrap();
        change(&mut record);
        record.status().expect_err("it is wrong")
    };
    assert_eq!(wrong(&|bad| bad.error = 99), AbiError::Unknown { field: field("error"), value: 99 });
    assert_eq!(wrong(&|bad| bad.exit_kind = 3), AbiError::Unknown { field: field("exit_kind"), value: 3 });
    assert!(matches!(wrong(&|bad| bad.exit_code = 256), AbiError::TooLarge { .. }));
    assert!(matches!(wrong(&|bad| bad.exit_code = -1), AbiError::TooLarge { .. }));
    assert_eq!(wrong(&|bad| bad.signal = 9), AbiError::NotZero { field: field("signal") });
    assert_eq!(wrong(&|bad| bad.exit_kind = 2), AbiError::NotZero { field: field("exit_code") });
    assert_eq!(wrong(&|bad| bad.reserved_agent = 1), AbiError::NotZero { field: field("reserved_agent") });
    // Before the end, its words may be there in part: they are not looked at.
    let mut early = SpawnRequest::encode(&spawn()).unwrap();
    (early.state, early.exit_kind, early.error) = (SpawnState::Running.word(), 7, 999);
    assert_eq!(early.status().unwrap().outcome, None);
}

#[test]
fn each_state_has_its_writer() {
    use SpawnState::{Accepted, Done, Free, Running, Written};
    let allowed: Vec<_> = SpawnState::ALL
        .iter()
        .flat_map(|from| SpawnState::ALL.iter().filter_map(|to| Some((*from, *to, from.writer(*to)?))))
        .collect();
    let (requester, server) = (Writer::Requester, Writer::Server);
    let expected = [
        (Free, Written, requester),
        (Written, Free, requester),
        (Written, Accepted, server),
        (Accepted, Running, server),
        (Accepted, Done, server),
        (Running, Done, server),
        (Done, Free, requester),
    ];
    assert_eq!(allowed, expected);
}

#[test]
fn secrets_are_not_shown() {
    let asked = command(&["a"], &["PASSWORD=hunter2"], None);
    let record = SpawnRequest::encode(&asked).unwrap();
    assert!(!format!("{asked:?} {record:?} {:?}", record.decode()).contains("hunter2"));
}

proptest! {
    #[test]
    fn bytes_give_the_request_back(asked in any_spawn()) {
        asked.with(|spawn| {
            let record = SpawnRequest::encode(spawn).unwrap();
            let copy = SpawnRequest::from_bytes(record.as_bytes()).unwrap();
            prop_assert_eq!(&copy.decode().unwrap(), spawn);
            prop_assert_eq!(copy.magic, SPAWN_MAGIC);
            let deadline_ns = spawn.lease.map_or(0, |lease: Lease| lease.deadline_ns);
            prop_assert_eq!(copy.control().unwrap().lease_deadline_ns, deadline_ns);
            Ok(())
        })?;
    }

    #[test]
    fn texts_come_back_or_are_refused(
        args in prop::collection::vec("[a\0=/\u{fc}]{0,4}", 0..4),
        env in prop::collection::vec("[a\0=/\u{fc}]{0,4}", 0..4),
        cwd in prop::option::of("[a\0=/\u{fc}]{0,4}"),
    ) {
        let (args, env) = (slices(&args), slices(&env));
        let told = Command { args: Strings::new(&args), env: Strings::new(&env), cwd: cwd.as_deref() };
        let mut memory = [0xff; 256];
        if let Ok(len) = told.write(&mut memory) {
            prop_assert_eq!(Command::parse(&memory[..len], told.counts().unwrap()), Ok(told));
        }
    }
}
