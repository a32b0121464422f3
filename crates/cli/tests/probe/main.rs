//! `fulmen probe` as a user meets it: over the software devices, over a library that is made up, and without one.

#![forbid(unsafe_code)]

mod absent;
mod devices;
mod fake;
mod soft;
#[path = "../../../system/tests/fake/mod.rs"]
mod verbs;

use std::process::Command;

use serde_json::Value;

/// How a command ended.
struct Ended {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Ended {
    /// The one JSON object on standard output.
    #[track_caller]
    fn json(&self) -> Value {
        assert_eq!(self.out.lines().count(), 1, "{}{}", self.out, self.err);
        serde_json::from_str(&self.out).expect("an object")
    }
}

/// Runs the command with these variables, and with none of Fulmen's own beside them.
fn fulmen(args: &[&str], variables: &[(&str, &str)]) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fulmen"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("FULMEN_")) {
        command.env_remove(name);
    }
    let output = command.args(args).envs(variables.iter().copied()).output().expect("the command starts");
    Ended {
        code: output.status.code(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Runs a probe that must pass, and gives its object.
#[track_caller]
fn passes(args: &[&str], variables: &[(&str, &str)]) -> Value {
    let ended = fulmen(&[&["probe", "--json"], args].concat(), variables);
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{}", ended.out);
    let found = ended.json();
    assert_eq!((&found["passed"], &found["problem"]), (&Value::Bool(true), &Value::Null), "{found}");
    assert_eq!(found["probe"], args[0]);
    found
}
