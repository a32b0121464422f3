//! Files that say which device of which host leads to which other one: JACCL's device file, and the hostfile of `mlx.launch`.
//!
//! A device file is an N×N matrix. The cell in row i and column j holds what rank i reaches rank j with: `null` (nothing), the
//! name of a device, or a list of names. A hostfile has a row of it for each host, as `rdma`.

use std::fmt;
use std::path::Path;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::LaunchError;
use crate::Cables;
use crate::bootstrap::MAX_RANKS;
use crate::topology::Graph;

/// The longest file that is read: names for 256 ranks take less.
const LONGEST: u64 = 4 << 20;

/// What a file says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Devices {
    /// By rank, what leads to each rank.
    rows: Vec<Vec<Vec<String>>>,
    /// The first address of rank 0's host, which a hostfile tells.
    pub address: Option<String>,
}

impl Devices {
    /// Reads the file that a variable names.
    pub fn read(name: &'static str, path: &Path) -> Result<Devices, LaunchError> {
        let unreadable = |cause: String| LaunchError::DeviceFileUnreadable { name, path: path.to_owned(), cause };
        let about = std::fs::metadata(path).map_err(|error| unreadable(error.to_string()))?;
        if !about.is_file() {
            return Err(unreadable("it is no plain file".into()));
        }
        if about.len() > LONGEST {
            return Err(unreadable(format!("it has more than {LONGEST} bytes")));
        }
        let bytes = std::fs::read(path).map_err(|error| unreadable(error.to_string()))?;
        let file: File = serde_json::from_slice(&bytes)
            .map_err(|error| LaunchError::DeviceFileSyntax { path: path.to_owned(), cause: error.to_string() })?;
        Devices::check(file).map_err(|cause| LaunchError::DeviceFile { path: path.to_owned(), cause })
    }

    /// How many ranks there are.
    pub fn size(&self) -> u32 {
        self.rows.len() as u32
    }

    /// What leads from this rank to the others.
    pub fn cables(&self, rank: u32) -> Cables {
        Cables(self.rows[rank as usize].clone())
    }

    pub fn check(file: File) -> Result<Devices, String> {
        let size = file.0.len();
        if size == 0 || size > MAX_RANKS as usize {
            return Err(format!("it speaks of {size} ranks, and there can be 1 to {MAX_RANKS}"));
        }
        let mut address = None;
        let mut rows = Vec::with_capacity(size);
        let hosts = matches!(file.0[0], Line::Host(_));
        for (rank, line) in file.0.into_iter().enumerate() {
            let row = match line {
                Line::Row(row) if !hosts => row,
                Line::Host(host) if hosts => {
                    if rank == 0 {
                        address = host.ips.into_iter().next();
                    }
                    host.rdma.ok_or_else(|| {
                        let of = host.ssh.unwrap_or_default();
                        format!("host {rank} ({of}) has no \"rdma\": give the devices that lead to each host, with null for itself")
                    })?
                }
                _ => return Err(format!("entry {rank} is of another kind than entry 0: give hosts or rows alone")),
            };
            rows.push(check_row(rank, row, size)?);
        }
        Graph::of_devices(&rows).map_err(|error| error.to_string())?;
        Ok(Devices { rows, address })
    }
}

/// The row of one rank in a world of this size, out of a variable.
pub(super) fn read_row(text: &str, rank: u32, size: u32) -> Result<Cables, String> {
    let row: Vec<Cell> = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let row = check_row(rank as usize, row, size as usize)?;
    if size > 1 && row.iter().all(Vec::is_empty) {
        return Err(format!("row {rank} names no device: a cable has to lead to some rank"));
    }
    Ok(Cables(row))
}

fn check_row(rank: usize, row: Vec<Cell>, size: usize) -> Result<Vec<Vec<String>>, String> {
    if row.len() != size {
        return Err(format!(
            "it is not square: row {rank} has {} cells for {size} ranks; give each rank a row with a cell for each rank",
            row.len()
        ));
    }
    for (peer, cell) in row.iter().enumerate() {
        let names = &cell.0;
        if peer == rank && !names.is_empty() {
            return Err(format!("row {rank} names {} for rank {rank} itself: write null there", names.join(", ")));
        }
        if let Some(at) = names.iter().position(|name| name.trim().is_empty()) {
            return Err(format!("name {at} in row {rank}, column {peer} is empty"));
        }
        if let Some(twice) = names.iter().enumerate().find_map(|(at, name)| names[..at].contains(name).then_some(name))
        {
            return Err(format!("row {rank}, column {peer} names {twice} twice"));
        }
    }
    Ok(row.into_iter().map(|cell| cell.0).collect())
}

