use proptest::prelude::*;

use super::*;

fn graph(size: u32, edges: &[(u32, u32)]) -> Graph {
    let mut graph = Graph::new(size);
    edges.iter().for_each(|(one, other)| graph.join(*one, *other, 1));
    graph
}

fn between(graph: &Graph, from: u32, to: u32) -> Option<Vec<u32>> {
    Paths::new(graph).between(from, to)
}

/// A matrix with these devices; each entry is a row, a column and their names.
fn rows(size: usize, cells: &[(usize, usize, &[&str])]) -> Vec<Vec<Vec<String>>> {
    let mut rows = vec![vec![Vec::new(); size]; size];
    for (row, column, names) in cells {
        rows[*row][*column] = names.iter().map(ToString::to_string).collect();
    }
    rows
}

#[test]
fn a_chain_leads_through_all_between() {
    let chain = graph(4, &[(0, 1), (1, 2), (2, 3)]);
    assert_eq!(between(&chain, 0, 3), Some(vec![1, 2]));
    assert_eq!(between(&chain, 3, 0), Some(vec![2, 1]));
    assert_eq!(between(&chain, 1, 2), Some(vec![]));
    assert_eq!(Paths::new(&chain).over(1), [(0, 2), (0, 3), (2, 0), (3, 0)]);
    assert!(Paths::new(&chain).over(0).is_empty());
}

#[test]
fn a_ring_leads_the_short_way_and_the_other_way_when_a_rank_is_gone() {
    let ring = graph(5, &[(0, 1), (1, 2), (2, 3), (3, 4), (4, 0)]);
    assert_eq!(between(&ring, 0, 2), Some(vec![1]));
    assert_eq!(between(&ring, 0, 3), Some(vec![4]));
    let rest = ring.without(|rank| rank == 1);
    assert_eq!(between(&rest, 0, 2), Some(vec![4, 3]));
    assert_eq!(between(&rest, 0, 1), None);
}

#[test]
fn of_two_short_ways_the_wide_one_is_taken_and_then_the_first() {
    let mut square = graph(4, &[(0, 1), (1, 3), (0, 2), (2, 3)]);
    assert_eq!(between(&square, 0, 3), Some(vec![1]));
    square.join(0, 2, 2);
    assert_eq!(between(&square, 0, 3), Some(vec![2]));
    assert_eq!(between(&square, 3, 0), Some(vec![2]));
}

#[test]
fn what_the_ends_of_cables_disagree_on_is_named() {
    let one_sided = rows(3, &[(0, 1, &["a"]), (1, 0, &["b"]), (1, 2, &["c", "d"])]);
    let said = Graph::of_devices(&one_sided).unwrap_err().to_string();
    assert!(said.contains("rank 1 is to reach rank 2 by c and d") && said.contains("both ends"), "{said}");

    let counts = rows(2, &[(0, 1, &["a", "b"]), (1, 0, &["c"])]);
    let said = Graph::of_devices(&counts).unwrap_err().to_string();
    assert!(said.contains("2 cables to rank 1 (a, b)") && said.contains("1 cable to rank 0 (c)"), "{said}");

    let apart = rows(5, &[(0, 3, &["a"]), (3, 0, &["b"]), (1, 2, &["c"]), (2, 1, &["d"])]);
    let said = Graph::of_devices(&apart).unwrap_err().to_string();
    assert!(said.contains("from ranks 0, 3 to ranks 1-2, 4"), "{said}");
    Graph::of_devices(&rows(1, &[])).unwrap();
}

/// A graph of up to 8 ranks, and which of them are gone.
fn any_graph() -> impl Strategy<Value = (Graph, Vec<bool>)> {
    (1u32..9, prop::collection::vec((0u32..8, 0u32..8, 0u16..4), 0..20), prop::collection::vec(any::<bool>(), 8))
        .prop_map(|(size, edges, gone)| {
            let mut graph = Graph::new(size);
            for (one, other, cables) in edges {
                if one != other && one < size && other < size {
                    graph.join(one, other, cables);
                }
            }
            (graph, gone)
        })
}

/// Hops between all ranks, found in another way.
fn hops(graph: &Graph) -> Vec<Vec<u32>> {
    const FAR: u32 = 1000;
    let size = graph.size();
    let first = |one, other| match (one == other, graph.is_joined(one, other)) {
        (true, _) => 0,
        (false, true) => 1,
        (false, false) => FAR,
    };
    let mut hops: Vec<Vec<u32>> = (0..size).map(|one| (0..size).map(|other| first(one, other)).collect()).collect();
    for over in 0..size as usize {
        for one in 0..size as usize {
            for other in 0..size as usize {
                hops[one][other] = hops[one][other].min(hops[one][over] + hops[over][other]);
            }
        }
    }
    hops
}

proptest! {
    #[test]
    fn paths_are_the_shortest_and_follow_cables((graph, gone) in any_graph()) {
        for graph in [graph.clone(), graph.without(|rank| gone[rank as usize])] {
            let (paths, hops) = (Paths::new(&graph), hops(&graph));
            for from in 0..graph.size() {
                for to in (0..graph.size()).filter(|to| *to != from) {
                    let hops = hops[from as usize][to as usize];
                    let Some(ranks) = paths.between(from, to) else {
                        prop_assert!(hops >= 1000);
                        continue;
                    };
                    prop_assert_eq!(ranks.len() as u32 + 1, hops);
                    let all: Vec<u32> = [from].into_iter().chain(ranks.iter().copied()).chain([to]).collect();
                    prop_assert!(all.windows(2).all(|pair| graph.is_joined(pair[0], pair[1])));
                    // Each on the way goes on as the first one thought.
                    for (at, rank) in ranks.iter().enumerate() {
                        prop_assert_eq!(paths.between(*rank, to).unwrap(), &ranks[at + 1..]);
                        prop_assert!(paths.over(*rank).contains(&(from, to)));
                    }
                }
            }
        }
    }

    #[test]
    fn a_graph_is_refused_if_and_only_if_no_path_leads_somewhere((graph, _) in any_graph()) {
        let size = graph.size();
        let cell = |one, other| (0..graph.between(one, other)).map(|at| format!("d{at}")).collect();
        let rows: Vec<Vec<Vec<String>>> =
            (0..size).map(|one| (0..size).map(|other| cell(one, other)).collect()).collect();
        let paths = Paths::new(&graph);
        let whole = (1..size).all(|to| paths.next(0, to).is_some());
        match Graph::of_devices(&rows) {
            Ok(read) => {
                prop_assert!(whole);
                prop_assert_eq!(read, graph);
            }
            Err(TopologyError::Apart { part, rest }) => {
                prop_assert!(!whole);
                prop_assert!(rest.iter().all(|rank| paths.next(0, *rank).is_none()));
                prop_assert!(part.iter().all(|rank| *rank == 0 || paths.next(0, *rank).is_some()));
                prop_assert_eq!(part.len() + rest.len(), size as usize);
            }
            Err(error) => prop_assert!(false, "{}", error),
        }
    }
}
