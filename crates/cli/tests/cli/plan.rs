//! `fulmen plan`: what is reckoned, said with units and reasons.

use serde_json::Value;

use crate::support::{Ended, FULMEN, fulmen};

fn plan(args: &[&str]) -> Ended {
    fulmen(&[&["plan", "link"], args].concat()).end()
}

#[track_caller]
fn json(args: &[&str]) -> Value {
    let ended = plan(&[&["--profile", "thunderbolt5", "--json"], args].concat());
    assert_eq!((ended.code, ended.err.as_str(), ended.out.lines().count()), (Some(0), "", 1));
    serde_json::from_str(&ended.out).expect("JSON")
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is a number"))
}

/// Best, expected, worst.
fn span(value: &Value) -> [f64; 3] {
    ["best", "expected", "worst"].map(|case| number(&value[case]))
}

#[test]
fn three_arrangements_and_every_claim_of_the_seed() {
    let plan = json(&[]);
    assert_eq!(plan["profile"], "thunderbolt5");
    let scenarios = plan["scenarios"].as_array().unwrap();
    let shapes: Vec<_> =
        scenarios.iter().map(|each| [&each["nodes"], &each["cables_a_pair"], &each["ports_a_node"]]).collect();
    assert_eq!(shapes, [[2, 1, 1], [2, 2, 2], [4, 1, 3]]);
    for scenario in scenarios {
        let bytes: Vec<_> = scenario["messages"].as_array().unwrap().iter().map(|each| &each["bytes"]).collect();
        assert_eq!(bytes, [64, 4096, 1 << 20]);
        for message in scenario["messages"].as_array().unwrap() {
            let [best, expected, worst] = span(&message["delivered_us"]);
            assert!(0.0 < best && best < expected && expected < worst, "{message}");
            assert!(expected <= number(&message["done_us"]["expected"]), "{message}");
            let [best, expected, worst] = span(&message["stream_GBps"]);
            assert!(best > expected && expected > worst && worst > 0.0, "{message}");
        }
        for level in ["link", "node"] {
            let most = number(&scenario[level]["cables_at_most_Gbps"]);
            let [best, expected, worst] = span(&scenario[level]["all_cables_Gbps"]);
            assert!(most >= best && best > expected && expected > worst, "{scenario}");
        }
        assert_eq!(scenario["all_reduce"].as_array().unwrap().len(), 3);
    }
    // Each cell has its verdict and its reason.
    let seed = plan["seed"].as_array().unwrap();
    assert_eq!(seed.len(), 12);
    for cell in seed {
        let (verdict, allowed) = (cell["verdict"].as_str().unwrap(), cell["allowed"].as_bool().unwrap());
        assert!(["impossible", "slower", "holds", "better"].contains(&verdict), "{cell}");
        assert_eq!(allowed, verdict != "impossible", "{cell}");
        assert!(cell["reason"].as_str().unwrap().contains("Gb/s"), "{cell}");
    }
    let verdict = |what: &str, nodes: u64, cables: u64| {
        let cell =
            seed.iter().find(|cell| cell["what"] == what && cell["nodes"] == nodes && cell["cables_a_pair"] == cables);
        cell.unwrap_or_else(|| panic!("{what}"))["verdict"].as_str().unwrap().to_string()
    };
    // What the rate of the cables decides, whatever the other figures.
    assert_eq!(verdict("latency of 1 MiB", 2, 1), "impossible");
    assert_ne!(verdict("latency of 1 MiB", 2, 2), "impossible");
    for (nodes, cables) in [(2, 1), (2, 2), (4, 1)] {
        assert_eq!(verdict("bandwidth of a node, each way", nodes, cables), "impossible");
        assert_eq!(verdict("bandwidth of a node, both ways together", nodes, cables), "holds");
    }
    for figure in plan["figures"].as_array().unwrap() {
        let basis = figure["basis"].as_str().unwrap();
        assert!(["measured-by-users", "stated", "derived", "assumed"].contains(&basis), "{figure}");
        assert!(!figure["source"].as_str().unwrap().is_empty() && !figure["unit"].as_str().unwrap().is_empty());
    }
}

