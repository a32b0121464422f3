//! macOS tells about itself through commands, which run with a time limit like everything else.

use std::process::Command;

use super::super::ask::Asker;
use super::super::devices::Lock;
use super::super::report::Check;
use super::super::root::Root;
use crate::child::{self, Trouble};

const NAME: &str = "rdma";
/// The kernel of macOS 26.2, the first with RDMA over Thunderbolt.
const FIRST: (u32, u32) = (25, 2);

/// The operating system and its version.
pub fn system(name: &'static str, version: Option<(u32, u32)>, release: &str, machine: &str) -> Check {
    let sentence = format!("macOS with kernel {release} on {machine}");
    match version {
        Some(version) if version >= FIRST => Check::ok(name, sentence),
        _ => Check::warning(
            name,
            format!("{sentence} has no RDMA over Thunderbolt, which came with macOS 26.2 (kernel 25.2)"),
            "update macOS to 26.2 or later",
        ),
    }
}

/// Whether RDMA is switched on.
pub fn switched_on(_root: &Root, asker: &Asker) -> Check {
    match output(asker, Command::new("rdma_ctl").arg("status")) {
        Ok(text) if text.contains("enabled") => Check::ok(NAME, "rdma_ctl says that RDMA is enabled"),
        Ok(text) if text.contains("disabled") => Check::failure(
            NAME,
            "rdma_ctl says that RDMA is disabled",
            "start in Recovery, run `rdma_ctl enable` in its Terminal, and restart",
        ),
        Ok(text) => {
            Check::not_applicable(NAME, format!("rdma_ctl does not say whether RDMA is enabled: {}", text.trim()))
        }
        Err(trouble) => {
            Check::not_applicable(NAME, format!("rdma_ctl does not tell whether RDMA is enabled: {trouble}"))
        }
    }
}

/// The bridge that an interface is in: `ifconfig` shows a bridge's members below it.
pub fn bridge_of(_root: &Root, asker: &Asker, interface: &str) -> Option<String> {
    let text = output(asker, Command::new("/sbin/ifconfig").arg("-a")).ok()?;
    let mut shown = "";
    for line in text.lines() {
        if !line.starts_with(char::is_whitespace) {
            shown = line.split(':').next().unwrap_or(line);
        }
        let mut words = line.split_whitespace();
        if words.next() == Some("member:") && words.next() == Some(interface) {
            return Some(shown.to_owned());
        }
    }
    None
}

/// Registrations do not count against the limit on locked memory.
pub fn lock_limit(_root: &Root) -> Lock {
    Lock::None
}

fn output(asker: &Asker, command: &mut Command) -> Result<String, Trouble> {
    child::run(command, asker.patience, |bytes| Ok(String::from_utf8_lossy(bytes).into_owned()))
}
