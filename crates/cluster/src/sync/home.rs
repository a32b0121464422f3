//! Words in the memory of one rank, which all ranks reach.

use std::time::Duration;

use fulmen_collectives::Group;
use fulmen_fabric::{FabricError, OpName, Remote, RemoteKey, Rights, Shared};

use super::SyncError;

/// Bytes in which a key travels, its length included.
const KEY: usize = 256;

/// Zeroed memory of one rank, open to all ranks of the group.
pub(super) struct Home {
    remote: Remote,
    /// On the home itself: open for as long as this exists.
    _shared: Option<Shared>,
}

impl Home {
    /// Collective. `home` is the rank in whose memory the `len` bytes lie.
    pub(super) fn new(op: OpName, group: &Group, home: u32, len: usize, rights: Rights) -> Result<Home, SyncError> {
        if home >= group.size() {
            let problem = format!("there is no rank {home} to be the home: name one below {}", group.size());
            return Err(SyncError::Invalid { op, problem });
        }
        let own = (home == group.rank()).then(|| share(group, len, rights)).transpose();
        let mut key = parcel(own.as_ref().ok().and_then(Option::as_ref));
        group.broadcast(&mut key[..], home)?;
        let shared = own?;
        let remote = open(op, group, home, &key)?;
        Ok(Home { remote, _shared: shared })
    }

    pub(super) fn remote(&self) -> &Remote {
        &self.remote
    }

    /// Reads a word. By its one executor, so that it is in line with all that is done to it.
    pub(super) fn load(&self, at: u64, timeout: Duration) -> Result<u64, FabricError> {
        self.remote.fetch_add(at, 0, timeout)
    }
}

/// Zeroed memory of each rank, open to all ranks of the group: this rank's own, and everybody's. Collective.
pub(super) fn exchange(
    op: OpName,
    group: &Group,
    len: usize,
    rights: Rights,
) -> Result<(Shared, Vec<Remote>), SyncError> {
    let own = share(group, len, rights);
    let mut keys = vec![0; KEY * group.size() as usize];
    group.all_gather(&parcel(own.as_ref().ok())[..], &mut keys[..])?;
    let own = own?;
    let remotes = (0..).zip(keys.chunks_exact(KEY)).map(|(rank, key)| open(op, group, rank, key));
    Ok((own, remotes.collect::<Result<_, _>>()?))
}

fn share(group: &Group, len: usize, rights: Rights) -> Result<Shared, FabricError> {
    let memory = group.fabric().alloc(len)?.into_exposed();
    memory.fill(0..len, 0);
    group.fabric().share(&memory, rights)
}

/// A key with its length before it; all zero if there is none.
fn parcel(shared: Option<&Shared>) -> [u8; KEY] {
    let mut parcel = [0; KEY];
    if let Some(shared) = shared {
        let bytes = shared.key().to_bytes();
        parcel[0] = u8::try_from(bytes.len()).expect("a key has fewer bytes");
        parcel[1..=bytes.len()].copy_from_slice(&bytes);
    }
    parcel
}

fn open(op: OpName, group: &Group, rank: u32, parcel: &[u8]) -> Result<Remote, SyncError> {
    let failed = || SyncError::Invalid { op, problem: format!("rank {rank} has no memory for it: see its output") };
    let key = parcel.get(1..=usize::from(parcel[0])).filter(|key| !key.is_empty()).ok_or_else(failed)?;
    let key = RemoteKey::from_bytes(key).map_err(|_| failed())?;
    Ok(group.fabric().remote(group.in_fabric(rank), &key)?)
}
