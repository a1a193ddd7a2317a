//! The ten kinds of operations.

use super::Shared;
use super::graph::{Link, LinkRow, TYPES, count_of, count_row, node_key, node_row, node_version};
use crate::oltp::connections::{self, Mix};
use flashweir_core::{Instant, RandomStream};
use flashweir_db::{DbError, Result, Transaction};
use flashweir_fs::vfs::Fs;

/// Shares of the operations in millionths, from LinkBench's own configuration, in the order of [`KINDS`].
const SHARES: [u64; 10] = [507_119, 129_327, 89_887, 80_122, 73_664, 48_864, 29_908, 25_733, 10_116, 5_260];

/// Maximum number of links in one answer.
const LIST_MAX: usize = 10_000;

/// Number of links of one `get_link`: each further one is requested with the probability of this value's complement, up
/// to a maximum.
const MULTIGET_P: f64 = 0.382;
const MULTIGET_MAX: u64 = 128;

/// Input of an operation.
#[derive(Clone, Debug)]
pub(super) enum Input {
    GetLinkList {
        id1: u64,
        kind: u8,
        older: bool,
    },
    GetNode {
        id: u64,
    },
    /// Adds a link, or changes it.
    PutLink {
        link: Link,
        data: Vec<u8>,
    },
    UpdateNode {
        id: u64,
        data: Vec<u8>,
    },
    CountLinks {
        id1: u64,
        kind: u8,
    },
    DeleteLink {
        link: Link,
    },
    AddNode {
        data: Vec<u8>,
    },
    DeleteNode {
        id: u64,
    },
    GetLink {
        links: Vec<Link>,
    },
}

impl<F: Fs> Shared<F> {
    /// Returns a link that node `id1` had at the beginning, or one that it may not have if it had none.
    fn known_link(&self, stream: &mut RandomStream, id1: u64) -> Link {
        let degree = self.graph.degree(id1).max(1);
        self.graph.link(id1, stream.below(degree))
    }

    /// Returns a link to any node.
    fn any_link(&self, stream: &mut RandomStream, id1: u64) -> Link {
        let id2 = stream.below(self.options.nodes);
        Link { id1, kind: stream.below(TYPES.into()) as u8, id2 }
    }
}

const KINDS: [&str; 10] = [
    "get_link_list",
    "get_node",
    "add_link",
    "update_link",
    "update_node",
    "count_links",
    "delete_link",
    "add_node",
    "delete_node",
    "get_link",
];

impl<F: Fs> Mix for Shared<F> {
    type Input = Input;

    fn kinds(&self) -> &'static [&'static str] {
        &KINDS
    }

    fn draw(&self, stream: &mut RandomStream, _: u32) -> (usize, Input) {
        let mut rest = stream.below(SHARES.iter().sum());
        let mut kind = 0;
        while rest >= SHARES[kind] {
            rest -= SHARES[kind];
            kind += 1;
        }
        let read = self.links_read.next(stream);
        let link_kind = stream.below(TYPES.into()) as u8;
        let input = match KINDS[kind] {
            "get_link_list" => Input::GetLinkList { id1: read, kind: link_kind, older: stream.chance(0.003) },
            "get_node" => Input::GetNode { id: self.nodes_read.next(stream) },
            "add_link" => {
                let id1 = self.links_written.next(stream);
                Input::PutLink { link: self.any_link(stream, id1), data: self.graph.link_data(stream) }
            }
            "update_link" => {
                let id1 = self.links_written.next(stream);
                Input::PutLink { link: self.known_link(stream, id1), data: self.graph.link_data(stream) }
            }
            "update_node" => {
                Input::UpdateNode { id: self.nodes_updated.next(stream), data: self.graph.node_data(stream) }
            }
            "count_links" => Input::CountLinks { id1: read, kind: link_kind },
            "delete_link" => {
                let id1 = self.links_written.next(stream);
                Input::DeleteLink { link: self.known_link(stream, id1) }
            }
            "add_node" => Input::AddNode { data: self.graph.node_data(stream) },
            "delete_node" => Input::DeleteNode { id: stream.below(self.options.nodes) },
            _ => {
                let mut links = vec![self.known_link(stream, read)];
                while (links.len() as u64) < MULTIGET_MAX && stream.chance(1.0 - MULTIGET_P) {
                    links.push(self.known_link(stream, read));
                }
                Input::GetLink { links }
            }
        };
        (kind, input)
    }

    async fn perform(&self, input: &Input) -> Result<Option<Instant>> {
        let mut trx = self.db.begin().await?;
        let done = self.operate(&mut trx, input).await.map(|()| true);
        connections::end(trx, done, &self.handle).await
    }
}

