//! From the environment to a group.

use std::net::IpAddr;
use std::time::Duration;

use fulmen_collectives::{CollectiveError, Group};
use fulmen_fabric::{
    Cables, DEFAULT_TIMEOUT, Fabric, FabricOptions, JoinError, Launch, LaunchError, OptionsError, Session, StartError,
};
use fulmen_reach::ReachError;
use fulmen_soft::{OpenError, UnknownProfile};

use crate::choose::{TCP, Wish, choose};
use crate::machine::MachineError;
use crate::network::{self, Network};

/// Why a program could not become a rank of a group.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InitError {
    /// The environment says nothing sensible about this process's rank.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// A variable of the environment cannot be understood.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// The ranks did not meet.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// This process cannot be found by others of the host.
    #[error("this process cannot share memory with others: {0}")]
    Node(#[from] ReachError),
    /// There is no such device profile.
    #[error("FULMEN_PROFILE: {0}")]
    Profile(#[from] UnknownProfile),
    /// The device of the profile could not be opened.
    #[error("the software device could not be opened: {0}")]
    Device(#[from] OpenError),
    /// The machine's device could not be opened.
    #[error("FULMEN_DEVICE={name}: {cause}; `fulmen doctor` looks for what is wrong")]
    Machine {
        /// What was asked for.
        name: String,
        /// Why not.
        cause: MachineError,
    },
    /// A device of the machine to which the launcher says that a cable leads could not be opened.
    #[error(
        "the launcher's file says that a cable leads from {name} here to rank {rank}: {cause}; `fulmen doctor` looks for what is wrong"
    )]
    Cable {
        /// The device.
        name: String,
        /// The first rank to which it leads.
        rank: u32,
        /// Why not.
        cause: MachineError,
    },
    /// A variable is no address.
    #[error(
        "FULMEN_ADDRESS is \"{0}\": give the IP address of this host by which the others reach it, such as 10.0.0.1, or several with commas between, and `any` for all others that it has"
    )]
    Address(String),
    /// Other hosts do not reach this one by its address.
    #[error(
        "rank {rank} is on another host, from which {address} does not lead to this one: set FULMEN_ADDRESS here to the IP address by which the others reach this host"
    )]
    Near {
        /// The address.
        address: IpAddr,
        /// The first rank that is on another host.
        rank: u32,
    },
    /// A variable has a value that it cannot have.
    #[error("{name} is \"{value}\": {expected}")]
    Variable {
        /// The variable.
        name: &'static str,
        /// What it says.
        value: String,
        /// What it may say.
        expected: &'static str,
    },
    /// RDMA was required, and not all ranks have it.
    #[error(
        "{cause}; TCP is refused, since RDMA is required (FULMEN_REQUIRE=rdma): `fulmen doctor` looks for what is missing"
    )]
    Required {
        /// What stands in the way.
        cause: String,
    },
    /// RDMA was required, and something else asked for.
    #[error("FULMEN_REQUIRE=rdma and {what} are both set: unset the one that is not meant")]
    Contrary {
        /// What else was asked for.
        what: &'static str,
    },
    /// Two kinds of devices were asked for.
    #[error("FULMEN_DEVICE={device} and FULMEN_PROFILE={profile} are both set: unset the one that is not meant")]
    TwoDevices {
        /// The machine's device.
        device: String,
        /// The software device's profile.
        profile: String,
    },
    /// The ranks could not connect.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The ranks are connected but could not form a group.
    #[error(transparent)]
    Group(#[from] CollectiveError),
}

/// How a group is set up. [`Options::from_env`] reads the environment; ranks must choose alike.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// How ranks are connected, and the deadline of operations.
    pub fabric: FabricOptions,
    /// The machine's device over which ranks talk, by name, or `any` for those that work, or [`TCP`] for the software device, by TCP
    /// between hosts; it needs `fabric.windows` off. None: the software device of `fabric.profile`, or shared memory on one host, and
    /// else the machines' devices, or TCP where they do not work.
    pub device: Option<String>,
    /// How ranks reach other hosts where they talk by TCP.
    pub network: Network,
    /// Whether ranks on several hosts have to use RDMA, and never TCP.
    pub require_rdma: bool,
    /// Which devices lead to which rank, where the launcher says so ([`launch`](crate::launch)): these are used, unless
    /// `device` or a profile asks for others.
    pub cables: Option<Cables>,
}

