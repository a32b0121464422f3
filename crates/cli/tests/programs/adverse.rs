//! The same programs where something is missing or goes wrong: a peer that dies, faults on order, a system that lets nobody copy
//! out of another process, one processor for both sides.

use crate::case::{Case, Outcome, Program, expect, rounds};
use crate::pair::Launch;
use crate::port;

const PERFTEST: &str = "perftest";
const WRITE: Program = Program::of(PERFTEST, "ib_write_bw");
const READ: Program = Program::of(PERFTEST, "ib_read_bw");
const SEND: Program = Program::of(PERFTEST, "ib_send_bw");
const SEND_LAT: Program = Program::of(PERFTEST, "ib_send_lat");
const ATOMIC: Program = Program::of(PERFTEST, "ib_atomic_bw");
const PINGPONG: Program = Program::of("ibverbs-utils", "ibv_rc_pingpong");

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (program, fast) in [(WRITE, true), (SEND, true), (READ, false), (ATOMIC, false)] {
        cases.push(Case::new(program, "the server is killed, and the client gets an error", fast, move || {
            peer_dies(program)
        }));
        cases.push(Case::new(program, "a completion with an error on order ends it", false, move || {
            fault(program, "error:remote-access@50")
        }));
        cases.push(Case::new(program, "a lost request on order ends it", false, move || fault(program, "drop@50")));
        cases.push(Case::new(program, "a cable that is pulled on order ends it", program == WRITE, move || {
            fault(program, "cable@600")
        }));
        cases.push(Case::new(program, "a cable that comes back is waited for", false, move || {
            weathers(program, "cable:100ms@600,delay@1%")
        }));
        cases.push(Case::new(program, "it is killed on order", false, move || killed_on_order(program)));
        cases.push(Case::new(program, "where no process may copy out of another", program == WRITE, move || {
            let options = if program == ATOMIC { "-b" } else { "-s 65536 -b" };
            ends_well(Launch::of(program).env("FULMEN_VERBS_NO_VM", "1"), options, rounds(100, 1000))
        }));
    }
    cases.push(Case::new(PINGPONG, "-c -s 1048576 where no process may copy out of another", true, || {
        ends_well(Launch::of(PINGPONG).env("FULMEN_VERBS_NO_VM", "1"), "-c -s 1048576", rounds(20, 200))
    }));
    for (program, options) in [(SEND_LAT, ""), (SEND_LAT, "-e"), (WRITE, "-b"), (PINGPONG, "-c")] {
        let fast = program == SEND_LAT && options.is_empty();
        cases.push(Case::new(program, format!("{options} on one processor").trim_start(), fast, move || {
            on_one_processor(program, options)
        }));
    }
    cases
}

fn args(options: &str, port: u16, rounds: String) -> Vec<String> {
    let options = options.split_whitespace().map(ToString::to_string);
    options.chain(["-p".into(), port.to_string(), "-n".into(), rounds]).collect()
}

fn ends_well(launch: Launch, options: &str, rounds: String) -> Outcome {
    let port = port::free();
    let ends = launch.pair(port, &args(options, port, rounds))?;
    ends.iter().try_for_each(|end| expect(!end.said.contains("invalid data"), "wrong data", &end.said))
}

/// Whoever sends to a peer that was killed ends with an error, and does not wait for ever.
fn peer_dies(program: Program) -> Outcome {
    let port = port::free();
    let args: Vec<String> = ["-p", &port.to_string(), "-D", "1", "--run_infinitely", "-F"].map(String::from).into();
    let launch = Launch::of(program);
    let mut server = launch.start(&args)?;
    server.wait_listening(port)?;
    // By themselves, its lines would stay in a buffer.
    let client = [&["-oL".into(), program.name.into()], &args[..], &["127.0.0.1".into()]].concat();
    let mut client = launch.start_program("stdbuf", &client)?;
    // The head of the table comes before the last words between the two, which must not be the ones that fail. The first row
    // comes after a second of requests.
    client.wait_said("#bytes", 1)?;
    server.kill()?;
    let end = client.end()?;
    expect(!end.status.success(), "the client ended as if nothing had happened", &end.said)?;
    expect(end.said.contains("ompletion with error"), "no error completion", &end.said)
}

/// A fault that was ordered ends the client with an error completion.
fn fault(program: Program, faults: &str) -> Outcome {
    let port = port::free();
    let args = args("-F", port, "5000".into());
    let mut server = Launch::of(program).start(&args)?;
    server.wait_listening(port)?;
    let client = Launch::of(program).with(&["--faults", faults, "--seed", "1"]);
    let end = client.start(&[&args[..], &["127.0.0.1".into()]].concat())?.end()?;
    // What becomes of the server is not asked: it may wait for a client that is gone.
    server.kill()?;
    expect(!end.status.success(), "the client ended as if nothing had happened", &end.said)?;
    expect(end.said.contains("ompletion with error"), "no error completion", &end.said)
}

/// Faults that the transport makes good are not noticed.
fn weathers(program: Program, faults: &str) -> Outcome {
    let port = port::free();
    let args = args("-F", port, "2000".into());
    let mut server = Launch::of(program).start(&args)?;
    server.wait_listening(port)?;
    let client = Launch::of(program).with(&["--faults", faults, "--seed", "1"]);
    let client = client.start(&[&args[..], &["127.0.0.1".into()]].concat())?;
    crate::pair::finish(server, client).map(drop)
}

/// The n-th request ends the client as `kill -9` does.
fn killed_on_order(program: Program) -> Outcome {
    let port = port::free();
    let args = args("-F", port, "5000".into());
    let mut server = Launch::of(program).start(&args)?;
    server.wait_listening(port)?;
    let client = Launch::of(program).with(&["--faults", "kill@700"]);
    let end = client.start(&[&args[..], &["127.0.0.1".into()]].concat())?.end()?;
    server.kill()?;
    expect(end.status.code() == Some(137), "the client did not end by signal 9", &end.said)
}

/// Both sides share a processor, so that one that polls must let the other have it.
fn on_one_processor(program: Program, options: &str) -> Outcome {
    let port = port::free();
    let mut args = args(options, port, rounds(200, 2000));
    args.splice(0..0, ["-c".into(), "0".into(), program.name.to_string()]);
    let launch = Launch::of(program);
    let mut server = launch.start_program("taskset", &args)?;
    server.wait_listening(port)?;
    args.push("127.0.0.1".into());
    let client = launch.start_program("taskset", &args)?;
    crate::pair::finish(server, client).map(drop)
}
