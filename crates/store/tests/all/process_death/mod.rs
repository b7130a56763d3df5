//! A process dies, the machine doesn't: acknowledged writes survive SIGKILL, on the same boot.
//!
//! | file | what |
//! |---|---|
//! | `kills.rs` | processes that the kernel kills, anywhere |
//! | `requests.rs` | deaths before each request to the device, of a workload and of a takeover |
//! | `mappings.rs` | files in `/dev/shm` that are old, foreign, damaged or no mappings at all |
//! | `scenes.rs` | the image was copied, put back, moved, is reached in another way, or looked at |
//! | `elsewhere.rs` | the next opening has another directory for its memory |
//! | `receipts.rs` | operations learn their numbers, the next opening the dead process's progress |
//! | `moment.rs`, `child.rs`, `world.rs` | a death as a value, a process to be killed, the model |
//!
//! `ADIT_KILLS=1000` kills that many processes, `ADIT_SEED=7` chooses their operations.

mod child;
mod elsewhere;
mod kills;
mod mappings;
mod moment;
mod receipts;
mod requests;
mod scenes;
mod world;

pub(crate) use child::file_options;

#[test]
#[ignore = "is what the tests start and kill"]
fn the_other_process() {
    child::run();
}
