//! libFuzzer, for what a dead process left in memory: `adit_fuzz::salvage`.

#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| adit_fuzz::salvage(data));
