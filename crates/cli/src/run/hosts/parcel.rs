//! Records of ranks on their way from their host to the launcher.
//!
//! Whoever looks for what happened looks where the run was started, and the host may be gone tomorrow. Copies stay on the host, as
//! long as those of any run do.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::super::records::{self, Records};
use super::protocol::{LONGEST_RECORD, MOST_RECORDS};
use crate::output::say;

/// What a helper brings.
pub struct Parcel {
    files: VecDeque<PathBuf>,
    /// Bytes that may still be brought.
    room: usize,
}

impl Parcel {
    /// The records of this run.
    pub fn new(records: &Records) -> Parcel {
        Parcel { files: records.written().into(), room: MOST_RECORDS }
    }

    /// The name of the next one, and the whole of it. One that is too long stays where it is, and is told of.
    pub fn next(&mut self) -> Option<(String, Vec<u8>)> {
        while let Some(file) = self.files.pop_front() {
            let most = LONGEST_RECORD.min(self.room);
            match (read(&file, most), file.file_name().and_then(|name| name.to_str())) {
                (Some(bytes), Some(name)) => {
                    self.room -= bytes.len();
                    return Some((name.to_owned(), bytes));
                }
                _ => say(&format!("{} cannot be read, or is longer than {most} bytes: it stays there", file.display())),
            }
        }
        None
    }
}

/// A whole file of at most so many bytes.
fn read(file: &Path, most: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(file).ok()?.take(most as u64 + 1).read_to_end(&mut bytes).ok()?;
    (bytes.len() <= most).then_some(bytes)
}

/// Where a launcher puts what a host brings.
pub struct Shelf {
    directory: PathBuf,
    room: usize,
}

impl Shelf {
    /// For records in this directory.
    pub fn new(directory: &Path) -> Shelf {
        Shelf { directory: directory.to_owned(), room: MOST_RECORDS }
    }

    /// Puts a record there, if it is one, and gives why not.
    pub fn put(&mut self, name: &str, bytes: &[u8]) -> Result<(), String> {
        let place = self.directory.display();
        self.room = self.room.checked_sub(bytes.len()).ok_or("there are more records than any run writes")?;
        records::put(&self.directory, name, bytes).map_err(|error| format!("{place}: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_carried_whole_and_no_further_than_there_is_room() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let records = Records::choose(Some(from.path())).unwrap();
        let write = |rank: u32, len: usize| {
            let file = from.path().join(format!("rank-{rank}-0f.jsonl"));
            std::fs::write(&file, vec![rank as u8; len]).unwrap();
            file
        };
        let files = [write(0, 7), write(1, LONGEST_RECORD + 1), write(2, LONGEST_RECORD), write(3, 9)];
        let mut parcel = Parcel { room: LONGEST_RECORD + 10, ..Parcel::new(&records) };
        assert_eq!(parcel.files, files);
        let mut shelf = Shelf::new(&to.path().join("new"));
        while let Some((name, bytes)) = parcel.next() {
            shelf.put(&name, &bytes).unwrap();
        }
        let there = |rank: u32| std::fs::read(to.path().join(format!("new/rank-{rank}-0f.jsonl"))).ok();
        assert_eq!(there(0), Some(vec![0; 7]));
        assert_eq!(there(2), Some(vec![2; LONGEST_RECORD]));
        assert_eq!((there(1), there(3)), (None, None), "too long, and no room");
    }

    #[test]
    fn a_host_puts_nothing_anywhere_else() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("records");
        let mut shelf = Shelf::new(&directory);
        for name in
            ["../rank-1-0f.jsonl", "rank-1-../0f.jsonl", "/rank-1-0f.jsonl", "rank-1-0f", "", "rank-1-0F x.jsonl"]
        {
            shelf.put(name, b"{}").unwrap_err();
        }
        assert!(!directory.exists());
        shelf.put("rank-1-0f.jsonl", b"old").unwrap();
        shelf.put("rank-1-0f.jsonl", b"new").unwrap();
        assert_eq!(std::fs::read(directory.join("rank-1-0f.jsonl")).unwrap(), b"new");
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 1);
        shelf.room = 1;
        shelf.put("rank-2-0f.jsonl", b"{}").unwrap_err();
    }
}
