//! Owners with a narrow device, on one machine, and the ways between them.
// Two targets have it, each of which uses a part.
#![allow(dead_code)]

mod channels;

use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};

use fulmen_attach::{Attached, Desk, Far, Owner};
use fulmen_reach::Node;
use fulmen_soft::{Profile, SoftDevice};
use fulmen_verbs::{Device, DeviceLimits, Gid};

/// What a device is made of.
pub type Make = (Profile, DeviceLimits);

/// Thunderbolt on the host that had the fewest of everything.
pub fn strict() -> Make {
    // As many frames as the system was seen to grant.
    (Profile::Thunderbolt, DeviceLimits { queue_depth: 1024, ..Profile::Thunderbolt.strict_limits() })
}

pub fn wide() -> Make {
    (Profile::Infiniband, Profile::Infiniband.limits())
}

/// Takes what owners ask to all others of the street.
#[derive(Default)]
pub struct Street(Mutex<Vec<Owner>>);

/// An owner's way to the street, which does not keep it.
struct Way(Weak<Street>);

impl Far for Way {
    fn ask(&self, gid: Gid, call: &[u8]) -> Result<Vec<u8>, String> {
        let street = self.0.upgrade().ok_or("the street is gone")?;
        let owner = street.0.lock().unwrap().iter().find(|owner| owner.has(gid)).cloned();
        Ok(owner.ok_or(format!("nobody has {gid}"))?.answer(call))
    }
}

/// An owner of a device, with a door for programs.
pub struct House {
    pub owner: Option<Owner>,
    pub desk: Option<Desk>,
    pub device: Arc<dyn Device>,
    pub socket: PathBuf,
    street: Arc<Street>,
    _place: tempfile::TempDir,
}

pub const NAME: &str = "rdma_en5";

impl House {
    pub fn street<const COUNT: usize>(makes: [Make; COUNT]) -> [House; COUNT] {
        let street = Arc::new(Street::default());
        makes.map(|make| House::build(make, &street))
    }

    fn build((profile, limits): Make, street: &Arc<Street>) -> House {
        let node = Node::open().unwrap();
        let mut options = fulmen_soft::SoftOptions::new(profile);
        (options.limits, options.name) = (limits, Some(NAME.to_owned()));
        let device = SoftDevice::open_as(&node, options).unwrap();
        let place = tempfile::tempdir().unwrap();
        let socket = place.path().join("devices.sock");
        let mut house = House { owner: None, desk: None, device, socket, street: street.clone(), _place: place };
        house.open();
        house
    }

    /// Lets the owner begin, or begin anew.
    pub fn open(&mut self) {
        let owner = Owner::new(vec![self.device.clone()], Arc::new(Way(Arc::downgrade(&self.street)))).unwrap();
        let _ = std::fs::remove_file(&self.socket);
        self.desk = Some(owner.serve(UnixListener::bind(&self.socket).unwrap()).unwrap());
        self.street.0.lock().unwrap().push(owner.clone());
        self.owner = Some(owner);
    }

    /// Has a device whose completions are told by channels alone.
    pub fn by_channels(mut self) -> House {
        self.close();
        self.device = Arc::new(channels::ByChannels(self.device.clone()));
        self.open();
        self
    }

    /// Ends the owner.
    pub fn close(&mut self) {
        self.desk = None;
        let gid = self.device.gid_table(1).unwrap()[0].gid;
        self.street.0.lock().unwrap().retain(|owner| !owner.has(gid));
        self.owner = None;
    }

    pub fn attach(&self) -> Arc<dyn Device> {
        Attached::open(&self.socket, NAME).unwrap()
    }
}

impl Drop for House {
    fn drop(&mut self) {
        self.close();
    }
}
