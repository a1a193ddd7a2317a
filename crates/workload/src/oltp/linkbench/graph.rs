//! The graph at the beginning, its rows and keys, and the conditions that must hold between the tables.

use super::tables::Tables;
use crate::fio::distribution::ZipfRanks;
use crate::oltp::each;
use flashweir_core::RandomStream;
use flashweir_core::random::mix;
use flashweir_db::{Config, Db, Result};
use flashweir_fs::vfs::Fs;
use std::collections::BTreeMap;

/// Number of types of links.
pub(super) const TYPES: u8 = 2;

/// Exponent of the power law of out-degrees plus one, and the largest value; the mean is 5 links per node.
const DEGREE_THETA: f64 = 1.9;
const DEGREES: u64 = 1000;

/// Median payload of a link and of a node, in bytes. Lengths follow a log-normal distribution with a deviation of 1, as
/// in LinkBench.
const LINK_MEDIAN: f64 = 8.0;
const NODE_MEDIAN: f64 = 128.0;

/// Longest payload of a link, and of a node with pages of 16 KiB, in bytes.
const LINK_BYTES_MAX: usize = 255;
const NODE_BYTES_MAX: usize = 2048;

/// Timestamp of everything that exists at the beginning.
const LOADED: u64 = 1;

/// A link between two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Link {
    pub(super) id1: u64,
    pub(super) kind: u8,
    pub(super) id2: u64,
}

/// Attributes of a link apart from its ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LinkRow {
    pub(super) visible: bool,
    pub(super) time: u64,
    pub(super) version: u32,
    pub(super) data: Vec<u8>,
}

pub(super) fn node_key(id: u64) -> [u8; 8] {
    id.to_be_bytes()
}

impl Link {
    /// Returns the key of type and both ends: LinkBench's primary key.
    pub(super) fn key(self) -> Vec<u8> {
        [&[self.kind][..], &self.id1.to_be_bytes(), &self.id2.to_be_bytes()].concat()
    }

    fn of(key: &[u8]) -> Self {
        let id = |at: usize| u64::from_be_bytes(std::array::from_fn(|i| key[at + i]));
        Self { kind: key[0], id1: id(1), id2: id(9) }
    }

    /// Returns the key at which the node's visible links of one type begin, from those of `time` on; older ones follow.
    pub(super) fn list(id1: u64, kind: u8, time: u64) -> Vec<u8> {
        [&id1.to_be_bytes()[..], &[kind, 0], &(!time).to_be_bytes()].concat()
    }

    /// Returns the key after the node's visible links of one type.
    pub(super) fn list_end(id1: u64, kind: u8) -> Vec<u8> {
        [&id1.to_be_bytes()[..], &[kind, 1]].concat()
    }

    pub(super) fn index_key(self, row: &LinkRow) -> Vec<u8> {
        let mut key = self.id1.to_be_bytes().to_vec();
        key.extend_from_slice(&[self.kind, u8::from(!row.visible)]);
        key.extend_from_slice(&(!row.time).to_be_bytes());
        key.extend_from_slice(&self.id2.to_be_bytes());
        key
    }

    pub(super) fn count_key(self) -> Vec<u8> {
        [&self.id1.to_be_bytes()[..], &[self.kind]].concat()
    }
}

impl LinkRow {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut row = vec![u8::from(self.visible)];
        row.extend_from_slice(&self.time.to_le_bytes());
        row.extend_from_slice(&self.index_value());
        row
    }

    /// Returns the value of the index entry: version and data.
    pub(super) fn index_value(&self) -> Vec<u8> {
        [&self.version.to_le_bytes()[..], &self.data].concat()
    }

    pub(super) fn decode(row: &[u8]) -> Self {
        Self {
            visible: row[0] == 1,
            time: u64::from_le_bytes(std::array::from_fn(|i| row[1 + i])),
            version: u32::from_le_bytes(std::array::from_fn(|i| row[9 + i])),
            data: row[13..].to_vec(),
        }
    }
}

/// Encodes a row of counts: count, time, version.
pub(super) fn count_row(count: i64, time: u64, version: u32) -> Vec<u8> {
    [&count.to_le_bytes()[..], &time.to_le_bytes(), &version.to_le_bytes()].concat()
}

