//! Which rank runs on which host, and by which addresses hosts find one another.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use fulmen::parts::fabric::Cables;
use fulmen::parts::fabric::launch::hostfile::{HostList, Listed};

use super::super::MAX_RANKS;
use super::error::HostError;

/// Where a host is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Where {
    /// It is this machine.
    Here,
    /// It is reached over ssh.
    Elsewhere,
}

/// A host with ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// What it is called in messages.
    pub name: String,
    /// What the list says of it.
    pub listed: Listed,
    /// Where it is.
    pub whereabouts: Where,
    /// The first rank there.
    pub first: u32,
    /// How many ranks are there.
    pub count: u32,
    /// The devices that lead from its rank to each rank.
    pub cables: Option<Cables>,
}

/// Where all ranks are: in blocks, host by host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The hosts that have ranks.
    pub hosts: Vec<Placed>,
}

/// How the ranks of a host meet the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The address of the launcher's machine as this host sees it.
    pub meet: IpAddr,
    /// The address by which other hosts reach this one, as far as it is known.
    pub own: Option<IpAddr>,
}

/// This machine's name.
pub fn own_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

impl Placement {
    /// Gives `ranks` places on these hosts, as many as the list has places for if that is none. Hosts of the name `own` are this
    /// machine.
    pub fn new(list: &HostList, ranks: Option<u32>, own: Option<&str>) -> Result<Placement, String> {
        let counted = list.hosts.iter().any(|host| host.slots.is_some());
        let hosts = merged(&list.hosts);
        if list.cables.is_some() && hosts.len() < list.hosts.len() {
            return Err(
                "a host is listed twice, and \"rdma\" says what leads from each host once: list each host once".into(),
            );
        }
        let slots = |host: &Listed| host.slots.unwrap_or(1);
        let places: u32 = hosts.iter().map(slots).fold(0, u32::saturating_add);
        let ranks = ranks.unwrap_or(places);
        if ranks > MAX_RANKS {
            return Err(format!(
                "the hosts have places for {ranks} ranks, and a run has 1 to {MAX_RANKS}: choose fewer with -n"
            ));
        }
        if list.cables.is_some() && ranks != places {
            return Err(format!(
                "the hostfile says what leads from each of {places} ranks to the others: leave -n out, or make it {places}"
            ));
        }
        if ranks > places && counted {
            return Err(format!(
                "the hosts have places for {places} ranks, and -n asks for {ranks}: give them more (`host:N`, or `slots=N` in a hostfile)"
            ));
        }
        // Nobody has said how many a host takes: all take as many, the first ones one more if that does not come out even.
        let (even, more) = (ranks / hosts.len() as u32, ranks % hosts.len() as u32);
        let mut placed = Vec::new();
        let mut first = 0;
        for (index, listed) in (0..).zip(hosts) {
            let count = match ranks > places {
                true => even + u32::from(index < more),
                false => slots(&listed).min(ranks - first),
            };
            if count == 0 {
                tracing::info!(host = listed.name, "has no rank: all have a place before it");
                continue;
            }
            let bare = listed.name.rsplit('@').next().unwrap_or_default();
            let is_own = own.is_some_and(|own| bare == own || Some(bare) == own.split('.').next());
            let here = is_loopback(bare) || is_own;
            let whereabouts = if here { Where::Here } else { Where::Elsewhere };
            let cables = list.cables.as_ref().map(|cables| cables[index as usize].clone());
            placed.push(Placed { name: listed.name.clone(), listed, whereabouts, first, count, cables });
            first += count;
        }
        if placed.iter().filter(|host| host.whereabouts == Where::Here).count() > 1 {
            return Err("this machine is listed under several names: list it once".into());
        }
        Ok(Placement { hosts: placed })
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> u32 {
        self.hosts.iter().map(|host| host.count).sum()
    }

    /// The host of a rank, by its place in `hosts`.
    pub fn host_of(&self, rank: u32) -> usize {
        self.hosts.partition_point(|host| host.first + host.count <= rank)
    }

    /// The hosts that are reached over ssh, in their order.
    pub fn others(&self) -> Vec<&Placed> {
        self.hosts.iter().filter(|host| host.whereabouts == Where::Elsewhere).collect()
    }

    /// This machine, if it has ranks.
    pub fn here(&self) -> Option<usize> {
        self.hosts.iter().position(|host| host.whereabouts == Where::Here)
    }

    /// Where the coordinator is to listen, and each host's place: of what the other hosts' ssh servers see of the connection,
    /// in their order, or at the address that the user has given.
    pub fn meet(
        &self,
        seen: &[Option<&str>],
        given: Option<SocketAddr>,
    ) -> Result<(SocketAddr, Vec<Place>), HostError> {
        let mut seen = seen.iter();
        let mut places = Vec::new();
        for host in self.hosts.iter().filter(|host| host.whereabouts == Where::Elsewhere) {
            let seen = seen.next().copied().flatten();
            let ends = seen.and_then(ends);
            let meet = match (given, ends) {
                (Some(given), _) => given.ip(),
                (None, Some((launcher, _))) => launcher,
                (None, None) => {
                    return Err(HostError::NoAddress { host: host.name.clone(), seen: seen.map(str::to_owned) });
                }
            };
            if TcpListener::bind((meet, 0)).is_err() {
                let host = given.is_none().then(|| host.name.clone());
                return Err(HostError::NotOurs { ip: meet, host });
            }
            places.push(Place { meet, own: host.listed.address.or(ends.map(|(_, own)| own)) });
        }
        let (listen, here) = listen(&places, given);
        if let Some(index) = self.here() {
            let own = self.hosts[index].listed.address.or((!places.is_empty()).then_some(here));
            places.insert(index, Place { meet: here, own });
        }
        Ok((listen, places))
    }
}

/// The address of the coordinator, and the one by which this machine's own ranks reach it.
fn listen(others: &[Place], given: Option<SocketAddr>) -> (SocketAddr, IpAddr) {
    let Some(first) = others.first() else {
        let address = given.unwrap_or(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        return (address, address.ip());
    };
    if let Some(given) = given {
        return (given, given.ip());
    }
    let ip = match others {
        _ if others.iter().all(|place| place.meet == first.meet) => first.meet,
        // Hosts on several networks: this machine has an address on each.
        _ if others.iter().all(|place| place.meet.is_ipv4()) => Ipv4Addr::UNSPECIFIED.into(),
        _ => Ipv6Addr::UNSPECIFIED.into(),
    };
    (SocketAddr::new(ip, 0), first.meet)
}

/// The addresses of the client and of the server in `SSH_CONNECTION`, if others can use them: one with a zone means something on
/// its own host alone.
fn ends(connection: &str) -> Option<(IpAddr, IpAddr)> {
    let mut words = connection.split_ascii_whitespace();
    let client: IpAddr = words.next()?.parse().ok()?;
    let server: IpAddr = words.nth(1)?.parse().ok()?;
    Some((client.to_canonical(), server.to_canonical()))
}

fn is_loopback(name: &str) -> bool {
    name == "localhost" || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// The hosts with one entry for each, at its first place, which has the places of all its entries.
fn merged(hosts: &[Listed]) -> Vec<Listed> {
    let mut merged: Vec<Listed> = Vec::new();
    for host in hosts {
        let same = |other: &&mut Listed| (&other.name, &other.user, other.port) == (&host.name, &host.user, host.port);
        match merged.iter_mut().find(same) {
            Some(before) => before.slots = Some(before.slots.unwrap_or(1).saturating_add(host.slots.unwrap_or(1))),
            None => merged.push(host.clone()),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn place(hosts: &str, ranks: Option<u32>) -> Result<Vec<(String, u32, u32)>, String> {
        let placement = Placement::new(&HostList::from_argument(hosts).unwrap(), ranks, None)?;
        Ok(placement.hosts.into_iter().map(|host| (host.name, host.first, host.count)).collect())
    }

    fn placed(hosts: &str, ranks: Option<u32>) -> Vec<(String, u32, u32)> {
        place(hosts, ranks).unwrap()
    }

    fn blocks(blocks: &[(&str, u32, u32)]) -> Vec<(String, u32, u32)> {
        blocks.iter().map(|&(name, first, count)| (name.to_owned(), first, count)).collect()
    }

    #[test]
    fn ranks_are_placed_in_blocks() {
        assert_eq!(placed("a,b:2,c", None), blocks(&[("a", 0, 1), ("b", 1, 2), ("c", 3, 1)]));
        assert_eq!(placed("a,b:2,c", Some(2)), blocks(&[("a", 0, 1), ("b", 1, 1)]));
        assert_eq!(placed("a,b,c", Some(7)), blocks(&[("a", 0, 3), ("b", 3, 2), ("c", 5, 2)]));
        assert_eq!(placed("a,b,c", Some(2)), blocks(&[("a", 0, 1), ("b", 1, 1)]));
        // A host that is named twice has the places of both, and so has said how many.
        assert_eq!(placed("a,b,a", None), blocks(&[("a", 0, 2), ("b", 2, 1)]));
        assert!(place("a:2,b", Some(4)).unwrap_err().contains("places for 3 ranks, and -n asks for 4"));
        assert!(place("a:1000,b:1000", None).unwrap_err().contains("1 to 1024"));
    }

    #[test]
    fn this_machine_is_known_by_its_names() {
        let whereabouts = |hosts: &str, own: Option<&str>| {
            let placement = Placement::new(&HostList::from_argument(hosts).unwrap(), None, own).unwrap();
            placement.hosts.iter().map(|host| host.whereabouts == Where::Here).collect::<Vec<_>>()
        };
        assert_eq!(whereabouts("localhost,a", None), [true, false]);
        assert_eq!(whereabouts("b,127.0.0.1:2", None), [false, true]);
        assert_eq!(whereabouts("me@here,there", Some("here.example")), [true, false]);
        assert_eq!(whereabouts("here,there", None), [false, false]);
        let twice = HostList::from_argument("localhost,here").unwrap();
        assert!(Placement::new(&twice, None, Some("here")).unwrap_err().contains("several names"));
    }

    #[test]
    fn a_file_with_devices_has_one_rank_for_each_host() {
        let text = r#"[{"ssh": "a", "rdma": [null, "x"]}, {"ssh": "b", "rdma": ["y", null]}]"#;
        let list = HostList::from_file(text).unwrap();
        let placement = Placement::new(&list, None, None).unwrap();
        assert_eq!(placement.hosts[1].cables, Some(Cables(vec![vec!["y".into()], vec![]])));
        assert!(Placement::new(&list, Some(1), None).unwrap_err().contains("each of 2 ranks"));
        let twice = HostList::from_file(&text.replace("\"b\"", "\"a\"")).unwrap();
        assert!(Placement::new(&twice, None, None).unwrap_err().contains("once"));
    }

    #[test]
    fn hosts_meet_where_they_see_this_machine() {
        let meet = |hosts: &str, seen: &[Option<&str>], given: Option<&str>| {
            let placement = Placement::new(&HostList::from_argument(hosts).unwrap(), None, None).unwrap();
            placement.meet(seen, given.map(|given| given.parse().unwrap()))
        };
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let loopback = "127.0.0.1 4000 127.0.0.2 22";
        let (listen, places) = meet("a,localhost", &[Some(loopback)], None).unwrap();
        assert_eq!(listen.to_string(), "127.0.0.1:0");
        assert_eq!(places[0], Place { meet: ip("127.0.0.1"), own: Some(ip("127.0.0.2")) });
        assert_eq!(places[1], Place { meet: ip("127.0.0.1"), own: Some(ip("127.0.0.1")) });
        // Two networks, and an address that the server writes in IPv6's form.
        let other = "::ffff:127.0.0.3 4000 ::ffff:127.0.0.4 22";
        let (listen, places) = meet("a,b", &[Some(loopback), Some(other)], None).unwrap();
        assert_eq!(listen.to_string(), "0.0.0.0:0");
        assert_eq!(places[1], Place { meet: ip("127.0.0.3"), own: Some(ip("127.0.0.4")) });
        let (listen, places) = meet("a", &[None], Some("127.0.0.1:7117")).unwrap();
        assert_eq!((listen.to_string().as_str(), places[0].own), ("127.0.0.1:7117", None));
        let (listen, places) = meet("localhost:2", &[], None).unwrap();
        assert_eq!((listen.to_string().as_str(), places[0].own), ("127.0.0.1:0", None));
        for (seen, given, part) in [
            (None, None, "host a does not say"),
            (Some("fe80::1%eth0 4000 fe80::2%eth0 22"), None, "none that others could use"),
            (Some("nonsense"), None, "nonsense"),
            (Some("192.0.2.77 4000 192.0.2.2 22"), None, "though host a sees it there"),
            (Some(loopback), Some("192.0.2.77:0"), "192.0.2.77 is none of this machine's addresses: give"),
        ] {
            let said = meet("a", &[seen], given).unwrap_err().to_string();
            assert!(said.contains(part) && said.contains("--address"), "{said}");
        }
    }

    proptest! {
        #[test]
        fn every_rank_has_one_host(slots in prop::collection::vec(prop::option::of(1u32..20), 1..12), ranks in prop::option::of(1u32..100)) {
            let names: Vec<String> = (0..).zip(&slots).map(|(host, slots)| slots.map_or(format!("h{host}"), |slots| format!("h{host}:{slots}"))).collect();
            let list = HostList::from_argument(&names.join(",")).unwrap();
            if let Ok(placement) = Placement::new(&list, ranks, None) {
                prop_assert!(ranks.is_none_or(|ranks| ranks == placement.ranks()));
                for rank in 0..placement.ranks() {
                    let host = &placement.hosts[placement.host_of(rank)];
                    prop_assert!((host.first..host.first + host.count).contains(&rank));
                }
                prop_assert!(placement.hosts.iter().all(|host| host.count > 0));
            }
        }
    }
}
