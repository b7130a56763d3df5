//! libFuzzer, for a hostile session with a server: `adit_fuzz::session`.

#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| adit_fuzz::session(data));
