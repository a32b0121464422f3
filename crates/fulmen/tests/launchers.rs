//! Ranks as processes, started with the variables of each launcher.

use std::env;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use fulmen::parts::fabric::bootstrap::{Coordinator, Options as CoordinatorOptions, Serving};
use fulmen::parts::fabric::{Launch, Regroup, RegroupError, Secret};
use fulmen::prelude::*;

/// Never reached when all is well.
const LONG: Duration = Duration::from_secs(60);

/// Says what a rank that this test starts is to do.
const ROLE: &str = "FULMEN_TEST_ROLE";

const SIZE: u32 = 3;

/// Variables by which launchers are known: those of whoever runs this test are none of its ranks' business.
const KNOWN: [&str; 12] = [
    "FULMEN_",
    "JACCL_",
    "MLX_",
    "OMPI_",
    "PMI_",
    "PMIX_",
    "MPI_LOCAL",
    "SLURM_",
    "TORCHELASTIC_",
    "MASTER_",
    "RANK",
    "WORLD_SIZE",
];

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

    fn wait_for(&mut self, wanted: &str) {
        while self.line() != wanted {
            assert!(self.process.try_wait().unwrap().is_none(), "a rank ended before it said {wanted:?}");
        }
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

/// This test's executable in a role, with a key file and a runtime folder in `home`.
fn start(role: &str, home: &Path, variables: &[(&str, String)]) -> Rank {
    start_with(role, home, variables, Stdio::null())
}

fn start_with(role: &str, home: &Path, variables: &[(&str, String)], stdin: Stdio) -> Rank {
    let mut command = Command::new(env::current_exe().unwrap());
    for (name, _) in env::vars_os() {
        if KNOWN.iter().any(|known| name.to_string_lossy().starts_with(known)) {
            command.env_remove(name);
        }
    }
    let mut process = command
        .args(["--exact", "a_rank", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env("FULMEN_TIMEOUT", "60")
        .env("FULMEN_POOL", "16M")
        .env("XDG_STATE_HOME", home)
        .env("XDG_RUNTIME_DIR", home)
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .stdin(stdin)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(process.stdout.take().unwrap());
    Rank { process, output }
}

/// The ranks themselves. Nothing when it runs as a test.
#[test]
fn a_rank() {
    let Ok(role) = env::var(ROLE) else { return };
    match role.as_str() {
        "reduce" | "reduce and wait" => {
            let group = fulmen::init().unwrap();
            let mut data = group.alloc::<u32>(10_000).unwrap();
            data.fill(group.rank() + 1);
            group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
            assert!(data.iter().all(|sum| *sum == 6));
            println!("\ndone: {} of {}, {}", group.rank(), group.size(), group.fabric().link_kind());
            if let Some(instead) = group.fabric().fallback() {
                println!("instead: {instead}");
            }
            if role == "reduce and wait" {
                std::thread::sleep(Duration::from_millis(500));
            }
        }
        "told" => println!("\ntold: {}", fulmen::init().unwrap_err()),
        "until killed" => {
            let group = fulmen::init().unwrap();
            println!("\nready");
            let error = loop {
                if let Err(error) = group.barrier() {
                    break error;
                }
            };
            println!("ended: {error}");
            println!("alone: {}", group.shrink().unwrap_err());
        }
        "survivor" => {
            let session = Launch::from_env().unwrap().join(LONG).unwrap();
            println!("\nready");
            // The other one is killed.
            if session.rank() == 0 {
                return std::thread::sleep(LONG);
            }
            session.barrier(LONG).unwrap_err();
            match session.regroup(Regroup::Survivors, LONG) {
                Ok(session) => println!("goes on as {:?}", session.members()),
                Err(RegroupError::Partitioned { without, .. }) => println!("partitioned from {without:?}"),
                Err(other) => panic!("{other}"),
            }
        }
        other => panic!("{other}"),
    }
}

/// A port that nobody has at this moment, and that the system gives to nobody who asks for any.
fn free_port() -> u16 {
    let first = 20_000 + (std::process::id() % 5_000) as u16;
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    static NEXT: AtomicU16 = AtomicU16::new(0);
    (first..30_000).skip(NEXT.fetch_add(50, Ordering::Relaxed).into()).find(is_free).unwrap()
}

/// What a launcher sets for a rank.
type Variables = Box<dyn Fn(u32) -> Vec<(&'static str, String)>>;

/// The variables of each launcher for a rank of three on this host.
fn dialects(home: &Path) -> Vec<(&'static str, Variables)> {
    let devices = home.join("devices.json");
    std::fs::write(&devices, r#"[[null, "a", "b"], ["c", null, ["d", "h"]], ["e", ["f", "g"], null]]"#).unwrap();
    let devices = devices.to_str().unwrap().to_owned();
    // Cables lead over the machine's devices; the profile has ranks rehearse without.
    let jaccl = move |names: [&'static str; 3]| {
        let (devices, port) = (devices.clone(), free_port());
        move |rank: u32| {
            let values = [rank.to_string(), devices.clone(), format!("127.0.0.1:{port}")];
            names.into_iter().zip(values).chain([("FULMEN_PROFILE", "thunderbolt".to_owned())]).collect()
        }
    };
    let size = || SIZE.to_string();
    let id = format!("test-{}", std::process::id());
    let (torch_id, prte_id, port) = (id.clone(), id.clone(), free_port());
    vec![
        ("jaccl", Box::new(jaccl(["JACCL_RANK", "JACCL_IBV_DEVICES", "JACCL_COORDINATOR"]))),
        ("mlx", Box::new(jaccl(["MLX_RANK", "MLX_IBV_DEVICES", "MLX_IBV_COORDINATOR"]))),
        (
            "torchrun",
            Box::new(move |rank| {
                vec![
                    ("RANK", rank.to_string()),
                    ("WORLD_SIZE", size()),
                    ("LOCAL_RANK", rank.to_string()),
                    ("LOCAL_WORLD_SIZE", size()),
                    ("MASTER_ADDR", "localhost".into()),
                    ("MASTER_PORT", "29500".into()),
                    ("TORCHELASTIC_RUN_ID", torch_id.clone()),
                ]
            }),
        ),
        (
            "torchrun by address",
            Box::new(move |rank| {
                vec![
                    ("RANK", rank.to_string()),
                    ("WORLD_SIZE", size()),
                    ("MASTER_ADDR", "127.0.0.1".into()),
                    ("MASTER_PORT", (port - 117).to_string()),
                ]
            }),
        ),
        (
            "openmpi",
            Box::new(move |rank| {
                vec![
                    ("OMPI_COMM_WORLD_RANK", rank.to_string()),
                    ("OMPI_COMM_WORLD_SIZE", size()),
                    ("OMPI_COMM_WORLD_LOCAL_RANK", rank.to_string()),
                    ("OMPI_COMM_WORLD_LOCAL_SIZE", size()),
                    ("PMIX_RANK", rank.to_string()),
                    ("PMIX_NAMESPACE", prte_id.clone()),
                ]
            }),
        ),
        (
            "pmi",
            Box::new(move |rank| {
                vec![("PMI_RANK", rank.to_string()), ("PMI_SIZE", size()), ("MPI_LOCALNRANKS", size())]
            }),
        ),
        (
            "slurm",
            Box::new(move |rank| {
                vec![
                    ("SLURM_JOB_ID", id.clone()),
                    ("SLURM_STEP_ID", "0".into()),
                    ("SLURM_PROCID", rank.to_string()),
                    ("SLURM_STEP_NUM_TASKS", size()),
                    ("SLURM_STEP_NUM_NODES", "1".into()),
                    ("SLURM_STEP_NODELIST", "node7".into()),
                    ("SLURM_NTASKS", "64".into()),
                ]
            }),
        ),
    ]
}

#[test]
fn ranks_of_every_launcher_work_together() {
    for at in 0..7 {
        let home = tempfile::tempdir().unwrap();
        let (name, variables) = dialects(home.path()).swap_remove(at);
        // The last first, so that most ranks look for what is not there yet.
        let ranks: Vec<_> = (0..SIZE).rev().map(|rank| start("reduce", home.path(), &variables(rank))).collect();
        for (rank, process) in (0..SIZE).rev().zip(ranks) {
            let said = process.rest();
            assert!(said.contains(&format!("done: {rank} of 3")), "{name}: {said}");
        }
        let left: Vec<_> =
            home.path().join("fulmen").read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["secret"], "{name}");
    }
}

#[test]
fn programs_run_one_after_the_other_under_the_same_variables() {
    // On this host, and by an address.
    for at in [4, 3] {
        let home = tempfile::tempdir().unwrap();
        let (name, variables) = dialects(home.path()).swap_remove(at);
        let start = |role: &str, rank: u32| (rank, start(role, home.path(), &variables(rank)));
        let done = |(rank, process): (u32, Rank)| {
            let said = process.rest();
            assert!(said.contains(&format!("done: {rank} of 3")), "{name}: {said}");
        };
        let slow = start("reduce and wait", 0);
        [1, 2].map(|rank| start("reduce", rank)).into_iter().for_each(done);
        // As long as rank 0 of the first program runs, the others of the second one find its coordinator.
        let next = [1, 2].map(|rank| start("reduce", rank));
        done(slow);
        done(start("reduce", 0));
        next.into_iter().for_each(done);
    }
}

#[test]
fn the_world_ends_with_rank_zero() {
    let home = tempfile::tempdir().unwrap();
    let (_, variables) = dialects(home.path()).swap_remove(4);
    let mut ranks: Vec<_> = (0..SIZE).map(|rank| start("until killed", home.path(), &variables(rank))).collect();
    ranks.iter_mut().for_each(|rank| rank.wait_for("ready"));
    let mut zero = ranks.remove(0);
    zero.process.kill().unwrap();
    for rank in ranks {
        let said = rank.rest();
        assert!(said.contains("ended: ") && said.contains("rank 0"), "{said}");
        assert!(said.contains("alone: ") && said.contains("the coordinator was lost"), "{said}");
    }
}

/// Three ranks, of which the last is on another host; no host has a library for RDMA.
fn on_two_hosts(role: &str, more: impl Fn(u32) -> Vec<(&'static str, String)>) -> Vec<String> {
    let home = tempfile::tempdir().unwrap();
    let (_, variables) = dialects(home.path()).swap_remove(4);
    let start = |rank: u32| {
        let host = format!("host {}", rank / 2);
        let library = "/nonexistent/libibverbs.so.1".to_owned();
        let hosts = vec![("FULMEN_HOST_ID", host), ("FULMEN_VERBS_LIBRARY", library)];
        start(role, home.path(), &[variables(rank), hosts, more(rank)].concat())
    };
    let ranks: Vec<_> = (0..SIZE).map(start).collect();
    ranks.into_iter().map(Rank::rest).collect()
}

fn told(said: &str) -> &str {
    said.lines().find_map(|line| line.strip_prefix("told: ")).unwrap_or_else(|| panic!("{said}"))
}

#[test]
fn ranks_on_several_hosts_talk_by_tcp() {
    // The same, whatever they are told of it: nothing, the device by its name, other rules, that nobody listens.
    for more in [
        vec![],
        vec![("FULMEN_DEVICE", "tcp")],
        vec![("FULMEN_PROFILE", "thunderbolt")],
        vec![("FULMEN_PROFILE", "infiniband"), ("FULMEN_TRUSTED_RAIL", "1")],
        vec![("FULMEN_DEVICE", "tcp"), ("FULMEN_PROFILE", "thunderbolt"), ("FULMEN_ADDRESS", "127.0.0.1")],
    ] {
        let given = |_| more.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        for (rank, said) in on_two_hosts("reduce", given).into_iter().enumerate() {
            assert!(said.contains(&format!("done: {rank} of 3, TCP")), "{more:?}: {said}");
            // It is a fallback where nobody asked for it.
            let told = said.contains("instead: rank 0 has no RDMA device that works: the verbs library /nonexistent/");
            assert_eq!(told, more.is_empty(), "{more:?}: {said}");
        }
    }
}

#[test]
fn tcp_is_refused_where_rdma_is_required() {
    for said in on_two_hosts("told", |_| vec![("FULMEN_REQUIRE", "rdma".into())]) {
        for part in ["rank 0", "/nonexistent/libibverbs.so.1", "FULMEN_REQUIRE=rdma", "fulmen doctor"] {
            assert!(told(&said).contains(part), "{part}: {said}");
        }
    }
}

#[test]
fn an_address_that_is_not_this_hosts_is_told_to_all() {
    // Kept for documentation (RFC 5737).
    let address = |rank| if rank == 1 { vec![("FULMEN_ADDRESS", "192.0.2.1".to_owned())] } else { vec![] };
    for (rank, said) in on_two_hosts("told", address).into_iter().enumerate() {
        assert!(told(&said).contains("192.0.2.1"), "{said}");
        assert_eq!(told(&said).contains("rank 1"), rank != 1, "{said}");
    }
}

#[test]
fn ranks_that_were_told_different_things_hear_of_it() {
    // Rank 1 does not ask what the others have.
    let more = |rank| if rank == 1 { vec![("FULMEN_DEVICE", "tcp".to_owned())] } else { vec![] };
    for (rank, said) in on_two_hosts("told", more).into_iter().enumerate() {
        assert!(told(&said).contains("start all ranks alike"), "{said}");
        assert_eq!(told(&said).contains("rank 1"), rank != 1, "{said}");
    }
}

#[test]
fn cables_lead_over_devices_of_the_machine() {
    let home = tempfile::tempdir().unwrap();
    let (_, variables) = dialects(home.path()).swap_remove(0);
    let start = |rank: u32| {
        let mut variables = variables(rank);
        variables.retain(|(name, _)| *name != "FULMEN_PROFILE");
        variables.push(("FULMEN_VERBS_LIBRARY", "/nonexistent/libibverbs.so.1".into()));
        start("told", home.path(), &variables)
    };
    let ranks: Vec<_> = (0..SIZE).map(start).collect();
    for process in ranks {
        let said = process.rest();
        for part in ["a cable leads from", "/nonexistent/libibverbs.so.1", "fulmen doctor"] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
}

/// A coordinator here, and ranks that say on which hosts they are.
fn on_hosts(home: &Path, hosts: [&str; 2]) -> (Serving, Vec<Rank>) {
    let secret = Secret::generate().unwrap();
    let key = home.join("key");
    std::fs::write(&key, secret.to_hex()).unwrap();
    let options = CoordinatorOptions::default();
    let serving = Coordinator::bind((Ipv4Addr::LOCALHOST, 0).into(), 2, secret, options).unwrap().serve().unwrap();
    let start = |(rank, host): (u32, &str)| {
        let mut variables = vec![
            ("FULMEN_RANK", rank.to_string()),
            ("FULMEN_SIZE", "2".into()),
            ("FULMEN_COORDINATOR", serving.local_addr().to_string()),
            ("FULMEN_SECRET_FD", "0".into()),
        ];
        variables.extend((!host.is_empty()).then(|| ("FULMEN_HOST_ID", host.to_owned())));
        start_with("survivor", home, &variables, std::fs::File::open(&key).unwrap().into())
    };
    let ranks = (0..).zip(hosts).map(start).collect();
    (serving, ranks)
}

#[test]
fn a_process_of_another_host_is_not_known_to_have_ended() {
    for (hosts, outcome) in [
        (["", ""], "goes on as [1]"),
        // The coordinator cannot see what has become of it, so its half may go on without this one.
        (["elsewhere", ""], "partitioned from [0]"),
    ] {
        let home = tempfile::tempdir().unwrap();
        let (_serving, mut ranks) = on_hosts(home.path(), hosts);
        ranks.iter_mut().for_each(|rank| rank.wait_for("ready"));
        let (one, mut zero) = (ranks.pop().unwrap(), ranks.pop().unwrap());
        zero.process.kill().unwrap();
        zero.process.wait().unwrap();
        let said = one.rest();
        assert!(said.contains(outcome), "{hosts:?}: {said}");
    }
}
