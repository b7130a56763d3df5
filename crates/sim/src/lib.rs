//! The simulator: the real store, journal, cache and file system on a simulated machine, driven by
//! one seed.
//!
//! A seed is a [`plan::Plan`]: a device, the operations of tasks on the volume, failures, and the
//! end of each life. [`run::run`] carries it out in one thread, with a clock and random numbers of
//! its own (`adit_base::simulation`), so that it is the same each time. Before requests to the
//! device it notes the state that a crash would leave; it recovers each of these crash states (and
//! cuts some of these recoveries short) and the [`oracle`] judges it, by the durability contract
//! and without knowledge of the code.
//!
//! | module | what |
//! |---|---|
//! | [`op`], [`workload`], [`plan`] | operations and failures |
//! | [`machine`], [`ground`] | the machine and its volumes |
//! | [`run`], `perform` | the execution |
//! | [`model`], [`namespace`], [`observe`], [`oracle`] | the states allowed afterwards |
//! | [`rot`] | changes that a device makes by itself |
//! | [`sessions`] | clients and servers that die, on these volumes |
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
