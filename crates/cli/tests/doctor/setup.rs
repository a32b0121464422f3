//! A machine that is well, to be broken; and the doctor's report about it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use serde_json::Value;
use tempfile::TempDir;

use crate::fake;

const FULMEN: &str = env!("CARGO_BIN_EXE_fulmen");

/// A machine's files and its library.
pub struct Setup {
    directory: TempDir,
    library: Option<PathBuf>,
    environment: Vec<(&'static str, String)>,
    arguments: Vec<String>,
    /// What a shell does first.
    before: String,
}

/// The library without hardware; `None` where it cannot be built.
pub fn library() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    BUILT.get_or_init(|| built("whole", &[])).as_deref()
}

/// The same without some of its symbols.
pub fn built(name: &str, defines: &[&str]) -> Option<PathBuf> {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("doctor-{name}-{}", std::process::id()));
    fs::create_dir_all(&directory).expect("a directory");
    let library = fake::build(&directory, defines);
    // The tests' directory stays when they have ended; the library and what it was made of need not.
    if library.is_none() {
        let _ = fs::remove_dir_all(&directory);
    }
    library
}

/// One adapter, `mlx5_0`, whose interface is `eth7`.
pub const ROCE: &str = "device=mlx5_0\nlike=roce\nstate=active\n";

impl Setup {
    /// A machine that is well, with these devices. `None` where the library cannot be built.
    pub fn new(devices: &str) -> Option<Setup> {
        let setup = Setup::without_library();
        let file = setup.directory.path().join("devices");
        fs::write(&file, devices).expect("a file");
        let setup = setup.variable("FAKE_VERBS", file.to_str().expect("UTF-8"));
        Some(Setup { library: Some(library()?.to_owned()), ..setup })
    }

    /// A machine that is well, but for its library, which is to be named by `FULMEN_VERBS_LIBRARY`.
    pub fn without_library() -> Setup {
        let directory = tempfile::tempdir().expect("a directory");
        let setup =
            Setup { directory, library: None, environment: Vec::new(), arguments: Vec::new(), before: String::new() };
        let adapter = "sys/class/infiniband/mlx5_0";
        setup
            .file("proc/sys/kernel/osrelease", "6.12.0-test")
            .file("proc/sys/kernel/yama/ptrace_scope", "1")
            .file("proc/meminfo", "MemTotal: 1 kB\nHugePages_Total: 0\nHugePages_Free: 0\nHugepagesize: 2048 kB")
            // With CAP_IPC_LOCK, so that the limits of the machine under the tests do not matter.
            .file("proc/self/status", "Name: x\nCapEff:\t0000000000004000")
            .file("sys/kernel/mm/transparent_hugepage/shmem_enabled", "always within_size [advise] never deny force")
            .file("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc")
            .file("sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0")
            .file("dev/infiniband/uverbs0", "")
            .file(&format!("{adapter}/device/net/eth7/operstate"), "up")
            .file(&format!("{adapter}/ports/1/rate"), "100 Gb/sec (2X HDR)")
            .file(&format!("{adapter}/ports/1/gid_attrs/ndevs/0"), "eth7")
            .file(&format!("{adapter}/ports/1/gid_attrs/ndevs/3"), "eth7")
            .file(&format!("{adapter}/ports/1/gid_attrs/types/0"), "IB/RoCE v1")
            .file(&format!("{adapter}/ports/1/gid_attrs/types/1"), "RoCE v2")
            .file(&format!("{adapter}/ports/1/gid_attrs/types/2"), "IB/RoCE v1")
            .file(&format!("{adapter}/ports/1/gid_attrs/types/3"), "RoCE v2")
            .file("sys/class/net/eth7/operstate", "up")
    }

    /// Writes one of the machine's files.
    pub fn file(self, path: &str, text: &str) -> Setup {
        let path = self.directory.path().join("root").join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        fs::write(path, format!("{text}\n")).expect("a file");
        self
    }

