//! Nodes in one process, over a network that can be cut.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::RwLock;

use futures_util::future::BoxFuture;

use super::super::conformance::{self, pairs, put};
use super::super::{Condition, Entry};
use super::*;

/// Who reaches whom.
#[derive(Default)]
struct Net {
    nodes: RwLock<HashMap<u64, Embedded>>,
    /// Nodes of different groups do not reach each other.
    groups: RwLock<HashMap<u64, u32>>,
}

struct Port {
    net: Arc<Net>,
    from: u64,
}

impl Carrier for Port {
    fn nodes(&self) -> Vec<u64> {
        self.net.nodes.read().unwrap().keys().copied().filter(|id| *id != self.from).collect()
    }

    fn carry<'a>(
        &'a self,
        to: u64,
        kind: &'static str,
        body: Vec<u8>,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Vec<u8>, CarrierError>> {
        async move {
            let not_reached = || CarrierError::NotReached(io::ErrorKind::HostUnreachable.into());
            let group = |id: u64| self.net.groups.read().unwrap().get(&id).copied().unwrap_or(0);
            let cut = || group(self.from) != group(to);
            let node = self.net.nodes.read().unwrap().get(&to).cloned();
            let node = node.filter(|_| !cut()).ok_or_else(not_reached)?;
            let answer = timeout(limit, node.serve(kind, &body, None)).await;
            match answer {
                // What was done there, the asker does not hear.
                Ok(answer) if !cut() => answer,
                _ => Err(CarrierError::NoAnswer(io::ErrorKind::TimedOut.into())),
            }
        }
        .boxed()
    }
}

struct Cluster {
    net: Arc<Net>,
    place: tempfile::TempDir,
}

impl Cluster {
    async fn of(count: u64) -> Cluster {
        let cluster = Cluster { net: Arc::default(), place: tempfile::tempdir().unwrap() };
        cluster.start(1).await.found().await.unwrap();
        for id in 2..=count {
            cluster.start(id).await;
        }
        cluster.settle(1, 1..=count).await;
        cluster
    }

    async fn start(&self, id: u64) -> Embedded {
        let port = Arc::new(Port { net: self.net.clone(), from: id });
        let node = Embedded::open(id, &self.place.path().join(id.to_string()), port).await.unwrap();
        self.net.nodes.write().unwrap().insert(id, node.clone());
        node
    }

    fn node(&self, id: u64) -> Embedded {
        self.net.nodes.read().unwrap()[&id].clone()
    }

    async fn stop(&self, id: u64) {
        let node = self.net.nodes.write().unwrap().remove(&id).unwrap();
        node.close().await;
    }

    fn cut(&self, groups: &[(u64, u32)]) {
        *self.net.groups.write().unwrap() = groups.iter().copied().collect();
    }

    /// Makes these the members, all of which vote.
    async fn settle(&self, by: u64, members: impl IntoIterator<Item = u64>) {
        let all: BTreeSet<u64> = members.into_iter().collect();
        let end = Instant::now() + Duration::from_secs(60);
        while self.node(by).members() != (all.clone(), all.clone()) {
            assert!(Instant::now() < end, "{:?}", self.node(by).members());
            let _ = self.node(by).set_members(all.clone(), all.clone()).await;
            sleep(LOOK).await;
        }
    }

    fn leader(&self) -> Option<u64> {
        let nodes = self.net.nodes.read().unwrap();
        nodes.iter().find(|(_, node)| node.leads() && node.has_majority()).map(|(id, _)| *id)
    }

    async fn leader_of(&self, among: &[u64]) -> u64 {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let leading = self.leader().filter(|id| among.contains(id));
            if let Some(leader) = leading {
                return leader;
            }
            assert!(Instant::now() < end, "nobody leads");
            sleep(AGAIN).await;
        }
    }

    fn ways(&self, ids: impl IntoIterator<Item = u64>) -> conformance::Ways {
        ids.into_iter().map(|id| Arc::new(self.node(id)) as Arc<dyn Registry>).collect()
    }
}

fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
}

#[test]
fn one_node_does_what_every_registry_does() {
    run(async { conformance::run(&Cluster::of(1).await.ways([1])).await });
}

#[test]
fn three_nodes_do_what_every_registry_does() {
    run(async { conformance::run(&Cluster::of(3).await.ways(1..=3)).await });
}

/// One that nobody has told anything yet asks whoever it knows.
#[test]
fn a_newcomer_is_heard() {
    run(async {
        let cluster = Cluster::of(1).await;
        let new = cluster.start(2).await;
        assert_eq!(new.write(Write::new(vec![put("a/x", "1")])).await.unwrap(), Verdict::Done);
    });
}

#[test]
fn nodes_find_their_state_again() {
    run(async {
        let cluster = Cluster::of(3).await;
        for number in 0..10 {
            let write = Write::new(vec![put(&format!("a/{number}"), "x")]);
            cluster.node(2).write(write).await.unwrap();
        }
        // Whoever still looks at one does not keep its file from the next.
        let _held: Vec<Embedded> = (1..=3).map(|id| cluster.node(id)).collect();
        for id in 1..=3 {
            cluster.stop(id).await;
        }
        for id in 1..=3 {
            cluster.start(id).await;
        }
        cluster.leader_of(&[1, 2, 3]).await;
        assert_eq!(cluster.node(3).read("a").await.unwrap().entries.len(), 10);
        assert_eq!(cluster.node(1).members().1, (1..=3).collect());
    });
}

#[test]
fn the_leaders_death_loses_nothing() {
    run(async {
        let cluster = Cluster::of(3).await;
        let lease = cluster.node(1).grant(Duration::from_secs(3)).await.unwrap();
        let change = super::super::Change::Put { key: "a/leased".into(), value: vec![], lease: Some(lease) };
        cluster.node(1).write(Write::new(vec![change, put("a/x", "1")])).await.unwrap();
        let dead = cluster.leader_of(&[1, 2, 3]).await;
        cluster.stop(dead).await;
        let left: Vec<u64> = (1..=3).filter(|id| *id != dead).collect();
        cluster.node(left[0]).write(Write::new(vec![put("a/y", "2")])).await.unwrap();
        // The new leader keeps the lease's time, too.
        let mut all = cluster.node(left[1]).read("a").await.unwrap();
        while all.entries.iter().any(|entry: &Entry| entry.key == "a/leased") {
            all = timeout(Duration::from_secs(30), async {
                cluster.node(left[1]).changed("a", all.revision).await.unwrap()
            })
            .await
            .expect("the lease lasts for ever");
        }
        cluster.start(dead).await;
        let wanted = [("a/x".to_string(), "1".to_string()), ("a/y".into(), "2".into())];
        assert_eq!(pairs(&cluster.node(dead).read("a").await.unwrap()), wanted);
    });
}

/// It still answers, as an agent does that is about to end.
#[test]
fn a_leader_that_has_ended_ends_nobody_else() {
    run(async {
        let cluster = Cluster::of(3).await;
        let leader = cluster.leader_of(&[1, 2, 3]).await;
        let other = cluster.node(leader % 3 + 1);
        let lease = other.grant(Duration::from_secs(60)).await.unwrap();
        cluster.node(leader).close().await;
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let asked = [other.renew(lease).await.err(), other.write(Write::new(vec![put("a/x", "1")])).await.err()];
            let ended = asked.iter().flatten().find(|error| matches!(error, RegistryError::Ended(_)));
            assert!(ended.is_none(), "{ended:?}");
            if asked == [None, None] {
                break;
            }
            assert!(Instant::now() < end, "{asked:?}");
        }
    });
}

