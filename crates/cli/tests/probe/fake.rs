//! A verbs library that is made up: devices that refuse, hang and crash.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{Ended, fulmen, passes, verbs};

/// A library with the devices of a configuration.
struct Fake {
    library: PathBuf,
    configuration: PathBuf,
    _folder: TempDir,
}

/// The library, built once; `None` where it cannot be built, which a line says.
fn library() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<(TempDir, PathBuf)>> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let library = verbs::build(folder.path(), &[])?;
        Some((folder, library))
    });
    built.as_ref().map(|(_, library)| library.as_path())
}

impl Fake {
    fn new(configuration: &str) -> Option<Fake> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("devices");
        fs::write(&path, configuration).unwrap();
        Some(Fake { library: library()?.to_owned(), configuration: path, _folder: folder })
    }

    fn variables(&self) -> [(&str, &str); 2] {
        [("FULMEN_VERBS_LIBRARY", self.library.to_str().unwrap()), ("FAKE_VERBS", self.configuration.to_str().unwrap())]
    }

    fn passes(&self, args: &[&str]) -> Value {
        passes(args, &self.variables())
    }

    fn run(&self, args: &[&str]) -> Ended {
        fulmen(args, &self.variables())
    }

    /// A probe that must fail, with its object.
    #[track_caller]
    fn fails(&self, args: &[&str], parts: &[&str]) -> Value {
        let ended = self.run(&[&["probe", "--json"], args].concat());
        assert_eq!(ended.code, Some(1), "{}{}", ended.out, ended.err);
        let found = ended.json();
        let problem = found["problem"].as_str().unwrap();
        for part in parts {
            assert!(problem.contains(part), "{part} in {problem}");
        }
        let message = ended.err.lines().last().unwrap_or_default();
        assert_eq!(message.strip_prefix("fulmen: "), Some(problem), "{}", ended.err);
        found
    }
}

#[test]
fn a_refusal_of_the_driver_is_told_with_its_number() {
    let Some(fake) = Fake::new("device=rdma0\nlike=roce\non.reg_mr=fail 12 live 40\n") else { return };
    let found = fake.passes(&["mr-limit"]);
    assert_eq!((&found["device"]["name"], &found["device"]["provider"]), (&json!("rdma0"), &json!("system")));
    let limit = &found["limits"][0];
    assert_eq!((&limit["made"], &limit["stated"], &limit["made_again"]), (&json!(40), &json!(32768), &json!(40)));
    let refusal = &limit["refusal"];
    assert_eq!(refusal["errno"], 12);
    assert!(refusal["words"].as_str().unwrap().contains("ibv_reg_mr"), "{refusal}");
}

#[test]
fn a_device_of_few_queue_pairs_is_counted() {
    let Some(fake) = Fake::new("device=rdma_en2\nlike=thunderbolt\nmax_qp=3\nmax_cq=6\nmax_pd=6\n") else { return };
    let found = fake.passes(&["queue-pairs", "--device", "rdma_en2"]);
    let limits = found["limits"].as_array().unwrap();
    let made: Vec<_> = limits.iter().map(|limit| (limit["what"].as_str().unwrap(), limit["made"].as_u64())).collect();
    assert_eq!(
        made,
        [("UC queue pairs", Some(3)), ("completion queues", Some(6)), ("protection domains", Some(6))],
        "{found}"
    );
}

#[test]
fn a_driver_that_crashes_is_told_with_what_it_was_asked() {
    let Some(fake) = Fake::new("device=rdma0\nlike=roce\non.reg_mr=abort live 12\n") else { return };
    let found = fake.fails(&["mr-limit"], &["SIGABRT", "number 13 of the registrations", "crashed"]);
    assert!(found["last"].as_str().unwrap().contains("number 13"), "{found}");
    let Some(fake) = Fake::new("on.get_device_list=crash\ndevice=rdma0\nlike=roce\n") else { return };
    fake.fails(&["queue-pairs"], &["SIGSEGV", "opening the device"]);
}

#[test]
fn a_driver_that_hangs_is_left() {
    let Some(fake) = Fake::new("device=rdma0\nlike=roce\non.reg_mr=hang live 5\n") else { return };
    let found = fake.fails(&["mr-limit", "--patience", "2"], &["hangs", "number 6 of the registrations", "2 s"]);
    assert!(found["last"].as_str().unwrap().contains("number 6"), "{found}");
    // So is one that hangs in one of the two processes of a link.
    let Some(fake) = Fake::new("device=rdma0\nlike=roce\non.post_recv=hang\n") else { return };
    fake.fails(&["link", "--patience", "2"], &["hangs", "round trips of 8 bytes"]);
}

