//! The process that calls into the driver.
//!
//! It is given an [`Order`] and says, a line of JSON each, what it is about to do, what it found out, or why it could not.
//! The two workers of a link also pass each other lines, which the command relays.

use std::fs::File;
use std::io::{self, BufRead, Write};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use rustix::process::{Resource, Rlimit, Signal, getpid, kill_process, setrlimit};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::answer::{Answer, Subject};
use super::{Kind, Order, limits, link, memory, pool, symbols};
use crate::run::processes;

/// How long the other end of a link may take for a step.
const PEER: Duration = Duration::from_secs(60);

/// The arguments of the hidden command.
#[derive(clap::Args)]
pub struct WorkerArgs {
    /// An order as JSON.
    order: String,
}

/// What a worker says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Said {
    /// What it is about to do.
    At(String),
    /// A line for the other worker.
    Peer(serde_json::Value),
    /// It is done.
    Found {
        /// The device that was probed.
        device: Option<Subject>,
        /// What was found out; nothing from the far end of a link.
        answer: Option<Answer>,
        /// What should not be so.
        wrong: Vec<String>,
    },
    /// It could not do it.
    Failed(String),
}

/// What a probe returns.
pub struct Done {
    pub answer: Option<Answer>,
    /// What should not be so, in whole sentences.
    pub wrong: Vec<String>,
}

/// How a probe talks meanwhile.
pub struct Voice {
    out: File,
    heard: Receiver<String>,
}

impl Voice {
    fn say(&self, said: &Said) {
        let Ok(mut line) = serde_json::to_vec(said) else { return };
        line.push(b'\n');
        // Nobody listens any more: the command is gone, and this process ends with its standard input.
        let _ = (&self.out).write_all(&line);
    }

    /// Tells what is done next: the last such word explains a driver that crashes or hangs.
    pub fn at(&self, what: &str) {
        self.say(&Said::At(what.to_string()));
    }

    /// Sends a value to the other end.
    pub fn tell(&self, value: &impl Serialize) -> anyhow::Result<()> {
        self.say(&Said::Peer(serde_json::to_value(value)?));
        Ok(())
    }

    /// Waits for a value from the other end.
    pub fn hear<T: DeserializeOwned>(&self) -> anyhow::Result<T> {
        let line = self.heard.recv_timeout(PEER).context("the other end says nothing")?;
        serde_json::from_str(&line).context("the other end says something else than expected")
    }
}

/// Does what it is told.
pub fn worker(args: WorkerArgs) -> anyhow::Result<ExitCode> {
    let order: Order = serde_json::from_str(&args.order).context("not an order")?;
    processes::die_with_parent()?;
    // A crash is expected here, and a file that holds this process's memory helps nobody.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    // What a library prints must not be taken for this process's words.
    let out = File::from(rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?);
    rustix::stdio::dup2_stdout(rustix::stdio::stderr())?;
    let (sender, heard) = channel();
    thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
        // The command is gone. The exit handlers of a library may hang, so none are run.
        let _ = kill_process(getpid(), Signal::KILL);
    });
    let voice = Voice { out, heard };
    let said = match work(&order, &voice) {
        Ok(said) => said,
        Err(error) => Said::Failed(crate::chain(&error)),
    };
    voice.say(&said);
    Ok(ExitCode::SUCCESS)
}

fn work(order: &Order, voice: &Voice) -> anyhow::Result<Said> {
    if order.kind == Kind::Symbols {
        let done = symbols::symbols(voice)?;
        return Ok(Said::Found { device: None, answer: done.answer, wrong: done.wrong });
    }
    voice.at("opening the device");
    let opened = order.target.open()?;
    let device = &opened.device;
    let subject = Some(Subject::new(device));
    let done = match order.kind {
        Kind::MrLimit => limits::registrations(voice, device, order.most)?,
        Kind::QueuePairs => limits::queue_pairs(voice, device, order.most)?,
        Kind::MrPool => pool::pools(voice, device, order.most)?,
        Kind::Link => link::link(voice, &opened, order)?,
        Kind::Memory => memory::memory(voice, device, order.memory.as_deref().unwrap_or_default())?,
        Kind::Symbols => unreachable!("needs no device"),
    };
    voice.at("closing the device");
    drop(opened);
    Ok(Said::Found { device: subject, answer: done.answer, wrong: done.wrong })
}