/// Whoever renews a lease may rely on it, also when its end was under way already, and only waited for a majority.
#[test]
fn a_lease_that_was_renewed_lasts() {
    run(async {
        let cluster = Cluster::of(3).await;
        let leader = cluster.node(cluster.leader_of(&[1, 2, 3]).await);
        // Enough for a slow disk to take the write while the lease lasts.
        let time = Duration::from_secs(4);
        let before = Instant::now();
        let lease = leader.grant(time).await.unwrap();
        let granted = Instant::now();
        let change = super::super::Change::Put { key: "a/leased".into(), value: vec![], lease: Some(lease) };
        leader.write(Write::new(vec![change])).await.unwrap();
        // From before its end until it is over, but not for so long that another one is elected.
        sleep((before + time - 10 * LOOK).saturating_duration_since(Instant::now())).await;
        cluster.cut(&[(1, 1), (2, 2), (3, 3)]);
        sleep((granted + time + 3 * LOOK).saturating_duration_since(Instant::now())).await;
        cluster.cut(&[]);
        let asked = Instant::now();
        match leader.renew(lease).await {
            Ok(()) => {
                sleep(time / 2).await;
                let there = !leader.read("a").await.unwrap().entries.is_empty();
                assert!(there || asked.elapsed() >= time, "it was renewed {:?} ago", asked.elapsed());
            }
            // The others may be told of its end only when the leader tries again.
            Err(RegistryError::LeaseOver) => {
                let mut all = leader.changed("a", 0).await.unwrap();
                while !all.entries.is_empty() {
                    all = timeout(Duration::from_secs(60), leader.changed("a", all.revision))
                        .await
                        .expect("the lease lasts for ever")
                        .unwrap();
                }
            }
            Err(error) => panic!("{error}"),
        }
    });
}

#[test]
fn a_minority_agrees_on_nothing_and_says_so() {
    run(async {
        let cluster = Cluster::of(3).await;
        let cut_off = cluster.leader_of(&[1, 2, 3]).await;
        let rest: Vec<u64> = (1..=3).filter(|id| *id != cut_off).collect();
        cluster.node(1).write(Write::new(vec![put("a/x", "before")])).await.unwrap();
        cluster.cut(&[(cut_off, 1)]);
        let (lone, others) = (cluster.node(cut_off), cluster.node(rest[0]));
        let write = |value: &str| Write::new(vec![put("a/x", value)]);
        let (alone, together) = tokio::join!(lone.write(write("alone")), async {
            cluster.leader_of(&rest).await;
            others.write(write("together")).await
        });
        assert_eq!(together.unwrap(), Verdict::Done);
        // It was the leader, and has put it in its log.
        assert!(matches!(alone, Err(RegistryError::Unknown(_) | RegistryError::NoMajority { .. })), "{alone:?}");
        let error = lone.read("a").await.unwrap_err();
        assert_eq!(error, RegistryError::NoMajority { known: 3 });
        assert!(error.to_string().contains("cannot be known"), "{error}");
        assert!(!lone.has_majority() && others.has_majority());
        // What it knew it still tells.
        assert_eq!(pairs(&lone.changed("a", 0).await.unwrap())[0].1, "before");
        cluster.cut(&[]);
        let (lone, others) = tokio::join!(lone.read("a"), others.read("a"));
        assert_eq!((pairs(&lone.unwrap()), pairs(&others.unwrap())), {
            let agreed = vec![("a/x".to_string(), "together".to_string())];
            (agreed.clone(), agreed)
        });
    });
}

#[test]
fn of_two_nodes_one_cannot_go_on_and_one_that_is_removed_is_not_waited_for() {
    run(async {
        let cluster = Cluster::of(2).await;
        cluster.stop(2).await;
        let error = cluster.node(1).write(Write::new(vec![put("a/x", "1")])).await.unwrap_err();
        assert!(matches!(error, RegistryError::Unknown(_) | RegistryError::NoMajority { known: 2 }), "{error:?}");
        cluster.start(2).await;
        let leader = cluster.leader_of(&[1, 2]).await;
        // By whoever leads: the other one may be gone before it hears that it is no member.
        cluster.settle(leader, [leader]).await;
        cluster.stop(3 - leader).await;
        assert_eq!(cluster.node(leader).write(Write::new(vec![put("a/x", "2")])).await.unwrap(), Verdict::Done);
    });
}

