//! The table itself, as each node has it: the same commands in the same order make the same table everywhere.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{Change, Condition, Entry, Lease, Snapshot, Verdict, Write};

/// What changes a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Command {
    Write(Write),
    /// A lease of so many milliseconds.
    Grant(u64),
    /// A lease is over.
    End(Lease),
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Outcome {
    Written(Verdict),
    Granted(Lease),
    /// Whether there was such a lease.
    Ended(bool),
    /// The write names a lease that is over.
    LeaseOver,
    /// The entry of the log was none of these.
    Nothing,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Stored {
    value: Vec<u8>,
    version: u64,
    lease: Option<Lease>,
}

/// Keys, values and leases.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Table {
    /// The number of the last command.
    revision: u64,
    entries: BTreeMap<String, Stored>,
    /// Milliseconds, and the keys that go with it.
    leases: BTreeMap<Lease, (u64, BTreeSet<String>)>,
    /// When a table was changed last, by its name.
    changed: BTreeMap<String, u64>,
}

/// The table of a key.
fn table(key: &str) -> &str {
    key.split_once('/').map_or(key, |(table, _)| table)
}

impl Table {
    /// Does a command, whose number is larger than those before.
    pub(super) fn apply(&mut self, number: u64, command: &Command) -> Outcome {
        self.revision = number;
        match command {
            Command::Write(write) => self.write(write),
            Command::Grant(time) => {
                self.leases.insert(number, (*time, BTreeSet::new()));
                Outcome::Granted(number)
            }
            Command::End(lease) => {
                let Some((_, keys)) = self.leases.remove(lease) else { return Outcome::Ended(false) };
                keys.iter().for_each(|key| self.delete(key));
                Outcome::Ended(true)
            }
        }
    }

    fn write(&mut self, write: &Write) -> Outcome {
        let version = |key: &String| self.entries.get(key).map(|stored| stored.version);
        let holds = |condition: &Condition| match condition {
            Condition::Absent(key) => version(key).is_none(),
            Condition::Version(key, wanted) => version(key) == Some(*wanted),
        };
        if !write.when.iter().all(holds) {
            return Outcome::Written(Verdict::Refused);
        }
        let over = |change: &Change| matches!(change, Change::Put { lease: Some(lease), .. } if !self.leases.contains_key(lease));
        if write.then.iter().any(over) {
            return Outcome::LeaseOver;
        }
        for change in &write.then {
            match change {
                Change::Put { key, value, lease } => {
                    self.delete(key);
                    if let Some((_, keys)) = lease.and_then(|lease| self.leases.get_mut(&lease)) {
                        keys.insert(key.clone());
                    }
                    let stored = Stored { value: value.clone(), version: self.revision, lease: *lease };
                    self.entries.insert(key.clone(), stored);
                    self.changed.insert(table(key).into(), self.revision);
                }
                Change::Delete(key) => self.delete(key),
            }
        }
        Outcome::Written(Verdict::Done)
    }

    fn delete(&mut self, key: &str) {
        let Some(stored) = self.entries.remove(key) else { return };
        if let Some((_, keys)) = stored.lease.and_then(|lease| self.leases.get_mut(&lease)) {
            keys.remove(key);
        }
        self.changed.insert(table(key).into(), self.revision);
    }

    /// The entries of a table.
    pub(super) fn snapshot(&self, name: &str) -> Snapshot {
        let first = format!("{name}/");
        let own = self.entries.range(first.clone()..).take_while(|(key, _)| key.starts_with(&first));
        let entry = |(key, stored): (&String, &Stored)| {
            let Stored { value, version, lease } = stored.clone();
            Entry { key: key.clone(), value, version, lease }
        };
        Snapshot { revision: self.revision, entries: own.map(entry).collect() }
    }

    /// When it was changed last.
    pub(super) fn changed(&self, name: &str) -> u64 {
        self.changed.get(name).copied().unwrap_or(0)
    }

