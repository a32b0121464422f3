//! Ranks on several hosts over real ssh: hosts are namespaces, each with a server and an address of its own.

use std::process::Command;

use fulmen_testbed::{Bed, Host, Link, Net, Ssh};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Ended, FULMEN, Running, fulmen, start, wait_until};
use crate::trace::{ROLE, told};

/// The launcher's host, and others with a server.
struct Hosts {
    ssh: Ssh,
    launcher: Host,
    others: Vec<Host>,
    net: Net,
    bed: Bed,
}

impl Hosts {
    /// A launcher's host and `b`, or `b` and `c`; none, loudly, where that cannot be.
    fn or_skip(what: &str, others: usize) -> Option<Hosts> {
        let bed = Bed::or_skip(what)?;
        let ssh = Ssh::or_skip(what)?;
        let hosts = bed.hosts(others + 1);
        let net = bed.switch(&hosts, Link::new());
        for host in &hosts[1..] {
            ssh.serve(host, net.address(host));
        }
        let mut hosts = hosts.into_iter();
        let launcher = hosts.next().expect("one at least");
        Some(Hosts { ssh, launcher, others: hosts.collect(), net, bed })
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.launcher.command(FULMEN);
        command.args(["run", "--ssh-option", "-F", "--ssh-option"]).arg(self.ssh.config()).args(args);
        command
    }

    fn ranks(&self, args: &[&str], script: &str) -> Running {
        start(self.command(&[args, &["--", "/bin/sh", "-c", script]].concat()))
    }

    /// Waits until each host runs its server and nothing else.
    fn wait_quiet(&self) {
        for host in &self.others {
            wait_until(&format!("nothing but the server to be left on {host}"), || host.processes().len() == 1);
        }
    }

    /// Waits for the command's end; nothing of it may be left anywhere.
    fn end(&self, run: Running) -> Ended {
        let ended = run.end();
        self.wait_quiet();
        ended
    }
}

/// The processes of ssh's server that carry connections, by their names.
fn sessions(host: &Host) -> Vec<Pid> {
    let is_session = |pid: &u32| {
        std::fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| line.starts_with(b"sshd: ") && !line.starts_with(b"sshd: /"))
    };
    let pids = host.processes().into_iter().filter(is_session);
    pids.filter_map(|pid| Pid::from_raw(pid.try_into().ok()?)).collect()
}

#[test]
fn ranks_run_on_hosts_and_meet_at_the_launcher() {
    let Some(hosts) = Hosts::or_skip("ranks over ssh", 2) else { return };
    let script = "echo $FULMEN_RANK/$FULMEN_SIZE $FULMEN_LOCAL_RANK/$FULMEN_LOCAL_SIZE $(uname -n) $FULMEN_ADDRESS ${FULMEN_COORDINATOR%:*}";
    let ended = hosts.end(hosts.ranks(&["--hosts", "b:2,localhost,c"], script));
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
    let [b, c] = [0, 1].map(|other| hosts.net.address(&hosts.others[other]));
    let a = hosts.net.address(&hosts.launcher);
    let expected = [
        format!("[0] 0/4 0/2 b {b},any {a}"),
        format!("[1] 1/4 1/2 b {b},any {a}"),
        format!("[2] 2/4 0/1 a {a},any {a}"),
        format!("[3] 3/4 0/1 c {c},any {a}"),
    ];
    assert_eq!(ended.sorted(), expected);
}

#[test]
fn ranks_of_several_hosts_join_one_world() {
    let Some(hosts) = Hosts::or_skip("ranks that meet over ssh", 2) else { return };
    let own = std::env::current_exe().expect("this test's file");
    let own = own.to_str().expect("its name");
    let args = ["--hosts", "b,localhost,c", "--env", "RANK_PLAN=meet", "--"];
    let program = [own, "--exact", "meet::as_a_rank", "--nocapture"];
    let ended = hosts.end(start(hosts.command(&[&args[..], &program].concat())));
    assert_eq!((ended.code, ended.messages().len()), (Some(0), 0), "{}{}", ended.out, ended.err);
    for rank in 0..3 {
        let (label, met) = (format!("[{rank}] "), format!("met {rank} of 3"));
        assert!(ended.out.lines().any(|line| line.starts_with(&label) && line.ends_with(&met)), "{}", ended.out);
    }
}

