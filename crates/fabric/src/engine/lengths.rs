//! Bytes of headers and of what follows them, for those who reckon what goes over a wire.

use super::frame::{CtsBody, FinBody, RtsBody};
use super::onesided::wire::{Answer, CounterBody, PlaceBody, RequestBody, SwapBody};
use super::{FRAGMENT_HEADER, RESERVE};

/// With which every frame begins.
pub(crate) const PREFIX: u64 = super::PREFIX as u64;
/// Of a fragment, the prefix among them.
pub(crate) const FRAGMENT: u64 = FRAGMENT_HEADER as u64;
/// Behind the prefix of each kind.
pub(crate) const RTS: u64 = size_of::<RtsBody>() as u64;
pub(crate) const CTS: u64 = size_of::<CtsBody>() as u64;
pub(crate) const FIN: u64 = size_of::<FinBody>() as u64;
pub(crate) const REQUEST: u64 = size_of::<RequestBody>() as u64;
pub(crate) const ANSWER: u64 = size_of::<Answer>() as u64;
/// Behind a request.
pub(crate) const COUNTER: u64 = size_of::<CounterBody>() as u64;
pub(crate) const PLACE: u64 = size_of::<PlaceBody>() as u64;
pub(crate) const ADD: u64 = size_of::<u64>() as u64;
pub(crate) const SWAP: u64 = size_of::<SwapBody>() as u64;
/// Credits that messages do not use.
pub(crate) const KEPT_FROM_MESSAGES: u16 = RESERVE;
