//! The layouts, numbers and calls that this crate relies on are those of the C header: a C compiler is asked.

use std::collections::HashSet;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use fulmen_system::layout::facts;

/// What is held against the header, as it stands in the source.
const FFI: &str = include_str!("../src/ffi.rs");
const SYMBOLS: &str = include_str!("../src/library/symbols.rs");

/// Apple's numbers, which no header of rdma-core has.
const APPLES: [&str; 2] = ["TRANSPORT_THUNDERBOLT", "LINK_LAYER_THUNDERBOLT"];

/// Fields that stand for what lies between those that are used: their neighbours' offsets hold them.
fn is_filler(field: &str) -> bool {
    field.starts_with('_')
        || field.starts_with("before_")
        || field.starts_with("after_")
        || matches!(field, "unused" | "room" | "rest")
}

/// Compiles C that begins with the header. `None`, with a line that says why, where that cannot be.
fn compile(body: &str, arguments: &[&str]) -> Option<(tempfile::TempDir, PathBuf, Output)> {
    let dir = tempfile::tempdir().expect("a directory for the probe");
    let cc = |name: &str, text: &str, arguments: &[&str]| {
        let source = dir.path().join(name).with_extension("c");
        fs::write(&source, format!("#include <infiniband/verbs.h>\n#include <stdio.h>\n{text}"))
            .expect("it is written");
        Command::new("cc")
            .args(["-std=gnu11", "-w"])
            .args(arguments)
            .arg(source)
            .arg("-o")
            .arg(dir.path().join(name))
            .output()
    };
    let why = match cc("header", "", &["-fsyntax-only"]) {
        Err(error) => format!("the C compiler `cc` cannot be run ({error})"),
        Ok(output) if !output.status.success() => {
            "the header <infiniband/verbs.h> is missing (Debian has it in libibverbs-dev)".to_owned()
        }
        Ok(_) => {
            let output = cc("probe", body, arguments).expect("the compiler ran a moment ago");
            let program = dir.path().join("probe");
            return Some((dir, program, output));
        }
    };
    eprintln!("SKIPPED: nothing was compared with the C header because {why}");
    None
}

/// What C says differs from `facts`, in words; `None` where C cannot be asked.
fn differences(facts: &[(&str, u64)]) -> Option<Vec<String>> {
    let lines: String = facts
        .iter()
        .map(|(expression, _)| format!("    printf(\"%llu\\n\", (unsigned long long)({expression}));\n"))
        .collect();
    let (_dir, program, output) = compile(&format!("int main(void)\n{{\n{lines}}}\n"), &[])?;
    assert!(output.status.success(), "the probe does not compile:\n{}", String::from_utf8_lossy(&output.stderr));
    let output = Command::new(program).output().expect("the probe runs");
    let text = String::from_utf8(output.stdout).expect("it prints numbers");
    let values: Vec<u64> = text.lines().map(|line| line.parse().expect("a number")).collect();
    assert_eq!(values.len(), facts.len(), "one number for each expression");
    let pairs = facts.iter().zip(values);
    let wrong = pairs.filter(|((_, ours), theirs)| ours != theirs);
    Some(wrong.map(|((expression, ours), theirs)| format!("{expression} is {theirs} in C and {ours} here")).collect())
}

#[test]
fn c_says_the_same() {
    if let Some(differences) = differences(&facts()) {
        assert!(differences.is_empty(), "{}", differences.join("\n"));
    }
}

#[test]
fn a_wrong_value_is_noticed() {
    let mut altered = facts();
    let at = altered.iter().position(|(expression, _)| *expression == "offsetof(struct ibv_qp_attr, ah_attr)");
    altered[at.expect("a field in the middle of a structure")].1 += 8;
    altered.push(("IBV_WR_SEND", 0));
    if let Some(differences) = differences(&altered) {
        assert_eq!(differences.len(), 2, "{differences:?}");
        assert!(differences[0].contains("ah_attr"), "{differences:?}");
        assert!(differences[1].contains("IBV_WR_SEND is 2 in C and 0 here"), "{differences:?}");
    }
}

#[test]
fn numbers_that_were_mistaken_before_are_right() {
    for fact in [("IBV_WR_SEND", 2), ("IBV_SEND_SIGNALED", 2), ("IBV_WC_RECV", 128), ("sizeof(struct ibv_wc)", 48)] {
        assert!(facts().contains(&fact), "{fact:?}");
    }
}

/// The structures of the source: their C names, whether they are whole, and their fields.
fn structures() -> Vec<(String, bool, Vec<String>)> {
    let mut found = Vec::new();
    let mut lines = FFI.lines();
    while let Some(line) = lines.next() {
        let Some((before, name)) = line.trim().strip_prefix("///").and_then(|text| text.split_once("`struct ")) else {
            continue;
        };
        // A member of a structure is no structure of its own.
        if !matches!(before.trim(), "" | "Prefix of") {
            continue;
        }
        let name = name.split('`').next().unwrap_or_default().to_owned();
        let body = lines.by_ref().skip_while(|line| !line.ends_with('{')).skip(1).take_while(|line| *line != "}");
        let fields = body.filter_map(|line| Some(line.trim().strip_prefix("pub ")?.split_once(':')?.0.to_owned()));
        let fields: Vec<String> = fields.filter(|field| !is_filler(field)).collect();
        found.push((name, before.trim().is_empty(), fields));
    }
    found
}