#[test]
fn what_is_not_given_back_is_told() {
    let Some(fake) = Fake::new("device=rdma0\nlike=roce\non.reg_mr=fail 12 live 9\non.dereg_mr=fail 16\n") else {
        return;
    };
    let found = fake.fails(&["mr-limit"], &["9 registrations were made and given back", "0 only"]);
    assert_eq!((&found["limits"][0]["made"], &found["limits"][0]["made_again"]), (&json!(9), &json!(0)));
}

#[test]
fn buffers_inside_one_registration_are_reached() {
    for (like, transfers) in [("roce", 8), ("thunderbolt", 2)] {
        let Some(fake) = Fake::new(&format!("device=rdma0\nlike={like}\non.reg_mr=fail 12 len 134217728\n")) else {
            return;
        };
        let found = fake.passes(&["mr-pool", "--most", "256M"]);
        let pools = found["pools"].as_array().unwrap();
        assert_eq!(pools[0]["transfers"].as_array().unwrap().len(), transfers, "{found}");
        // The next size is refused, which is a finding; where there is little memory it is not asked for.
        assert!(pools.len() == 1 || pools[1]["refusal"]["errno"] == 12, "{found}");
    }
}

#[test]
fn rights_that_a_driver_refuses_are_told() {
    let Some(fake) = Fake::new("device=rdma0\nlike=thunderbolt\non.reg_mr=fail 22 access 2\n") else { return };
    let found = fake.passes(&["memory"]);
    let row = found["memory"].as_array().unwrap().iter().find(|row| row["kind"] == "malloc").unwrap();
    let refused: Vec<&Value> =
        row["rights"].as_array().unwrap().iter().map(|right| &right["refusal"]["errno"]).collect();
    assert_eq!(refused, [&Value::Null, &Value::Null, &json!(22), &Value::Null]);
    assert_eq!((&row["messages_out"], &row["messages_in"]), (&json!(true), &json!(true)));
}

#[test]
fn calls_that_a_library_lacks_are_told() {
    let Some(fake) = Fake::new("device=rdma0\nlike=roce\n") else { return };
    let folder = tempfile::tempdir().unwrap();
    let Some(lacking) = verbs::build(folder.path(), &["WITHOUT_IBV_REG_DMABUF_MR"]) else { return };
    let has = |library: &Path| {
        let configuration = fake.configuration.to_str().unwrap();
        let variables = [("FULMEN_VERBS_LIBRARY", library.to_str().unwrap()), ("FAKE_VERBS", configuration)];
        let found = passes(&["symbols"], &variables);
        let symbols = found["symbols"].as_array().unwrap().clone();
        assert!(symbols.iter().all(|symbol| symbol["present"] == true || symbol["needed"] == false), "{found}");
        symbols.iter().find(|symbol| symbol["name"] == "ibv_reg_dmabuf_mr").unwrap()["present"] == true
    };
    assert!(has(&fake.library));
    assert!(!has(&lacking));
}

#[test]
fn a_device_that_is_not_there_is_told_with_those_that_are() {
    let Some(fake) = Fake::new("device=rdma0\nlike=roce\ndevice=rdma1\nlike=roce\n") else { return };
    fake.fails(&["mr-limit", "--device", "rdma7"], &["rdma7", "rdma0", "rdma1"]);
}

#[test]
fn devices_of_the_machine_are_shown_also_when_one_cannot_be_used() {
    let configuration =
        "device=rdma0\nlike=roce\ndevice=rdma_en2\nlike=thunderbolt\ndevice=rdma9\nlike=roce\non.query_device=crash\n";
    let Some(fake) = Fake::new(configuration) else { return };
    let ended = fake.run(&["devices", "--json"]);
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
    let found = ended.json();
    let devices = found["machine"]["devices"].as_array().unwrap();
    let name = |device: &Value| device["name"].as_str().unwrap().to_string();
    assert_eq!(devices.iter().map(name).collect::<Vec<_>>(), ["rdma0", "rdma_en2", "rdma9"]);
    assert_eq!((&devices[0]["queue_pairs"], &devices[0]["problem"]), (&json!(1024), &Value::Null));
    assert!(devices[2]["problem"].as_str().unwrap().contains("SIGSEGV"), "{}", devices[2]);
    // The machine's Thunderbolt and the profile that is named after it have the same contract.
    let profile = &found["devices"][1];
    for key in
        ["queue_pairs", "memory_regions", "queue_depth", "frame_bytes", "pieces", "inline_bytes", "message_bytes"]
    {
        assert_eq!(devices[1][key], profile[key], "{key}");
    }
    for key in ["registration_boundary", "reads_in_flight", "capabilities"] {
        assert_eq!(devices[1][key], profile[key], "{key}");
    }
    let ended = fake.run(&["devices"]);
    for part in ["--device rdma0", "--device rdma_en2", "rdma9", "Gb/s"] {
        assert!(ended.out.contains(part), "{part} in {}", ended.out);
    }
}
