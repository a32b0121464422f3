//! Bad input is refused in one line, with the way out and a proper exit code, before anything is started.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::support::{Ended, FULMEN, fulmen, ranks, shell, start};

#[track_caller]
fn refused(ended: &Ended, code: i32, parts: &[&str]) {
    assert_eq!(ended.code, Some(code), "{}", ended.err);
    assert_eq!(ended.out, "");
    assert_eq!(ended.err.lines().count(), 1, "{}", ended.err);
    assert!(ended.err.starts_with("fulmen: "), "{}", ended.err);
    for part in parts {
        assert!(ended.err.contains(part), "{part:?} in {}", ended.err);
    }
}

#[test]
fn wrong_arguments() {
    for (args, parts) in [
        (&[][..], &["no command", "--help"][..]),
        (&["rum"], &["rum", "run"]),
        (&["run", "-n", "0", "true"], &["'0'", "1 to 1024"]),
        (&["run", "-n", "1025", "true"], &["1025", "1 to 1024"]),
        (&["run", "-n", "99999999999999999999", "true"], &["--ranks", "1 to 1024"]),
        (&["run", "-n", "-3", "true"], &["'-3'", "1 to 1024"]),
        (&["run", "-n", "two", "true"], &["two", "1 to 1024"]),
        (&["run", "true"], &["<N>"]),
        (&["run", "-n", "2"], &["<PROGRAM>"]),
        (&["run", "-n", "2", "--"], &["<PROGRAM>"]),
        (&["run", "-n", "2", "--profile", "token-ring", "true"], &["token-ring", "infiniband", "thunderbolt"]),
        (&["run", "-n", "2", "--device", "", "true"], &["--device", "name of a device", "any"]),
        (&["run", "-n", "2", "--device=rxe0", "--profile=infiniband", "true"], &["--device", "--profile"]),
        (&["bench", "all-reduce", "--device=rxe0", "--profile=infiniband"], &["--device", "--profile"]),
        (&["run", "-n", "2", "--timeout", "0", "true"], &["more than 0"]),
        (&["run", "-n", "2", "--timeout", "soon", "true"], &["soon", "seconds"]),
        (&["run", "-n", "2", "--grace", "-1", "true"], &["'-1'", "--grace", "seconds"]),
        (&["run", "-n", "2", "--silence", "0", "true"], &["at least 0.1"]),
        (&["run", "-n", "2", "--restart", "-1", "true"], &["'-1'", "--restart"]),
        (&["run", "-n", "2", "--tiemout", "5", "true"], &["--tiemout", "--timeout"]),
        (&["bench"], &["<OP>"]),
        (&["bench", "all-redcue"], &["all-redcue", "all-reduce"]),
        (&["bench", "all-reduce", "-n", "0"], &["'0'", "1 to 1024"]),
        (&["bench", "all-reduce", "--dtype", "f31"], &["f31", "bf16"]),
        (&["bench", "all-reduce", "--memory", "core"], &["core", "registered", "plain"]),
        (&["bench", "all-reduce", "--min", "2x"], &["2x", "64K"]),
        (&["bench", "all-reduce", "--min", "16", "--max", "8"], &["--min 16", "--max 8"]),
        (&["bench", "all-reduce", "--min", "0"], &["--min", "one element"]),
        (&["bench", "all-reduce", "--min", "10"], &["--min 10", "4 bytes for f32"]),
        (&["bench", "all-reduce", "--max", "17"], &["--max 17", "4 bytes for f32"]),
        (&["bench", "all-reduce", "--min", "64G", "--max", "1048576G"], &["MiB are available", "--max"]),
        (&["bench", "all-reduce", "--samples", "0"], &["samples", "from 1"]),
        (&["bench", "all-reduce", "--time-budget", "0"], &["more than 0"]),
        (&["bench", "latency", "-n", "1"], &["between two ranks", "-n 2"]),
        (&["bench", "all-reduce", "-n7", "--profile=thunderbolt"], &["10 queue pairs", "at most 6 ranks", "--profile"]),
        (&["demo", "-n7", "--profile=thunderbolt"], &["10 queue pairs", "at most 6 ranks", "--profile"]),
        (&["devices", "soft"], &["soft"]),
    ] {
        refused(&fulmen(args).end(), 2, parts);
    }
}

