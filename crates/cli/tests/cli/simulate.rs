//! `fulmen simulate` as a user meets it.

use std::process::{Command, Output};

fn simulate(args: &[&str]) -> Output {
    let fulmen = env!("CARGO_BIN_EXE_fulmen");
    Command::new(fulmen).arg("simulate").args(args).output().expect("the command runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_clean_run_prints_one_line_and_equal_seeds_print_equal_lines() {
    let args = ["--seed", "3", "--nodes", "3", "--steps", "300"];
    let (one, two) = (simulate(&args), simulate(&args));
    let line = text(&one.stdout);
    assert_eq!(one.status.code(), Some(0), "{line}{}", text(&one.stderr));
    assert!(line.lines().count() == 1 && line.contains("300 steps") && line.contains("digest "), "{line}");
    assert_eq!(line, text(&two.stdout));
}

#[test]
fn several_runs_print_a_json_object_each() {
    let output = simulate(&["--seed", "5", "--steps", "100", "--runs", "3", "--json"]);
    let seeds: Vec<u64> = text(&output.stdout)
        .lines()
        .map(|line| {
            let run: serde_json::Value = serde_json::from_str(line).expect("JSON");
            assert!(run["failure"].is_null() && run["steps"] == 100, "{line}");
            run["seed"].as_u64().expect("a number")
        })
        .collect();
    assert_eq!(seeds, [5, 6, 7]);
}

#[test]
fn a_schedule_is_kept_from_the_command_line_or_a_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("schedule");
    std::fs::write(&file, "3,17!,29\n").expect("a file");
    let common = ["--seed", "3", "--steps", "50", "--story"];
    let listed = simulate(&[&common[..], &["--keep", "3,17!,29"]].concat());
    let read = simulate(&[&common[..], &["--schedule", file.to_str().expect("a name")]].concat());
    assert_eq!(listed.status.code(), Some(0), "{}", text(&listed.stderr));
    assert_eq!(text(&listed.stdout), text(&read.stdout));
    assert!(text(&listed.stdout).lines().count() <= 4, "{}", text(&listed.stdout));
}

#[test]
fn bad_input_is_one_line_and_code_2() {
    let cases: [&[&str]; 7] = [
        &[],
        &["--seed", "x"],
        &["--seed", "1", "--nodes", "1"],
        &["--seed", "1", "--faults", "drip=1"],
        &["--seed", "1", "--faults", "drop=7"],
        &["--seed", "1", "--keep", "1,x"],
        &["--seed", "1", "--schedule", "/nonexistent/schedule"],
    ];
    for args in cases {
        let output = simulate(args);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        assert!(error.lines().count() == 1 && output.stdout.is_empty(), "{args:?}: {error}");
    }
}

#[test]
fn collectives_scale_in_a_table_a_drawing_and_in_json() {
    let folder = tempfile::tempdir().expect("a directory");
    let svg = folder.path().join("scaling.svg");
    let args = ["collectives", "--nodes", "16", "--bytes", "4K,1M", "--svg", svg.to_str().expect("a name")];
    let output = simulate(&args);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    for part in ["all-reduce of 4 KiB", "all-reduce of 1 MiB", "thunderbolt5-mesh-8", "roce-fat-tree"] {
        assert!(table.contains(part), "{part} in {table}");
    }
    // 2, 4, 8 and 16 nodes; a mesh of four has no more.
    assert_eq!(table.lines().filter(|line| line.trim_start().starts_with("16 ")).count(), 2);
    let drawing = std::fs::read_to_string(&svg).expect("it was written");
    assert!(drawing.starts_with("<svg ") && drawing.matches("<polyline").count() == 2 * 4 * 2);

    let json = text(&simulate(&["collectives", "--nodes", "16", "--bytes", "4K,1M", "--json"]).stdout);
    let points: Vec<serde_json::Value> = json.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(points.len(), 2 * (2 + 3 + 4 + 4));
    assert!(points.iter().all(|point| point["any_order_time_us"].as_f64() <= point["time_us"].as_f64()));
    assert!(points.iter().all(|point| point["time_us"].as_f64() > Some(0.0)));
}

#[test]
fn either_a_seed_or_collectives() {
    for args in
        [&[][..], &["--nodes", "3"], &["--seed", "1", "collectives"], &["collectives", "--links", "/nonexistent"]]
    {
        let output = simulate(args);
        assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(2), ""), "{args:?}");
        assert_eq!(text(&output.stderr).lines().count(), 1, "{}", text(&output.stderr));
    }
}
