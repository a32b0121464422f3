//! torchrun's variables.
//!
//! | variable | holds |
//! |---|---|
//! | `RANK`, `WORLD_SIZE` | the rank, and how many there are |
//! | `LOCAL_WORLD_SIZE` | how many there are on this host |
//! | `MASTER_ADDR`, `MASTER_PORT` | rank 0's host, by name or address, and the port of torch's own store |
//! | `TORCHELASTIC_RUN_ID`, `TORCHELASTIC_RESTART_COUNT` | which job this is, and its how manieth start |
//!
//! The port belongs to torch: its agent listens there before a program begins. So rank 0 serves the coordinator [`BEYOND`] ports
//! further on; where all ranks are on one host, at any free port.

use super::environment::{Environment, number, parse};
use super::meeting::Address;
use super::place::{Place, both};
use super::{Dialect, LaunchError};

/// How far the coordinator's port is from torch's. Programs take the next ones for other stores.
const BEYOND: u16 = 117;

const RANK: &str = "RANK";
const SIZE: &str = "WORLD_SIZE";
const HOST: &str = "MASTER_ADDR";
const PORT: &str = "MASTER_PORT";
const RUN: &str = "TORCHELASTIC_RUN_ID";

/// These names are so common that one of them alone says nothing: the shell of a user may have it for something else.
pub(super) fn is_spoken(environment: &Environment<'_>) -> bool {
    let set = |name: &&&str| environment.has(name);
    let place = [RANK, SIZE].iter().filter(set).count();
    place == 2 || place == 1 && [HOST, RUN].iter().any(|name| environment.has(name))
}

pub(super) fn read(environment: &Environment<'_>) -> Result<Place, LaunchError> {
    let (rank, size) =
        both(Dialect::Torchrun, (environment.number(&[RANK])?, RANK), (environment.number(&[SIZE])?, SIZE))?;
    let here = environment.number(&["LOCAL_WORLD_SIZE"])?;
    let (host, port) = (environment.text(HOST)?, environment.text(PORT)?);
    let address = match (host, port) {
        (Some(host), Some(port)) => Some(address(&host, port)?),
        _ => None,
    };
    let is_here = here.is_some_and(|here| here.value == size.value);
    let job_here = is_here.then(|| job(environment)).transpose()?;
    if job_here.is_none() && address.is_none() && size.value > 1 && !environment.has(super::COORDINATOR) {
        let missing = if environment.has(HOST) { PORT } else { HOST };
        return Err(LaunchError::HalfSet { launcher: Dialect::Torchrun.name(), set: SIZE, missing });
    }
    Ok(Place { rank, size, job_here, address, cables: None })
}

fn address(host: &str, port: String) -> Result<Address, LaunchError> {
    let torch = parse(PORT, &port.into(), "a port from 1 to 65535", |text| {
        number(text).and_then(|port| u16::try_from(port).ok()).filter(|port| *port != 0)
    })?;
    let port = torch.checked_add(BEYOND).unwrap_or(torch - BEYOND);
    Address::new(host, port).ok_or_else(|| LaunchError::Malformed {
        name: HOST,
        value: host.escape_debug().collect(),
        expected: "the name or the address of a host",
    })
}

/// Jobs of one host differ in the port of their store, if not in their name.
fn job(environment: &Environment<'_>) -> Result<String, LaunchError> {
    let mut job = Vec::new();
    for name in [RUN, "TORCHELASTIC_RESTART_COUNT", HOST, PORT] {
        job.push(environment.text(name)?.unwrap_or_default());
    }
    if job.iter().all(String::is_empty) { Ok(super::of_parent()) } else { Ok(job.join("\0")) }
}
