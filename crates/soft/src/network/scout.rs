//! Finding out who is at an address, before anything is connected.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Network;

/// Asks devices at other addresses where they are, from the address of its own device: whether a way leads there, and to whom.
///
/// An address alone says nothing: bridges of containers and virtual machines have the same one on every host, and whoever
/// calls it there reaches himself, or nobody.
pub struct Scout {
    network: Arc<Network>,
}

/// Why nobody was found.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ScoutError(String);

impl Scout {
    pub(crate) fn new(network: Arc<Network>) -> Scout {
        Scout { network }
    }

    /// By which address others find the device.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.network.address()
    }

    /// On which host the device that goes by `peer` is. It answers to no other address than its own, and where connections are
    /// sealed, it has proved to be of the same run. Returns by `timeout`.
    ///
    /// # Errors
    /// [`ScoutError`], which says why there is no such device, or no way to it.
    pub fn host_of(&self, peer: SocketAddr, timeout: Duration) -> Result<[u8; 16], ScoutError> {
        let until = Instant::now() + timeout;
        let answer = self.network.ask_whereabouts(peer, until).map_err(|cause| ScoutError(cause.to_string()))?;
        Ok(answer.host)
    }
}
