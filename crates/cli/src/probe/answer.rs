//! What probes find out, as it passes from a worker to the command and into its JSON.

use std::sync::Arc;

use fulmen::parts::verbs::{Device, PortState, VerbsError};
use serde::{Deserialize, Serialize};

/// The device that was probed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Subject {
    pub name: String,
    pub provider: String,
    /// Its ports that are active now.
    pub active_ports: Vec<u8>,
}

impl Subject {
    pub fn new(device: &Arc<dyn Device>) -> Subject {
        let info = device.info();
        let active = |number: &u8| device.port(*number).is_ok_and(|port| port.state == PortState::Active);
        Subject {
            name: info.name.clone(),
            provider: info.provider.to_string(),
            active_ports: (1..=info.ports).filter(active).collect(),
        }
    }
}

/// What a probe found out. Its name is a key of the JSON object.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    Limits(Vec<Limit>),
    Pools(Vec<Pool>),
    Rails(Vec<Rail>),
    Memory(Vec<Memory>),
    Symbols(Vec<Symbol>),
}

/// How many of something a device has.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Limit {
    /// What, in the plural.
    pub what: String,
    /// What the device says that it has.
    pub stated: u64,
    /// How many were made.
    pub made: u64,
    /// How the next one was refused; none if it was not asked for.
    pub refusal: Option<Refusal>,
    /// How many were made after all had been given back.
    pub made_again: u64,
    /// What went wrong then.
    pub problem: Option<String>,
}

/// How a device refused something.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Refusal {
    pub words: String,
    /// The system's error number, if the system was asked: Fulmen refuses what exceeds the stated limits.
    pub errno: Option<i32>,
}

impl From<&VerbsError> for Refusal {
    fn from(error: &VerbsError) -> Refusal {
        let errno = match error {
            VerbsError::System { cause, .. } | VerbsError::Unreachable { cause, .. } => error_number(cause),
            _ => None,
        };
        Refusal { words: error.to_string(), errno }
    }
}

/// The number in what `fulmen::parts::system::errno` made of an error.
fn error_number(cause: &str) -> Option<i32> {
    let (_, after) = cause.split_once("(error ")?;
    after.split_once(')')?.0.parse().ok()
}

/// One registration with thousands of buffers inside.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Pool {
    /// Bytes of the registration.
    pub bytes: u64,
    /// How it was refused.
    pub refusal: Option<Refusal>,
    /// How many buffers of 512 KiB were cut out of it.
    pub buffers: u64,
    /// What was moved between them.
    pub transfers: Vec<Transfer>,
}

/// Bytes that were moved and compared.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Transfer {
    /// What was done.
    pub what: String,
    pub bytes: u64,
    /// What went wrong.
    pub problem: Option<String>,
}

/// A port of one device and one of the other, and what passes between them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Rail {
    pub port: u8,
    pub peer: String,
    pub peer_port: u8,
    pub link_layer: String,
    /// `RC` or `UC`.
    pub queue_pairs: String,
    pub mtu: u32,
    /// Bits a second that the port promises, if it says so.
    pub nominal_bits_per_second: Option<u64>,
    pub latency: Vec<Latency>,
    pub bandwidth: Vec<Bandwidth>,
    /// What was left out, and why.
    pub left_out: Vec<String>,
}

/// Half a round trip of SENDs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Latency {
    pub bytes: u64,
    pub median_us: f64,
    pub p99_us: f64,
    pub round_trips: u64,
    /// The bytes went inline.
    pub inline: bool,
}

/// A stream in one direction.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Bandwidth {
    /// `SEND` or `WRITE`.
    pub operation: String,
    pub bytes: u64,
    pub messages: u64,
    pub bytes_per_second: f64,
    /// Of what the port promises, if it says so: 1 is all.
    pub of_nominal: Option<f64>,
}

/// What a device makes of a kind of memory.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Memory {
    pub kind: String,
    /// Why there is none here.
    pub absent: Option<String>,
    /// Whether it is registered with any rights.
    pub registers: bool,
    /// With which ones.
    pub rights: Vec<Right>,
    /// Whether a message went out of it, if it could be tried.
    pub messages_out: Option<bool>,
    /// Whether a message went into it, if it could be tried.
    pub messages_in: Option<bool>,
    /// What went wrong.
    pub problem: Option<String>,
}

/// A registration with certain rights.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Right {
    pub rights: String,
    /// How it was refused.
    pub refusal: Option<Refusal>,
}

/// A call of the verbs library.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Symbol {
    pub name: String,
    /// Fulmen cannot do without it.
    pub needed: bool,
    pub present: bool,
    pub purpose: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_number_is_found_in_the_words() {
        let cause = fulmen::parts::system::errno::explain("ibv_reg_mr", 12);
        let refused = VerbsError::System { device: "rdma0".into(), call: "ibv_reg_mr", cause };
        assert_eq!(Refusal::from(&refused).errno, Some(12));
        let refused = VerbsError::Limit { device: "rdma0".into(), what: "registrations", asked: 2, limit: 1 };
        assert_eq!(Refusal::from(&refused).errno, None);
    }
}
