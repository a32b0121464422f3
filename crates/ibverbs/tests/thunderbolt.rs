//! The rules of RDMA over Thunderbolt: what the device does (`tests/c/thunderbolt.c`, with the source of each rule), and
//! what lint says. `docs/thunderbolt.md` has the table.
#![cfg(target_os = "linux")]

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use common::{compile, library, over_library, wait};

/// What a run of the program left.
struct Said {
    stderr: String,
    /// The rules of the records.
    rules: BTreeSet<String>,
}

/// `tests/c/thunderbolt.c`, compiled once for all rules.
static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();

/// Runs `tests/c/thunderbolt.c` for one rule; `None` if it cannot be compiled here.
fn rule(name: &str, lint: &str, more: &[(&str, &str)]) -> Option<Said> {
    let folder = library();
    let program = PROGRAM.get_or_init(|| compile("thunderbolt", Path::new(env!("CARGO_TARGET_TMPDIR")))).as_ref()?;
    let (log, records) = (folder.path().join("log"), folder.path().join("records"));
    let mut command = over_library(program, folder.path());
    command.arg(name).env("FULMEN_VERBS_PROFILE", "thunderbolt").env("FULMEN_LINT", lint);
    command.env("FULMEN_LINT_REPORT", &records).envs(more.iter().copied());
    let mut child = command.stderr(fs::File::create(&log).expect("a file")).spawn().expect("the program starts");
    let status = wait(&mut child, name);
    let stderr = fs::read_to_string(&log).expect("what it said");
    assert!(status.success(), "{name}, lint {lint}: {status}\n{stderr}");
    let lines = fs::read_to_string(&records).unwrap_or_default();
    let rule_of = |line: &str| {
        let record: serde_json::Value = serde_json::from_str(line).expect("a record");
        assert!(record["pid"].is_u64() && record["call"].is_string() && record["text"].is_string(), "{line}");
        record["rule"].as_str().expect("a rule").to_owned()
    };
    Some(Said { stderr, rules: lines.lines().map(rule_of).collect() })
}

#[test]
fn children_do_not_sum_up_what_their_parent_did() {
    let folder = library();
    let Some(program) = compile("children", folder.path()) else { return };
    let log = folder.path().join("log");
    let mut command = over_library(&program, folder.path());
    command.env("FULMEN_VERBS_PROFILE", "thunderbolt").stderr(fs::File::create(&log).expect("a file"));
    let status = wait(&mut command.spawn().expect("the program starts"), "children");
    let stderr = fs::read_to_string(&log).expect("what it said");
    assert!(status.success(), "{status}\n{stderr}");
    let sums: Vec<&str> = stderr.lines().filter(|line| line.contains(" was broken ")).collect();
    // The parent broke it once before and once after; of the children, the one that broke it has a sum.
    let sum = |times| format!("fulmen lint: rule page-aligned was broken {times}");
    assert_eq!(sums, [sum("once, on 1 object"), sum("2 times, on 2 objects")], "{stderr}");
}

/// A rule that is broken: the device does the same with and without lint, which tells of this rule alone.
fn broken(name: &str) {
    broken_with(name, &[]);
}

fn broken_with(name: &str, more: &[(&str, &str)]) {
    for lint in ["off", "log", "fail"] {
        let Some(said) = rule(name, lint, more) else { return };
        if lint == "off" {
            assert!(said.rules.is_empty() && !said.stderr.contains("fulmen lint"), "{}", said.stderr);
            continue;
        }
        assert!(said.stderr.contains(&format!(": rule {name} broken: ")), "{lint}: {}", said.stderr);
        assert!(said.stderr.contains(&format!("fulmen lint: rule {name} was broken ")), "{lint}: {}", said.stderr);
        assert_eq!(said.rules, BTreeSet::from([name.to_owned()]), "{lint}: {}", said.stderr);
    }
}

/// What no program can break: nothing is said.
fn kept(name: &str, more: &[(&str, &str)]) {
    let Some(said) = rule(name, "fail", more) else { return };
    assert!(said.rules.is_empty(), "{}", said.stderr);
}

macro_rules! rules {
    ($($test:ident: $name:literal,)*) => {
        $(#[test]
        fn $test() {
            broken($name);
        })*
    };
}

rules! {
    uc_only: "uc-only",
    own_receive_queue: "own-receive-queue",
    send_recv_only: "send-recv-only",
    no_immediate: "no-immediate",
    one_sge: "one-sge",
    no_inline: "no-inline",
    max_message: "max-message",
    queue_depth_cap: "queue-depth-cap",
    frame_depth: "frame-depth",
    equal_frames: "equal-frames",
    qp_limit: "qp-limit",
    mr_limit: "mr-limit",
    pd_limit: "pd-limit",
    page_aligned: "page-aligned",
    four_gib: "four-gib",
    access_flags: "access-flags",
    gid_index: "gid-index",
    stale_peer: "stale-peer",
    completion_is_not_delivery: "completion-is-not-delivery",
    destroy_before_err: "destroy-before-err",
    poll_forever: "poll-forever",
}

const STRICT: (&str, &str) = ("FULMEN_VERBS_STRICT", "1");

#[test]
fn flow_control() {
    kept("flow-control", &[]);
}

#[test]
fn query() {
    kept("query", &[]);
    kept("query", &[STRICT]);
}

#[test]
fn registrations_that_cross_4_gib_are_refused_by_choice() {
    broken_with("four-gib", &[("FULMEN_VERBS_ALIASING", "refuse")]);
}

#[test]
fn strict() {
    broken_with("page-aligned", &[STRICT]);
    let Some(said) = rule("strict", "log", &[STRICT]) else { return };
    let expected = ["cq-limit", "pd-limit", "qp-limit"].map(str::to_owned);
    assert_eq!(said.rules, BTreeSet::from(expected), "{}", said.stderr);
}