#[test]
fn the_counted_sends_are_in_it() {
    let plan = json(&["--nodes", "2", "--bytes", "0,4064,4065,16384,1M"]);
    let counted: Vec<_> = plan["scenarios"][0]["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|each| (each["there"]["sends"].as_u64().unwrap(), each["back"]["sends"].as_u64().unwrap()))
        .collect();
    assert_eq!(counted, [(1, 0), (1, 0), (2, 0), (2, 2), (3, 2)]);
}

#[test]
fn other_arrangements_and_sizes_are_answered() {
    let [one, two] = ["1", "2"].map(|cables| json(&["--nodes", "3", "--cables", cables, "--bytes", "8,64M"]));
    assert_eq!(two["seed"], Value::Null);
    let scenarios = two["scenarios"].as_array().unwrap();
    assert_eq!((scenarios.len(), &scenarios[0]["ports_a_node"]), (1, &4.into()));
    // Two cables take half of the bytes each.
    let [one, two] = [one, two].map(|plan| plan["scenarios"][0].clone());
    let [slow, fast] = [&one, &two].map(|plan| number(&plan["link"]["all_cables_Gbps"]["expected"]));
    assert!((fast / slow - 2.0).abs() < 0.01, "{two}");
    let [slow, fast] = [&one, &two].map(|plan| number(&plan["messages"][1]["delivered_us"]["expected"]));
    assert!((1.9..2.0).contains(&(slow / fast)), "{two}");
}

#[test]
fn people_can_read_it() {
    let ended = plan(&["--profile", "thunderbolt5"]);
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
    for part in [
        "2 nodes, 2 cables between each two: 2 ports a node",
        "4 nodes, 1 cable between each two: 3 ports a node",
        "delivered, us",
        "GB/s",
        "Gb/s",
        "impossible",
        "measured by users",
        "assumed",
        "all-reduce: 64 B",
    ] {
        assert!(ended.out.contains(part), "{part} in {}", ended.out);
    }
}

#[test]
fn what_is_not_known_is_refused_with_what_is() {
    let cases: [(&[&str], &str); 6] = [
        (&["--profile", "thunderbolt4"], "there are no figures for \"thunderbolt4\"; there are some for thunderbolt5"),
        (&[], "--profile"),
        (&["--profile", "thunderbolt5", "--nodes", "1"], "--nodes"),
        (&["--profile", "thunderbolt5", "--cables", "0"], "--cables"),
        (&["--profile", "thunderbolt5", "--bytes", "much"], "give a size such as 8, 64K or 16M"),
        (&["--profile", "thunderbolt5", "--bytes", "65G"], "up to 64G"),
    ];
    for (args, part) in cases {
        let ended = plan(args);
        assert_eq!((ended.code, ended.out.as_str(), ended.messages().len()), (Some(2), "", 1), "{}", ended.err);
        assert!(ended.err.contains(part), "{part} in {}", ended.err);
    }
}

#[test]
fn the_page_shows_what_the_command_prints() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/model.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let printed = plan(&["--profile", "thunderbolt5"]).out;
    let block = format!("```text\n$ fulmen plan link --profile thunderbolt5\n{printed}```\n");
    assert!(page.contains(&block), "docs/model.md does not show what the command prints; put this there:\n{block}");
}

