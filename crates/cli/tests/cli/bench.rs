//! `fulmen bench`: every operation gives numbers and right results, and nothing else appears where JSON is wanted.

use serde_json::Value;

use crate::support::{Ended, fulmen, shell};

const COLLECTIVES: [&str; 10] = [
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all-to-all",
    "scan",
    "barrier",
];
const PAIRS: [&str; 2] = ["latency", "bandwidth"];

/// Keeps a run short.
const QUICK: [&str; 2] = ["--samples=5", "--time-budget=0.01"];

fn bench(args: &[&str]) -> Ended {
    fulmen(&[&["bench"], args, &QUICK].concat()).end()
}

/// The rows of a run with `--json`, which must be good ones.
#[track_caller]
pub fn rows(ended: &Ended) -> Vec<Value> {
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{}", ended.out);
    let rows: Vec<Value> = ended.out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    for row in &rows {
        let names: Vec<&str> = row.as_object().expect("an object").keys().map(String::as_str).collect();
        let mut wanted = [
            "op",
            "bytes",
            "ranks",
            "dtype",
            "memory",
            "samples",
            "min_us",
            "p50_us",
            "p99_us",
            "algbw_GBps",
            "busbw_GBps",
            "wrong",
        ];
        wanted.sort_unstable();
        let mut sorted = names.clone();
        sorted.sort_unstable();
        sorted.retain(|name| !["target_cpu_us", "overlap"].contains(name));
        assert_eq!(sorted, wanted);
        assert_eq!(row["wrong"], 0, "{row}");
        let number = |name: &str| row[name].as_f64().expect("a number");
        assert!(number("samples") >= 1.0 && number("samples") <= 5.0, "{row}");
        assert!(0.0 < number("min_us") && number("min_us") <= number("p50_us"), "{row}");
        assert!(number("p50_us") <= number("p99_us"), "{row}");
        assert!(number("algbw_GBps") >= 0.0 && number("busbw_GBps") >= 0.0, "{row}");
    }
    rows
}

fn bytes(rows: &[Value]) -> Vec<u64> {
    rows.iter().map(|row| row["bytes"].as_u64().expect("a number")).collect()
}

/// Results are right, whoever made the calls. How much is gained depends on the machine.
#[test]
fn what_a_handle_hides_is_measured_if_asked_for() {
    for op in COLLECTIVES {
        let ended = bench(&[op, "--json", "--overlap", "--max", "32K", "--factor", "64"]);
        if op == "barrier" {
            assert!(ended.code == Some(2) && ended.err.contains("barrier is none"), "{}", ended.err);
            continue;
        }
        for row in rows(&ended) {
            assert!((0.0..=1.0).contains(&row["overlap"].as_f64().expect("a share")), "{row}");
        }
    }
    let text = bench(&["scan", "--overlap", "--memory", "plain", "--min", "1K", "--max", "1K"]).out;
    assert!(text.lines().nth(1).is_some_and(|heading| heading.ends_with("overlap %")), "{text}");
    assert!(rows(&bench(&["scan", "--json", "--min", "1K", "--max", "1K"])).iter().all(|row| row["overlap"].is_null()));
    assert_eq!(bench(&["latency", "--overlap"]).code, Some(2));
}

#[test]
fn every_operation_is_right_in_both_memories() {
    for op in COLLECTIVES.into_iter().chain(PAIRS) {
        for memory in ["registered", "plain"] {
            let rows = rows(&bench(&[op, "--json", "--memory", memory, "--max", "128K", "--factor", "64"]));
            let sizes: &[u64] = if op == "barrier" { &[0] } else { &[8, 512, 32 << 10] };
            assert_eq!(bytes(&rows), sizes, "{op}");
            for row in &rows {
                assert_eq!((row["op"].as_str(), row["memory"].as_str()), (Some(op), Some(memory)));
                assert_eq!((row["dtype"].as_str(), row["ranks"].as_u64()), (Some("f32"), Some(2)));
            }
        }
    }
}

