//! UCX's own benchmark over its verbs transports.

use crate::case::{Case, Outcome, Program, expect, rounds};
use crate::pair::Launch;
use crate::port;

const PERFTEST: Program = Program::of("ucx-utils", "ucx_perftest");
const INFO: Program = Program::of("ucx-utils", "ucx_info");

/// The transports themselves, without the protocols above.
const TRANSPORT: &[(&str, &str, bool)] = &[
    ("rc_verbs", "am_lat -D short", true),
    ("rc_verbs", "am_lat -D shortiov", false),
    ("rc_verbs", "am_lat -D bcopy -s 4096", false),
    ("rc_verbs", "am_bw -D bcopy -s 4096", false),
    ("rc_verbs", "am_bw -D zcopy -s 4096", false),
    ("rc_verbs", "put_lat -D short", false),
    ("rc_verbs", "put_bw -D bcopy -s 4096", false),
    ("rc_verbs", "put_bw -D zcopy -s 65536", false),
    ("rc_verbs", "get -D bcopy -s 4096", false),
    ("rc_verbs", "get -D zcopy -s 65536", false),
    ("rc_verbs", "add_lat", false),
    ("rc_verbs", "fadd", true),
    ("rc_verbs", "cswap", false),
    ("ud_verbs", "am_lat -D short", true),
    ("ud_verbs", "am_lat -D bcopy -s 2048", false),
    ("ud_verbs", "am_bw -D bcopy -s 2048", false),
    ("ud_verbs", "am_bw -D zcopy -s 2048", false),
];

/// The protocols, over either transport.
const PROTOCOLS: &[(&str, bool)] = &[
    ("tag_lat", false),
    ("tag_lat -s 65536", true),
    ("tag_lat -s 1048576 -n 100", true),
    ("tag_lat -E sleep", true),
    ("tag_sync_lat -s 4096", false),
    ("tag_bw -s 65536", false),
    ("tag_bw -s 4194304 -n 30", false),
    ("stream_lat -s 1024", false),
    ("stream_bw -s 65536", false),
    ("ucp_am_lat -s 1024", false),
    ("ucp_am_bw -s 65536", false),
    ("ucp_put_lat -s 8", false),
    ("ucp_put_bw -s 65536", false),
    ("ucp_get -s 65536", false),
    ("ucp_add -s 8", false),
    ("ucp_fadd -s 8", true),
    ("ucp_swap -s 8", false),
    ("ucp_cswap -s 8", false),
];

pub fn cases() -> Vec<Case> {
    let transport = TRANSPORT.iter().map(|&(name, test, fast)| {
        Case::new(PERFTEST, format!("{name} {test}"), fast, move || {
            perftest(Launch::of(PERFTEST), &format!("-d fulmen_0:1 -x {name} -t {test}"))
        })
    });
    let protocols = ["rc_v", "ud_v", "ib"].into_iter().flat_map(|name| {
        PROTOCOLS.iter().map(move |&(test, fast)| {
            Case::new(PERFTEST, format!("UCX_TLS={name} {test}"), fast && name != "ib", move || {
                let launch = Launch::of(PERFTEST).env("UCX_TLS", name).env("UCX_NET_DEVICES", "fulmen_0:1");
                perftest(launch, &format!("-t {test}"))
            })
        })
    });
    let info = Case::new(INFO, "-d", true, || {
        let said = Launch::of(INFO).run(&["-d".into()])?.said;
        ["Transport: rc_verbs", "Transport: ud_verbs", "Device: fulmen_0:1"]
            .iter()
            .try_for_each(|part| expect(said.contains(part), &format!("no {part:?}"), &said))
    });
    transport.chain(protocols).chain([info]).collect()
}

fn perftest(launch: Launch, options: &str) -> Outcome {
    let port = port::free();
    let mut args: Vec<String> = options.split_whitespace().map(ToString::to_string).collect();
    args.extend(["-f".into(), "-p".into(), port.to_string(), "-w".into(), "10".into()]);
    if !options.contains("-n ") {
        args.extend(["-n".into(), rounds(200, 5000)]);
    }
    let [_, client] = launch.pair(port, &args)?;
    let measured = client.said.lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words.first() == Some(&"Final:") || (words.len() >= 6 && words.iter().all(|word| word.parse::<f64>().is_ok()))
    });
    expect(measured, "no result", &client.said)
}
