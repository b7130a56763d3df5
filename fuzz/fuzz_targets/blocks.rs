//! libFuzzer, for decoders of single blocks: `adit_fuzz::blocks`.

#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| adit_fuzz::blocks(data));
