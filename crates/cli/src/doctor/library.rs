//! The verbs library: whether it opens, what it exports, which devices it lists.

use super::ask::Asker;
use super::facts::{LibraryFacts, ListedFacts, Refusal, RefusalKind};
use super::report::Check;
use crate::child::Trouble;

const LIBRARY: &str = "library";
const SYMBOLS: &str = "symbols";
const DEVICES: &str = "devices";

/// What to do about a library or a driver that hangs or crashes.
pub const MEND: &str = "reinstall the library and its drivers (rdma-core) in one version, look into the system's log (`dmesg`), \
                        and restart the machine if a driver hangs";

/// A child that gave no answer.
pub fn troubled(name: &'static str, what: &str, trouble: &Trouble) -> Check {
    Check { deadly: true, ..Check::failure(name, format!("{what}: {trouble}"), MEND) }
}

/// How much the absence of devices matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Somebody chose a library or a device, so there must be one.
    AskedFor,
    /// Ranks of one host do without.
    Hoped,
    /// What the kernel lacks was told already.
    Told,
}

/// The library and the devices that it lists.
pub fn checks(asker: &Asker, wanted: Wanted, checks: &mut Vec<Check>) -> Vec<ListedFacts> {
    let absent = |name, refusal: Refusal| match wanted {
        Wanted::AskedFor => Check::failure(name, refusal.sentence, refusal.fix),
        Wanted::Told if name == DEVICES => Check::not_applicable(name, refusal.sentence),
        _ => Check::warning(
            name,
            format!(
                "{}; ranks of one host need none, and ranks of several talk by TCP, which is slower",
                refusal.sentence
            ),
            refusal.fix,
        ),
    };
    match asker.library() {
        Ok(Ok(facts)) => {
            checks.push(Check::ok(LIBRARY, format!("{} opens", facts.path)));
            checks.push(symbols(&facts));
        }
        Ok(Err(refusal)) => {
            if refusal.kind == RefusalKind::MissingSymbol {
                checks.push(Check::ok(LIBRARY, "a verbs library opens, which lacks symbols"));
                checks.push(Check::failure(SYMBOLS, refusal.sentence, refusal.fix));
            } else {
                checks.push(absent(LIBRARY, refusal));
                checks.push(Check::not_applicable(SYMBOLS, "there is no library to look at"));
            }
            checks.push(Check::not_applicable(DEVICES, "there is no library to ask for devices"));
            return Vec::new();
        }
        Err(trouble) => {
            checks.push(troubled(LIBRARY, "the verbs library cannot be opened", &trouble));
            checks.push(Check::not_applicable(SYMBOLS, "there is no library to look at"));
            checks.push(Check::not_applicable(DEVICES, "there is no library to ask for devices"));
            return Vec::new();
        }
    }
    match asker.list() {
        Ok(Ok(devices)) => {
            let names: Vec<_> =
                devices.iter().map(|device| format!("{} ({})", device.name, device.transport)).collect();
            checks.push(Check::ok(DEVICES, names.join(", ")));
            devices
        }
        Ok(Err(refusal)) => {
            checks.push(match refusal.kind {
                RefusalKind::NoDevices | RefusalKind::SwitchedOff => absent(DEVICES, refusal),
                _ => Check::failure(DEVICES, refusal.sentence, refusal.fix),
            });
            Vec::new()
        }
        Err(trouble) => {
            checks.push(troubled(
                DEVICES,
                "the library's list of devices (ibv_get_device_list) does not come",
                &trouble,
            ));
            Vec::new()
        }
    }
}

fn symbols(facts: &LibraryFacts) -> Check {
    let lacks = |(name, purpose): &(String, String)| format!("{name} ({purpose})");
    let missing: Vec<_> = facts.missing.iter().map(lacks).collect();
    let optional = match missing.as_slice() {
        [] => "and all optional ones".to_owned(),
        missing => format!("without the optional {}", missing.join(", ")),
    };
    let there = facts.symbols - facts.missing.len();
    Check::ok(SYMBOLS, format!("{there} of {} symbols: all that are needed, {optional}", facts.symbols))
}
