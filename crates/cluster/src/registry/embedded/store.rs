//! What a node keeps of the agreement: its votes, the log and the last snapshot, in one file; and the table, in memory, which is made of
//! the snapshot and the log when the node starts.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::io::{self, Cursor};
use std::ops::{Bound, RangeBounds};
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use openraft::storage::{LogFlushed, LogState, RaftLogStorage, RaftStateMachine, Snapshot};
use openraft::{
    EntryPayload, LogId, Membership, OptionalSend, RaftLogReader, RaftSnapshotBuilder, SnapshotMeta, StorageError,
    StorageIOError, StoredMembership, Vote,
};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::super::table::{Command, Outcome, Table};

openraft::declare_raft_types!(
    /// What is agreed on.
    pub(in crate::registry) Types:
        D = Command,
        R = Outcome,
        NodeId = u64,
        Node = openraft::EmptyNode,
);

pub(super) type Entry = openraft::Entry<Types>;
type Failure = StorageError<u64>;

/// By index.
const LOG: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("log");
const BOOK: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("book");
const VOTE: &str = "vote";
const COMMITTED: &str = "committed";
const PURGED: &str = "purged";
const SNAPSHOT: &str = "snapshot";

/// A snapshot as it is kept.
#[derive(Serialize, Deserialize)]
struct Kept {
    meta: SnapshotMeta<u64, openraft::EmptyNode>,
    table: Vec<u8>,
}

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {cause}: if it is damaged, and the cluster has other nodes, remove this node there and join again")]
pub struct OpenError {
    path: String,
    cause: String,
}

/// The file, until it is closed, whoever still holds this.
struct Book(RwLock<Option<Database>>);

impl Book {
    fn with<T>(&self, work: impl FnOnce(&Database) -> io::Result<T>) -> io::Result<T> {
        let file = self.0.read().unwrap_or_else(PoisonError::into_inner);
        work(file.as_ref().ok_or_else(|| io::Error::other("the registry's file is closed"))?)
    }

