//! libFuzzer, for mutated volumes: `adit_fuzz::image`.

#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| adit_fuzz::image(data));
