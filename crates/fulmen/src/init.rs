//! From the environment to a group.

use std::time::Duration;

use fulmen_collectives::{CollectiveError, Group};
use fulmen_fabric::{
    Cables, DEFAULT_TIMEOUT, Fabric, FabricOptions, JoinError, Launch, LaunchError, Muster, OptionsError, Providers,
    Session, StartError,
};
use fulmen_reach::{Node, ReachError};
use fulmen_soft::{OpenError, Profile, SoftDevice, UnknownProfile};

use crate::machine;

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
        cause: fulmen_system::OpenError,
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
        cause: fulmen_system::OpenError,
    },
    /// Ranks are on several hosts, and this one has no device that connects it with others.
    #[error(
        "rank {rank} is on another host, whose memory cannot be mapped, and no device of this machine can be used instead: {cause}; `fulmen doctor` looks for what is wrong"
    )]
    Apart {
        /// The first rank that is on another host.
        rank: u32,
        /// Why there is no device.
        cause: fulmen_system::OpenError,
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
    /// The machine's device over which ranks talk, by name, or `any` for those that work; it needs `fabric.windows` off.
    /// None: the software device of `fabric.profile`, or shared memory.
    pub device: Option<String>,
    /// Which devices lead to which rank, where the launcher says so ([`launch`](crate::launch)): these are used, unless
    /// `device` or a profile asks for others.
    pub cables: Option<Cables>,
}

impl Options {
    /// What `FULMEN_DEVICE` and the variables of [`FabricOptions::from_env`] say, and the defaults. A device turns windows off.
    ///
    /// # Errors
    /// [`InitError::Options`] for a value that means nothing, [`InitError::TwoDevices`] for two that exclude each other.
    pub fn from_env() -> Result<Options, InitError> {
        let device = std::env::var_os("FULMEN_DEVICE").map(|name| name.to_string_lossy().trim().to_owned());
        Options::new(FabricOptions::from_env()?, device.filter(|name| !name.is_empty()))
    }

    fn new(fabric: FabricOptions, device: Option<String>) -> Result<Options, InitError> {
        match (device, &fabric.profile) {
            (Some(device), Some(profile)) => Err(InitError::TwoDevices { device, profile: profile.clone() }),
            (Some(device), None) => Ok(Options { fabric, ..Options::default() }.over(device)),
            (None, _) => Ok(Options { fabric, ..Options::default() }),
        }
    }

    /// Over this device of the machine, or over `any` that works, instead of shared memory.
    #[must_use]
    pub fn over(mut self, device: impl Into<String>) -> Options {
        self.device = Some(device.into());
        self.fabric.windows = false;
        self
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
    /// Ranks talk over the devices that the options name. If they name none and all ranks are on one host, they map one
    /// another's memory; else they talk over the first device of each machine that works.
    ///
    /// # Errors
    /// As [`Options::init`].
    pub fn init_with(self, session: Session) -> Result<Group, InitError> {
        let Options { fabric, device, cables } = self;
        let choose =
            |muster: &Muster<'_>, fabric: &mut FabricOptions| choose(muster, fabric, device.as_deref(), cables);
        let fabric = Fabric::start_where(session, fabric, choose)?;
        tracing::debug!(rank = fabric.rank(), size = fabric.size(), link = %fabric.link_kind(), "joined");
        Ok(Group::new(fabric)?)
    }
}

/// This process's means to reach others.
fn choose(
    muster: &Muster<'_>,
    fabric: &mut FabricOptions,
    device: Option<&str>,
    cables: Option<Cables>,
) -> Result<Providers, InitError> {
    if let Some(name) = device {
        let devices = machine::open(name).map_err(|cause| InitError::Machine { name: name.to_owned(), cause })?;
        return Ok(Providers { devices, ..Providers::default() });
    }
    if let Some(profile) = &fabric.profile {
        let profile: Profile = profile.parse()?;
        let node = Node::open()?;
        let device = SoftDevice::open(&node, profile)?;
        return Ok(Providers { node: Some(node), devices: vec![device], ..Providers::default() });
    }
    if let Some(cables) = cables {
        fabric.windows = false;
        let devices = machine::open_cabled(&cables).map_err(|refused| {
            let machine::NotOpened { name, rank, cause } = refused;
            InitError::Cable { name: name.to_owned(), rank, cause }
        })?;
        return Ok(Providers { devices, cables: Some(cables), ..Providers::default() });
    }
    let hosts = muster.hosts();
    if fabric.windows && !hosts.are_one() {
        fabric.windows = false;
        let rank = hosts.elsewhere().unwrap_or(0);
        let devices = machine::open(machine::ANY).map_err(|cause| InitError::Apart { rank, cause })?;
        tracing::info!(rank, "ranks are on several hosts: they talk over devices");
        return Ok(Providers { devices, ..Providers::default() });
    }
    Ok(Providers { node: Some(Node::open()?), ..Providers::default() })
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
