//! The simulator: the real store, journal, cache and file system on a simulated machine, driven by
//! one seed.
//!
//! A seed is a [`plan::Plan`]: a device, what tasks do on the volume, what fails, and how each life
//! ends. [`run::run`] carries it out in one thread, with a clock and random numbers of its own
//! (`adit_base::simulation`), so that it is the same each time. Before requests to the device it
//! notes what a crash would find there; each of these crash states is recovered (some of these
//! recoveries are cut short themselves) and judged by the [`oracle`], which knows the durability
//! contract and nothing of the code.
//!
//! | module | what |
//! |---|---|
//! | [`op`], [`workload`], [`plan`] | what happens |
//! | [`machine`], [`ground`] | where |
//! | [`run`], `perform` | carrying it out |
//! | [`model`], [`namespace`], [`observe`], [`oracle`] | what may be there afterwards |
//! | [`rot`] | what a device changes by itself |
//! | [`sessions`] | clients and servers that die, on volumes as above |
//! | [`small`] | all short sequences, instead of random ones |
//! | [`shrink`] | making a failure short |
//!
//! Docs: docs/inside/testing.md.

pub mod environment;
pub mod ground;
pub mod machine;
pub mod model;
pub mod namespace;
pub mod observe;
pub mod op;
pub mod oracle;
mod perform;
pub mod plan;
pub mod rot;
pub mod run;
pub mod sessions;
pub mod shrink;
pub mod small;
pub mod workload;
