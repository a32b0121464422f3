//! One operation of a socket, which a gateway is to do.

mod name;
mod record;
mod request;
mod status;

pub use record::{
    AddressFamily, HOST_MAX, HOST_ROOM, NETWORK_MAGIC, NetworkOperation, NetworkRequest, NetworkState, Protocol,
};
pub use request::{Endpoint, Network, NetworkAction};
pub use status::{NetworkOutcome, NetworkStatus};

pub(crate) use record::CONSTANTS;

/// As errors call the record.
const NAME: &str = "NetworkRequest";
