//! From the environment to a group.

use std::time::Duration;

use fulmen_collectives::{CollectiveError, Group};
use fulmen_fabric::{
    DEFAULT_TIMEOUT, Fabric, FabricOptions, JoinError, Launch, LaunchError, OptionsError, Providers, Session,
    StartError,
};
use fulmen_reach::{Node, ReachError};
use fulmen_soft::{OpenError, Profile, SoftDevice, UnknownProfile};

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
}

impl Options {
    /// What `FULMEN_TIMEOUT`, `FULMEN_POOL` and `FULMEN_PROFILE` say, and the defaults.
    ///
    /// # Errors
    /// [`InitError::Options`] for a value that means nothing.
    pub fn from_env() -> Result<Options, InitError> {
        Ok(Options { fabric: FabricOptions::from_env()? })
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
        let session = Launch::from_env()?.join(self.fabric.timeout)?;
        self.init_with(session)
    }

    /// Forms the group of the ranks of a session. When one rank fails, all do.
    ///
    /// # Errors
    /// As [`Options::init`].
    pub fn init_with(self, session: Session) -> Result<Group, InitError> {
        let providers = self.providers();
        let fabric = Fabric::start_or_tell(session, self.fabric, providers)?;
        tracing::debug!(rank = fabric.rank(), size = fabric.size(), link = %fabric.link_kind(), "joined");
        Ok(Group::new(fabric)?)
    }

    /// This process's means to reach others.
    fn providers(&self) -> Result<Providers, InitError> {
        let profile: Option<Profile> = self.fabric.profile.as_deref().map(str::parse).transpose()?;
        let node = Node::open()?;
        let devices = profile.map(|profile| SoftDevice::open(&node, profile)).transpose()?;
        Ok(Providers { node: Some(node), devices: devices.into_iter().collect(), cables: None })
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
