//! Who kills a host's processes when the test's process is killed.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// Reads from a pipe that only the test holds. Its end without a word is the end of the test: then what runs in the namespace
/// of this inode is killed, again and again until nothing is found. The namespace is held by the script's own output
/// meanwhile, so that no other one gets its inode.
const SCRIPT: &str = r#"
read -r word
[ "$word" = over ] && exit
round=0
while [ "$round" -lt 100 ]; do
    round=$((round + 1))
    found=
    for link in $(find -L /proc/[0-9]*/ns/net -maxdepth 0 -inum "$1" 2>&-); do
        link=${link#/proc/}
        kill -KILL "${link%%/*}" 2>&- && found=1
    done
    [ -n "$found" ] || exit 0
    sleep 0.1
done
"#;

#[derive(Debug)]
pub(crate) struct Guard(Child);

impl Guard {
    pub(crate) fn start(namespace: OwnedFd, inode: u64) -> io::Result<Guard> {
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT, "fulmen-testbed-guard", &inode.to_string()]);
        // A signal to the test's whole group is not meant for it.
        command.process_group(0).stdin(Stdio::piped()).stdout(namespace).stderr(Stdio::null());
        command.spawn().map(Guard)
    }
}

impl Drop for Guard {
    /// The test has cleaned up itself.
    fn drop(&mut self) {
        let said = self.0.stdin.take().map(|mut stdin| stdin.write_all(b"over\n"));
        if !matches!(said, Some(Ok(()))) {
            let _ = self.0.kill();
        }
        let _ = self.0.wait();
    }
}
