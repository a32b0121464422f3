//! Devices and their ports: state, link, addresses, what stands in their way, and their limits.

use super::ask::Asker;
use super::facts::{DeviceFacts, GidFacts, ListedFacts, NeedFacts, PortFacts};
use super::library::{MEND, troubled};
use super::platform::{bridge_of, lock_limit};
use super::report::{Check, Outcome};
use super::root::Root;

const DEVICE: &str = "device";
const PORT: &str = "port";
const LINK: &str = "link";
const GID: &str = "gid";
const BRIDGE: &str = "bridge";
const LIMITS: &str = "limits";
const LOCKED: &str = "memory lock";

/// Links slower than this are hardly what somebody has RDMA for, in gigabits a second.
const SLOW: f64 = 10.0;

/// What the devices of this machine are looked at for.
pub struct Survey<'a> {
    pub asker: &'a Asker,
    pub root: &'a Root,
    pub peers: u32,
}

/// A device's checks, and what of it links can use.
struct Looked {
    name: String,
    checks: Vec<Check>,
    /// It has a port that can be used.
    port: bool,
    /// It has room for the links.
    room: bool,
}

impl Looked {
    /// A device that does not open.
    fn closed(name: &str, check: Check) -> Looked {
        Looked { name: name.to_owned(), checks: vec![check], port: false, room: false }
    }

    /// Whether links can run over it.
    fn usable(&self) -> bool {
        self.port && self.room && !self.checks.iter().any(|check| check.deadly)
    }
}

