//! Ranks as processes: this test's own executable, started again.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use fulmen::parts::fabric::bootstrap::{Options as CoordinatorOptions, Serving};
use fulmen::parts::fabric::{Coordinator, Secret};
use fulmen::prelude::*;
use fulmen::{FabricError, InitError};

use self::carriers::Carrier;

mod carriers;

/// Never reached when all is well.
const LONG: Duration = Duration::from_secs(60);

/// Says what a rank that this test starts is to do.
const ROLE: &str = "FULMEN_TEST_ROLE";

/// A process that does not outlive its test.
struct Rank {
    process: Child,
    output: BufReader<ChildStdout>,
}

impl Rank {
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Everything else that it says until it ends.
    fn rest(mut self) -> String {
        let mut rest = String::new();
        while self.output.read_line(&mut rest).unwrap() > 0 {}
        let status = self.process.wait().unwrap();
        assert!(status.success(), "{status}: {rest}");
        rest
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// This test's executable in a role.
fn role(role: &str) -> impl Fn() -> Command {
    move || {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "a_rank", "--nocapture", "--test-threads=1"]).env(ROLE, role);
        command
    }
}

/// `carriers` are those of the ranks, in turn.
fn start(
    command: impl Fn() -> Command,
    size: u32,
    carriers: &[Carrier],
    coordinator: SocketAddr,
    secret: &Secret,
) -> Vec<Rank> {
    let start = |rank: u32| {
        let mut command = command();
        let mut process = carriers[rank as usize % carriers.len()]
            .set(rank, &mut command)
            .env("FULMEN_RANK", rank.to_string())
            .env("FULMEN_SIZE", size.to_string())
            .env("FULMEN_COORDINATOR", coordinator.to_string())
            .env("FULMEN_SECRET_FD", "0")
            .env("FULMEN_TIMEOUT", "60")
            .env("FULMEN_POOL", "16M")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        process.stdin.take().unwrap().write_all(secret.to_hex().as_bytes()).unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        Rank { process, output }
    };
    (0..size).map(start).collect()
}

/// The ranks themselves. Nothing when it runs as a test.
#[test]
fn a_rank() {
    let Ok(role) = env::var(ROLE) else { return };
    if role == "told" {
        let error = fulmen::init().unwrap_err();
        println!("\ntold: {error}");
        return;
    }
    let group = fulmen::init().unwrap();
    let mut data = group.alloc::<f32>(100_000).unwrap();
    let mut plain = vec![1f32; 100_000];
    let mut round = |check: bool| -> Result<(), CollectiveError> {
        data.fill(1.0);
        group.all_reduce(&mut data, ReduceOp::Sum)?;
        plain.fill(1.0);
        group.all_reduce(&mut plain, ReduceOp::Sum)?;
        assert!(!check || data.iter().chain(&plain).all(|sum| *sum == group.size() as f32));
        Ok(())
    };
    round(true).unwrap();
    // The harness has begun the line.
    println!("\nready");
    if role == "work" {
        (0..20).for_each(|_| round(true).unwrap());
        println!("done");
        return;
    }
    // Until somebody is killed.
    let error = loop {
        if let Err(error) = round(true) {
            break error;
        }
    };
    println!("ended: {error}");
    let later = group.barrier().unwrap_err();
    assert!(matches!(later, CollectiveError::Poisoned { .. }), "{later}");
    match error {
        // By messages, a rank may hear of one that ended because rank 1 died before it hears of rank 1.
        CollectiveError::Fabric(FabricError::PeerLost { rank, .. }) => {
            assert!(rank == 1 || !group.fabric().has_windows(), "{rank}");
        }
        CollectiveError::Poisoned { cause } if cause.contains("was lost") => {}
        other => panic!("{other}"),
    }
}

/// Ranks that meet at a coordinator.
fn meet(command: impl Fn() -> Command, size: u32, carriers: &[Carrier]) -> (Serving, Vec<Rank>) {
    let secret = Secret::generate().unwrap();
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let options = CoordinatorOptions::default();
    let coordinator = Coordinator::bind(address, size, secret.clone(), options).unwrap().serve().unwrap();
    let ranks = start(command, size, carriers, coordinator.local_addr(), &secret);
    (coordinator, ranks)
}

