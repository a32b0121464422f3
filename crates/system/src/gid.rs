//! GID tables.

use fulmen_verbs::{GidEntry, LinkLayer, VerbsError};

use crate::device::Core;
use crate::platform;

/// A port's GID table, without its empty entries. Entries beyond what an index can name are left out.
pub(crate) fn table(core: &Core, port: u8) -> Result<Vec<GidEntry>, VerbsError> {
    let attr = core.port_attr(port)?;
    let link_layer = core.link_layer(&attr);
    let entries = u16::try_from(attr.gid_tbl_len.clamp(0, 256)).unwrap_or(256);
    let mut table = Vec::new();
    let mut last_error = None;
    for index in 0..entries {
        let Ok(index) = u8::try_from(index) else { break };
        let gid = match core.gid(port, index) {
            Ok(gid) => gid,
            // Some systems refuse to show empty entries.
            Err(error) => {
                last_error = Some(error);
                continue;
            }
        };
        if gid.is_zero() {
            continue;
        }
        let (kind, interface_up) = match link_layer {
            LinkLayer::Thunderbolt => (fulmen_verbs::GidKind::Unknown, None),
            _ => platform::gid(&core.info.name, port, index, link_layer),
        };
        table.push(GidEntry { index, gid, kind, interface_up });
    }
    match last_error {
        Some(error) if table.is_empty() => {
            // A device that is gone is another matter than a port without addresses.
            tracing::debug!("no GID could be read: {error}");
            core.look_at_events();
            core.check_alive("ibv_query_gid")?;
            Ok(table)
        }
        _ => Ok(table),
    }
}
