//! A worker's executor: who drives it, its local tasks, device completions and timers.
