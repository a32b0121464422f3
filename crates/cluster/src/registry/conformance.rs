//! What every registry does: one suite, run over each.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Change, Condition, Lease, Registry, RegistryError, Snapshot, Verdict, Write};

/// Each of them goes another way to the same registry, as the nodes of a cluster do.
pub(super) type Ways = Vec<Arc<dyn Registry>>;

const PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn put(key: &str, value: &str) -> Change {
    Change::Put { key: key.into(), value: value.into(), lease: None }
}

fn leased(key: &str, value: &str, lease: Lease) -> Change {
    Change::Put { key: key.into(), value: value.into(), lease: Some(lease) }
}

pub(super) fn pairs(snapshot: &Snapshot) -> Vec<(String, String)> {
    let pair = |entry: &super::Entry| (entry.key.clone(), String::from_utf8(entry.value.clone()).unwrap());
    snapshot.entries.iter().map(pair).collect()
}

fn owned(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
}

/// Runs all cases.
pub(super) async fn run(ways: &Ways) {
    values(ways).await;
    conditions(ways).await;
    nonsense(ways).await;
    changes(ways).await;
    counting(ways).await;
    leases(ways).await;
    renewed(ways).await;
}

/// What was written one way is read every way.
async fn values(ways: &Ways) {
    let writes = [put("values/b", "1"), put("values/a", "2"), put("valuesx/a", "3"), put("values0", "4")];
    for (at, change) in writes.into_iter().enumerate() {
        assert_eq!(ways[at % ways.len()].write(Write::new(vec![change])).await.unwrap(), Verdict::Done);
    }
    for way in ways {
        let all = way.read("values").await.unwrap();
        assert_eq!(pairs(&all), owned(&[("values/a", "2"), ("values/b", "1")]));
        assert_eq!(pairs(&way.read("value").await.unwrap()), []);
    }
    let several =
        vec![Change::Delete("values/a".into()), put("values/c", "\u{0}\u{fc}"), Change::Delete("values/-".into())];
    ways[0].write(Write::new(several)).await.unwrap();
    for way in ways {
        let all = way.read("values").await.unwrap();
        assert_eq!(pairs(&all), owned(&[("values/b", "1"), ("values/c", "\u{0}\u{fc}")]));
    }
}

async fn conditions(ways: &Ways) {
    let way = &ways[0];
    let create = |value: &str| Write {
        when: vec![Condition::Absent("conditions/a".into())],
        then: vec![put("conditions/a", value), put("conditions/b", value)],
    };
    assert_eq!(way.write(create("1")).await.unwrap(), Verdict::Done);
    assert_eq!(ways[ways.len() - 1].write(create("2")).await.unwrap(), Verdict::Refused);
    let all = way.read("conditions").await.unwrap();
    assert_eq!(pairs(&all), owned(&[("conditions/a", "1"), ("conditions/b", "1")]), "refused whole");
    let version = all.entries[0].version;
    let replace = |value: &str| Write {
        when: vec![Condition::Version("conditions/a".into(), version), Condition::Absent("conditions/c".into())],
        then: vec![put("conditions/a", value)],
    };
    assert_eq!(way.write(replace("3")).await.unwrap(), Verdict::Done);
    assert_eq!(way.write(replace("4")).await.unwrap(), Verdict::Refused);
    // The same value again is another version.
    let again = way.read("conditions").await.unwrap().entries[0].version;
    way.write(Write::new(vec![put("conditions/a", "3")])).await.unwrap();
    let stale = Condition::Version("conditions/a".into(), again);
    assert_eq!(way.write(Write { when: vec![stale], then: vec![] }).await.unwrap(), Verdict::Refused);
    way.write(Write::new(vec![Change::Delete("conditions/a".into())])).await.unwrap();
    way.write(Write::new(vec![put("conditions/a", "3")])).await.unwrap();
    let reborn = way.read("conditions").await.unwrap().entries[0].version;
    assert!(reborn > again, "{reborn} {again}");
}

async fn nonsense(ways: &Ways) {
    let twice = Write::new(vec![put("nonsense/a", "1"), Change::Delete("nonsense/a".into())]);
    assert!(matches!(ways[0].write(twice).await, Err(RegistryError::Invalid(_))));
    let nobody = 0x7777_7777;
    let dead = Write::new(vec![put("nonsense/b", "1"), leased("nonsense/c", "1", nobody)]);
    assert_eq!(ways[0].write(dead).await, Err(RegistryError::LeaseOver));
    assert_eq!(pairs(&ways[0].read("nonsense").await.unwrap()), [], "refused whole");
    assert_eq!(ways[0].renew(nobody).await, Err(RegistryError::LeaseOver));
    // As often as one likes.
    ways[0].revoke(nobody).await.unwrap();
}

