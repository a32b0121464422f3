//! Finding all paths to other hosts: each rank says which addresses it has, listens at those that may be of use, and asks who is at
//! those of the others.
//!
//! Only a device that answers at an address, goes by it, and says that it is on the very host that was meant makes a path. (Bridges of
//! containers have the same address on every host: who asks there finds himself.) Both ends have to find each other.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use fulmen_fabric::{Cables, Muster, StartError};
use fulmen_soft::Scout;
use fulmen_verbs::Device;
use serde::de::DeserializeOwned;

use super::paths::{Home, Pair, agree, candidates, swap};
use crate::InitError;

/// How long a device may take to answer. Those that cannot be reached at all say nothing.
const PATIENCE: Duration = Duration::from_secs(5);
/// Questions under way at once.
const AT_ONCE: usize = 16;

/// What words of this begin with. No rank that looks for RDMA instead says it.
pub(crate) const WORD: u8 = 2;

/// Devices, and which of them lead where, if there is more than one way to anybody.
pub(super) type Ways = (Vec<Arc<dyn Device>>, Option<Cables>);

/// A device at an address.
pub(super) struct Open {
    pub device: Arc<dyn Device>,
    pub scout: Option<Scout>,
}

/// An address of a peer that answered: the peer, the address here, the address there.
type Answered = (u32, u32, u32);

/// Devices for all paths to others, and which of them lead where, if there is more than one way to anybody. Collective. `open` opens the
/// device at an address of this host; that at the first one is `first`.
pub(super) fn probe(
    muster: &Muster<'_>,
    home: &Home,
    first: Open,
    open: impl Fn(usize) -> Result<Open, InitError>,
) -> Result<Ways, InitError> {
    let own = muster.session().rank() as usize;
    let homes: Vec<Home> = gather(muster, home)?;
    if let Some(rank) = homes.iter().position(|home| home.addresses.is_empty()) {
        return Err(StartError::Garbled { rank: rank as u32 }.into());
    }
    let ranks = homes.len();
    let pairs = |from: usize| (0..ranks).filter(move |to| *to != from).map(move |to| (from, to));
    // All come to the same: nobody has anything to ask.
    if (0..ranks).flat_map(pairs).all(|(from, to)| candidates(&homes, from, to).len() == 1) {
        return Ok((vec![first.device], None));
    }

    let mut opened: Vec<Option<Open>> = home.addresses.iter().map(|_| None).collect();
    opened[0] = Some(first);
    let wanted = pairs(own).flat_map(|(from, to)| candidates(&homes, from, to)).map(|(here, _)| here);
    for here in wanted {
        if opened[here].is_none() {
            let at = open(here);
            if let Err(error) = &at {
                tracing::debug!(address = %home.addresses[here].ip, %error, "nobody can listen at an address");
            }
            opened[here] = at.ok();
        }
    }
    let address = |open: &Option<Open>| open.as_ref()?.scout.as_ref().map(Scout::address);
    let listening: Vec<Vec<Option<SocketAddr>>> = gather(muster, &opened.iter().map(address).collect::<Vec<_>>())?;
    let answered = ask(own, &homes, &opened, &listening);
    let answered: Vec<Vec<Answered>> = gather(muster, &answered)?;

    let found =
        |from: usize, to: usize, (here, there): Pair| answered[from].contains(&(to as u32, here as u32, there as u32));
    let mut cables = Vec::with_capacity(ranks);
    let mut used = vec![0];
    for to in 0..ranks {
        if to == own {
            cables.push(Vec::new());
            continue;
        }
        let met = |pair| {
            let is_first = pair == (0, 0) && homes[own].host == homes[to].host;
            is_first || found(own, to, pair) && found(to, own, swap(pair))
        };
        let paths = agree(&homes, own, to, met);
        let ip = |rank: usize, at: usize| -> IpAddr { homes[rank].addresses[at].ip };
        for (here, there) in &paths {
            tracing::debug!(rank = to, from = %ip(own, *here), to = %ip(to, *there), "a path to another host");
        }
        cables.push(paths.iter().map(|(here, _)| *here).collect::<Vec<usize>>());
        used.extend(paths.iter().map(|(here, _)| *here));
    }
    used.sort_unstable();
    used.dedup();
    let is_plain = cables.iter().all(|row| row.iter().all(|here| *here == 0));
    let device = |here: &usize| opened[*here].as_ref().map(|open| open.device.clone());
    let devices: Vec<Arc<dyn Device>> = used.iter().filter_map(device).collect();
    let name = |here: &usize| device(here).map(|device| device.info().name.clone());
    let names = cables.iter().map(|row| row.iter().filter_map(name).collect()).collect();
    Ok((devices, (!is_plain).then_some(Cables(names))))
}

