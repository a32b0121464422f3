//! What this rank's links run over. All ranks come to the same choice: by options that are the same, by what all of them say about
//! their hosts, and by what those say that talk already.

use std::sync::Arc;
use std::time::Duration;

use fulmen_fabric::{Cables, FabricOptions, Means, Muster, Providers, StartError, usable};
use fulmen_reach::Node;
use fulmen_soft::{Profile, SoftDevice};
use fulmen_system::OpenError;
use fulmen_verbs::Device;

use crate::machine::MachineError;
use crate::network::probe::WORD;
use crate::network::{self, Network};
use crate::{InitError, machine};

/// Names the software device over TCP, where a device's name is asked for.
pub const TCP: &str = "tcp";

/// What the program and its environment ask for.
pub(crate) struct Wish {
    pub device: Option<String>,
    pub cables: Option<Cables>,
    pub network: Network,
    pub require_rdma: bool,
}

/// This process's means to reach others.
pub(crate) fn choose(muster: &Muster<'_>, fabric: &mut FabricOptions, wish: &Wish) -> Result<Providers, InitError> {
    let hosts = muster.hosts();
    let profile = fabric.profile.as_deref().map(str::parse::<Profile>).transpose()?;
    match (wish.device.as_deref(), profile) {
        (Some(TCP), _) if wish.require_rdma => return Err(InitError::Contrary { what: "FULMEN_DEVICE=tcp" }),
        (Some(TCP), profile) => {
            fabric.windows = false;
            return over_tcp((muster, fabric), wish, profile, None);
        }
        (Some(name), _) => return over_devices(name),
        (None, Some(_)) if wish.require_rdma => return Err(InitError::Contrary { what: "FULMEN_PROFILE" }),
        (None, Some(profile)) => {
            if !hosts.are_one() || hosts.means() == Some(Means::Tcp) {
                fabric.windows = false;
                return over_tcp((muster, fabric), wish, Some(profile), None);
            }
            let node = Node::open()?;
            let device = SoftDevice::open(&node, profile)?;
            return Ok(Providers { node: Some(node), devices: vec![device], ..Providers::default() });
        }
        (None, None) => {}
    }
    if let Some(cables) = &wish.cables {
        fabric.windows = false;
        let devices = machine::open_cabled(cables).map_err(|refused| {
            let machine::NotOpened { name, rank, cause } = refused;
            InitError::Cable { name: name.to_owned(), rank, cause }
        })?;
        return Ok(Providers { devices, cables: Some(cables.clone()), ..Providers::default() });
    }
    match hosts.means().filter(|_| fabric.windows) {
        None if fabric.windows && !hosts.are_one() => between_hosts(muster, fabric, wish),
        None | Some(Means::Windows) => Ok(Providers { node: Some(Node::open()?), ..Providers::default() }),
        Some(Means::Devices) => Ok(Providers { node: Some(Node::open()?), ..over_devices(machine::ANY)? }),
        Some(Means::Tcp) if wish.require_rdma => {
            Err(InitError::Required { cause: "the ranks that run already talk over TCP".to_owned() })
        }
        Some(Means::Tcp) => {
            tracing::info!("the ranks that run already talk over TCP, and so does this one");
            over_tcp((muster, fabric), wish, None, None)
        }
    }
}

fn over_devices(name: &str) -> Result<Providers, InitError> {
    let devices = machine::open(name).map_err(|cause| InitError::Machine { name: name.to_owned(), cause })?;
    Ok(Providers { devices, ..Providers::default() })
}

fn over_tcp(
    (muster, fabric): (&Muster<'_>, &FabricOptions),
    wish: &Wish,
    profile: Option<Profile>,
    instead: Option<String>,
) -> Result<Providers, InitError> {
    network::open((muster, fabric.host.is_some()), &wish.network, profile, instead)
}

/// Ranks on several hosts that start together, and were told nothing: between hosts over RDMA if every one of them has a device that works,
/// else over TCP; those of one host map one another's memory.
fn between_hosts(muster: &Muster<'_>, fabric: &FabricOptions, wish: &Wish) -> Result<Providers, InitError> {
    let own = rdma(fabric.port_wait.min(fabric.timeout / 2));
    let words = muster.all_gather(&own.as_ref().err().map_or(Vec::new(), Lack::to_bytes))?;
    // One that does not ask for RDMA looks for ways for TCP already.
    if let Some((rank, _)) = (0..).zip(&words).find(|(_, word)| word.first() == Some(&WORD)) {
        return Err(StartError::Unlike { rank }.into());
    }
    let lacks: Vec<_> = words.iter().map(|word| Lack::from_bytes(word)).collect();
    let lacking = (0_u32..).zip(&lacks).filter_map(|(rank, lack)| Some((rank, lack.as_ref()?)));
    // The first of those where it should work, if there is one.
    let Some((rank, lack)) = lacking.min_by_key(|(_, lack)| !lack.expected) else {
        tracing::info!("ranks are on several hosts: they talk over RDMA devices");
        // Also where each host has one rank: a later generation may have more on one.
        return Ok(Providers { node: Some(Node::open()?), devices: own.unwrap_or_default(), ..Providers::default() });
    };
    let why = format!("rank {rank} has no RDMA device that works: {}", lack.why);
    if wish.require_rdma {
        return Err(InitError::Required { cause: why });
    }
    // Where nobody has anything better, or should have, TCP stands in for nothing.
    let is_fallback = lacks.iter().any(|lack| lack.as_ref().is_none_or(|lack| lack.expected));
    if is_fallback {
        tracing::warn!(
            cause = why,
            "links between hosts run over TCP, slower than the RDMA that is there (FULMEN_REQUIRE=rdma refuses that)"
        );
    } else {
        tracing::info!(cause = why, "ranks are on several hosts: they talk over TCP");
    }
    over_tcp((muster, fabric), wish, None, is_fallback.then_some(why))
}

/// Why a rank cannot use RDMA.
#[derive(Debug, PartialEq, Eq)]
struct Lack {
    /// There is something of RDMA on its host, so that it should work.
    expected: bool,
    why: String,
}

impl Lack {
    fn to_bytes(&self) -> Vec<u8> {
        [&[u8::from(self.expected)], self.why.as_bytes()].concat()
    }

    /// None of a rank that lacks nothing.
    fn from_bytes(bytes: &[u8]) -> Option<Lack> {
        let (expected, why) = bytes.split_first()?;
        Some(Lack { expected: *expected != 0, why: String::from_utf8_lossy(why).into_owned() })
    }
}

/// The machine's devices, if one of them has a port that links can use.
fn rdma(patience: Duration) -> Result<Vec<Arc<dyn Device>>, Lack> {
    let devices = machine::open(machine::ANY).map_err(|error| Lack {
        // Without a library nobody can have meant to use RDMA.
        expected: !matches!(error, MachineError::Open(OpenError::NoLibrary { .. }))
            || std::env::var_os("FULMEN_VERBS_LIBRARY").is_some(),
        why: error.to_string(),
    })?;
    match usable(&devices, patience) {
        Ok(()) => Ok(devices),
        Err(error) => Err(Lack { expected: true, why: error.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_rank_lacks_comes_over() {
        for expected in [false, true] {
            for why in ["", "no device: plug one in"] {
                let lack = Lack { expected, why: why.to_owned() };
                assert_eq!(Lack::from_bytes(&lack.to_bytes()), Some(lack));
            }
        }
        assert_eq!(Lack::from_bytes(&[]), None);
    }
}
