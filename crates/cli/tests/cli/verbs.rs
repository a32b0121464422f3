//! `fulmen run --verbs` and `fulmen verbs`: what programs find in their environment, and what is left afterwards. Any shared
//! object does here; what Fulmen's own does is tested with real programs.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::support::{Ended, FULMEN, Running, start};

/// A shared object that every program of this machine can load: the one that it has anyway.
fn some_library() -> String {
    let maps = fs::read_to_string("/proc/self/maps").expect("a process sees its own maps");
    let line = maps.lines().find(|line| line.contains("/libc.so") || line.contains("/libc-")).expect("tests use libc");
    line[line.find('/').expect("a path")..].to_string()
}

struct Place {
    runtime: TempDir,
    library: String,
}

impl Place {
    fn new() -> Place {
        Place { runtime: tempfile::tempdir().unwrap(), library: some_library() }
    }

    fn start(&self, args: &[&str], env: &[(&str, &str)]) -> Running {
        let mut command = Command::new("env");
        command.arg(format!("FULMEN_VERBS_DROPIN={}", self.library));
        command.args(env.iter().map(|(name, value)| format!("{name}={value}")));
        command.arg(FULMEN).args(args).env("XDG_RUNTIME_DIR", self.runtime.path());
        start(command)
    }

    /// Runs a script in a shell over the device.
    fn run(&self, args: &[&str], script: &str) -> Ended {
        self.start(&[&["run", "--verbs"], args, &["--", "/bin/sh", "-c", script]].concat(), &[]).end()
    }

    fn folder(&self) -> std::path::PathBuf {
        self.runtime.path().join("fulmen")
    }
}

#[test]
fn a_program_finds_the_library_by_both_names_and_before_all_others() {
    let place = Place::new();
    let script =
        "echo $LD_PRELOAD; readlink -f ${LD_LIBRARY_PATH%%:*}/libibverbs.so.1 ${LD_LIBRARY_PATH%%:*}/librdmacm.so.1";
    let ended = place.run(&["--no-labels"], script);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let lines: Vec<&str> = ended.out.lines().collect();
    let library = fs::canonicalize(&place.library).unwrap();
    assert!(
        lines[0].starts_with(place.folder().to_str().unwrap()) && lines[0].ends_with("/libibverbs.so.1"),
        "{lines:?}"
    );
    assert_eq!(lines[1..], [library.to_str().unwrap(); 2]);
}

#[test]
fn only_the_program_gets_the_library() {
    let place = Place::new();
    let script =
        "tr '\\0' '\\n' < /proc/$PPID/environ | grep -c LD_PRELOAD; grep -c libibverbs.so.1 /proc/$PPID/maps; true";
    let ended = place.run(&["--no-labels"], script);
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "0\n0\n"), "{}", ended.err);
}

#[test]
fn what_was_asked_for_is_told_to_the_program() {
    let place = Place::new();
    let args =
        ["-n2", "--profile=thunderbolt", "--strict", "--devices=3", "--lint=log", "--faults=drop@1/100", "--seed=7"];
    let script = "echo $FULMEN_VERBS_PROFILE $FULMEN_VERBS_STRICT $FULMEN_VERBS_DEVICES $FULMEN_LINT $FULMEN_FAULTS \
                  $FULMEN_FAULTS_SEED ${FULMEN_PROFILE-none} $FULMEN_SIZE";
    let ended = place.run(&args, script);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let line = "thunderbolt 1 3 log drop@1/100 7 none 2";
    assert_eq!(ended.sorted(), [format!("[0] {line}"), format!("[1] {line}")]);
}

#[test]
fn nothing_is_left_of_a_run() {
    let place = Place::new();
    for (script, code) in [("true", 0), ("exit 3", 3), ("kill -TERM $$", 128 + 15)] {
        let ended = place.run(&[], script);
        assert_eq!(ended.code, Some(code), "{}", ended.err);
        assert_eq!(fs::read_dir(place.folder()).unwrap().count(), 0, "after {script:?}");
    }
}

#[test]
fn the_next_run_removes_what_a_killed_one_left() {
    let place = Place::new();
    let running = place.start(&["run", "--verbs", "--", "/bin/sh", "-c", "echo ready; sleep 1000"], &[]);
    running.wait_for("ready", 1);
    running.send(Signal::KILL);
    running.wait_gone();
    drop(running);
    assert_eq!(fs::read_dir(place.folder()).unwrap().count(), 1);
    assert_eq!(place.run(&[], "true").code, Some(0));
    assert_eq!(fs::read_dir(place.folder()).unwrap().count(), 0);
}