    /// All leases, with their milliseconds.
    pub(super) fn leases(&self) -> impl Iterator<Item = (Lease, u64)> {
        self.leases.iter().map(|(lease, (time, _))| (*lease, *time))
    }

    pub(super) fn has_lease(&self, lease: Lease) -> bool {
        self.leases.contains_key(&lease)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key() -> impl Strategy<Value = String> {
        (0..2u8, 0..4u8).prop_map(|(table, name)| format!("{}/{name}", ["a", "ab"][usize::from(table)]))
    }

    fn change() -> impl Strategy<Value = Change> {
        let put = (key(), any::<u8>(), prop::option::of(1..12u64));
        prop_oneof![
            put.prop_map(|(key, value, lease)| Change::Put { key, value: vec![value], lease }),
            key().prop_map(Change::Delete),
        ]
    }

    fn command() -> impl Strategy<Value = Command> {
        let condition = prop_oneof![
            key().prop_map(Condition::Absent),
            (key(), 1..20u64).prop_map(|(k, v)| Condition::Version(k, v))
        ];
        let write = (prop::collection::vec(condition, 0..2), prop::collection::vec(change(), 0..4));
        prop_oneof![
            4 => write.prop_map(|(when, then)| Command::Write(Write { when, then })),
            1 => (1..9u64).prop_map(Command::Grant),
            1 => (1..12u64).prop_map(Command::End),
        ]
    }

    proptest! {
        /// Against the plainest table there is: pairs in a list.
        #[test]
        fn it_does_what_a_list_would(commands in prop::collection::vec(command(), 0..30)) {
            let mut table = Table::default();
            let (mut list, mut leases) = (BTreeMap::<String, (Vec<u8>, u64, Option<u64>)>::new(), BTreeSet::new());
            for (number, command) in (1u64..).zip(&commands) {
                let before = ["a", "ab"].map(|name| (table.snapshot(name).entries, table.changed(name)));
                let outcome = table.apply(number, command);
                match command {
                    Command::Grant(_) => {
                        leases.insert(number);
                        prop_assert_eq!(outcome, Outcome::Granted(number));
                    }
                    Command::End(lease) => {
                        prop_assert_eq!(outcome, Outcome::Ended(leases.remove(lease)));
                        list.retain(|_, stored| stored.2 != Some(*lease));
                    }
                    Command::Write(write) => {
                        let holds = write.when.iter().all(|condition| match condition {
                            Condition::Absent(key) => !list.contains_key(key),
                            Condition::Version(key, version) => list.get(key).is_some_and(|stored| stored.1 == *version),
                        });
                        let over = write.then.iter().any(|change| {
                            matches!(change, Change::Put { lease: Some(lease), .. } if !leases.contains(lease))
                        });
                        if !holds {
                            prop_assert_eq!(outcome, Outcome::Written(Verdict::Refused));
                        } else if over {
                            prop_assert_eq!(outcome, Outcome::LeaseOver);
                        } else {
                            prop_assert_eq!(outcome, Outcome::Written(Verdict::Done));
                            for change in &write.then {
                                match change {
                                    Change::Put { key, value, lease } => {
                                        list.insert(key.clone(), (value.clone(), number, *lease));
                                    }
                                    Change::Delete(key) => drop(list.remove(key)),
                                }
                            }
                        }
                    }
                }
                for (name, (entries, changed)) in ["a", "ab"].into_iter().zip(before) {
                    let told = table.snapshot(name);
                    let mine = list.iter().filter(|(key, _)| key.split('/').next() == Some(name));
                    let mine: Vec<_> = mine
                        .map(|(key, (value, version, lease))| Entry {
                            key: key.clone(), value: value.clone(), version: *version, lease: *lease,
                        })
                        .collect();
                    prop_assert_eq!(&told.entries, &mine);
                    // Every difference is told of.
                    prop_assert!(told.entries == entries || table.changed(name) == number && changed < number);
                }
            }
            let bytes = postcard::to_stdvec(&table).unwrap();
            prop_assert_eq!(postcard::from_bytes::<Table>(&bytes).unwrap(), table);
        }
    }
}
