#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| pathbox_fuzz::guard_texts(bytes));
