//! Options of an engine.

/// How an engine is set up.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Requests in the device's queue at most; others wait in the worker.
    pub queue_depth: u32,
    /// Whether there is a keeper. Without one, work that no caller waits for advances only while
    /// callers drive.
    pub keeper: bool,
    /// The volume's name in messages: the address it was opened by.
    pub name: String,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            queue_depth: 128,
            keeper: true,
            name: "adit".into(),
        }
    }
}