/// What is left of a cluster goes on, and the others follow it when they come back.
#[test]
fn one_node_goes_on_alone_when_it_is_told_to() {
    run(async {
        let cluster = Cluster::of(3).await;
        for number in 0..5 {
            cluster.node(1).write(Write::new(vec![put(&format!("a/{number}"), "x")])).await.unwrap();
        }
        // What everybody has told.
        for id in 1..=3 {
            while cluster.node(id).read("a").await.unwrap() != cluster.node(id).inner.machine.seen().table.snapshot("a")
            {
                sleep(LOOK).await;
            }
        }
        for id in 1..=3 {
            cluster.stop(id).await;
        }
        Embedded::recover(2, &cluster.place.path().join("2")).await.unwrap();
        let left = cluster.start(2).await;
        left.write(Write::new(vec![put("a/5", "alone")])).await.unwrap();
        assert_eq!(left.members(), (BTreeSet::from([2]), BTreeSet::from([2])));
        assert_eq!(left.read("a").await.unwrap().entries.len(), 6);
        for id in [1, 3] {
            cluster.start(id).await;
        }
        cluster.settle(2, 1..=3).await;
        for id in [1, 3] {
            assert_eq!(pairs(&cluster.node(id).read("a").await.unwrap()).last().unwrap().1, "alone");
        }
    });
}

#[test]
fn a_node_that_comes_late_gets_everything() {
    run(async {
        let cluster = Cluster::of(1).await;
        let count = SNAPSHOT + 200;
        for number in 0..count {
            let write = Write::new(vec![put(&format!("a/{}", number % 7), &number.to_string())]);
            cluster.node(1).write(write).await.unwrap();
        }
        cluster.start(2).await;
        cluster.settle(1, [1, 2]).await;
        let (first, second) = (cluster.node(1).read("a").await.unwrap(), cluster.node(2).read("a").await.unwrap());
        assert_eq!(first.entries, second.entries);
        assert!(first.entries.iter().any(|entry| entry.value == (count - 1).to_string().as_bytes()));
        let taken = Write { when: vec![Condition::Absent("a/0".into())], then: vec![] };
        assert_eq!(cluster.node(2).write(taken).await.unwrap(), Verdict::Refused);
    });
}

/// Nothing that comes over the network does any harm.
#[test]
fn requests_that_make_no_sense_are_refused() {
    run(async {
        let cluster = Cluster::of(1).await;
        let node = cluster.node(1);
        for kind in ["append", "snapshot", "vote", "ask", "nonsense", ""] {
            for body in [&b""[..], &[0xff; 3], &[0xff; 100]] {
                assert!(matches!(node.serve(kind, body, None).await, Err(CarrierError::Garbled(_))), "{kind} {body:?}");
            }
        }
        assert_eq!(node.write(Write::new(vec![put("a/x", "1")])).await.unwrap(), Verdict::Done);
    });
}

/// A guest says that it is up, and no more.
#[test]
fn a_node_without_a_vote_changes_its_own_entries_only() {
    run(async {
        let node = Cluster::of(1).await.node(1);
        let own = vec!["alive/guest".to_string()];
        let serve = async |ask: Ask| {
            let body = postcard::to_stdvec(&ask).unwrap();
            node.serve("ask", &body, Some(&own)).await
        };
        let write = |key: &str| Ask::Command(Command::Write(Write::new(vec![put(key, "1")])));
        for allowed in [write("alive/guest"), Ask::Read("nodes".into()), Ask::Command(Command::Grant(1000))] {
            serve(allowed).await.unwrap();
        }
        let members = Ask::Members { all: BTreeSet::from([9]), voters: BTreeSet::from([9]) };
        for refused in [write("nodes/guest"), write("alive/other"), members] {
            assert!(matches!(serve(refused).await, Err(CarrierError::NotAllowed)));
        }
        for kind in ["append", "vote", "snapshot"] {
            assert!(matches!(node.serve(kind, &[], Some(&own)).await, Err(CarrierError::NotAllowed)));
        }
    });
}
