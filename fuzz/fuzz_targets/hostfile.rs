//! Lists of hosts, of whatever format: what is taken must be safe to hand to ssh.
#![no_main]

use fulmen_fabric::launch::hostfile::{HostList, cables_variable};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    for list in [HostList::from_file(&text), HostList::from_argument(&text)] {
        match list {
            Ok(list) => check(&list),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
});

fn check(list: &HostList) {
    assert!(!list.hosts.is_empty());
    for host in &list.hosts {
        for word in [Some(&host.name), host.user.as_ref()].into_iter().flatten() {
            let harmless = |letter: char| letter.is_alphanumeric() || "._-%:@".contains(letter);
            assert!(!word.is_empty() && !word.starts_with('-') && word.chars().all(harmless), "{word:?}");
        }
        assert!(host.slots != Some(0) && host.port != Some(0));
    }
    for row in list.cables.iter().flatten() {
        assert_eq!(row.0.len(), list.hosts.len());
        assert!(cables_variable(row).starts_with('['));
    }
}
