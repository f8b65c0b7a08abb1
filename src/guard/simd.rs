//! The masks of [`super::classes`] with AVX2, where the machine has it.
//!
//! The second of two files that may hold `unsafe` code (the other is `host/jail/sys.rs`): a call of a function that
//! needs AVX2, after the check that AVX2 is there, and the loads. `docs/adr/0003-guard-simd.md` has the figures.
#![cfg(target_arch = "x86_64")]
#![expect(unsafe_code, reason = "vector loads and the call behind feature detection have no safe form yet")]

use std::arch::x86_64::{
    __m256i, _mm256_and_si256, _mm256_andnot_si256, _mm256_cmpeq_epi8, _mm256_cmpgt_epi8, _mm256_loadu_si256,
    _mm256_movemask_epi8, _mm256_or_si256, _mm256_set1_epi8,
};

use super::classes::{Block, Work};

/// Appends the masks of `whole`; `false`, with nothing done, on a machine without AVX2.
pub(super) fn classify(whole: &[[u8; 64]], blocks: &mut Vec<Block>) -> bool {
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
fn classify_avx2(whole: &[[u8; 64]], blocks: &mut Vec<Block>) {
    // Not `extend`, into which AVX2 code is not inlined.
    let known = blocks.len();
    blocks.resize(known + whole.len(), Block::default());
    for (block, bytes) in blocks[known..].iter_mut().zip(whole) {
        let (low, high) = (half(bytes, 0), half(bytes, 32));
        let join = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        *block = Block {
            digit: join(low.digit, high.digit),
            alpha: join(low.alpha, high.alpha),
            word: join(low.word, high.word),
            run: join(low.run, high.run),
            at: join(low.at, high.at),
            mark: join(low.mark, high.mark),
            sep: join(low.sep, high.sep),
            dot: join(low.dot, high.dot),
            plus: join(low.plus, high.plus),
            odd: join(low.odd, high.odd),
            veil: join(low.veil, high.veil),
            feed: join(low.feed, high.feed),
            cell: join(low.cell, high.cell),
        };
    }
}

struct Half {
    digit: u32,
    alpha: u32,
    word: u32,
    run: u32,
    at: u32,
    mark: u32,
    sep: u32,
    dot: u32,
    plus: u32,
    odd: u32,
    veil: u32,
    feed: u32,
    cell: u32,
}

#[target_feature(enable = "avx2")]
#[inline]
fn half(bytes: &[u8; 64], from: usize) -> Half {
    debug_assert!(from <= 32);
    // SAFETY: `bytes` has 64 bytes and `from` is 0 or 32, so 32 bytes from there are inside; the load needs no
    // alignment.
    let v = unsafe { _mm256_loadu_si256(bytes.as_ptr().add(from).cast::<__m256i>()) };
    let is = |byte: u8| _mm256_cmpeq_epi8(v, _mm256_set1_epi8(byte as i8));
    // Signed compare: bytes of 0x80 and more are negative and so below every bound.
    let within = |v, low: u8, high: u8| {
        _mm256_andnot_si256(
            _mm256_cmpgt_epi8(v, _mm256_set1_epi8(high as i8)),
            _mm256_cmpgt_epi8(v, _mm256_set1_epi8((low - 1) as i8)),
        )
    };
    let or = |a, b| _mm256_or_si256(a, b);
    let bits = |v| _mm256_movemask_epi8(v) as u32;
    let digit = within(v, b'0', b'9');
    let folded = _mm256_or_si256(v, _mm256_set1_epi8(0x20));
    let alpha = _mm256_and_si256(within(folded, b'a', b'z'), _mm256_cmpgt_epi8(v, _mm256_set1_epi8(-1)));
    let alnum = or(digit, alpha);
    let (dash, open, slash, plus) = (is(b'-'), is(b'('), is(b'/'), is(b'+'));
    // Control characters, and negative bytes.
    let low = _mm256_cmpgt_epi8(_mm256_set1_epi8(9), v);
    let odd = or(or(low, or(is(0x1b), is(0x7f))), or(is(b'%'), or(is(b'\\'), is(b'&'))));
    let above = |byte: u8| _mm256_cmpgt_epi8(v, _mm256_set1_epi8(byte as i8));
    let reads = _mm256_andnot_si256(above(0xee), above(0xe3));
    // Bytes from 0x80 to 0xbf continue a letter.
    let goes_on = _mm256_andnot_si256(above(0xbf), v);
    Half {
        digit: bits(digit),
        alpha: bits(alpha),
        word: bits(or(alnum, or(dash, is(b'_')))),
        run: bits(or(alnum, or(plus, slash))),
        at: bits(is(b'@')),
        mark: bits(or(is(b':'), is(b'='))),
        sep: bits(or(or(is(b' '), dash), or(slash, or(open, is(b')'))))),
        dot: bits(is(b'.')),
        plus: bits(or(plus, open)),
        odd: bits(odd),
        veil: bits(odd) & !bits(or(reads, goes_on)),
        feed: bits(is(b'\n')),
        cell: bits(or(is(b'<'), is(b'|'))),
    }
}
