//! What a rank tells about its devices, before anything is made of them.

use fulmen_verbs::{DeviceInfo, Gid, LinkLayer, Mtu};
use serde::{Deserialize, Serialize};

use super::error::DeviceError;
use super::port::Port;

/// Numbers of queue pairs and of packets have 24 bits.
pub(super) const BITS_24: u32 = (1 << 24) - 1;

/// What a rank tells about one of its devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Offer {
    /// The device's name, for people.
    pub device: String,
    pub port: u8,
    /// What the port speaks, in words.
    pub link_layer: String,
    pub gid: [u8; 16],
    /// Its place in the device's table.
    pub gid_index: u8,
    /// Its address within the subnet, on InfiniBand.
    pub lid: u16,
    /// Whether that holds an IPv4 address, where both ends must agree on that.
    pub ipv4: Option<bool>,
    /// Bytes of the largest transmission unit.
    pub mtu: u32,
    /// RC queue pairs.
    pub reliable: bool,
    /// UC queue pairs.
    pub unreliable: bool,
    pub immediate: bool,
    pub frame: Option<u32>,
    pub message_bytes: u64,
    pub queue_depth: u32,
    /// What its device does for one-sided operations, as bits of `Rights`.
    pub verbs: u8,
    /// READs and atomics in flight.
    pub reads: u8,
}

impl Offer {
    pub(super) fn new(port: &Port) -> Offer {
        let gid = port.gid.gid;
        Offer {
            port: port.number,
            link_layer: port.link_layer.to_string(),
            gid: gid.0,
            gid_index: port.gid.index,
            lid: port.lid,
            ipv4: (port.link_layer == LinkLayer::Ethernet).then(|| gid.is_ipv4_mapped()),
            mtu: port.mtu.bytes(),
            ..Offer::of(port.device.info())
        }
    }

    /// That of a device whose port does not matter.
    pub(super) fn of(info: &DeviceInfo) -> Offer {
        let (can, limits) = (&info.capabilities, &info.limits);
        Offer {
            device: info.name.clone(),
            port: 1,
            link_layer: String::new(),
            gid: [0xff; 16],
            gid_index: 0,
            lid: 0,
            ipv4: None,
            mtu: Mtu::B256.bytes(),
            reliable: can.rc,
            unreliable: can.uc,
            immediate: can.immediate,
            frame: limits.frame,
            message_bytes: limits.message_bytes,
            queue_depth: limits.queue_depth,
            verbs: super::rdma::verbs(can).bits(),
            reads: limits.reads_in_flight.min(16),
        }
    }

    /// What a request of so many bytes takes of a queue's depth.
    pub(super) fn depth_of(&self, bytes: u64) -> u64 {
        self.frame.map_or(1, |frame| bytes.div_ceil(u64::from(frame.max(1))).max(1))
    }

    /// Whether rank `peer`'s offer can be connected with this rank's.
    pub(super) fn check(&self, ours: &Offer, peer: u32) -> Result<(), DeviceError> {
        let told = |problem: &str| DeviceError::Told {
            peer,
            device: self.device.clone(),
            port: self.port,
            problem: problem.to_owned(),
        };
        if self.port == 0 {
            return Err(told("ports are numbered from 1"));
        }
        if Gid(self.gid).is_zero() {
            return Err(told(&format!(
                "its GID (index {}) is zero, which is no address: bring its network interface up",
                self.gid_index
            )));
        }
        if !(256..=4096).contains(&self.mtu) || !self.mtu.is_power_of_two() {
            return Err(told(&format!("there is no transmission unit of {} bytes", self.mtu)));
        }
        if self.link_layer != ours.link_layer {
            return Err(told(&format!(
                "it speaks {}, and this rank's {} {}: give devices on one network",
                self.link_layer, ours.device, ours.link_layer
            )));
        }
        if self.ipv4 != ours.ipv4 {
            let family = |ipv4: Option<bool>| if ipv4 == Some(true) { "IPv4" } else { "IPv6" };
            return Err(told(&format!(
                "its address {} is {}, and that of this rank's {}, {}, {}: give both interfaces an IPv4 address",
                Gid(self.gid),
                family(self.ipv4),
                ours.device,
                Gid(ours.gid),
                family(ours.ipv4)
            )));
        }
        Ok(())
    }
}

/// What a rank tells about all of its devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Said {
    pub generation: u64,
    /// The devices that links may run over.
    pub offers: Vec<Offer>,
    /// By rank: those that lead there, in order of preference; none where one cannot be used. The first at both ends is the
    /// first cable, and so on.
    pub leads: Vec<Vec<Option<u32>>>,
}

impl Said {
    /// What leads from this rank to `peer`.
    pub(super) fn to(&self, peer: u32) -> &[Option<u32>] {
        self.leads.get(peer as usize).map_or(&[], Vec::as_slice)
    }

    /// The names of the devices that lead from this rank to `peer`.
    pub(super) fn names(&self, peer: u32) -> Vec<String> {
        let device = |index: &Option<u32>| {
            index.and_then(|index| self.offer(index)).map_or("none", |offer| &offer.device).to_owned()
        };
        self.to(peer).iter().map(device).collect()
    }

    pub(super) fn offer(&self, index: u32) -> Option<&Offer> {
        self.offers.get(index as usize)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn offer(reliable: bool, frame: Option<u32>) -> Offer {
        Offer {
            device: "a".into(),
            port: 1,
            link_layer: "Ethernet".into(),
            gid: [1; 16],
            gid_index: 3,
            lid: 0,
            ipv4: Some(true),
            mtu: 4096,
            reliable,
            unreliable: !reliable,
            immediate: reliable,
            frame,
            message_bytes: 4095 * 4096,
            queue_depth: 4095,
            verbs: 0,
            reads: 16,
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_the_rank_and_the_way_out() {
        type Change = fn(&mut Offer);
        let cases: [(Change, &[&str]); 6] = [
            (|offer| offer.port = 0, &["numbered from 1"]),
            (|offer| offer.gid = [0; 16], &["index 3", "zero", "interface up"]),
            (|offer| offer.mtu = 0, &["no transmission unit of 0"]),
            (|offer| offer.mtu = 1500, &["no transmission unit of 1500"]),
            (|offer| offer.link_layer = "InfiniBand".into(), &["speaks InfiniBand", "this rank's a Ethernet"]),
            (|offer| offer.ipv4 = Some(false), &["IPv6", "give both", "101:101"]),
        ];
        let ours = offer(true, None);
        ours.check(&ours, 5).unwrap();
        for (change, words) in cases {
            let mut theirs = ours.clone();
            change(&mut theirs);
            let text = theirs.check(&ours, 5).unwrap_err().to_string();
            for word in words.iter().chain(&["rank 5's a"]) {
                assert!(text.contains(word), "{text} does not say {word}");
            }
        }
    }
}
