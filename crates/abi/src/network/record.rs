//! The record of a socket's operation in memory.

use crate::buffer::RdmaBuffer;
use crate::party::Writer;

constants! {
    "For `fulmen_network_request`."
    /// Its magic number: FNET.
    pub const NETWORK_MAGIC: u32 = u32::from_le_bytes(*b"FNET"), "FULMEN_NETWORK_MAGIC";
    /// Bytes that there are for a host's name.
    pub const HOST_ROOM: usize = 256, "FULMEN_NETWORK_HOST_ROOM";
    /// Bytes that a host's name can have.
    pub const HOST_MAX: usize = 253, "FULMEN_NETWORK_HOST_MAX";
}

codes! {
    /// What is to be done: `operation` in `fulmen_network_request`. What else of the request counts is named for each;
    /// the rest of `handle` to `host_len` and `data_buffer` is 0.
    pub enum NetworkOperation: u32, "FULMEN_NETWORK" {
        /// Opens a socket that speaks with one other end. Takes `protocol`, address or host, and `port`; gives a handle
        /// and the other end's address.
        Connect "CONNECT" = 1,
        /// Opens a socket at an address of the gateway's. Takes `protocol`, address, `port` (0: any) and for TCP
        /// `backlog`; gives a handle and the address with its port. For UDP, it sends and receives by itself.
        Listen "LISTEN" = 2,
        /// Waits for a connection to a listening TCP socket. Takes `handle`; gives a handle and the other end's
        /// address.
        Accept "ACCEPT" = 3,
        /// Sends what is in the buffer. Takes `handle`, `data_buffer` and, where UDP is not connected, address and
        /// `port`; gives how many bytes the system took.
        Send "SEND" = 4,
        /// Waits for bytes, or for a datagram. Takes `handle` and `data_buffer`; gives how many bytes came (over TCP,
        /// 0: no more will) and, for a datagram, the sender's address.
        Receive "RECEIVE" = 5,
        /// Sends no more over a TCP connection, and may still receive. Takes `handle`.
        Shutdown "SHUTDOWN" = 6,
        /// Closes the socket. Takes `handle`.
        Close "CLOSE" = 7,
    }
}

codes! {
    /// What a socket speaks: `protocol` in `fulmen_network_request`.
    pub enum Protocol: u32, "FULMEN_PROTOCOL" {
        /// A stream of bytes.
        Tcp "TCP" = 1,
        /// Datagrams.
        Udp "UDP" = 2,
    }
}

codes! {
    /// What kind of address there is: `family` in `fulmen_network_request`; 0: none.
    pub enum AddressFamily: u32, "FULMEN_FAMILY" {
        /// The name in `host`, which the gateway resolves; `address` is zero.
        Name "NAME" = 1,
        /// The first 4 bytes of `address`, as they are written; the others are zero.
        Ipv4 "IPV4" = 4,
        /// The 16 bytes of `address`, as they are written.
        Ipv6 "IPV6" = 6,
    }
}

codes! {
    /// Where an operation stands: `state` in `fulmen_network_request`.
    pub enum NetworkState: u64, "FULMEN_NETWORK_STATE" {
        /// Nothing is asked; the record is the requester's to write.
        Free "FREE" = 0,
        /// It is asked. Set by the requester (from FREE), after everything else of the record.
        Written "WRITTEN" = 1,
        /// A gateway has taken it, by compare-and-swap (from WRITTEN). Until then the requester may take it back to
        /// FREE, by compare-and-swap, too.
        Accepted "ACCEPTED" = 2,
        /// It is over, well or not. Set by the gateway (from ACCEPTED), after its words and after received bytes have
        /// landed; it writes nothing any more. The requester takes it to FREE.
        Done "DONE" = 3,
    }
}