    /// Waits for what is under way.
    fn close(&self) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// The log.
#[derive(Clone)]
pub(super) struct Log {
    file: Arc<Book>,
}

/// The table, for everybody to look at.
#[derive(Clone)]
pub(super) struct Machine {
    file: Arc<Book>,
    seen: Arc<RwLock<Seen>>,
    /// The number of the last command.
    applied: Arc<watch::Sender<u64>>,
}

#[derive(Default)]
pub(super) struct Seen {
    pub(super) table: Table,
    last: Option<LogId<u64>>,
    members: StoredMembership<u64, openraft::EmptyNode>,
}

pub(super) fn open_error(path: &Path, cause: &impl std::fmt::Display) -> OpenError {
    OpenError { path: path.display().to_string(), cause: cause.to_string() }
}

fn other(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::other(error)
}

fn encode(value: &impl Serialize) -> io::Result<Vec<u8>> {
    postcard::to_stdvec(value).map_err(other)
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
    postcard::from_bytes(bytes).map_err(other)
}

/// Opens the file, which is made if there is none.
pub(super) fn open(path: &Path) -> Result<(Log, Machine), OpenError> {
    let failed = |cause: io::Error| open_error(path, &cause);
    let file = || -> io::Result<Database> {
        let file = Database::create(path).map_err(other)?;
        let work = file.begin_write().map_err(other)?;
        drop(work.open_table(LOG).map_err(other)?);
        drop(work.open_table(BOOK).map_err(other)?);
        work.commit().map_err(other)?;
        Ok(file)
    };
    let file = Arc::new(Book(RwLock::new(Some(file().map_err(failed)?))));
    let mut seen = Seen::default();
    if let Some(Kept { meta, table }) = look(&file, SNAPSHOT).map_err(failed)? {
        seen = Seen { table: decode(&table).map_err(failed)?, last: meta.last_log_id, members: meta.last_membership };
    }
    let applied = watch::Sender::new(seen.last.map_or(0, |last| last.index));
    let machine = Machine { file: file.clone(), seen: Arc::new(RwLock::new(seen)), applied: Arc::new(applied) };
    Ok((Log { file }, machine))
}

/// Makes a node the only member, with all that its log has: also what may not have been agreed on. To be called with nobody else at
/// the file.
pub(super) async fn recover(path: &Path, id: u64) -> Result<(), OpenError> {
    let failed = |cause: &dyn std::fmt::Display| open_error(path, &cause);
    let (mut log, mut machine) = open(path)?;
    let after = machine.seen().last.map_or(0, |last| last.index + 1);
    let entries = log.try_get_log_entries(after..).await.map_err(|error| failed(&error))?;
    machine.apply(entries).await.map_err(|error| failed(&error))?;
    let last = machine.seen().last.ok_or_else(|| failed(&"it has nothing that a cluster could go on with"))?;
    let alone = Membership::new(vec![BTreeSet::from([id])], ());
    machine.seen.write().unwrap_or_else(PoisonError::into_inner).members = StoredMembership::new(Some(last), alone);
    machine.build_snapshot().await.map_err(|error| failed(&error))?;
    // In this order: until the log is cut, it is what it was.
    log.purge(last).await.map_err(|error| failed(&error))?;
    note(&log.file, COMMITTED, &Some(last)).await.map_err(|error| failed(&error))
}

fn look<T: DeserializeOwned>(file: &Book, name: &str) -> io::Result<Option<T>> {
    file.with(|file| {
        let work = file.begin_read().map_err(other)?;
        let book = work.open_table(BOOK).map_err(other)?;
        let kept = book.get(name).map_err(other)?;
        kept.map(|kept| decode(kept.value())).transpose()
    })
}

/// What is written at once: done in full or not at all.
type Work = dyn FnOnce(&mut redb::Table<'_, u64, &[u8]>, &mut redb::Table<'_, &str, &[u8]>) -> io::Result<()> + Send;

/// Writes it, and returns when the disk has it. The disk takes its time, so a thread waits for it that nobody else needs.
async fn write(file: &Arc<Book>, work: Box<Work>) -> io::Result<()> {
    let file = file.clone();
    let written = move |file: &Database| {
        let all = file.begin_write().map_err(other)?;
        {
            let mut log = all.open_table(LOG).map_err(other)?;
            let mut book = all.open_table(BOOK).map_err(other)?;
            work(&mut log, &mut book)?;
        }
        all.commit().map_err(other)
    };
    tokio::task::spawn_blocking(move || file.with(written)).await.map_err(other)?
}

async fn note(file: &Arc<Book>, name: &'static str, value: &impl Serialize) -> io::Result<()> {
    let bytes = encode(value)?;
    write(file, Box::new(move |_, book| book.insert(name, &*bytes).map(drop).map_err(other))).await
}

fn reading(error: io::Error) -> Failure {
    StorageIOError::read_logs(&error).into()
}

fn writing(error: io::Error) -> Failure {
    StorageIOError::write_logs(&error).into()
}

impl RaftLogReader<Types> for Log {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry>, Failure> {
        let read = |file: &Database| -> io::Result<Vec<Entry>> {
            let work = file.begin_read().map_err(other)?;
            let log = work.open_table(LOG).map_err(other)?;
            let bounds: (Bound<u64>, Bound<u64>) = (range.start_bound().cloned(), range.end_bound().cloned());
            let entries = log.range::<u64>(bounds).map_err(other)?;
            entries.map(|entry| decode(entry.map_err(other)?.1.value())).collect()
        };
        self.file.with(read).map_err(reading)
    }
}

impl RaftLogStorage<Types> for Log {
    type LogReader = Log;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, Failure> {
        let last = |file: &Database| -> io::Result<Option<Entry>> {
            let work = file.begin_read().map_err(other)?;
            let log = work.open_table(LOG).map_err(other)?;
            log.last().map_err(other)?.map(|(_, entry)| decode(entry.value())).transpose()
        };
        let purged = look(&self.file, PURGED).map_err(reading)?;
        let last = self.file.with(last).map_err(reading)?;
        let last_log_id = last.map(|entry| entry.log_id).or(purged);
        Ok(LogState { last_purged_log_id: purged, last_log_id })
    }

