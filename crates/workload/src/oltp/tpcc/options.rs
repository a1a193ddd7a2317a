//! Options of the mix.

use crate::oltp::{OltpError, RunOptions, check_common, in_range};
use flashweir_db::Config;

/// Number of rows. The default is that of the standard; smaller ones are for tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// Number of warehouses.
    pub warehouses: u16,
    /// Number of items, and of stock rows of each warehouse.
    pub items: u32,
    /// Number of customers, and of initial orders, of each of the ten districts of a warehouse.
    pub customers: u16,
}

impl Scale {
    /// Returns the standard's scale for this number of warehouses; each has about 100 MB.
    pub const fn of_warehouses(warehouses: u16) -> Self {
        Self { warehouses, items: 100_000, customers: 3000 }
    }

    pub(super) fn validate(&self) -> Result<(), OltpError> {
        in_range("warehouses", self.warehouses.into(), 1, 60_000)?;
        in_range("items", self.items.into(), 20, 100_000)?;
        in_range("customers", self.customers.into(), 10, 3000)
    }
}

/// Options of the mix.
#[derive(Clone, Debug)]
pub struct TpccOptions {
    /// Number of rows.
    pub scale: Scale,
    /// Options of the run.
    pub run: RunOptions,
    /// Configuration of the database.
    pub db: Config,
}

impl TpccOptions {
    /// Makes options with this number of warehouses, the engine's defaults, and 16 connections for a minute.
    pub fn new(name: &str, seed: u64, warehouses: u16) -> Self {
        Self {
            scale: Scale::of_warehouses(warehouses),
            run: RunOptions::new(name, seed),
            db: Config::default(),
        }
    }

    /// Checks the bounds of all options.
    ///
    /// # Errors
    /// The first option that is out of its range.
    pub fn check(&self) -> Result<(), OltpError> {
        self.scale.validate()?;
        check_common(&self.run, &self.db)
    }
}
