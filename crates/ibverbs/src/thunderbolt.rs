//! The device of the `thunderbolt` profile as Apple built it, where it differs from the software device's own limits.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::{Arc, Mutex, PoisonError};

use fulmen_memory::{ChunkRule, page_size};
use fulmen_soft::Profile;
use fulmen_verbs::{Budget, Claim, DeviceLimits, ProtectionDomain, QueuePairLimits, VerbsError};

use crate::aliasing::Void;
use crate::config::Aliasing;
use crate::context::Context;
use crate::ffi::{IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE};
use crate::lint;
use crate::users::{User, Users};

/// Bytes of a frame: what queue depth counts.
pub(crate) const FRAME: u64 = 4096;
/// Frames of one queue at most.
pub(crate) const MAX_DEPTH: u32 = 4095;
/// Bytes of one message at most.
pub(crate) const MAX_MESSAGE: u64 = 16_773_120;
/// Registrations of one device that programs see. The device itself has more, for [`crate::aliasing`].
pub(crate) const MEMORY_REGIONS: u32 = 100;

/// A queue is never shallower than this, whatever was asked for: MLX's JACCL asks for 32 and posts two messages of 128
/// frames each way, which the hardware takes.
const SMALLEST_QUEUE: u32 = 512;
/// Queues of the strict variant, which the system lowers.
const STRICT_QUEUE: u32 = 1024;
/// Scatter/gather elements that the device takes of a request, of which programs see one: an element that crosses a
/// 4 GiB boundary is two to the device.
const PIECES: u32 = 2;

/// The limits of the device that programs see.
pub(crate) fn limits(strict: bool) -> DeviceLimits {
    if strict { Profile::Thunderbolt.strict_limits() } else { Profile::Thunderbolt.limits() }
}

/// The limits that programs see of an open device of any profile.
pub(crate) fn limits_of(context: &Context) -> DeviceLimits {
    match context.profile() {
        Profile::Infiniband => context.device.info().limits,
        Profile::Thunderbolt => limits(context.config.strict),
    }
}

/// What is alive of one device, in whatever contexts.
struct Alive {
    memory_regions: Budget,
    domains: Users,
}

/// The counts of the device of a context. Devices stay open until the process ends.
fn with_alive<T>(context: &Context, f: impl FnOnce(&Alive) -> T) -> T {
    static ALIVE: Mutex<BTreeMap<usize, Alive>> = Mutex::new(BTreeMap::new());
    let mut all = ALIVE.lock().unwrap_or_else(PoisonError::into_inner);
    let device = Arc::as_ptr(&context.device).cast::<()>() as usize;
    f(all.entry(device).or_insert_with(|| Alive {
        memory_regions: Budget::new(context.device.info().name.as_str(), "registrations", MEMORY_REGIONS.into()),
        domains: Users::default(),
    }))
}

/// Counts a protection domain, as long as what this gives is there.
pub(crate) fn count_domain(context: &Context) -> User {
    with_alive(context, |alive| alive.domains.add())
}

/// Whether a queue pair may go to RTR: not while the protection domains are used up.
pub(crate) fn check_domains(context: &Context) -> Result<(), VerbsError> {
    let asked = with_alive(context, |alive| alive.domains.count()) as u64;
    context.device.info().check_limit("protection domains", asked, limits_of(context).protection_domains.into())
}

/// What a registration takes beside what the device knows of it.
#[derive(Default)]
pub(crate) struct Registered {
    /// Its place among those of the device, as long as it lives.
    pub(crate) claim: Option<Claim>,
    pub(crate) aliased: Option<Void>,
}

