//! Real servers, which are killed and stopped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fulmen_testbed::Etcd as Servers;
use tokio::time::timeout;

use super::super::conformance::{self, Ways, pairs, put};
use super::*;

fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
}

/// A way that asks these servers, in this order.
fn way(servers: &Servers, order: &[usize]) -> Arc<Etcd> {
    let endpoints: Vec<String> = order.iter().map(|server| servers.endpoint(*server)).collect();
    Arc::new(Etcd::new(format!("etcd://{}/test", endpoints.join(",")).parse().unwrap()))
}

/// Three ways, each of which asks another server first.
fn ways(servers: &Servers) -> [Arc<Etcd>; 3] {
    [[0, 1, 2], [1, 2, 0], [2, 0, 1]].map(|order| way(servers, &order))
}

async fn until_it_answers(way: &Etcd) {
    let end = Instant::now() + Duration::from_secs(60);
    while let Err(error) = way.read("nothing").await {
        assert!(Instant::now() < end, "{error}");
        sleep(AGAIN).await;
    }
}

/// The server that leads.
async fn leader(servers: &Servers) -> usize {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        for server in 0..3 {
            let way = way(servers, &[server]);
            let status: Result<serde_json::Value, Vain> =
                way.client.ask("/v3/maintenance/status", &json!({}), Nature::Once).await;
            let own = |status: &serde_json::Value| status["leader"] == status["header"]["member_id"];
            if status.is_ok_and(|status| own(&status)) {
                return server;
            }
        }
        assert!(Instant::now() < end, "nobody leads");
        sleep(AGAIN).await;
    }
}

#[test]
fn one_server_does_what_every_registry_does() {
    let Some(servers) = Servers::or_skip("a registry in etcd", 1) else { return };
    run(async {
        let ways: Ways = vec![way(&servers, &[0]), way(&servers, &[0])];
        until_it_answers(&way(&servers, &[0])).await;
        conformance::run(&ways).await;
        // Another prefix is another registry.
        let other = Etcd::new(format!("etcd://{}/tes", servers.endpoint(0)).parse().unwrap());
        assert_eq!(pairs(&other.read("values").await.unwrap()), []);
    });
}

#[test]
fn three_servers_do_what_every_registry_does() {
    let Some(servers) = Servers::or_skip("a registry in three servers of etcd", 3) else { return };
    run(async {
        let ways = ways(&servers);
        until_it_answers(&ways[0]).await;
        let ways: Ways = ways.into_iter().map(|way| way as Arc<dyn Registry>).collect();
        conformance::run(&ways).await;
    });
}

#[test]
fn numbers_that_no_key_or_lease_has_are_none() {
    let Some(servers) = Servers::or_skip("numbers that etcd cannot have", 1) else { return };
    run(async {
        let way = way(&servers, &[0]);
        until_it_answers(&way).await;
        for number in [0, u64::MAX, i64::MAX as u64] {
            let when = vec![Condition::Version("a/x".into(), number)];
            assert_eq!(way.write(Write { when, then: vec![put("a/x", "1")] }).await, Ok(Verdict::Refused));
            let leased = Change::Put { key: "a/x".into(), value: vec![], lease: Some(number) };
            assert_eq!(way.write(Write::new(vec![leased])).await, Err(RegistryError::LeaseOver));
            assert_eq!(way.renew(number).await, Err(RegistryError::LeaseOver));
            assert_eq!(way.revoke(number).await, Ok(()));
        }
        let long = way.grant(Duration::from_secs(u64::MAX)).await;
        assert!(matches!(long, Err(RegistryError::Invalid(_))), "{long:?}");
        let many = (0..1000).map(|number| put(&format!("a/{number}"), "1")).collect();
        let many = way.write(Write::new(many)).await;
        assert!(matches!(many, Err(RegistryError::Invalid(_))), "{many:?}");
        assert_eq!(pairs(&way.read("a").await.unwrap()), []);
    });
}

/// Counts until it is told to end; gives how often that was done, and how often it may have been.
async fn count(way: Arc<Etcd>, over: Arc<AtomicU64>) -> (u64, u64) {
    let (mut done, mut doubt) = (0, 0);
    while over.load(Ordering::Relaxed) == 0 {
        let Ok(read) = way.read("counting").await else { continue };
        let entry = read.entries.into_iter().next().expect("nobody deletes it");
        let value: u64 = String::from_utf8(entry.value).unwrap().parse().unwrap();
        let when = vec![Condition::Version(entry.key, entry.version)];
        match way.write(Write { when, then: vec![put("counting/a", &(value + 1).to_string())] }).await {
            Ok(Verdict::Done) => done += 1,
            Ok(Verdict::Refused) | Err(RegistryError::Unreachable { .. }) => {}
            Err(RegistryError::Unknown(_)) => doubt += 1,
            Err(other) => panic!("{other}"),
        }
        sleep(Duration::from_millis(10)).await;
    }
    (done, doubt)
}

