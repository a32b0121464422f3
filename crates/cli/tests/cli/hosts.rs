//! Ranks on several hosts, where a script stands in for ssh: it runs here what it is told to run elsewhere, or fails as ssh does.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::support::{Ended, FULMEN, Running, fulmen, start, start_with_stdin};

/// What every script that works does: it shows what servers tell of the connection, and becomes what it was told to run.
const WORKS: &str = "for last; do :; done
    export SSH_CONNECTION='127.0.0.1 40000 127.0.0.2 22'
    exec sh -c \"$last\"";

/// A folder with a script that stands in for ssh.
struct Fake(tempfile::TempDir);

impl Fake {
    fn new(script: &str) -> Fake {
        let folder = tempfile::tempdir().unwrap();
        let draft = folder.path().join("draft");
        fs::write(&draft, format!("#!/bin/sh\n{script}\n")).unwrap();
        // A copy can be executed at once: no child of another test holds it open for writing.
        assert!(Command::new("cp").arg(&draft).arg(folder.path().join("ssh")).status().unwrap().success());
        fs::set_permissions(folder.path().join("ssh"), fs::Permissions::from_mode(0o755)).unwrap();
        Fake(folder)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(FULMEN);
        command.args(["run", "--ssh"]).arg(self.0.path().join("ssh")).args(args);
        command
    }

    fn run(&self, args: &[&str]) -> Running {
        start(self.command(args))
    }

    fn ranks(&self, args: &[&str], script: &str) -> Running {
        self.run(&[args, &["--", "/bin/sh", "-c", script]].concat())
    }
}

#[track_caller]
fn refused(ended: &Ended, code: i32, parts: &[&str]) {
    assert_eq!(ended.code, Some(code), "{}", ended.err);
    assert_eq!(ended.out, "");
    for part in parts {
        assert!(ended.err.contains(part), "{part:?} in {}", ended.err);
    }
}

#[test]
fn each_rank_knows_its_place_on_its_host() {
    let script =
        "echo $FULMEN_RANK/$FULMEN_SIZE $FULMEN_LOCAL_RANK/$FULMEN_LOCAL_SIZE $FULMEN_ADDRESS ${FULMEN_COORDINATOR%:*}";
    let ended = Fake::new(WORKS).ranks(&["--hosts", "b:2,localhost:1,c"], script).end();
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
    let expected = [
        "[0] 0/4 0/2 127.0.0.2,any 127.0.0.1",
        "[1] 1/4 1/2 127.0.0.2,any 127.0.0.1",
        "[2] 2/4 0/1 127.0.0.1,any 127.0.0.1",
        "[3] 3/4 0/1 127.0.0.2,any 127.0.0.1",
    ];
    assert_eq!(ended.sorted(), expected);
}

#[test]
fn what_a_login_shell_prints_is_passed_over() {
    let fake = Fake::new(&format!("echo Welcome; echo 'stdin is not a tty' >&2\n{WORKS}"));
    let ended = fake.ranks(&["--hosts", "b"], "echo hello").end();
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "[0] hello\n"));
    assert_eq!(ended.err, "fulmen: host b: stdin is not a tty\n");
}

#[test]
fn the_first_failure_decides_wherever_it_is() {
    // The others fail too, also suddenly, when they are asked to end.
    for others in ["exit 9", "kill -SEGV $$"] {
        let script =
            format!("trap '{others}' TERM; echo ready; [ $FULMEN_RANK = 2 ] && exit 7; while :; do sleep 0.05; done");
        let ended = Fake::new(WORKS).ranks(&["--hosts", "b:2,c,localhost"], &script).end();
        assert_eq!(ended.code, Some(7), "{others}: {}", ended.err);
        assert_eq!(ended.messages().len(), 1, "{others}: {}", ended.err);
        let message = ended.messages()[0];
        assert!(message.starts_with("fulmen: rank 2 failed first: exited with code 7 after "), "{message}");
        assert!(message.ends_with(" s; ending the other 3"), "{message}");
    }
}

