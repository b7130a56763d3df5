//! libFuzzer, for the file system beside a model: `adit_fuzz::operations`.

#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| adit_fuzz::operations(data));
