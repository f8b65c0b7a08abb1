//! The masks of [`super::classes`] with AVX2, where the machine has it.
//!
//! The second of two files that may hold `unsafe` code (the other is `host/jail/sys.rs`): a call of a function that
//! needs AVX2, after the check that AVX2 is there, and the loads. `docs/adr/0003-guard-simd.md` has the figures.
#![cfg(target_arch = "x86_64")]
#![expect(unsafe_code, reason = "vector loads and the call behind feature detection have no safe form yet")]

use std::arch::x86_64::{
    __m256i, _mm256_andnot_si256, _mm256_cmpeq_epi8, _mm256_cmpgt_epi8, _mm256_loadu_si256,
    _mm256_movemask_epi8, _mm256_or_si256, _mm256_set1_epi8,
};

use super::classes::{Block, Work};

/// 64 bytes.
type Halves = [__m256i; 2];

/// Writes the masks of `whole`; `false`, with nothing done, on a machine without AVX2.
pub(super) fn classify(whole: &[[u8; 64]], blocks: &mut [Block]) -> bool {
    if !std::arch::is_x86_feature_detected!("avx2") {
        return false;
    }
    // SAFETY: the line above checks that this machine has AVX2, the function's only requirement.
    unsafe { classify_avx2(whole, blocks) };
    true
}

/// Does `work` with the bit instructions of a machine with AVX2; `false`, with nothing done, on another.
#[inline]
pub(super) fn work(work: &mut impl Work) -> bool {
    let known = std::arch::is_x86_feature_detected!("bmi1")
        && std::arch::is_x86_feature_detected!("bmi2")
        && std::arch::is_x86_feature_detected!("lzcnt")
        && std::arch::is_x86_feature_detected!("popcnt");
    if known {
        // SAFETY: the lines above check that this machine has everything that the function requires.
        unsafe { work_on_bits(work) };
    }
    known
}

#[target_feature(enable = "bmi1,bmi2,lzcnt,popcnt")]
fn work_on_bits(work: &mut impl Work) {
    work.work();
}

#[target_feature(enable = "avx2")]
fn classify_avx2(whole: &[[u8; 64]], blocks: &mut [Block]) {
    // Not `for_each`, into which AVX2 code is not inlined.
    for (block, bytes) in blocks.iter_mut().zip(whole) {
        *block = block_of(bytes);
    }
}

/// The masks of 64 bytes, each computed in two halves.
#[target_feature(enable = "avx2")]
#[inline]
fn block_of(bytes: &[u8; 64]) -> Block {
    let both = |byte: u8| [_mm256_set1_epi8(byte as i8); 2];
    let or = |a: Halves, b: Halves| [_mm256_or_si256(a[0], b[0]), _mm256_or_si256(a[1], b[1])];
    let without = |a: Halves, b: Halves| [_mm256_andnot_si256(b[0], a[0]), _mm256_andnot_si256(b[1], a[1])];
    let equal = |a: Halves, b: Halves| [_mm256_cmpeq_epi8(a[0], b[0]), _mm256_cmpeq_epi8(a[1], b[1])];
    // Signed compare: bytes of 0x80 and more are negative and so below every bound.
    let above = |a: Halves, b: Halves| [_mm256_cmpgt_epi8(a[0], b[0]), _mm256_cmpgt_epi8(a[1], b[1])];
    let bits = |v: Halves| {
        let [low, high] = [_mm256_movemask_epi8(v[0]) as u32, _mm256_movemask_epi8(v[1]) as u32];
        u64::from(low) | u64::from(high) << 32
    };
    let within = |v, low: u8, high: u8| without(above(v, both(low - 1)), above(v, both(high)));
    // SAFETY: `bytes` has 64 bytes, so 32 bytes from its start and from its middle are inside; the loads need no
    // alignment.
    let v = unsafe {
        [
            _mm256_loadu_si256(bytes.as_ptr().cast::<__m256i>()),
            _mm256_loadu_si256(bytes.as_ptr().add(32).cast::<__m256i>()),
        ]
    };
    let is = |byte: u8| equal(v, both(byte));
    let digit = bits(within(v, b'0', b'9'));
    let alpha = bits(within(or(v, both(0x20)), b'a', b'z'));
    let (dash, open, slash, plus) = (is(b'-'), is(b'('), is(b'/'), is(b'+'));
    // Control characters, and negative bytes.
    let low = above(both(9), v);
    let odd = bits(or(or(low, or(is(0x1b), is(0x7f))), or(is(b'%'), or(is(b'\\'), is(b'&')))));
    let reads = within(v, 0xe4, 0xee);
    // Bytes from 0x80 to 0xbf continue a letter.
    let goes_on = above(both(0xc0), v);
    Block {
        digit,
        alpha,
        word: digit | alpha | bits(or(dash, is(b'_'))),
        run: digit | alpha | bits(or(plus, slash)),
        at: bits(is(b'@')),
        mark: bits(or(is(b':'), is(b'='))),
        sep: bits(or(or(is(b' '), dash), or(slash, or(open, is(b')'))))),
        dot: bits(is(b'.')),
        plus: bits(or(plus, open)),
        odd,
        veil: odd & !bits(or(reads, goes_on)),
        feed: bits(is(b'\n')),
        cell: bits(or(is(b'<'), is(b'|'))),
    }
}
