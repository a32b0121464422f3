//! `fulmen top`: a cluster at a glance.

use std::collections::{BTreeMap, VecDeque};
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use fulmen_cluster::agent::Client;
use fulmen_cluster::agent::api::{ClusterStatus, NodeState, Noted, Process, Status};
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph, Row, Table};
use ratatui::{Frame, Terminal};
use serde_json::Value;

use super::status::{ago, now_ms, quoted};
use super::{Which, run};
use crate::output;

/// How often the nodes are asked.
const LOOK: Duration = Duration::from_secs(1);
/// Events that are shown at most.
const EVENTS: usize = 200;
/// The size of what is printed where there is no terminal.
const PRINTED: (u16, u16) = (140, 50);

/// Watch the cluster of this host's agent: nodes, processes, and what happens.
///
/// Ends with q, Esc or Ctrl-C. Where standard output is no terminal, it prints once what it would show.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    which: Which,
}

/// What a node said last.
#[derive(Default)]
struct Node {
    status: Option<Status>,
    processes: Vec<Process>,
    /// How long it took to say so.
    took: Duration,
    /// The last line of its audit log that was seen.
    seen: u64,
    /// Processes that it starts in a second.
    rate: f64,
    /// Bytes of programs' messages that go out over its devices in a second, and that come.
    carries: [f64; 2],
}

/// Something that happened.
struct Happened {
    node: String,
    time_ms: u64,
    words: String,
    bad: bool,
}

#[derive(Default)]
struct View {
    cluster: Option<ClusterStatus>,
    nodes: BTreeMap<String, Node>,
    events: VecDeque<Happened>,
    looked: Option<Instant>,
    problem: Option<String>,
}

