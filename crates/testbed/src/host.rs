//! Hosts: namespaces, and what runs in them.

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;

use rustix::process::Signal;

use crate::guard::Guard;
use crate::processes;
use crate::sys::{self, Namespaces};

/// Written into the new namespace: an interface that comes back has the addresses that it had.
const SETTINGS: [(&str, &str); 2] = [
    ("/proc/sys/net/ipv6/conf/all/keep_addr_on_down", "1"),
    ("/proc/sys/net/ipv6/conf/default/keep_addr_on_down", "1"),
];

/// A host of a [`Bed`](crate::Bed). Its clones are the same host.
#[derive(Clone)]
pub struct Host(Arc<Inner>);

struct Inner {
    name: String,
    inode: u64,
    namespaces: Arc<Namespaces>,
    _guard: Guard,
}

impl Host {
    pub(crate) fn new(name: &str) -> io::Result<Host> {
        let namespaces = namespaces(name)?;
        let inode = inode(&namespaces)?;
        let guard = Guard::start(namespaces.network.try_clone()?, inode)?;
        let namespaces = Arc::new(namespaces);
        let host = Host(Arc::new(Inner { name: name.to_owned(), inode, namespaces, _guard: guard }));
        host.ip("link set lo up");
        Ok(host)
    }

    /// Its name in the bed, which is its hostname.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// A command whose process runs on this host. It takes its host id from there, whatever this process's environment says.
    ///
    /// A test that ends before the process is waited for leaves it to the bed, which kills it.
    #[must_use]
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env_remove("FULMEN_HOST_ID");
        sys::start_in(&mut command, self.0.namespaces.clone());
        command
    }

    /// Calls `work` on a thread of this process that is on this host. Sockets that it opens stay there, and so do threads that it
    /// starts and processes.
    ///
    /// # Panics
    /// If `work` does, or if the thread cannot enter the host.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let on_host = || {
            sys::enter(&self.0.namespaces).unwrap_or_else(|error| panic!("this thread cannot enter {self}: {error}"));
            work()
        };
        let done = thread::scope(|scope| scope.spawn(on_host).join());
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Kills all processes on it, as a power failure would but for its connections: its kernel still hangs up for them. To take
    /// it away without a word, [`pull`](crate::Net::pull) its cables first. Says how many there were.
    ///
    /// # Panics
    /// If they do not end.
    pub fn kill_all(&self) -> usize {
        processes::kill(self.0.inode).unwrap_or_else(|error| panic!("{self}: {error}"))
    }

    /// Stops all processes on it, and says how many there are. [`Host::cont_all`] lets them go on.
    ///
    /// # Panics
    /// If they do not stop.
    pub fn stop_all(&self) -> usize {
        processes::stop(self.0.inode).unwrap_or_else(|error| panic!("{self}: {error}"))
    }

    /// Lets stopped processes go on.
    pub fn cont_all(&self) -> usize {
        processes::signal(self.0.inode, Signal::CONT)
    }

    /// The process ids of what runs on it.
    #[must_use]
    pub fn processes(&self) -> Vec<u32> {
        processes::of(self.0.inode).into_iter().map(|pid| pid.as_raw_nonzero().get().unsigned_abs()).collect()
    }

    /// A path of its network namespace, for programs such as `nsenter --net=PATH`: good as long as this process has the bed.
    #[must_use]
    pub fn namespace(&self) -> PathBuf {
        let descriptor = self.0.namespaces.network.as_fd().as_raw_fd();
        format!("/proc/{}/fd/{descriptor}", std::process::id()).into()
    }

    pub(crate) fn kill_quietly(&self) -> io::Result<usize> {
        processes::kill(self.0.inode)
    }

    /// Has the program `ip` do these lines on this host.
    pub(crate) fn ip(&self, lines: &str) {
        let done = self.run(|| -> io::Result<_> {
            let mut ip = Command::new("ip");
            ip.args(["-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
            let mut ip = ip.spawn()?;
            ip.stdin.take().expect("it is piped").write_all(lines.as_bytes())?;
            ip.wait_with_output()
        });
        match done {
            Ok(output) if output.status.success() => {}
            Ok(output) => panic!("ip on {self}, told {lines:?}: {}", String::from_utf8_lossy(&output.stderr)),
            Err(error) => panic!("ip on {self} cannot be run: {error} (apt-get install iproute2)"),
        }
    }
}

impl PartialEq for Host {
    fn eq(&self, other: &Host) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Host {}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "host {}", self.0.name)
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Host({})", self.0.name)
    }
}

/// Makes them on a thread that is thrown away, so that no other one is in them.
pub(crate) fn namespaces(name: &str) -> io::Result<Namespaces> {
    let make = || -> io::Result<Namespaces> {
        sys::leave_this_host()?;
        rustix::system::sethostname(name.as_bytes())?;
        for (path, value) in SETTINGS {
            // A kernel without IPv6 has none of its settings.
            if let Err(error) = fs::write(path, value)
                && error.kind() != io::ErrorKind::NotFound
            {
                return Err(error);
            }
        }
        let open = |kind: &str| fs::File::open(format!("/proc/thread-self/ns/{kind}")).map(Into::into);
        Ok(Namespaces { network: open("net")?, hostname: open("uts")? })
    };
    thread::scope(|scope| scope.spawn(make).join()).expect("nothing panics there")
}

fn inode(namespaces: &Namespaces) -> io::Result<u64> {
    Ok(fs::File::from(namespaces.network.try_clone()?).metadata()?.ino())
}