#[test]
fn endings_signals_and_limits_are_those_of_one_machine() {
    let Some(hosts) = Hosts::or_skip("endings of ranks over ssh", 2) else { return };
    let script = "trap 'exit 9' TERM; [ $FULMEN_RANK = 2 ] && exit 7; while :; do sleep 0.05; done";
    let ended = hosts.end(hosts.ranks(&["--hosts", "b:2,c"], script));
    assert_eq!(ended.code, Some(7), "{}", ended.err);
    assert!(ended.err.contains("fulmen: rank 2 failed first: exited with code 7 after "), "{}", ended.err);
    assert!(ended.err.contains("; ending the other 2\n"), "{}", ended.err);

    let script = "trap 'echo got-USR1' USR1; trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done";
    let run = hosts.ranks(&["--hosts", "b:2,c", "--grace", "60"], script);
    run.wait_for("ready\n", 3);
    run.send(Signal::USR1);
    run.wait_for("got-USR1\n", 3);
    run.send(Signal::TERM);
    let ended = hosts.end(run);
    assert_eq!((ended.code, ended.out.matches("got-USR1").count()), (Some(0), 3), "{}", ended.err);

    let stubborn = "trap '' TERM; while :; do sleep 1000; done";
    let ended = hosts.end(hosts.ranks(&["--hosts", "b,c", "--timeout", "6", "--grace", "0.2"], stubborn));
    assert_eq!(ended.code, Some(124), "{}", ended.err);
}

#[test]
fn what_ranks_did_last_comes_to_the_launcher_when_the_run_fails() {
    let Some(hosts) = Hosts::or_skip("records over ssh", 2) else { return };
    let runtime = tempfile::tempdir().expect("a directory");
    let own = std::env::current_exe().expect("this test's file");
    let role = format!("{ROLE}=late");
    let args = ["--hosts", "b:2,c", "--env", &role, "--", own.to_str().expect("its name")];
    let program = ["--exact", "trace::a_rank", "--nocapture", "--test-threads=1"];
    let mut command = hosts.command(&[&args[..], &program].concat());
    command.env("XDG_RUNTIME_DIR", runtime.path());
    let ended = hosts.end(start(command));
    assert_eq!(ended.code, Some(3), "{}{}", ended.out, ended.err);
    // Once, and by the launcher.
    assert_eq!(ended.err.matches("last operations of").count(), 1, "{}", ended.err);
    assert!(ended.err.contains("the last operations of 3 ranks are in "), "{}", ended.err);
    let directory = told(&ended);
    assert!(directory.starts_with(runtime.path().to_str().expect("its name")), "{directory}");
    let mut names: Vec<String> = std::fs::read_dir(&directory)
        .expect("the directory")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("its name"))
        .collect();
    names.sort();
    assert_eq!(names.len(), 3, "{names:?}");
    assert!((0..3).zip(&names).all(|(rank, name)| name.starts_with(&format!("rank-{rank}-"))), "{names:?}");
    let merged = fulmen(&["trace", &directory]).end();
    assert_eq!(merged.code, Some(0), "{}{}", merged.out, merged.err);
}

#[test]
fn a_killed_launcher_leaves_nothing_on_other_hosts() {
    let Some(hosts) = Hosts::or_skip("a killed launcher over ssh", 2) else { return };
    let sticky = "trap '' TERM HUP INT; (setsid /bin/sh -c 'echo ready; while :; do sleep 1000; done' &)
        echo ready; while :; do sleep 1000; done";
    let mut run = hosts.ranks(&["--hosts", "b:2,c"], sticky);
    run.wait_for("ready\n", 6);
    run.send(Signal::KILL);
    run.wait_exit();
    hosts.wait_quiet();
    run.wait_gone();
}

