//! Requests as programs make them: one of each, and any.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::num::{NonZeroU32, NonZeroU64};

use fulmen_abi::{
    Arguments, Buffer, Command, Counter, Endpoint, HOST_MAX, Lease, NODE_MAX, Network, NetworkAction, Origin, Protocol,
    Rights, Spawn, SpawnFlags, SpawnText, Strings, Target, TextCounts, Work, WorkKind,
};
use proptest::prelude::*;

pub const GENERATION: u64 = 77;
pub const ORIGIN: Origin = Origin { node: 3, generation: GENERATION };

/// A part of the share with this tag.
pub fn buffer(tag: u64, rights: Rights) -> Buffer {
    Buffer { node: 3, generation: GENERATION, slot: 12, tag, region_len: 1 << 20, offset: 4096, len: 8192, rights }
}

pub fn spawn() -> Spawn<'static> {
    let command = Command {
        args: Strings::new(&["make", "-j8", ""]),
        env: Strings::new(&["MODE=fast", "EMPTY=", "SUM=1=1"]),
        cwd: Some("/tmp/w\u{f6}rk"),
    };
    Spawn {
        lease: Some(Lease { id: NonZeroU64::MIN, deadline_ns: 5 }),
        flags: SpawnFlags::STDIN | SpawnFlags::KEEP_OUTPUT,
        stdin: Some(buffer(1, Rights::READ)),
        stdout: Some(buffer(2, Rights::WRITE)),
        stderr: Some(buffer(3, Rights::WRITE)),
        ..Spawn::new(9, ORIGIN, Target::Gateway, SpawnText::Inline(command))
    }
}

pub fn work() -> Work<'static> {
    Work {
        id: 4,
        origin: ORIGIN,
        target: Target::Any,
        kind: WorkKind::Kernel,
        kernel: 0xfeed,
        max_attempts: NonZeroU32::new(3),
        claims_before: 0,
        arguments: Arguments::Inline(b"arguments"),
        result: Some(buffer(1, Rights::WRITE)),
        counter: Some(Counter {
            word: Buffer { len: 8, ..buffer(2, Rights::ATOMIC) },
            add: NonZeroU64::new(5).expect("5"),
        }),
    }
}

pub fn network(action: NetworkAction<'_>) -> Network<'_> {
    let target = Target::Node(1);
    Network { id: 6, origin: ORIGIN, target, lease: None, deadline_ns: NonZeroU64::new(1 << 60), action }
}

pub fn connect() -> Network<'static> {
    network(NetworkAction::Connect {
        protocol: Protocol::Tcp,
        to: Endpoint::Host { name: "db-1.example.org", port: 5432 },
    })
}

prop_compose! {
    pub fn any_buffer(rights: Rights)(
        node in 0..=NODE_MAX,
        slot: u32,
        tag: u64,
        offset in 0..u64::MAX / 2,
        len in 1..u64::MAX / 4,
        rest in 0..u64::MAX / 4,
        more in 0_u32..8,
    ) -> Buffer {
        let rights = rights | Rights::from_bits_truncate(more);
        Buffer { node, generation: GENERATION, slot, tag, region_len: offset + len + rest, offset, len, rights }
    }
}

pub fn any_origin() -> impl Strategy<Value = Origin> {
    (0..=NODE_MAX).prop_map(|node| Origin { node, generation: GENERATION })
}

pub fn any_target() -> impl Strategy<Value = Target> {
    prop_oneof![Just(Target::Any), Just(Target::Gateway), (0..=NODE_MAX).prop_map(Target::Node)]
}

pub fn any_lease() -> impl Strategy<Value = Option<Lease>> {
    let lease = any::<(NonZeroU64, u64)>().prop_map(|(id, deadline_ns)| Lease { id, deadline_ns });
    prop::option::of(lease)
}

