//! A LinkBench-like mix: ten kinds of operations on a social graph (Armstrong et al., SIGMOD 2013; docs/transaction-mixes.md).
//!
//! Place in the data flow: [`LinkBench::prepare`] makes and loads a graph, [`LinkBench::run`] runs the connections,
//! [`LinkBench::check`] compares links, their index and their counts.
//!
//! Invariants: the graph at the beginning is a function of seed and node, so requests know the initial links without
//! reading them. A node's links lead to the nodes after it, as in LinkBench.
//!
//! Deliberately absent: LinkBench's own table of out-degrees (a power law replaces it), and accesses that prefer nodes
//! with many links (0.5 % of its reads and 5 % of its writes).

mod graph;
mod operations;
mod tables;

#[cfg(test)]
mod tests;

use super::connections;
use super::{OltpError, RunOptions, check_common, database, in_range};
use crate::fio::distribution::{Permutation, ZipfRanks};
use flashweir_core::RandomStream;
use flashweir_core::executor::Handle;
use flashweir_db::{Config, Db};
use flashweir_fs::vfs::{Fs, Process};
use flashweir_sim::measure::WorkloadResult;
use graph::Graph;
use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use tables::Tables;

/// Options of the mix.
#[derive(Clone, Debug)]
pub struct LinkBenchOptions {
    /// Number of nodes of the graph; a million take about 1 GB.
    pub nodes: u64,
    /// Options of the run.
    pub run: RunOptions,
    /// Configuration of the database.
    pub db: Config,
}

impl LinkBenchOptions {
    /// Makes options with this number of nodes, the engine's defaults, and 16 connections for a minute.
    pub fn new(name: &str, seed: u64, nodes: u64) -> Self {
        Self { nodes, run: RunOptions::new(name, seed), db: Config::default() }
    }

    /// Checks the bounds of all options.
    ///
    /// # Errors
    /// The first option that is out of its range.
    pub fn check(&self) -> Result<(), OltpError> {
        in_range("nodes", self.nodes, 100, 1 << 32)?;
        check_common(&self.run, &self.db)
    }
}

/// Draws the requested nodes by Zipf's law, with the likely ones scattered over all.
#[derive(Debug)]
struct Likely {
    ranks: ZipfRanks,
    order: Permutation,
}

impl Likely {
    fn new(nodes: u64, theta: f64, seed: u64, name: &str) -> Self {
        let key = RandomStream::new(seed, &format!("linkbench.{name}")).next_u64();
        Self { ranks: ZipfRanks::new(nodes, theta), order: Permutation::new(nodes, key) }
    }

    fn next(&self, stream: &mut RandomStream) -> u64 {
        self.order.at(self.ranks.next(stream) - 1)
    }
}

/// A database with the graph.
pub struct LinkBench<F: Fs> {
    shared: Rc<Shared<F>>,
    handle: Handle,
}

impl<F: Fs> fmt::Debug for LinkBench<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinkBench").field("options", &self.shared.options).finish_non_exhaustive()
    }
}

struct Shared<F: Fs> {
    db: Db<F>,
    tables: Tables,
    options: LinkBenchOptions,
    graph: Graph,
    handle: Handle,
    links_read: Likely,
    links_written: Likely,
    nodes_read: Likely,
    nodes_updated: Likely,
    /// Number of the next node.
    next_node: Cell<u64>,
}

impl<F: Fs> LinkBench<F> {
    /// Makes a database in the existing directory `dir` and loads the graph. It is durable when this returns.
    ///
    /// # Errors
    /// An option out of its range; the database failed.
    pub async fn prepare(
        process: &Process<F>,
        handle: Handle,
        dir: &str,
        options: LinkBenchOptions,
    ) -> Result<Self, OltpError> {
        options.check()?;
        let failed = |error| OltpError::Db { during: "loading", error };
        let db = Db::create(process, handle.clone(), dir, database(&options.run, &options.db))
            .await
            .map_err(failed)?;
        let tables = Tables::make(&db).await.map_err(failed)?;
        let graph = Graph::new(options.run.seed, options.nodes, &options.db);
        graph.load(&db, &tables).await.map_err(failed)?;
        db.flush().await.map_err(failed)?;
        let next_node = options.nodes;
        Ok(Self::of(db, tables, graph, handle, options, next_node))
    }

    /// Attaches the mix to a database that has its graph, such as one that was opened after a power cut. Seed and nodes
    /// must be those that it was loaded with.
    ///
    /// # Errors
    /// A missing table; the database failed.
    pub async fn attach(db: Db<F>, handle: Handle, options: LinkBenchOptions) -> Result<Self, OltpError> {
        options.check()?;
        let failed = |error| OltpError::Db { during: "attaching", error };
        let tables = Tables::of(&db).map_err(failed)?;
        let graph = Graph::new(options.run.seed, options.nodes, &options.db);
        let (mut low, mut high) = (options.nodes, u64::MAX);
        while low < high {
            let middle = low + (high - low) / 2;
            let behind = db.scan(tables.node, &graph::node_key(middle), None, 1).await.map_err(failed)?;
            if behind.is_empty() { high = middle } else { low = middle + 1 }
        }
        Ok(Self::of(db, tables, graph, handle, options, low))
    }

    fn of(
        db: Db<F>,
        tables: Tables,
        graph: Graph,
        handle: Handle,
        options: LinkBenchOptions,
        next_node: u64,
    ) -> Self {
        let (nodes, seed) = (options.nodes, options.run.seed);
        let likely = |theta, name| Likely::new(nodes, theta, seed, name);
        let shared = Shared {
            db,
            tables,
            graph,
            handle: handle.clone(),
            links_read: likely(0.8, "links"),
            links_written: likely(0.741, "links"),
            nodes_read: likely(0.625, "nodes"),
            nodes_updated: likely(0.606, "nodes"),
            next_node: Cell::new(next_node),
            options,
        };
        Self { shared: Rc::new(shared), handle }
    }

    /// Returns the database.
    pub fn db(&self) -> &Db<F> {
        &self.shared.db
    }

    /// Runs the connections until the time is over. It can be called repeatedly.
    ///
    /// # Errors
    /// The database failed.
    pub async fn run(&self) -> Result<WorkloadResult, OltpError> {
        connections::run(Rc::clone(&self.shared), self.handle.clone(), &self.shared.options.run).await
    }

    /// Returns the contradictions between links, their index and their counts; no transaction may run meanwhile.
    ///
    /// # Errors
    /// The database failed.
    pub async fn check(&self) -> Result<Vec<String>, OltpError> {
        let checked = graph::check(&self.shared.db, &self.shared.tables).await;
        checked.map_err(|error| OltpError::Db { during: "checking", error })
    }
}