impl Options {
    /// What `FULMEN_DEVICE`, `FULMEN_ADDRESS`, `FULMEN_TRUSTED_RAIL`, `FULMEN_REQUIRE` and the variables of
    /// [`FabricOptions::from_env`] say, and the defaults. A device turns windows off.
    ///
    /// # Errors
    /// [`InitError::Options`], [`InitError::Address`] and [`InitError::Variable`] for a value that means nothing,
    /// [`InitError::TwoDevices`] for two that exclude each other.
    pub fn from_env() -> Result<Options, InitError> {
        let lookup = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        Options::from_lookup(FabricOptions::from_env()?, lookup)
    }

    fn from_lookup(fabric: FabricOptions, lookup: impl Fn(&str) -> Option<String>) -> Result<Options, InitError> {
        let lookup = |name| lookup(name).map(|value: String| value.trim().to_owned()).filter(|value| !value.is_empty());
        let one_of = |name, values: [(&str, bool); 2], expected| match lookup(name) {
            None => Ok(false),
            Some(value) => values
                .into_iter()
                .find(|(known, _)| *known == value)
                .map(|(_, means)| means)
                .ok_or_else(|| InitError::Variable { name, value: value.escape_debug().collect(), expected }),
        };
        let (addresses, any) = lookup(network::ADDRESS).as_deref().map(network::parse).transpose()?.unwrap_or_default();
        let network = Network {
            addresses,
            any,
            trusted: one_of(
                "FULMEN_TRUSTED_RAIL",
                [("1", true), ("0", false)],
                "give 1 where nobody else is in the network between the hosts, or 0 to have TCP sealed",
            )?,
            apart: false,
        };
        let require_rdma =
            one_of("FULMEN_REQUIRE", [("rdma", true); 2], "give rdma to refuse TCP between hosts, or unset it")?;
        let options = Options { fabric, network, require_rdma, ..Options::default() };
        match (lookup("FULMEN_DEVICE"), &options.fabric.profile) {
            (Some(device), Some(profile)) if device != TCP => {
                Err(InitError::TwoDevices { device, profile: profile.clone() })
            }
            (Some(device), _) => Ok(options.over(device)),
            (None, _) => Ok(options),
        }
    }

    /// Over this device of the machine, or over `any` that works, instead of shared memory.
    #[must_use]
    pub fn over(mut self, device: impl Into<String>) -> Options {
        self.device = Some(device.into());
        self.fabric.windows = false;
        self
    }

    /// Over TCP between all ranks, also between those of one host, as if each were on a host of its own: to measure and to test
    /// what ranks on several hosts do.
    #[must_use]
    pub fn apart(mut self) -> Options {
        self.network.apart = true;
        self.over(TCP)
    }