#[test]
fn signals_arrive_once_and_endings_come_back() {
    let script = "trap 'echo got-USR1' USR1; trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done";
    let fake = Fake::new(WORKS);
    let run = fake.ranks(&["--hosts", "b,c:2", "--grace", "60"], script);
    run.wait_for("ready\n", 3);
    run.send(Signal::USR1);
    run.wait_for("got-USR1\n", 3);
    run.send(Signal::TERM);
    let ended = run.end();
    assert_eq!((ended.code, ended.out.matches("got-USR1").count()), (Some(0), 3), "{}", ended.err);

    let ended = fake.ranks(&["--hosts", "b"], "kill -SEGV $$").end();
    assert_eq!(ended.code, Some(139));
    assert!(ended.err.contains("killed by SIGSEGV"), "{}", ended.err);
}

#[test]
fn a_time_limit_and_the_grace_time_hold() {
    let script = "trap '' TERM; echo ready; while :; do sleep 1000; done";
    let ended = Fake::new(WORKS).ranks(&["--hosts", "b,c", "--timeout", "4", "--grace", "0.2"], script).end();
    assert_eq!(ended.code, Some(124), "{}", ended.err);
    assert!(ended.err.contains("ranks 0 and 1 still running"), "{}", ended.err);
}

#[test]
fn a_rank_is_started_again_on_its_host() {
    let folder = tempfile::tempdir().unwrap();
    let script = "[ $FULMEN_RANK = 0 ] && { until [ -e done ]; do sleep 0.01; done; exit 0; }
        echo start; [ -e once ] || { : > once; kill -KILL $$; }
        : > done";
    let args = ["--hosts", "b,c", "--restart", "1", "--workdir", folder.path().to_str().unwrap()];
    let ended = Fake::new(WORKS).ranks(&args, script).end();
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "[1] start\n[1] start\n"), "{}", ended.err);
    assert!(ended.err.contains("rank 1 was killed by signal 9; started again (1 of 1)"), "{}", ended.err);
}

#[test]
fn the_first_rank_reads_all_of_the_input() {
    let mut input = tempfile::tempfile().unwrap();
    let lines: String = (0..200_000).map(|line| format!("line {line}\n")).collect();
    input.write_all(lines.as_bytes()).unwrap();
    std::io::Seek::rewind(&mut input).unwrap();
    let fake = Fake::new(WORKS);
    let mut command = fake.command(&["--hosts", "b,c", "--no-labels", "--", "cat"]);
    let ended = start_with_stdin(&mut command, Stdio::from(input)).end();
    assert_eq!((ended.code, ended.out == lines), (Some(0), true), "{} bytes; {}", ended.out.len(), ended.err);
}

#[test]
fn a_reader_that_goes_away_is_felt_by_the_ranks() {
    let fake = Fake::new(WORKS);
    let script = format!("'{FULMEN}' run --ssh '{}' --hosts b -- yes | head -n 2", fake.0.path().join("ssh").display());
    let ended = crate::support::shell(&script).end();
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "[0] y\n[0] y\n"));
    assert!(ended.err.contains("rank 0 failed first: killed by SIGPIPE"), "{}", ended.err);
}

#[test]
fn arguments_and_variables_arrive_as_they_were_given() {
    let args = ["--hosts", "b,localhost", "--env", "ONE=a b'c\n\"d\"", "--env", "TWO", "--no-labels", "--"];
    let program = ["sh", "-c", "printf '%s|%s|%s|%s\n' \"$ONE\" $TWO \"$1\" $FULMEN_POOL", "sh", "it's \\n $HOME"];
    let fake = Fake::new(WORKS);
    let mut command = fake.command(&[&args[..], &program].concat());
    command.env("TWO", "two");
    let shown = "a b'c\n\"d\"|two|it's \\n $HOME|\n".repeat(2);
    let ended = start(command).end();
    assert_eq!((ended.code, ended.out), (Some(0), shown), "{}", ended.err);
}