pub fn any_address(least_port: u16) -> impl Strategy<Value = SocketAddr> {
    (any::<IpAddr>(), least_port.., any::<u32>()).prop_map(|(ip, port, scope)| match ip {
        IpAddr::V4(_) => SocketAddr::new(ip, port),
        IpAddr::V6(ip) => SocketAddr::V6(SocketAddrV6::new(ip, port, 0, scope)),
    })
}

pub fn slices(strings: &[String]) -> Vec<&str> {
    strings.iter().map(String::as_str).collect()
}

/// A spawn request that owns its strings.
#[derive(Clone, Debug)]
pub struct OwnedSpawn {
    pub args: Vec<String>,
    pub env: Vec<String>,
    pub cwd: Option<String>,
    /// Of a text that is elsewhere.
    pub text: Option<(Buffer, TextCounts)>,
    pub rest: Spawn<'static>,
}

impl OwnedSpawn {
    /// Calls `then` with the request.
    pub fn with<R>(&self, then: impl FnOnce(&Spawn<'_>) -> R) -> R {
        let (args, env) = (slices(&self.args), slices(&self.env));
        let text = match self.text {
            Some((buffer, counts)) => SpawnText::Buffer { buffer, counts },
            None => SpawnText::Inline(Command {
                args: Strings::new(&args),
                env: Strings::new(&env),
                cwd: self.cwd.as_deref(),
            }),
        };
        then(&Spawn { text, ..self.rest })
    }
}

fn any_text() -> impl Strategy<Value = Option<(Buffer, TextCounts)>> {
    let text = (any_buffer(Rights::READ), 1_u64..1 << 20, any::<[prop::sample::Index; 2]>(), any::<bool>());
    prop::option::of(text.prop_map(|(buffer, len, [args, env], cwd)| {
        let args = 1 + args.index(len as usize) as u32;
        let env = env.index(len as usize + 1) as u32;
        // However large the share is, its beginning is part of it.
        (Buffer { len: len.min(buffer.region_len), offset: 0, ..buffer }, TextCounts { args, env, cwd })
    }))
    .prop_filter("a text has its strings' NULs at least", |text| {
        text.as_ref().is_none_or(|(buffer, counts)| u64::from(counts.args.max(counts.env)) <= buffer.len)
    })
}

pub fn any_spawn() -> impl Strategy<Value = OwnedSpawn> {
    let strings = (
        ("[^\0]{1,40}", prop::collection::vec("[^\0]{0,40}", 0..8)),
        prop::collection::vec("[^\0=]{1,10}=[^\0]{0,20}", 0..8),
        prop::option::of("/[^\0]{0,40}"),
        any_text(),
    );
    let numbers = (any::<u64>(), any::<[Option<NonZeroU64>; 2]>(), any::<Option<NonZeroU32>>(), any::<u64>(), 0_u32..4);
    // Of shares with other tags, so that no stream lies in another one's memory.
    let ring = |rights, tag| prop::option::of(any_buffer(rights).prop_map(move |buffer| Buffer { tag, ..buffer }));
    let rings = (ring(Rights::READ, 1), ring(Rights::WRITE, 2), ring(Rights::WRITE, 3));
    (strings, numbers, any_origin(), any_target(), any_lease(), rings).prop_map(
        |(((program, args), env, cwd, text), numbers, origin, target, lease, (stdin, stdout, stderr))| {
            let (id, [memory_bytes, timeout_ms], cpu_milli, grace_ms, flags) = numbers;
            let mut flags = SpawnFlags::from_bits_truncate(flags);
            flags.set(SpawnFlags::STDIN, stdin.is_some());
            let limits = fulmen_abi::Limits { memory_bytes, cpu_milli };
            let nothing = SpawnText::Inline(Command { args: Strings::EMPTY, env: Strings::EMPTY, cwd: None });
            let rest = Spawn {
                lease,
                flags,
                limits,
                timeout_ms,
                grace_ms,
                stdin,
                stdout,
                stderr,
                ..Spawn::new(id, origin, target, nothing)
            };
            OwnedSpawn { args: [vec![program], args].concat(), env, cwd, text, rest }
        },
    )
}

/// Work, and the arguments that it has unless they are in a buffer.
pub fn any_work() -> impl Strategy<Value = (Work<'static>, Option<Vec<u8>>)> {
    let arguments = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..=fulmen_abi::ARGUMENTS_ROOM).prop_map(|bytes| (None, Some(bytes))),
        any_buffer(Rights::READ).prop_map(|buffer| (Some(buffer), None)),
    ];
    let counter = (any_buffer(Rights::ATOMIC), any::<NonZeroU64>()).prop_map(|(word, add)| {
        let offset = word.offset / 8 * 8;
        Counter { word: Buffer { offset, len: 8, region_len: offset + 8, ..word }, add }
    });
    let numbers = (any::<(u64, u64, u32)>(), prop::option::of(any::<NonZeroU32>()), any::<bool>());
    let buffers = (prop::option::of(any_buffer(Rights::WRITE)), prop::option::of(counter));
    (numbers, any_origin(), any_target(), arguments, buffers).prop_map(
        |(((id, kernel, claims_before), max_attempts, kernels), origin, target, (by, inline), (result, counter))| {
            let kind = if kernels { WorkKind::Kernel } else { WorkKind::Function };
            let arguments = by.map_or(Arguments::Inline(&[]), Arguments::Buffer);
            (Work { id, origin, target, kind, kernel, max_attempts, claims_before, arguments, result, counter }, inline)
        },
    )
}

