//! A record as it lies in a file: lines of JSON. The first is the [`Header`]; then come operations and notes, oldest first;
//! the last says how many there were, so that a file that was cut off is known for one.
//!
//! Times are nanoseconds of the host's monotonic clock, which all its processes share.

use std::borrow::Cow;
use std::io;

use serde::{Deserialize, Serialize};

/// What a header's `fulmen` says.
pub const MAGIC: &str = "trace";

/// The version of the lines.
pub const VERSION: u32 = 2;

/// The longest line that is read, in bytes.
pub const LONGEST_LINE: usize = 64 << 10;

/// Most lines that are read.
pub const MOST_LINES: usize = 1 << 20;

/// Why a record was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// An operation failed.
    Error,
    /// The process got SIGUSR1.
    Signal,
    /// The program asked for it.
    #[default]
    Command,
}

/// How far an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// It has not ended.
    Running = 0,
    /// It ended well.
    Done = 1,
    /// It failed.
    Failed = 2,
    /// Nobody waits for its end.
    LetGo = 3,
}

/// Who wrote a record, and when.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// [`MAGIC`].
    pub fulmen: String,
    /// [`VERSION`].
    pub version: u32,
    /// The rank.
    pub rank: u32,
    /// How many ranks there are.
    pub size: u32,
    /// The number of the world, in hexadecimal digits: the same on all its ranks.
    pub generation: String,
    /// The process.
    pub pid: u32,
    /// The host's name.
    pub host: String,
    /// What the host's monotonic clock counts from: the same for all processes of a host until it is started again.
    pub boot: String,
    /// The program.
    pub program: String,
    /// Why it was written.
    pub reason: Reason,
    /// The clock that operations were stamped with.
    pub clock: String,
    /// When the recorder began.
    pub began: u64,
    /// When the record was taken.
    pub written: u64,
    /// The same moment, in nanoseconds since 1970.
    pub unix: u64,
    /// Operations begun until then.
    pub operations: u64,
    /// The last so many of each thread are kept. After the first few threads, all others count as one.
    pub capacity: u64,
    /// All operations that began later are kept. None if all are.
    pub since: Option<u64>,
    /// Of those, how many were just being written and are left out.
    pub torn: u64,
    /// The first failure.
    pub failure: Option<Failure>,
}

/// A failure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// When.
    pub at: u64,
    /// What failed.
    pub op: String,
    /// The group that it ended; 0 for none.
    pub group: u32,
    /// The error.
    pub text: String,
}

/// An operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// How many its thread had begun before. After the first few threads, all others count as one.
    pub n: u64,
    /// Its name.
    pub op: Cow<'static, str>,
    /// How far it is.
    pub phase: Phase,
    /// The group, from 1, or beyond [`SPLIT`]; 0 for operations between two ranks.
    pub group: u32,
    /// Which call of the group it is; between two ranks, the tag or the offset.
    pub sequence: u64,
    /// The other rank, or the root.
    pub peer: Option<u32>,
    /// Bytes of its data.
    pub bytes: u64,
    /// When it began.
    pub begin: u64,
    /// When it ended.
    pub end: Option<u64>,
    /// Whether these are to the nanosecond. Else they are right to a tick of the system (1 to 10 ms), and in their order.
    pub exact: bool,
    /// The thread that began it, by a small number.
    pub thread: u32,
    /// Whether it went on by itself.
    pub started: bool,
}

/// Something that happens rarely.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// When.
    pub at: u64,
    /// What: `group`, `lost`, `failed` and others.
    pub event: Cow<'static, str>,
    /// The group; 0 for none.
    pub group: u32,
    /// The other rank.
    pub peer: Option<u32>,
    /// More about it.
    pub text: String,
    /// Of a group of some ranks only, which ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<u32>,
}

/// Numbers of groups that were split off others have this bit: they are no count, but the same on all of a group's ranks.
pub const SPLIT: u32 = 1 << 31;

