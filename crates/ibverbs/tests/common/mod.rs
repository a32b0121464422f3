//! What tests of the library share: programs in C, and how they are run over it.
#![allow(dead_code, reason = "each test takes what it needs")]

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use tempfile::TempDir;

/// Longest that a program may take.
const PATIENCE: Duration = Duration::from_secs(180);

/// A folder in which the library has the name that programs look for.
pub fn library() -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    // Cargo leaves the library beside the test that needs it.
    let own = env::current_exe().expect("the test's own path");
    let library = own.with_file_name("libfulmen_ibverbs.so");
    assert!(library.is_file(), "{} is missing", library.display());
    for name in ["libibverbs.so.1", "librdmacm.so.1"] {
        symlink(&library, folder.path().join(name)).expect("a link");
    }
    folder
}

/// Compiles a program of `tests/c`; `None`, loudly, if that cannot be done here.
pub fn compile(name: &str, folder: &Path) -> Option<PathBuf> {
    compile_with(name, folder, &["-libverbs"])
}

/// The same with these libraries.
pub fn compile_with(name: &str, folder: &Path, libraries: &[&str]) -> Option<PathBuf> {
    static COMPILER: OnceLock<Option<String>> = OnceLock::new();
    let missing = COMPILER.get_or_init(|| {
        if Command::new("cc").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
            return Some("there is no C compiler (apt install gcc)".to_owned());
        }
        let header = Path::new("/usr/include/infiniband/verbs.h").is_file();
        (!header).then(|| "there is no infiniband/verbs.h (apt install libibverbs-dev)".to_owned())
    });
    if let Some(why) = missing {
        println!("SKIPPED: {name}: {why}");
        return None;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(name).with_extension("c");
    let program = folder.join(name);
    let output = Command::new("cc")
        .args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
        .arg(&program)
        .arg(&source)
        .args(libraries)
        .output()
        .expect("cc starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(program)
}

/// A program over the library, told nothing of its surroundings.
pub fn over_library(program: &Path, folder: &Path) -> Command {
    let mut command = Command::new(program);
    for (name, _) in env::vars().filter(|(name, _)| name.starts_with("FULMEN_")) {
        command.env_remove(name);
    }
    command.env("LD_LIBRARY_PATH", folder);
    command
}

/// Waits for a process that this test started, and ends it if it takes too long.
pub fn wait(child: &mut Child, what: &str) -> ExitStatus {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().expect("a child can be waited for") {
            return status;
        }
        if Instant::now() > until {
            let _ = child.kill();
            let _ = child.wait();
            panic!("{what} did not end within {PATIENCE:?}");
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Runs a program of `tests/c`, which says by its status and its words whether all was as it should be.
pub fn run(name: &str) {
    run_with(name, &["-libverbs"]);
}

/// The same with these libraries.
pub fn run_with(name: &str, libraries: &[&str]) {
    let folder = library();
    let Some(program) = compile_with(name, folder.path(), libraries) else { return };
    let log = folder.path().join("log");
    let file = fs::File::create(&log).expect("a file");
    let mut child = over_library(&program, folder.path()).stderr(file).spawn().expect("the program starts");
    let status = wait(&mut child, name);
    assert!(status.success(), "{name}: {status}\n{}", fs::read_to_string(&log).unwrap_or_default());
}
