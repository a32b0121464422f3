use std::fmt;
use std::str::FromStr;

use fulmen_memory::ChunkRule;
use fulmen_verbs::{Capabilities, DeviceLimits, GidKind, LinkLayer};

/// Whose rules a soft device keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Profile {
    /// Everything that an InfiniBand adapter does.
    Infiniband,
    /// RDMA over Thunderbolt as Apple built it: SEND and RECV over UC, few of everything, no word about delivery.
    Thunderbolt,
}

/// Frames of Thunderbolt, in bytes: queue depth counts them, and a SEND and its RECV have equally many.
const FRAME: u32 = 4096;

impl Profile {
    /// All profiles.
    pub const ALL: [Profile; 2] = [Profile::Infiniband, Profile::Thunderbolt];

    /// Its name: `infiniband` or `thunderbolt`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Profile::Infiniband => "infiniband",
            Profile::Thunderbolt => "thunderbolt",
        }
    }

    /// The limits of a device of this profile.
    #[must_use]
    pub fn limits(self) -> DeviceLimits {
        match self {
            Profile::Infiniband => DeviceLimits {
                queue_pairs: 1024,
                completion_queues: 4096,
                completion_entries: 1 << 20,
                memory_regions: 1 << 15,
                protection_domains: 1024,
                queue_depth: 16384,
                pieces: crate::layout::MAX_PIECES as u32,
                inline_bytes: 256,
                message_bytes: 1 << 30,
                frame: None,
                registration: ChunkRule::NONE,
                reads_in_flight: 16,
            },
            Profile::Thunderbolt => DeviceLimits {
                queue_pairs: 10,
                completion_queues: 20,
                completion_entries: 4095,
                memory_regions: 100,
                protection_domains: 20,
                queue_depth: 4095,
                pieces: 1,
                inline_bytes: 0,
                message_bytes: 4095 * FRAME as u64,
                frame: Some(FRAME),
                registration: ChunkRule { boundary: Some(1 << 32), max_len: None },
                reads_in_flight: 0,
            },
        }
    }

    /// Those of the host that has the fewest of everything, as one with Thunderbolt was reported; of others the same.
    #[must_use]
    pub fn strict_limits(self) -> DeviceLimits {
        match self {
            Profile::Infiniband => self.limits(),
            Profile::Thunderbolt => {
                DeviceLimits { queue_pairs: 3, completion_queues: 6, protection_domains: 6, ..self.limits() }
            }
        }
    }

    /// What a device of this profile can do.
    #[must_use]
    pub fn capabilities(self) -> Capabilities {
        let rich = self == Profile::Infiniband;
        Capabilities {
            rc: rich,
            uc: true,
            ud: rich,
            srq: rich,
            write: rich,
            read: rich,
            atomics: rich,
            // Processors do them.
            atomics_with_cpu: rich,
            immediate: rich,
            holds_sends: !rich,
            acknowledges: rich,
            reports_dead_peers: rich,
            dma_buf: false,
        }
    }

    pub(crate) fn link_layer(self) -> LinkLayer {
        match self {
            Profile::Infiniband => LinkLayer::Infiniband,
            Profile::Thunderbolt => LinkLayer::Thunderbolt,
        }
    }

    pub(crate) fn gid_kind(self) -> GidKind {
        match self {
            Profile::Infiniband => GidKind::Infiniband,
            Profile::Thunderbolt => GidKind::Unknown,
        }
    }

    /// How shared memory names it.
    pub(crate) fn code(self) -> u64 {
        match self {
            Profile::Infiniband => 1,
            Profile::Thunderbolt => 2,
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no profile's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no device profile {name:?}: use infiniband or thunderbolt")]
pub struct UnknownProfile {
    /// The name.
    pub name: String,
}

impl FromStr for Profile {
    type Err = UnknownProfile;

    fn from_str(name: &str) -> Result<Profile, UnknownProfile> {
        let found = Profile::ALL.into_iter().find(|profile| profile.name() == name);
        found.ok_or_else(|| UnknownProfile { name: name.to_owned() })
    }
}