    /// With another deadline for meeting and for operations.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Options {
        self.fabric.timeout = timeout;
        self
    }

    /// With another size of the memory for buffers, in bytes.
    #[must_use]
    pub fn pool(mut self, bytes: usize) -> Options {
        self.fabric.pool = bytes;
        self
    }

    /// Meets the other ranks that the environment speaks of, and forms the group. To be called once a process.
    ///
    /// Returns within the deadline for each of: meeting, connecting, forming the group.
    ///
    /// # Errors
    /// [`InitError`], which names the variable or the rank that is at fault.
    pub fn init(self) -> Result<Group, InitError> {
        let launch = Launch::from_env()?;
        let session = launch.join(self.fabric.timeout)?;
        let cables = self.cables.clone().or_else(|| launch.cables().cloned());
        Options { cables, ..self }.init_with(session)
    }

    /// Forms the group of the ranks of a session. When one rank fails, all do.
    ///
    /// Ranks talk over the devices that the options name. If they name none and all ranks are on one host, they map one another's
    /// memory. On several hosts they talk over the first device of each machine that works; where one has none, all talk over the
    /// software device, by TCP between hosts. Where there is RDMA, or should be, that is logged as a warning, is told by
    /// [`Fabric::fallback`], and is refused if [`Options::require_rdma`] says so. A profile and several hosts: TCP by its rules.
    ///
    /// # Errors
    /// As [`Options::init`].
    pub fn init_with(self, session: Session) -> Result<Group, InitError> {
        let Options { fabric, device, cables, network, require_rdma } = self;
        let wish = Wish { device, cables, network, require_rdma };
        let fabric = Fabric::start_where(session, fabric, |muster, fabric| choose(muster, fabric, &wish))?;
        tracing::debug!(rank = fabric.rank(), size = fabric.size(), link = %fabric.link_kind(), "joined");
        Ok(Group::new(fabric)?)
    }
}

/// The group of all ranks that this program was started as; of one, if it was started by itself. To be called once a
/// process.
///
/// In a world that runs already, a process that was started again takes the place of the one that died: this waits, until the
/// deadline, for the others to [rejoin](Group::rejoin), and gives the group of the new generation.
///
/// # Errors
/// [`InitError`], which names the variable or the rank that is at fault.
pub fn init() -> Result<Group, InitError> {
    Options::from_env().or_else(tell)?.init()
}

/// Options that cannot be read are this rank's problem, of which the others hear if they can be met at all.
fn tell(problem: InitError) -> Result<Options, InitError> {
    match Launch::from_env().ok().and_then(|launch| launch.join(DEFAULT_TIMEOUT).ok()) {
        Some(session) => {
            Fabric::start_or_tell(session, FabricOptions::default(), Err(problem)).map(|_| Options::default())
        }
        None => Err(problem),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &str)]) -> Result<Options, InitError> {
        let of = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        let profile = of("FULMEN_PROFILE");
        Options::from_lookup(FabricOptions { windows: profile.is_none(), profile, ..FabricOptions::default() }, of)
    }

    #[test]
    fn tcp_is_a_device_that_takes_a_profile() {
        let options = with(&[("FULMEN_DEVICE", "tcp"), ("FULMEN_PROFILE", "thunderbolt")]).unwrap();
        assert_eq!((options.device.as_deref(), options.fabric.windows), (Some(TCP), false));
        let error = with(&[("FULMEN_DEVICE", "mlx5_0"), ("FULMEN_PROFILE", "thunderbolt")]).unwrap_err();
        assert!(matches!(error, InitError::TwoDevices { .. }), "{error}");
        assert!(Options::default().apart().network.apart);
    }

    #[test]
    fn what_the_network_is_like_is_read() {
        let options = with(&[("FULMEN_ADDRESS", "10.0.0.1"), ("FULMEN_TRUSTED_RAIL", "1"), ("FULMEN_REQUIRE", "rdma")]);
        let options = options.unwrap();
        let network = Network { addresses: vec![IpAddr::from([10, 0, 0, 1])], any: false, trusted: true, apart: false };
        assert_eq!((options.network, options.require_rdma), (network, true));
        let options = with(&[("FULMEN_TRUSTED_RAIL", "0"), ("FULMEN_REQUIRE", "")]).unwrap();
        assert_eq!((options.network, options.require_rdma), (Network::default(), false));
    }

    #[test]
    fn nonsense_is_refused_with_the_variable_and_the_way_out() {
        for (name, value) in [("FULMEN_TRUSTED_RAIL", "yes"), ("FULMEN_REQUIRE", "speed"), ("FULMEN_ADDRESS", "here")] {
            let text = with(&[(name, value)]).unwrap_err().to_string();
            assert!(text.contains(name) && text.contains(value) && text.contains("give"), "{text}");
        }
    }
}
