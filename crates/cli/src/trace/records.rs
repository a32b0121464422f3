//! The records of one world, read from files and put on one clock.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use fulmen::parts::fabric::recorder::file::{self, Operation, Read};

use super::TraceError;

/// The longest file that is read.
const LONGEST: u64 = 256 << 20;

/// How many lines of a file that cannot be read are named.
const NAMED: usize = 3;

/// What the ranks of one world recorded.
pub struct World {
    /// Its number, in hexadecimal digits.
    pub generation: String,
    /// How many ranks it has.
    pub size: u32,
    /// By rank, what it recorded. All times are on one clock.
    pub ranks: BTreeMap<u32, Read>,
    /// The first moment of all: what times are shown from.
    pub origin: u64,
}

impl World {
    /// Reads the newest world in these directories and files. What cannot be used is told in `warnings`.
    pub fn read(paths: &[PathBuf], warnings: &mut Vec<String>) -> Result<World, TraceError> {
        let mut found = Vec::new();
        let mut seen = BTreeSet::new();
        for path in paths {
            let files = match files_of(path) {
                Ok(files) => files,
                Err(error) => {
                    warnings.push(format!("{}: {error}", path.display()));
                    continue;
                }
            };
            for file in files {
                // A file may be named twice, by itself and by its directory.
                if seen.insert(fs::canonicalize(&file).unwrap_or_else(|_| file.clone())) {
                    found.extend(read_file(&file, warnings).map(|read| (file, read)));
                }
            }
        }
        World::of(found, warnings).ok_or_else(|| {
            let places: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
            TraceError::Nothing { places: places.join(", ") }
        })
    }

    /// The newest world among records.
    fn of(found: Vec<(PathBuf, Read)>, warnings: &mut Vec<String>) -> Option<World> {
        let newest = found.iter().max_by_key(|(_, read)| read.header.unix)?;
        let generation = newest.1.header.generation.clone();
        let (reference, boot) = (offset(&newest.1), newest.1.header.boot.clone());
        let (mut ranks, mut others, mut hosts) = (BTreeMap::<u32, Read>::new(), BTreeSet::new(), BTreeSet::new());
        let mut size = 0;
        for (path, mut read) in found {
            if read.header.generation != generation {
                others.insert(path);
                continue;
            }
            hosts.insert(read.header.boot.clone());
            if read.header.boot != boot {
                let by = offset(&read) - reference;
                shift(&mut read, by);
            }
            if size != 0 && size != read.header.size {
                warnings.push(format!(
                    "{}: it says that there are {} ranks, and others {size}",
                    path.display(),
                    read.header.size
                ));
            }
            size = size.max(read.header.size);
            let rank = read.header.rank;
            match ranks.get(&rank) {
                Some(known) if known.header.written >= read.header.written => {
                    warnings.push(format!("{}: there is a newer record of rank {rank}", path.display()));
                }
                known => {
                    if known.is_some() {
                        warnings.push(format!("{}: there is also an older record of rank {rank}", path.display()));
                    }
                    ranks.insert(rank, read);
                }
            }
        }
        if !others.is_empty() {
            let names: Vec<String> = others.iter().map(|path| path.display().to_string()).collect();
            let other = if names.len() == 1 { "is of another world and is" } else { "are of other worlds and are" };
            warnings.push(format!("{} {other} left out: name the files of one world to see it", names.join(", ")));
        }
        if hosts.len() > 1 {
            warnings.push(format!(
                "the ranks are on {} hosts: times are as far apart as the hosts' clocks are",
                hosts.len()
            ));
        }
        let origin = ranks.values().map(|read| read.header.began).min()?;
        Some(World { generation, size, ranks, origin })
    }

    /// The ranks that have no record.
    pub fn missing(&self) -> Vec<u32> {
        // The number comes out of a file: only as many are gone through as a world can have.
        (0..self.size.min(4096)).filter(|rank| !self.ranks.contains_key(rank)).collect()
    }

    /// The ranks of a group that was split off another one, if a record says so; `None` for a group of all.
    pub fn members(&self, group: u32) -> Option<&[u32]> {
        let mut notes = self.ranks.values().flat_map(|read| &read.notes);
        notes.rfind(|note| note.group == group && !note.members.is_empty()).map(|note| note.members.as_slice())
    }

    /// The last moment of which a rank's record tells.
    pub fn end_of(&self, rank: u32) -> u64 {
        self.ranks.get(&rank).map_or(0, |read| read.header.written)
    }
}

/// What is to be added to a time to get that since 1970.
fn offset(read: &Read) -> i128 {
    i128::from(read.header.unix) - i128::from(read.header.written)
}

