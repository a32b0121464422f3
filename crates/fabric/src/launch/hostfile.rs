//! Lists of hosts: what follows `fulmen run --hosts`, and hostfiles.
//!
//! A line of a hostfile is a host, how many ranks it takes, and what else is known of it; `#` begins a comment:
//!
//! ```text
//! a
//! b slots=2
//! c:4 user=me port=2222 address=192.0.2.3 fulmen=/opt/fulmen/bin/fulmen
//! [2001:db8::1]:2
//! ```
//!
//! These are OpenMPI's words (`slots`, `max_slots`) and MPICH's form (`host:ranks`), so their files are hostfiles, too. A file
//! that begins as JSON is that of `mlx.launch`: `{"envs": …, "hosts": [{"ssh": …, "ips": […], "rdma": […]}]}`, or the list
//! alone. What cannot be understood is refused, with its line: a host that was quietly left out would be missed.

use std::net::IpAddr;
use std::str::FromStr;

use serde::Deserialize;

use super::devices::{Devices, File, Host, Line};
use super::environment::number;
use crate::Cables;
use crate::bootstrap::MAX_RANKS;

/// The longest hostfile in bytes.
pub const LONGEST: u64 = 4 << 20;

/// The longest name of a host, with its user.
const LONGEST_NAME: usize = 320;

/// A host, as it was written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// What ssh is told: a name, an address or an alias, with `user@` in front if it was written so.
    pub name: String,
    /// How many ranks it takes, if that was written.
    pub slots: Option<u32>,
    /// The user to be there.
    pub user: Option<String>,
    /// The port of its ssh server.
    pub port: Option<u16>,
    /// The address by which other hosts reach it.
    pub address: Option<IpAddr>,
    /// The path of `fulmen` there.
    pub fulmen: Option<String>,
}

/// What a list of hosts says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostList {
    /// The hosts, in their order.
    pub hosts: Vec<Listed>,
    /// Variables for all ranks.
    pub variables: Vec<(String, String)>,
    /// By host, the devices that lead to each host, if the list says so. Each host is one rank then.
    pub cables: Option<Vec<Cables>>,
}

/// Why a list of hosts cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{cause}", line.map_or(String::new(), |line| format!("line {line}: ")))]
pub struct HostListError {
    /// The line, from 1, where it can be told.
    pub line: Option<usize>,
    /// What is wrong, and how it is written.
    pub cause: String,
}

impl HostListError {
    fn new(cause: impl Into<String>) -> HostListError {
        HostListError { line: None, cause: cause.into() }
    }
}

impl HostList {
    /// Reads what `--hosts` takes: `a,b:2,[2001:db8::1]:2`, each with the number of its ranks or without.
    ///
    /// # Errors
    /// [`HostListError`].
    pub fn from_argument(text: &str) -> Result<HostList, HostListError> {
        let hosts = text.split(',').map(|host| host_with_slots(host.trim())).collect::<Result<Vec<_>, _>>();
        checked(hosts.map_err(HostListError::new)?)
    }

    /// Reads a hostfile, of whatever format.
    ///
    /// # Errors
    /// [`HostListError`].
    pub fn from_file(text: &str) -> Result<HostList, HostListError> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        if is_json(text) {
            return from_json(text);
        }
        let mut hosts = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let host = host_of_line(line).map_err(|cause| HostListError { line: Some(number), cause })?;
            hosts.extend(host);
        }
        checked(hosts)
    }
}

/// The row of devices of one host as the variable `FULMEN_CABLES` carries it to its rank.
#[must_use]
pub fn cables_variable(cables: &Cables) -> String {
    serde_json::to_string(&cables.0).unwrap_or_default()
}

fn checked(hosts: Vec<Listed>) -> Result<HostList, HostListError> {
    match hosts.len() {
        0 => Err(HostListError::new("no host is named: write one a line, such as `name slots=2`")),
        count if count > MAX_RANKS as usize => {
            Err(HostListError::new(format!("{count} hosts are named, and there can be {MAX_RANKS}")))
        }
        _ => Ok(HostList { hosts, ..HostList::default() }),
    }
}

