//! What a requester asks for, and how it stands in memory.

use core::net::SocketAddr;
use core::num::NonZeroU64;

use super::name::{self, REQUEST, Words};
use super::{AddressFamily, HOST_MAX, NAME, NETWORK_MAGIC, NetworkOperation, NetworkRequest, NetworkState, Protocol};
use crate::buffer::{Buffer, RdmaBuffer, Rights};
use crate::check;
use crate::error::{AbiError, Field};
use crate::party::{Lease, Origin, Target, VERSION};

/// An operation of a socket that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network<'a> {
    /// The requester's number for it.
    pub id: u64,
    /// The requester.
    pub origin: Origin,
    /// Who is to do it: with a handle, the node that gave it.
    pub target: Target,
    /// How long the request, and the socket that it opens, is good.
    pub lease: Option<Lease>,
    /// When it fails if it is not over: nanoseconds since 1970.
    pub deadline_ns: Option<NonZeroU64>,
    /// What is to be done.
    pub action: NetworkAction<'a>,
}

/// What is to be done with a socket: [`NetworkOperation`] says what each gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkAction<'a> {
    /// Opens one that speaks with one other end.
    Connect {
        /// What it speaks.
        protocol: Protocol,
        /// The other end; its port is not 0.
        to: Endpoint<'a>,
    },
    /// Opens one at an address of the gateway's.
    Listen {
        /// What it speaks.
        protocol: Protocol,
        /// Where; port 0 is any.
        at: SocketAddr,
        /// Connections that wait to be accepted, at most; 0: as the gateway likes. 0 for UDP.
        backlog: u32,
    },
    /// Waits for a connection.
    Accept {
        /// A listening socket.
        handle: NonZeroU64,
    },
    /// Sends bytes.
    Send {
        /// The socket.
        handle: NonZeroU64,
        /// The bytes.
        data: Buffer,
        /// Where to, if the socket is not connected; its port is not 0.
        to: Option<SocketAddr>,
    },
    /// Waits for bytes.
    Receive {
        /// The socket.
        handle: NonZeroU64,
        /// Where they go.
        into: Buffer,
    },
    /// Sends no more.
    Shutdown {
        /// A connection.
        handle: NonZeroU64,
    },
    /// Closes it.
    Close {
        /// The socket.
        handle: NonZeroU64,
    },
}

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint<'a> {
    /// By its address.
    Address(SocketAddr),
    /// By a name, which the gateway resolves.
    Host {
        /// The name: labels of letters, digits, `-` and `_` between dots, [`HOST_MAX`] bytes at most.
        name: &'a str,
        /// The port.
        port: u16,
    },
}

impl NetworkRequest {
    /// The record, free: it is written to shared memory as it is, and then its state.
    ///
    /// # Errors
    /// Whatever [`NetworkRequest::decode`] would refuse.
    pub fn encode(network: &Network<'_>) -> Result<NetworkRequest, AbiError> {
        let (lease_id, lease_deadline_ns) = Lease::write(network.lease);
        let mut record = NetworkRequest {
            magic: NETWORK_MAGIC,
            version: VERSION,
            id: network.id,
            source_node: network.origin.node,
            target_node: network.target.write(NAME)?,
            generation: network.origin.generation,
            lease_id,
            lease_deadline_ns,
            deadline_ns: network.deadline_ns.map_or(0, NonZeroU64::get),
            operation: network.action.operation().word(),
            handle: network.action.handle().map_or(0, NonZeroU64::get),
            ..NetworkRequest::ZERO
        };
        match &network.action {
            NetworkAction::Connect { protocol, to } => {
                record.protocol = protocol.word();
                match to {
                    Endpoint::Address(address) => record.set_address(Some(address))?,
                    Endpoint::Host { name, port } => record.set_host(name, *port)?,
                }
            }
            NetworkAction::Listen { protocol, at, backlog } => {
                record.protocol = protocol.word();
                record.backlog = *backlog;
                record.set_address(Some(at))?;
            }
            NetworkAction::Send { data, to, .. } => {
                record.data_buffer = RdmaBuffer::of(data);
                record.set_address(to.as_ref())?;
            }
            NetworkAction::Receive { into, .. } => record.data_buffer = RdmaBuffer::of(into),
            NetworkAction::Accept { .. } | NetworkAction::Shutdown { .. } | NetworkAction::Close { .. } => {}
        }
        record.decode()?;
        Ok(record)
    }