/// One JSON object a size.
#[track_caller]
fn planned(args: &[&str]) -> Vec<Value> {
    let ended = fulmen(&[&["plan"], args, &["--json"]].concat()).end();
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{}", ended.out);
    ended.out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn the_planner_says_what_it_chooses_and_why() {
    let sizes = planned(&["all-reduce", "-n", "8", "--links", "thunderbolt5-ring", "--bytes", "4K,64M"]);
    assert_eq!(sizes.len(), 2);
    for told in &sizes {
        let rows = told["algorithms"].as_array().unwrap();
        let of = |row: &Value| (row["allowed"].as_bool().unwrap(), number(&row["predicted_us"]));
        // The choice is the fastest of those that combine in rank order.
        assert_eq!((&rows[0]["algorithm"], &rows[0]["predicted_us"]), (&told["choice"], &told["predicted_us"]));
        assert!(rows.iter().map(of).filter(|row| row.0).all(|row| row.1 >= number(&told["predicted_us"])), "{told}");
        let not_in_order: Vec<_> = rows.iter().filter(|row| !of(row).0).map(|row| &row["algorithm"]).collect();
        assert!(not_in_order.contains(&&"ring".into()) && !not_in_order.contains(&&"chain".into()), "{told}");
    }
    assert_eq!(sizes[1]["choice"], "chain");
    // Nothing is rounded in sums of integers.
    let exact =
        &planned(&["all-reduce", "-n", "8", "--links", "thunderbolt5-ring", "--bytes", "4M", "--dtype", "i32"])[0];
    assert!(exact["algorithms"].as_array().unwrap().iter().all(|row| row["allowed"] == true), "{exact}");
    // A ring of cables carries what is gathered once around; a mesh, straight.
    for (links, ranks, choice) in [("thunderbolt5-ring", "8", "ring"), ("thunderbolt5-mesh-4", "4", "whole")] {
        let gather = &planned(&["all-gather", "-n", ranks, "--links", links, "--bytes", "64M"])[0];
        assert_eq!(gather["choice"], choice, "{gather}");
    }
    let scan = &planned(&["scan", "-n", "8", "--links", "roce-fat-tree", "--bytes", "64M"])[0];
    assert_eq!(scan["choice"], "chain", "{scan}");
    let other = &planned(&["broadcast", "-n", "64", "--links", "roce-fat-tree", "--bytes", "1M"])[0];
    assert!(["tree", "chain"].contains(&other["choice"].as_str().unwrap()), "{other}");
}

/// What is measured here is saved, chosen by, and measured again: whether it was foretold well, a benchmark says.
#[test]
fn links_that_were_measured_here_can_be_used_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("links.json");
    let file = file.to_str().unwrap();
    let args = ["--device", "tcp", "-n", "2", "--bytes", "64K", "--save", file, "--measure"];
    let told = &planned(&[&["all-reduce"][..], &args].concat())[0];
    let numbers = ["measured_us", "predicted_us", "drift"].map(|name| number(&told[name]));
    assert!(numbers.iter().all(|number| *number > 0.0), "{told}");
    let again = &planned(&["all-reduce", "-n", "2", "--bytes", "64K", "--links", file])[0];
    assert_eq!(again["algorithms"], told["algorithms"]);
}

#[test]
fn in_mapped_memory_there_is_one_way() {
    let mapped = planned(&["scan", "-n", "3", "--dtype", "i16", "--bytes", "2,4K,100K", "--measure"]);
    assert_eq!(mapped.len(), 3);
    for told in &mapped {
        assert_eq!((&told["choice"], told["algorithms"].as_array().unwrap().len()), (&"windows".into(), 0));
        let numbers = ["measured_us", "predicted_us", "drift"].map(|name| number(&told[name]));
        assert!(numbers.iter().all(|number| *number > 0.0), "{told}");
    }
    // A file tells of what was measured for it, and of nothing else.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("links.json");
    let text = r#"{"name": "x", "source": "a test", "shape": "host", "latency_us": 0, "message_us": 0, "copy_ns": 0, "reduce_ns": 0,
        "mapped": {"ranks": 3, "dtype": "i16", "calls": {"scan": [[8, 1.0], [1024, 2.0]]}}}"#;
    std::fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    let times = planned(&["scan", "-n", "3", "--dtype", "i16", "--bytes", "8,1K,4K", "--links", file]);
    assert_eq!(times.iter().map(|told| number(&told["predicted_us"])).collect::<Vec<_>>(), [1.0, 2.0, 8.0]);
    for args in [
        ["plan", "scan", "-n", "4", "--dtype", "i16", "--links", file],
        ["plan", "scan", "-n", "3", "--dtype", "f16", "--links", file],
        ["plan", "reduce", "-n", "3", "--dtype", "i16", "--links", file],
    ] {
        let ended = fulmen(&args).end();
        assert_eq!((ended.code, ended.out.as_str(), ended.messages().len()), (Some(2), "", 1), "{}", ended.err);
        assert!(ended.err.contains("scan of 3 ranks on i16, and nothing else"), "{}", ended.err);
    }
    let ended = fulmen(&["simulate", "collectives", "--links", file]).end();
    assert!(ended.code == Some(2) && ended.err.contains("nothing of messages"), "{}", ended.err);
}