    /// Takes files away.
    pub fn without(self, path: &str) -> Setup {
        let path = self.directory.path().join("root").join(path);
        let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removed.expect("it was there");
        self
    }

    /// Makes a link.
    pub fn link(self, path: &str, to: &str) -> Setup {
        symlink(to, self.directory.path().join("root").join(path)).expect("a link");
        self
    }

    pub fn library(self, path: &Path) -> Setup {
        Setup { library: Some(path.to_owned()), ..self }
    }

    pub fn variable(mut self, name: &'static str, value: &str) -> Setup {
        self.environment.push((name, value.to_owned()));
        self
    }

    pub fn arguments(mut self, arguments: &[&str]) -> Setup {
        self.arguments.extend(arguments.iter().map(|text| (*text).to_owned()));
        self
    }

    pub fn before(self, script: &str) -> Setup {
        Setup { before: format!("{script}; "), ..self }
    }

    fn run(&self, more: &[&str]) -> Output {
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(format!("{}exec \"$@\"", self.before)).arg("sh");
        command.args([FULMEN, "doctor", "--root"]).arg(self.directory.path().join("root"));
        // Not the agent of who runs the tests.
        command.arg("--state").arg(self.directory.path().join("state"));
        command.args(&self.arguments).args(more);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("FULMEN_")) {
            command.env_remove(name);
        }
        if let Some(library) = &self.library {
            command.env("FULMEN_VERBS_LIBRARY", library);
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.output().expect("the command runs")
    }

    /// What the doctor says, to programs and to people.
    pub fn report(&self) -> Report {
        let output = self.run(&["--json"]);
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(text.lines().count(), 1, "{text}");
        let report = Report { whole: serde_json::from_str(&text).expect("JSON"), code: output.status.code() };
        for check in report.checks() {
            let bad = ["warning", "failure"].contains(&check["outcome"].as_str().expect("an outcome"));
            let fix = check["fix"].as_str();
            assert_eq!(bad, fix.is_some(), "{check}");
            for text in [check["sentence"].as_str(), fix].into_iter().flatten() {
                assert!(text.len() > 5 && !text.contains('\n') && !text.ends_with([' ', ':']), "{check}");
            }
        }
        report
    }

    /// The report that people read, with the exit code.
    pub fn text(&self) -> (String, Option<i32>) {
        let output = self.run(&[]);
        (String::from_utf8(output.stdout).expect("UTF-8"), output.status.code())
    }
}

/// What the doctor said.
pub struct Report {
    pub whole: Value,
    pub code: Option<i32>,
}

impl Report {
    pub fn checks(&self) -> &Vec<Value> {
        self.whole["checks"].as_array().expect("checks")
    }

    /// The first check of this name with this outcome says these words in its sentence and those in its fix.
    #[track_caller]
    pub fn says(&self, name: &str, outcome: &str, sentence: &[&str], fix: &[&str]) -> &Report {
        let check = self.checks().iter().find(|check| check["name"] == name && check["outcome"] == outcome);
        let Some(check) = check else { panic!("no {outcome} of {name} in {:#}", self.whole) };
        for (field, words) in [("sentence", sentence), ("fix", fix)] {
            let text = check[field].as_str().unwrap_or_default();
            for word in words {
                assert!(text.contains(word), "{field} does not say {word:?}: {text:?} of {name}");
            }
        }
        self
    }

    #[track_caller]
    pub fn ends(&self, verdict: &str, code: i32) -> &Report {
        assert_eq!((self.whole["verdict"].as_str(), self.code), (Some(verdict), Some(code)), "{:#}", self.whole);
        self
    }

    /// It is all that is wrong.
    #[track_caller]
    pub fn alone(&self, name: &str) -> &Report {
        for check in self.checks() {
            let bad = ["warning", "failure"].contains(&check["outcome"].as_str().expect("an outcome"));
            assert!(!bad || check["name"] == name, "{check}");
        }
        self
    }
}