    /// What is asked for. What the gateway writes is not looked at: [`NetworkRequest::status`] does that.
    ///
    /// # Errors
    /// What is wrong with the record; a gateway answers it with [`ErrorCode::InvalidRequest`](crate::ErrorCode).
    pub fn decode(&self) -> Result<Network<'_>, AbiError> {
        check::head(NAME, NETWORK_MAGIC, self.magic, self.version)?;
        check::zero(NAME, "reserved", &self.reserved)?;
        check::code(NAME, "state", self.state, NetworkState::from_word)?;
        Ok(Network {
            id: self.id,
            origin: Origin::read(NAME, self.source_node, self.generation)?,
            target: Target::read(NAME, self.target_node)?,
            lease: Lease::read(NAME, self.lease_id, self.lease_deadline_ns)?,
            deadline_ns: NonZeroU64::new(self.deadline_ns),
            action: self.decode_action()?,
        })
    }

    fn decode_action(&self) -> Result<NetworkAction<'_>, AbiError> {
        use NetworkOperation::{Accept, Close, Connect, Listen, Receive, Send, Shutdown};

        let operation = check::code(NAME, "operation", self.operation, NetworkOperation::from_word)?;
        // What does not belong to the operation is zero.
        if operation != Listen {
            check::zero(NAME, "backlog", &[self.backlog])?;
        }
        if !matches!(operation, Connect | Listen) {
            check::zero(NAME, "protocol", &[self.protocol])?;
        }
        if operation != Connect {
            check::zero(NAME, "host_len", &[self.host_len])?;
        }
        if !matches!(operation, Connect | Listen | Send) {
            self.words().nothing()?;
        }
        if !matches!(operation, Send | Receive) {
            check::zero(NAME, "data_buffer", self.data_buffer.as_bytes())?;
        }
        Ok(match operation {
            Connect => {
                check::zero(NAME, "handle", &[self.handle])?;
                NetworkAction::Connect { protocol: self.decode_protocol()?, to: self.decode_endpoint()? }
            }
            Listen => {
                check::zero(NAME, "handle", &[self.handle])?;
                let protocol = self.decode_protocol()?;
                if protocol == Protocol::Udp {
                    check::zero(NAME, "backlog", &[self.backlog])?;
                }
                let at = self.words().socket_address()?.ok_or(missing("family"))?;
                NetworkAction::Listen { protocol, at, backlog: self.backlog }
            }
            Accept => NetworkAction::Accept { handle: self.decode_handle()? },
            Send => {
                let to = self.words().socket_address()?;
                if to.is_some_and(|address| address.port() == 0) {
                    return Err(missing("port"));
                }
                NetworkAction::Send { handle: self.decode_handle()?, data: self.decode_data(Rights::READ)?, to }
            }
            Receive => NetworkAction::Receive { handle: self.decode_handle()?, into: self.decode_data(Rights::WRITE)? },
            Shutdown => NetworkAction::Shutdown { handle: self.decode_handle()? },
            Close => NetworkAction::Close { handle: self.decode_handle()? },
        })
    }

    fn decode_endpoint(&self) -> Result<Endpoint<'_>, AbiError> {
        let words = self.words();
        if self.port == 0 {
            return Err(missing("port"));
        }
        if words.family()? == Some(AddressFamily::Name) {
            words.no_address()?;
            let port = words.port()?;
            check::at_most(NAME, "host_len", self.host_len.into(), HOST_MAX as u64)?;
            return Ok(Endpoint::Host { name: name::host(&self.host[..self.host_len as usize])?, port });
        }
        check::zero(NAME, "host_len", &[self.host_len])?;
        words.socket_address()?.map(Endpoint::Address).ok_or(missing("family"))
    }

    fn decode_protocol(&self) -> Result<Protocol, AbiError> {
        check::code(NAME, "protocol", self.protocol, Protocol::from_word)
    }

    fn decode_handle(&self) -> Result<NonZeroU64, AbiError> {
        NonZeroU64::new(self.handle).ok_or(missing("handle"))
    }

    fn decode_data(&self, needed: Rights) -> Result<Buffer, AbiError> {
        let buffer = self.data_buffer.part_of("NetworkRequest.data_buffer", self.generation, needed)?;
        buffer.ok_or(missing("data_buffer"))
    }

    fn words(&self) -> Words<'_> {
        let NetworkRequest { family, address, port, scope_id, .. } = self;
        Words { family: *family, address, port: *port, scope_id: *scope_id, names: &REQUEST }
    }

    fn set_address(&mut self, address: Option<&SocketAddr>) -> Result<(), AbiError> {
        (self.family, self.address, self.port, self.scope_id) = name::write(address, &REQUEST)?;
        Ok(())
    }

    fn set_host(&mut self, host: &str, port: u16) -> Result<(), AbiError> {
        check::at_most(NAME, "host_len", host.len() as u64, HOST_MAX as u64)?;
        self.family = AddressFamily::Name.word();
        self.port = port.into();
        self.host[..host.len()].copy_from_slice(host.as_bytes());
        self.host_len = host.len() as u32;
        Ok(())
    }
}

impl NetworkAction<'_> {
    /// Which operation it is.
    #[must_use]
    pub fn operation(&self) -> NetworkOperation {
        match self {
            NetworkAction::Connect { .. } => NetworkOperation::Connect,
            NetworkAction::Listen { .. } => NetworkOperation::Listen,
            NetworkAction::Accept { .. } => NetworkOperation::Accept,
            NetworkAction::Send { .. } => NetworkOperation::Send,
            NetworkAction::Receive { .. } => NetworkOperation::Receive,
            NetworkAction::Shutdown { .. } => NetworkOperation::Shutdown,
            NetworkAction::Close { .. } => NetworkOperation::Close,
        }
    }

    /// The socket that it is about; none where it opens one.
    #[must_use]
    pub fn handle(&self) -> Option<NonZeroU64> {
        match self {
            NetworkAction::Connect { .. } | NetworkAction::Listen { .. } => None,
            NetworkAction::Accept { handle }
            | NetworkAction::Send { handle, .. }
            | NetworkAction::Receive { handle, .. }
            | NetworkAction::Shutdown { handle }
            | NetworkAction::Close { handle } => Some(*handle),
        }
    }
}

const fn missing(name: &'static str) -> AbiError {
    AbiError::Missing { field: Field { of: NAME, name } }
}