#[test]
fn the_secret_is_in_no_argument_and_no_variable() {
    // No program that looks for the secret may have it in its own arguments: the shell does.
    let script = "secret=$(cat /proc/self/fd/$FULMEN_SECRET_FD); echo length ${#secret}
        all=$(cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n'); echo ${#all} | grep -c ....
        case \"$all\" in *\"$secret\"*) echo found;; *) echo clean;; esac";
    let ended = Fake::new(WORKS).ranks(&["--hosts", "b"], script).end();
    assert_eq!(ended.out, "[0] length 64\n[0] 1\n[0] clean\n", "{}", ended.err);
}

#[test]
fn ssh_is_asked_never_to_ask() {
    let fake = Fake::new(&format!("printf '%s ' \"$@\" >&2; echo >&2\n{WORKS}"));
    let mut list = tempfile::NamedTempFile::new().unwrap();
    list.write_all(b"b slots=1 user=me port=2222\n").unwrap();
    let args = ["--hostfile", list.path().to_str().unwrap(), "--ssh-option", "-F", "--ssh-option", "none"];
    let ended = fake.ranks(&args, "true").end();
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    for part in ["host b: -F none -T", "BatchMode=yes", "ConnectTimeout=30", "-l me", "-p 2222", " b exec '"] {
        assert!(ended.err.contains(part), "{part:?} in {}", ended.err);
    }
}

#[test]
fn what_ssh_says_is_told_with_the_host() {
    let fake = Fake::new("echo 'me@b: Permission denied (publickey).' >&2; exit 255");
    let ended = fake.ranks(&["--hosts", "b"], "echo started").end();
    refused(&ended, 255, &["fulmen: host b: ssh cannot reach it: me@b: Permission denied (publickey).", "true`"]);
    // Each of several hosts says its own.
    let fake = Fake::new("for last; do before=$host; host=$last; done; echo no route to $before >&2; exit 255");
    let ended = fake.ranks(&["--hosts", "b,c,localhost"], "echo started").end();
    refused(&ended, 255, &["host b: ssh cannot reach it: no route to b", "host c: ssh cannot reach it: no route to c"]);
}

#[test]
fn another_version_is_refused_by_name() {
    let fake = Fake::new("printf '\\000FULMEN-HOST\\r\\n\\032\\000\\0059.9.9\\001\\000\\000\\000'; exec sleep 1000");
    let ended = fake.ranks(&["--hosts", "b"], "echo started").end();
    let own = concat!("this is version ", env!("CARGO_PKG_VERSION"));
    refused(&ended, 2, &["host b has fulmen version 9.9.9", own, "--remote-fulmen"]);
}

#[test]
fn what_is_no_fulmen_is_told() {
    let refuse = |script: &str, code, parts: &[&str]| {
        let fake = Fake::new(script);
        refused(&fake.ranks(&["--hosts", "b"], "echo started").end(), code, parts);
    };
    refuse("echo This account is closed.", 2, &["host b", "no fulmen answers", "This account is closed."]);
    refuse("exec yes nonsense", 2, &["no fulmen answers", "nonsense"]);
    refuse("exit 3", 255, &["host b: ssh ended with code 3 before fulmen answered"]);
    refuse("kill -KILL $$", 255, &["host b: ssh was ended by SIGKILL"]);
    let fake = Fake::new(WORKS);
    let ended = fake.ranks(&["--hosts", "b", "--remote-fulmen", "/no/such/fulmen"], "true").end();
    refused(&ended, 127, &["host b: there is no fulmen at /no/such/fulmen", "--remote-fulmen PATH"]);
    let ended = fulmen(&["run", "--ssh", "/no/such/ssh", "--hosts", "b", "true"]).end();
    refused(&ended, 127, &["cannot start /no/such/ssh", "--ssh"]);
}

#[test]
fn a_host_that_does_not_answer_is_given_up() {
    let fake = Fake::new(
        "for last; do before=$host; host=$last; done; [ $before = c ] && exec sleep 1000\nset -- \"$host\"\nexport SSH_CONNECTION='127.0.0.1 40000 127.0.0.2 22'\nexec sh -c \"$1\"",
    );
    let ended = fake.ranks(&["--hosts", "b,c", "--connect-timeout", "0.7"], "echo started").end();
    refused(&ended, 255, &["host c: no answer within 0.70 s", "--connect-timeout"]);
    let ended = fake.ranks(&["--hosts", "b,c", "--timeout", "0.5"], "echo started").end();
    refused(&ended, 124, &["timed out after 0.50 s", "--timeout"]);
    let run = fake.ranks(&["--hosts", "c"], "echo started");
    crate::support::wait_until("ssh to start", || run.processes().iter().any(|(_, line)| line.starts_with("sleep")));
    run.send(Signal::TERM);
    refused(&run.end(), 143, &[]);
}

#[test]
fn a_host_without_the_program_or_the_directory_starts_nothing() {
    let fake = Fake::new(WORKS);
    let ended = fake.run(&["--hosts", "b,c", "--", "fulmen-no-such-program"]).end();
    refused(&ended, 127, &["host b: cannot find the program `fulmen-no-such-program`", "host c: "]);
    let ended = fake.ranks(&["--hosts", "b", "--workdir", "/no/such/place"], "echo started").end();
    refused(&ended, 2, &["host b: cannot work in /no/such/place", "--workdir"]);
    let ended = fake.ranks(&["--hosts", "b,localhost", "--workdir", "/no/such/place"], "echo started").end();
    refused(&ended, 2, &["cannot work in /no/such/place", "--workdir"]);
}

#[test]
fn a_host_without_addresses_needs_one_from_the_user() {
    let fake = Fake::new("for last; do :; done; unset SSH_CONNECTION; exec sh -c \"$last\"");
    let ended = fake.ranks(&["--hosts", "b"], "echo started").end();
    refused(&ended, 2, &["host b does not say", "--address IP"]);
    let ended = fake.ranks(&["--hosts", "b", "--address", "127.0.0.1"], "echo ${FULMEN_ADDRESS-none}").end();
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "[0] none\n"), "{}", ended.err);
    let ended = fake.ranks(&["--hosts", "b", "--address", "192.0.2.77"], "echo started").end();
    refused(&ended, 2, &["192.0.2.77 is none of this machine's addresses", "--address"]);
}

