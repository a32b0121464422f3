use std::env;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use fulmen_testbed::{Counts, Host, Net};

/// Never reached when all is well.
pub const LONG: Duration = Duration::from_secs(60);

/// Says what this test's executable is to do when a test starts it again.
pub const ROLE: &str = "FULMEN_TEST_ROLE";

/// This test's executable in a role, which the test of this name plays.
pub fn role(mut command: Command, player: &str, role: &str) -> Command {
    command.args(["--exact", player, "--nocapture", "--test-threads=1"]).env(ROLE, role);
    command
}

/// Where this executable is.
pub fn own() -> std::path::PathBuf {
    env::current_exe().unwrap()
}

pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < end, "{what}: not within {LONG:?}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// A socket of a host, at its address in a net.
pub fn socket(net: &Net, host: &Host) -> UdpSocket {
    let socket = host.run(|| UdpSocket::bind((net.address(host), 0))).unwrap();
    socket.set_read_timeout(Some(LONG)).unwrap();
    socket
}

/// Receives a datagram. A receive with a time-out ends with whatever stops the process for a moment.
pub fn take(socket: &UdpSocket, into: &mut [u8]) -> io::Result<usize> {
    loop {
        match socket.recv(into) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// Two hosts' sockets, each of which knows where the other one is, down to its hardware address.
pub fn pair(net: &Net, from: &Host, to: &Host) -> (UdpSocket, UdpSocket) {
    let (one, other) = (socket(net, from), socket(net, to));
    for (one, other) in [(&one, &other), (&other, &one)] {
        one.connect(other.local_addr().unwrap()).unwrap();
        one.send(b"met").unwrap();
        let mut met = [0; 3];
        assert_eq!((take(other, &mut met).unwrap(), &met), (3, b"met"));
    }
    (one, other)
}

/// Waits until all of so many frames have come or gone, and counts them from `before` on.
pub fn settled(net: &Net, from: &Host, to: &Host, before: Counts, sent: u64) -> Counts {
    let since = || {
        let now = net.counts(from, to);
        Counts {
            entered: now.entered - before.entered,
            duplicated: now.duplicated - before.duplicated,
            delivered: now.delivered - before.delivered,
            lost: now.lost - before.lost,
            blocked: now.blocked - before.blocked,
            too_big: now.too_big - before.too_big,
            overflowed: now.overflowed - before.overflowed,
            refused: now.refused - before.refused,
            corrupted: now.corrupted - before.corrupted,
            reordered: now.reordered - before.reordered,
        }
    };
    until("all frames have come or gone", || {
        let counts = since();
        counts.entered >= sent && counts.entered + counts.duplicated == counts.delivered + counts.dropped()
    });
    since()
}

/// Whether one word comes from one host to the other within this time.
pub fn hears(net: &Net, from: &Host, to: &Host, within: Duration) -> bool {
    let (one, other) = (socket(net, from), socket(net, to));
    other.set_read_timeout(Some(within)).unwrap();
    let to: SocketAddr = other.local_addr().unwrap();
    one.send_to(b"word", to).is_ok() && take(&other, &mut [0; 8]).is_ok()
}