#[test]
fn every_operation_is_right_by_tcp() {
    for op in COLLECTIVES.into_iter().chain(PAIRS) {
        let sizes = ["--min", "64", "--max", "128K", "--factor", "1024"];
        let rows = rows(&bench(&[&[op, "-n", "2", "--json", "--device", "tcp"], &sizes[..]].concat()));
        assert_eq!(bytes(&rows), if op == "barrier" { &[0][..] } else { &[64, 64 << 10] }, "{op}");
    }
    let narrow = ["all-reduce", "-n", "3", "--device=tcp", "--profile=thunderbolt", "--trusted-rail", "--max=8"];
    let ended = bench(&narrow);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert!(ended.out.contains("plain TCP, software thunderbolt device"), "{}", ended.out);
    let ended = bench(&["all-reduce", "--device=mlx5_0", "--profile=thunderbolt"]);
    assert_eq!((ended.code, ended.err.lines().count()), (Some(2), 1), "{}", ended.err);
}

/// Where the only host is this machine, it is as without it.
#[test]
fn a_list_of_hosts_says_how_many_ranks() {
    let rows = rows(&bench(&["all-reduce", "--hosts=localhost:3", "--json", "--max=8"]));
    assert_eq!((bytes(&rows), rows[0]["ranks"].as_u64()), (vec![8], Some(3)));
    let ended = bench(&["latency", "--hosts=localhost:2", "--max=8"]);
    assert!(ended.out.contains("shared memory"), "{}", ended.out);
    let ended = bench(&["latency", "--hosts=localhost"]);
    assert_eq!(ended.code, Some(2), "{}", ended.err);
    assert!(ended.err.contains("between two ranks"), "{}", ended.err);
}

#[test]
fn every_operation_is_right_over_devices() {
    for profile in ["infiniband", "thunderbolt"] {
        for op in COLLECTIVES.into_iter().chain(PAIRS) {
            let sizes = ["--min", "64", "--max", "128K", "--factor", "1024"];
            let rows = rows(&bench(&[&[op, "-n", "2", "--json", "--profile", profile], &sizes[..]].concat()));
            assert_eq!(bytes(&rows), if op == "barrier" { &[0][..] } else { &[64, 64 << 10] }, "{op}");
        }
        let rows =
            rows(&bench(&["all-reduce", "-n", "3", "--json", "--profile", profile, "--memory=plain", "--max=8"]));
        assert_eq!(bytes(&rows), [8]);
    }
    // As many as the device's queue pairs connect.
    rows(&bench(&["all-reduce", "-n", "6", "--json", "--profile=thunderbolt", "--max=8"]));
}

#[test]
fn every_type_is_right() {
    for dtype in ["bool", "i8", "i64", "u16", "f16", "bf16", "f64", "complex64"] {
        let rows = rows(&bench(&["all-reduce", "-n3", "--json", "--dtype", dtype, "--max=40K", "--factor=5000"]));
        assert_eq!(bytes(&rows), [8, 40_000]);
        assert!(rows.iter().all(|row| row["dtype"] == dtype && row["ranks"] == 3));
    }
}

#[test]
fn parts_are_whole_elements_for_each_rank() {
    for op in ["all-gather", "reduce-scatter", "gather", "scatter", "all-to-all"] {
        let rows = rows(&bench(&[op, "-n", "3", "--json", "--dtype", "f64", "--max", "2K", "--factor", "16"]));
        assert_eq!(bytes(&rows), [24, 120, 2040], "{op}");
        let bandwidths = |row: &Value| (row["algbw_GBps"].as_f64().unwrap(), row["busbw_GBps"].as_f64().unwrap());
        let (algorithm, bus) = bandwidths(&rows[2]);
        assert!((bus - algorithm * 2.0 / 3.0).abs() < 2e-4, "{bus} of {algorithm}");
    }
}

#[test]
fn one_rank_alone_is_right_and_the_odd_one_watches() {
    for op in COLLECTIVES {
        rows(&bench(&[op, "-n", "1", "--json", "--max", "8"]));
    }
    for op in PAIRS {
        rows(&bench(&[op, "-n", "3", "--json", "--max", "8"]));
    }
}

