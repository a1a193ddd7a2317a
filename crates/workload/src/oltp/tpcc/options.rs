//! What the caller of the mix decides.

use crate::oltp::{OltpError, RunOptions, check_common, in_range};
use flashweir_db::Config;

/// How many rows there are. The default is that of the standard; smaller ones are for tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// Warehouses.
    pub warehouses: u16,
    /// Items, and stock rows of each warehouse.
    pub items: u32,
    /// Customers, and orders at the beginning, of each of the ten districts of a warehouse.
    pub customers: u16,
}

impl Scale {
    /// The standard's tables for so many warehouses; each has about 100 MB.
    pub const fn of_warehouses(warehouses: u16) -> Self {
        Self { warehouses, items: 100_000, customers: 3000 }
    }

    pub(super) fn validate(&self) -> Result<(), OltpError> {
        in_range("warehouses", self.warehouses.into(), 1, 60_000)?;
        in_range("items", self.items.into(), 20, 100_000)?;
        in_range("customers", self.customers.into(), 10, 3000)
    }
}

/// What the caller of the mix decides.
#[derive(Clone, Debug)]
pub struct TpccOptions {
    /// Rows.
    pub scale: Scale,
    /// The run.
    pub run: RunOptions,
    /// The database.
    pub db: Config,
}

impl TpccOptions {
    /// So many warehouses, the engine's defaults, 16 connections for a minute.
    pub fn new(name: &str, seed: u64, warehouses: u16) -> Self {
        Self {
            scale: Scale::of_warehouses(warehouses),
            run: RunOptions::new(name, seed),
            db: Config::default(),
        }
    }

    /// Checks the bounds of everything.
    ///
    /// # Errors
    /// The first option that is out of its range.
    pub fn check(&self) -> Result<(), OltpError> {
        self.scale.validate()?;
        check_common(&self.run, &self.db)
    }
}