impl Survey<'_> {
    /// Looks at all devices. What is wrong with one is no failure where another can be used, with two exceptions: ranks open
    /// every device in their own process, so that one which crashes or hangs there ends them all; and they take the first
    /// device that has a usable port, whatever room it has.
    pub fn checks(&self, devices: &[ListedFacts], chosen: Option<&str>, checks: &mut Vec<Check>) {
        if devices.is_empty() {
            for name in [DEVICE, PORT, LINK, GID, BRIDGE, LIMITS] {
                checks.push(Check::not_applicable(name, "there is no RDMA device"));
            }
            checks.push(Check::not_applicable(
                LOCKED,
                format!("there is no RDMA device; {}", lock_limit(self.root).words()),
            ));
            return;
        }
        if let Some(chosen) = chosen.filter(|chosen| devices.iter().all(|device| device.name != *chosen)) {
            let names: Vec<_> = devices.iter().map(|device| &*device.name).collect();
            checks.push(Check::failure(
                DEVICE,
                format!("FULMEN_DEVICE is {chosen}, and this machine has no such device"),
                format!("set it to one of {}, or to `any`", names.join(", ")),
            ));
        }
        let asked_for = devices.iter().filter(|device| chosen.is_none_or(|chosen| device.name == chosen));
        let mut locked = None;
        let looked: Vec<Looked> = asked_for.map(|device| self.device(device, &mut locked)).collect();
        let taken = looked.iter().position(|device| device.port);
        let usable: Vec<String> =
            looked.iter().filter(|device| device.usable()).map(|device| device.name.clone()).collect();
        for (at, device) in looked.into_iter().enumerate() {
            let other = usable.iter().find(|name| **name != device.name);
            for mut check in device.checks {
                let stays = check.deadly || check.name == LIMITS && taken == Some(at);
                if check.outcome == Outcome::Failure && stays {
                    let otherwise = other.map(|other| format!("; or set FULMEN_DEVICE={other}"));
                    check.fix = check.fix.map(|fix| fix + otherwise.as_deref().unwrap_or_default());
                } else if check.outcome == Outcome::Failure && !usable.is_empty() {
                    check.outcome = Outcome::Warning;
                }
                checks.push(check);
            }
        }
        checks.push(self.locked(locked));
    }

    fn device(&self, listed: &ListedFacts, locked: &mut Option<u64>) -> Looked {
        let name = &listed.name;
        let mut checks = Vec::new();
        let facts = match self.asker.device(name, self.peers) {
            Ok(Ok(facts)) => facts,
            Ok(Err(refusal)) => {
                return Looked::closed(name, Check::failure(DEVICE, refusal.sentence, refusal.fix));
            }
            Err(trouble) => {
                return Looked::closed(name, troubled(DEVICE, &format!("{name} does not open"), &trouble));
            }
        };
        let firmware = if facts.firmware.is_empty() { "no firmware" } else { &facts.firmware };
        let sentence = format!("{name} opens: firmware {firmware}, with {}", facts.capabilities.join(", "));
        checks.push(Check::ok(DEVICE, sentence));
        let mut port = false;
        for number in 1..=facts.ports {
            port |= self.port(name, number, &mut checks);
        }
        if facts.ports == 0 {
            checks.push(Check::failure(PORT, format!("{name} has no port"), "use another device"));
        }
        let room = self.limits(name, &facts, &mut checks);
        if let Ok(needs) = &facts.needs {
            *locked = Some(locked.unwrap_or(0).max(needs.locked));
        }
        Looked { name: name.clone(), checks, port, room }
    }

    /// Whether the port can be used.
    fn port(&self, name: &str, number: u8, checks: &mut Vec<Check>) -> bool {
        let what = format!("port {number} of {name}");
        let facts = match self.asker.port(name, number, self.root) {
            Ok(Ok(facts)) => facts,
            Ok(Err(refusal)) => {
                checks.push(Check::failure(PORT, format!("{what}: {}", refusal.sentence), refusal.fix));
                return false;
            }
            Err(trouble) => {
                checks.push(troubled(PORT, &format!("{what} cannot be asked"), &trouble));
                return false;
            }
        };
        let interfaces = self.interfaces(name, number, &facts);
        if !facts.active {
            let interface = interfaces.first().map_or("its interface", |found| found.as_str());
            checks.push(Check::failure(
                PORT,
                format!("{what} is {}", facts.state),
                match &*facts.link_layer {
                    "InfiniBand" if facts.state != "down" => {
                        "wait for the subnet manager, or start one (opensm)".to_owned()
                    }
                    "InfiniBand" => "connect its cable".to_owned(),
                    _ => format!("connect its cable, and bring {interface} up: `ip link set {interface} up`"),
                },
            ));
            return false;
        }
        checks.push(Check::ok(PORT, format!("{what} is active")));
        checks.push(self.link(name, number, &what, &facts));
        checks.push(gid(&what, &facts, &interfaces));
        checks.push(self.bridge(&what, &facts, &interfaces));
        facts.chosen.is_ok()
    }

    /// The network interfaces behind a port: first that of the address which would be used.
    fn interfaces(&self, name: &str, number: u8, facts: &PortFacts) -> Vec<String> {
        let entries = format!("/sys/class/infiniband/{name}/ports/{number}/gid_attrs/ndevs");
        let behind = |index: &str| self.root.read(&format!("{entries}/{index}"));
        let chosen = facts.chosen.as_ref().ok().and_then(|(index, _)| behind(&index.to_string()));
        let tables = self.root.list(&entries).into_iter().filter_map(|index| behind(&index));
        let beside = self.root.list(&format!("/sys/class/infiniband/{name}/device/net"));
        // On macOS, rdma_en5 belongs to en5.
        let named = name.strip_prefix("rdma_").map(str::to_owned);
        let mut found: Vec<String> = Vec::new();
        for interface in chosen.into_iter().chain(tables).chain(beside).chain(named) {
            if !interface.is_empty() && !found.contains(&interface) {
                found.push(interface);
            }
        }
        found
    }

    fn link(&self, name: &str, number: u8, what: &str, facts: &PortFacts) -> Check {
        let place = format!("/sys/class/infiniband/{name}");
        let told = self.root.read(&format!("{place}/ports/{number}/rate"));
        let rate = || told.as_deref()?.split(' ').next()?.parse::<f64>().ok();
        let gigabits = facts.gigabits.or_else(rate);
        let speed = gigabits.map_or_else(|| "of a speed that it does not tell".into(), |rate| format!("{rate} Gb/s"));
        let sentence = format!("{what} speaks {}, {speed}, MTU {}", facts.link_layer, facts.mtu);
        // A device made of a network interface tells a speed that means nothing.
        let hardware = self.root.has(&format!("{place}/device"));
        match gigabits {
            Some(rate) if rate < SLOW && hardware => Check::warning(
                LINK,
                format!("{sentence}: slow for RDMA"),
                "look at cable, transceiver and switch port: what they have in common decides the speed",
            ),
            _ => Check::ok(LINK, sentence),
        }
    }

    fn bridge(&self, what: &str, facts: &PortFacts, interfaces: &[String]) -> Check {
        let Some(first) = interfaces.first() else {
            return Check::not_applicable(BRIDGE, format!("no network interface is known behind {what}"));
        };
        let in_bridge = |interface: &String| Some((interface.clone(), bridge_of(self.root, self.asker, interface)?));
        let Some((interface, bridge)) = interfaces.iter().find_map(in_bridge) else {
            return Check::ok(BRIDGE, format!("{first}, behind {what}, is in no bridge"));
        };
        let (sentence, fix) = (
            format!(
                "{interface}, behind {what}, is in the bridge {bridge}: its addresses belong to the bridge, not to the port"
            ),
            format!("take it out (`ip link set {interface} nomaster`), and give {interface} an address of its own"),
        );
        match facts.chosen {
            Ok(_) => Check::warning(BRIDGE, sentence, fix),
            Err(_) => Check::failure(BRIDGE, sentence, fix),
        }
    }

    /// Whether there is room for the links.
    fn limits(&self, name: &str, facts: &DeviceFacts, checks: &mut Vec<Check>) -> bool {
        let peers = if self.peers == 1 { "1 peer".to_owned() } else { format!("{} peers", self.peers) };
        let needs = match &facts.needs {
            Ok(needs) => needs,
            Err(problem) => {
                checks.push(Check::failure(LIMITS, problem.clone(), "use another device"));
                return false;
            }
        };
        let short = |needs: &[NeedFacts]| -> Vec<String> {
            let short = needs.iter().filter(|need| need.needed > need.limit);
            short.map(|need| format!("{} {} where {} are needed", need.limit, need.what, need.needed)).collect()
        };
        let missing = short(&needs.needs);
        if !missing.is_empty() {
            checks.push(Check::failure(
                LIMITS,
                format!("{name} has too little for links with {peers}: {}", missing.join(", ")),
                "start fewer ranks, make the pool smaller (FULMEN_POOL), or use a device that allows more; where another program \
                 has some, end it",
            ));
            return false;
        }
        let has: Vec<_> =
            needs.needs.iter().map(|need| format!("{} of {} {}", need.needed, need.limit, need.what)).collect();
        let over = match short(&needs.one_sided).as_slice() {
            [] => String::new(),
            short => format!("; one-sided operations go over messages, since it has {}", short.join(", ")),
        };
        checks.push(Check::ok(LIMITS, format!("links with {peers} need {} of {name}{over}", has.join(", "))));
        true
    }

    fn locked(&self, needed: Option<u64>) -> Check {
        let limit = lock_limit(self.root);
        let words = limit.words();
        let (Some(needed), Lock::Limited(bytes)) = (needed, limit) else { return Check::ok(LOCKED, words) };
        let sentence = format!("{words}, and links need {} MiB locked", needed.div_ceil(1 << 20));
        if needed <= bytes {
            return Check::ok(LOCKED, sentence);
        }
        Check::failure(
            LOCKED,
            sentence,
            "raise it: `ulimit -l unlimited`, `* - memlock unlimited` in /etc/security/limits.d, LimitMEMLOCK=infinity for a \
             service, `--ulimit memlock=-1` for a container; or make the pool smaller (FULMEN_POOL)",
        )
    }
}

