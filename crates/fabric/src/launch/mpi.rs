//! The variables of MPI's launchers: OpenMPI's own, and those of PMI, which MPICH, Intel MPI and others set.
//!
//! | what | OpenMPI | PMI |
//! |---|---|---|
//! | rank | `OMPI_COMM_WORLD_RANK` | `PMI_RANK`, else `PMIX_RANK` |
//! | size | `OMPI_COMM_WORLD_SIZE` | `PMI_SIZE` |
//! | ranks on this host | `OMPI_COMM_WORLD_LOCAL_SIZE` | `MPI_LOCALNRANKS`, `PMI_LOCAL_SIZE`, `MV2_COMM_WORLD_LOCAL_SIZE` |
//! | which job | `PMIX_NAMESPACE`, `OMPI_MCA_ess_base_jobid` | `PMIX_NAMESPACE`, `PMI_JOBID`, `PMI_PORT` |
//!
//! None of them says where ranks could meet: beyond one host, `FULMEN_COORDINATOR` must.

use super::environment::{Environment, Set};
use super::place::{Place, both};
use super::{Dialect, LaunchError, slurm};

const OPENMPI_RANK: &str = "OMPI_COMM_WORLD_RANK";
const OPENMPI_SIZE: &str = "OMPI_COMM_WORLD_SIZE";
const PMI_RANK: [&str; 2] = ["PMI_RANK", "PMIX_RANK"];
const PMI_SIZE: &str = "PMI_SIZE";
const RANK_AND_SIZE: [&str; 2] = [PMI_RANK[0], PMI_SIZE];

pub(super) fn openmpi_is_spoken(environment: &Environment<'_>) -> bool {
    environment.has(OPENMPI_RANK) || environment.has(OPENMPI_SIZE)
}

/// Where Slurm speaks PMI, its own variables say more. PMIx has a variable for the rank and none for the size; those of PMI are
/// Slurm's (`srun --mpi=pmi2`) if they say what Slurm's own say, and otherwise those of a launcher that Slurm has started.
pub(super) fn pmi_is_spoken(environment: &Environment<'_>) -> bool {
    let pmi = environment.has(PMI_RANK[0]) || environment.has(PMI_SIZE);
    let by_slurm = slurm::is_spoken(environment) && (!pmi || slurm::agrees(environment, RANK_AND_SIZE));
    (pmi || environment.has(PMI_RANK[1])) && !by_slurm
}

pub(super) fn read_openmpi(environment: &Environment<'_>) -> Result<Place, LaunchError> {
    let launcher = Dialect::OpenMpi;
    let (rank, size) = both(
        launcher,
        (environment.number(&[OPENMPI_RANK])?, OPENMPI_RANK),
        (environment.number(&[OPENMPI_SIZE])?, OPENMPI_SIZE),
    )?;
    let here = environment.number(&["OMPI_COMM_WORLD_LOCAL_SIZE"])?;
    let job = environment.first(&["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"])?;
    Ok(place(rank, size, here, job))
}

pub(super) fn read_pmi(environment: &Environment<'_>) -> Result<Place, LaunchError> {
    let (rank, size) =
        both(Dialect::Pmi, (environment.number(&PMI_RANK)?, "PMI_RANK"), (environment.number(&[PMI_SIZE])?, PMI_SIZE))?;
    let here = environment.number(&["MPI_LOCALNRANKS", "PMI_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"])?;
    let job = environment.first(&["PMIX_NAMESPACE", "PMI_JOBID", "PMI_PORT"])?;
    Ok(place(rank, size, here, job))
}

fn place(rank: Set<u32>, size: Set<u32>, here: Option<Set<u32>>, job: Option<Set<String>>) -> Place {
    let is_here = here.is_some_and(|here| here.value == size.value);
    // All ranks of a host are children of the same process, where the launcher does not name the job.
    let job_here = is_here.then(|| job.map_or_else(super::of_parent, |job| job.value));
    Place { rank, size, job_here, address: None, cables: None }
}
