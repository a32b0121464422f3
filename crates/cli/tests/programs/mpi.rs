//! OpenMPI over UCX over the device: a program that checks every element of its collectives.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use crate::case::{Case, Outcome, Program, expect, last_lines, rounds};
use crate::pair::Launch;

const MPIRUN: Program = Program::of("openmpi-bin", "mpirun.openmpi");

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/mpi.c");

pub fn cases() -> Vec<Case> {
    [("rc_v,self", 2, true), ("ud_v,self", 2, false), ("ib,self", 4, false)]
        .into_iter()
        .map(|(transports, ranks, fast)| {
            let title = format!("-n {ranks} --mca pml ucx, UCX_TLS={transports}");
            Case::new(MPIRUN, title, fast, move || mpi(transports, ranks))
        })
        .collect()
}

/// Compiles the program, once.
fn program() -> Result<PathBuf, String> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let build = || {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("mpi-{}", std::process::id()));
        let mut command = Command::new("mpicc.openmpi");
        let output = command.args(["-O2", "-Wall", "-Werror", "-o"]).arg(&path).arg(SOURCE).output();
        let output = output.map_err(|error| format!("mpicc.openmpi: {error} (apt-get install libopenmpi-dev)"))?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(path) } else { Err(format!("mpi.c does not compile:\n{said}")) }
    };
    BUILT.get_or_init(build).clone()
}

fn mpi(transports: &str, ranks: u32) -> Outcome {
    let program = program()?;
    // UCX chooses among its transports; at this level it says what it chose.
    let launch = Launch::of(MPIRUN)
        .env("UCX_TLS", transports)
        .env("UCX_NET_DEVICES", "fulmen_0:1")
        .env("UCX_LOG_LEVEL", "info")
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    let options = format!("-n {ranks} --oversubscribe --mca pml ucx --mca osc ucx --mca btl self");
    let mut args: Vec<String> = options.split_whitespace().map(ToString::to_string).collect();
    args.extend([program.display().to_string(), rounds(1, 5)]);
    let said = launch.run(&args)?.said;
    expect(said.contains(&format!("{ranks} ranks, 0 wrong")), "no good result", &said)?;
    let transport = if transports.starts_with("ud") { "ud_verbs" } else { "rc_verbs" };
    expect(said.contains(&format!("{transport}/fulmen_0:1")), "another transport was used", &last_lines(&said))
}
