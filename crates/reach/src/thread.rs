//! Threads that a library starts behind a program's back.

use std::io;
use std::mem::MaybeUninit;
use std::thread::{Builder, JoinHandle};

/// Starts a thread that takes none of the program's signals: their handlers run on the program's own threads, as they
/// did before. Faults of the thread itself are still the thread's.
///
/// # Errors
/// The system has no room for another thread.
pub fn spawn_without_signals<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    // A thread starts with the mask of the one that starts it.
    let masked = Masked::all();
    let started = Builder::new().name(name.to_owned()).spawn(run);
    drop(masked);
    started
}

/// The calling thread's mask of signals as it was before, put back when dropped.
struct Masked(libc::sigset_t);

/// Signals by which the system tells a thread what it has done itself. Blocked ones end the process at once, past the
/// program's handlers.
const FAULTS: [libc::c_int; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS, libc::SIGABRT];

impl Masked {
    fn all() -> Masked {
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: `sigfillset` writes a whole set, which is a set for `sigdelset` after that; `pthread_sigmask` reads
        // it and writes `before` whole. All three fail for arguments out of range alone, and these are in range.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            for fault in FAULTS {
                libc::sigdelset(all.as_mut_ptr(), fault);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            Masked(before.assume_init())
        }
    }
}

impl Drop for Masked {
    fn drop(&mut self) {
        // SAFETY: a set that the system wrote; the third argument may be null.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocked(signal: libc::c_int) -> bool {
        let mut now = MaybeUninit::uninit();
        // SAFETY: without a new set the mask is only told, and is a whole set then.
        unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), now.as_mut_ptr());
            libc::sigismember(now.as_ptr(), signal) == 1
        }
    }

    #[test]
    fn a_thread_takes_no_signals_but_its_own_faults() {
        let seen = || [libc::SIGALRM, libc::SIGINT, libc::SIGUSR1, libc::SIGSEGV].map(blocked);
        let before = seen();
        let there = spawn_without_signals("masked", seen).unwrap().join().unwrap();
        assert_eq!(there, [true, true, true, false]);
        assert_eq!(seen(), before, "the starting thread has its own mask again");
        assert_eq!(before, [false; 4], "so that the mask is seen to change");
    }
}