/// An address in brackets begins a line, too, but no JSON.
fn is_json(text: &str) -> bool {
    let text = text.trim_start();
    match text.strip_prefix('[') {
        Some(rest) => matches!(rest.trim_start().chars().next(), None | Some('{' | '[' | ']' | '"')),
        None => text.starts_with('{'),
    }
}

fn host_of_line(line: &str) -> Result<Option<Listed>, String> {
    let words: Vec<&str> = line.split_whitespace().take_while(|word| !word.starts_with('#')).collect();
    let Some((first, rest)) = words.split_first() else { return Ok(None) };
    let mut host = host_with_slots(first)?;
    let mut most = None;
    // OpenMPI takes blanks around the sign, too.
    let rest = rest.join(" ").replace(" =", "=").replace("= ", "=");
    for word in rest.split_whitespace() {
        let (key, value) = word.split_once('=').ok_or_else(|| {
            format!("`{}` is not understood: write one host a line, and `key=value` behind it", shown(word))
        })?;
        match key {
            "slots" => once(&mut host.slots, key, count(value)?)?,
            "max_slots" | "max-slots" => once(&mut most, key, count(value)?)?,
            "user" => once(&mut host.user, key, user(value)?)?,
            "port" => once(&mut host.port, key, port(value)?)?,
            "address" => once(&mut host.address, key, address(value)?)?,
            "fulmen" if !value.is_empty() => once(&mut host.fulmen, key, value.to_owned())?,
            _ => {
                return Err(format!(
                    "`{}` is not understood: slots, max_slots, user, port, address and fulmen can follow a host, each with a value",
                    shown(word)
                ));
            }
        }
    }
    if host.user.is_some() && host.name.contains('@') {
        return Err(format!("{} names a user twice", host.name));
    }
    match (host.slots, most) {
        (Some(slots), Some(most)) if slots > most => Err(format!("slots={slots} is more than max_slots={most}")),
        (None, Some(most)) => Ok(Some(Listed { slots: Some(most), ..host })),
        _ => Ok(Some(host)),
    }
}

fn once<T>(place: &mut Option<T>, key: &str, value: T) -> Result<(), String> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(format!("{key} is said twice of one host")),
    }
}

/// `host`, `host:2`, `[2001:db8::1]` or `[2001:db8::1]:2`, each with `user@` in front or without.
fn host_with_slots(text: &str) -> Result<Listed, String> {
    let (user, host) = text.rsplit_once('@').map_or((None, text), |(user, host)| (Some(user), host));
    let (host, slots) = match host.strip_prefix('[') {
        Some(rest) => {
            let (inside, after) = rest.split_once(']').ok_or_else(|| format!("`{}` lacks a `]`", shown(text)))?;
            match after.strip_prefix(':') {
                Some(slots) => (inside, Some(slots)),
                None if after.is_empty() => (inside, None),
                None => return Err(format!("`{}`: only `:` and a number can follow the `]`", shown(text))),
            }
        }
        None => match host.split_once(':') {
            Some((_, rest)) if rest.contains(':') => {
                return Err(format!(
                    "`{}` has several colons: write an IPv6 address in brackets, such as [2001:db8::1]:2",
                    shown(text)
                ));
            }
            Some((host, slots)) => (host, Some(slots)),
            None => (host, None),
        },
    };
    let name = user.map_or(host.to_owned(), |user| format!("{user}@{host}"));
    check_name(host, "host")?;
    user.map_or(Ok(()), |user| check_name(user, "user"))?;
    let slots = slots.map(count).transpose()?;
    Ok(Listed { name, slots, ..Listed::default() })
}

/// A name becomes an argument of ssh, and may become a part of a command that the user's ssh configuration names.
fn check_name(name: &str, what: &str) -> Result<(), String> {
    let harmless = |letter: char| letter.is_alphanumeric() || "._-%:".contains(letter);
    if name.is_empty() {
        return Err(format!("a {what} has no name"));
    }
    if name.starts_with('-') || name.len() > LONGEST_NAME || !name.chars().all(harmless) {
        return Err(format!(
            "`{}` is no name of a {what}: letters, digits, `.`, `_` and `-` make one, and it begins with no `-`",
            shown(name)
        ));
    }
    Ok(())
}

