//! Questions that a child process answers, since the answer may be a crash or none.

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use fulmen::parts::fabric::FabricOptions;
use fulmen::parts::reach::Node;
use fulmen::parts::system::{Library, OpenError};
use fulmen::parts::verbs::{Device, GidEntry, GidKind, LinkLayer};
use serde::de::DeserializeOwned;

use super::facts::{
    AddressFacts, DeviceFacts, LibraryFacts, ListedFacts, NeedsFacts, PortFacts, ReachFacts, Refusal, capabilities,
};
use super::gpu::{GpuFacts, MemoryFacts};
use super::root::Root;
use super::{ASK, gpu, network, tcp};
use crate::child::{self, Trouble};
use crate::devices::try_windows;

/// What a child is asked.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Question {
    /// Whether memory can be mapped over the path that peers take.
    Windows,
    /// The verbs library and what it exports.
    Library,
    /// The devices that it lists.
    List,
    /// A device, opened.
    Device { name: String, peers: u32 },
    /// A port of a device.
    Port { name: String, number: u8, root: PathBuf },
    /// The GPUs.
    Gpus,
    /// Which memory that GPUs work on a device registers.
    GpuMemory { name: String },
    /// What stands at a coordinator's address.
    Address { address: String },
    /// By which address other hosts would reach ranks here: this one, or that of the way to a coordinator.
    Reach {
        #[arg(long)]
        own: Option<IpAddr>,
        #[arg(long)]
        coordinator: Option<String>,
    },
}

/// Answers, in the child.
pub fn answer(question: Question) -> anyhow::Result<ExitCode> {
    match question {
        Question::Windows => child::answer(|| try_windows(&Node::open()?)),
        Question::Library => child::answer(|| Ok(library().map_err(Refusal::from))),
        Question::List => child::answer(|| Ok(list().map_err(Refusal::from))),
        Question::Device { name, peers } => child::answer(|| Ok(device(&name, peers).map_err(Refusal::from))),
        Question::Port { name, number, root } => child::answer(|| Ok(port(&name, number, &Root(root)))),
        Question::Gpus => child::answer(|| Ok(gpu::gpus())),
        Question::GpuMemory { name } => child::answer(|| Ok(gpu::register(&name))),
        Question::Address { address } => child::answer(|| Ok(network::look(&address))),
        Question::Reach { own, coordinator } => child::answer(|| Ok(tcp::look(own, coordinator.as_deref()))),
    }
}

fn library() -> Result<LibraryFacts, OpenError> {
    let library = Library::open()?;
    Ok(LibraryFacts::new(library.path().display().to_string(), &library.symbols()))
}

fn list() -> Result<Vec<ListedFacts>, OpenError> {
    let devices = Library::open()?.devices()?;
    Ok(devices
        .into_iter()
        .map(|found| ListedFacts { name: found.name, transport: found.transport.to_string() })
        .collect())
}

fn device(name: &str, peers: u32) -> Result<DeviceFacts, OpenError> {
    let device = Library::open()?.open_device(name)?;
    let info = device.info();
    // What the environment says wrongly is told by a check of its own; the needs are those of the defaults then.
    let options = FabricOptions::from_env().unwrap_or_default();
    Ok(DeviceFacts {
        firmware: device.attributes().firmware.clone(),
        ports: info.ports,
        capabilities: capabilities(info),
        needs: NeedsFacts::new(peers, &options, info),
    })
}

fn port(name: &str, number: u8, root: &Root) -> Result<PortFacts, Refusal> {
    let device = Library::open()?.open_device(name)?;
    let port = device.port(number).map_err(|error| Refusal::of(&error))?;
    let mut table = device.gid_table(number).map_err(|error| Refusal::of(&error))?;
    if port.link_layer == LinkLayer::Ethernet {
        table
            .iter_mut()
            .for_each(|entry| complete(entry, root, &format!("/sys/class/infiniband/{name}/ports/{number}")));
    }
    let speed = device.port_speed(number).ok().and_then(|speed| speed.gigabits());
    Ok(PortFacts::new(&port, speed, &table))
}

/// What a device does not tell of an address, the kernel's files do.
fn complete(entry: &mut GidEntry, root: &Root, port: &str) {
    if entry.kind == GidKind::Unknown {
        entry.kind = match root.read(&format!("{port}/gid_attrs/types/{}", entry.index)).as_deref() {
            Some("RoCE v2") => GidKind::RoceV2,
            Some("IB/RoCE v1") => GidKind::RoceV1,
            _ => GidKind::Unknown,
        };
    }
    if entry.interface_up.is_none() {
        let interface = root.read(&format!("{port}/gid_attrs/ndevs/{}", entry.index));
        let state = interface.and_then(|interface| root.read(&format!("/sys/class/net/{interface}/operstate")));
        // Interfaces that are not hardware are "unknown" when they are up.
        entry.interface_up = state.map(|state| state != "down");
    }
}

/// Asks children.
pub struct Asker {
    /// How long each may take.
    pub patience: Duration,
}

/// What a child told, or why it told nothing.
pub type Told<T> = Result<Result<T, Refusal>, Trouble>;

impl Asker {
    fn ask<T: DeserializeOwned>(&self, question: &[&str]) -> Result<T, Trouble> {
        child::ask(&[&[ASK], question].concat(), self.patience)
    }

    /// Whether memory can be mapped over the path that peers take.
    pub fn windows(&self) -> Result<(), Trouble> {
        self.ask(&["windows"])
    }

    /// The verbs library.
    pub fn library(&self) -> Told<LibraryFacts> {
        self.ask(&["library"])
    }

    /// The devices that it lists.
    pub fn list(&self) -> Told<Vec<ListedFacts>> {
        self.ask(&["list"])
    }

    /// A device, with what links to so many peers need of it.
    pub fn device(&self, name: &str, peers: u32) -> Told<DeviceFacts> {
        self.ask(&["device", "--", name, &peers.to_string()])
    }

    /// A port of a device.
    pub fn port(&self, name: &str, number: u8, root: &Root) -> Told<PortFacts> {
        self.ask(&["port", "--", name, &number.to_string(), &root.0.to_string_lossy()])
    }

    /// The GPUs.
    pub fn gpus(&self) -> Result<GpuFacts, Trouble> {
        self.ask(&["gpus"])
    }

    /// Which memory that GPUs work on a device registers.
    pub fn gpu_memory(&self, name: &str) -> Told<MemoryFacts> {
        self.ask(&["gpu-memory", "--", name])
    }

    /// What stands at a coordinator's address.
    pub fn address(&self, address: &str) -> Result<AddressFacts, Trouble> {
        self.ask(&["address", "--", address])
    }

    /// By which address other hosts would reach ranks here.
    pub fn reach(&self, own: Option<IpAddr>, coordinator: Option<&str>) -> Result<ReachFacts, Trouble> {
        let own = own.map(|own| format!("--own={own}"));
        let coordinator = coordinator.map(|address| format!("--coordinator={address}"));
        let options: Vec<&str> = own.iter().chain(&coordinator).map(String::as_str).collect();
        self.ask(&[&["reach"], &options[..]].concat())
    }
}