/// Looks at a registration before the device is asked: of `len` bytes at `addr`.
pub(crate) fn check_registration(
    name: &str,
    context: &Context,
    domain: &dyn ProtectionDomain,
    addr: usize,
    len: usize,
    flags: u32,
) -> Result<Registered, Refused> {
    if context.profile() != Profile::Thunderbolt {
        return Ok(Registered::default());
    }
    let range = addr as u64..(addr + len) as u64;
    if let Some(errno) = lint::get().and_then(|lint| lint.reg_mr(name, &range, flags)) {
        return Err(Refused::Rule(errno, "it breaks a rule of Thunderbolt".to_owned()));
    }
    let invalid = |why: String| Err(Refused::Rule(libc::EINVAL, why));
    let known = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
    if flags & IBV_ACCESS_LOCAL_WRITE == 0 || flags & !known != 0 {
        return invalid(format!("access flags {flags:#x}: say IBV_ACCESS_LOCAL_WRITE"));
    }
    if context.config.strict && !addr.is_multiple_of(page_size()) {
        return invalid(format!("{addr:#x} is no multiple of the page size {}", page_size()));
    }
    let crosses = lint::crosses(&range);
    if crosses && context.config.aliasing == Aliasing::Refuse {
        return invalid(format!("{addr:#x} and {len} bytes cross a 4 GiB boundary, and the driver keeps 32 bits"));
    }
    let claim = with_alive(context, |alive| alive.memory_regions.take())?;
    let aliased = if crosses { Some(Void::new(domain)?) } else { None };
    Ok(Registered { claim: Some(claim), aliased })
}

/// Why memory is not registered.
pub(crate) enum Refused {
    /// For a rule of this device: the number, and why.
    Rule(c_int, String),
    Device(VerbsError),
}

impl From<VerbsError> for Refused {
    fn from(cause: VerbsError) -> Refused {
        Refused::Device(cause)
    }
}

/// The limits of the software device behind it. What it has more than programs see is counted before it is asked.
pub(crate) fn device_limits(strict: bool) -> DeviceLimits {
    DeviceLimits {
        // One that is used up is told when a queue pair of it goes to RTR.
        protection_domains: 1024,
        // A registration that crosses a 4 GiB boundary has another one behind it.
        memory_regions: 2 * MEMORY_REGIONS,
        pieces: PIECES,
        registration: ChunkRule::NONE,
        ..limits(strict)
    }
}

/// What is asked of the software device for a queue pair of which a program wants this.
pub(crate) fn asked_of_device(wanted: QueuePairLimits, strict: bool) -> QueuePairLimits {
    let pieces = |wanted: u32| wanted.max(1) + PIECES - 1;
    QueuePairLimits {
        send_depth: grant(wanted.send_depth, strict),
        recv_depth: grant(wanted.recv_depth, strict),
        send_pieces: pieces(wanted.send_pieces),
        recv_pieces: pieces(wanted.recv_pieces),
        inline_bytes: wanted.inline_bytes,
    }
}

/// What programs are told of what the software device gave.
pub(crate) fn told(given: QueuePairLimits) -> QueuePairLimits {
    let pieces = |given: u32| given + 1 - PIECES;
    QueuePairLimits { send_pieces: pieces(given.send_pieces), recv_pieces: pieces(given.recv_pieces), ..given }
}

/// The depth in frames that a queue gets for which `asked` were asked. What is too much stays too much.
fn grant(asked: u32, strict: bool) -> u32 {
    match asked {
        0..SMALLEST_QUEUE => SMALLEST_QUEUE,
        STRICT_QUEUE..=MAX_DEPTH if strict => STRICT_QUEUE,
        _ => asked,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_hold_frames_and_the_strict_ones_fewer() {
        for (asked, usual, strict) in
            [(0, 512, 512), (32, 512, 512), (600, 600, 600), (4095, 4095, 1024), (4096, 4096, 4096)]
        {
            assert_eq!((grant(asked, false), grant(asked, true)), (usual, strict));
        }
    }

    #[test]
    fn programs_see_one_element() {
        let wanted = QueuePairLimits { send_depth: 1, recv_depth: 1, send_pieces: 1, recv_pieces: 0, inline_bytes: 0 };
        let given = asked_of_device(wanted, false);
        assert_eq!((given.send_pieces, given.recv_pieces), (PIECES, PIECES));
        let told = told(given);
        assert_eq!((told.send_pieces, told.recv_pieces, told.send_depth), (1, 1, 512));
        assert_eq!(limits(false).pieces, 1);
    }
}