impl View {
    /// Asks all nodes.
    async fn look(&mut self, client: &Client) {
        let status = match client.status().await {
            Ok(status) => status,
            Err(error) => {
                self.problem = Some(error.to_string());
                return;
            }
        };
        self.problem = None;
        let passed = self.looked.replace(Instant::now()).map(|looked| looked.elapsed().as_secs_f64());
        let up = status.cluster.nodes.iter().filter(|node| node.state == NodeState::Up);
        let ask = |name: String, seen: u64| async move {
            let (there, start) = (client.on(&name), Instant::now());
            let status = there.status().await.ok();
            let took = start.elapsed();
            let processes = there.processes().await.unwrap_or_default();
            (name, status, took, processes, there.audit(seen).await.unwrap_or_default())
        };
        let asked = up.map(|node| ask(node.name.clone(), self.nodes.get(&node.name).map_or(0, |node| node.seen)));
        let told = futures_util::future::join_all(asked.collect::<Vec<_>>()).await;
        let mut before = std::mem::take(&mut self.nodes);
        let mut news = Vec::new();
        for (name, status, took, processes, lines) in told {
            let mut node = before.remove(&name).unwrap_or_default();
            let spawned = |status: &Option<Status>| status.as_ref().map_or(0, |status| status.spawned);
            if let Some(passed) = passed {
                node.rate = spawned(&status).saturating_sub(spawned(&node.status)) as f64 / passed.max(0.001);
            }
            let carried = |status: &Option<Status>| {
                let devices = status.iter().flat_map(|status| &status.devices);
                devices.fold([0; 2], |[sent, received], device| {
                    [sent + device.sent_bytes, received + device.received_bytes]
                })
            };
            if let Some(passed) = passed {
                let (before, now) = (carried(&node.status), carried(&status));
                let rate = |way: usize| now[way].saturating_sub(before[way]) as f64 / passed.max(0.001);
                node.carries = [rate(0), rate(1)];
            }
            let said = |line: &Noted| {
                let id = line.line.get("id").and_then(Value::as_u64)?;
                let ended = processes.iter().find(|process| Some(process.id) == Some(id))?;
                ended.outcome.as_ref()?.said.clone()
            };
            news.extend(lines.iter().map(|line| happened(&name, line, said(line).as_deref())));
            // After a restart, numbers begin anew.
            node.seen = lines.last().map_or(node.seen, |line| line.number);
            self.nodes.insert(name, Node { status, took, processes, ..node });
        }
        news.sort_by_key(|event| event.time_ms);
        self.events.extend(news);
        let many = self.events.len().saturating_sub(EVENTS);
        self.events.drain(..many);
        self.cluster = Some(status.cluster);
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        let Some(cluster) = &self.cluster else {
            let problem = self.problem.as_deref().unwrap_or("asking the agent");
            frame.render_widget(Paragraph::new(problem), frame.area());
            return;
        };
        let nodes = cluster.nodes.len() as u16 + 3;
        let running = self.running().count() as u16;
        let areas = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(nodes),
            Constraint::Max(running + 3),
            Constraint::Min(3),
        ]);
        let [head, nodes, processes, events] = areas.areas(frame.area());
        frame.render_widget(self.head(cluster), head);
        frame.render_widget(self.nodes(cluster), nodes);
        frame.render_widget(self.processes(), processes);
        let room = usize::from(events.height.saturating_sub(2));
        let last = self.events.iter().skip(self.events.len().saturating_sub(room)).map(line);
        frame.render_widget(Paragraph::new(last.collect::<Vec<_>>()).block(Block::bordered().title("events")), events);
    }

    fn head(&self, cluster: &ClusterStatus) -> Line<'static> {
        if let Some(problem) = &self.problem {
            return Line::from(problem.clone()).red();
        }
        let known = cluster.nodes.len();
        let words = match &cluster.coordinator {
            _ if !cluster.in_touch => {
                let words = format!(
                    "not in touch with a majority of the {known} known nodes: what the others do cannot be known"
                );
                return Line::from(words).red();
            }
            Some(coordinator) => format!("{known} nodes, coordinated by {coordinator}"),
            None => format!("{known} nodes, coordinated by none yet"),
        };
        Line::from(words).bold()
    }

    fn nodes(&self, cluster: &ClusterStatus) -> Table<'static> {
        let row = |node: &fulmen_cluster::agent::api::NodeStatus| {
            let told = self.nodes.get(&node.name);
            let status = told.and_then(|told| told.status.as_ref());
            let count = |count: Option<u64>| count.map_or("-".into(), |count| count.to_string());
            let cells = [
                node.name.clone(),
                node.state.word().into(),
                node.role.clone(),
                node.address.clone().unwrap_or_else(|| "-".into()),
                format!("{}/{}", node.slots_taken, node.slots),
                count(status.map(|status| status.running)),
                count(status.map(|status| status.spawned)),
                told.map_or("-".into(), |told| format!("{:.0}", told.rate)),
                count(status.map(|status| status.ended.failed + status.ended.signaled)),
                told.map_or("-".into(), |told| format!("{:.1}", told.took.as_secs_f64() * 1e3)),
                told.map_or("-".into(), carries),
            ];
            let color = match node.state {
                NodeState::Up => Color::Reset,
                NodeState::Down => Color::Red,
                NodeState::Unknown | NodeState::Leaving => Color::Yellow,
            };
            Row::new(cells).style(Style::new().fg(color))
        };
        let widths = [16, 8, 10, 22, 7, 8, 9, 6, 7, 8, 15].map(Constraint::Length);
        let heads = [
            "node",
            "state",
            "role",
            "address",
            "slots",
            "running",
            "started",
            "1/s",
            "failed",
            "answers",
            "MB/s out/in",
        ];
        Table::new(cluster.nodes.iter().map(row), widths).header(Row::new(heads).style(Style::new().bold())).block(
            Block::bordered().title("nodes (failed: of those that have ended; answers: in ms; MB/s: over its devices)"),
        )
    }

    fn running(&self) -> impl Iterator<Item = (&String, &Process)> {
        let all = self.nodes.iter().flat_map(|(name, node)| node.processes.iter().map(move |process| (name, process)));
        all.filter(|(_, process)| process.outcome.is_none())
    }

    fn processes(&self) -> Table<'static> {
        let now = now_ms();
        let row = |(node, process): (&String, &Process)| {
            let words: Vec<String> = process.command.iter().map(|word| quoted(word)).collect();
            Row::new([
                node.clone(),
                process.id.to_string(),
                process.pid.to_string(),
                process.by.clone().unwrap_or_else(|| "-".into()),
                ago(now.saturating_sub(process.started_ms)),
                words.join(" "),
            ])
        };
        let widths = [
            Constraint::Length(16),
            Constraint::Length(7),
            Constraint::Length(9),
            Constraint::Length(16),
            Constraint::Length(14),
            Constraint::Min(20),
        ];
        Table::new(self.running().map(row), widths)
            .header(Row::new(["node", "number", "pid", "asked by", "for", "command"]).style(Style::new().bold()))
            .block(Block::bordered().title("processes"))
    }
}

/// What a node's devices carry, if it owns any.
fn carries(node: &Node) -> String {
    let owns = node.status.as_ref().is_some_and(|status| !status.devices.is_empty());
    let [out, into] = node.carries.map(|rate| rate / 1e6);
    if owns { format!("{out:.1}/{into:.1}") } else { "-".into() }
}

