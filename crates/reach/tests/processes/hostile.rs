//! Bytes that no node sends.

use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::mpsc;

use fulmen_memory::Region;
use fulmen_reach::{Node, NodeAddress, ReachError, ShareKey};

use crate::LONG;

/// The version that is spoken.
const VERSION: u16 = 2;

/// Where a node listens, which its address says.
fn socket_of(address: &NodeAddress) -> SocketAddr {
    let name: String = address.to_bytes()[24..40].iter().map(|byte| format!("{byte:02x}")).collect();
    SocketAddr::from_abstract_name(format!("fulmen-{name}")).unwrap()
}

fn hello(address: &NodeAddress, version: u16) -> [u8; 64] {
    let mut bytes = [0; 64];
    bytes[..4].copy_from_slice(b"FLMR");
    bytes[4..6].copy_from_slice(&version.to_le_bytes());
    bytes[6] = 1;
    bytes[8..56].copy_from_slice(&address.to_bytes());
    bytes
}

fn request(kind: u8, request: u64, value: u64) -> [u8; 64] {
    let mut bytes = [0; 64];
    bytes[..8].copy_from_slice(&[b'F', b'L', b'M', b'R', VERSION as u8, 0, kind, 0]);
    bytes[8..16].copy_from_slice(&request.to_le_bytes());
    bytes[16..24].copy_from_slice(&value.to_le_bytes());
    bytes
}

/// Everything that the node says to these bytes before it hangs up.
fn answer(node: &Node, bytes: &[u8]) -> Vec<u8> {
    let mut stream = UnixStream::connect_addr(&socket_of(&node.address())).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    // The node may hang up before it has read all.
    let _ = stream.write_all(bytes);
    let mut said = Vec::new();
    let mut piece = [0; 256];
    loop {
        match stream.read(&mut piece) {
            Ok(0) => return said,
            Ok(len) => said.extend_from_slice(&piece[..len]),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return said,
            Err(error) => panic!("the node does not hang up: {error}"),
        }
    }
}

#[test]
fn hostile_bytes_end_their_connection_only() {
    let (node, other) = (Node::open().unwrap(), Node::open().unwrap());
    let key = node.share(&Region::alloc(4096).unwrap()).unwrap();
    let peer = other.connect(&node.address(), LONG).unwrap();
    let greeting = hello(&node.address(), VERSION);

    assert_eq!(answer(&node, &[0xff; 64]), b"");
    assert_eq!(answer(&node, b"GET / HTTP/1.1\r\nHost: example\r\nAccept: */*\r\nConnection: close\r\n\r\n"), b"");
    // A request or a notice before the greeting, two greetings, and a kind that does not exist.
    assert_eq!(answer(&node, &request(2, 1, key.to_u64())), b"");
    assert_eq!(answer(&node, &request(5, 1, 2)), b"");
    assert_eq!(answer(&node, &[greeting, greeting].concat()), greeting);
    assert_eq!(answer(&node, &[greeting, request(99, 1, 1)].concat()), greeting);
    // Replies that nobody asked for.
    assert_eq!(answer(&node, &[greeting, request(3, 1, 1)].concat()), greeting);
    // Another version is told the one spoken here.
    assert_eq!(answer(&node, &hello(&node.address(), 9)), greeting);
    // Another host's node.
    let mut elsewhere = node.address().to_bytes();
    elsewhere[0] ^= 1;
    assert_eq!(answer(&node, &hello(&NodeAddress::from_bytes(&elsewhere).unwrap(), VERSION)), b"");

    assert!(peer.is_alive());
    assert_eq!(peer.map(key, LONG).unwrap().len(), 4096);
}

#[test]
fn half_a_frame_harms_nobody() {
    let node = Node::open().unwrap();
    let mut stream = UnixStream::connect_addr(&socket_of(&node.address())).unwrap();
    let greeting = hello(&node.address(), VERSION);
    stream.write_all(&greeting[..10]).unwrap();
    // Others are served meanwhile, and the rest is taken when it comes.
    assert!(node.connect(&node.address(), LONG).unwrap().is_alive());
    stream.write_all(&greeting[10..]).unwrap();
    let mut said = [0; 64];
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.read_exact(&mut said).unwrap();
    assert_eq!(said, greeting);
}

