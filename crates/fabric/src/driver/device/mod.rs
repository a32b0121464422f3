//! Links over RDMA devices.
//!
//! All links run over one device, or, where each cable joins two hosts, each over the one that leads to its peer
//! ([`route`]). Each link has two queue pairs: one for frames, one for the bytes of large messages. Both are RC where both
//! devices have it, else UC, whether it holds a SEND until its RECV is posted or loses it; messages use nothing
//! else than SEND and RECV, so that the narrowest device will do. All links over a device complete into one queue: the [`Hub`] has them.
//!
//! - *Frames* ([`frames`]) are copied into registered memory and out of it. A RECV is posted for every frame that the peer
//!   has credits for, so that no SEND ever waits for one, unless the device's queue is full before ([`full`]). Over UC each frame is sealed, and comes again until it is
//!   [acknowledged](crate::engine::Reliable): the progress thread then is always there, since the peer relies on answers.
//! - *Moves* ([`moves`]): the device carries large messages between registered memory of both ranks, with no copy here. Plain
//!   memory goes in frames.
//! - *One-sided operations* ([`rdma`]) where devices have them: on queue pairs of their own.
//! - A completion that failed ends its link, with the first cause. A device that says nothing about a dead peer leaves that
//!   to the coordinator ([`liveness`](crate::liveness)).

mod bring_up;
mod bundle;
mod connect;
mod error;
mod frames;
mod full;
mod hub;
mod info;
mod maker;
mod memory;
mod mender;
mod moves;
mod needs;
mod offer;
mod ping;
mod places;
mod plan;
mod port;
mod rail;
mod rdma;
mod rescue;
mod route;
mod stripes;
mod terms;
mod track;
mod watch;

pub(crate) use connect::{Given, Rails, connect};
pub use error::DeviceError;
pub use info::{RailEnd, RailInfo, RailState, RailStatus};
pub(crate) use memory::Registered;
pub use needs::{Need, Needs, needs};
pub(crate) use rail::LAST_WORDS;
pub(crate) use rdma::{DeviceKey, Rdma, RdmaId, Registrar, Request, Verb};
pub use route::usable;
pub(crate) use terms::{Terms, terms};