#[test]
fn a_missing_library_is_told_with_the_places_and_the_way_out() {
    let mut place = Place::new();
    place.library = "/nonexistent/library.so".into();
    let ended = place.run(&[], "echo ran");
    assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""));
    for part in ["/nonexistent/library.so", "cargo build", "FULMEN_VERBS_DROPIN"] {
        assert!(ended.err.contains(part), "{part} in {}", ended.err);
    }
}

#[test]
fn a_runtime_folder_of_others_is_refused() {
    let elsewhere = tempfile::tempdir().unwrap();
    let by_link = Place::new();
    symlink(elsewhere.path(), by_link.folder()).unwrap();
    let open_to_all = Place::new();
    fs::create_dir(open_to_all.folder()).unwrap();
    fs::set_permissions(open_to_all.folder(), fs::Permissions::from_mode(0o777)).unwrap();
    for place in [by_link, open_to_all] {
        let ended = place.run(&[], "echo ran");
        assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""), "{}", ended.err);
        assert!(ended.err.contains("only this user"), "{}", ended.err);
    }
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
}

#[test]
fn options_of_the_device_need_the_device() {
    for option in ["--strict", "--devices=2", "--lint=fail", "--faults=drop@1"] {
        let ended = Place::new().start(&["run", "-n1", option, "--", "true"], &[]).end();
        assert_eq!(ended.code, Some(2));
        assert!(ended.err.contains("--verbs"), "{}", ended.err);
    }
    let ended = Place::new().start(&["run", "--", "true"], &[]).end();
    assert_eq!(ended.code, Some(2), "without the device, a number of ranks is needed");
}

#[test]
fn faults_that_make_no_sense_are_refused_before_anything_starts() {
    let place = Place::new();
    for (faults, hint) in [("drip@1", "drip"), ("drop", "when"), ("drop@0", "drop@0")] {
        let ended = place.run(&["--faults", faults], "echo ran");
        assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""), "{}", ended.err);
        assert!(ended.err.contains(hint), "{hint} in {}", ended.err);
    }
}

#[test]
fn broken_rules_fail_a_run_that_is_to_fail() {
    let place = Place::new();
    let breaks =
        "echo '{\"rule\":\"one-sge\",\"call\":\"ibv_post_send\",\"text\":\"2\",\"pid\":1}' >> $FULMEN_LINT_REPORT";
    let ended = place.run(&["-n2", "--lint=fail"], breaks);
    assert_eq!(ended.code, Some(65), "{}", ended.err);
    assert!(ended.messages().iter().any(|line| line.contains("one-sge (2)")), "{}", ended.err);

    let logged = place.run(&["--lint=log"], breaks);
    assert_eq!(logged.code, Some(0), "{}", logged.err);
    assert!(logged.err.contains("one-sge (1)"), "{}", logged.err);

    let failed = place.run(&["--lint=fail"], &format!("{breaks}; exit 4"));
    assert_eq!(failed.code, Some(4), "the program's own failure counts: {}", failed.err);

    let clean = place.run(&["--lint=fail"], "true");
    assert_eq!((clean.code, clean.err.as_str()), (Some(0), ""));
}

#[test]
fn a_lint_that_the_environment_asks_for_counts_too() {
    let place = Place::new();
    let script = "echo '{\"rule\":\"inline\"}' >> $FULMEN_LINT_REPORT";
    let ended = place.start(&["run", "--verbs", "--", "/bin/sh", "-c", script], &[("FULMEN_LINT", "fail")]).end();
    assert_eq!(ended.code, Some(65), "{}", ended.err);
}

#[test]
fn a_shell_can_take_the_environment_over() {
    let place = Place::new();
    let library = format!("FULMEN_VERBS_DROPIN={}", place.library);
    let script = format!(
        "export {library}; eval \"$($FULMEN verbs --print-env --profile thunderbolt --devices 2)\"
         eval \"$($FULMEN verbs --print-env --profile thunderbolt --devices 2)\"
         echo $LD_LIBRARY_PATH; echo $FULMEN_VERBS_PROFILE $FULMEN_VERBS_DEVICES; readlink $LD_PRELOAD"
    );
    let mut command = Command::new("/bin/sh");
    command.args(["-c", &script]).env("FULMEN", FULMEN).env("XDG_RUNTIME_DIR", place.runtime.path());
    command.env("LD_LIBRARY_PATH", "/some/where");
    let ended = start(command).end();
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let lines: Vec<&str> = ended.out.lines().collect();
    let (folder, rest) = lines[0].split_once(':').unwrap();
    assert_eq!((rest, lines[1]), ("/some/where", "thunderbolt 2"));
    assert_eq!(Path::new(lines[2]), fs::canonicalize(&place.library).unwrap());
    assert!(Path::new(folder).join("librdmacm.so.1").exists(), "it stays");
    assert_eq!(fs::metadata(folder).unwrap().permissions().mode() & 0o777, 0o700);
}
