//! What a helper is to run on its host.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, PipeReader};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::Duration;

use super::super::rank::{Kit, Rank};
use super::super::records::{self, Asked, Records};
use super::super::{RunError, check_descriptors, processes, program};
use super::connection::never_block;
use super::flow::Flow;
use super::protocol::Task;

/// What ranks are started with.
pub struct Work {
    kit: Kit,
    /// Where ranks of this host write their records.
    pub records: Records,
    /// Those that are writing them.
    pub asked: Option<Asked>,
    nothing: File,
    /// What the first rank reads, if it is here.
    pub input: Option<Input>,
}

/// Standard input of the first rank.
pub struct Input {
    /// Of which each process of the rank reads on where the last one stopped.
    reader: PipeReader,
    /// The pipe, and what waits for room in it.
    pub flow: Flow,
}

/// Checks that the task can be done here.
pub fn begin(task: Task) -> anyhow::Result<Work> {
    let os = |bytes: Vec<u8>| OsString::from_vec(bytes);
    let directory = PathBuf::from(os(task.directory));
    std::env::set_current_dir(&directory)
        .map_err(|error| RunError::Directory { path: directory, reason: error.to_string() })?;
    let program: Vec<OsString> = task.program.into_iter().map(os).collect();
    let path = match task.own {
        true => processes::own_program()?,
        false => program::find(program.first().map_or(OsStr::new(""), OsString::as_os_str))?,
    };
    check_descriptors(task.count, 0)?;
    let trace = task.trace.map(|trace| PathBuf::from(os(trace)));
    let records = Records::choose(trace.as_deref())?;
    let pairs = |pairs: Vec<(Vec<u8>, Vec<u8>)>| pairs.into_iter().map(|(name, value)| (os(name), os(value))).collect();
    let mut env: Vec<(OsString, OsString)> = pairs(task.env);
    env.push((records::DIRECTORY.into(), records.directory().into()));
    let input = match task.reads {
        true => {
            let (reader, writer) = io::pipe()?;
            never_block(&writer)?;
            Some(Input { reader, flow: Flow::new(OwnedFd::from(writer)) })
        }
        false => None,
    };
    let kit = Kit {
        path,
        program,
        grace: Duration::from_millis(task.grace),
        env,
        program_env: pairs(task.program_env),
        first: task.first,
        secret: task.secret.0,
    };
    Ok(Work { kit, records, asked: None, nothing: File::open("/dev/null")?, input })
}

impl Work {
    /// Starts a rank, and gives the pipes that it writes into.
    pub fn start(&self, rank: u32) -> io::Result<(Rank, [PipeReader; 2])> {
        let (out, out_end) = io::pipe()?;
        let (err, err_end) = io::pipe()?;
        let stdin = match &self.input {
            Some(input) if rank == self.kit.first => input.reader.as_fd(),
            _ => self.nothing.as_fd(),
        };
        let rank = Rank::start(&self.kit, rank, stdin, out_end.into(), err_end.into())?;
        Ok((rank, [out, err]))
    }
}
