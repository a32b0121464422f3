//! Addresses and names of hosts, in words of a record.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use super::{AddressFamily, HOST_MAX, NAME};
use crate::check;
use crate::error::{AbiError, Field};

/// An address as it stands in a record: its words, with the names that errors call them by.
#[derive(Clone, Copy)]
pub(super) struct Words<'a> {
    pub family: u32,
    pub address: &'a [u8; 16],
    pub port: u32,
    pub scope_id: u32,
    pub names: &'static Names,
}

pub(super) struct Names {
    pub family: &'static str,
    pub address: &'static str,
    pub port: &'static str,
    pub scope_id: &'static str,
}

pub(super) const REQUEST: Names = Names { family: "family", address: "address", port: "port", scope_id: "scope_id" };
pub(super) const RESULT: Names =
    Names { family: "result_family", address: "result_address", port: "result_port", scope_id: "result_scope_id" };

impl Words<'_> {
    /// The family, or none.
    pub fn family(&self) -> Result<Option<AddressFamily>, AbiError> {
        check::optional(NAME, self.names.family, self.family, AddressFamily::from_word)
    }

    pub fn port(&self) -> Result<u16, AbiError> {
        check::at_most(NAME, self.names.port, self.port.into(), u16::MAX.into())?;
        Ok(self.port as u16)
    }

    /// No address; the port may be there.
    pub fn no_address(&self) -> Result<(), AbiError> {
        check::zero(NAME, self.names.address, self.address)?;
        check::zero(NAME, self.names.scope_id, &[self.scope_id])
    }

    /// Nothing at all.
    pub fn nothing(&self) -> Result<(), AbiError> {
        check::zero(NAME, self.names.family, &[self.family])?;
        check::zero(NAME, self.names.port, &[self.port])?;
        self.no_address()
    }

    /// An address, or none.
    pub fn socket_address(&self) -> Result<Option<SocketAddr>, AbiError> {
        match self.family()? {
            None => {
                self.nothing()?;
                Ok(None)
            }
            Some(AddressFamily::Name) => {
                let field = Field { of: NAME, name: self.names.family };
                Err(AbiError::Malformed { field, why: "an address is needed here, not a name" })
            }
            Some(AddressFamily::Ipv4) => {
                let [a, b, c, d, rest @ ..] = *self.address;
                check::zero(NAME, self.names.address, &rest)?;
                check::zero(NAME, self.names.scope_id, &[self.scope_id])?;
                Ok(Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::new(a, b, c, d)), self.port()?)))
            }
            Some(AddressFamily::Ipv6) => {
                let address = Ipv6Addr::from(*self.address);
                Ok(Some(SocketAddr::V6(SocketAddrV6::new(address, self.port()?, 0, self.scope_id))))
            }
        }
    }
}

/// Family, address, port and scope.
pub(super) type Written = (u32, [u8; 16], u32, u32);

/// The words of an address.
pub(super) fn write(address: Option<&SocketAddr>, names: &'static Names) -> Result<Written, AbiError> {
    let mut bytes = [0; 16];
    match address {
        None => Ok((0, bytes, 0, 0)),
        Some(SocketAddr::V4(v4)) => {
            bytes[..4].copy_from_slice(&v4.ip().octets());
            Ok((AddressFamily::Ipv4.word(), bytes, v4.port().into(), 0))
        }
        Some(SocketAddr::V6(v6)) => {
            // No record has room for it, and no gateway a use.
            if v6.flowinfo() != 0 {
                let field = Field { of: NAME, name: names.address };
                return Err(AbiError::Malformed { field, why: "flow information of IPv6 cannot be said" });
            }
            Ok((AddressFamily::Ipv6.word(), v6.ip().octets(), v6.port().into(), v6.scope_id()))
        }
    }
}

/// The name of a host: labels of letters, digits, `-` and `_`, with dots between them and, maybe, behind them.
pub(super) fn host(bytes: &[u8]) -> Result<&str, AbiError> {
    const HOST: Field = Field { of: NAME, name: "host" };
    check::at_most(NAME, "host_len", bytes.len() as u64, HOST_MAX as u64)?;
    let name = str::from_utf8(bytes).map_err(|error| AbiError::NotUtf8 { field: HOST, at: error.valid_up_to() })?;
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let good = |label: &str| {
        (1..=63).contains(&label.len()) && label.bytes().all(letter) && !label.starts_with('-') && !label.ends_with('-')
    };
    if name.strip_suffix('.').unwrap_or(name).split('.').all(good) {
        Ok(name)
    } else {
        Err(AbiError::Malformed {
            field: HOST,
            why: "a host's name is labels of letters, digits, - and _ between dots",
        })
    }
}