/// An operation; one that connects by name gets this name.
pub fn any_network() -> impl Strategy<Value = (Network<'static>, Option<String>)> {
    let name =
        "[A-Za-z0-9_]{1,20}(\\.[a-z0-9_]{1,60}){0,3}\\.?".prop_filter("short", |name: &String| name.len() <= HOST_MAX);
    let protocol = || prop_oneof![Just(Protocol::Tcp), Just(Protocol::Udp)];
    let handle = any::<NonZeroU64>;
    let action = prop_oneof![
        (protocol(), any_address(1))
            .prop_map(|(protocol, to)| NetworkAction::Connect { protocol, to: Endpoint::Address(to) }),
        (protocol(), 1_u16..)
            .prop_map(|(protocol, port)| NetworkAction::Connect { protocol, to: Endpoint::Host { name: "", port } }),
        (protocol(), any_address(0), any::<u32>()).prop_map(|(protocol, at, backlog)| {
            NetworkAction::Listen { protocol, at, backlog: if protocol == Protocol::Udp { 0 } else { backlog } }
        }),
        handle().prop_map(|handle| NetworkAction::Accept { handle }),
        (handle(), any_buffer(Rights::READ), prop::option::of(any_address(1)))
            .prop_map(|(handle, data, to)| NetworkAction::Send { handle, data, to }),
        (handle(), any_buffer(Rights::WRITE)).prop_map(|(handle, into)| NetworkAction::Receive { handle, into }),
        handle().prop_map(|handle| NetworkAction::Shutdown { handle }),
        handle().prop_map(|handle| NetworkAction::Close { handle }),
    ];
    (any::<(u64, Option<NonZeroU64>)>(), any_origin(), any_target(), any_lease(), action, name).prop_map(
        |((id, deadline_ns), origin, target, lease, action, name)| {
            let named = matches!(action, NetworkAction::Connect { to: Endpoint::Host { .. }, .. });
            (Network { id, origin, target, lease, deadline_ns, action }, named.then_some(name))
        },
    )
}

/// With the name that it is to have.
pub fn named<'a>(network: &Network<'a>, name: Option<&'a str>) -> Network<'a> {
    match (network.action, name) {
        (NetworkAction::Connect { protocol, to: Endpoint::Host { port, .. } }, Some(name)) => {
            Network { action: NetworkAction::Connect { protocol, to: Endpoint::Host { name, port } }, ..*network }
        }
        _ => *network,
    }
}
