//! As many ranks as a large cluster has, on this machine: each has a link to each other one, far more threads than there are
//! processors, and right results.

use std::process::Command;
use std::time::Instant;

use fulmen_testbed::by_tier;
use serde_json::Value;

/// Whether all sizes of an operation give what they must, bit by bit.
#[track_caller]
fn is_right(op: &str, ranks: u32, options: &[&str]) {
    let began = Instant::now();
    let ended = Command::new(env!("CARGO_BIN_EXE_fulmen"))
        .args(["bench", op, "-n", &ranks.to_string(), "--json", "--samples=2", "--time-budget=0.01"])
        .args(["--min=8", "--max=64K", "--factor=8192"])
        .args(options)
        // The processors are few.
        .envs([("FULMEN_TIMEOUT", "240"), ("FULMEN_SILENCE", "100")])
        .output()
        .expect("the command starts");
    let (out, err) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert_eq!(ended.status.code(), Some(0), "{out}{err}");
    let rows: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let said: Vec<_> =
        rows.iter().map(|row| [&row["bytes"], &row["ranks"], &row["wrong"]].map(Value::as_u64)).collect();
    let wanted = |bytes| [Some(bytes), Some(u64::from(ranks)), Some(0)];
    assert_eq!(said, [wanted(8), wanted(64 << 10)], "{out}");
    println!("{ranks} ranks, {op} {options:?}: {:.1} s", began.elapsed().as_secs_f64());
}

#[test]
fn many_ranks_are_right_by_tcp() {
    is_right("all-reduce", by_tier(18, 24, 40), &["--device=tcp"]);
}

#[test]
fn many_ranks_are_right_over_devices() {
    is_right("all-reduce", by_tier(12, 24, 48), &["--profile=infiniband"]);
}

#[test]
fn many_ranks_are_right_over_shared_memory() {
    is_right("all-reduce", by_tier(12, 32, 64), &[]);
}
