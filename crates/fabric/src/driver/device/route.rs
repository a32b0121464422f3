//! Which device of this rank leads to which other rank.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fulmen_verbs::Device;

use super::error::DeviceError;
use super::offer::Said;
use super::port::{self, Port, State};
use crate::Cables;

/// How long further cables are waited for where the first ones are ready.
const OTHERS: Duration = Duration::from_secs(2);

/// Devices that links may run over, and which of them lead where.
pub(super) struct Survey {
    pub ports: Vec<Port>,
    /// See [`Said::leads`].
    pub leads: Vec<Vec<Option<u32>>>,
}

/// Looks at the devices, and waits for those that are not ready for as long as `patience`. `members` are the ranks of the
/// launch, by rank.
pub(super) fn survey(
    (rank, members): (u32, &[u32]),
    devices: &[Arc<dyn Device>],
    cables: Option<&Cables>,
    patience: Duration,
) -> Result<Survey, DeviceError> {
    let survey = match cables {
        None => by_order((rank, members), devices, patience),
        Some(cables) => by_cables((rank, members), devices, cables, patience),
    }?;
    for port in survey.ports.iter().filter(|port| port.may_improve()) {
        tracing::info!(
            device = port.device.info().name,
            port = port.number,
            gid = %port.gid.gid,
            "no IPv4 address has come: the link-local one is used"
        );
    }
    Ok(survey)
}

/// Whether links could run over one of these devices, as far as its port tells. Devices that may become ready are waited for as
/// long as `patience`.
///
/// # Errors
/// [`DeviceError::None`], and [`DeviceError::Unusable`] with a reason for each.
pub fn usable(devices: &[Arc<dyn Device>], patience: Duration) -> Result<(), DeviceError> {
    first(devices, patience).map(drop)
}

/// A port of the first device that can be used.
fn first(devices: &[Arc<dyn Device>], patience: Duration) -> Result<Port, DeviceError> {
    if devices.is_empty() {
        return Err(DeviceError::None);
    }
    let first_is_ready = |states: &[State]| {
        let first = states.iter().find(|state| **state != State::Unusable);
        first == Some(&State::Ready)
    };
    let found = port::find(&devices.iter().collect::<Vec<_>>(), patience, first_is_ready);
    let problems = found.iter().flat_map(port::problems).collect();
    found.into_iter().find_map(Result::ok).ok_or(DeviceError::Unusable { problems })
}

/// All links run over the first device that can be used.
fn by_order(
    (rank, members): (u32, &[u32]),
    devices: &[Arc<dyn Device>],
    patience: Duration,
) -> Result<Survey, DeviceError> {
    let port = first(devices, patience)?;
    let lead = |peer| if peer == rank { Vec::new() } else { vec![Some(0)] };
    Ok(Survey { ports: vec![port], leads: (0..members.len() as u32).map(lead).collect() })
}

/// Each link to a neighbour runs over the devices that the cables name for it.
fn by_cables(
    (rank, members): (u32, &[u32]),
    devices: &[Arc<dyn Device>],
    cables: &Cables,
    patience: Duration,
) -> Result<Survey, DeviceError> {
    let mut named: Vec<&Arc<dyn Device>> = Vec::new();
    // By rank, as indices of those.
    let mut rows: Vec<Vec<usize>> = Vec::with_capacity(members.len());
    for (peer, member) in (0_u32..).zip(members) {
        let names: &[String] = cables.0.get(*member as usize).filter(|_| peer != rank).map_or(&[], Vec::as_slice);
        let mut row = Vec::with_capacity(names.len());
        for name in names {
            let device = devices.iter().find(|device| device.info().name == *name).ok_or_else(|| {
                let known = devices.iter().map(|device| device.info().name.clone()).collect();
                DeviceError::UnknownCable { device: name.clone(), peer, known }
            })?;
            row.push(named.iter().position(|known| Arc::ptr_eq(known, device)).unwrap_or_else(|| {
                named.push(device);
                named.len() - 1
            }));
        }
        rows.push(row);
    }
    let firsts: Vec<usize> = rows.iter().filter_map(|row| row.first().copied()).collect();
    let start = Instant::now();
    let found = port::find(&named, patience, |states| {
        let ready = firsts.iter().all(|at| states[*at] == State::Ready);
        ready && (start.elapsed() >= OTHERS || states.iter().all(|state| *state == State::Ready))
    });

    let problems: Vec<Vec<String>> = found.iter().map(port::problems).collect();
    let mut numbers = Vec::with_capacity(found.len());
    let mut ports = Vec::new();
    for port in found {
        numbers.push(port.is_ok().then_some(ports.len() as u32));
        ports.extend(port.ok());
    }
    let mut leads = Vec::with_capacity(rows.len());
    for (peer, row) in (0_u32..).zip(&rows) {
        let lead: Vec<_> = row.iter().map(|at| numbers[*at]).collect();
        if !row.is_empty() && lead.iter().all(Option::is_none) {
            let problems = row.iter().flat_map(|at| problems[*at].clone()).collect();
            return Err(DeviceError::DeadCable { peer, problems });
        }
        leads.push(lead);
    }
    Ok(Survey { ports, leads })
}

/// The most rails of a link.
const RAILS: usize = 64;

/// The offers, here and there, between which the rails of the link with `peer` run: those of all cables that both ends can
/// use, in their order.
pub(super) fn routes(rank: u32, peer: u32, said: &[Said]) -> Result<Vec<(u32, u32)>, DeviceError> {
    let (ours, theirs) = (&said[rank as usize], &said[peer as usize]);
    let cables = ours.to(peer).iter().zip(theirs.to(rank)).enumerate();
    let both = cables.filter_map(|(cable, (here, there))| Some((cable, ((*here)?, (*there)?))));
    let (numbers, routes): (Vec<usize>, Vec<_>) = both.take(RAILS).unzip();
    if routes.is_empty() {
        let names = |of: &Said, to| {
            let device = |index: &Option<u32>| {
                index.and_then(|index| of.offer(index)).map_or("none", |offer| &offer.device).to_owned()
            };
            of.to(to).iter().map(device).collect()
        };
        return Err(DeviceError::NoCommonCable { peer, ours: names(ours, peer), theirs: names(theirs, rank) });
    }
    let cables = ours.to(peer).len().max(theirs.to(rank).len()).min(RAILS);
    if numbers.len() < cables {
        let device = |(here, _): &(u32, u32)| ours.offer(*here).map(|offer| &*offer.device);
        let used: Vec<_> = routes.iter().filter_map(device).collect();
        tracing::warn!(rank = peer, used = used.join(", "), cables, "not all cables of a link can be used");
    }
    Ok(routes)
}