/// Makes a copy that can be executed at once. Were it written by this process, a child that another test starts at that moment
/// would hold it open for writing, and the system executes no such file.
fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg(from).arg(to).status().unwrap().success());
}

#[test]
fn programs_that_cannot_be_run() {
    let folder = tempfile::tempdir().unwrap();
    let plain = folder.path().join("plain");
    let text = folder.path().join("text");
    fs::write(&text, "#!/no/such/interpreter\n").unwrap();
    copy(&text, &plain);
    let nowhere = folder.path().join("nowhere");
    let run = |program: &str| fulmen(&["run", "-n", "3", "--", program]).end();
    refused(&run("fulmen-no-such-program"), 127, &["fulmen-no-such-program", "PATH", "./"]);
    refused(&run(nowhere.to_str().unwrap()), 127, &["nowhere", "No such file"]);
    refused(&run("no\nsuch\x1b[31m"), 127, &["no\\nsuch\\u{1b}[31m"]);
    refused(&run(""), 127, &["cannot find"]);
    refused(&run(plain.to_str().unwrap()), 126, &["plain", "chmod +x"]);
    refused(&run(folder.path().to_str().unwrap()), 126, &["is a directory"]);

    fs::set_permissions(&plain, fs::Permissions::from_mode(0o755)).unwrap();
    let ended = run(plain.to_str().unwrap());
    assert_eq!((ended.code, ended.messages().len(), ended.err.lines().count()), (Some(126), 1, 1), "{}", ended.err);
    assert!(ended.err.contains("interpreter") && ended.err.contains("plain"), "{}", ended.err);
}

#[test]
fn a_program_in_path_without_permission_is_told_from_a_missing_one() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("plain"), "true\n").unwrap();
    let ended = shell(&format!("PATH='{}'; exec \"$FULMEN\" run -n 2 plain", folder.path().display())).end();
    refused(&ended, 126, &["plain", "chmod +x"]);
}

#[test]
fn too_few_descriptors() {
    let ended = shell("ulimit -n 40; exec \"$FULMEN\" run -n 100 true").end();
    refused(&ended, 2, &["100 ranks", "limit is 40", "ulimit -n 532"]);
}

#[test]
fn too_little_address_space() {
    for command in ["demo", "bench all-reduce"] {
        let ended = shell(&format!("ulimit -v 150000; exec \"$FULMEN\" {command}")).end();
        refused(&ended, 2, &["address space", "ulimit -v"]);
    }
}

#[test]
fn too_few_processes() {
    // The limit counts a user's processes and does not hold for root: root plays a user that has none.
    const NOBODY_ELSE: u32 = 54_321;
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("fulmen");
    copy(Path::new(FULMEN), &program);
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new("/bin/sh");
    // One shell calls the option -u and another -p.
    let script = "ulimit -u 2 2>/dev/null || ulimit -p 2; exec \"$0\" run -n 4 true";
    command.arg("-c").arg(script).arg(&program).current_dir("/");
    if rustix::process::getuid().is_root() {
        command.uid(NOBODY_ELSE).gid(NOBODY_ELSE);
        let seen = Command::new(&program).arg("--version").current_dir("/").uid(NOBODY_ELSE).gid(NOBODY_ELSE).output();
        if !seen.is_ok_and(|output| output.status.success()) {
            eprintln!("skipped: another user cannot be played here, or sees nothing in the temporary directory");
            return;
        }
    }
    refused(&start(command).end(), 2, &["4 ranks", "ulimit -u"]);
}

#[test]
fn a_refused_run_starts_no_rank() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    let ended = ranks(&["-n", "0"], &format!("touch '{}'", trace.display())).end();
    assert_eq!(ended.code, Some(2));
    assert!(!trace.exists());
}