/// A line after the first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "line", rename_all = "snake_case")]
pub enum Line {
    /// An operation.
    Operation(Operation),
    /// A note.
    Note(Note),
    /// The last line: how many operations and notes there are.
    End {
        /// So many.
        lines: u64,
    },
}

impl Line {
    /// When it began or happened.
    #[must_use]
    pub fn at(&self) -> u64 {
        match self {
            Line::Operation(operation) => operation.begin,
            Line::Note(note) => note.at,
            Line::End { .. } => u64::MAX,
        }
    }
}

/// A record that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    /// Its header.
    pub header: Header,
    /// Operations, in the order of the file.
    pub operations: Vec<Operation>,
    /// Notes, in the order of the file.
    pub notes: Vec<Note>,
    /// What was wrong with it, and was left out: the line, from 1, and why.
    pub problems: Vec<(usize, String)>,
}

/// Why a file is no record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// It is empty.
    #[error("it is empty: its rank was ended while it wrote")]
    Empty,
    /// The first line is no header.
    #[error("line 1 is no header of a record ({0}): give files that a rank wrote")]
    Foreign(String),
    /// Another version wrote it.
    #[error(
        "line 1: it was written by version {theirs} of the recorder, and this one reads {VERSION}: use the same release"
    )]
    Version {
        /// The version.
        theirs: u32,
    },
    /// The header contradicts itself.
    #[error("line 1: rank {rank} of {size} ranks is none")]
    Rank {
        /// The rank.
        rank: u32,
        /// The size.
        size: u32,
    },
}

/// Writes a record.
pub(crate) fn write(to: &mut impl io::Write, header: &Header, lines: &[Line]) -> io::Result<()> {
    let mut line = |value: &dyn Fn(&mut Vec<u8>) -> serde_json::Result<()>| -> io::Result<()> {
        let mut text = Vec::with_capacity(256);
        value(&mut text)?;
        text.push(b'\n');
        to.write_all(&text)
    };
    line(&|text| serde_json::to_writer(text, header))?;
    for entry in lines {
        line(&|text| serde_json::to_writer(text, entry))?;
    }
    line(&|text| serde_json::to_writer(text, &Line::End { lines: lines.len() as u64 }))
}