/// Asks who is at the addresses of the others that may lead to them.
fn ask(own: usize, homes: &[Home], opened: &[Option<Open>], listening: &[Vec<Option<SocketAddr>>]) -> Vec<Answered> {
    let mut questions = Vec::new();
    for (to, home) in homes.iter().enumerate().filter(|(to, home)| *to != own && home.host != homes[own].host) {
        for (here, there) in candidates(homes, own, to) {
            let scout = opened[here].as_ref().and_then(|open| open.scout.as_ref());
            let at = listening[to].get(there).copied().flatten();
            if let Some((scout, at)) = scout.zip(at) {
                questions.push(((to, here, there), scout, at, home.host));
            }
        }
    }
    let threads = questions.len().min(AT_ONCE);
    let questions = Mutex::new(questions.into_iter());
    let answered = Mutex::new(Vec::new());
    let next = || questions.lock().unwrap_or_else(PoisonError::into_inner).next();
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(((to, here, there), scout, at, host)) = next() {
                    match scout.host_of(at, PATIENCE) {
                        Ok(said) if said == host => {
                            let answer = (to as u32, here as u32, there as u32);
                            answered.lock().unwrap_or_else(PoisonError::into_inner).push(answer);
                        }
                        Ok(_) => tracing::debug!(rank = to, %at, "another host has this address, too: it is no path"),
                        Err(error) => tracing::debug!(rank = to, %at, %error, "an address is no path"),
                    }
                }
            });
        }
    });
    answered.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Tells all ranks something, and hears the same of them.
fn gather<T: serde::Serialize + DeserializeOwned>(muster: &Muster<'_>, own: &T) -> Result<Vec<T>, InitError> {
    let own = postcard::to_extend(own, vec![WORD]).expect("a vector takes what is written to it");
    let words = muster.all_gather(&own)?;
    let read = |(rank, word): (u32, Vec<u8>)| match word.split_first() {
        Some((&WORD, word)) => postcard::from_bytes(word).map_err(|_| StartError::Garbled { rank }),
        _ => Err(StartError::Unlike { rank }),
    };
    Ok((0..).zip(words).map(read).collect::<Result<_, _>>()?)
}

#[cfg(test)]
mod tests {
    use fulmen_reach::Node;
    use fulmen_soft::{NetworkOptions, Profile, SoftDevice, SoftOptions};

    use super::super::interfaces::Address;
    use super::*;

    const HERE: [u8; 16] = [1; 16];
    const THERE: [u8; 16] = [2; 16];

    fn device(node: &Node, host: [u8; 16]) -> Open {
        let mut on = NetworkOptions::new("127.0.0.1:0".parse().unwrap());
        on.host = Some(host);
        let options = SoftOptions { network: Some(on), ..SoftOptions::new(Profile::Infiniband) };
        let (device, scout) = SoftDevice::open_with_scout(node, options).unwrap();
        Open { device, scout }
    }

    #[test]
    fn only_the_device_of_the_host_that_is_meant_is_a_path() {
        let address = |interface: &str| Address {
            ip: "127.0.0.1".parse().unwrap(),
            prefix: 8,
            interface: interface.to_owned(),
            named: true,
        };
        let node = Node::open().unwrap();
        let other = Node::open().unwrap();
        let (own, peer, stranger) = (device(&node, HERE), device(&other, THERE), device(&other, [3; 16]));
        let at = |open: &Open| open.scout.as_ref().map(Scout::address);
        // A bridge: its address leads to this host itself; another one's, and nobody's.
        let nobody = at(&device(&other, THERE));
        let listening = vec![vec![at(&own)], vec![at(&peer), at(&own), at(&stranger), nobody, None]];
        let interfaces = ["eth0", "docker0", "virbr0", "eth1", "eth2"];
        let homes = vec![
            Home { host: HERE, addresses: vec![address("eth0")] },
            Home { host: THERE, addresses: interfaces.map(address).to_vec() },
        ];
        assert_eq!(candidates(&homes, 0, 1).len(), interfaces.len());
        assert_eq!(ask(0, &homes, &[Some(own)], &listening), [(1, 0, 0)]);
        assert_eq!(ask(0, &homes, &[None], &listening), []);
    }
}
