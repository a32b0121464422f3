//! Which port of a device links use, and waiting for one that is not ready yet.
//!
//! A port comes up some time after its cable is connected or its machine has started, and its addresses come one after the
//! other: at first the link-local one, IPv4 when somebody has given it out. So a port that may become ready is looked at
//! again for a while, and one that has nothing but a link-local address for a shorter while: it is all that some have.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use fulmen_verbs::{Device, GidEntry, GidKind, LinkLayer, Mtu, PortState, select_gid};

use super::error::PortError;

/// How often it is looked at.
const NAP: Duration = Duration::from_millis(100);
/// How long an address that holds IPv4 is waited for where there is a link-local one.
const SETTLE: Duration = Duration::from_secs(2);

/// An active port, with the address by which peers name it.
#[derive(Clone)]
pub(super) struct Port {
    pub device: Arc<dyn Device>,
    pub number: u8,
    pub link_layer: LinkLayer,
    pub mtu: Mtu,
    pub gid: GidEntry,
    /// Its address within the subnet, on InfiniBand.
    pub lid: u16,
}

impl Port {
    /// Whether its interface may still get a better address.
    pub(super) fn may_improve(&self) -> bool {
        let own = self.gid.gid.0;
        let is_link_local = own[..8] == [0xfe, 0x80, 0, 0, 0, 0, 0, 0];
        is_link_local && self.link_layer != LinkLayer::Infiniband && self.gid.kind != GidKind::Infiniband
    }
}

/// The first active port of a device that has an address; else why there is none, for each.
fn look_at(device: &Arc<dyn Device>) -> Result<Port, Vec<PortError>> {
    let info = device.info();
    let can = &info.capabilities;
    let mut problems = Vec::new();
    if !(can.rc || can.uc) {
        problems.push(PortError::NoPairs { device: info.name.clone() });
    } else if info.ports == 0 {
        problems.push(PortError::NoPorts { device: info.name.clone() });
    } else {
        let mut settling = None;
        for number in 1..=info.ports {
            match look_at_port(device, number) {
                Ok(port) if port.may_improve() => settling = settling.or(Some(port)),
                Ok(port) => return Ok(port),
                Err(problem) => problems.push(problem),
            }
        }
        if let Some(port) = settling {
            return Ok(port);
        }
    }
    Err(problems)
}

fn look_at_port(device: &Arc<dyn Device>, number: u8) -> Result<Port, PortError> {
    let name = || device.info().name.clone();
    let unknown = |cause| PortError::Unknown { device: name(), port: number, cause };
    let info = device.port(number).map_err(unknown)?;
    if info.state != PortState::Active {
        return Err(PortError::Inactive { device: name(), port: number });
    }
    let table = device.gid_table(number).map_err(unknown)?;
    let gid =
        select_gid(info.link_layer, &table).map_err(|cause| PortError::Gid { device: name(), port: number, cause })?;
    Ok(Port { device: device.clone(), number, link_layer: info.link_layer, mtu: info.active_mtu, gid, lid: info.lid })
}

/// What was found at one device.
pub(super) type Found = Result<Port, Vec<PortError>>;

/// How far a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It cannot be used as it is.
    Unusable,
    /// It can be used, but may get a better address.
    Settling,
    Ready,
}

/// Looks at all devices again and again until they are `enough`, or none can get any further, at most for `patience`.
pub(super) fn find(devices: &[&Arc<dyn Device>], patience: Duration, enough: impl Fn(&[State]) -> bool) -> Vec<Found> {
    let start = Instant::now();
    let mut told = false;
    // Since when a device has had nothing but a link-local address.
    let mut settling: Vec<Option<Instant>> = vec![None; devices.len()];
    loop {
        let found: Vec<Found> = devices.iter().map(|device| look_at(device)).collect();
        let now = Instant::now();
        let mut states = Vec::with_capacity(found.len());
        for (found, since) in found.iter().zip(&mut settling) {
            *since = found.as_ref().ok().filter(|port| port.may_improve()).map(|_| since.unwrap_or(now));
            states.push(match (found, *since) {
                (Err(_), _) => State::Unusable,
                (Ok(_), Some(since)) if now.duration_since(since) < SETTLE => State::Settling,
                (Ok(_), _) => State::Ready,
            });
        }
        let may_pass = |found: &Found| found.as_ref().is_err_and(|problems| problems.iter().any(PortError::may_pass));
        let may_change = states.contains(&State::Settling) || found.iter().any(may_pass);
        if enough(&states) || !may_change || now.duration_since(start) >= patience {
            return found;
        }
        if !told {
            told = true;
            let problems: Vec<_> = found.iter().flat_map(problems).collect();
            tracing::info!(problems = problems.join("; "), ?patience, "waiting for devices to become ready");
        }
        thread::sleep(NAP.min(patience));
    }
}

/// In words.
pub(super) fn problems(found: &Found) -> Vec<String> {
    found.as_ref().err().into_iter().flatten().map(ToString::to_string).collect()
}
