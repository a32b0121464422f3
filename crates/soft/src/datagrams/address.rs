//! Address handles.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fulmen_reach::NodeAddress;
use fulmen_verbs::{AddressHandle, AddressPath, Claim, VerbsError};

use super::message::Global;
use super::route::Route;
use crate::device::DeviceCore;
use crate::domain::Domain;
use crate::network::{Network, Place};

/// Address handles of one device.
pub(crate) const MOST_HANDLES: u64 = 1 << 16;

/// How long a device of the network may take to say on which host it is.
const PATIENCE: Duration = Duration::from_secs(10);

/// What an address handle means.
pub(super) struct Address {
    domain: u64,
    /// The node, and the device's number on it if the address tells; `None` if the address is nobody's.
    to: Option<(NodeAddress, Option<u32>)>,
    route: Option<Arc<Route>>,
    pub(super) global: Option<Global>,
}

impl Address {
    /// The way to the device that has queue pair `number`; `None` if there can be no such device.
    pub(super) fn route(&self, domain: &Domain, number: u32) -> Option<Arc<Route>> {
        match (&self.route, self.to) {
            (Some(route), _) => Some(route.clone()),
            (None, Some((node, None))) => Some(domain.device.datagrams.route(node, crate::device::pair_device(number))),
            (None, _) => None,
        }
    }
}

/// What users hold of an address handle.
struct Handle {
    domain: Arc<Domain>,
    number: u32,
    _claim: Claim,
}

/// Makes an address handle in a domain.
pub(crate) fn create(domain: &Arc<Domain>, path: &AddressPath) -> Result<Arc<dyn AddressHandle>, VerbsError> {
    let device = &domain.device;
    if !device.info.capabilities.ud {
        return Err(VerbsError::Unsupported { device: device.info.name.clone(), what: "address handles" });
    }
    device.info.check_port(path.port)?;
    if path.remote_gid.is_zero() && path.remote_lid == 0 {
        let problem = "both the GID and the LID are zero: give one".to_owned();
        return Err(VerbsError::Invalid { what: "address", problem });
    }
    let gids = device.gids().len();
    let index = path.local_gid_index;
    if !path.remote_gid.is_zero() && usize::from(index) >= gids {
        let problem = format!("index {index} is empty: the last one is {}", gids - 1);
        return Err(VerbsError::Invalid { what: "GID", problem });
    }
    let claim = device.datagrams.budget.take()?;
    // Whether anybody is there shows when something is sent, and is told to nobody.
    let to = match &device.network {
        None => device.options.addressing.find(path.remote_gid, path.remote_lid).ok().map(|at| (at.node, at.index)),
        Some(network) => on_network(device, network, path)?,
    };
    let route = match to {
        Some((node, Some(index))) => Some(device.datagrams.route(node, index)),
        _ => None,
    };
    let global = (!path.remote_gid.is_zero()).then_some(Global { index, gid: path.remote_gid });
    let address = Arc::new(Address { domain: domain.number, to, route, global });
    let number = device.datagrams.add_address(address);
    Ok(Arc::new(Handle { domain: domain.clone(), number, _claim: claim }))
}

/// The node of the device at an address of the network, if it is on this host.
fn on_network(
    device: &DeviceCore,
    network: &Network,
    path: &AddressPath,
) -> Result<Option<(NodeAddress, Option<u32>)>, VerbsError> {
    let place = |address| network.place(address, Instant::now() + PATIENCE);
    match network.peer_at(path.remote_gid, path.remote_lid).and_then(place) {
        Ok(Place::Here(node)) => Ok(Some((node, None))),
        Ok(Place::There) => {
            Err(VerbsError::Unsupported { device: device.info.name.clone(), what: "datagrams to other hosts" })
        }
        Err(_) => Ok(None),
    }
}

/// What the handle of this number means in a domain.
pub(super) fn find(domain: &Domain, number: u32) -> Result<Arc<Address>, VerbsError> {
    let found = domain.device.datagrams.addresses().get(&number).cloned();
    found.filter(|address| address.domain == domain.number).ok_or_else(|| VerbsError::Invalid {
        what: "address handle",
        problem: format!("the queue pair's domain has none of number {number}"),
    })
}

impl AddressHandle for Handle {
    fn number(&self) -> u32 {
        self.number
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if !self.domain.device.node.is_inherited() {
            self.domain.device.datagrams.remove_address(self.number);
        }
    }
}

impl super::Datagrams {
    /// Keeps an address under a number that no other one has.
    fn add_address(&self, address: Arc<Address>) -> u32 {
        let mut addresses = self.addresses_mut();
        loop {
            let number = self.next_address.fetch_add(1, Ordering::Relaxed);
            if let std::collections::hash_map::Entry::Vacant(place) = addresses.entry(number) {
                place.insert(address);
                return number;
            }
        }
    }

    fn remove_address(&self, number: u32) {
        let address = self.addresses_mut().remove(&number);
        // The way that it may have held is left with no lock held.
        drop(address);
    }
}
