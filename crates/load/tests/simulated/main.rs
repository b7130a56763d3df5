//! The policy against a simulated server: claims about throughput, pollers, moves and nonsense.
//!
//! `machine.rs` simulates pollers, sessions and the owner, event by event. It shares no code and no
//! formula with the policy, whose predictions would otherwise judge themselves. `scene.rs` runs a
//! policy on it. `judge.rs` says how fast the best static placement is, and whether a run is good.
//! `broken.rs` has policies that the judge must reject.
//!
//! A test prints its measurements: `cargo test -p adit-load -- --nocapture --test-threads=1`.

mod balance;
mod broken;
mod campaign;
mod cores;
mod hostile;
mod judge;
mod machine;
mod random;
mod scale;
mod scene;
mod steady;
mod workloads;
