//! `fulmen devices`: what the machine offers.

use serde_json::Value;

use crate::support::{fulmen, shell};

#[test]
fn software_devices_are_everywhere() {
    let ended = fulmen(&["devices", "--json"]).end();
    assert_eq!((ended.code, ended.err.as_str(), ended.out.lines().count()), (Some(0), "", 1));
    let found: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!((&found["windows"]["available"], &found["windows"]["problem"]), (&Value::Bool(true), &Value::Null));
    let devices = found["devices"].as_array().unwrap();
    assert_eq!(devices.len(), 2);
    let capabilities = |device: &Value| -> Vec<String> {
        device["capabilities"].as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_string()).collect()
    };
    for (device, profile) in devices.iter().zip(["infiniband", "thunderbolt"]) {
        assert_eq!((device["provider"].as_str(), device["profile"].as_str()), (Some("soft"), Some(profile)));
        assert!(capabilities(device).contains(&"uc".to_string()));
        let ports = device["ports"].as_array().unwrap();
        assert_eq!(ports.len(), 1);
        assert_eq!((ports[0]["state"].as_str(), ports[0]["number"].as_u64()), (Some("active"), Some(1)));
        assert!(!ports[0]["gids"].as_array().unwrap().is_empty());
    }
    assert_ne!(devices[0]["name"], devices[1]["name"]);
    // What Apple's contract says is what the profile keeps.
    assert!(capabilities(&devices[0]).contains(&"atomics".to_string()));
    assert!(!capabilities(&devices[1]).iter().any(|name| ["rc", "write", "read", "atomics"].contains(&name.as_str())));
    let thunderbolt = &devices[1];
    assert_eq!((&thunderbolt["queue_pairs"], &thunderbolt["memory_regions"]), (&10.into(), &100.into()));
    assert_eq!((&thunderbolt["frame_bytes"], &thunderbolt["message_bytes"]), (&4096.into(), &16_773_120.into()));
    assert_eq!(thunderbolt["registration_boundary"], 1u64 << 32);
}

#[test]
fn people_can_read_it() {
    let ended = fulmen(&["devices"]).end();
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
    for part in ["windows", "--profile infiniband", "--profile thunderbolt", "atomics", "4 GiB", "GIDs"] {
        assert!(ended.out.contains(part), "{part} in {}", ended.out);
    }
}

#[test]
fn a_reader_that_left_is_no_panic() {
    let ended = shell("{ \"$FULMEN\" devices; echo code $? >&2; } | true").end();
    assert!(["code 141\n", "code 0\n"].contains(&ended.err.as_str()), "{}", ended.err);
}
