use crate::{Transport, ffi};

/// What a device says of itself, as it says it. What Fulmen makes of it is in [`fulmen_verbs::DeviceInfo`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attributes {
    /// The version of its firmware; empty if it has none.
    pub firmware: String,
    /// The vendor's number.
    pub vendor_id: u32,
    /// The vendor's number for this kind of device.
    pub vendor_part_id: u32,
    /// The hardware's version.
    pub hardware_version: u32,
    /// What its queue pairs run over: Thunderbolt also if only the link layer of a port says so.
    pub transport: Transport,
    /// The node's own number.
    pub node_guid: u64,
    /// Bytes of the largest registration.
    pub max_mr_size: u64,
    /// The page sizes that it supports: bit n stands for 2^n bytes.
    pub page_sizes: u64,
    /// Queue pairs.
    pub max_qp: i32,
    /// Requests in a queue.
    pub max_qp_wr: i32,
    /// Scatter/gather elements of a request.
    pub max_sge: i32,
    /// Scatter/gather elements of a READ.
    pub max_sge_rd: i32,
    /// Completion queues.
    pub max_cq: i32,
    /// Entries of a completion queue.
    pub max_cqe: i32,
    /// Registrations.
    pub max_mr: i32,
    /// Protection domains.
    pub max_pd: i32,
    /// READs and atomics that a queue pair serves at a time.
    pub max_qp_rd_atom: i32,
    /// READs and atomics that a queue pair may have in flight.
    pub max_qp_init_rd_atom: i32,
    /// How atomic its atomics are: 0 has none, 1 among requests of this device, 2 with the processors, too.
    pub atomic_cap: u32,
    /// Ports.
    pub ports: u8,
}

impl Attributes {
    pub(crate) fn of(raw: &ffi::DeviceAttr, transport: Transport) -> Attributes {
        let firmware = raw.fw_ver.iter().take_while(|byte| **byte != 0).map(|byte| *byte as u8).collect::<Vec<u8>>();
        Attributes {
            firmware: String::from_utf8_lossy(&firmware).into_owned(),
            vendor_id: raw.vendor_id,
            vendor_part_id: raw.vendor_part_id,
            hardware_version: raw.hw_ver,
            transport,
            node_guid: u64::from_be(raw.node_guid),
            max_mr_size: raw.max_mr_size,
            page_sizes: raw.page_size_cap,
            max_qp: raw.max_qp,
            max_qp_wr: raw.max_qp_wr,
            max_sge: raw.max_sge,
            max_sge_rd: raw.max_sge_rd,
            max_cq: raw.max_cq,
            max_cqe: raw.max_cqe,
            max_mr: raw.max_mr,
            max_pd: raw.max_pd,
            max_qp_rd_atom: raw.max_qp_rd_atom,
            max_qp_init_rd_atom: raw.max_qp_init_rd_atom,
            atomic_cap: raw.atomic_cap,
            ports: raw.phys_port_cnt,
        }
    }
}

/// How fast a port is, as the device says.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct PortSpeed {
    /// Lanes; 0 if the device does not say.
    pub lanes: u8,
    /// Gigabits a second of one lane, on the wire; 0 if the device does not say.
    pub lane_gigabits: f64,
}

impl PortSpeed {
    pub(crate) fn of(raw: &ffi::PortAttr) -> PortSpeed {
        // InfiniBand specification, PortInfo: LinkWidthActive and LinkSpeedActive.
        let lanes = match raw.active_width {
            1 => 1,
            2 => 4,
            4 => 8,
            8 => 12,
            16 => 2,
            _ => 0,
        };
        let lane_gigabits = match raw.active_speed {
            1 => 2.5,
            2 => 5.0,
            4 | 8 => 10.0,
            16 => 14.0,
            32 => 25.0,
            64 => 50.0,
            128 => 100.0,
            _ => 0.0,
        };
        PortSpeed { lanes, lane_gigabits }
    }

    /// Gigabits a second of the port, on the wire; `None` if the device does not say.
    #[must_use]
    pub fn gigabits(&self) -> Option<f64> {
        let gigabits = f64::from(self.lanes) * self.lane_gigabits;
        (gigabits > 0.0).then_some(gigabits)
    }
}
