//! `fulmen devices`: the machine's own beside those in software.

use std::path::Path;

use serde_json::Value;

use crate::fulmen;

#[test]
fn the_table_in_the_docs_is_what_the_code_says() {
    let table = fulmen(&["devices", "--markdown"], &[]);
    assert_eq!((table.code, table.err.as_str()), (Some(0), ""));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/devices.md");
    let docs = std::fs::read_to_string(&path).unwrap();
    assert!(
        docs.contains(&table.out),
        "docs/devices.md is not what `fulmen devices --markdown` prints; put this there:\n{}",
        table.out
    );
}

#[test]
fn a_machine_without_a_library_still_has_devices() {
    let nothing = [("FULMEN_VERBS_LIBRARY", "/no/such/library.so")];
    let ended = fulmen(&["devices", "--json"], &nothing);
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
    let found = ended.json();
    assert_eq!(found["machine"]["devices"], Value::Array(Vec::new()));
    let problem = found["machine"]["problem"].as_str().unwrap();
    assert!(problem.contains("/no/such/library.so"), "{problem}");
    assert_eq!(found["devices"].as_array().unwrap().len(), 2);
    let ended = fulmen(&["devices"], &nothing);
    assert!(ended.out.contains("no devices") && ended.out.contains("/no/such/library.so"), "{}", ended.out);
}
