//! Each dialect, by a look-up instead of an environment.

use std::ffi::OsString;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::time::Duration;

use super::devices::tests::file;
use super::secret::tests::{HEX, pipe};
use super::*;

const RANK: &str = own::RANK;
const SIZE: &str = own::SIZE;
const SECRET_FD: &str = secret::SECRET_FD;

fn launch(variables: &[(&str, &str)]) -> Result<Launch, LaunchError> {
    Launch::from_variables(|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into()))
}

/// What was read, with a key file and a runtime folder that are this test's own.
struct Foreign(tempfile::TempDir);

impl Foreign {
    fn new() -> Foreign {
        Foreign(tempfile::tempdir().unwrap())
    }

    fn launch(&self, variables: &[(&str, &str)]) -> Result<Launch, LaunchError> {
        let folder = self.0.path().to_str().unwrap();
        let own = [("XDG_STATE_HOME", folder), ("XDG_RUNTIME_DIR", folder)];
        launch(&[variables, &own].concat())
    }

    #[track_caller]
    fn rank(&self, variables: &[(&str, &str)]) -> (u32, u32, Meeting, Option<Cables>, Dialect) {
        match self.launch(variables).unwrap() {
            Launch::Rank { rank, size, meeting, cables, dialect, .. } => (rank, size, meeting, cables, dialect),
            Launch::Alone => panic!("alone"),
        }
    }

    #[track_caller]
    fn refused(&self, variables: &[(&str, &str)], parts: &[&str]) {
        let said = self.launch(variables).unwrap_err().to_string();
        assert!(!said.contains('\n'), "{said}");
        for part in parts {
            assert!(said.contains(part), "{part:?} in {said}");
        }
    }
}

fn at(host: &str, port: u16) -> Meeting {
    Meeting::RankZero(Address::new(host, port).unwrap())
}

/// Some of them set instead, or not at all.
fn with<'a>(all: &[(&'a str, &'a str)], changes: &[(&'a str, Option<&'a str>)]) -> Vec<(&'a str, &'a str)> {
    let mut changed: Vec<_> =
        all.iter().copied().filter(|(name, _)| changes.iter().all(|(changed, _)| changed != name)).collect();
    changed.extend(changes.iter().filter_map(|(name, value)| Some((*name, (*value)?))));
    changed
}

#[test]
fn nothing_set_is_a_world_of_one() {
    assert!(matches!(launch(&[]), Ok(Launch::Alone)));
    let session = Launch::Alone.join(Duration::from_secs(60)).unwrap();
    assert_eq!((session.rank(), session.size()), (0, 1));
}

#[test]
fn everything_set_is_a_rank() {
    let secret = pipe(HEX);
    let fd = secret.as_raw_fd().to_string();
    let all = [(RANK, "1"), (SIZE, "4"), (COORDINATOR, "127.0.0.1:7000"), (SECRET_FD, &fd)];
    let Launch::Rank { rank, size, meeting, secret, cables, dialect } = launch(&all).unwrap() else { panic!("alone") };
    assert_eq!((rank, size, cables, dialect), (1, 4, None, Dialect::Fulmen));
    assert_eq!(meeting, Meeting::Launcher("127.0.0.1:7000".parse().unwrap()));
    assert_eq!(secret.to_hex(), HEX);
}

#[test]
fn the_coordinator_may_be_on_another_host() {
    for address in ["192.0.2.1:7000", "[2001:db8::1]:7000", "[::1]:1"] {
        let secret = pipe(HEX);
        let fd = secret.as_raw_fd().to_string();
        let all = [(RANK, "1"), (SIZE, "4"), (COORDINATOR, address), (SECRET_FD, &fd)];
        let launch = launch(&all).unwrap();
        assert!(launch.authority().unwrap().is_ok());
        let Launch::Rank { meeting, .. } = launch else { panic!("alone") };
        assert_eq!(meeting, Meeting::Launcher(address.parse().unwrap()));
    }
    assert!(Launch::Alone.authority().is_none());
}

