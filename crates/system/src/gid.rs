//! GID tables.

use fulmen_verbs::{Gid, GidEntry, GidKind, LinkLayer, VerbsError};

use crate::device::Core;
use crate::ffi::{self, number};
use crate::platform;

/// Entries whose index a request can name.
const INDEXES: usize = 256;
/// Entries that all ports of a device have at most, as far as anybody looks.
const MOST: usize = 4096;

/// A port's GID table, without its empty entries.
pub(crate) fn table(core: &Core, port: u8) -> Result<Vec<GidEntry>, VerbsError> {
    let attr = core.port_attr(port)?;
    let link_layer = core.link_layer(&attr);
    let entries = usize::try_from(attr.gid_tbl_len).unwrap_or(0).min(INDEXES);
    let found = match at_once(core, port) {
        Some(found) => found,
        None => one_by_one(core, port, entries)?,
    };
    Ok(found.into_iter().map(|(index, gid, told)| entry(core, port, link_layer, (index, gid, told))).collect())
}

fn entry(core: &Core, port: u8, link_layer: LinkLayer, (index, gid, told): (u8, Gid, GidKind)) -> GidEntry {
    if link_layer == LinkLayer::Thunderbolt {
        return GidEntry { index, gid, kind: GidKind::Unknown, interface_up: None };
    }
    let (kind, interface_up) = platform::gid(&core.info.name, port, index, link_layer);
    let kind = match (kind, told) {
        // No kind of an Ethernet port: nobody knows.
        (GidKind::Unknown, GidKind::Infiniband) if link_layer == LinkLayer::Ethernet => GidKind::Unknown,
        (GidKind::Unknown, told) => told,
        (kind, _) => kind,
    };
    GidEntry { index, gid, kind, interface_up }
}

/// By the call that gives all entries that are not empty, where the library has it and the system answers.
fn at_once(core: &Core, port: u8) -> Option<Vec<(u8, Gid, GidKind)>> {
    let query = core.library.calls.query_gid_table.filter(|_| platform::HAS_GID_TABLES)?;
    let empty =
        ffi::GidEntry { gid: ffi::Gid { raw: [0; 16] }, gid_index: 0, port_num: 0, gid_type: 0, ndev_ifindex: 0 };
    let mut room = vec![empty; MOST];
    // SAFETY: the context is open, and so many entries of this size have room.
    let count = unsafe { query(core.context.as_ptr(), room.as_mut_ptr(), room.len(), 0, size_of::<ffi::GidEntry>()) };
    room.truncate(usize::try_from(count).ok()?);
    let own = room.iter().filter(|entry| entry.port_num == u32::from(port) && entry.gid.raw != [0; 16]);
    let told = own.filter_map(|entry| {
        let kind = match entry.gid_type {
            number::GID_TYPE_IB => GidKind::Infiniband,
            number::GID_TYPE_ROCE_V1 => GidKind::RoceV1,
            number::GID_TYPE_ROCE_V2 => GidKind::RoceV2,
            _ => GidKind::Unknown,
        };
        Some((u8::try_from(entry.gid_index).ok()?, Gid(entry.gid.raw), kind))
    });
    let mut found: Vec<_> = told.collect();
    found.sort_unstable_by_key(|(index, ..)| *index);
    Some(found)
}

fn one_by_one(core: &Core, port: u8, entries: usize) -> Result<Vec<(u8, Gid, GidKind)>, VerbsError> {
    let mut found = Vec::new();
    let mut refused = None;
    for index in (0..=u8::MAX).take(entries) {
        match core.gid(port, index) {
            Ok(gid) if gid.is_zero() => {}
            Ok(gid) => found.push((index, gid, GidKind::Unknown)),
            // Some systems refuse to show empty entries.
            Err(error) => refused = Some(error),
        }
    }
    if let Some(error) = refused.filter(|_| found.is_empty()) {
        tracing::debug!("no GID could be read: {error}");
        // A device that is gone is another matter than a port without addresses.
        core.look_at_events();
        core.check_alive("ibv_query_gid")?;
    }
    Ok(found)
}
