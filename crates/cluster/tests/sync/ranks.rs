//! Ranks as threads, and as processes: this test's own executable, started again.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use fulmen::parts::fabric::bootstrap::{Heartbeat, Options as CoordinatorOptions, Serving};
use fulmen::parts::fabric::{Coordinator, JoinConfig, Secret, Session};
use fulmen::{Group, Options};
use rustix::process::{Pid, Signal, kill_process};

use super::carriers::Carrier;

/// Never reached when all is well.
pub const LONG: Duration = Duration::from_secs(120);

/// Says what a rank that a test starts is to do.
pub const ROLE: &str = "FULMEN_TEST_ROLE";

fn coordinator(size: u32, secret: &Secret) -> Serving {
    // A stopped rank is slow, not dead, for as long as a test takes.
    let heartbeat = Heartbeat { every: Duration::from_secs(2), silence: Duration::from_secs(600) };
    let options = CoordinatorOptions { heartbeat, ..CoordinatorOptions::default() };
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    Coordinator::bind(address, size, secret.clone(), options).unwrap().serve().unwrap()
}

/// Runs `body` on `size` ranks.
pub fn threads<T: Send>(size: u32, carrier: &Carrier, body: impl Fn(Group) -> T + Sync) -> Vec<T> {
    let secret = Secret::generate().unwrap();
    let serving = coordinator(size, &secret);
    let coordinator = serving.local_addr();
    thread::scope(|scope| {
        let rank = |rank| {
            let (body, secret) = (&body, secret.clone());
            scope.spawn(move || {
                let config = JoinConfig { coordinator, rank, size, secret, deadline: LONG };
                let session = Session::join(&config).unwrap();
                let mut options = Options::default().pool(16 << 20).timeout(LONG);
                match carrier {
                    Carrier::Shared => {}
                    Carrier::Profile(profile) => {
                        options.fabric.windows = false;
                        options.fabric.profile = Some((*profile).into());
                    }
                    Carrier::Device(device) => options = options.over(device),
                    Carrier::Hosts(profile) => {
                        options = options.apart();
                        options.fabric.profile = profile.map(Into::into);
                    }
                    Carrier::Pairs => options.fabric.host = Some([rank as u8 / 2; 16]),
                }
                body(options.init_with(session).unwrap())
            })
        };
        let ranks: Vec<_> = (0..size).map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// A rank that is a process. It does not outlive its test.
pub struct Rank {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Rank {
    /// The next line that it says, without what the test harness says around it.
    pub fn line(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "the rank has ended");
            if let Some((_, said)) = line.trim_end().split_once("> ") {
                return said.to_owned();
            }
        }
    }

    /// Lets it go on.
    pub fn go(&mut self) {
        writeln!(self.input, "go").unwrap();
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Says a line to the test that started this rank.
pub fn say(line: &str) {
    println!("\n> {line}");
}

/// Waits until the test lets this rank go on.
pub fn wait_for_go() {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    assert_eq!(line, "go\n");
}

/// Starts `size` ranks of a role, by name of the test that plays it.
pub fn processes(size: u32, carrier: &Carrier, role: &str) -> (Serving, Vec<Rank>) {
    let secret = Secret::generate().unwrap();
    let serving = coordinator(size, &secret);
    let start = |rank: u32| {
        let mut command = Command::new(env::current_exe().unwrap());
        carrier
            .set(rank, &mut command)
            .args(["--exact", "sync::late::a_rank", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env("FULMEN_RANK", rank.to_string())
            .env("FULMEN_SIZE", size.to_string())
            .env("FULMEN_COORDINATOR", serving.local_addr().to_string())
            .env("FULMEN_SECRET_FD", "0")
            .env("FULMEN_TIMEOUT", "120")
            .env("FULMEN_POOL", "16M");
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut input = process.stdin.take().unwrap();
        input.write_all(format!("{}\n", secret.to_hex()).as_bytes()).unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        Rank { process, input, output }
    };
    let ranks = (0..size).map(start).collect();
    (serving, ranks)
}