/// Decodes count and version of such a row.
pub(super) fn count_of(row: &[u8]) -> (i64, u32) {
    let count = i64::from_le_bytes(std::array::from_fn(|i| row[i]));
    (count, u32::from_le_bytes(std::array::from_fn(|i| row[16 + i])))
}

/// Encodes a row of a node: type, version, time, data.
pub(super) fn node_row(version: u64, time: u64, data: &[u8]) -> Vec<u8> {
    [&2048u32.to_le_bytes()[..], &version.to_le_bytes(), &time.to_le_bytes(), data].concat()
}

/// Decodes the version of such a row.
pub(super) fn node_version(row: &[u8]) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| row[4 + i]))
}

/// Definition of the graph at the beginning.
#[derive(Debug)]
pub(super) struct Graph {
    seed: u64,
    nodes: u64,
    degrees: ZipfRanks,
    node_bytes_max: usize,
}

impl Graph {
    pub(super) fn new(seed: u64, nodes: u64, config: &Config) -> Self {
        let degrees = ZipfRanks::new(DEGREES.min(nodes), DEGREE_THETA);
        // A row must fit into a quarter of a page.
        let node_bytes_max = NODE_BYTES_MAX.min(config.page_bytes as usize / 8);
        Self { seed: mix(seed), nodes, degrees, node_bytes_max }
    }

    fn stream(&self, id: u64) -> RandomStream {
        RandomStream::new(self.seed ^ mix(id), "linkbench.node")
    }

    /// Returns the number of links that a node has at the beginning. Link `n` has type `n % 2` and leads to node `id +
    /// 1 + n`.
    pub(super) fn degree(&self, id: u64) -> u64 {
        self.degrees.next(&mut self.stream(id)) - 1
    }

    pub(super) fn link(&self, id1: u64, number: u64) -> Link {
        let id2 = (id1 + 1 + number) % self.nodes;
        Link { id1, kind: (number % u64::from(TYPES)) as u8, id2 }
    }

    /// Draws the data of a link.
    pub(super) fn link_data(&self, stream: &mut RandomStream) -> Vec<u8> {
        payload(stream, LINK_MEDIAN, LINK_BYTES_MAX)
    }

    /// Draws the data of a node.
    pub(super) fn node_data(&self, stream: &mut RandomStream) -> Vec<u8> {
        payload(stream, NODE_MEDIAN, self.node_bytes_max)
    }

    /// Returns the links of a node with their rows, in no particular order.
    fn links(&self, id1: u64) -> Vec<(Link, LinkRow)> {
        let mut stream = self.stream(id1);
        let degree = self.degrees.next(&mut stream) - 1;
        let row = |number| {
            let data = self.link_data(&mut stream);
            (self.link(id1, number), LinkRow { visible: true, time: LOADED, version: 0, data })
        };
        (0..degree).map(row).collect()
    }

    /// Loads all tables.
    pub(super) async fn load<F: Fs>(&self, db: &Db<F>, tables: &Tables) -> Result<()> {
        let mut nodes = db.load(tables.node).await?;
        let mut stream = RandomStream::new(self.seed, "linkbench.nodes");
        for id in 0..self.nodes {
            let data = self.node_data(&mut stream);
            nodes.add(&node_key(id), &node_row(0, LOADED, &data)).await?;
        }
        nodes.finish().await?;
        let mut rows = db.load(tables.link).await?;
        for kind in 0..TYPES {
            for id1 in 0..self.nodes {
                let mut links = self.links(id1);
                links.retain(|(link, _)| link.kind == kind);
                links.sort_unstable_by_key(|(link, _)| *link);
                for (link, row) in links {
                    rows.add(&link.key(), &row.encode()).await?;
                }
            }
        }
        rows.finish().await?;
        let mut index = db.load(tables.link_index).await?;
        let mut counts = db.load(tables.count).await?;
        for id1 in 0..self.nodes {
            let links = self.links(id1);
            let mut keys: Vec<(Vec<u8>, Vec<u8>)> =
                links.iter().map(|(link, row)| (link.index_key(row), row.index_value())).collect();
            keys.sort_unstable();
            for (key, value) in keys {
                index.add(&key, &value).await?;
            }
            for kind in 0..TYPES {
                let count = links.iter().filter(|(link, _)| link.kind == kind).count() as i64;
                let key = Link { id1, kind, id2: 0 }.count_key();
                if count > 0 {
                    counts.add(&key, &count_row(count, LOADED, 0)).await?;
                }
            }
        }
        index.finish().await?;
        counts.finish().await.map(drop)
    }
}