/// The file as it is written. All is read by visitors, so that an error knows its line and column.
pub(super) struct File(pub Vec<Line>);

pub(super) enum Line {
    Row(Vec<Cell>),
    Host(Host),
}

/// The devices between two ranks.
#[derive(Debug)]
pub(super) struct Cell(Vec<String>);

#[derive(Deserialize)]
pub(super) struct Host {
    #[serde(default)]
    pub ssh: Option<String>,
    #[serde(default)]
    pub ips: Vec<String>,
    #[serde(default)]
    pub rdma: Option<Vec<Cell>>,
}

impl<'de> Deserialize<'de> for File {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<File, D::Error> {
        struct Whole;
        impl<'de> Visitor<'de> for Whole {
            type Value = File;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of rows, a list of hosts, or an object with \"hosts\"")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<File, A::Error> {
                let mut lines = Vec::new();
                while let Some(line) = list.next_element()? {
                    lines.push(line);
                }
                Ok(File(lines))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<File, A::Error> {
                let mut hosts = None;
                while let Some(key) = map.next_key::<String>()? {
                    match key.as_str() {
                        "hosts" => hosts = Some(map.next_value::<Vec<Host>>()?),
                        // How to start the ranks, which has been done.
                        _ => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                let hosts = hosts.ok_or_else(|| serde::de::Error::missing_field("hosts"))?;
                Ok(File(hosts.into_iter().map(Line::Host).collect()))
            }
        }
        deserializer.deserialize_any(Whole)
    }
}

impl<'de> Deserialize<'de> for Line {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Line, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Line;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a row of devices or a host")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Line, A::Error> {
                let row = serde::de::value::SeqAccessDeserializer::new(list);
                Vec::deserialize(row).map(Line::Row)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Line, A::Error> {
                let host = serde::de::value::MapAccessDeserializer::new(map);
                Host::deserialize(host).map(Line::Host)
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl<'de> Deserialize<'de> for Cell {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Cell, D::Error> {
        struct Names;
        impl<'de> Visitor<'de> for Names {
            type Value = Cell;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("null, a device's name or a list of names")
            }

            fn visit_unit<E>(self) -> Result<Cell, E> {
                Ok(Cell(Vec::new()))
            }

            fn visit_str<E>(self, name: &str) -> Result<Cell, E> {
                Ok(Cell(vec![name.to_owned()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Cell, A::Error> {
                let mut names = Vec::new();
                while let Some(name) = list.next_element()? {
                    names.push(name);
                }
                Ok(Cell(names))
            }
        }
        deserializer.deserialize_any(Names)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A file with this content, in a folder of its own.
    pub(in crate::launch) fn file(content: &str) -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("devices.json");
        std::fs::write(&path, content).unwrap();
        (folder, path)
    }

    fn read(content: &str) -> Result<Devices, LaunchError> {
        let (_folder, path) = file(content);
        Devices::read("JACCL_IBV_DEVICES", &path)
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn cells_are_null_a_name_or_a_list() {
        let devices = read(
            r#"[[null, "rdma_en5", ["rdma_en6", "rdma_en7"]],
                ["rdma_en5", null, []],
                [["rdma_en2", "rdma_en3"], null, []]]"#,
        )
        .unwrap();
        assert_eq!((devices.size(), &devices.address), (3, &None));
        assert_eq!(devices.cables(0), Cables(vec![names(&[]), names(&["rdma_en5"]), names(&["rdma_en6", "rdma_en7"])]));
        assert_eq!(devices.cables(2), Cables(vec![names(&["rdma_en2", "rdma_en3"]), names(&[]), names(&[])]));
    }

    #[test]
    fn a_hostfile_has_a_row_for_each_host() {
        let hosts = r#"[{"ssh": "a", "ips": ["192.0.2.1", "192.0.2.9"], "rdma": [null, "rdma_en5"]},
                        {"ssh": "b", "rdma": ["rdma_en4", null], "more": {"x": 1}}]"#;
        let whole = format!(r#"{{"backend": "jaccl", "envs": ["A=1"], "hosts": {hosts}}}"#);
        for text in [hosts, &whole] {
            let devices = read(text).unwrap();
            assert_eq!(devices.address.as_deref(), Some("192.0.2.1"));
            assert_eq!(devices.cables(1), Cables(vec![names(&["rdma_en4"]), names(&[])]));
        }
    }

    #[test]
    fn what_is_no_json_is_placed_by_line_and_column() {
        for (text, place) in [
            ("", "line 1 column 0"),
            ("[[null,\n \"a\"", "line 2 column 4"),
            ("[[null, \"a\"],\n [\"b\", 7]]", "line 2 column 8"),
            ("{\"hosts\":\n 3}", "line 2 column 2"),
            ("{\"backend\": \"jaccl\"}", "missing field `hosts`"),
            ("[\n  \"a\"]", "line 2 column 5"),
            ("[[null]] x", "line 1 column 10"),
        ] {
            let error = read(text).unwrap_err();
            assert!(matches!(error, LaunchError::DeviceFileSyntax { .. }), "{text}: {error}");
            let said = error.to_string();
            assert!(said.contains(place) && said.contains("devices.json") && !said.contains('\n'), "{text}: {said}");
        }
        let said = read("[[null, \"a\"],\n [\"b\", 7]]").unwrap_err().to_string();
        assert!(said.contains("null, a device's name or a list of names"), "{said}");
    }

    #[test]
    fn every_impossible_matrix_says_what_is_wrong() {
        for (text, part) in [
            ("[]", "0 ranks"),
            (r#"[[null, "a"]]"#, "row 0 has 2 cells for 1 ranks"),
            (r#"[[null, "a"], ["b"]]"#, "not square: row 1 has 1 cells for 2 ranks"),
            (r#"[["a", "b"], ["c", null]]"#, "names a for rank 0 itself"),
            (r#"[[null, null], ["c", null]]"#, "rank 1 is to reach rank 0 by c, and rank 0 has no cable to rank 1"),
            (r#"[[null, ["a", "b"]], ["c", null]]"#, "rank 0 has 2 cables to rank 1 (a, b), and rank 1 has 1 cable"),
            (r#"[[null, null], [[], null]]"#, "no cable leads from rank 0 to rank 1"),
            (r#"[[null, " "], ["c", null]]"#, "is empty"),
            (r#"[[null, ["a", "a"]], ["c", null]]"#, "names a twice"),
            (r#"[[null, "a"], {"rdma": ["b", null]}]"#, "another kind"),
            (r#"[{"ssh": "mac1"}]"#, "host 0 (mac1) has no \"rdma\""),
        ] {
            let said = read(text).unwrap_err().to_string();
            assert!(said.contains(part) && said.contains("devices.json") && !said.contains('\n'), "{text}: {said}");
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_named_with_its_variable() {
        let (folder, path) = file("[]");
        for path in [folder.path().join("nothing"), folder.path().to_owned()] {
            let said = Devices::read("MLX_IBV_DEVICES", &path).unwrap_err().to_string();
            assert!(said.contains("MLX_IBV_DEVICES") && said.contains(path.to_str().unwrap()), "{said}");
        }
        std::fs::File::options().write(true).open(&path).unwrap().set_len(LONGEST + 1).unwrap();
        assert!(Devices::read("MLX_IBV_DEVICES", &path).unwrap_err().to_string().contains("more than"));
    }

    /// Text that is nearly a file.
    fn nearly() -> impl Strategy<Value = String> {
        let word = prop::sample::select(vec![
            "[",
            "]",
            "{",
            "}",
            ",",
            ":",
            "null",
            "\"a\"",
            "\"rdma\"",
            "\"hosts\"",
            "\"ips\"",
            "\"ssh\"",
            "1",
            "\n",
            "true",
        ]);
        prop::collection::vec(word, 0..40).prop_map(|words| words.concat())
    }

    proptest! {
        #[test]
        fn no_file_is_too_strange(text in prop_oneof![nearly(), any::<String>()]) {
            if let Ok(file) = serde_json::from_str::<File>(&text)
                && let Ok(devices) = Devices::check(file)
            {
                for rank in 0..devices.size() {
                    prop_assert_eq!(devices.cables(rank).0.len(), devices.size() as usize);
                }
            }
        }

        #[test]
        fn every_matrix_comes_back(size in 1usize..6, seed in any::<u64>()) {
            let bit = |row: usize, column: usize| seed >> (row.min(column) * 6 + row.max(column)) & 1;
            let cell = |row: usize, column: usize| match (row == column, bit(row, column)) {
                (true, _) => serde_json::Value::Null,
                (false, 0) => format!("d{row}{column}").into(),
                (false, _) => vec![format!("d{row}{column}"), format!("e{row}{column}")].into(),
            };
            let rows: Vec<Vec<_>> = (0..size).map(|row| (0..size).map(|column| cell(row, column)).collect()).collect();
            let file = serde_json::from_str::<File>(&serde_json::to_string(&rows).unwrap()).unwrap();
            let devices = Devices::check(file).unwrap();
            prop_assert_eq!(devices.size() as usize, size);
            for (row, column) in (0..size).flat_map(|row| (0..size).map(move |column| (row, column))) {
                let first = devices.cables(row as u32).0[column].first().cloned();
                prop_assert_eq!(first, (row != column).then(|| format!("d{row}{column}")));
            }
        }
    }
}