impl<F: Fs> Shared<F> {
    fn now(&self) -> u64 {
        // Everything that exists at the beginning has time 1.
        2 + self.handle.now().since(Instant::ZERO).as_nanos()
    }

    async fn operate(&self, trx: &mut Transaction<F>, input: &Input) -> Result<()> {
        let tables = &self.tables;
        match input {
            Input::GetLinkList { id1, kind, older } => {
                // Older links are those from before the middle of the elapsed time.
                let time = if *older { self.now() / 2 } else { u64::MAX };
                let (from, end) = (Link::list(*id1, *kind, time), Link::list_end(*id1, *kind));
                trx.scan(tables.link_index, &from, Some(&end), LIST_MAX).await.map(drop)
            }
            Input::GetNode { id } => trx.get(tables.node, &node_key(*id)).await.map(drop),
            Input::PutLink { link, data } => self.put_link(trx, *link, data).await,
            Input::UpdateNode { id, data } => {
                let key = node_key(*id);
                let Some(old) = trx.lock(tables.node, &key).await? else { return Ok(()) };
                let row = node_row(node_version(&old) + 1, self.now(), data);
                trx.update(tables.node, &key, &row).await
            }
            Input::CountLinks { id1, kind } => {
                let key = Link { id1: *id1, kind: *kind, id2: 0 }.count_key();
                trx.get(tables.count, &key).await.map(drop)
            }
            Input::DeleteLink { link } => self.hide_link(trx, *link).await,
            Input::AddNode { data } => {
                let id = self.next_node.get();
                self.next_node.set(id + 1);
                trx.insert(tables.node, &node_key(id), &node_row(0, self.now(), data)).await
            }
            Input::DeleteNode { id } => match trx.lock(tables.node, &node_key(*id)).await? {
                Some(_) => trx.delete(tables.node, &node_key(*id)).await,
                None => Ok(()),
            },
            Input::GetLink { links } => {
                for link in links {
                    trx.get(tables.link, &link.key()).await?;
                }
                Ok(())
            }
        }
    }

    /// Adds a link, or changes an existing one; a hidden one becomes visible.
    async fn put_link(&self, trx: &mut Transaction<F>, link: Link, data: &[u8]) -> Result<()> {
        let old = trx.lock(self.tables.link, &link.key()).await?.map(|row| LinkRow::decode(&row));
        let version = old.as_ref().map_or(0, |old| old.version + 1);
        let new = LinkRow { visible: true, time: self.now(), version, data: data.to_vec() };
        let was_visible = old.as_ref().is_some_and(|old| old.visible);
        self.change_link(trx, link, old, &new).await?;
        if was_visible { Ok(()) } else { self.count(trx, link, 1).await }
    }

    /// Hides an existing, visible link.
    async fn hide_link(&self, trx: &mut Transaction<F>, link: Link) -> Result<()> {
        let old = trx.lock(self.tables.link, &link.key()).await?.map(|row| LinkRow::decode(&row));
        let Some(old) = old.filter(|old| old.visible) else { return Ok(()) };
        let new = LinkRow { visible: false, ..old.clone() };
        self.change_link(trx, link, Some(old), &new).await?;
        self.count(trx, link, -1).await
    }

    /// Writes a link and its entry in the index.
    async fn change_link(
        &self,
        trx: &mut Transaction<F>,
        link: Link,
        old: Option<LinkRow>,
        new: &LinkRow,
    ) -> Result<()> {
        let tables = &self.tables;
        match old {
            None => trx.insert(tables.link, &link.key(), &new.encode()).await?,
            Some(old) => {
                trx.update(tables.link, &link.key(), &new.encode()).await?;
                trx.delete(tables.link_index, &link.index_key(&old)).await?;
            }
        }
        trx.insert(tables.link_index, &link.index_key(new), &new.index_value()).await
    }

    /// Changes the number of links of a node by `more`.
    async fn count(&self, trx: &mut Transaction<F>, link: Link, more: i64) -> Result<()> {
        let (tree, key) = (self.tables.count, link.count_key());
        match trx.lock(tree, &key).await? {
            Some(row) => {
                let (count, version) = count_of(&row);
                trx.update(tree, &key, &count_row(count + more, self.now(), version + 1)).await
            }
            None if more > 0 => trx.insert(tree, &key, &count_row(more, self.now(), 0)).await,
            None => Err(DbError::NotFound),
        }
    }
}