/// Ranks that have formed a group.
fn world(named: &str, size: u32, carrier: &Carrier) -> (Serving, Vec<Rank>) {
    let (coordinator, mut ranks) = meet(role(named), size, std::slice::from_ref(carrier));
    for rank in &mut ranks {
        while rank.line() != "ready" {
            assert!(rank.process.try_wait().unwrap().is_none(), "a rank ended before it was ready");
        }
    }
    (coordinator, ranks)
}

#[test]
fn processes_work_together() {
    for carrier in Carrier::all() {
        let (_coordinator, ranks) = world("work", 4, &carrier);
        for rank in ranks {
            assert!(rank.rest().contains("done"));
        }
    }
}

#[test]
fn a_killed_process_ends_the_others() {
    for carrier in Carrier::all() {
        let (_coordinator, mut ranks) = world("until killed", 3, &carrier);
        let mut killed = ranks.remove(1);
        killed.process.kill().unwrap();
        let start = Instant::now();
        for rank in ranks {
            let said = rank.rest();
            assert!(said.contains("ended: ") && said.contains("was lost"), "{carrier}: {said}");
        }
        assert!(start.elapsed() < LONG, "{carrier}: they ended by their deadlines only");
    }
}

#[test]
fn the_examples_work() {
    // Beside the directory of this executable, where `cargo test` builds them.
    let examples = env::current_exe().unwrap().parent().unwrap().with_file_name("examples");
    for name in ["all_reduce", "broadcast", "recover", "ring"] {
        let path = examples.join(format!("{name}{}", env::consts::EXE_SUFFIX));
        if !path.exists() {
            println!("{name} is not tried: it is built by `cargo test` without `--test`");
            continue;
        }
        for carrier in Carrier::all() {
            let (_coordinator, ranks) = meet(|| Command::new(&path), 3, std::slice::from_ref(&carrier));
            for (rank, process) in (0..).zip(ranks) {
                let said = process.rest();
                assert!(said.starts_with(&format!("rank {rank} of 3: ")), "{name}: {said}");
            }
        }
    }
}

#[test]
fn a_rank_that_cannot_start_tells_the_others() {
    let start = Instant::now();
    let (_coordinator, ranks) =
        meet(role("told"), 3, &["infiniband", "token-ring", "infiniband"].map(Carrier::Profile));
    for (rank, process) in (0..).zip(ranks) {
        let said = process.rest();
        let told = said.lines().find_map(|line| line.strip_prefix("told: ")).unwrap_or_else(|| panic!("{said}"));
        assert!(told.contains("token-ring") && told.contains("FULMEN_PROFILE"), "{told}");
        assert_eq!(told.contains("rank 1"), rank != 1, "{told}");
    }
    assert!(start.elapsed() < LONG, "they ended by their deadlines only");
}

#[test]
fn a_profile_that_does_not_exist_is_refused() {
    let mut options = fulmen::Options::default().pool(1 << 20);
    options.fabric.profile = Some("token-ring".into());
    let error = options.init_with(fulmen::parts::fabric::Session::alone()).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("token-ring") && text.contains("thunderbolt") && !text.contains('\n'), "{text}");
}

#[test]
fn alone_is_a_group_of_one() {
    if env::var_os(ROLE).is_some() {
        return;
    }
    let session = fulmen::parts::fabric::Session::alone();
    let group = fulmen::Options::default().pool(1 << 20).init_with(session).unwrap();
    assert_eq!((group.rank(), group.size()), (0, 1));
    let mut data = group.alloc::<i16>(3).unwrap();
    data.copy_from_slice(&[1, 2, 3]);
    group.all_reduce(&mut data, ReduceOp::Product).unwrap();
    let mut all = [0i16; 3];
    group.all_gather(&data, &mut all).unwrap();
    assert_eq!(all, [1, 2, 3]);
}

#[test]
fn errors_of_the_start_are_one_line() {
    let options = fulmen::Options::default().pool(usize::MAX / 2);
    let error = options.init_with(fulmen::parts::fabric::Session::alone()).unwrap_err();
    assert!(matches!(error, InitError::Start(_)), "{error}");
    let text = error.to_string();
    assert!(text.contains("FULMEN_POOL") && !text.contains('\n'), "{text}");
}
