//! What links run over.

use std::sync::Arc;

use fulmen_reach::Node;
use fulmen_verbs::Device;

/// What the links of a fabric can run over.
#[derive(Clone, Default)]
pub struct Providers {
    /// This process, as others of the host find it: for windows.
    pub node: Option<Node>,
    /// Devices, opened.
    pub devices: Vec<Arc<dyn Device>>,
    /// Which of the devices lead to which rank, where cables decide that. Else all links run over the first device that can be used.
    pub cables: Option<Cables>,
    /// Set if the devices reach other hosts by TCP. Ranks must agree on it.
    pub tcp: Option<Tcp>,
}

/// Devices in software, which reach other hosts by TCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tcp {
    /// Whether what goes between hosts is sealed (TLS).
    pub sealed: bool,
    /// Why something faster that there was, or should have been, is not used; `None` if nothing faster was to be expected.
    pub instead: Option<String>,
}

/// Which of this rank's devices lead to which other rank, where each cable joins two hosts (Thunderbolt): names of devices by
/// rank of the launch, in order of preference; empty for this rank itself and where no cable joins the two. Such ranks talk over
/// others, if a path leads there ([`Fabric::path`](crate::Fabric::path)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cables(pub Vec<Vec<String>>);
