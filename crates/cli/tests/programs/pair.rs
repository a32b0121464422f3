//! Running a program over the device: alone, or as a server and a client.

use std::fs::File;
use std::io::{Read, Seek};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::case::{Outcome, Program, last_lines};
use crate::port;

/// The command under test.
const FULMEN: &str = env!("CARGO_BIN_EXE_fulmen");

/// No wait of a test that passes comes near this. perftest's latency tests over all sizes keep both ends' processors busy for
/// 10 s, and beside other tests took more than 120.
pub const LIMIT: Duration = Duration::from_secs(400);

/// How often something is looked at.
const LOOK: Duration = Duration::from_millis(5);

/// How a program is run.
#[derive(Clone, Debug)]
pub struct Launch {
    pub program: Program,
    /// Options of `fulmen run`, before the program.
    pub options: Vec<String>,
    /// Variables of the program.
    pub env: Vec<(&'static str, String)>,
}

/// A program at work. Dropping it kills the command, and with it all that it has started.
pub struct Running {
    child: Child,
    said: File,
    line: String,
}

/// How a program ended.
#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    /// Both streams, as they were written.
    pub said: String,
    /// The command line.
    pub line: String,
}

impl Launch {
    pub fn of(program: Program) -> Launch {
        Launch { program, options: Vec::new(), env: Vec::new() }
    }

    /// With more options of `fulmen run`.
    pub fn with(mut self, options: &[&str]) -> Launch {
        self.options.extend(options.iter().map(ToString::to_string));
        self
    }

    /// With a variable.
    pub fn env(mut self, name: &'static str, value: impl Into<String>) -> Launch {
        self.env.push((name, value.into()));
        self
    }

    /// Starts it with these arguments.
    pub fn start(&self, args: &[String]) -> Result<Running, String> {
        self.start_program(self.program.name, args)
    }

    /// Starts something else in its place, such as a program that was made for the test.
    pub fn start_program(&self, program: &str, args: &[String]) -> Result<Running, String> {
        let said = tempfile::tempfile().map_err(|error| error.to_string())?;
        let stream = || said.try_clone().map_err(|error| error.to_string());
        let mut command = Command::new(FULMEN);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("FULMEN_")) {
            if name != "FULMEN_VERBS_DROPIN" {
                command.env_remove(name);
            }
        }
        let limit = format!("--timeout={}", LIMIT.as_secs());
        command.args(["run", "--verbs", "--no-labels", &limit]).args(&self.options).arg("--").arg(program).args(args);
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(stream()?).stderr(stream()?);
        let env: String = self.env.iter().map(|(name, value)| format!("{name}={value} ")).collect();
        let options: String = self.options.iter().map(|option| format!("{option} ")).collect();
        let line = format!("{env}fulmen run --verbs {options}-- {program} {}", args.join(" "));
        let child = command.spawn().map_err(|error| format!("{FULMEN} does not start: {error}"))?;
        Ok(Running { child, said, line })
    }

    /// Runs it to its end, which must be a good one.
    pub fn run(&self, args: &[String]) -> Result<Ended, String> {
        self.start(args)?.end().and_then(Ended::good)
    }

    /// Runs a server and, when it listens on the port, a client with one more argument, the server's address. Both must
    /// succeed.
    pub fn pair(&self, port: u16, args: &[String]) -> Result<[Ended; 2], String> {
        let client: Vec<String> = args.iter().cloned().chain([String::from("127.0.0.1")]).collect();
        let mut server = self.start(args)?;
        server.wait_listening(port)?;
        let client = self.start(&client)?;
        finish(server, client)
    }
}

/// Waits for both ends of a pair, which must be good. If one fails, the other has the rest of the time to notice that.
pub fn finish(server: Running, client: Running) -> Result<[Ended; 2], String> {
    let (client, server) = (client.end(), server.end());
    match (server.and_then(Ended::good), client.and_then(Ended::good)) {
        (Ok(server), Ok(client)) => Ok([server, client]),
        (Err(server), Err(client)) => Err(format!("server: {server}\nclient: {client}")),
        (Err(server), Ok(_)) => Err(format!("server: {server}")),
        (Ok(_), Err(client)) => Err(format!("client: {client}")),
    }
}

impl Running {
    /// Waits until somebody listens on the port.
    pub fn wait_listening(&mut self, port: u16) -> Outcome {
        let end = Instant::now() + LIMIT;
        while !port::is_listened_on(port) {
            if self.child.try_wait().is_ok_and(|status| status.is_some()) {
                return Err(format!("{} ended before it listened; it said:\n{}", self.line, last_lines(&self.said())));
            }
            if Instant::now() >= end {
                return Err(format!("{} does not listen; it said:\n{}", self.line, last_lines(&self.said())));
            }
            thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Waits until it has said something, and that many whole lines after the one that this is in.
    pub fn wait_said(&mut self, text: &str, lines: usize) -> Outcome {
        let end = Instant::now() + LIMIT;
        let has_come = |said: &str| said.split_once(text).is_some_and(|(_, after)| after.matches('\n').count() > lines);
        while !has_come(&self.said()) {
            if self.child.try_wait().is_ok_and(|status| status.is_some()) || Instant::now() >= end {
                return Err(format!("{} did not say {text:?}, but:\n{}", self.line, last_lines(&self.said())));
            }
            thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Kills the program and all around it, as the loss of power would.
    pub fn kill(mut self) -> Outcome {
        self.child.kill().and_then(|()| self.child.wait()).map(drop).map_err(|error| error.to_string())
    }

    /// What it has said so far.
    pub fn said(&self) -> String {
        let mut bytes = Vec::new();
        let read = self.said.try_clone().and_then(|mut file| file.rewind().and_then(|()| file.read_to_end(&mut bytes)));
        read.map_or_else(|error| error.to_string(), |_| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Waits for its end.
    pub fn end(mut self) -> Result<Ended, String> {
        let end = Instant::now() + LIMIT;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Ok(Ended { status, said: self.said(), line: self.line.clone() }),
                Ok(None) if Instant::now() < end => thread::sleep(LOOK),
                Ok(None) => return Err(format!("{} does not end; it said:\n{}", self.line, last_lines(&self.said()))),
                Err(error) => return Err(format!("{}: {error}", self.line)),
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ended {
    /// A good end.
    pub fn good(self) -> Result<Ended, String> {
        let Ended { status, said, line } = &self;
        if status.success() { Ok(self) } else { Err(format!("{line}: {status}; it said:\n{}", last_lines(said))) }
    }
}