#[test]
fn the_launcher_may_name_the_devices_of_a_rank() {
    let with_row = |row: &str| {
        let secret = pipe(HEX);
        let fd = secret.as_raw_fd().to_string();
        let cables = ("FULMEN_CABLES", row);
        launch(&[(RANK, "1"), (SIZE, "2"), (COORDINATOR, "192.0.2.1:7000"), (SECRET_FD, &fd), cables])
    };
    let cables = Cables(vec![vec!["rdma_en5".into(), "rdma_en4".into()], vec![]]);
    let launched = with_row(&hostfile::cables_variable(&cables)).unwrap();
    assert_eq!(launched.cables(), Some(&cables));
    assert_eq!(with_row("").unwrap().cables(), None);
    for row in ["x", "[]", r#"["a", "b"]"#, r#"[null, null]"#, r#"{"hosts": []}"#] {
        let said = with_row(row).unwrap_err().to_string();
        assert!(said.contains("FULMEN_CABLES") && said.contains("one cell a rank"), "{said}");
    }
}

#[test]
fn every_half_set_combination_names_what_is_set_and_what_is_missing() {
    let all = [(RANK, "1"), (SIZE, "4"), (COORDINATOR, "127.0.0.1:7000"), (SECRET_FD, "0")];
    for set in 1..15usize {
        let chosen: Vec<_> = (0..4).filter(|at| set >> at & 1 == 1).map(|at| all[at]).collect();
        let error = launch(&chosen).unwrap_err();
        let LaunchError::Incomplete { set, missing } = &error else { panic!("{error:?}") };
        assert!(chosen.iter().any(|(name, _)| name == set), "{error}");
        assert!(
            all.iter().any(|(name, _)| name == missing) && !chosen.iter().any(|(name, _)| name == missing),
            "{error}"
        );
    }
}

#[test]
fn every_malformed_value_names_its_variable() {
    let good = [(RANK, "1"), (SIZE, "4"), (COORDINATOR, "127.0.0.1:7000"), (SECRET_FD, "0")];
    let bad: [(usize, &[&str]); 4] = [
        (0, &["", "x", "-1", "+1", "1.0", " 1", "4294967296"]),
        (1, &["", "0", "4097", "four", "-4"]),
        (
            2,
            &[
                "",
                "7000",
                "localhost:7000",
                "127.0.0.1",
                "127.0.0.1:0",
                "127.0.0.1:70000",
                "192.0.2.1",
                "0.0.0.0:7000",
                "[::]:7000",
                "224.0.0.1:7000",
                "[ff02::1]:7000",
            ],
        ),
        (3, &["", "-1", "stdin", "2147483648", "99999999999"]),
    ];
    for (at, values) in bad {
        for value in values {
            let mut all = good;
            all[at].1 = value;
            let error = launch(&all).unwrap_err();
            assert!(matches!(&error, LaunchError::Malformed { name, .. } if *name == good[at].0), "{value}: {error}");
            assert!(!error.to_string().contains('\n'));
        }
    }
    let mut all = good;
    all[0].1 = "4";
    assert_eq!(launch(&all).unwrap_err(), LaunchError::RankOutside { rank_name: RANK, rank: 4, size: 4 });
}

#[test]
fn a_value_that_is_no_text_is_malformed() {
    use std::os::unix::ffi::OsStringExt;
    let not_text = |name: &str| {
        (name == RANK || name == SIZE || name == COORDINATOR || name == SECRET_FD)
            .then(|| OsString::from_vec(vec![0xff]))
    };
    let error = Launch::from_variables(not_text).unwrap_err();
    assert!(matches!(error, LaunchError::Malformed { name: RANK, .. }));
}

