//! The library itself: its layouts, its symbols, its devices, its memory.
#![cfg(target_os = "linux")]

mod common;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use common::{compile, library, over_library, run, wait};
use fulmen_ibverbs::ffi::{LAYOUTS, VALUES};

/// Has the C compiler compare every size, offset and constant with the header.
#[test]
fn layouts_and_constants_are_those_of_the_header() {
    let folder = library();
    // Tells why not, if there is no compiler or no header.
    if compile("memory", folder.path()).is_none() {
        return;
    }
    let mut source = "#include <infiniband/verbs.h>\n".to_owned();
    let mut same = |left: &str, right: i64| {
        writeln!(source, "_Static_assert((long long)({left}) == {right}LL, {left:?});").expect("a string");
    };
    let mut members = 0;
    for layout in LAYOUTS.into_iter().flatten() {
        let outer = layout.outer;
        let (size, start, path) = match layout.path {
            "" => (format!("sizeof({outer})"), String::new(), String::new()),
            path => (
                format!("sizeof((({outer} *)0)->{path})"),
                format!(" - __builtin_offsetof({outer}, {path})"),
                format!("{path}."),
            ),
        };
        same(&size, layout.size as i64);
        for (name, offset, size) in layout.members {
            let name = name.strip_prefix("r#").unwrap_or(name);
            same(&format!("__builtin_offsetof({outer}, {path}{name}){start}"), *offset as i64);
            // Unions without a name are flattened: the member is one of several, and the largest.
            same(&format!("sizeof((({outer} *)0)->{path}{name})"), *size as i64);
            members += 1;
        }
    }
    let constants: Vec<_> = VALUES.into_iter().flatten().collect();
    for (name, value) in &constants {
        same(name, *value);
    }
    assert!(members > 400 && constants.len() > 300, "{members} members, {} constants", constants.len());
    let file = folder.path().join("layouts.c");
    fs::write(&file, source).expect("a file");
    let output = Command::new("cc").arg("-fsyntax-only").arg(&file).output().expect("cc starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}", errors.lines().take(20).collect::<Vec<_>>().join("\n"));
}

/// The symbols that a library defines, with their versions; `@@` before a default one.
fn symbols(library: &Path) -> Option<BTreeSet<String>> {
    let output = Command::new("nm").args(["-D", "--defined-only", "--with-symbol-versions"]).arg(library).output();
    let Ok(Output { status, stdout, .. }) = output else {
        println!("SKIPPED: symbols: there is no nm (apt install binutils)");
        return None;
    };
    assert!(status.success(), "nm {}", library.display());
    let words = String::from_utf8_lossy(&stdout).into_owned();
    let names = words.lines().filter_map(|line| line.split_whitespace().nth(2)).filter(|name| name.contains('@'));
    Some(names.map(str::to_owned).collect())
}

/// Symbols of rdma-core 65 that programs and libraries of later releases ask for, in their versions.
const LATER: &[&str] = &[
    "ibv_reg_mr_ex@@IBVERBS_1.15",
    "ibv_query_port_speed@@IBVERBS_1.16",
    "ibv_alloc_buf@@IBVERBS_1.17",
    "ibv_create_comp_cntr@@IBVERBS_1.18",
    "ibv_cmd_reg_mr@IBVERBS_PRIVATE_57",
    "verbs_set_ops@IBVERBS_PRIVATE_59",
    "execute_ioctl@IBVERBS_PRIVATE_64",
    "verbs_register_driver_65@IBVERBS_PRIVATE_65",
    "ibv_query_gid_type@IBVERBS_PRIVATE_65",
];

#[test]
fn each_symbol_of_the_real_library_is_there_in_its_version() {
    let folder = library();
    let Some(own) = symbols(&folder.path().join("libibverbs.so.1")) else { return };
    for later in LATER {
        assert!(own.contains(*later), "{later}");
    }
    for name in ["libibverbs.so.1", "librdmacm.so.1"] {
        let real = Path::new("/usr/lib/x86_64-linux-gnu").join(name);
        if !real.is_file() {
            println!("SKIPPED: symbols of {name}: it is not installed (apt install libibverbs1 librdmacm1)");
            continue;
        }
        let Some(real) = symbols(&real) else { return };
        let defaults: Vec<_> = real.iter().filter(|name| name.contains("@@")).collect();
        assert!(defaults.len() > 50, "{name} has {defaults:?} alone");
        let missing: Vec<_> = defaults.into_iter().filter(|name| !own.contains(*name)).collect();
        assert!(missing.is_empty(), "{name} has, and this library has not: {missing:?}");
    }
}

