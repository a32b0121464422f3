//! ssh between hosts of a bed: a server on each, with keys, configuration and known hosts of this test alone.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::Host;

/// Where Debian and others have the server, which is not in everybody's PATH.
const SERVER: &str = "/usr/sbin/sshd";
/// Where the server wants to lock itself up before it knows a user.
const LOCKUP: &str = "/run/sshd";
/// How long a server may take to listen.
const STARTING: Duration = Duration::from_secs(60);

/// The ssh of one test: keys in a folder that goes with it, and the servers that were started, which end with it.
#[derive(Debug)]
pub struct Ssh {
    folder: PathBuf,
    servers: Mutex<Vec<Child>>,
}

impl Ssh {
    /// New keys, and no server yet; or none, and a line that says that `what` is skipped, and why.
    ///
    /// # Panics
    /// If keys cannot be made although the programs are there.
    #[must_use]
    pub fn or_skip(what: &str) -> Option<Ssh> {
        let ran = Command::new("ssh").arg("-V").stdin(Stdio::null()).output();
        if !Path::new(SERVER).exists() || ran.is_err() {
            eprintln!("SKIPPED: {what}: {SERVER} or ssh is not there (apt-get install openssh-server openssh-client)");
            return None;
        }
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("fulmen-ssh-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(name);
        fs::DirBuilder::new().mode(0o700).create(&folder).expect("a folder for keys");
        fs::create_dir(folder.join("home")).expect("a folder for users");
        let ssh = Ssh { folder, servers: Mutex::default() };
        for key in ["user", "stranger", "host"] {
            ssh.make_key(key);
        }
        let settings = format!(
            "Host *\nIdentityFile {user}\nIdentitiesOnly yes\nIdentityAgent none\nUserKnownHostsFile {known}\n\
             GlobalKnownHostsFile /dev/null\nStrictHostKeyChecking yes\nLogLevel ERROR\n",
            user = ssh.path("user").display(),
            known = ssh.path("known").display()
        );
        fs::write(ssh.path("settings"), settings).expect("a configuration");
        fs::write(ssh.path("known"), "").expect("a file of known hosts");
        Some(ssh)
    }

    /// Starts a server on a host, which the client then knows under the host's name, and waits until it listens.
    ///
    /// # Panics
    /// If it does not.
    pub fn serve(&self, host: &Host, address: IpAddr) {
        let name = host.name();
        // One that another server has made is as good.
        let _ = fs::create_dir(LOCKUP);
        let log = self.path(&format!("{name}.log"));
        let settings = format!(
            "ListenAddress {address}\nPort 22\nHostKey {key}\nAuthorizedKeysFile {user}.pub\nStrictModes no\nUsePAM no\n\
             PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\nUseDNS no\nPidFile none\n\
             MaxStartups 100\nMaxSessions 100\nSetEnv HOME={home}\n",
            key = self.path("host").display(),
            user = self.path("user").display(),
            // What a user's shell does at its start is not of the test: it may take long, and say something.
            home = self.path("home").display()
        );
        fs::write(self.path(&format!("{name}.server")), settings).expect("a configuration");
        let server = host
            .command(SERVER)
            .args(["-D", "-f"])
            .arg(self.path(&format!("{name}.server")))
            .arg("-E")
            .arg(&log)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{SERVER} cannot be started: {error}"));
        self.servers.lock().unwrap_or_else(PoisonError::into_inner).push(server);
        let end = Instant::now() + STARTING;
        while let Err(error) = host.run(|| TcpStream::connect(SocketAddr::new(address, 22))) {
            let said = fs::read_to_string(&log).unwrap_or_default();
            assert!(Instant::now() < end, "the server on {host} does not listen: {error}; it said: {said}");
            thread::sleep(Duration::from_millis(5));
        }
        self.name(name, address);
        let key = fs::read_to_string(self.path("host.pub")).expect("a key");
        self.append("known", &format!("{name} {key}"));
    }

    /// Has the client reach `name` at this address, whose key it does not know unless a server was started there by that name.
    ///
    /// # Panics
    /// If the configuration cannot be written.
    pub fn name(&self, name: &str, address: IpAddr) {
        self.append("settings", &format!("Host {name}\nHostName {address}\nHostKeyAlias {name}\n"));
    }

    /// The client's configuration, for `ssh -F`.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.path("settings")
    }

    /// A key that no server accepts, for `ssh -i`.
    #[must_use]
    pub fn stranger(&self) -> PathBuf {
        self.path("stranger")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn append(&self, name: &str, text: &str) {
        let file = fs::File::options().append(true).open(self.path(name));
        file.and_then(|mut file| io::Write::write_all(&mut file, text.as_bytes())).expect("a configuration");
    }

    fn make_key(&self, name: &str) {
        let made = Command::new("ssh-keygen")
            .args(["-q", "-t", "ed25519", "-N", "", "-C", name, "-f"])
            .arg(self.path(name))
            .stdin(Stdio::null())
            .output()
            .unwrap_or_else(|error| panic!("ssh-keygen cannot be run: {error}"));
        assert!(made.status.success(), "ssh-keygen: {}", String::from_utf8_lossy(&made.stderr));
    }
}

impl Drop for Ssh {
    fn drop(&mut self) {
        for server in self.servers.get_mut().unwrap_or_else(PoisonError::into_inner) {
            let _ = server.kill();
            let _ = server.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}