#[test]
fn jaccl_and_its_older_names() {
    let foreign = Foreign::new();
    let (_folder, path) = file(r#"[[null, ["en5", "en6"]], [["en4", "en3"], null]]"#);
    let path = path.to_str().unwrap();
    let cables = Some(Cables(vec![vec!["en4".into(), "en3".into()], vec![]]));
    for (rank, devices, coordinator) in [
        ("JACCL_RANK", "JACCL_IBV_DEVICES", "JACCL_COORDINATOR"),
        ("MLX_RANK", "MLX_IBV_DEVICES", "MLX_JACCL_COORDINATOR"),
        ("MLX_RANK", "MLX_IBV_DEVICES", "MLX_IBV_COORDINATOR"),
    ] {
        let all = [(rank, "1"), (devices, path), (coordinator, "192.0.2.1:7000"), ("MLX_JACCL_RING", "1")];
        assert_eq!(foreign.rank(&all), (1, 2, at("192.0.2.1", 7000), cables.clone(), Dialect::Jaccl));
        foreign.refused(&with(&all, &[(rank, None)]), &[devices, "jaccl", "JACCL_RANK", "MLX_RANK"]);
        foreign.refused(&with(&all, &[(coordinator, None)]), &[rank, "JACCL_COORDINATOR", "MLX_JACCL_COORDINATOR"]);
        let missing = foreign.launch(&with(&all, &[(devices, None)])).unwrap_err();
        assert!(missing.to_string().contains("JACCL_IBV_DEVICES (or MLX_IBV_DEVICES)"), "{missing}");
        foreign.refused(&with(&all, &[(rank, Some("2"))]), &[rank, "outside a world of 2"]);
        foreign.refused(&with(&all, &[(rank, Some("x"))]), &[rank, "x", "a number"]);
        foreign.refused(&with(&all, &[(devices, Some("/no/such/file"))]), &[devices, "/no/such/file"]);
        foreign.refused(&with(&all, &[(coordinator, Some("192.0.2.1"))]), &[coordinator, "host with a port"]);
    }
    foreign.refused(&[("JACCL_COORDINATOR", "192.0.2.1:7000")], &["JACCL_COORDINATOR", "JACCL_RANK"]);
    // MLX's other backends set the rank alone.
    assert!(matches!(foreign.launch(&[("MLX_RANK", "1")]), Ok(Launch::Alone)));
}

#[test]
fn a_hostfile_says_where_to_meet() {
    let foreign = Foreign::new();
    let (_folder, path) = file(r#"[{"ips": ["192.0.2.7"], "rdma": [null, "a"]}, {"rdma": ["b", null]}]"#);
    let all = [("JACCL_RANK", "0"), ("JACCL_IBV_DEVICES", path.to_str().unwrap())];
    assert_eq!(foreign.rank(&all).2, at("192.0.2.7", DEFAULT_PORT));
    let (_folder, path) = file(r#"[[null, "a"], ["b", null], []]"#);
    foreign.refused(&[("JACCL_RANK", "0"), ("JACCL_IBV_DEVICES", path.to_str().unwrap())], &["not square"]);
}

const TORCHRUN: [(&str, &str); 7] = [
    ("RANK", "1"),
    ("WORLD_SIZE", "4"),
    ("LOCAL_RANK", "1"),
    ("LOCAL_WORLD_SIZE", "2"),
    ("MASTER_ADDR", "node-0"),
    ("MASTER_PORT", "29500"),
    ("TORCHELASTIC_RUN_ID", "none"),
];

#[test]
fn torchrun_meets_beyond_the_port_of_torch() {
    let foreign = Foreign::new();
    assert_eq!(foreign.rank(&TORCHRUN), (1, 4, at("node-0", 29617), None, Dialect::Torchrun));
    let high = with(&TORCHRUN, &[("MASTER_PORT", Some("65530"))]);
    assert_eq!(foreign.rank(&high).2, at("node-0", 65413));
    let chosen = with(&TORCHRUN, &[(COORDINATOR, Some("192.0.2.1:9"))]);
    assert_eq!(foreign.rank(&chosen).2, at("192.0.2.1", 9));
    let here = |port| foreign.rank(&with(&TORCHRUN, &[("LOCAL_WORLD_SIZE", Some("4")), ("MASTER_PORT", Some(port))])).2;
    assert!(matches!(here("29500"), Meeting::ThisHost(_)) && here("29500") != here("29501"));
}

#[test]
fn torchrun_is_taken_for_itself_only() {
    let foreign = Foreign::new();
    for alone in [&[("RANK", "3")][..], &[("WORLD_SIZE", "2")], &[("MASTER_ADDR", "a"), ("MASTER_PORT", "1")]] {
        assert!(matches!(foreign.launch(alone), Ok(Launch::Alone)), "{alone:?}");
    }
    let one = with(&TORCHRUN, &[("WORLD_SIZE", Some("1")), ("RANK", Some("0"))]);
    assert!(matches!(foreign.launch(&one), Ok(Launch::Alone)));
    foreign.refused(&with(&TORCHRUN, &[("RANK", None)]), &["WORLD_SIZE is set", "RANK is not", "FULMEN_LAUNCHER=none"]);
    foreign.refused(&with(&TORCHRUN, &[("WORLD_SIZE", None)]), &["RANK is set", "WORLD_SIZE is not"]);
    foreign.refused(&with(&TORCHRUN, &[("MASTER_ADDR", None)]), &["MASTER_ADDR is not"]);
    foreign.refused(&with(&TORCHRUN, &[("MASTER_PORT", None)]), &["MASTER_PORT is not"]);
    for port in ["0", "65536", "x", "-1"] {
        foreign.refused(&with(&TORCHRUN, &[("MASTER_PORT", Some(port))]), &["MASTER_PORT", port]);
    }
    foreign.refused(&with(&TORCHRUN, &[("MASTER_ADDR", Some("a b"))]), &["MASTER_ADDR", "a b"]);
    foreign.refused(&with(&TORCHRUN, &[("RANK", Some("4"))]), &["RANK=4", "outside a world of 4"]);
    foreign.refused(&with(&TORCHRUN, &[("WORLD_SIZE", Some("0"))]), &["WORLD_SIZE=0", "impossible"]);
    foreign.refused(&with(&TORCHRUN, &[(COORDINATOR, Some("somewhere"))]), &[COORDINATOR, "somewhere"]);
}

#[test]
fn launchers_of_mpi_name_no_address() {
    let foreign = Foreign::new();
    let openmpi = [
        ("OMPI_COMM_WORLD_RANK", "2"),
        ("OMPI_COMM_WORLD_SIZE", "4"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
        ("PMIX_RANK", "2"),
        ("PMIX_NAMESPACE", "prterun-node-17@1"),
    ];
    let pmi =
        [("PMI_RANK", "2"), ("PMI_SIZE", "4"), ("MPI_LOCALNRANKS", "4"), ("PMI_PORT", "node:4711"), ("PMI_FD", "9")];
    for (all, here, dialect) in
        [(&openmpi, "OMPI_COMM_WORLD_LOCAL_SIZE", Dialect::OpenMpi), (&pmi, "MPI_LOCALNRANKS", Dialect::Pmi)]
    {
        let (rank, size, meeting, cables, spoken) = foreign.rank(all);
        assert_eq!((rank, size, cables, spoken), (2, 4, None, dialect));
        assert!(matches!(meeting, Meeting::ThisHost(_)), "{meeting:?}");
        let unnamed = with(all, &[("PMIX_NAMESPACE", None), ("PMI_PORT", None)]);
        let Meeting::ThisHost(by_parent) = foreign.rank(&unnamed).2 else { panic!("elsewhere") };
        assert_ne!(Meeting::ThisHost(by_parent), meeting);
        for elsewhere in [with(all, &[(here, Some("2"))]), with(all, &[(here, None)])] {
            foreign.refused(&elsewhere, &[dialect.name(), "rank 2", "FULMEN_COORDINATOR", "192.0.2.1:7117"]);
            let told = with(&elsewhere, &[(COORDINATOR, Some("node-0:7117"))]);
            assert_eq!(foreign.rank(&told).2, at("node-0", 7117));
        }
        foreign.refused(&with(all, &[(all[0].0, Some("4"))]), &[all[0].0, "outside"]);
        foreign.refused(&with(all, &[(all[1].0, None)]), &[all[0].0, all[1].0]);
        foreign.refused(&with(all, &[(all[1].0, Some("9999"))]), &[all[1].0, "9999", "4096"]);
    }
    foreign.refused(&[("PMIX_RANK", "0")], &["PMIX_RANK is set", "PMI_SIZE is not"]);
}

const SRUN: [(&str, &str); 9] = [
    ("SLURM_JOB_ID", "17"),
    ("SLURM_STEP_ID", "0"),
    ("SLURM_PROCID", "3"),
    ("SLURM_STEP_NUM_TASKS", "4"),
    ("SLURM_STEP_NUM_NODES", "2"),
    ("SLURM_STEP_NODELIST", "node[07-08]"),
    ("SLURM_NTASKS", "8"),
    ("SLURM_LAUNCH_NODE_IPADDR", "192.0.2.99"),
    ("PMIX_RANK", "3"),
];

#[test]
fn a_step_of_slurm_meets_on_its_first_node() {
    let foreign = Foreign::new();
    let (rank, size, meeting, _, dialect) = foreign.rank(&SRUN);
    assert_eq!((rank, size, dialect), (3, 4, Dialect::Slurm));
    let Meeting::RankZero(address) = meeting else { panic!("{meeting:?}") };
    assert_eq!(address.host, "node07");
    assert!((20_000..30_000).contains(&address.port));
    let here = with(&SRUN, &[("SLURM_STEP_NUM_NODES", Some("1"))]);
    assert!(matches!(foreign.rank(&here).2, Meeting::ThisHost(_)));
    let unknown = with(&SRUN, &[("SLURM_STEP_NODELIST", None)]);
    foreign.refused(&unknown, &["slurm", "FULMEN_COORDINATOR"]);
    foreign.refused(&with(&SRUN, &[("SLURM_STEP_NODELIST", Some("node["))]), &["SLURM_STEP_NODELIST", "node["]);
    foreign.refused(&with(&SRUN, &[("SLURM_PROCID", None)]), &["SLURM_STEP_NUM_TASKS is set", "SLURM_PROCID is not"]);
    foreign.refused(&with(&SRUN, &[("SLURM_PROCID", Some("4"))]), &["SLURM_PROCID=4", "outside"]);
}

#[test]
fn slurm_that_speaks_pmi_is_slurm() {
    let foreign = Foreign::new();
    let pmi2 = [&SRUN[..], &[("PMI_RANK", "3"), ("PMI_SIZE", "4"), ("PMI_FD", "9"), ("PMI_JOBID", "17.0")]].concat();
    assert_eq!(foreign.rank(&pmi2), foreign.rank(&SRUN));
    // MPICH's launcher starts one task on each host, which starts the ranks.
    for other in [("PMI_RANK", "2"), ("PMI_SIZE", "8")] {
        let hydra = with(&pmi2, &[(other.0, Some(other.1)), (COORDINATOR, Some("node-0:7117"))]);
        assert_eq!(foreign.rank(&hydra).4, Dialect::Pmi);
    }
    let half = with(&pmi2, &[("PMI_SIZE", None)]);
    foreign.refused(&half, &["PMI_RANK is set", "PMI_SIZE is not"]);
    assert_eq!(foreign.rank(&[&half[..], &[(LAUNCHER, "slurm")]].concat()).4, Dialect::Slurm);
}

#[test]
fn an_allocation_of_slurm_is_no_step() {
    let foreign = Foreign::new();
    // What `salloc` and `sbatch` set, and the shell of an interactive step.
    let salloc = [("SLURM_JOB_ID", "17"), ("SLURM_NTASKS", "8"), ("SLURM_JOB_NODELIST", "node[07-08]")];
    let sbatch = [&salloc[..], &[("SLURM_PROCID", "0"), ("SLURM_LOCALID", "0"), ("SLURM_NODEID", "0")]].concat();
    let interactive = with(&SRUN, &[("SLURM_STEP_ID", Some("4294967290")), ("PMIX_RANK", None)]);
    let single = with(&SRUN, &[("SLURM_STEP_NUM_TASKS", Some("1")), ("SLURM_PROCID", Some("0"))]);
    for alone in [&salloc[..], &sbatch, &interactive, &single] {
        assert!(matches!(foreign.launch(alone), Ok(Launch::Alone)), "{alone:?}");
    }
}

#[test]
fn the_order_of_dialects_is_fixed_and_can_be_overruled() {
    let foreign = Foreign::new();
    let (_folder, path) = file(r#"[[null, "a"], ["b", null]]"#);
    let jaccl =
        [("JACCL_RANK", "0"), ("JACCL_IBV_DEVICES", path.to_str().unwrap()), ("JACCL_COORDINATOR", "127.0.0.1:1")];
    let openmpi = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "5"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "5")];
    let pmi = [("PMI_RANK", "0"), ("PMI_SIZE", "6"), ("MPI_LOCALNRANKS", "6")];
    let layers = [&jaccl[..], &TORCHRUN, &openmpi, &pmi, &SRUN];
    let order = [Dialect::Jaccl, Dialect::Torchrun, Dialect::OpenMpi, Dialect::Pmi, Dialect::Slurm];
    for (at, dialect) in order.into_iter().enumerate() {
        assert_eq!(foreign.rank(&layers[at..].concat()).4, dialect);
        let all = [&layers.concat()[..], &[(LAUNCHER, dialect.name())]].concat();
        assert_eq!(foreign.rank(&all).4, dialect);
        foreign.refused(&[(LAUNCHER, dialect.name())], &["FULMEN_LAUNCHER", dialect.name()]);
    }
    let fd = pipe(HEX);
    let fd = fd.as_raw_fd().to_string();
    let own = [(RANK, "1"), (SIZE, "2"), (COORDINATOR, "127.0.0.1:7000"), (SECRET_FD, fd.as_str())];
    assert_eq!(foreign.rank(&[&layers.concat()[..], &own].concat()).4, Dialect::Fulmen);
    let none = [&layers.concat()[..], &own, &[(LAUNCHER, "none")]].concat();
    assert!(matches!(foreign.launch(&none), Ok(Launch::Alone)));
    foreign.refused(&[(LAUNCHER, "mpirun")], &["FULMEN_LAUNCHER=mpirun", "openmpi", "none"]);
}

#[test]
fn the_secret_of_a_foreign_launch_can_be_named() {
    let foreign = Foreign::new();
    let secret = |more: &[(&str, &str)]| match foreign.launch(&[&TORCHRUN[..], more].concat()).unwrap() {
        Launch::Rank { secret, .. } => secret.to_hex(),
        Launch::Alone => panic!("alone"),
    };
    let own = secret(&[]);
    assert_eq!(own, secret(&[]));
    let path: PathBuf = foreign.0.path().join("fulmen/secret");
    assert_eq!(std::fs::read_to_string(&path).unwrap().trim_end(), own);
    let fd = pipe(HEX);
    assert_eq!(secret(&[(SECRET_FD, &fd.as_raw_fd().to_string())]), HEX);
    assert_eq!(secret(&[("FULMEN_SECRET_FILE", path.to_str().unwrap())]), own);
}