/// Runs an installed program over the library; `None`, loudly, if it is not installed.
fn installed(program: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Option<Output> {
    let path = Path::new("/usr/bin").join(program);
    if !path.is_file() {
        println!("SKIPPED: {program} {arguments:?}: it is not installed (apt install ibverbs-utils perftest)");
        return None;
    }
    let folder = library();
    let mut command = over_library(&path, folder.path());
    Some(command.args(arguments).envs(variables.iter().copied()).output().expect("the program starts"))
}

fn words(output: &Output) -> String {
    assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The same with one space between words, since programs align them.
fn plain_words(output: &Output) -> String {
    words(output).split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn debians_programs_list_and_describe_devices() {
    if let Some(output) = installed("ibv_devices", &[], &[("FULMEN_VERBS_DEVICES", "2")]) {
        let words = words(&output);
        assert!(words.contains("fulmen_0") && words.contains("fulmen_1") && !words.contains("fulmen_2"), "{words}");
        assert!(words.contains("02464cfffe4d0001"), "GUIDs differ by device: {words}");
    }
    let Some(output) = installed("ibv_devinfo", &["-v"], &[]) else { return };
    let told = plain_words(&output);
    for part in [
        "transport: InfiniBand (0)",
        "max_qp: 1024",
        "atomic_cap: ATOMIC_HCA",
        "state: PORT_ACTIVE (4)",
        "link_layer: InfiniBand",
        "GID[ 0]: fe80:",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    let thunderbolt = [("FULMEN_VERBS_PROFILE", "thunderbolt"), ("FULMEN_VERBS_STRICT", "1")];
    let output = installed("ibv_devinfo", &["-v"], &thunderbolt).expect("it is installed");
    let told = plain_words(&output);
    for part in [
        "hca_id: rdma_en2",
        "hca_id: rdma_en3",
        "hca_id: rdma_en4",
        "max_qp: 3",
        "max_cq: 6",
        "max_pd: 6",
        "max_mr: 100",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
}

/// Perftest is linked with drivers' libraries, which ask for private symbols: all are bound when it starts.
#[test]
fn programs_that_are_linked_with_drivers_load() {
    let Some(output) = installed("ib_send_bw", &["--version"], &[("LD_BIND_NOW", "1")]) else { return };
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(told.contains("Version: "), "{}: {told}{}", output.status, String::from_utf8_lossy(&output.stderr));
}

#[test]
fn an_environment_that_makes_no_sense_is_one_line_and_no_devices() {
    for (variable, value) in [("FULMEN_VERBS_PROFILE", "roce"), ("FULMEN_LOG", "a=b=c"), ("FULMEN_FAULTS", "rain@3")] {
        let Some(output) = installed("ibv_devices", &[], &[(variable, value)]) else { return };
        assert!(!output.status.success());
        let told = String::from_utf8_lossy(&output.stderr);
        let lines: Vec<&str> = told.lines().filter(|line| line.starts_with("fulmen: ")).collect();
        assert!(lines.len() == 1 && lines[0].contains(&format!("{variable}={value}")), "{told}");
        assert!(told.contains("Invalid argument"), "the program sees EINVAL: {told}");
    }
}

#[test]
fn reasons_are_logged_where_they_are_asked_for() {
    let folder = library();
    let Some(program) = compile("memory", folder.path()) else { return };
    let log = |filter: &str| {
        let output = over_library(&program, folder.path()).env("FULMEN_LOG", filter).output().expect("it starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let told = log("info");
    assert!(told.contains("ibv_reg_mr failed: ") && told.contains("are not all mapped"), "{told}");
    assert_eq!(log("warn"), "", "a program's failed calls are its own matter");
}

#[test]
fn memory_is_registered_as_the_manual_pages_say() {
    run("memory");
}

#[test]
fn programs_run_under_valgrind() {
    if !Path::new("/usr/bin/valgrind").is_file() {
        println!("SKIPPED: valgrind: there is none (apt install valgrind)");
        return;
    }
    let folder = library();
    let Some(program) = compile("devices", folder.path()) else { return };
    let log = folder.path().join("log");
    let mut command = over_library(Path::new("/usr/bin/valgrind"), folder.path());
    command.args(["-q", "--error-exitcode=9"]).arg(program);
    command.stderr(fs::File::create(&log).expect("a file")).stdout(Stdio::null());
    let status = wait(&mut command.spawn().expect("valgrind starts"), "valgrind");
    assert!(status.success(), "{status}\n{}", fs::read_to_string(&log).unwrap_or_default());
}

#[test]
fn devices_and_ports_answer_as_the_manual_pages_say() {
    run("devices");
}

#[test]
fn asynchronous_events_are_told_and_acknowledged() {
    run("async");
}

#[test]
fn words_and_rates_are_those_of_the_real_library() {
    let folder = library();
    let Some(program) = compile("words", folder.path()) else { return };
    let own = words(&over_library(&program, folder.path()).output().expect("it starts"));
    assert!(own.contains("transport retry counter exceeded") && own.contains("103125"), "{own}");
    if !Path::new("/usr/lib/x86_64-linux-gnu/libibverbs.so.1").is_file() {
        println!("SKIPPED: words of the real library: it is not installed (apt install libibverbs1)");
        return;
    }
    let mut real = Command::new(&program);
    real.env_remove("LD_LIBRARY_PATH").env_remove("LD_PRELOAD");
    assert_eq!(own, words(&real.output().expect("it starts")));
}

#[test]
fn device_files_are_found_when_the_library_is_preloaded() {
    let folder = library();
    let Some(program) = compile("files", folder.path()) else { return };
    let mut command = over_library(&program, folder.path());
    command.env("LD_PRELOAD", folder.path().join("libibverbs.so.1")).env("FULMEN_VERBS_DEVICES", "2");
    words(&command.output().expect("it starts"));
}