/// A listener under a node's name that gives one of these answers to each frame of the first who connects.
fn pretend(says: impl FnOnce(&NodeAddress) -> Vec<Vec<u8>>) -> (NodeAddress, impl FnOnce()) {
    let mut bytes = Node::open().unwrap().address().to_bytes();
    // The node is closed, and its name is free.
    bytes[24] ^= 1;
    let address = NodeAddress::from_bytes(&bytes).unwrap();
    let listener = UnixListener::bind_addr(&socket_of(&address)).unwrap();
    let said = says(&address);
    let (stop, stopped) = mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        for answer in said {
            stream.read_exact(&mut [0; 64]).unwrap();
            stream.write_all(&answer).unwrap();
        }
        let _ = stopped.recv();
    });
    (address, move || {
        drop(stop);
        thread.join().unwrap();
    })
}

#[test]
fn another_version_is_named() {
    let node = Node::open().unwrap();
    let (address, end) = pretend(|address| vec![hello(address, 7).to_vec()]);
    let error = node.connect(&address, LONG).unwrap_err();
    assert!(matches!(error, ReachError::Version { theirs: 7, ours: VERSION, .. }), "{error}");
    assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
    end();
}

#[test]
fn foreign_listeners_are_named() {
    let node = Node::open().unwrap();
    let foreign = [
        vec![b'x'; 64],
        request(4, 1, 99).to_vec(),
        request(5, 1, 2).to_vec(),
        hello(&node.address(), VERSION).to_vec(),
    ];
    for bytes in foreign {
        let (address, end) = pretend(|_| vec![bytes]);
        let error = node.connect(&address, LONG).unwrap_err();
        assert!(matches!(error, ReachError::Foreign { .. }), "{error}");
        end();
    }
}

#[test]
fn a_full_node_says_so() {
    let node = Node::open().unwrap();
    let (address, end) = pretend(|_| vec![request(4, 0, 2).to_vec()]);
    let error = node.connect(&address, LONG).unwrap_err();
    assert!(error.to_string().contains("as many connections as it can"), "{error}");
    end();
}

#[test]
fn a_mapping_without_memory_is_an_error() {
    let node = Node::open().unwrap();
    // The reply promises memory, and brings no descriptor.
    let (address, end) = pretend(|address| vec![hello(address, VERSION).to_vec(), request(3, 1, 4096).to_vec()]);
    let peer = node.connect(&address, LONG).unwrap();
    let error = peer.map(ShareKey::from_u64(5), LONG).unwrap_err();
    assert!(matches!(error, ReachError::Descriptors { .. }), "{error}");
    end();
}

#[test]
fn random_bytes_never_end_a_node() {
    let node = Node::open().unwrap();
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for round in 0..200 {
        let mut bytes = hello(&node.address(), VERSION).to_vec();
        bytes.extend_from_slice(&request(2, round, 1));
        for _ in 0..4 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = (state >> 33) as usize % bytes.len();
            bytes[at] = (state >> 20) as u8;
        }
        let stream = UnixStream::connect_addr(&socket_of(&node.address())).unwrap();
        let _ = (&stream).write_all(&bytes[..bytes.len() - (round as usize % 7)]);
    }
    assert!(node.connect(&node.address(), LONG).unwrap().is_alive());
}

#[test]
fn who_hangs_up_and_takes_no_answers_is_let_go() {
    let node = Node::open().unwrap();
    let stream = UnixStream::connect_addr(&socket_of(&node.address())).unwrap();
    (&stream).write_all(&hello(&node.address(), VERSION)).unwrap();
    stream.set_nonblocking(true).unwrap();
    // Until the node has no room for its answers and reads no further.
    let mut refused = 0;
    while refused < 1000 {
        match (&stream).write(&request(2, 1, 99)) {
            Ok(written) => {
                assert_eq!(written, 64, "a request goes out whole");
                refused = 0;
            }
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
                refused += 1;
                std::thread::yield_now();
            }
        }
    }
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut polled = [rustix::event::PollFd::new(&stream, rustix::event::PollFlags::empty())];
    let wait = rustix::event::Timespec::try_from(LONG).unwrap();
    assert_eq!(rustix::event::poll(&mut polled, Some(&wait)).unwrap(), 1, "the node hangs up, too");
}
