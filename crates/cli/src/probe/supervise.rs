//! Starting workers, relaying their lines, and telling how they ended.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::answer::{Answer, Subject};
use super::worker::Said;
use super::{Order, WORKER};
use crate::run::{processes, signals};

/// How long a killed worker may take to end. Only one that hangs inside the system takes longer.
const VANISH: Duration = Duration::from_secs(5);
/// How long the others may take once one has ended badly: they may know why.
const LINGER: Duration = Duration::from_secs(2);

/// How the workers ended.
#[derive(Debug, Default)]
pub struct Outcome {
    pub device: Option<Subject>,
    pub answer: Option<Answer>,
    /// What went wrong, in sentences.
    pub problem: Option<String>,
    /// What the driver was asked to do last, if it crashed or hung.
    pub last: Option<String>,
}

struct Worker {
    child: Child,
    input: Option<ChildStdin>,
    /// What it is doing.
    at: String,
    /// It has been waited for.
    ended: bool,
    found: bool,
}

enum Event {
    Said(Said),
    /// Its standard output is closed.
    Silent,
}

/// Runs a worker an order, until all have ended or one does nothing for as long as `patience`.
pub fn supervise(orders: &[Order], patience: Duration) -> Outcome {
    let (sender, receiver) = channel();
    let mut workers = Vec::new();
    let mut outcome = Outcome::default();
    for (index, order) in orders.iter().enumerate() {
        match start(index, order, &sender) {
            Ok(worker) => workers.push(worker),
            Err(error) => outcome.problem = Some(format!("no process could be started to probe with: {error}")),
        }
    }
    drop(sender);
    if outcome.problem.is_none() {
        follow(&mut workers, &receiver, patience, &mut outcome);
    }
    end(&mut workers, &mut outcome);
    outcome
}

fn start(index: usize, order: &Order, sender: &Sender<(usize, Event)>) -> std::io::Result<Worker> {
    let mut command = Command::new(processes::own_program()?);
    command.arg0("fulmen").arg(WORKER).arg(serde_json::to_string(order)?);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let (input, output) = (child.stdin.take(), child.stdout.take());
    let sender = sender.clone();
    thread::spawn(move || {
        for line in output.into_iter().flat_map(|output| BufReader::new(output).lines()).map_while(Result::ok) {
            if let Ok(said) = serde_json::from_str(&line) {
                let _ = sender.send((index, Event::Said(said)));
            }
        }
        let _ = sender.send((index, Event::Silent));
    });
    Ok(Worker { child, input, at: "starting".into(), ended: false, found: false })
}

fn follow(workers: &mut [Worker], receiver: &Receiver<(usize, Event)>, patience: Duration, outcome: &mut Outcome) {
    let mut until: Option<Instant> = None;
    while workers.iter().any(|worker| !worker.ended) {
        let wait = until.map_or(patience, |until| until.saturating_duration_since(Instant::now()));
        let (index, event) = match receiver.recv_timeout(wait) {
            Ok(event) => event,
            Err(_) if until.is_some() => return,
            Err(_) => {
                let hung = workers.iter().find(|worker| !worker.ended);
                let at = hung.map(|worker| worker.at.clone()).unwrap_or_default();
                outcome.problem = Some(format!(
                    "nothing happened for {} s while {at}: the driver hangs, or --patience is too short",
                    patience.as_secs_f64()
                ));
                outcome.last = Some(at);
                return;
            }
        };
        match event {
            Event::Said(said) => hear(workers, index, said, outcome),
            Event::Silent => look(&mut workers[index], outcome),
        }
        if outcome.problem.is_some() && until.is_none() {
            until = Some(Instant::now() + LINGER);
        }
    }
}

fn hear(workers: &mut [Worker], index: usize, said: Said, outcome: &mut Outcome) {
    match said {
        Said::At(at) => workers[index].at = at,
        Said::Peer(value) => {
            let others = workers.iter_mut().enumerate().filter(|(other, _)| *other != index);
            for input in others.filter_map(|(_, worker)| worker.input.as_mut()) {
                // A worker that has ended is told about elsewhere.
                let _ = input.write_all(format!("{value}\n").as_bytes());
            }
        }
        Said::Found { device, answer, wrong } => {
            workers[index].found = true;
            if index == 0 {
                (outcome.device, outcome.answer) = (device, answer);
            }
            if !wrong.is_empty() {
                outcome.problem.get_or_insert(wrong.join("; "));
            }
        }
        Said::Failed(why) => {
            workers[index].found = true;
            outcome.problem.get_or_insert(why);
        }
    }
}

/// Looks at a worker that says nothing more.
fn look(worker: &mut Worker, outcome: &mut Outcome) {
    let Some(status) = wait(&mut worker.child, VANISH) else {
        outcome.last = Some(worker.at.clone());
        outcome.problem = Some(format!("the process that probes does not end after {}: the driver hangs", worker.at));
        return;
    };
    // Only now: whoever hangs on its way out is still to be killed.
    worker.ended = true;
    let how = match (status.signal(), status.code()) {
        (Some(signal), _) => format!("the process that probes was ended by {}", signals::name(signal)),
        (None, code) if !worker.found => format!("the process that probes ended with code {}", code.unwrap_or(-1)),
        // It said all that it had to say; what its exit handlers make of that is nobody's business.
        _ => return,
    };
    // A crash explains the complaints of the other end, and not the other way round.
    outcome.problem = Some(format!("{how} while {}: the driver crashed", worker.at));
    outcome.last = Some(worker.at.clone());
}

fn wait(child: &mut Child, timeout: Duration) -> Option<ExitStatus> {
    let end = Instant::now() + timeout;
    loop {
        // An error means that it was waited for already, which nobody else does.
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        if Instant::now() >= end {
            return None;
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// Lets none of them live on.
fn end(workers: &mut [Worker], outcome: &mut Outcome) {
    for worker in workers.iter_mut().filter(|worker| !worker.ended) {
        // It has not been waited for, so its number is its own.
        let _ = worker.child.kill();
    }
    for worker in workers.iter_mut().filter(|worker| !worker.ended) {
        if wait(&mut worker.child, VANISH).is_none() {
            let stuck = "; its process cannot even be killed: it hangs inside the system";
            outcome.problem.get_or_insert_default().push_str(stuck);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_hangs_on_its_way_out_is_killed_and_reaped() {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "exec >&-; exec sleep 1000"]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        std::io::copy(&mut child.stdout.take().unwrap(), &mut std::io::sink()).unwrap();
        let at = "closing the device".to_owned();
        let mut workers = [Worker { child, input: None, at: at.clone(), ended: false, found: true }];
        let mut outcome = Outcome::default();
        let (sender, receiver) = channel();
        sender.send((0, Event::Silent)).unwrap();
        drop(sender);
        follow(&mut workers, &receiver, Duration::from_secs(60), &mut outcome);
        end(&mut workers, &mut outcome);
        let status = workers[0].child.try_wait().unwrap().expect("it is reaped");
        assert_eq!(signals::name(status.signal().expect("a signal")), "SIGKILL");
        let problem = outcome.problem.unwrap();
        assert!(problem.contains("does not end after closing the device"), "{problem}");
        assert_eq!(outcome.last, Some(at));
    }
}