    async fn get_log_reader(&mut self) -> Log {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<u64>) -> Result<(), Failure> {
        note(&self.file, VOTE, vote).await.map_err(|error| StorageIOError::write_vote(&error).into())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote<u64>>, Failure> {
        look(&self.file, VOTE).map_err(|error| StorageIOError::read_vote(&error).into())
    }

    async fn save_committed(&mut self, committed: Option<LogId<u64>>) -> Result<(), Failure> {
        // Not worth a wait for the disk: it only saves a node that starts from waiting for others.
        let save = |file: &Database| -> io::Result<()> {
            let bytes = encode(&committed)?;
            let mut work = file.begin_write().map_err(other)?;
            work.set_durability(redb::Durability::None).map_err(other)?;
            work.open_table(BOOK).map_err(other)?.insert(COMMITTED, &*bytes).map_err(other)?;
            work.commit().map_err(other)
        };
        self.file.with(save).map_err(writing)
    }

    async fn read_committed(&mut self) -> Result<Option<LogId<u64>>, Failure> {
        Ok(look::<Option<LogId<u64>>>(&self.file, COMMITTED).map_err(reading)?.flatten())
    }

    async fn append<I>(&mut self, entries: I, callback: LogFlushed<Types>) -> Result<(), Failure>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let encoded = entries.into_iter().map(|entry| Ok((entry.log_id.index, encode(&entry)?)));
        let encoded = encoded.collect::<io::Result<Vec<_>>>().map_err(writing)?;
        let insert = move |log: &mut redb::Table<'_, u64, &[u8]>| -> io::Result<()> {
            encoded.iter().try_for_each(|(index, bytes)| log.insert(index, &**bytes).map(drop).map_err(other))
        };
        let written = write(&self.file, Box::new(move |log, _| insert(log))).await;
        let told = written.as_ref().map(drop).map_err(|error| io::Error::other(error.to_string()));
        callback.log_io_completed(told);
        written.map_err(writing)
    }

    async fn truncate(&mut self, from: LogId<u64>) -> Result<(), Failure> {
        let cut = move |log: &mut redb::Table<'_, u64, &[u8]>| log.retain_in(from.index.., |_, _| false).map_err(other);
        write(&self.file, Box::new(move |log, _| cut(log))).await.map_err(writing)
    }

    async fn purge(&mut self, upto: LogId<u64>) -> Result<(), Failure> {
        let bytes = encode(&upto).map_err(writing)?;
        let purge = move |log: &mut redb::Table<'_, u64, &[u8]>, book: &mut redb::Table<'_, &str, &[u8]>| {
            book.insert(PURGED, &*bytes).map_err(other)?;
            log.retain_in(..=upto.index, |_, _| false).map_err(other)
        };
        write(&self.file, Box::new(purge)).await.map_err(writing)
    }
}

impl Machine {
    pub(super) fn seen(&self) -> RwLockReadGuard<'_, Seen> {
        self.seen.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the file, so that another process can open it. The table stays as it is.
    pub(super) async fn close(&self) {
        let file = self.file.clone();
        let _ = tokio::task::spawn_blocking(move || file.close()).await;
    }

    /// Tells of every command that was applied.
    pub(super) fn applied(&self) -> watch::Receiver<u64> {
        self.applied.subscribe()
    }
}