#[test]
fn large_buffers_get_a_pool_that_holds_them() {
    // More than the default pool would leave beside it, if it were small.
    let ended =
        shell("export FULMEN_POOL=64K; exec \"$FULMEN\" bench broadcast --json --min 8M --max 8M --samples 1").end();
    assert_eq!(bytes(&rows(&ended)), [8 << 20]);
}

#[test]
fn the_table_has_a_line_for_each_size() {
    let ended = bench(&["all-reduce", "--max", "64", "--factor", "8"]);
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
    let lines: Vec<&str> = ended.out.lines().collect();
    assert!(lines[0].starts_with("# all-reduce, 2 ranks, f32, registered memory, shared memory"), "{}", lines[0]);
    for column in ["bytes", "p50 us", "p99 us", "algbw", "busbw", "wrong"] {
        assert!(lines[1].contains(column), "{}", lines[1]);
    }
    let sizes: Vec<&str> = lines[2..].iter().map(|line| line.split_whitespace().next().unwrap()).collect();
    assert_eq!(sizes, ["8", "64"]);
    assert!(lines[2..].iter().all(|line| line.ends_with(" 0") && line.len() == lines[1].len()), "{}", ended.out);
}

#[test]
fn a_reader_that_leaves_ends_the_benchmark() {
    for (options, reader, most) in
        [("--json", "true", 0), ("", "true", 0), ("--json", "head -n 1", 1), ("", "head -n 3", 3)]
    {
        let script = format!("{{ \"$FULMEN\" bench all-reduce --samples 5 {options}; echo code $? >&2; }} | {reader}");
        let ended = shell(&script).end();
        assert_eq!(ended.out.lines().count(), most, "{}", ended.out);
        // The reader may be so slow to leave that everything was written before.
        assert!(["code 141\n", "code 0\n"].contains(&ended.err.as_str()), "{}", ended.err);
    }
}

#[test]
fn one_sided_operations_are_right_and_cost_a_sleeping_target_nothing() {
    for (op, sizes) in [
        ("put", &[8, 512, 32 << 10][..]),
        ("get", &[8, 512, 32 << 10]),
        ("put-latency", &[8, 512, 32 << 10]),
        ("fetch-add", &[8]),
        ("compare-swap", &[8]),
    ] {
        for memory in ["registered", "plain"] {
            let mut most = Vec::new();
            // What else a machine does may cost the target something, but not each time.
            let costs_nothing = (0..5).any(|_| {
                let rows = rows(&bench(&[op, "--json", "--memory", memory, "--max", "128K", "--factor", "64"]));
                assert_eq!(bytes(&rows), sizes, "{op}");
                let mut costs = Vec::new();
                for row in &rows {
                    assert_eq!(row["op"], op);
                    assert_eq!(row["dtype"], if sizes.len() == 1 { "u64" } else { "f32" });
                    let cost = row["target_cpu_us"].as_f64();
                    assert_eq!(cost.is_none(), op == "put-latency", "{row}");
                    costs.extend(cost);
                }
                most.push(costs.iter().copied().fold(0.0, f64::max));
                // Thousands were made while it slept, and each takes some nanoseconds at least.
                costs.iter().all(|micros| *micros < 5.0)
            });
            assert!(costs_nothing, "{op}, {memory} memory: at most {most:?} us");
        }
    }
    let alone = bench(&["put", "-n", "1"]);
    assert_eq!(alone.code, Some(2), "{}", alone.err);
    // The last one of three watches.
    assert_eq!(bytes(&rows(&bench(&["get", "-n", "3", "--json", "--min", "64", "--max", "64"]))), [64]);
}

#[test]
fn one_sided_operations_are_right_over_devices() {
    for profile in ["infiniband", "thunderbolt"] {
        for op in ["put", "get", "put-latency", "fetch-add", "compare-swap"] {
            let sizes = ["--min", "64", "--max", "128K", "--factor", "1024"];
            let rows = rows(&bench(&[&[op, "--json", "--profile", profile], &sizes[..]].concat()));
            let words = op == "fetch-add" || op == "compare-swap";
            assert_eq!(bytes(&rows), if words { &[8][..] } else { &[64, 64 << 10] }, "{op} {profile}");
        }
    }
}