fn shift(read: &mut Read, by: i128) {
    let moved = |at: &mut u64| *at = (i128::from(*at) + by).clamp(0, i128::from(u64::MAX)) as u64;
    moved(&mut read.header.began);
    moved(&mut read.header.written);
    read.header.since.iter_mut().for_each(moved);
    read.header.failure.iter_mut().for_each(|failure| moved(&mut failure.at));
    read.notes.iter_mut().for_each(|note| moved(&mut note.at));
    for Operation { begin, end, .. } in &mut read.operations {
        moved(begin);
        end.iter_mut().for_each(moved);
    }
}

/// A file, or the files of a directory that are named like records.
fn files_of(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !fs::metadata(path)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let name = entry.file_name();
        if name.to_str().is_some_and(|name| name.starts_with("rank-") && name.ends_with(".jsonl")) {
            files.push(entry.path());
        }
    }
    files.sort();
    Ok(files)
}

fn read_file(path: &Path, warnings: &mut Vec<String>) -> Option<Read> {
    let name = path.display();
    let bytes = match bytes_of(path) {
        Ok(bytes) => bytes,
        Err(error) => {
            warnings.push(format!("{name}: {error}"));
            return None;
        }
    };
    match file::read(&bytes) {
        Ok(read) => {
            for (line, problem) in read.problems.iter().take(NAMED) {
                warnings.push(format!("{name}: line {line}: {problem}"));
            }
            if read.problems.len() > NAMED {
                warnings.push(format!("{name}: {} more lines cannot be used", read.problems.len() - NAMED));
            }
            Some(read)
        }
        Err(error) => {
            warnings.push(format!("{name}: {error}"));
            None
        }
    }
}

fn bytes_of(path: &Path) -> io::Result<Vec<u8>> {
    // Opening something else, such as a pipe, could wait for good.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(LONGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LONGEST {
        return Err(io::Error::other("it is far longer than a record"));
    }
    Ok(bytes)
}

#[cfg(test)]
pub(super) mod tests {
    use fulmen::parts::fabric::recorder::file::{Header, Phase};

    use super::*;

    /// A record without operations.
    pub(in super::super) fn record(rank: u32, size: u32) -> Read {
        let header = Header {
            rank,
            size,
            generation: "a".into(),
            boot: "here".into(),
            written: 10_000_000_000,
            unix: 20_000_000_000,
            ..Header::default()
        };
        Read { header, operations: Vec::new(), notes: Vec::new(), problems: Vec::new() }
    }

    /// An operation that began at a second and may have ended at another.
    pub(in super::super) fn call(
        op: &'static str,
        group: u32,
        sequence: u64,
        begin: u64,
        end: Option<(u64, Phase)>,
    ) -> Operation {
        Operation {
            n: sequence,
            op: op.into(),
            phase: end.map_or(Phase::Running, |(_, phase)| phase),
            group,
            sequence,
            peer: None,
            bytes: 8,
            begin: begin * 1_000_000_000,
            end: end.map(|(at, _)| at * 1_000_000_000),
            thread: 1,
            exact: true,
            started: false,
        }
    }

    pub(in super::super) fn world(records: Vec<Read>) -> (World, Vec<String>) {
        let mut warnings = Vec::new();
        let found =
            records.into_iter().map(|read| (PathBuf::from(format!("rank-{}", read.header.rank)), read)).collect();
        (World::of(found, &mut warnings).expect("a world"), warnings)
    }

    #[test]
    fn hosts_are_put_on_one_clock() {
        let mut far = record(1, 2);
        far.header.boot = "there".into();
        // Its clock counts from a moment three seconds later.
        far.header.written -= 3_000_000_000;
        far.operations.push(call("barrier", 1, 1, 2, None));
        let (world, warnings) = world(vec![record(0, 2), far]);
        let begins: Vec<u64> =
            world.ranks.values().flat_map(|read| &read.operations).map(|operation| operation.begin).collect();
        // Which of the two is the reference is not said.
        assert_eq!(world.end_of(0), world.end_of(1));
        assert_eq!(world.end_of(1) - begins[0], 5_000_000_000);
        assert!(warnings[0].contains("2 hosts"), "{warnings:?}");
    }

    #[test]
    fn the_newest_world_and_the_newest_record_of_a_rank_are_taken() {
        let mut old = record(0, 8);
        (old.header.generation, old.header.unix) = ("b".into(), 1);
        let mut older = record(1, 2);
        older.header.written -= 5;
        let (world, warnings) = world(vec![old, record(1, 2), older]);
        assert_eq!((world.size, world.generation.as_str()), (2, "a"));
        assert_eq!(world.end_of(1), 10_000_000_000);
        assert_eq!(world.missing(), [0]);
        assert!(warnings.iter().any(|warning| warning.contains("another world")), "{warnings:?}");
        assert!(warnings.iter().any(|warning| warning.contains("newer record of rank 1")), "{warnings:?}");
    }
}