impl RaftSnapshotBuilder<Types> for Machine {
    async fn build_snapshot(&mut self) -> Result<Snapshot<Types>, Failure> {
        let failed = |error: io::Error| StorageIOError::write_snapshot(None, &error);
        let (meta, table) = {
            let seen = self.seen();
            let last = seen.last;
            let id = last.map_or_else(|| "empty".into(), |last| format!("{}-{}", last.leader_id, last.index));
            let meta = SnapshotMeta { last_log_id: last, last_membership: seen.members.clone(), snapshot_id: id };
            (meta, encode(&seen.table).map_err(failed)?)
        };
        let kept = Kept { meta, table };
        note(&self.file, SNAPSHOT, &kept).await.map_err(failed)?;
        Ok(Snapshot { meta: kept.meta, snapshot: Box::new(Cursor::new(kept.table)) })
    }
}

impl RaftStateMachine<Types> for Machine {
    type SnapshotBuilder = Machine;

    async fn applied_state(
        &mut self,
    ) -> Result<(Option<LogId<u64>>, StoredMembership<u64, openraft::EmptyNode>), Failure> {
        let seen = self.seen();
        Ok((seen.last, seen.members.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<Outcome>, Failure>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut seen = self.seen.write().unwrap_or_else(PoisonError::into_inner);
        let mut outcomes = Vec::new();
        for entry in entries {
            seen.last = Some(entry.log_id);
            outcomes.push(match entry.payload {
                EntryPayload::Blank => Outcome::Nothing,
                EntryPayload::Normal(command) => seen.table.apply(entry.log_id.index, &command),
                EntryPayload::Membership(members) => {
                    seen.members = StoredMembership::new(Some(entry.log_id), members);
                    Outcome::Nothing
                }
            });
        }
        let last = seen.last.map_or(0, |last| last.index);
        drop(seen);
        self.applied.send_replace(last);
        Ok(outcomes)
    }

    async fn get_snapshot_builder(&mut self) -> Machine {
        self.clone()
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<Cursor<Vec<u8>>>, Failure> {
        Ok(Box::default())
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta<u64, openraft::EmptyNode>,
        snapshot: Box<Cursor<Vec<u8>>>,
    ) -> Result<(), Failure> {
        let failed = |error: io::Error| StorageIOError::write_snapshot(Some(meta.signature()), &error);
        let kept = Kept { meta: meta.clone(), table: snapshot.into_inner() };
        let table = decode(&kept.table).map_err(failed)?;
        note(&self.file, SNAPSHOT, &kept).await.map_err(failed)?;
        let mut seen = self.seen.write().unwrap_or_else(PoisonError::into_inner);
        *seen = Seen { table, last: meta.last_log_id, members: meta.last_membership.clone() };
        let last = seen.last.map_or(0, |last| last.index);
        drop(seen);
        self.applied.send_replace(last);
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<Types>>, Failure> {
        let kept: Option<Kept> =
            look(&self.file, SNAPSHOT).map_err(|error| StorageIOError::read_snapshot(None, &error))?;
        Ok(kept.map(|kept| Snapshot { meta: kept.meta, snapshot: Box::new(Cursor::new(kept.table)) }))
    }
}

#[cfg(test)]
mod tests {
    use openraft::testing::{StoreBuilder, Suite};

    use super::*;

    struct Fresh;

    impl StoreBuilder<Types, Log, Machine, tempfile::TempDir> for Fresh {
        async fn build(&self) -> Result<(tempfile::TempDir, Log, Machine), Failure> {
            let place = tempfile::tempdir().unwrap();
            let (log, machine) = open(&place.path().join("registry")).unwrap();
            Ok((place, log, machine))
        }
    }

    #[test]
    fn it_keeps_what_raft_wants_kept() {
        Suite::test_all(Fresh).unwrap();
    }

    #[test]
    fn a_damaged_file_is_told_of() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("registry");
        std::fs::write(&path, [7; 9000]).unwrap();
        let error = open(&path).err().expect("refused").to_string();
        assert!(error.contains("registry") && error.contains("join again"), "{error}");
    }
}
