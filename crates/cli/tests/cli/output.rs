//! Output: labels, whole lines, bytes of any kind, and messages of the command itself.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::process::Signal;

use crate::support::{FULMEN, LIMIT, fulmen, ranks, shell, start_with, wait_until};

#[test]
fn lines_are_labelled_and_streams_stay_apart() {
    let ended = ranks(&["-n", "2"], "echo out; echo err >&2; printf last; printf 'last err' >&2").end();
    assert_eq!(ended.code, Some(0));
    assert_eq!(ended.sorted(), ["[0] last", "[0] out", "[1] last", "[1] out"]);
    let mut err: Vec<&str> = ended.err.lines().collect();
    err.sort_unstable();
    assert_eq!(err, ["[0] err", "[0] last err", "[1] err", "[1] last err"]);
    assert!(ended.out.ends_with('\n') && ended.err.ends_with('\n'));
}

#[test]
fn no_line_is_cut_by_another() {
    // Every line is written in two halves; what comes out must be whole.
    let script =
        "i=0; while [ $i -lt 300 ]; do printf '%s-%05d-' $FULMEN_RANK $i; printf '%s\\n' $LONG; i=$((i+1)); done";
    let long = "x".repeat(3000);
    let ended = ranks(&["-n", "4"], &format!("LONG={long}; {script}")).end();
    let mut next: HashMap<String, u32> = HashMap::new();
    for line in ended.out.lines() {
        let (label, rest) = line.split_once(' ').expect("a label");
        let count = next.entry(label.to_string()).or_default();
        assert_eq!(rest, format!("{}-{count:05}-{long}", label.trim_matches(['[', ']'])));
        *count += 1;
    }
    assert_eq!(next.len(), 4);
    assert!(next.values().all(|&count| count == 300), "{next:?}");
}

#[test]
fn bytes_pass_unchanged_without_labels() {
    // No newline for 3 MiB, then every byte value, and no newline at the end.
    let mut bytes = vec![b'z'; 3 << 20];
    bytes.extend((0..=255).cycle().take(100_003));
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), &bytes).unwrap();
    let ended = fulmen(&["run", "-n", "1", "--no-labels", "cat", file.path().to_str().unwrap()]).end();
    assert_eq!(ended.code, Some(0));
    assert!(ended.stdout == bytes, "{} bytes of {}", ended.stdout.len(), bytes.len());
}

#[test]
fn bytes_pass_with_labels() {
    let ended = ranks(&["-n", "1"], r"printf '\000\377\376\n\033[1m'").end();
    assert_eq!(ended.stdout, b"[0] \x00\xff\xfe\n[0] \x1b[1m\n");
}

#[test]
fn much_output_right_before_the_end_is_not_lost() {
    let script = "i=0; while [ $i -lt 4000 ]; do echo line $i; i=$((i+1)); done; exit 3";
    let ended = ranks(&["-n", "1"], script).end();
    assert_eq!((ended.code, ended.out.lines().count()), (Some(3), 4000));
    assert!(ended.out.ends_with("[0] line 3999\n"));
}

#[test]
fn ranks_whose_reader_left_are_told_so() {
    let ended = shell("{ \"$FULMEN\" run -n 2 yes; echo code $? >&2; } | head -n 1").end();
    assert_eq!(ended.out.lines().count(), 1);
    assert!(ended.err.contains("failed first: killed by SIGPIPE"), "{}", ended.err);
    assert!(ended.err.contains("code 141"), "{}", ended.err);
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    // Writing to this device fails as on a full disk.
    let ended = shell("exec \"$FULMEN\" run -n 1 echo x > /dev/full").end();
    assert_eq!(ended.code, Some(1), "{}", ended.err);
    assert!(ended.err.contains("the output is not complete"), "{}", ended.err);
}

#[test]
fn logs_go_to_standard_error() {
    let quiet = ranks(&["-n", "1"], "echo x").end();
    assert_eq!((quiet.out.as_str(), quiet.err.as_str()), ("[0] x\n", ""));
    let loud = fulmen(&["-vv", "run", "-n", "1", "echo", "x"]).end();
    assert_eq!((loud.code, loud.out.as_str()), (Some(0), "[0] x\n"));
    assert!(loud.err.contains("DEBUG") && loud.err.contains("started"), "{}", loud.err);
}