/// Follows the count, which never goes back, until it is told to end; gives what was told last.
async fn follow(way: Arc<Etcd>, over: Arc<AtomicU64>) -> u64 {
    let (mut revision, mut seen) = (0, 0);
    loop {
        match timeout(Duration::from_secs(60), way.changed("counting", revision)).await.expect("a change") {
            Ok(told) => {
                assert!(told.revision > revision, "{} {revision}", told.revision);
                revision = told.revision;
                let now = pairs(&told)[0].1.parse().unwrap();
                assert!(now >= seen, "it went back from {seen} to {now}");
                seen = now;
            }
            Err(RegistryError::Unreachable { .. }) => sleep(AGAIN).await,
            Err(other) => panic!("{other}"),
        }
        let last = over.load(Ordering::Relaxed);
        if last > 0 && seen == last {
            return seen;
        }
    }
}

/// What hits servers while others count: nothing that was done is lost, nothing is done twice, and whoever watches sees the last of it.
fn counted_through(what: &str, hit: impl AsyncFn(&Servers, &Arc<Etcd>)) {
    let Some(servers) = Servers::or_skip(what, 3) else { return };
    run(async {
        let ways = ways(&servers);
        until_it_answers(&ways[0]).await;
        ways[0].write(Write::new(vec![put("counting/a", "0")])).await.unwrap();
        let (over, last) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let counters = ways.clone().map(|way| tokio::spawn(count(way, over.clone())));
        let followers = ways.clone().map(|way| tokio::spawn(follow(way, last.clone())));
        sleep(Duration::from_millis(500)).await;
        hit(&servers, &ways[0]).await;
        // It goes on.
        let before = pairs(&ways[1].read("counting").await.unwrap());
        let end = Instant::now() + Duration::from_secs(60);
        while pairs(&ways[2].read("counting").await.unwrap()) == before {
            assert!(Instant::now() < end, "nobody counts any more");
            sleep(AGAIN).await;
        }
        over.store(1, Ordering::Relaxed);
        let (mut done, mut doubt) = (0, 0);
        for counter in counters {
            let (own_done, own_doubt) = counter.await.unwrap();
            (done, doubt) = (done + own_done, doubt + own_doubt);
        }
        // The last one is seen by all.
        while ways[0].write(Write::new(vec![put("last/a", "")])).await.is_err() {}
        let total: u64 = pairs(&ways[0].read("counting").await.unwrap())[0].1.parse().unwrap();
        eprintln!("{what}: {done} done, {doubt} in doubt, {total} counted");
        assert!((done..=done + doubt).contains(&total), "{done} done, {doubt} in doubt, {total} counted");
        last.store(total, Ordering::Relaxed);
        // Whoever has seen it already waits for a change.
        let touch = vec![put("counting/a", &total.to_string())];
        ways[0].write(Write::new(touch)).await.unwrap();
        for follower in followers {
            assert_eq!(timeout(Duration::from_secs(60), follower).await.expect("it saw the last").unwrap(), total);
        }
    });
}

#[test]
fn the_leaders_death_loses_nothing() {
    counted_through("the death of etcd's leader", async |servers, way| {
        let dead = leader(servers).await;
        servers.kill(dead);
        sleep(Duration::from_secs(3)).await;
        until_it_answers(way).await;
        servers.start(dead);
        sleep(Duration::from_secs(1)).await;
    });
}

#[test]
fn a_leader_that_stands_still_loses_nothing() {
    counted_through("a stopped leader of etcd", async |servers, way| {
        let stopped = leader(servers).await;
        servers.stop(stopped);
        // Longer than any answer may take, so that all leave it.
        sleep(PATIENCE + Duration::from_secs(2)).await;
        until_it_answers(way).await;
        servers.go_on(stopped);
        sleep(Duration::from_secs(1)).await;
    });
}

