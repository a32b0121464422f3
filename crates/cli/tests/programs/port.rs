//! TCP ports of servers: each test has its own, and waits until its server listens there.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::process;
use std::sync::atomic::{AtomicU16, Ordering};

/// Below the ports that systems hand out by themselves.
const FIRST: u16 = 12_000;
const COUNT: u16 = 18_000;

/// A port that nobody listens on. Processes that test at the same time begin at different places.
pub fn free() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let begin = (process::id() % 281) as u16 * 64;
    loop {
        let port = FIRST + (begin + NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT;
        if TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok() {
            return port;
        }
    }
}

/// Whether a server listens on a port, seen without connecting to it: programs take a connection for their peer.
pub fn is_listened_on(port: u16) -> bool {
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| lists(&fs::read_to_string(table).unwrap_or_default(), port))
}

/// Whether a table of the kernel's has a socket in the state LISTEN (0A) with this local port.
fn lists(table: &str, port: u16) -> bool {
    let end = format!(":{port:04X}");
    table.lines().skip(1).any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let local = fields.next();
        local.is_some_and(|local| local.ends_with(&end)) && fields.nth(1) == Some("0A")
    })
}