/// A line of an audit log in words.
/// A failed process has `said` something, perhaps.
fn happened(node: &str, noted: &Noted, said: Option<&str>) -> Happened {
    let text = |key: &str| noted.line.get(key).and_then(Value::as_str).unwrap_or_default();
    let number = |key: &str| noted.line.get(key).and_then(Value::as_u64);
    let id = number("id").unwrap_or_default();
    let list = || noted.line.get("command").and_then(Value::as_array).cloned().unwrap_or_default();
    let command = || list().iter().filter_map(Value::as_str).map(quoted).collect::<Vec<_>>().join(" ");
    let (words, bad) = match text("event") {
        "spawned" => (format!("{id} started for {}: {}", text("caller"), command()), false),
        "ended" => {
            let how = match (number("code"), number("signal")) {
                (Some(code), _) => format!("code {code}"),
                (None, Some(signal)) => crate::run::signals::name(signal as i32),
                (None, None) => "an unknown end".into(),
            };
            let because = text("because");
            let why = if because.is_empty() { String::new() } else { format!(" ({because})") };
            let said = said.map_or(String::new(), |said| format!(": {said}"));
            (format!("{id} ended: {how}{why}{said}"), number("code") != Some(0))
        }
        "signalled" => {
            let signal = crate::run::signals::name(number("signal").unwrap_or_default() as i32);
            (format!("{id} got {signal}: {}", text("because")), false)
        }
        "refused" => (format!("refused to {}: {}: {}", text("caller"), command(), text("problem")), true),
        "joined" => (format!("{} has joined as {}", text("node"), text("role")), false),
        "notjoined" => (format!("{} was not let in: {}", text("node"), text("problem")), true),
        "removed" => (format!("{} was removed by {}", text("node"), text("caller")), false),
        "seen" => (format!("{} is {}", text("node"), text("state")), ["down", "unknown"].contains(&text("state"))),
        "coordinator" if text("node").is_empty() => ("nobody coordinates".into(), true),
        "coordinator" => (format!("{} coordinates", text("node")), false),
        "up" => (format!("the agent is up, pid {}", number("pid").unwrap_or_default()), false),
        other => (format!("{other} {}", text("caller")).trim_end().to_owned(), other == "stranger"),
    };
    Happened { node: node.into(), time_ms: number("time_ms").unwrap_or_default(), words, bad }
}

fn line(event: &Happened) -> Line<'static> {
    let seconds = event.time_ms / 1000;
    let time = format!("{:02}:{:02}:{:02} ", seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let words = Span::from(event.words.clone());
    let words = if event.bad { words.red() } else { words };
    Line::from(vec![Span::from(time).dim(), Span::from(format!("{:<16} ", event.node)), words])
}

/// Watches a cluster.
pub fn top(args: Args) -> anyhow::Result<ExitCode> {
    let client = args.which.client()?;
    let mut view = View::default();
    let look = |view: &mut View| {
        run(async {
            view.look(&client).await;
            Ok(())
        })
    };
    look(&mut view)?;
    if !std::io::stdout().is_terminal() {
        if let Some(problem) = view.problem {
            anyhow::bail!(problem);
        }
        let (width, height) = PRINTED;
        let mut terminal = Terminal::new(TestBackend::new(width, height))?;
        terminal.draw(|frame| view.draw(frame))?;
        let buffer = terminal.backend().buffer();
        let cells = buffer.content().chunks(usize::from(width));
        let lines = cells.map(|row| row.iter().map(ratatui::buffer::Cell::symbol).collect::<String>());
        let text: String = lines.map(|line| format!("{}\n", line.trim_end())).collect();
        return output::print(&text);
    }
    // It gives the terminal back however this ends, also by a panic.
    let outcome = ratatui::run(|terminal| -> anyhow::Result<()> {
        let mut next = Instant::now() + LOOK;
        loop {
            terminal.draw(|frame| view.draw(frame))?;
            if event::poll(next.saturating_duration_since(Instant::now()))? {
                if let Event::Key(key) = event::read()? {
                    let interrupts = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
                    if interrupts || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
                        return Ok(());
                    }
                }
                continue;
            }
            look(&mut view)?;
            next = Instant::now() + LOOK;
        }
    });
    outcome.map(|()| ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happened_is_told_in_words() {
        let words = |json: &str| {
            let event = happened("a", &serde_json::from_str(json).unwrap(), None);
            (event.words, event.bad)
        };
        assert_eq!(
            words(r#"{"number":1,"time_ms":5,"event":"ended","id":7,"code":3}"#),
            ("7 ended: code 3".into(), true)
        );
        let signalled = r#"{"number":1,"time_ms":5,"event":"ended","id":7,"signal":9,"because":"memory"}"#;
        assert_eq!(words(signalled), ("7 ended: SIGKILL (memory)".into(), true));
        assert_eq!(words(r#"{"number":1,"event":"seen","node":"b","state":"down"}"#), ("b is down".into(), true));
        let spawned = r#"{"number":1,"event":"spawned","id":1,"caller":"node b","command":["echo","a b"]}"#;
        assert_eq!(words(spawned), ("1 started for node b: echo 'a b'".into(), false));
        assert_eq!(words(r#"{"number":1,"event":"new"}"#), ("new".into(), false));
        let failed = serde_json::from_str(r#"{"number":1,"event":"ended","id":7,"code":1}"#).unwrap();
        assert_eq!(happened("a", &failed, Some("no such file")).words, "7 ended: code 1: no such file");
    }
}