#[test]
fn a_broken_connection_ends_the_ranks_of_its_host_and_the_run() {
    let Some(hosts) = Hosts::or_skip("a broken connection of ssh", 2) else { return };
    let run = hosts.ranks(&["--hosts", "b,c:2"], "trap '' TERM; echo ready; while :; do sleep 1000; done");
    run.wait_for("ready\n", 3);
    let carriers = sessions(&hosts.others[1]);
    assert!(!carriers.is_empty(), "a server carries the connection");
    for pid in carriers {
        kill_process(pid, Signal::KILL).expect("it runs");
    }
    let ended = hosts.end(run);
    assert_eq!(ended.code, Some(255), "{}", ended.err);
    assert!(ended.err.contains("fulmen: host c is lost: the connection has broken"), "{}", ended.err);
    assert!(ended.err.contains(" failed first: its host is lost after "), "{}", ended.err);
    assert!(ended.err.contains("; ending the other"), "{}", ended.err);
}

#[test]
fn hosts_that_cannot_be_reached_or_trusted_are_named() {
    let Some(hosts) = Hosts::or_skip("refusals of ssh", 1) else { return };
    let b = hosts.net.address(&hosts.others[0]);
    // Its key is known under another name alone.
    hosts.ssh.name("impostor", b);
    let ended = hosts.end(hosts.ranks(&["--hosts", "b,impostor"], "echo started"));
    assert_eq!((ended.code, ended.out.as_str()), (Some(255), ""), "{}", ended.err);
    assert!(ended.err.contains("host impostor: ssh cannot reach it: "), "{}", ended.err);
    assert!(ended.err.contains("Host key verification failed"), "{}", ended.err);
    // Nobody listens there.
    hosts.ssh.name("deaf", hosts.net.address(&hosts.launcher));
    let ended = hosts.end(hosts.ranks(&["--hosts", "deaf"], "echo started"));
    assert_eq!((ended.code, ended.out.as_str()), (Some(255), ""), "{}", ended.err);
    assert!(ended.err.contains("host deaf: ssh cannot reach it: ") && ended.err.contains("refused"), "{}", ended.err);
    // A key that the server does not know.
    let key = hosts.ssh.stranger();
    let option = format!("-oIdentityFile={}", key.display());
    let mut command = hosts.launcher.command(FULMEN);
    command.args([
        "run",
        "--ssh-option",
        &option,
        "--ssh-option=-oIdentitiesOnly=yes",
        "--ssh-option=-oIdentityAgent=none",
    ]);
    let known = hosts.ssh.config().with_file_name("known");
    command.arg(format!("--ssh-option=-oUserKnownHostsFile={}", known.display()));
    command.arg(format!("--ssh-option=-oHostName={b}")).args([
        "--ssh-option=-oHostKeyAlias=b",
        "--ssh-option=-F",
        "--ssh-option=none",
    ]);
    command.args(["--hosts", "b", "--", "true"]);
    let ended = hosts.end(start(command));
    assert_eq!(ended.code, Some(255), "{}", ended.err);
    assert!(
        ended.err.contains("host b: ssh cannot reach it: ") && ended.err.contains("Permission denied"),
        "{}",
        ended.err
    );
}

#[test]
fn a_host_that_is_cut_off_is_lost_and_ends_its_ranks() {
    // It takes the time of three silences.
    if !fulmen_testbed::is_full() {
        return;
    }
    let Some(hosts) = Hosts::or_skip("a host that is cut off from ssh", 2) else { return };
    let run = hosts.ranks(&["--hosts", "b,c", "--silence", "4"], "echo ready; while :; do sleep 1000; done");
    run.wait_for("ready\n", 2);
    hosts.net.pull(&hosts.others[1]);
    // The ranks of the host that is left end with the run, those of the other one when nothing has come for a while: the
    // server that carried them may wait for longer.
    let ended = run.end();
    assert_eq!(ended.code, Some(255), "{}", ended.err);
    assert!(ended.err.contains("fulmen: host c is lost: "), "{}", ended.err);
    let ranks = |host: &Host| {
        let is_rank = |pid: &u32| {
            std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(b"/bin/sh\0-c"))
        };
        host.processes().iter().filter(|pid| is_rank(pid)).count()
    };
    wait_until("the ranks of both hosts to end", || hosts.others.iter().all(|host| ranks(host) == 0));
}

