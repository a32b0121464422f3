//! What all open devices of this process share: one node, and all devices on it.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use fulmen_reach::{Node, NodeAddress};
use fulmen_soft::{Addressing, Profile, SoftDevice, SoftOptions};
use fulmen_verbs::{AsyncEvent, Device, Faulty, VerbsError};

use crate::config::Config;
use crate::events::Events;
use crate::faults;
use crate::thunderbolt;

/// How long a message over UC or UD waits for its RECV. Programs post them late and count on a wire that takes a while.
const RECV_PATIENCE: Duration = Duration::from_secs(1);

/// The devices of this process.
pub(crate) struct Host {
    /// Who opened them: a child that was forked has none of their threads.
    process: u32,
    /// In the order of their names. All are opened at once, because a device's address is its place on the node.
    devices: Vec<Opened>,
}

struct Opened {
    device: Arc<dyn Device>,
    /// Who is told of its events: each context that was opened of it.
    listeners: Arc<Mutex<Vec<Weak<Events>>>>,
}

static HOST: Mutex<Option<Arc<Host>>> = Mutex::new(None);

/// Why there are no devices.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HostError {
    #[error("no node: {0}")]
    Node(#[from] fulmen_reach::ReachError),
    #[error("no device: {0}")]
    Device(#[from] fulmen_soft::OpenError),
    #[error("all {0} nodes of this user are open: end processes that use them")]
    Full(u16),
    #[error("no thread for faults: {0}")]
    Faults(std::io::Error),
    #[error("no asynchronous events: {0}")]
    Events(#[from] VerbsError),
}

/// The devices of this process, which are opened by the first call and stay open until the process ends.
///
/// # Errors
/// [`HostError`]; the next call tries again.
pub(crate) fn get(config: &'static Config) -> Result<Arc<Host>, HostError> {
    let mut host = HOST.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(host) = host.as_ref().filter(|host| host.process == std::process::id()) {
        return Ok(host.clone());
    }
    let opened = Arc::new(Host::open(config)?);
    // What a parent opened is the parent's: its threads are not here to be waited for.
    std::mem::forget(host.replace(opened.clone()));
    Ok(opened)
}

impl Host {
    fn open(config: &'static Config) -> Result<Host, HostError> {
        let (number, node) = open_node()?;
        let mut devices = Vec::with_capacity(config.devices.into());
        for index in 0..config.devices {
            let mut options = SoftOptions::new(config.profile);
            options.name = Some(config.device_name(index));
            options.addressing = Addressing::Numbered(number);
            options.recv_patience = RECV_PATIENCE;
            options.process_vm = config.process_vm;
            if config.profile == Profile::Thunderbolt {
                options.limits = thunderbolt::device_limits(config.strict);
            }
            let mut device = SoftDevice::open_as(&node, options)?;
            if let Some(plan) = &config.faults {
                let faulty = Faulty::new(device, plan.clone());
                faults::keep_time(&faulty).map_err(HostError::Faults)?;
                device = faulty;
            }
            devices.push(Opened::new(device)?);
        }
        Ok(Host { process: std::process::id(), devices })
    }

    /// Device `index`, and the events of a new context of it.
    pub(crate) fn attach(&self, index: usize, events: &Arc<Events>) -> Arc<dyn Device> {
        let opened = &self.devices[index];
        let mut listeners = opened.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.retain(|events| events.strong_count() > 0);
        listeners.push(Arc::downgrade(events));
        opened.device.clone()
    }
}

impl Opened {
    fn new(device: Arc<dyn Device>) -> Result<Opened, HostError> {
        let listeners: Arc<Mutex<Vec<Weak<Events>>>> = Arc::default();
        let told = listeners.clone();
        let tell = move |event: AsyncEvent| {
            let told = told.lock().unwrap_or_else(PoisonError::into_inner);
            told.iter().filter_map(Weak::upgrade).for_each(|events| events.push(event));
        };
        match device.on_event(Arc::new(tell)) {
            Ok(()) | Err(VerbsError::Unsupported { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Opened { device, listeners })
    }
}

/// A node under the first number that is free.
fn open_node() -> Result<(u16, Node), HostError> {
    for number in 1..=NodeAddress::MOST_NUMBERED {
        if let Some(node) = Node::open_numbered(number)? {
            return Ok((number, node));
        }
    }
    Err(HostError::Full(NodeAddress::MOST_NUMBERED))
}