#[test]
fn a_minority_agrees_on_nothing_and_says_so() {
    let Some(servers) = Servers::or_skip("a minority of etcd's servers", 3) else { return };
    run(async {
        let ways = ways(&servers);
        until_it_answers(&ways[0]).await;
        ways[0].write(Write::new(vec![put("a/x", "before")])).await.unwrap();
        let lease = ways[0].grant(Duration::from_secs(60)).await.unwrap();
        let revision = ways[0].read("a").await.unwrap().revision;
        let waits = tokio::spawn({
            let way = ways[0].clone();
            async move { way.changed("a", revision).await }
        });
        servers.kill(1);
        servers.kill(2);
        let start = Instant::now();
        let (read, write) = tokio::join!(ways[1].read("a"), ways[2].write(Write::new(vec![put("a/x", "after")])));
        assert!(start.elapsed() < PATIENCE + Duration::from_secs(2), "{:?}", start.elapsed());
        assert!(matches!(read, Err(RegistryError::Unreachable { .. })), "{read:?}");
        assert!(matches!(write, Err(RegistryError::Unreachable { .. } | RegistryError::Unknown(_))), "{write:?}");
        // One that led may renew leases for a moment, until it notices that it is alone.
        let renew = ways[0].renew(lease).await;
        assert!(matches!(renew, Err(RegistryError::Unreachable { .. })), "{renew:?}");
        let told = timeout(Duration::from_secs(60), waits).await.expect("it says that it hears nothing").unwrap();
        assert!(matches!(told, Err(RegistryError::Unreachable { .. })), "{told:?}");
        let said = read.unwrap_err().to_string();
        assert!(said.contains(&servers.endpoint(0)) && said.contains("does not answer"), "{said}");
        servers.start(1);
        until_it_answers(&ways[2]).await;
        assert_eq!(ways[2].write(Write::new(vec![put("a/y", "later")])).await.unwrap(), Verdict::Done);
        let all = pairs(&ways[0].read("a").await.unwrap());
        assert!(["before", "after"].contains(&&*all[0].1) && all[1].1 == "later", "{all:?}");
        ways[1].renew(lease).await.unwrap();
    });
}

#[test]
fn what_is_forgotten_is_looked_at_again() {
    let Some(servers) = Servers::or_skip("a compacted etcd", 1) else { return };
    run(async {
        let way = way(&servers, &[0]);
        until_it_answers(&way).await;
        way.write(Write::new(vec![put("a/x", "1")])).await.unwrap();
        let before = way.read("a").await.unwrap().revision;
        way.write(Write::new(vec![Change::Delete("a/x".into())])).await.unwrap();
        way.write(Write::new(vec![put("b/x", "1")])).await.unwrap();
        let now = way.read("b").await.unwrap().revision;
        let request = json!({ "revision": now.to_string() });
        way.client.ask::<Revoked>("/v3/kv/compaction", &request, Nature::Once).await.unwrap();
        let told = timeout(PATIENCE, way.changed("a", before)).await.unwrap().unwrap();
        assert_eq!((pairs(&told), told.revision >= now), (vec![], true));
        // A future that others have not seen is no moment to wait for.
        let ahead = timeout(PATIENCE, way.changed("a", now + 1000)).await.unwrap();
        assert!(matches!(ahead, Err(RegistryError::Unreachable { .. })), "{ahead:?}");
    });
}

#[test]
fn nobody_and_strangers_are_no_registry() {
    run(async {
        // Nobody listens there any more.
        let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let nobody = Etcd::new(format!("etcd://{gone}").parse().unwrap());
        let write = Write::new(vec![put("a/x", "1")]);
        let (read, written) = tokio::join!(nobody.read("a"), nobody.write(write.clone()));
        assert!(matches!(read, Err(RegistryError::Unreachable { .. })), "{read:?}");
        // It is known that nothing was done.
        assert!(matches!(written, Err(RegistryError::Unreachable { .. })), "{written:?}");
        // Somebody else does.
        let stranger = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = stranger.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = stranger.accept().await {
                let answer = b"HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\nConnection: close\r\n\r\nwhat?";
                let _ = tokio::io::AsyncWriteExt::write_all(&mut stream, answer).await;
                // Read, so that the answer is not lost with the connection.
                let _ = tokio::io::AsyncReadExt::read(&mut stream, &mut [0; 4096]).await;
            }
        });
        let way = Etcd::new(format!("etcd://{address}").parse().unwrap());
        let written = way.write(write).await;
        assert!(matches!(&written, Err(RegistryError::Unknown(cause)) if cause.contains("404")), "{written:?}");
    });
}