/// Draws bytes whose number is log-normal around its median.
fn payload(stream: &mut RandomStream, median: f64, bytes_max: usize) -> Vec<u8> {
    // The sum of twelve uniform numbers has a variance of one and a mean of six.
    let normal = (0..12).map(|_| stream.unit()).sum::<f64>() - 6.0;
    let len = ((median * normal.exp()).round() as usize).min(bytes_max);
    let mut data = vec![0; len];
    for chunk in data.chunks_mut(8) {
        chunk.copy_from_slice(&stream.next_u64().to_le_bytes()[..chunk.len()]);
    }
    data
}

/// Returns the contradictions between the tables.
pub(super) async fn check<F: Fs>(db: &Db<F>, tables: &Tables) -> Result<Vec<String>> {
    let mut visible: BTreeMap<Vec<u8>, i64> = BTreeMap::new();
    let mut wanted: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    each(db, tables.link, |(key, row)| {
        let (link, row) = (Link::of(key), LinkRow::decode(row));
        *visible.entry(link.count_key()).or_default() += i64::from(row.visible);
        wanted.insert(link.index_key(&row), row.index_value());
    })
    .await?;
    let mut faults = Vec::new();
    each(db, tables.link_index, |(key, value)| {
        if wanted.remove(key).as_ref() != Some(value) {
            faults.push(format!("the index has {key:02x?}, which is no link, or another one"));
        }
    })
    .await?;
    faults.extend(wanted.keys().map(|key| format!("the index lacks {key:02x?}")));
    each(db, tables.count, |(key, row)| {
        let (count, links) = (count_of(row).0, visible.remove(key).unwrap_or(0));
        if count != links {
            faults.push(format!("{key:02x?} counts {count} links and has {links}"));
        }
    })
    .await?;
    let uncounted = visible.into_iter().filter(|(_, links)| *links != 0);
    faults.extend(uncounted.map(|(key, links)| format!("{key:02x?} has {links} links and no count")));
    Ok(faults)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_graph_has_five_links_a_node_and_its_medians() {
        let graph = Graph::new(1, 50_000, &Config::default());
        let degrees: Vec<u64> = (0..50_000).map(|id| graph.degree(id)).collect();
        let mean = degrees.iter().sum::<u64>() as f64 / 50_000.0;
        assert!((4.5..5.5).contains(&mean), "{mean}");
        assert!(degrees.iter().max().unwrap() > &500);
        for id in 0..100 {
            assert_eq!(graph.links(id).len() as u64, graph.degree(id));
        }
        let mut stream = RandomStream::new(1, "payload");
        for (median, max) in [(LINK_MEDIAN, LINK_BYTES_MAX), (NODE_MEDIAN, NODE_BYTES_MAX)] {
            let mut lens: Vec<usize> = (0..20_001).map(|_| payload(&mut stream, median, max).len()).collect();
            lens.sort_unstable();
            let ratio = lens[10_000] as f64 / median;
            assert!((0.93..1.07).contains(&ratio), "{ratio}");
            assert!(lens[20_000] <= max && lens[0] < lens[10_000]);
        }
    }

    #[test]
    fn rows_and_keys_go_there_and_back() {
        let link = Link { id1: 7, kind: 1, id2: 1 << 40 };
        assert_eq!(Link::of(&link.key()), link);
        let row = LinkRow { visible: true, time: 99, version: 3, data: b"data".to_vec() };
        assert_eq!(LinkRow::decode(&row.encode()), row);
        let newer = LinkRow { time: 100, ..row.clone() };
        assert!(link.index_key(&newer) < link.index_key(&row), "the newest comes first");
        assert!(Link::list(7, 1, u64::MAX) < link.index_key(&newer));
        assert!(link.index_key(&row) < Link::list_end(7, 1));
        let hidden = LinkRow { visible: false, ..row };
        assert!(link.index_key(&hidden) > Link::list_end(7, 1));
        assert_eq!(count_of(&count_row(-5, 9, 7)), (-5, 7));
        assert_eq!(node_version(&node_row(8, 1, b"x")), 8);
    }
}