/// Ranks of three hosts, as far as they know.
#[test]
fn ranks_that_share_hosts_send_over_cables_what_one_of_each_has() {
    let script = format!(
        "FULMEN_HOST_ID=host$((FULMEN_RANK / 2)) exec {FULMEN} __bench all-reduce --algorithm=hosts --dtype=i32 --min=8 --max=2M \
         --factor=512 --samples=5 --time-budget=0.01"
    );
    let ended = fulmen(&["run", "-n", "5", "--", "/bin/sh", "-c", &script]).end();
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let rows: Vec<Value> =
        ended.out.lines().map(|line| serde_json::from_str(line.strip_prefix("[0] ").unwrap()).unwrap()).collect();
    assert_eq!(rows.iter().map(|row| &row["bytes"]).collect::<Vec<_>>(), [8, 4096, 2 << 20]);
    assert!(rows.iter().all(|row| row["wrong"] == 0 && row["ranks"] == 5), "{rows:?}");
}

/// A link file of one's own decides how programs go about it: all of them see the same, or are told.
#[test]
fn programs_choose_by_the_link_file_that_they_are_given() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let file = folder.path().join(name);
        std::fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let bench = |links: &str| {
        let script = format!(
            "export FULMEN_LINKS={links}; exec {FULMEN} __bench all-reduce --min=64K --max=64K --samples=2 --apart --time-budget=0.01"
        );
        fulmen(&["run", "-n", "3", "--", "/bin/sh", "-c", &script]).end()
    };
    let links = |latency: f64, bandwidth: f64| {
        format!(
            r#"{{"name": "x", "source": "a test", "shape": "switch", "latency_us": {latency}, "message_us": 0, "bandwidth": {bandwidth},
                "copy_ns": 0.1, "reduce_ns": 0.1}}"#
        )
    };
    assert_eq!(bench(&write("good", &links(1.0, 1.0))).code, Some(0));
    let ended = bench(&write("bad", "{\"name\": 1}"));
    assert!(ended.code != Some(0) && ended.err.contains("is no link file"), "{}", ended.err);
    // Bytes that take long, and messages that do: ranks that think differently say so.
    write("of0", &links(1.0, 1e-3));
    write("of1", &links(1.0, 1e-3));
    write("of2", &links(1e6, 1e3));
    let ended = bench(&format!("{}/of$FULMEN_RANK", folder.path().to_str().unwrap()));
    assert!(ended.code != Some(0) && ended.err.contains("by the algorithm"), "{}", ended.err);
}

#[test]
fn calls_that_cannot_be_planned_are_refused() {
    let ended = fulmen(&["plan", "all-gather", "-n", "3", "--links", "roce-fat-tree", "--bytes", "64"]).end();
    assert!(ended.code == Some(2) && ended.err.contains("3 ranks' parts"), "{}", ended.err);
    let cases: [(&[&str], &str); 9] = [
        (&["-n", "1"], "--ranks 2 or more"),
        (&["--links", "/nonexistent"], "cannot read the link file /nonexistent"),
        (&["--links", "/nonexistent"], "roce-fat-tree"),
        (&["--links", "thunderbolt5-mesh-4", "-n", "5"], "joins up to 4 ranks"),
        (&["--links", "roce-fat-tree", "--bytes", "6"], "no multiple of an element"),
        (&["--links", "roce-fat-tree", "--bytes", "0"], "--bytes 0"),
        (&["--links", "roce-fat-tree", "--op", "max", "--dtype", "complex64"], "not defined"),
        (&["--links", "roce-fat-tree", "--measure"], "leave --links away"),
        (&["--op", "max", "--measure"], "leave --op and --order away"),
    ];
    for (args, part) in cases {
        let ended = fulmen(&[&["plan", "all-reduce"], args].concat()).end();
        assert_eq!((ended.code, ended.out.as_str(), ended.messages().len()), (Some(2), "", 1), "{}", ended.err);
        assert!(ended.err.contains(part), "{part} in {}", ended.err);
    }
}
