//! perftest: `ib_send_bw` and its siblings.

use fulmen_testbed::Tier;

use crate::case::{Case, Outcome, Program, expect, rounds};
use crate::pair::Launch;
use crate::port;

const PACKAGE: &str = "perftest";

/// A program, and what its operation allows.
struct Test {
    program: Program,
    connections: &'static [&'static str],
    /// Options that its variants add, beside those of all.
    extra: &'static [&'static str],
}

const fn test(name: &'static str, connections: &'static [&'static str], extra: &'static [&'static str]) -> Test {
    Test { program: Program::of(PACKAGE, name), connections, extra }
}

const SEND: &[&str] = &["RC", "UC", "UD"];
const WRITE: &[&str] = &["RC", "UC"];
const READ: &[&str] = &["RC"];

const BANDWIDTH: [Test; 4] = [
    test("ib_send_bw", SEND, &["--use-srq", "-q 8 --use-srq", "-b --use-srq", "-e", "-e -b", "-r 64 -t 16"]),
    test("ib_write_bw", WRITE, &["-I 64 -s 64", "-l 16 -s 512"]),
    test("ib_read_bw", READ, &["-e", "-o 4"]),
    test("ib_atomic_bw", READ, &["-A CMP_AND_SWAP", "-A FETCH_AND_ADD -b", "-o 4"]),
];

const LATENCY: [Test; 4] = [
    test("ib_send_lat", SEND, &["-e", "-I 64 -s 64", "-a", "--use-srq"]),
    test("ib_write_lat", WRITE, &["-I 64 -s 64", "-a"]),
    test("ib_read_lat", READ, &["-e", "-a"]),
    test("ib_atomic_lat", READ, &["-A CMP_AND_SWAP", "-e"]),
];

/// Variants of every bandwidth test.
const BOTH_WAYS: [&str; 6] = ["", "-b", "-q 8", "-b -q 8", "-l 8", "-Q 1"];

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |program: Program, connection: &'static str, options: &'static str, old: bool, least: Tier| {
        let posting = if old { " --use_old_post_send" } else { "" };
        let options = format!("-c {connection} {options}{posting}").replace("  ", " ");
        let options = options.trim().to_string();
        // One of each program, of each kind of connection, of each style of posting and with each of the main options.
        let tier = if FAST.contains(&(program.name, &options)) { Tier::Fast } else { least };
        cases.push(Case::new(program, options.clone(), false, move || perftest(program, &options)).of(tier));
    };
    for Test { program, connections, extra } in BANDWIDTH {
        for connection in connections {
            for (at, options) in BOTH_WAYS.iter().chain(extra).enumerate() {
                add(program, connection, options, false, by_turns(at, false));
                add(program, connection, options, true, by_turns(at, true));
            }
            if *connection != "UD" && program.name != "ib_atomic_bw" {
                add(program, connection, "-s 1048576 -n 50", false, Tier::Full);
                add(program, connection, "-s 2", false, Tier::Full);
                add(program, connection, "-a", true, Tier::Full);
                add(program, connection, "--mr_per_qp -q 2", false, Tier::Full);
            }
        }
        add(program, "RC", "-x 0", false, Tier::Full);
        add(program, "RC", "-D 1", false, Tier::Full);
    }
    for Test { program, connections, extra } in LATENCY {
        for connection in connections {
            for (at, options) in [""].iter().chain(extra).enumerate() {
                let all_sizes = *options == "-a";
                // Datagrams are at most one frame long, and the program would try 8 MiB.
                if *connection != "UD" || !all_sizes {
                    add(program, connection, options, false, if all_sizes { Tier::Full } else { by_turns(at, false) });
                }
                // Before each size it measures the clock for most of a second: there, one way of posting is enough.
                if !all_sizes {
                    add(program, connection, options, true, by_turns(at, true));
                }
            }
        }
    }
    assert!(FAST.iter().all(|(name, options)| {
        cases.iter().any(|case| case.tier == Tier::Fast && case.name() == format!("{name}: {options}"))
    }));
    cases
}

/// The least tier with a variant that is posted so: the full tier posts them by turns in one way and in the other, as they stand in the
/// table, and soak each in both.
fn by_turns(at: usize, old: bool) -> Tier {
    if at.is_multiple_of(2) == old { Tier::Soak } else { Tier::Full }
}

/// The selection of the fast tier.
const FAST: &[(&str, &str)] = &[
    ("ib_send_bw", "-c RC"),
    ("ib_send_bw", "-c UC -b --use_old_post_send"),
    ("ib_send_bw", "-c UD -q 8"),
    ("ib_send_bw", "-c RC -q 8 --use-srq"),
    ("ib_send_lat", "-c UD -e"),
    ("ib_send_lat", "-c RC -I 64 -s 64"),
    ("ib_write_bw", "-c RC -b -q 8"),
    ("ib_write_bw", "-c UC --use_old_post_send"),
    ("ib_write_lat", "-c RC"),
    ("ib_read_bw", "-c RC -q 8 --use_old_post_send"),
    ("ib_read_lat", "-c RC -e"),
    ("ib_atomic_bw", "-c RC -A CMP_AND_SWAP"),
    ("ib_atomic_lat", "-c RC --use_old_post_send"),
];

fn perftest(program: Program, options: &str) -> Outcome {
    let port = port::free();
    let mut args: Vec<String> = options.split_whitespace().map(ToString::to_string).collect();
    args.extend(["-F".into(), "-p".into(), port.to_string()]);
    let has = |option: &str| options.split_whitespace().any(|part| part == option);
    if !has("-n") && !has("-D") {
        // A multiple of what is posted at once, and of the 100 requests that share a completion: the program counts whole
        // hundreds, and stops polling too early where several queue pairs have a rest each. A latency test waits for
        // memory to change without a call that could yield, so that a round takes two time slices where processors are
        // shared; over all sizes it makes fewer.
        args.extend(["-n".into(), if has("-a") { "16".into() } else { rounds(400, 1600) }]);
    }
    let [_, client] = Launch::of(program).pair(port, &args)?;
    // A row: bytes, rounds, and what was measured.
    let rows: Vec<Vec<f64>> = client.said.lines().filter_map(numbers).collect();
    let sizes = if has("-a") { 23 } else { 1 };
    expect(rows.len() >= sizes, &format!("{} results, not {sizes}", rows.len()), &client.said)?;
    let whole = rows.iter().all(|row| row.len() >= 4 && row[1] >= 5.0);
    expect(whole, "fewer rounds than were asked for", &client.said)?;
    let measured = rows.iter().all(|row| row[2..].iter().any(|value| *value > 0.0));
    // Before each size the program measures the processor's clock. Where others take the processor meanwhile, it says that it
    // could not, and may show zeros.
    let has_clock = !client.said.contains("Correlation coefficient");
    expect(measured || !has_clock, "a result of nothing", &client.said)
}

/// The numbers of a line that consists of numbers.
fn numbers(line: &str) -> Option<Vec<f64>> {
    let numbers: Option<Vec<f64>> = line.split_whitespace().map(|word| word.parse().ok()).collect();
    numbers.filter(|numbers| !numbers.is_empty())
}
