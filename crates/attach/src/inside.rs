//! The way between a program and its owner: queue pairs of the software device, in shared memory.

use fulmen_verbs::{Access, AckTimeout, Gid, Mtu, Path, RnrTimer, Transition};

/// The software device's only port.
const PORT: u8 = 1;

/// What takes a queue pair of the software device, at either end of the shared memory, to RTS.
pub(crate) fn inside(remote_gid: Gid, remote_qp: u32) -> [Transition; 3] {
    let path = Path { remote_gid, remote_lid: 0, local_gid_index: 0, remote_qp, mtu: Mtu::B4096 };
    [
        Transition::Init { port: PORT, access: Access::LOCAL_WRITE },
        Transition::ReadyToReceive { path, recv_psn: 0, reads_served: 0, min_rnr_timer: RnrTimer(1) },
        // For ever: a message waits until it is taken.
        Transition::ReadyToSend { send_psn: 0, timeout: AckTimeout(0), retries: 7, rnr_retries: 7, reads_in_flight: 0 },
    ]
}
