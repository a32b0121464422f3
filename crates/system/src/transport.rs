use std::fmt;

use crate::ffi::number;

/// What a device's queue pairs run over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// InfiniBand's protocol, over InfiniBand or Ethernet (RoCE): the link layer of a port says which.
    Infiniband,
    /// iWARP: RDMA over TCP.
    Iwarp,
    /// Apple's RDMA over Thunderbolt.
    Thunderbolt,
    /// Another, by its number in the library.
    Other(i32),
}

impl Transport {
    pub(crate) fn of(node_type: i32, transport_type: i32) -> Transport {
        match (node_type, transport_type) {
            (number::NODE_RNIC, _) | (_, number::TRANSPORT_IWARP) => Transport::Iwarp,
            (_, number::TRANSPORT_IB) => Transport::Infiniband,
            (_, number::TRANSPORT_THUNDERBOLT) => Transport::Thunderbolt,
            (_, other) => Transport::Other(other),
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Transport::Infiniband => f.write_str("InfiniBand"),
            Transport::Iwarp => f.write_str("iWARP"),
            Transport::Thunderbolt => f.write_str("Thunderbolt"),
            Transport::Other(number) => write!(f, "transport {number}"),
        }
    }
}
