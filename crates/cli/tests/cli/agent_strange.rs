//! Strange requests at an agent's socket, by a seeded plan: right ones that were cut, bent and put together wrongly. The agent answers each in HTTP
//! or hangs up, and goes on.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::agent::Agent;
use crate::random::Random;
use crate::support::wait_until;

const METHODS: [&str; 7] = ["GET", "POST", "DELETE", "PUT", "HEAD", "OPTIONS", "get"];
/// Without those that end the agent, or remove a node.
const PATHS: [&str; 16] = [
    "/v1/status",
    "/v1/processes",
    "/v1/processes/1",
    "/v1/processes/1/events",
    "/v1/processes/1/stdin",
    "/v1/processes/1/signal",
    "/v1/processes/1/size",
    "/v1/processes/99999999999999999999",
    "/v1/tokens",
    "/v1/roles",
    "/v1/audit?after=0",
    "/v1/nodes/@gateway/status",
    "/v1/nodes/@gateway/nodes/@gateway/processes",
    "/metrics",
    "/openapi.json",
    "/v1/../v1/%2e%2e/\u{7f}",
];
const HEADERS: [&str; 10] = [
    "Content-Type: application/json",
    "Content-Length: 4294967296",
    "Content-Length: -1",
    "Transfer-Encoding: chunked",
    "Connection: upgrade",
    "Expect: 100-continue",
    "fulmen-on-behalf-of: root",
    "Host: ",
    "X: \t",
    "Accept: \u{e9}",
];
/// The programs in them end by themselves, or are none.
const BODIES: [&str; 12] = [
    r#"{"command":["true"]}"#,
    r#"{"command":["false"],"detach":true,"env":{"A":"b"}}"#,
    r#"{"command":["true"],"timeout_ms":18446744073709551615,"grace_ms":0,"slots":4294967295}"#,
    r#"{"command":["/no/such"],"cwd":"/"}"#,
    r#"{"command":["true"],"limit":{"memory":1,"cpu":-1e308}}"#,
    r#"{"command":["true"],"tty":{"rows":0,"columns":65535}}"#,
    r#"{"signal":-2147483648}"#,
    r#"{"rows":70000,"columns":1}"#,
    r#"{"role":"guest","uses":0,"valid_ms":18446744073709551615}"#,
    r#"{"name":"..","spawn":{"only":["",""]}}"#,
    "5\r\n{\"com\r\n0\r\n\r\n",
    "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
];

/// A request that means nothing, or nearly.
fn strange(random: &mut Random) -> Vec<u8> {
    let method = METHODS[random.below(METHODS.len())];
    let path = PATHS[random.below(PATHS.len())];
    let body = BODIES[random.below(BODIES.len())];
    let mut head = format!("{method} {path} HTTP/1.{}\r\n", random.below(3));
    for _ in 0..random.below(4) {
        head += HEADERS[random.below(HEADERS.len())];
        head += "\r\n";
    }
    if random.below(3) > 0 {
        head += &format!("Host: agent\r\nContent-Type: application/json\r\nContent-Length: {}\r\n", body.len());
    }
    let mut bytes = format!("{head}\r\n").into_bytes();
    // What follows the method and the path: so nothing becomes a request to end.
    let bent = method.len() + path.len() + 1..bytes.len();
    for _ in 0..random.below(4) {
        let at = bent.start + random.below(bent.len());
        bytes[at] = random.below(256) as u8;
    }
    bytes.extend(body.bytes());
    if random.below(4) == 0 {
        bytes.truncate(random.below(bytes.len()));
    }
    bytes
}

#[test]
fn strange_requests_are_answered_or_hung_up_on() {
    let rounds = fulmen_testbed::by_tier(5000, 20_000, 100_000);
    let agent = Agent::up();
    let seed = std::env::var("FULMEN_STRANGE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    println!("FULMEN_STRANGE_SEED={seed}");
    let mut random = Random(seed);
    let mut answered = 0;
    for round in 0..rounds {
        let request = strange(&mut random);
        let mut stream = UnixStream::connect(agent.state.join("agent.sock")).expect("the agent is up");
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        // It may have hung up already.
        let _ = stream.write_all(&request);
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        let told = stream.read_to_end(&mut answer);
        let shown = || String::from_utf8_lossy(&request).into_owned();
        assert!(
            told.as_ref().is_ok() || told.as_ref().is_err_and(|error| error.kind() != std::io::ErrorKind::WouldBlock),
            "round {round}: no end of the answer to {}",
            shown()
        );
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1."), "round {round}: {answer:?} to {}", shown());
        answered += usize::from(!answer.is_empty());
    }
    assert!(answered > rounds / 4, "{answered} of {rounds} were answered");
    wait_until("all processes to end", || agent.children().is_empty());
    assert_eq!(agent.spawn(&[], "exit 7").end().code, Some(7));
    agent.down();
}