#[test]
fn the_filter_of_logs_comes_from_the_environment() {
    let with = |filter: &str| {
        // The harness takes every variable of this program away, so a shell sets it.
        shell(&format!("export FULMEN_LOG='{filter}'; exec \"$FULMEN\" run -n 1 true")).end()
    };
    let debug = with("debug");
    assert!(debug.code == Some(0) && debug.err.contains("started"), "{}", debug.err);
    let wrong = with("a=b=c");
    assert_eq!((wrong.code, wrong.messages().len()), (Some(2), 1), "{}", wrong.err);
    assert!(wrong.err.contains("FULMEN_LOG=a=b=c"), "{}", wrong.err);
    let wrong = shell("export FULMEN_LOG=$(printf '\\377'); exec \"$FULMEN\" run -n 1 true").end();
    assert_eq!((wrong.code, wrong.messages().len()), (Some(2), 1), "{}", wrong.err);
}

#[test]
fn logs_that_cannot_be_written_are_no_failure() {
    let ended = shell("exec \"$FULMEN\" -vv run -n 2 true 2> /dev/full").end();
    assert_eq!(ended.code, Some(0), "{}", ended.err);
}

#[test]
fn a_standard_error_that_nobody_reads_does_not_hold_up_a_run() {
    for options in [&["run"][..], &["-vv", "run"]] {
        // Whatever is written to it has to wait.
        let (_unread, full) = full_pipe();
        let mut command = Command::new(FULMEN);
        command.args(options).args(["-n", "2", "--", "/bin/sh", "-c"]);
        command.arg("echo at $FULMEN_COORDINATOR; echo ready; exec sleep 1000");
        let mut run = start_with(&mut command, Stdio::null(), Stdio::piped(), Stdio::from(full));
        let out = run.wait_for("ready\n", 2);
        // The coordinator has something to log, too.
        let address = out.lines().find_map(|line| line.strip_prefix("[0] at ")).expect("the coordinator's address");
        let mut stranger = TcpStream::connect(address).unwrap();
        stranger.set_read_timeout(Some(LIMIT)).unwrap();
        stranger.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
        let _ = stranger.read(&mut [0]);
        // The first ends the ranks; one after that says that nobody waits for the output any more.
        wait_until("the end", || {
            run.send(Signal::TERM);
            run.has_ended()
        });
        assert_eq!(run.wait_exit().code(), Some(143));
        run.wait_gone();
    }
}

#[test]
fn a_reader_that_does_not_read_is_not_waited_for_after_a_signal() {
    for command in ["run -n 1 echo x", "bench all-reduce --max 8 --samples 1 --json", "demo --nodes 1 --json"] {
        let (_unread, full) = full_pipe();
        let mut fulmen = Command::new(FULMEN);
        fulmen.args(command.split(' '));
        let mut run = start_with(&mut fulmen, Stdio::null(), Stdio::from(full), Stdio::piped());
        wait_until("the end", || {
            run.send(Signal::TERM);
            run.has_ended()
        });
        let status = run.wait_exit();
        assert!(status.code() == Some(143) || status.signal() == Some(15), "{command}: {status}");
        run.wait_gone();
    }
}

/// A pipe that takes not one byte more.
fn full_pipe() -> (io::PipeReader, io::PipeWriter) {
    let (reader, mut writer) = io::pipe().unwrap();
    fcntl_setfl(&writer, OFlags::NONBLOCK).unwrap();
    while writer.write(&[b'x'; 1 << 16]).is_ok() {}
    while writer.write(b"x").is_ok() {}
    fcntl_setfl(&writer, OFlags::empty()).unwrap();
    (reader, writer)
}

#[test]
fn help_is_no_error() {
    for args in [&["--help"][..], &["run", "--help"], &["--version"]] {
        let ended = fulmen(args).end();
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
        assert!(ended.out.contains("fulmen") && !ended.out.contains("__"), "{}", ended.out);
    }
}
