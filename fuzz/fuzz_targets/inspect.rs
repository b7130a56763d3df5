//! libFuzzer, for messages of the live inspection: `adit_fuzz::inspect`.

#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| adit_fuzz::inspect(data));
