//! Which port of which device the links use.

use std::sync::Arc;

use fulmen_verbs::{Device, GidEntry, Mtu, PortState, select_gid};

use super::error::{DeviceError, PortError};

/// An active port, with the address by which peers name it.
pub(super) struct Port {
    pub device: Arc<dyn Device>,
    pub number: u8,
    pub mtu: Mtu,
    pub gid: GidEntry,
}

/// The first active port that has an address, of the first device that has queue pairs of some kind.
pub(super) fn choose(devices: &[Arc<dyn Device>]) -> Result<Port, DeviceError> {
    if devices.is_empty() {
        return Err(DeviceError::None);
    }
    let mut problems = Vec::new();
    for device in devices {
        let info = device.info();
        let can = &info.capabilities;
        if !(can.rc || can.uc) {
            problems.push(PortError::NoPairs { device: info.name.clone() }.to_string());
            continue;
        }
        if info.ports == 0 {
            problems.push(PortError::NoPorts { device: info.name.clone() }.to_string());
        }
        for number in 1..=info.ports {
            match look_at(device, number) {
                Ok(port) => return Ok(port),
                Err(problem) => problems.push(problem.to_string()),
            }
        }
    }
    Err(DeviceError::Unusable { problems })
}

fn look_at(device: &Arc<dyn Device>, port: u8) -> Result<Port, PortError> {
    let name = || device.info().name.clone();
    let unknown = |cause| PortError::Unknown { device: name(), port, cause };
    let info = device.port(port).map_err(unknown)?;
    if info.state != PortState::Active {
        return Err(PortError::Inactive { device: name(), port });
    }
    let table = device.gid_table(port).map_err(unknown)?;
    let gid = select_gid(info.link_layer, &table).map_err(|cause| PortError::Gid { device: name(), port, cause })?;
    Ok(Port { device: device.clone(), number: port, mtu: info.active_mtu, gid })
}
