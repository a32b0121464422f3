use fulmen_memory::Region;

use super::*;

fn own() -> (Proof, Process) {
    let proof = Proof::new(0x1234_5678_9abc_def0);
    let process = Process::find(Some(std::process::id()), proof.probe()).expect("a process may copy from itself");
    (proof, process)
}

fn memory(len: usize) -> Exposed {
    Region::alloc(len).unwrap().expose().unwrap()
}

#[test]
fn runs_are_copied_there_and_back() {
    let (_proof, process) = own();
    let [here, there] = [memory(10_000), memory(10_000)];
    let bytes: Vec<u8> = (0..100).collect();
    for len in [1, 7, 8, 9, 100] {
        here.write(5, &bytes[..len]);
        let mut runs = Runs::new();
        runs.push(&here, 5, len / 2);
        runs.push_bytes(&bytes[len / 2..len]);
        process.write(runs, (there.addr() + 4093) as u64).unwrap();
        let mut into = Runs::new();
        into.push(&here, 9000, len - len / 2);
        into.push(&here, 200, len / 2);
        process.read((there.addr() + 4093) as u64, into).unwrap();
        let mut seen = vec![0; len];
        here.read(9000, &mut seen[..len - len / 2]);
        here.read(200, &mut seen[len - len / 2..]);
        assert_eq!(seen, bytes[..len]);
    }
}

#[test]
fn what_is_not_mapped_is_no_more_than_an_error() {
    let (_proof, process) = own();
    let here = memory(4096);
    let runs = || {
        let mut runs = Runs::new();
        runs.push(&here, 0, 64);
        runs
    };
    for addr in [0, 8, u64::MAX - 32, 1 << 63] {
        assert_eq!(process.write(runs(), addr), Err(Fault::Memory), "{addr:#x}");
        assert_eq!(process.read(addr, runs()), Err(Fault::Memory), "{addr:#x}");
    }
    assert!(process.is_reached());
}

#[test]
fn another_process_is_found_out() {
    let proof = Proof::new(77);
    let Probe { addr, nonce } = proof.probe();
    let pid = Some(std::process::id());
    assert!(Process::find(pid, Probe { addr, nonce: nonce + 1 }).is_err(), "another number");
    assert!(Process::find(pid, Probe { addr: 8, nonce }).is_err(), "nothing there");
    assert!(Process::find(None, Probe { addr, nonce }).is_err(), "no process");
    assert!(Process::find(Some(u32::MAX), Probe { addr, nonce }).is_err(), "no such process");
    assert!(Process::find(pid, Probe { addr: 0, nonce: 0 }).is_err(), "it does not want");
    // It was the right one, and then another one took its number.
    let process = Process::find(pid, Probe { addr, nonce }).unwrap();
    proof.forge();
    let here = memory(4096);
    let mut runs = Runs::new();
    runs.push(&here, 0, 64);
    assert_eq!(process.read(here.addr() as u64 + 64, runs), Err(Fault::Gone));
    assert!(!process.is_reached() && process.is_gone());
}

#[test]
fn nothing_is_written_to_another_process() {
    let (proof, process) = own();
    let here = memory(4096);
    let write = |value: u8| {
        let bytes = [value; 16];
        let mut runs = Runs::new();
        runs.push_bytes(&bytes);
        let result = process.write(runs, here.addr() as u64);
        let mut seen = [0; 16];
        here.read(0, &mut seen);
        (result, seen)
    };
    std::thread::sleep(2 * PROVEN_FOR);
    assert_eq!(write(1), (Ok(()), [1; 16]));
    proof.forge();
    std::thread::sleep(2 * PROVEN_FOR);
    assert_eq!(write(2), (Err(Fault::Gone), [1; 16]));
    assert!(process.is_gone());
}

#[test]
fn a_process_that_ended_is_gone() {
    let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    let proof = Proof::new(5);
    let process = Process { pid: child.id(), ..own().1 };
    child.kill().unwrap();
    child.wait().unwrap();
    let seen = memory(64);
    let mut runs = Runs::new();
    runs.push(&seen, 0, 64);
    assert_eq!(process.read(proof.probe().addr, runs), Err(Fault::Gone));
}

#[test]
fn the_check_tells_this_process_from_one_that_is_not_there() {
    assert_eq!(process_vm_check(std::process::id()), Ok(()));
    assert!(process_vm_check(u32::MAX >> 1).is_err());
}