layout! {
    /// Asks a gateway for one operation of a socket.
    ///
    /// The requester writes the record while it is FREE: bytes 0 to 447, zero in the words of the gateway, and the
    /// state last. After that it writes only `lease_deadline_ns`, and the gateway only the words from `state` on. A
    /// handle belongs to the lease, or without one to the node, that opened it: when that is over, the gateway closes
    /// it.
    pub struct NetworkRequest, "fulmen_network_request", 512 {
        /// `FULMEN_NETWORK_MAGIC`.
        0 magic: u32,
        /// `FULMEN_ABI_VERSION`.
        4 version: u32,
        /// The requester's number for it; another one each time that a record is used.
        8 id: u64,
        /// The requester's node, at most `FULMEN_NODE_MAX`.
        16 source_node: u32,
        /// Who is to do it: a node, `FULMEN_NODE_GATEWAY` or `FULMEN_NODE_ANY`. With a handle: the node that gave it.
        20 target_node: u32,
        /// Of the requester's world.
        24 generation: u64,
        /// The requester's lease; 0: none, and it stays until the requester's node is lost.
        32 lease_id: u64,
        /// When the lease ends: nanoseconds since 1970. The requester moves it on. 0 without a lease.
        40 lease_deadline_ns: u64,
        /// When the operation fails if it is not over: nanoseconds since 1970; 0: never.
        48 deadline_ns: u64,
        /// The socket: what `result_handle` was when it was opened. 0 for none.
        56 handle: u64,
        /// A `FULMEN_NETWORK_CONNECT` to `FULMEN_NETWORK_CLOSE`.
        64 operation: u32,
        /// A `FULMEN_PROTOCOL_`, or 0.
        68 protocol: u32,
        /// A `FULMEN_FAMILY_`, or 0.
        72 family: u32,
        /// The port, 0 to 65535, as a number.
        76 port: u32,
        /// The address, in the order of its bytes on the wire.
        80 address: [u8; 16],
        /// Of an IPv6 address: the gateway's interface that it belongs to, or 0.
        96 scope_id: u32,
        /// Connections that wait to be accepted, at most; 0: as the gateway likes.
        100 backlog: u32,
        /// Bytes of `host`, without a NUL.
        104 host_len: u32,
        /// Zero.
        108 reserved: [u32; 5],
        /// The host's name, of letters, digits, `-`, `_` and `.`; ASCII. What follows it means nothing.
        128 host: [u8; 256],
        /// What is sent, with `FULMEN_RIGHT_READ`, or where it comes, with `FULMEN_RIGHT_WRITE`.
        384 data_buffer: RdmaBuffer,
        /// A `FULMEN_NETWORK_STATE_`: each says who sets it.
        448 state: u64,
        /// When DONE: why it failed; a `FULMEN_ERROR_`, or 0.
        456 error: u32,
        /// The system's number for the error, or 0.
        460 os_error: i32,
        /// When DONE: the socket that was opened, or 0.
        464 result_handle: u64,
        /// When DONE: bytes that were sent or came.
        472 result_len: u64,
        /// When DONE: `FULMEN_FAMILY_IPV4` or `FULMEN_FAMILY_IPV6`, or 0 for no address.
        480 result_family: u32,
        /// Its port.
        484 result_port: u32,
        /// Its bytes, as in `address`.
        488 result_address: [u8; 16],
        /// Of an IPv6 address, as `scope_id`.
        504 result_scope_id: u32,
        /// The gateway that took it.
        508 serving_node: u32,
    }
}

const _: () = assert!(HOST_ROOM == 384 - 128 && HOST_MAX < HOST_ROOM);

impl NetworkState {
    /// Who may change the state to `next`; `None` if nobody may.
    #[must_use]
    pub const fn writer(self, next: NetworkState) -> Option<Writer> {
        match (self, next) {
            (NetworkState::Free, NetworkState::Written)
            | (NetworkState::Written, NetworkState::Free)
            | (NetworkState::Done, NetworkState::Free) => Some(Writer::Requester),
            (NetworkState::Written, NetworkState::Accepted) | (NetworkState::Accepted, NetworkState::Done) => {
                Some(Writer::Server)
            }
            _ => None,
        }
    }
}