fn count(text: &str) -> Result<u32, String> {
    let valid = number(text).filter(|count| (1..=MAX_RANKS).contains(count));
    valid.ok_or_else(|| format!("`{}` is no number of ranks: a host takes 1 to {MAX_RANKS}", shown(text)))
}

fn user(text: &str) -> Result<String, String> {
    check_name(text, "user").map(|()| text.to_owned())
}

fn port(text: &str) -> Result<u16, String> {
    let port = number(text).and_then(|port| u16::try_from(port).ok()).filter(|port| *port != 0);
    port.ok_or_else(|| format!("`{}` is no port: there are 1 to 65535", shown(text)))
}

fn address(text: &str) -> Result<IpAddr, String> {
    let address = IpAddr::from_str(text).ok().filter(|address| !address.is_unspecified() && !address.is_multicast());
    address.ok_or_else(|| format!("`{}` is no address of a host, such as 192.0.2.1", shown(text)))
}

/// A piece of the list, for a message.
fn shown(text: &str) -> String {
    let mut piece: String = text.chars().take(60).flat_map(char::escape_debug).collect();
    if text.chars().nth(60).is_some() {
        piece.push('…');
    }
    piece
}

/// What `mlx.launch` says beside the hosts, as far as it means something here.
#[derive(Deserialize)]
struct Beside {
    #[serde(default)]
    envs: Vec<String>,
}

fn from_json(text: &str) -> Result<HostList, HostListError> {
    let syntax = |error: serde_json::Error| {
        HostListError::new(format!("{error}: give a list of hosts, each with \"ssh\", as mlx.launch takes it"))
    };
    let file: File = serde_json::from_str(text).map_err(syntax)?;
    let mut hosts = Vec::new();
    let mut cabled = false;
    for (index, line) in file.0.iter().enumerate() {
        let Line::Host(host) = line else {
            return Err(HostListError::new("this is a file of devices and names no hosts"));
        };
        cabled |= host.rdma.as_ref().is_some_and(|row| !row.is_empty());
        hosts.push(listed(index, host).map_err(HostListError::new)?);
    }
    let mut list = checked(hosts)?;
    if cabled {
        let devices = Devices::check(file).map_err(HostListError::new)?;
        list.cables = Some((0..devices.size()).map(|host| devices.cables(host)).collect());
    }
    if text.trim_start().starts_with('{') {
        for variable in serde_json::from_str::<Beside>(text).map_err(syntax)?.envs {
            match variable.split_once('=') {
                Some((name, value)) if !name.is_empty() && !variable.contains('\0') => {
                    list.variables.push((name.to_owned(), value.to_owned()));
                }
                _ => return Err(HostListError::new(format!("`{}` in \"envs\" is not NAME=VALUE", shown(&variable)))),
            }
        }
    }
    Ok(list)
}

