//! What an error number of a verbs call means, in words, and the way out.
//!
//! The numbers are the system's own. Apple's differ from Linux's (`ETIMEDOUT` is 60 there and 110 here); both are
//! known on both, since no verbs call uses the other's number for something else.

use std::io;

use crate::platform;

/// Going to INIT.
pub const TO_INIT: &str = "ibv_modify_qp to INIT";
/// Going to RTR: where the peer's address and the own one meet.
pub const TO_RTR: &str = "ibv_modify_qp to RTR";
/// Going to RTS.
pub const TO_RTS: &str = "ibv_modify_qp to RTS";
/// Going to RESET, SQD or ERR.
pub const TO_OTHER: &str = "ibv_modify_qp";
/// Registering memory without LOCAL_WRITE.
pub const TO_REGISTER_FOR_READING: &str = "ibv_reg_mr without LOCAL_WRITE";

/// A positive error number of what a call returned: calls return 0, a positive number, or (Apple's posts) a negative.
#[must_use]
pub fn positive(returned: i32) -> i32 {
    returned.checked_abs().unwrap_or(0)
}

/// What a failure of `call` with this error number means and what to do: the system's words, the number, and ours.
#[must_use]
pub fn explain(call: &str, errno: i32) -> String {
    let errno = positive(errno);
    if errno == 0 {
        return "the library gave no reason (error 0): see the system's log".to_owned();
    }
    let words = system_words(errno);
    match meaning(call, errno) {
        Some(meaning) => format!("{words} (error {errno}): {meaning}"),
        None => format!("{words} (error {errno})"),
    }
}

/// The system's words for it, without the number.
fn system_words(errno: i32) -> String {
    let text = io::Error::from_raw_os_error(errno).to_string();
    match text.rfind(" (os error") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

fn meaning(call: &str, errno: i32) -> Option<&'static str> {
    of_call(call, errno).or_else(|| of_any(errno))
}

/// What is particular to a call.
fn of_call(call: &str, errno: i32) -> Option<&'static str> {
    let text = match (call, errno) {
        (TO_RTR, 22) => {
            "no usable GID at this index, or the interface is in a bridge: give the interface an IP address, take it out \
             of bridges, and use the index that belongs to the GID"
        }
        (TO_RTR, 60 | 110 | 113 | 101 | 65 | 51) => {
            "nobody answers at the peer's GID: it is wrong, or of another network; exchange GIDs again and check \
             cable and addresses"
        }
        (TO_RTR, 16) => {
            "resources of an earlier connection are still there: end the processes that used this device, or restart it"
        }
        (TO_RTR | "ibv_alloc_pd", 96) => {
            "the device has no protection domain left: end other programs that use it (a killed one may keep its own \
             until the machine restarts)"
        }
        ("ibv_create_qp", 102 | 95 | 45) => "the device has no queue pairs of this kind: use UC where RC is refused",
        ("ibv_create_qp", 16) => "all queue pairs of the device are in use: end other programs that use it",
        ("ibv_create_qp", 22) => {
            "the device refuses these limits together: ask for fewer requests, pieces or inline bytes"
        }
        ("ibv_create_qp" | "ibv_create_cq", 12) => {
            "no room for the queues: ask for smaller ones, end programs that use the device, or raise the limit on locked \
             memory (`ulimit -l unlimited`)"
        }
        ("ibv_post_send" | "ibv_post_recv", 12) => "the queue is full: poll for completions first",
        ("ibv_post_send" | "ibv_post_recv", 22) => {
            "the device refuses the request: its state, its length, its pieces or its flags"
        }
        ("ibv_reg_mr" | TO_REGISTER_FOR_READING, 12) => {
            "the device has no registration left, or the limit on locked memory is too low: release registrations, or \
             raise the limit (`ulimit -l unlimited`, or LimitMEMLOCK=infinity of the service)"
        }
        ("ibv_reg_mr", 14) => "memory of this kind cannot be registered so: leave out LOCAL_WRITE if it is only read",
        (TO_REGISTER_FOR_READING, 14 | 95 | 102 | 45) => {
            "memory of this kind cannot be registered: use memory of another kind, such as an anonymous mapping"
        }
        ("ibv_reg_mr" | TO_REGISTER_FOR_READING, 22) => "the device refuses these rights or this length",
        ("ibv_reg_mr", 95 | 102 | 45) => {
            "the file system under this mapping cannot have its pages written by devices: leave out LOCAL_WRITE, or use \
             memory of another kind"
        }
        ("ibv_reg_dmabuf_mr", 95 | 102 | 45) => "the device or its driver does not register dma-bufs",
        ("ibv_reg_dmabuf_mr", 9 | 22) => "the descriptor is no dma-buf, or the range lies outside of it",
        ("ibv_open_device", 16) => "another program has the device for itself: end it",
        ("ibv_open_device", 2 | 6 | 19) => "the device is gone: look at cable, driver and the system's log",
        _ => return None,
    };
    Some(text)
}

/// What a number means whichever call gave it.
fn of_any(errno: i32) -> Option<&'static str> {
    let text = match errno {
        1 | 13 => platform::NOT_PERMITTED,
        5 | 6 | 19 => "the device is gone: look at cable, driver and the system's log, then open it again",
        11 | 35 => "the device has no room at the moment: try again",
        12 => {
            "no memory for the device: raise the limit on locked memory (`ulimit -l unlimited`), or release registrations"
        }
        16 => "it is still in use",
        22 => "the device refuses the arguments",
        23 | 24 => "too many open files: raise the limit (`ulimit -n`)",
        28 => "the device has no more of these: release some, or end other programs that use it",
        60 | 110 => "no answer in time: look at cable and addresses",
        95 | 102 | 45 => "the device or its driver does not have this",
        96 => "the device's protection domains are used up: end other programs that use it",
        _ => return None,
    };
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_known_number_has_a_way_out() {
        for (call, errno, word) in [
            (TO_RTR, 22, "bridge"),
            (TO_RTR, 60, "GID"),
            (TO_RTR, 110, "GID"),
            (TO_RTR, 16, "earlier connection"),
            (TO_RTR, 96, "protection domain"),
            ("ibv_alloc_pd", 96, "protection domain"),
            ("ibv_create_qp", 102, "UC"),
            ("ibv_create_qp", 95, "UC"),
            ("ibv_post_send", -12, "full"),
            ("ibv_reg_mr", 12, "ulimit -l"),
            ("ibv_open_device", 13, platform::NOT_PERMITTED),
            (TO_REGISTER_FOR_READING, 12, "ulimit -l"),
            ("anything", 110, "cable"),
        ] {
            let text = explain(call, errno);
            assert!(text.contains(word), "{call} {errno}: {text}");
            assert!(text.contains(&format!("(error {})", errno.abs())), "{text}");
            assert!(!text.contains('\n') && !text.contains("os error"), "{text}");
        }
    }

    #[test]
    fn an_unknown_number_has_the_systems_words() {
        let text = explain("ibv_query_gid", 7);
        assert!(text.ends_with("(error 7)") && text.len() > "(error 7)".len(), "{text}");
        assert!(explain("ibv_reg_mr", 0).contains("no reason"));
        assert!(explain("ibv_reg_mr", i32::MIN).contains("no reason"));
    }
}
