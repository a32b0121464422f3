//! The example programs of libibverbs: `ibv_rc_pingpong` and its siblings.

use crate::case::{Case, Outcome, Program, expect, rounds};
use crate::pair::Launch;
use crate::port;

const PACKAGE: &str = "ibverbs-utils";
const RC: Program = Program::of(PACKAGE, "ibv_rc_pingpong");
const UC: Program = Program::of(PACKAGE, "ibv_uc_pingpong");
const UD: Program = Program::of(PACKAGE, "ibv_ud_pingpong");
const SRQ: Program = Program::of(PACKAGE, "ibv_srq_pingpong");
const XSRQ: Program = Program::of(PACKAGE, "ibv_xsrq_pingpong");

const MIB: &str = "-s 1048576 -n 20";

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |program, options: &'static str, fast| {
        let title = if options.is_empty() { "defaults" } else { options };
        cases.push(Case::new(program, title, fast, move || pingpong(program, options)));
    };
    for program in [RC, UC, UD, SRQ] {
        // The one program that does not reach so far: a datagram is one frame.
        let large = if program == UD { "-c -s 4096" } else { MIB };
        add(program, "", program == RC);
        add(program, "-c", program != RC);
        add(program, "-e -c", true);
        add(program, "-g 0 -c", program == UD);
        add(program, large, program == RC);
        add(program, "-s 1 -c", false);
        add(program, if program == SRQ { "-r 16" } else { "-r 2" }, false);
    }
    for program in [RC, UC, SRQ] {
        add(program, "-c -s 1048576 -n 20 -e", false);
        add(program, "-c -m 4096", false);
    }
    add(RC, "-N -c", true);
    add(RC, "-N -e", false);
    add(RC, "-t", true);
    add(RC, "-t -N", false);
    add(SRQ, "-q 2 -c", false);
    add(SRQ, "-q 64 -c", false);
    for (program, options) in [(RC, "-o"), (RC, "-j"), (XSRQ, "")] {
        let title = format!("{} is refused", if options.is_empty() { "XRC" } else { options });
        cases.push(Case::new(program, title, false, move || refused(program, options)));
    }
    cases
}

fn args(program: Program, options: &str, port: u16) -> Vec<String> {
    let mut args: Vec<String> = options.split_whitespace().map(ToString::to_string).collect();
    args.extend(["-p".into(), port.to_string()]);
    if !options.contains("-n ") {
        // One that uses many queue pairs makes so many rounds over each.
        let (fast, full) = if program == SRQ { (50, 500) } else { (300, 5000) };
        args.extend(["-n".into(), rounds(fast, full)]);
    }
    args
}

fn pingpong(program: Program, options: &str) -> Outcome {
    // With several queue pairs, it ends as soon as it has counted enough of all of them, while sends are under way. One that
    // gets no processor for the half second until these fail sees its last successes and the failure at once, and gives up.
    let mut tries = if program == SRQ { 3 } else { 1 };
    loop {
        tries -= 1;
        match try_pingpong(program, options) {
            Err(said) if tries > 0 && one_end_failed(&said) => {}
            outcome => return outcome,
        }
    }
}

/// Whether one of the two ended well. What both of them did may be wrong all the same, which is told otherwise.
fn one_end_failed(said: &str) -> bool {
    said.starts_with("client: ") || said.starts_with("server: ") && !said.contains("\nclient: ")
}

fn try_pingpong(program: Program, options: &str) -> Outcome {
    let port = port::free();
    let ends = Launch::of(program).pair(port, &args(program, options, port))?;
    for end in ends {
        expect(end.said.contains("iters in"), "no result", &end.said)?;
        expect(!end.said.contains("invalid data"), "wrong data", &end.said)?;
        expect(!end.said.contains("Failed status"), "a failed completion", &end.said)?;
    }
    Ok(())
}

/// What the device does not have is told, and the program ends in order.
fn refused(program: Program, options: &str) -> Outcome {
    let end = Launch::of(program).start(&args(program, options, port::free()))?.end()?;
    expect(end.status.code() == Some(1), &format!("not refused: {}", end.status), &end.said)
}
