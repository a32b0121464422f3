//! Without the verbs library, probes of the machine's devices say so and how to go on.

use serde_json::Value;

use crate::fulmen;

const NOTHING: [(&str, &str); 1] = [("FULMEN_VERBS_LIBRARY", "/no/such/library.so")];

#[test]
fn every_probe_says_that_there_is_no_library() {
    for kind in ["mr-limit", "queue-pairs", "mr-pool", "memory", "symbols", "link"] {
        let ended = fulmen(&["probe", kind], &NOTHING);
        assert_eq!(
            (ended.code, ended.out.as_str(), ended.err.lines().count()),
            (Some(1), "", 1),
            "{kind}: {}",
            ended.err
        );
        assert!(ended.err.contains("/no/such/library.so"), "{kind}: {}", ended.err);
        if kind != "symbols" {
            assert!(ended.err.contains("--profile"), "{kind}: {}", ended.err);
            let ended = fulmen(&["probe", kind, "--device", "rdma0"], &NOTHING);
            assert_eq!(ended.code, Some(1));
            assert!(ended.err.contains("/no/such/library.so"), "{kind}: {}", ended.err);
        }
    }
}

#[test]
fn the_object_says_it_too() {
    let ended = fulmen(&["probe", "link", "--json"], &NOTHING);
    assert_eq!(ended.code, Some(1));
    let found = ended.json();
    assert_eq!((&found["probe"], &found["passed"]), (&Value::from("link"), &Value::Bool(false)));
    assert!(found["problem"].as_str().unwrap().contains("/no/such/library.so"), "{found}");
    assert_eq!(found["device"], Value::Null);
}