/// How much memory this process may lock.
#[derive(Clone, Copy)]
#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "registrations count against a limit on Linux alone"))]
pub enum Lock {
    /// There is no limit.
    None,
    /// The limit does not hold for this user.
    Privileged,
    /// So many bytes.
    Limited(u64),
}

impl Lock {
    fn words(self) -> String {
        match self {
            Lock::None => "memory may be locked without limit".to_owned(),
            Lock::Privileged => "this user may lock any memory (CAP_IPC_LOCK)".to_owned(),
            Lock::Limited(bytes) => format!("this user may lock {} KiB of memory (`ulimit -l`)", bytes >> 10),
        }
    }
}

fn gid(what: &str, facts: &PortFacts, interfaces: &[String]) -> Check {
    let interface = interfaces.first().map_or("the interface", |name| name.as_str());
    let (index, why) = match &facts.chosen {
        Ok(chosen) => chosen,
        Err((problem, fix)) => {
            let all: Vec<_> = facts.gids.iter().map(described).collect();
            let all = if all.is_empty() { String::new() } else { format!(" ({})", all.join(", ")) };
            let fix = if interfaces.is_empty() { fix.clone() } else { format!("{fix} (the interface is {interface})") };
            return Check::failure(GID, format!("{what} has no address that can be used: {problem}{all}"), fix);
        }
    };
    let Some(entry) = facts.gids.iter().find(|entry| entry.index == *index) else {
        return Check::failure(GID, format!("{what} lists no GID of index {index}, which was chosen"), MEND);
    };
    let sentence = format!("{what} uses {} of {}: {why}", described(entry), facts.gids.len());
    if entry.link_local && facts.link_layer != "InfiniBand" {
        return Check::warning(
            GID,
            format!("{sentence}; link-local addresses reach only the neighbour on the cable or switch, and not always"),
            format!(
                "give {interface} an IPv4 address: `ip addr add 10.0.0.1/24 dev {interface}`, another on each machine"
            ),
        );
    }
    Check::ok(GID, sentence)
}

fn described(entry: &GidFacts) -> String {
    format!("[{}] {} ({})", entry.index, entry.gid, entry.kind)
}