#[test]
fn links_between_hosts_are_named_by_their_interfaces() {
    let Some(hosts) = Hosts::or_skip("links between hosts over ssh", 2) else { return };
    let mut command = hosts.launcher.command(FULMEN);
    command.args(["links", "--json", "--ssh-option", "-F", "--ssh-option"]).arg(hosts.ssh.config());
    command.args(["--device", "tcp", "--hosts", "b,localhost,c"]);
    let rows = crate::links::rows(&hosts.end(start(command)));
    let named = |end: &serde_json::Value, host: &Host| {
        assert_eq!(end["device"], hosts.net.device(host));
        assert_eq!(end["address"], hosts.net.address(host).to_string());
    };
    let order = [&hosts.others[0], &hosts.launcher, &hosts.others[1]];
    assert_eq!(rows.len(), 3, "{rows:?}");
    for (row, (from, to)) in rows.iter().zip([(0, 1), (0, 2), (1, 2)]) {
        assert_eq!((&row["from"], &row["to"], &row["kind"]), (&from.into(), &to.into(), &"tcp-sealed".into()));
        named(&row["cable"]["from"], order[from]);
        named(&row["cable"]["to"], order[to]);
        assert_eq!((&row["from_host"], &row["to_host"]), (&["b", "a", "c"][from].into(), &["b", "a", "c"][to].into()));
    }
}

#[test]
fn operations_between_hosts_are_measured_and_right() {
    let Some(hosts) = Hosts::or_skip("benchmarks between hosts over ssh", 2) else { return };
    let bench = |args: &[&str]| {
        let mut command = hosts.launcher.command(FULMEN);
        command.args(["bench", "--samples=3", "--time-budget=0.01", "--ssh-option", "-F", "--ssh-option"]);
        command.arg(hosts.ssh.config()).args(args);
        hosts.end(start(command))
    };
    let ended = bench(&["all-reduce", "--json", "--device=tcp", "--hosts", "b:2,c", "--max=64K", "--factor=8192"]);
    let rows = crate::bench::rows(&ended);
    let said: Vec<_> =
        rows.iter().map(|row| [&row["bytes"], &row["ranks"], &row["wrong"]].map(|n| n.as_u64())).collect();
    assert_eq!(said, [[Some(8), Some(3), Some(0)], [Some(64 << 10), Some(3), Some(0)]]);
    let ended = bench(&["latency", "--hosts", "localhost,b", "--max=8", "--trusted-rail"]);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert!(
        ended.out.starts_with("# latency, 2 ranks, ") && ended.out.contains("2 hosts, RDMA, or plain TCP"),
        "{}",
        ended.out
    );
    assert_eq!(ended.out.lines().count(), 3, "{}", ended.out);
    let ended = bench(&["latency", "--json", "--hosts", "nowhere,b"]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(255), ""), "{}", ended.err);
    assert!(ended.err.contains("nowhere"), "{}", ended.err);
}

#[test]
fn a_link_of_two_networks_has_a_row_for_each_and_one_for_both() {
    let Some(hosts) = Hosts::or_skip("two networks over ssh", 1) else { return };
    let second = hosts.bed.switch(&[hosts.launcher.clone(), hosts.others[0].clone()], Link::new());
    let mut command = hosts.launcher.command(FULMEN);
    command.args(["links", "--json", "--ssh-option", "-F", "--ssh-option"]).arg(hosts.ssh.config());
    command.args(["--device", "tcp", "--hosts", "localhost,b"]);
    // Where a network stands still for seconds, as on a busy machine, a rail is down for a moment.
    let rows = crate::links::any_rows(&hosts.end(start(command)));
    assert_eq!(rows.len(), 3, "{rows:?}");
    for (at, net) in [&hosts.net, &second].into_iter().enumerate() {
        assert_eq!((&rows[at]["rail"], &rows[at]["kind"]), (&at.into(), &"tcp-sealed".into()));
        assert_eq!(rows[at]["cable"]["from"]["device"], net.device(&hosts.launcher));
        assert_eq!(rows[at]["cable"]["to"]["device"], net.device(&hosts.others[0]));
    }
    let both = &rows[2];
    assert!(both["rail"].is_null() && both["cable"].is_null(), "{both}");
    assert_eq!((&both["kind"], &both["state"]), (&"all-rails".into(), &"up".into()));
}