#[test]
fn every_field_that_is_declared_is_compared() {
    let facts = facts();
    let known: HashSet<&str> = facts.iter().map(|(expression, _)| *expression).collect();
    let mut missing = Vec::new();
    let structures = structures();
    for (name, whole, fields) in &structures {
        let mut expect = |expression: String| {
            if !known.contains(expression.as_str()) {
                missing.push(expression);
            }
        };
        // A structure of which nothing is read is only a name, and one with room behind it has no size of its own.
        if *whole && !fields.is_empty() && name != "ibv_port_attr" {
            expect(format!("sizeof(struct {name})"));
        }
        for field in fields {
            // The header calls the first member of a device obsolete, and nobody reads it.
            if (name.as_str(), field.as_str()) != ("ibv_device", "ops") {
                expect(format!("offsetof(struct {name}, {field})"));
                expect(format!("sizeof(((struct {name} *)0)->{field})"));
            }
        }
    }
    assert!(missing.is_empty(), "nothing compares these with the header:\n{}", missing.join("\n"));
    let names: Vec<&str> = structures.iter().map(|(name, ..)| name.as_str()).collect();
    for name in ["ibv_context_ops", "ibv_send_wr", "ibv_qp_attr", "ibv_device_attr", "ibv_port_attr", "ibv_wc"] {
        assert!(names.contains(&name), "the source was not understood: {names:?}");
    }
}

#[test]
fn every_number_that_is_declared_is_compared() {
    let facts = facts();
    let known: HashSet<&str> = facts.iter().map(|(expression, _)| *expression).collect();
    let numbers = FFI.split_once("pub mod number").expect("the module of numbers").1;
    let names: Vec<&str> =
        numbers.lines().filter_map(|line| line.trim().strip_prefix("pub const ")?.split(':').next()).collect();
    assert!(names.len() > 50, "the source was not understood: {names:?}");
    let missing: Vec<&&str> =
        names.iter().filter(|name| !APPLES.contains(name) && !known.contains(format!("IBV_{name}").as_str())).collect();
    assert!(missing.is_empty(), "nothing compares these with the header: {missing:?}");
}

/// A type of the source in C.
fn in_c(rust: &str) -> String {
    let rust = rust.trim();
    if let Some(pointee) = rust.strip_prefix("*mut ") {
        return format!("{} *", in_c(pointee));
    }
    if let Some(pointee) = rust.strip_prefix("*const ") {
        return format!("const {} *", in_c(pointee));
    }
    let name = match rust {
        "c_int" => "int",
        "c_char" => "char",
        "c_void" => "void",
        "u8" => "uint8_t",
        "u32" => "uint32_t",
        "u64" => "uint64_t",
        "usize" => "size_t",
        "isize" => "ssize_t",
        "GidEntry" => "struct ibv_gid_entry",
        "Gid" => "union ibv_gid",
        // The exported call writes the structure as it was at first, and gives that another name.
        "PortAttr" => "struct _compat_ibv_port_attr",
        "Context" => "struct ibv_context",
        "Device" => "struct ibv_device",
        "DeviceAttr" => "struct ibv_device_attr",
        "Pd" => "struct ibv_pd",
        "Mr" => "struct ibv_mr",
        "Cq" => "struct ibv_cq",
        "CompChannel" => "struct ibv_comp_channel",
        "Qp" => "struct ibv_qp",
        "QpAttr" => "struct ibv_qp_attr",
        "QpInitAttr" => "struct ibv_qp_init_attr",
        "AsyncEvent" => "struct ibv_async_event",
        other => panic!("say here what {other} is in C"),
    };
    name.to_owned()
}

/// The calls of the source: their names, and their types in C.
fn calls() -> Vec<(String, String)> {
    let table = SYMBOLS.split_once("\ncalls! {").expect("the table of calls").1.split_once("\n}\n").expect("its end").0;
    let entries = table.split(';').filter_map(|entry| {
        let (_, rest) = entry.split_once('"')?;
        let (name, rest) = rest.split_once('"')?;
        let (arguments, rest) = rest.split_once("fn(")?.1.split_once(')')?;
        let result =
            rest.trim().strip_prefix("->").and_then(|rest| rest.split(',').next()).map_or("void".to_owned(), in_c);
        // As long as the other, and another type to the compiler.
        let result = if name == "ibv_get_device_guid" { "__be64".to_owned() } else { result };
        let arguments: Vec<String> = arguments.split(',').map(in_c).collect();
        Some((name.to_owned(), format!("{result}({})", arguments.join(", "))))
    });
    entries.collect()
}

/// What the compiler says of the calls' types: nothing, if they are those of the header.
fn complaints(calls: &[(String, String)]) -> Option<String> {
    let asserts = calls.iter().map(|(name, kind)| {
        format!("#undef {name}\n_Static_assert(__builtin_types_compatible_p(__typeof__({name}), {kind}), \"{name} is {kind}\");\n")
    });
    let (_dir, _, output) = compile(&asserts.collect::<String>(), &["-fsyntax-only"])?;
    assert_eq!(output.status.success(), output.stderr.is_empty());
    Some(String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn calls_have_the_types_of_the_header() {
    let mut calls = calls();
    assert!(calls.len() > 20, "the source was not understood: {calls:?}");
    if let Some(complaints) = complaints(&calls) {
        assert!(complaints.is_empty(), "{complaints}");
    }
    let at = calls.iter().position(|(name, _)| name == "ibv_create_cq").expect("a call with many arguments");
    calls[at].1 = calls[at].1.replace("struct ibv_comp_channel *, int", "int, struct ibv_comp_channel *");
    if let Some(complaints) = complaints(&calls) {
        assert!(complaints.contains("ibv_create_cq is"), "a wrong type is noticed: {complaints}");
    }
}
