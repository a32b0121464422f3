//! The library itself: absent, broken, incomplete.

use std::fs;
use std::path::Path;
use std::process::Command;

use fulmen_system::{Library, OpenError};

use super::{Fake, fake, files, says};

#[test]
fn an_absent_library_is_named() {
    let path = Path::new("/nowhere/libibverbs.so.1");
    let error = Library::open_at(path).expect_err("there is none");
    assert!(matches!(error, OpenError::NoLibrary { .. }), "{error:?}");
    says(&error, &["/nowhere/libibverbs.so.1", "install", "rdma-core"]);
}

#[test]
fn a_file_that_is_no_library_is_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("libibverbs.so.1");
    for text in ["", "no library at all\n", "\x7fELF"] {
        fs::write(&path, text).expect("it is written");
        let error = Library::open_at(&path).expect_err("it is none");
        assert!(matches!(error, OpenError::NoLibrary { .. }), "{error:?}");
        says(&error, &[&path.display().to_string(), "install"]);
    }
    let error = Library::open_at(dir.path()).expect_err("it is a directory");
    assert!(matches!(error, OpenError::NoLibrary { .. }), "{error:?}");
}

#[test]
fn another_library_lacks_the_verbs() {
    let error = Library::open_at(Path::new("libm.so.6")).expect_err("it has no verbs");
    assert!(matches!(error, OpenError::MissingSymbol { .. }), "{error:?}");
    says(&error, &["libm.so.6", "ibv_get_device_list", "install another"]);
}

#[test]
fn a_call_that_is_missing_is_named() {
    let Some(whole) = Fake::new("") else { return };
    let needed: Vec<_> = whole.library.symbols().into_iter().filter(|symbol| symbol.needed).collect();
    assert!(needed.iter().all(|symbol| symbol.present) && needed.len() > 15, "{needed:?}");
    // Compiling takes a while: one call stands for all where time is short.
    let all = fulmen_testbed::is_full();
    let tried = needed.iter().filter(|symbol| all || symbol.name == "ibv_create_qp");
    let mut count = 0;
    for symbol in tried {
        let dir = tempfile::tempdir().expect("a directory");
        let define = format!("WITHOUT_{}", symbol.name.to_uppercase());
        let library = fake::build(dir.path(), &[&define]).expect("it was built before");
        let error = Library::open_at(&library).expect_err("a call is missing");
        assert!(matches!(&error, OpenError::MissingSymbol { symbol: found, .. } if *found == symbol.name), "{error:?}");
        says(&error, &[&library.display().to_string(), symbol.name]);
        count += 1;
    }
    assert!(count >= 1, "a call of this name is needed");
}

#[test]
fn optional_calls_may_be_missing() {
    let dir = tempfile::tempdir().expect("a directory");
    let defines = ["WITHOUT_IBV_REG_DMABUF_MR", "WITHOUT_IBV_GET_ASYNC_EVENT", "WITHOUT__IBV_QUERY_GID_TABLE"];
    let Some(path) = fake::build(dir.path(), &defines) else { return };
    fs::write(path.with_extension("so.conf"), "device=mlx5_0\nlike=roce\n").expect("it is written");
    let library = Library::open_at(&path).expect("nothing that is needed is missing");
    let missing: Vec<&str> =
        library.symbols().into_iter().filter(|symbol| !symbol.present).map(|symbol| symbol.name).collect();
    for define in defines {
        let name = define.trim_start_matches("WITHOUT_").to_lowercase();
        assert!(missing.contains(&name.as_str()), "{name} is among {missing:?}");
    }
    let device = library.open_device("mlx5_0").expect("it opens");
    assert!(!fulmen_verbs::Device::info(&*device).capabilities.dma_buf);
}

#[test]
fn a_library_without_devices_is_said() {
    let Some(fake) = Fake::new("") else { return };
    let error = fake.library.devices().expect_err("there are none");
    assert!(matches!(error, OpenError::NoDevices { .. }), "{error:?}");
    says(&error, &["no RDMA device", "driver", "rdma link add"]);
    assert_eq!(fake.refusal("mlx5_0"), error);
    // So does a library that gives nothing in the place of an empty list.
    let Some(fake) = Fake::new("on.get_device_list=fail 0\n") else { return };
    assert_eq!(fake.library.devices().expect_err("there are none"), error);
}

#[test]
fn rdma_that_is_switched_off_is_said() {
    let Some(fake) = Fake::new("on.get_device_list=fail 38\ndevice=mlx5_0\n") else { return };
    let error = fake.library.devices().expect_err("it is off");
    assert!(matches!(error, OpenError::SwitchedOff { .. }), "{error:?}");
    says(&error, &["switched off", "modprobe ib_uverbs"]);
    assert_eq!(fake.refusal("mlx5_0"), error);
}

#[test]
fn a_list_that_fails_is_explained() {
    let Some(fake) = Fake::new("on.get_device_list=fail 24\n") else { return };
    let error = fake.library.devices().expect_err("it fails");
    assert!(matches!(error, OpenError::Call { call: "ibv_get_device_list", errno: 24, .. }), "{error:?}");
    says(&error, &["libfakeverbs.so", "ibv_get_device_list", "ulimit -n"]);
}

/// Does what the next test asks for, in a process with another environment.
#[test]
fn in_another_process() {
    let Some(role) = std::env::var_os("FULMEN_TEST_ROLE") else { return };
    let answer = match role.to_str() {
        Some("devices") => Library::open().and_then(|library| library.devices()).map(|found| format!("{found:?}")),
        _ => panic!("nobody asks for {role:?}"),
    };
    match answer {
        Ok(found) => println!("\nANSWER {found}"),
        Err(error) => println!("\nANSWER {error:?}: {error}"),
    }
}

fn ask_another(role: &str, library: &Path, config: &Path) -> String {
    let output = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "library::in_another_process", "--nocapture"])
        .env("FULMEN_TEST_ROLE", role)
        .env("FULMEN_VERBS_LIBRARY", library)
        .env("FAKE_VERBS", config)
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let answer = text.lines().find_map(|line| line.strip_prefix("ANSWER ")).map(str::to_owned);
    answer.unwrap_or_else(|| panic!("no answer: {text}{}", String::from_utf8_lossy(&output.stderr)))
}

#[test]
fn the_environment_names_the_library() {
    let Some((dir, library)) = files("") else { return };
    let config = dir.path().join("config");
    fs::write(&config, "# none\n").expect("it is written");
    let answer = ask_another("devices", &library, &config);
    assert!(answer.starts_with("NoDevices") && answer.contains("no RDMA device"), "{answer}");

    fs::write(&config, "device=mlx5_0\nlike=roce\nguid=0x0c42a10300abcdef\ndevice=rdma_en5\nlike=thunderbolt\n")
        .expect("written");
    let answer = ask_another("devices", &library, &config);
    for word in ["mlx5_0", "rdma_en5", "Infiniband", "Thunderbolt", &0x0c42_a103_00ab_cdef_u64.to_string()] {
        assert!(answer.contains(word), "{word}: {answer}");
    }

    let answer = ask_another("devices", Path::new("/nowhere/libibverbs.so.1"), &config);
    assert!(answer.starts_with("NoLibrary") && answer.contains("/nowhere/libibverbs.so.1"), "{answer}");
}

#[test]
fn a_missing_driver_is_not_missing_hardware() {
    let way_out = "install its drivers";
    let error = OpenError::NoDriver { devices: vec!["mlx5_0".to_owned(), "mlx5_1".to_owned()], way_out };
    says(&error, &["the system has mlx5_0, mlx5_1", "no driver", way_out]);
}
