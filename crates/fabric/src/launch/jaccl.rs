//! JACCL's variables, and the older ones of MLX, as `mlx.launch` sets them: a rank, a file of devices, an address.
//!
//! | variable | older names | holds |
//! |---|---|---|
//! | `JACCL_RANK` | `MLX_RANK` | the rank |
//! | `JACCL_IBV_DEVICES` | `MLX_IBV_DEVICES` | the path of the device file, whose size is the world's; or of `mlx.launch`'s hostfile |
//! | `JACCL_COORDINATOR` | `MLX_JACCL_COORDINATOR`, `MLX_IBV_COORDINATOR` | `ip:port`, where rank 0 serves; with a hostfile, its first address on port 7117 does |
//!
//! `MLX_JACCL_RING` changes nothing: the algorithm is Fulmen's choice.

use std::path::Path;

use super::devices::Devices;
use super::environment::{Environment, Set};
use super::meeting::Address;
use super::place::{Place, address_of, both};
use super::{DEFAULT_PORT, Dialect, LaunchError};

const RANK: [&str; 2] = ["JACCL_RANK", "MLX_RANK"];
const DEVICES: [&str; 2] = ["JACCL_IBV_DEVICES", "MLX_IBV_DEVICES"];
const COORDINATOR: [&str; 3] = ["JACCL_COORDINATOR", "MLX_JACCL_COORDINATOR", "MLX_IBV_COORDINATOR"];

/// `MLX_RANK` alone belongs to MLX's other backends.
pub(super) fn is_spoken(environment: &Environment<'_>) -> bool {
    DEVICES.iter().chain(&COORDINATOR).chain(&RANK[..1]).any(|name| environment.has(name))
}

pub(super) fn read(environment: &Environment<'_>) -> Result<Place, LaunchError> {
    let launcher = Dialect::Jaccl;
    let rank = environment.number(&RANK)?;
    let file = environment.first(&DEVICES)?;
    let address = environment.first(&COORDINATOR)?;
    if let (None, None, Some(address)) = (&rank, &file, &address) {
        return Err(LaunchError::HalfSet {
            launcher: launcher.name(),
            set: address.name,
            missing: "JACCL_RANK (or MLX_RANK)",
        });
    }
    let (rank, file) =
        both(launcher, (rank, "JACCL_RANK (or MLX_RANK)"), (file, "JACCL_IBV_DEVICES (or MLX_IBV_DEVICES)"))?;
    let devices = Devices::read(file.name, Path::new(&file.value))?;
    let size = devices.size();
    if rank.value >= size {
        return Err(LaunchError::RankOutside { rank_name: rank.name, rank: rank.value, size });
    }
    let address = match address {
        Some(Set { name, value }) => address_of(name, &value)?,
        None => devices.address.as_deref().and_then(|host| Address::new(host, DEFAULT_PORT)).ok_or(
            LaunchError::HalfSet {
                launcher: launcher.name(),
                set: rank.name,
                missing: "JACCL_COORDINATOR (or MLX_JACCL_COORDINATOR)",
            },
        )?,
    };
    let cables = Some(devices.cables(rank.value));
    Ok(Place { rank, size: Set { name: file.name, value: size }, job_here: None, address: Some(address), cables })
}