fn listed(index: usize, host: &Host) -> Result<Listed, String> {
    let ssh = host.ssh.as_deref().ok_or_else(|| format!("host {index} has no \"ssh\", which names it"))?;
    // A bare IPv6 address is unambiguous here: no number of ranks can follow.
    let (user, name) = ssh.rsplit_once('@').map_or((None, ssh), |(user, host)| (Some(user), host));
    check_name(name, "host")?;
    user.map_or(Ok(()), |user| check_name(user, "user"))?;
    let own = host.ips.first().map(|ip| address(ip)).transpose()?;
    Ok(Listed { name: ssh.to_owned(), slots: Some(1), address: own, ..Listed::default() })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn host(name: &str, slots: Option<u32>) -> Listed {
        Listed { name: name.into(), slots, ..Listed::default() }
    }

    fn refused(text: &str) -> String {
        let said = HostList::from_file(text).unwrap_err().to_string();
        assert!(!said.contains('\n') && said.len() < 300, "{text:?}: {said}");
        said
    }

    #[test]
    fn an_argument_names_hosts_and_numbers_of_ranks() {
        let hosts = HostList::from_argument("a, b:2,me@c.example:3,[2001:db8::1]:4,me@[fe80::1%en0]").unwrap().hosts;
        let expected = [
            host("a", None),
            host("b", Some(2)),
            host("me@c.example", Some(3)),
            host("2001:db8::1", Some(4)),
            host("me@fe80::1%en0", None),
        ];
        assert_eq!(hosts, expected);
    }

    #[test]
    fn wrong_arguments_say_what_is_wrong() {
        for (text, part) in [
            ("", "no name"),
            ("a,,b", "no name"),
            ("a:0", "`0` is no number"),
            ("a:x", "`x` is no number"),
            ("a:+1", "`+1` is no number"),
            ("a:4097", "1 to 4096"),
            ("::1", "in brackets"),
            ("[::1", "lacks a `]`"),
            ("[::1]2", "can follow"),
            ("-oProxyCommand=x", "no name of a host"),
            ("-x", "begins with no `-`"),
            ("-l@a", "no name of a user"),
            ("a;reboot", "no name of a host"),
            ("$(x)", "no name of a host"),
            ("a b", "no name of a host"),
            ("a\u{1b}[2J", "\\u{1b}"),
            ("@a", "a user has no name"),
        ] {
            let said = HostList::from_argument(text).unwrap_err().to_string();
            assert!(said.contains(part), "{text}: {said}");
        }
    }

    #[test]
    fn a_line_says_all_that_is_known_of_a_host() {
        let text = "# my machines\n\na\n b slots=2 # two\nc:4 user=me port=2222 address=192.0.2.3 fulmen=/opt/f\r\n";
        let hosts = HostList::from_file(text).unwrap().hosts;
        let c = Listed {
            user: Some("me".into()),
            port: Some(2222),
            address: Some(IpAddr::from([192, 0, 2, 3])),
            fulmen: Some("/opt/f".into()),
            ..host("c", Some(4))
        };
        assert_eq!(hosts, [host("a", None), host("b", Some(2)), c]);
    }

    #[test]
    fn files_of_other_launchers_are_hostfiles() {
        let openmpi = "node0 slots=2 max_slots=4\nnode1 slots = 3\nnode2 max-slots=4\nnode3\n";
        let hosts = HostList::from_file(openmpi).unwrap().hosts;
        let slots: Vec<_> = hosts.iter().map(|host| host.slots).collect();
        assert_eq!(slots, [Some(2), Some(3), Some(4), None]);
        let mpich = "# comment\nhost1\nhost2:2\n192.0.2.4:4\n";
        let hosts = HostList::from_file(mpich).unwrap().hosts;
        assert_eq!(hosts, [host("host1", None), host("host2", Some(2)), host("192.0.2.4", Some(4))]);
    }

    #[test]
    fn a_file_of_mlx_names_addresses_devices_and_variables() {
        let hosts = r#"[{"ssh": "a", "ips": ["192.0.2.1", "192.0.2.9"], "rdma": [null, ["rdma_en5", "rdma_en6"]]},
                        {"ssh": "me@b", "ips": [], "rdma": [["rdma_en4", "rdma_en3"], null], "more": {"x": 1}}]"#;
        let list = HostList::from_file(hosts).unwrap();
        let a = Listed { address: Some(IpAddr::from([192, 0, 2, 1])), ..host("a", Some(1)) };
        assert_eq!(list.hosts, [a, host("me@b", Some(1))]);
        let cables = list.cables.unwrap();
        assert_eq!(cables[0], Cables(vec![vec![], vec!["rdma_en5".into(), "rdma_en6".into()]]));
        assert_eq!(cables_variable(&cables[1]), r#"[["rdma_en4","rdma_en3"],[]]"#);
        let whole = format!(r#" {{"backend": "jaccl", "envs": ["A=1", "B=x=y"], "hosts": {hosts}}}"#);
        let list = HostList::from_file(&whole).unwrap();
        assert_eq!(list.variables, [("A".into(), "1".into()), ("B".into(), "x=y".into())]);
        // A ring over TCP has no devices.
        let ring = r#"[{"ssh": "::1", "ips": ["192.0.2.1"], "rdma": []}, {"ssh": "b"}]"#;
        let list = HostList::from_file(ring).unwrap();
        assert_eq!((list.cables, list.hosts[0].name.as_str()), (None, "::1"));
    }

    #[test]
    fn wrong_files_name_the_line() {
        for (text, part) in [
            ("", "no host"),
            ("# nothing\n", "no host"),
            ("a\nb slots=0\n", "line 2: `0` is no number"),
            ("a\n\nb c\n", "line 3: `c` is not understood"),
            ("a binding=rr\n", "line 1: `binding=rr` is not understood: slots"),
            ("a slots=2 slots=2\n", "slots is said twice"),
            ("a:2 slots=2\n", "slots is said twice"),
            ("a slots=3 max_slots=2\n", "more than max_slots"),
            ("me@a user=me\n", "a user twice"),
            ("a port=0\n", "no port"),
            ("a port=65536\n", "no port"),
            ("a address=b\n", "no address"),
            ("a address=0.0.0.0\n", "no address"),
            ("a fulmen=\n", "not understood"),
            ("a\0b\n", "no name of a host"),
            ("[]", "no host"),
            ("[[null]]", "file of devices"),
            ("{\"hosts\":\n 3}", "line 2 column 2"),
            ("{\"backend\": \"ring\"}", "missing field `hosts`"),
            (r#"[{"ips": ["192.0.2.1"]}]"#, "host 0 has no \"ssh\""),
            (r#"[{"ssh": "-x"}]"#, "begins with no `-`"),
            (r#"[{"ssh": "a", "ips": ["b"]}]"#, "`b` is no address"),
            (r#"[{"ssh": "a", "rdma": [null, "x"]}, {"ssh": "b"}]"#, "host 1 (b) has no \"rdma\""),
            (r#"[{"ssh": "a", "rdma": [null, "x"]}]"#, "row 0 has 2 cells for 1 ranks"),
            (r#"{"hosts": [{"ssh": "a"}], "envs": ["A"]}"#, "not NAME=VALUE"),
            (r#"{"hosts": [{"ssh": "a"}], "envs": 3}"#, "column"),
        ] {
            let said = refused(text);
            assert!(said.contains(part), "{text:?}: {said}");
        }
        assert_eq!(HostList::from_file("[::1]:2").unwrap().hosts, [host("::1", Some(2))]);
    }

    /// Text that is nearly a hostfile.
    fn nearly() -> impl Strategy<Value = String> {
        let word = prop::sample::select(vec![
            "a",
            "b",
            ":",
            "2",
            "[",
            "]",
            "::1",
            " ",
            "\n",
            "slots",
            "=",
            "max_slots=3",
            "user=",
            "port=22",
            "#",
            "@",
            "{",
            "}",
            "\"hosts\"",
            "\"ssh\"",
            "\"rdma\"",
            "\"ips\"",
            "\"envs\"",
            ",",
            "null",
            "\"x\"",
            "-",
            "\t",
        ]);
        prop::collection::vec(word, 0..40).prop_map(|words| words.concat())
    }

    proptest! {
        #[test]
        fn no_list_is_too_strange(text in prop_oneof![nearly(), any::<String>()]) {
            for list in [HostList::from_file(&text), HostList::from_argument(&text)].into_iter().flatten() {
                prop_assert!(!list.hosts.is_empty());
                for host in &list.hosts {
                    prop_assert!(!host.name.is_empty() && !host.name.starts_with('-'));
                    prop_assert!(!host.name.contains(|letter: char| letter.is_whitespace() || letter.is_control()));
                    prop_assert!(host.slots.is_none_or(|slots| (1..=MAX_RANKS).contains(&slots)));
                }
                if let Some(cables) = list.cables {
                    prop_assert!(cables.iter().all(|row| row.0.len() == cables.len()));
                }
            }
        }

        #[test]
        fn every_list_comes_back(hosts in prop::collection::vec(("[a-z][a-z0-9.-]{0,12}", prop::option::of(1u32..=4096)), 1..20)) {
            let expected: Vec<Listed> = hosts.iter().map(|(name, slots)| host(name, *slots)).collect();
            let write = |form: fn(&str, u32) -> String, between: &str| {
                let words = hosts.iter().map(|(name, slots)| slots.map_or(name.clone(), |slots| form(name, slots)));
                words.collect::<Vec<_>>().join(between)
            };
            let colon = write(|name, slots| format!("{name}:{slots}"), ",");
            prop_assert_eq!(&HostList::from_argument(&colon).unwrap().hosts, &expected);
            let slots = write(|name, slots| format!("{name}\tslots={slots}"), "\n");
            prop_assert_eq!(&HostList::from_file(&slots).unwrap().hosts, &expected);
        }
    }
}
