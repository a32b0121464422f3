//! What is reckoned from the figures.

use fulmen::parts::collectives::plan::{self, Links, Operation as Called, Question};
use fulmen::parts::fabric::FabricOptions;
use fulmen::parts::fabric::model::{Load, Operation, Toward, Wire};
use fulmen::parts::soft::Profile;
use fulmen::parts::verbs::DeviceInfo;
use fulmen::{Algorithm, DType, Order, ReduceOp};
use serde::Serialize;

use super::figures::{Case, Figures};

/// Bits of a byte.
const BITS: f64 = 8.0;

/// Messages that follow one another are of this length where no other is asked for: the cable's rate comes out.
const LONG: u64 = 1 << 20;

/// Hosts, each joined with each by so many cables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub nodes: u64,
    pub cables: u64,
}

/// A prediction: with the expected figures, and with the best and the worst of all.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Span {
    pub best: f64,
    pub expected: f64,
    pub worst: f64,
}

/// What is said of one arrangement of hosts.
#[derive(Debug, Serialize)]
pub struct Scenario {
    pub nodes: u64,
    pub cables_a_pair: u64,
    pub ports_a_node: u64,
    pub link: Rates,
    pub node: Rates,
    pub messages: Vec<Message>,
    pub all_reduce: Vec<AllReduce>,
}

/// What leaves in one direction, in Gb/s.
#[derive(Debug, Serialize)]
pub struct Rates {
    /// Payload of large messages, which are dealt out to all cables.
    #[serde(rename = "all_cables_Gbps")]
    pub dealt_out: Span,
    /// What the cables carry at most.
    #[serde(rename = "cables_at_most_Gbps")]
    pub most: f64,
}

/// A message of so many bytes between two hosts.
#[derive(Debug, Serialize)]
pub struct Message {
    pub bytes: u64,
    #[serde(rename = "delivered_us")]
    pub delivered: Span,
    #[serde(rename = "done_us")]
    pub done: Span,
    /// Of such messages one behind the other.
    #[serde(rename = "stream_GBps")]
    pub stream: Span,
    pub there: Counted,
    pub back: Counted,
}

/// What is sent for it.
#[derive(Debug, Serialize)]
pub struct Counted {
    pub sends: u64,
    pub bytes: u64,
    /// What these SENDs take of the device's queues.
    pub device_frames: u64,
    /// How many more SENDs there may be.
    pub more_at_most: u64,
}

/// An all-reduce of so many bytes of each host.
#[derive(Debug, Serialize)]
pub struct AllReduce {
    pub bytes: u64,
    /// What the planner chooses for the expected figures.
    #[serde(serialize_with = "by_name")]
    pub algorithm: Algorithm,
    #[serde(rename = "us")]
    pub time: Span,
}

fn by_name<S: serde::Serializer>(algorithm: &Algorithm, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(algorithm.name())
}

impl Span {
    pub fn of(by: impl Fn(Case) -> f64) -> Span {
        let tidy = |case| (by(case) * 1e4).round() / 1e4;
        Span { best: tidy(Case::Best), expected: tidy(Case::Expected), worst: tidy(Case::Worst) }
    }
}

impl From<Load> for Counted {
    fn from(load: Load) -> Counted {
        Counted { sends: load.sends, bytes: load.bytes, device_frames: load.units, more_at_most: load.spare }
    }
}

/// How links run over devices with the limits of Apple's.
pub fn wire() -> anyhow::Result<Wire> {
    let (limits, capabilities) = (Profile::Thunderbolt.limits(), Profile::Thunderbolt.capabilities());
    let info = DeviceInfo { name: "rdma_en".into(), provider: "soft", ports: 1, limits, capabilities };
    Ok(Wire::new(&FabricOptions::default(), &info)?)
}

impl Scenario {
    pub fn new(figures: &Figures, wire: &Wire, shape: Shape, sizes: &[u64]) -> Scenario {
        let Shape { nodes, cables } = shape;
        let ports = (nodes - 1) * cables;
        let rates = |links: u64| {
            let stream = |case| {
                let rate = wire.stream(LONG, &figures.cable(case), &figures.host(case), cables);
                rate * links as f64 * BITS / 1000.0
            };
            Rates { dealt_out: Span::of(stream), most: figures.line.expected * (links * cables) as f64 }
        };
        Scenario {
            nodes,
            cables_a_pair: cables,
            ports_a_node: ports,
            link: rates(1),
            node: rates(nodes - 1),
            messages: sizes.iter().map(|bytes| Message::new(figures, wire, cables, *bytes)).collect(),
            all_reduce: sizes.iter().map(|bytes| AllReduce::new(figures, wire, shape, *bytes)).collect(),
        }
    }
}

impl Message {
    pub fn new(figures: &Figures, wire: &Wire, cables: u64, bytes: u64) -> Message {
        let time = |case| wire.time(Operation::Message, bytes, &figures.cable(case), &figures.host(case), cables);
        let steps = wire.steps(Operation::Message, bytes);
        Message {
            bytes,
            delivered: Span::of(|case| time(case).delivered),
            done: Span::of(|case| time(case).done),
            stream: Span::of(|case| wire.stream(bytes, &figures.cable(case), &figures.host(case), cables) / 1000.0),
            there: steps.load(Toward::There, wire).into(),
            back: steps.load(Toward::Here, wire).into(),
        }
    }
}

impl AllReduce {
    /// Of f32, summed in rank order.
    fn new(figures: &Figures, wire: &Wire, shape: Shape, bytes: u64) -> AllReduce {
        let question = Question {
            operation: Called::AllReduce,
            ranks: shape.nodes as usize,
            bytes: (bytes as usize).next_multiple_of(DType::F32.size()),
            dtype: DType::F32,
            op: ReduceOp::Sum,
            order: Order::Ranks,
        };
        let predict = |case| plan::predict(&question, &links(figures, wire, shape.cables, case));
        let algorithm = predict(Case::Expected)[0].algorithm;
        let time = |case| {
            let all = predict(case);
            all.iter().find(|one| one.algorithm == algorithm).map_or(f64::NAN, |one| one.time_us)
        };
        AllReduce { bytes, algorithm, time: Span::of(time) }
    }
}

/// The cables as the planner knows them. Large messages are dealt out to all of a pair's.
fn links(figures: &Figures, wire: &Wire, cables: u64, case: Case) -> Links {
    let (cable, host) = (figures.cable(case), figures.host(case));
    Links {
        name: figures.name.to_owned(),
        source: "the figures below".to_owned(),
        shape: plan::Shape::Mesh,
        most_hosts: None,
        ranks_per_host: 1,
        processors: 1,
        latency_us: cable.latency,
        bandwidth: Some(cable.bandwidth * cables as f64 / 1000.0),
        message_us: host.send,
        byte_ns: host.byte * 1000.0,
        offered_from: Some(wire.rendezvous as usize),
        offered_byte_ns: 0.0,
        hop_us: 0.0,
        wake_us: 0.0,
        copy_ns: figures.copy(case) * 1000.0,
        staging: 1.0,
        reduce_ns: figures.copy(case) * 1000.0,
        uncached_ns: Vec::new(),
        inside: None,
        mapped: None,
        ways: None,
    }
}
