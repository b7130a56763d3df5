//! Benchmarks against the kernel's file systems and the raw device.
