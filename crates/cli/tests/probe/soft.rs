//! Both software devices: what their profiles promise is what is found.

use serde_json::{Value, json};

use crate::{fulmen, passes};

fn probe(kind: &str, profile: &str, more: &[&str]) -> Value {
    let found = passes(&[&[kind, "--profile", profile], more].concat(), &[]);
    assert_eq!(found["device"]["provider"], "soft");
    assert_eq!(found["device"]["active_ports"], json!([1]));
    found
}

#[test]
fn registrations_are_counted_and_given_back() {
    let found = probe("mr-limit", "thunderbolt", &[]);
    let limit = &found["limits"][0];
    assert_eq!((&limit["made"], &limit["stated"], &limit["made_again"]), (&json!(100), &json!(100), &json!(100)));
    let words = limit["refusal"]["words"].as_str().unwrap();
    assert!(words.contains("100 registrations") && words.contains("101"), "{words}");
    let found = probe("mr-limit", "infiniband", &["--most", "300"]);
    let limit = &found["limits"][0];
    assert_eq!((&limit["made"], &limit["refusal"], &limit["made_again"]), (&json!(300), &Value::Null, &json!(300)));
}

#[test]
fn queue_pairs_are_counted_by_kind() {
    let rows = |profile: &str, more: &[&str]| -> Vec<(String, u64, bool)> {
        let found = probe("queue-pairs", profile, more);
        let limits = found["limits"].as_array().unwrap();
        assert!(limits.iter().all(|limit| limit["made"] == limit["made_again"]));
        let row = |limit: &Value| {
            let what = limit["what"].as_str().unwrap().to_string();
            (what, limit["made"].as_u64().unwrap(), limit["refusal"].is_object())
        };
        limits.iter().map(row).collect()
    };
    let row = |what: &str, made, refused| (what.to_string(), made, refused);
    assert_eq!(
        rows("thunderbolt", &[]),
        [row("UC queue pairs", 10, true), row("completion queues", 20, true), row("protection domains", 20, true)]
    );
    assert_eq!(
        rows("infiniband", &["--most", "30"]),
        [
            row("RC queue pairs", 30, false),
            row("UC queue pairs", 30, false),
            row("completion queues", 30, false),
            row("protection domains", 30, false)
        ]
    );
}

#[test]
fn buffers_inside_one_registration_are_reached() {
    for (profile, transfers) in [("infiniband", 8), ("thunderbolt", 2)] {
        let found = probe("mr-pool", profile, &["--most", "128M"]);
        let pools = found["pools"].as_array().unwrap();
        assert_eq!((pools.len(), &pools[0]["bytes"], &pools[0]["buffers"]), (1, &json!(128 << 20), &json!(256)));
        let moved = pools[0]["transfers"].as_array().unwrap();
        assert_eq!(moved.len(), transfers, "{found}");
        assert!(moved.iter().all(|transfer| transfer["problem"].is_null()));
    }
}

#[test]
fn links_are_measured_between_two_processes() {
    for (profile, kind, operations) in
        [("infiniband", "RC", &["SEND", "SEND", "WRITE", "WRITE"][..]), ("thunderbolt", "UC", &["SEND", "SEND"])]
    {
        let found = probe("link", profile, &[]);
        let rails = found["rails"].as_array().unwrap();
        assert_eq!(rails.len(), 1);
        let rail = &rails[0];
        assert_eq!((&rail["port"], &rail["queue_pairs"], &rail["mtu"]), (&json!(1), &json!(kind), &json!(4096)));
        let latency = rail["latency"].as_array().unwrap();
        assert_eq!(latency.iter().map(|row| row["bytes"].as_u64().unwrap()).collect::<Vec<_>>(), [8, 64, 4096]);
        for row in latency {
            let (median, p99) = (row["median_us"].as_f64().unwrap(), row["p99_us"].as_f64().unwrap());
            assert!(median > 0.0 && median <= p99, "{row}");
        }
        let bandwidth = rail["bandwidth"].as_array().unwrap();
        assert_eq!(bandwidth.iter().map(|row| row["operation"].as_str().unwrap()).collect::<Vec<_>>(), operations);
        assert!(bandwidth.iter().all(|row| row["bytes_per_second"].as_f64().unwrap() > 0.0));
    }
}

#[test]
fn people_can_read_it() {
    let ended = fulmen(&["probe", "mr-limit", "--profile", "thunderbolt"], &[]);
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
    for part in ["soft", "registrations: 100 made", "states 100", "101", "100 made again"] {
        assert!(ended.out.contains(part), "{part} in {}", ended.out);
    }
}

#[test]
fn bad_input_is_refused_in_one_line() {
    for (args, part) in [
        (&["probe"][..], "<KIND>"),
        (&["probe", "mr-limits"], "mr-limit"),
        (&["probe", "mr-limit", "--profile", "token-ring"], "thunderbolt"),
        (&["probe", "mr-limit", "--profile", "thunderbolt", "--device", "rxe0"], "--device"),
        (&["probe", "mr-limit", "--profile", "thunderbolt", "--most", "0"], "at least 1"),
        (&["probe", "mr-pool", "--profile", "thunderbolt", "--most", "1M"], "128M"),
        (&["probe", "link", "--profile", "thunderbolt", "--most", "5"], "--most"),
        (&["probe", "mr-limit", "--device", "a", "--to", "b"], "--to"),
        (&["probe", "link", "--patience", "0"], "more than 0"),
    ] {
        let ended = fulmen(args, &[]);
        assert_eq!((ended.code, ended.out.as_str(), ended.err.lines().count()), (Some(2), "", 1), "{}", ended.err);
        assert!(ended.err.contains(part), "{part} in {}", ended.err);
    }
}

#[test]
fn memory_of_each_kind_is_tried() {
    for profile in ["infiniband", "thunderbolt"] {
        let found = probe("memory", profile, &[]);
        let kinds = found["memory"].as_array().unwrap();
        let kind =
            |name: &str| kinds.iter().find(|row| row["kind"] == name).unwrap_or_else(|| panic!("{name}: {found}"));
        for row in kinds {
            // What is not here says why; what is here says which rights it was given.
            assert_eq!(row["absent"].is_null(), row["rights"].as_array().unwrap().len() == 4, "{row}");
        }
        for name in ["malloc", "posix_memalign", "anonymous mmap", "file", "memfd"] {
            let row = kind(name);
            let (out, into) = (&row["messages_out"], &row["messages_in"]);
            assert_eq!((&row["absent"], out, into), (&Value::Null, &json!(true), &json!(true)), "{row}");
        }
        let row = kind("read-only file");
        assert_eq!((&row["messages_out"], &row["messages_in"]), (&json!(true), &Value::Null), "{row}");
        assert!(row["rights"][1]["refusal"]["words"].as_str().unwrap().contains("read-only"), "{row}");
        // Peers reach memory that they map, and memory that they cannot.
        for name in ["malloc", "memfd"] {
            let remote = &kind(name)["rights"][2];
            assert_eq!((&remote["rights"], remote["refusal"].is_null()), (&json!("remote read and write"), true));
        }
        let buffer = kind("dma-buf of a memfd");
        assert!(buffer["absent"].is_string() || buffer["registers"] == json!(false), "{buffer}");
    }
}