/// Reads a record out of the bytes of a file, whatever they are. What cannot be read is left out, and told.
///
/// # Errors
/// [`ReadError`] if there is no header.
pub fn read(bytes: &[u8]) -> Result<Read, ReadError> {
    let mut lines = bytes.split(|byte| *byte == b'\n').take(MOST_LINES);
    let first = lines.next().filter(|line| !line.is_empty()).ok_or(ReadError::Empty)?;
    let first = &first[..first.len().min(LONGEST_LINE)];
    // Of a later version, only these two may be there.
    #[derive(Deserialize)]
    struct Kind {
        fulmen: String,
        version: u32,
    }
    let kind: Kind = serde_json::from_slice(first).map_err(|error| ReadError::Foreign(error.to_string()))?;
    if kind.fulmen != MAGIC {
        return Err(ReadError::Foreign("it says it is something else".into()));
    }
    if kind.version != VERSION {
        return Err(ReadError::Version { theirs: kind.version });
    }
    let header: Header = serde_json::from_slice(first).map_err(|error| ReadError::Foreign(error.to_string()))?;
    if header.rank >= header.size {
        return Err(ReadError::Rank { rank: header.rank, size: header.size });
    }
    let mut read = Read { header, operations: Vec::new(), notes: Vec::new(), problems: Vec::new() };
    let (mut last, mut ended) = (1, false);
    for (number, line) in (2..).zip(lines).filter(|(_, line)| !line.is_empty()) {
        last = number;
        if line.len() > LONGEST_LINE {
            read.problems.push((number, "it is too long".into()));
            continue;
        }
        match serde_json::from_slice(line) {
            Ok(Line::Operation(operation)) => read.operations.push(operation),
            Ok(Line::Note(note)) => read.notes.push(note),
            Ok(Line::End { lines }) => {
                ended = true;
                let found = read.operations.len() + read.notes.len() + read.problems.len();
                if lines != found as u64 {
                    read.problems.push((number, format!("there should be {lines} lines before it and are {found}")));
                }
            }
            Err(error) => read.problems.push((number, error.to_string())),
        }
    }
    if !ended {
        read.problems.push((last + 1, "the file ends before its last line: it was cut off".into()));
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header() -> Header {
        Header { fulmen: MAGIC.into(), version: VERSION, rank: 1, size: 2, ..Header::default() }
    }

    fn lines() -> Vec<Line> {
        let operation = Operation {
            n: u64::MAX,
            op: "all_reduce".into(),
            phase: Phase::Failed,
            group: 1,
            sequence: u64::MAX,
            peer: None,
            bytes: 8,
            begin: 5,
            end: Some(7),
            exact: true,
            thread: 1,
            started: false,
        };
        let running = Operation { phase: Phase::Running, end: None, peer: Some(3), ..operation.clone() };
        let note =
            Note { at: 9, event: "lost".into(), group: 0, peer: Some(1), text: "a\n\"b\"".into(), members: vec![1, 3] };
        vec![Line::Operation(operation), Line::Operation(running), Line::Note(note)]
    }

    fn written() -> Vec<u8> {
        let mut bytes = Vec::new();
        write(&mut bytes, &header(), &lines()).unwrap();
        bytes
    }

    #[test]
    fn what_was_written_is_read() {
        let read = read(&written()).unwrap();
        assert_eq!(read.header, header());
        let operations = read.operations.into_iter().map(Line::Operation);
        assert_eq!(operations.chain(read.notes.into_iter().map(Line::Note)).collect::<Vec<_>>(), lines());
        assert_eq!(read.problems, []);
    }

    #[test]
    fn a_file_that_was_cut_off_gives_what_is_left() {
        let bytes = written();
        for len in 0..bytes.len() - 1 {
            match read(&bytes[..len]) {
                Ok(read) => assert!(!read.problems.is_empty(), "{len} bytes"),
                Err(_) => assert!(len < bytes.iter().position(|byte| *byte == b'\n').unwrap(), "{len} bytes"),
            }
        }
    }

    #[test]
    fn what_is_no_record_is_refused_and_why() {
        let header = |change: fn(&mut Header)| {
            let mut header = header();
            change(&mut header);
            serde_json::to_vec(&header).unwrap()
        };
        assert_eq!(read(b""), Err(ReadError::Empty));
        assert!(matches!(read(b"hello\nworld"), Err(ReadError::Foreign(_))));
        assert!(matches!(read(b"{\"a\":1}"), Err(ReadError::Foreign(_))));
        assert!(matches!(read(&header(|header| header.fulmen.clear())), Err(ReadError::Foreign(_))));
        assert_eq!(read(&header(|header| header.version = 9)), Err(ReadError::Version { theirs: 9 }));
        assert_eq!(read(&header(|header| header.rank = 2)), Err(ReadError::Rank { rank: 2, size: 2 }));
    }

    #[test]
    fn a_garbled_line_is_named_and_the_rest_is_used() {
        let text = String::from_utf8(written()).unwrap();
        let garbled: Vec<&str> =
            text.lines().enumerate().map(|(index, line)| if index == 2 { "{\"line\":\"oper" } else { line }).collect();
        let read = read(garbled.join("\n").as_bytes()).unwrap();
        assert_eq!((read.operations.len(), read.notes.len()), (1, 1));
        assert_eq!(read.problems.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [3]);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..400), at in 0usize..800) {
            let _ = read(&bytes);
            let mut whole = written();
            let at = at.min(whole.len());
            whole.splice(at..(at + bytes.len()).min(whole.len()), bytes);
            let _ = read(&whole);
        }
    }
}
