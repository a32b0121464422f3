//! The C header is the one that the definitions give, C and C++ take it, and C and Rust read what the other wrote.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use fulmen_abi::layout::{ALIGNMENT, CONSTANTS, RECORDS};
use fulmen_abi::{SpawnFlags, SpawnRequest, SpawnText, Target, header};

use crate::samples;

/// A file of this crate.
fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

#[test]
fn the_committed_header_is_what_the_definitions_give() {
    let (path, text) = (file("include/fulmen_abi.h"), header().to_string());
    if std::env::var_os("FULMEN_BLESS").is_some_and(|value| value == "1") {
        fs::write(&path, &text).expect("the header is written");
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    // Not the two texts: they are long.
    let differs = committed.lines().zip(text.lines()).position(|(one, other)| one != other);
    let at = differs.map_or("at its end".into(), |line| format!("from line {} on", line + 1));
    assert!(
        committed == text,
        "include/fulmen_abi.h differs from the definitions {at}: write it again with FULMEN_BLESS=1 cargo test -p fulmen-abi"
    );
}

#[test]
fn comments_are_plain_text() {
    let text = header().to_string();
    assert!(!text.contains("[`"), "links are for rustdoc");
    let bodies = text.matches("/*").count();
    assert_eq!(bodies, text.matches("*/").count());
    assert!(text.lines().all(|line| !line.ends_with(' ')), "spaces at the end of a line");
}

#[test]
fn records_have_no_gaps_and_names_no_doubles() {
    for record in RECORDS {
        let mut end = 0;
        for field in record.fields {
            assert_eq!(field.offset, end, "{}.{}", record.name, field.name);
            assert!(!field.doc.is_empty());
            end += field.size;
        }
        assert_eq!((end, end % ALIGNMENT), (record.size, 0), "{}", record.name);
    }
    let mut names: Vec<_> = CONSTANTS.iter().flat_map(|group| group.list).map(|constant| constant.name).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count, "two constants have one name");
}

/// Compiles a program with the header as the definitions give it. `None`, with a line that says why, where there is no
/// compiler.
fn compile(dir: &Path, compiler: &str, arguments: &[&str], source: &Path) -> Option<PathBuf> {
    let program = dir.join("program");
    fs::write(dir.join("fulmen_abi.h"), header().to_string()).expect("the header is written");
    let output = Command::new(compiler)
        .args(arguments)
        .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I"])
        .arg(dir)
        .arg("-o")
        .arg(&program)
        .arg(source)
        .output();
    match output {
        Err(error) => {
            eprintln!("SKIPPED: the header was not given to {compiler} because it cannot be run ({error})");
            None
        }
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{compiler} {arguments:?} refuses the header:\n{said}");
            Some(program)
        }
    }
}

#[test]
fn c_and_cpp_take_the_header() {
    let dir = tempfile::tempdir().expect("a directory");
    for (compiler, name, standard) in [
        ("cc", "empty.c", "-std=c11"),
        ("cc", "empty.c", "-std=c17"),
        ("c++", "empty.cpp", "-std=c++11"),
        ("c++", "empty.cpp", "-std=c++17"),
    ] {
        let source = dir.path().join(name);
        // Twice: it guards itself.
        let twice = "#include <fulmen_abi.h>\n#include <fulmen_abi.h>\nint main() { return 0; }\n";
        fs::write(&source, twice.replace("main()", if name.ends_with(".c") { "main(void)" } else { "main()" }))
            .expect("it is written");
        compile(dir.path(), compiler, &[standard], &source);
    }
}

#[test]
fn c_asks_and_rust_understands() {
    let dir = tempfile::tempdir().expect("a directory");
    let source = file("tests/abi/talk.c");
    let Some(program) = compile(dir.path(), "cc", &["-std=c11"], &source) else { return };
    let output = Command::new(program).arg("ask").output().expect("it runs");
    assert!(output.status.success(), "{output:?}");
    let record = SpawnRequest::from_bytes(&output.stdout).expect("one record");
    assert_eq!(record.status().expect("a state").state, fulmen_abi::SpawnState::Written);
    let spawn = record.decode().expect("C has written it right");
    assert_eq!((spawn.id, spawn.origin, spawn.target), (41, samples::ORIGIN, Target::Any));
    assert_eq!(spawn.flags, SpawnFlags::DETACH | SpawnFlags::KEEP_OUTPUT);
    let SpawnText::Inline(command) = spawn.text else { panic!("it is in the record") };
    assert!(command.args.iter().eq(["echo", "from C"]) && command.env.iter().eq(["LANG=C"]));
    assert_eq!(command.cwd, Some("/"));
    let stdout = spawn.stdout.expect("a ring");
    assert_eq!((stdout.node, stdout.slot, stdout.tag), (3, 12, 0x0123_4567_89ab_cdef));
    assert_eq!((stdout.offset, stdout.len, stdout.region_len), (64, 4096, 8192));
}

#[test]
fn rust_asks_and_c_understands() {
    let dir = tempfile::tempdir().expect("a directory");
    let source = file("tests/abi/talk.c");
    let Some(program) = compile(dir.path(), "cc", &["-std=c11"], &source) else { return };
    let file = dir.path().join("record");
    fs::write(&file, SpawnRequest::encode(&samples::spawn()).expect("it is right").as_bytes()).expect("it is written");
    let input = fs::File::open(&file).expect("it is there");
    let output = Command::new(program).arg("tell").stdin(Stdio::from(input)).output().expect("it runs");
    assert!(output.status.success(), "{output:?}");
    let told = String::from_utf8(output.stdout).expect("text");
    let strings = "make\n-j8\n\nMODE=fast\nEMPTY=\nSUM=1=1\n/tmp/w\u{f6}rk\n";
    assert_eq!(
        told,
        format!("id 9\nnode 3\ngateway\ngeneration 77\nlease 1 5\nstdin 1 4096 8192\nstrings 7\n{strings}")
    );
}