#[test]
fn a_killed_helper_is_a_lost_host() {
    // Only the ranks of one host find their helper: the parent of their supervisor.
    let script = "echo ready; [ $FULMEN_RANK = 1 ] && { read _ _ _ helper _ < /proc/$PPID/stat; kill -KILL $helper; }
        while :; do sleep 0.05; done";
    let fake = Fake::new(WORKS);
    let mut run = fake.ranks(&["--hosts", "b,c:2"], script);
    run.wait_for_message("fulmen: host c is lost: what led there was ended by SIGKILL");
    run.wait_for_message(" failed first: its host is lost after ");
    assert_eq!(run.wait_exit().code(), Some(255));
    // The supervisors there end their ranks on their own.
    run.wait_gone();
}

#[test]
fn a_killed_launcher_takes_the_ranks_of_all_hosts_along() {
    let sticky = "trap '' TERM HUP INT; (setsid /bin/sh -c 'echo ready; while :; do sleep 1000; done' &)
        echo ready; while :; do sleep 1000; done";
    let fake = Fake::new(WORKS);
    let mut run = fake.ranks(&["--hosts", "b:2,c"], sticky);
    run.wait_for("ready\n", 6);
    run.send(Signal::KILL);
    run.wait_exit();
    run.wait_gone();
}

#[test]
fn a_list_of_this_machine_alone_needs_no_ssh() {
    let ended = fulmen(&[
        "run",
        "--ssh",
        "/no/such/ssh",
        "--hosts",
        "localhost:2",
        "--",
        "sh",
        "-c",
        "echo $FULMEN_COORDINATOR",
    ])
    .end();
    assert_eq!((ended.code, ended.out.matches("127.0.0.1").count()), (Some(0), 2), "{}", ended.err);
}

#[test]
fn wrong_lists_of_hosts_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = |text: &str| {
        let path = folder.path().join("hosts");
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let run = |args: &[&str]| fulmen(&[&["run"], args, &["true"]].concat()).end();
    refused(&run(&["--hosts", "a,-oProxyCommand=x"]), 2, &["--hosts", "begins with no `-`"]);
    refused(&run(&["--hosts", "a:2", "-n", "3"]), 2, &["places for 2 ranks", "-n asks for 3"]);
    refused(&run(&["--hosts", "a", "--hostfile", "x"]), 2, &["--hostfile", "--hosts"]);
    refused(&run(&["--hosts", "a", "--verbs"]), 2, &["--verbs", "--hosts"]);
    refused(&run(&["--hosts", "a", "--address", "here"]), 2, &["address of this machine"]);
    refused(&run(&["--hosts", "a", "--env", "NO_SUCH_VARIABLE_HERE"]), 2, &["--env NO_SUCH_VARIABLE_HERE", "not set"]);
    refused(&run(&["--hostfile", "/no/such/file"]), 2, &["/no/such/file", "cannot read"]);
    refused(&run(&["--hostfile", &file("a\nb slots=x\n")]), 2, &["line 2", "`x`"]);
    refused(&run(&["--hostfile", &file("[{\"ssh\": 3}]")]), 2, &["line 1", "column"]);
}