/// Nobody who waits for changes misses the last one.
async fn changes(ways: &Ways) {
    let last = "999";
    let watch = |way: Arc<dyn Registry>| async move {
        let (mut revision, mut seen) = (0, -1);
        loop {
            let all = way.changed("changes", revision).await.unwrap();
            assert!(all.revision > revision, "{} {revision}", all.revision);
            revision = all.revision;
            let now = pairs(&all).pop().map_or(-1, |(_, value)| value.parse().unwrap());
            assert!(now >= seen, "it went back from {seen} to {now}");
            seen = now;
            if pairs(&all) == owned(&[("changes/a", last)]) {
                return;
            }
        }
    };
    let watchers: Vec<_> = ways.iter().map(|way| tokio::spawn(watch(way.clone()))).collect();
    for number in 0..30 {
        ways[number % ways.len()].write(Write::new(vec![put("changes/a", &number.to_string())])).await.unwrap();
    }
    ways[0].write(Write::new(vec![put("changes/a", last)])).await.unwrap();
    for watcher in watchers {
        tokio::time::timeout(PATIENCE, watcher).await.expect("a change was missed").unwrap();
    }
    // What is no change of this table, or was seen already, wakes nobody; a removal does.
    let revision = ways[0].read("changes").await.unwrap().revision;
    let (way, waiter) = (ways[0].clone(), ways[0].clone());
    let waits = tokio::spawn(async move { waiter.changed("changes", revision).await.unwrap() });
    way.write(Write::new(vec![put("changesx/a", "1")])).await.unwrap();
    assert!(!waits.is_finished());
    way.write(Write::new(vec![Change::Delete("changes/a".into())])).await.unwrap();
    assert_eq!(pairs(&tokio::time::timeout(PATIENCE, waits).await.unwrap().unwrap()), []);
}

/// Many who count with one word, each way, lose nothing.
async fn counting(ways: &Ways) {
    const EACH: u64 = 10;
    ways[0].write(Write::new(vec![put("counting/a", "0")])).await.unwrap();
    let count = |way: Arc<dyn Registry>| async move {
        let mut done = 0;
        while done < EACH {
            let entry = way.read("counting").await.unwrap().entries.remove(0);
            let value: u64 = String::from_utf8(entry.value).unwrap().parse().unwrap();
            let when = vec![Condition::Version(entry.key, entry.version)];
            let then = vec![put("counting/a", &(value + 1).to_string())];
            done += u64::from(way.write(Write { when, then }).await.unwrap() == Verdict::Done);
        }
    };
    let counters: Vec<_> = ways.iter().map(|way| tokio::spawn(count(way.clone()))).collect();
    for counter in counters {
        tokio::time::timeout(PATIENCE, counter).await.unwrap().unwrap();
    }
    let total = (EACH * ways.len() as u64).to_string();
    assert_eq!(pairs(&ways[0].read("counting").await.unwrap()), owned(&[("counting/a", &total)]));
}

/// Entries go with their lease: when it is not renewed, and when it is revoked.
async fn leases(ways: &Ways) {
    let way = &ways[ways.len() - 1];
    let revoked = way.grant(Duration::from_secs(600)).await.unwrap();
    way.write(Write::new(vec![leased("leases/b", "1", revoked), put("leases/c", "1")])).await.unwrap();
    // One that has another value without the lease stays.
    way.write(Write::new(vec![leased("leases/d", "1", revoked)])).await.unwrap();
    way.write(Write::new(vec![put("leases/d", "2")])).await.unwrap();
    let told = way.read("leases").await.unwrap();
    assert_eq!(told.entries[0].lease, Some(revoked));
    assert_eq!(told.entries[2].lease, None);
    // The short one has to last for one write.
    let short = way.grant(Duration::from_secs(5)).await.unwrap();
    assert_ne!(short, revoked);
    let both = vec![leased("leases/a", "1", short), leased("leases/b", "1", revoked)];
    way.write(Write::new(both)).await.unwrap();
    ways[0].revoke(revoked).await.unwrap();
    assert!(!pairs(&way.read("leases").await.unwrap()).contains(&("leases/b".into(), "1".into())));
    let mut all = way.read("leases").await.unwrap();
    while pairs(&all).contains(&("leases/a".into(), "1".into())) {
        all = tokio::time::timeout(PATIENCE, way.changed("leases", all.revision))
            .await
            .expect("it does not end")
            .unwrap();
    }
    assert_eq!(pairs(&way.read("leases").await.unwrap()), owned(&[("leases/c", "1"), ("leases/d", "2")]));
    assert_eq!(way.renew(short).await, Err(RegistryError::LeaseOver));
    let late = Write::new(vec![leased("leases/e", "1", short)]);
    assert_eq!(way.write(late).await, Err(RegistryError::LeaseOver));
}

/// A lease that is renewed in time lasts.
async fn renewed(ways: &Ways) {
    let time = Duration::from_secs(2);
    // Before what makes it last was asked for: if it is over so long after that, this test was held up.
    let mut last = Instant::now();
    let held_up = |last: Instant| last.elapsed() >= time;
    let lease = ways[0].grant(time).await.unwrap();
    let written = ways[0].write(Write::new(vec![leased("renewed/a", "1", lease)])).await;
    if written == Err(RegistryError::LeaseOver) && held_up(last) {
        return;
    }
    written.unwrap();
    let start = Instant::now();
    while start.elapsed() < 2 * time {
        for way in ways {
            let asked = Instant::now();
            let answer = way.renew(lease).await;
            if answer == Err(RegistryError::LeaseOver) && held_up(last) {
                return;
            }
            answer.unwrap();
            last = asked;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
    let all = pairs(&ways[0].read("renewed").await.unwrap());
    if all.is_empty() && held_up(last) {
        return;
    }
    assert_eq!(all, owned(&[("renewed/a", "1")]));
    ways[0].revoke(lease).await.unwrap();
}
