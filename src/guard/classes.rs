//! One pass that turns text into bit masks: which of 64 bytes are digits, letters, `@` and so on.
//!
//! Everything after this works on bits, so that text in which nothing can begin costs a few instructions for 64
//! bytes. The portable form works on eight bytes at a time in a `u64`; [`super::simd`] does the same with AVX2, and a
//! test checks that both agree.

/// The masks of 64 bytes; bit `n` describes byte `n`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Block {
    /// `0-9`
    pub(super) digit: u64,
    /// `A-Z a-z`
    pub(super) alpha: u64,
    /// Letters, digits, `_` and `-`: what tokens are made of.
    pub(super) word: u64,
    /// Letters, digits, `+` and `/`: base64.
    pub(super) run: u64,
    /// `@`
    pub(super) at: u64,
    /// `:` and `=`
    pub(super) mark: u64,
    /// Space, `-`, `/`, `(`, `)`: separators between groups of digits.
    pub(super) sep: u64,
    /// `.`
    pub(super) dot: u64,
    /// `+` and `(`: what a telephone number can begin with.
    pub(super) plus: u64,
    /// Bytes that may hide something: non-ASCII, `%`, `\`, `&`, ESC, DEL and the first nine control characters.
    pub(super) odd: u64,
    /// The same without the continuation bytes of non-ASCII letters, and without Chinese, Japanese and Korean letters.
    pub(super) veil: u64,
    /// A line feed.
    pub(super) feed: u64,
    /// `<` and `|`: the start of a tag, and the border between cells.
    pub(super) cell: u64,
}

/// For each byte whether it is an ASCII letter or digit, or one of `signs`.
pub(super) const fn alphanumeric_or(signs: &[u8]) -> [bool; 256] {
    let mut known = only(signs);
    let mut byte = 0;
    while byte < 128 {
        known[byte] |= (byte as u8).is_ascii_alphanumeric();
        byte += 1;
    }
    known
}

/// For each byte whether it is one of `signs`.
pub(super) const fn only(signs: &[u8]) -> [bool; 256] {
    let mut known = [false; 256];
    let mut at = 0;
    while at < signs.len() {
        known[signs[at] as usize] = true;
        at += 1;
    }
    known
}

/// For each byte whether it fits a pattern.
macro_rules! bytes {
    ($pattern:pat) => {{
        let mut known = [false; 256];
        let mut byte = 0;
        while byte < 256 {
            known[byte] = matches!(byte as u8, $pattern);
            byte += 1;
        }
        known
    }};
}

/// Fills `blocks` with the masks of `text` and one empty block after.
pub(super) fn classify(text: &[u8], blocks: &mut Vec<Block>) {
    fill(text, 0, blocks);
}

/// Turns the masks of a text that begins with `text` into those of `text`.
pub(super) fn cut(text: &[u8], blocks: &mut Vec<Block>) {
    fill(text, text.len() / 64, blocks);
}

/// Makes `blocks` those of `text`, of which `known` are there.
fn fill(text: &[u8], known: usize, blocks: &mut Vec<Block>) {
    let (whole, rest) = text[64 * known..].as_chunks::<64>();
    let count = known + whole.len();
    blocks.resize(text.len().div_ceil(64) + 1, Block::default());
    masks(whole, &mut blocks[known..count]);
    // Padded with a byte that is in none of the classes.
    let mut last = [b'\t'; 64];
    last[..rest.len()].copy_from_slice(rest);
    masks(&[last], &mut blocks[count..=count]);
    if let Some(behind) = blocks.get_mut(count + 1) {
        *behind = Block::default();
    }
}

/// Work on masks. Its method must be inlined, so that it is compiled for the machine's bit instructions.
pub(super) trait Work {
    fn work(&mut self);

    /// Does the work with the best instructions that this machine has.
    #[inline]
    fn done(&mut self)
    where
        Self: Sized,
    {
        #[cfg(target_arch = "x86_64")]
        if super::simd::work(self) {
            return;
        }
        self.work();
    }
}

fn masks(whole: &[[u8; 64]], blocks: &mut [Block]) {
    #[cfg(target_arch = "x86_64")]
    if super::simd::classify(whole, blocks) {
        return;
    }
    blocks.iter_mut().zip(whole).for_each(|(block, bytes)| *block = portable(bytes));
}

/// The masks of 64 bytes, with instructions that every machine has.
pub(super) fn portable(bytes: &[u8; 64]) -> Block {
    let mut block = Block::default();
    let (lanes, _) = bytes.as_chunks::<8>();
    for (at, lane) in lanes.iter().enumerate() {
        let v = u64::from_le_bytes(*lane);
        let digit = in_range(v, b'0', b'9');
        let alpha = in_range(v | splat(0x20), b'a', b'z') & !v;
        let dash = equal(v, b'-');
        let open = equal(v, b'(');
        let shift = at * 8;
        block.digit |= gather(digit) << shift;
        block.alpha |= gather(alpha) << shift;
        block.word |= gather(digit | alpha | dash | equal(v, b'_')) << shift;
        let slash = equal(v, b'/');
        let plus = equal(v, b'+');
        block.run |= gather(digit | alpha | plus | slash) << shift;
        block.at |= gather(equal(v, b'@')) << shift;
        block.mark |= gather(equal(v, b':') | equal(v, b'=')) << shift;
        block.sep |= gather(equal(v, b' ') | dash | slash | open | equal(v, b')')) << shift;
        block.dot |= gather(equal(v, b'.')) << shift;
        block.plus |= gather(plus | open) << shift;
        let control = in_range(v, 0, 8) | equal(v, 0x1b) | equal(v, 0x7f);
        let hiding = v | control | equal(v, b'%') | equal(v, b'\\') | equal(v, b'&');
        block.odd |= gather(hiding) << shift;
        // `0b11......` begins a letter; `0xe4` to `0xee` one of three bytes that reads as itself.
        let begins = v & v << 1 & !(in_range(v & !HIGH, 0x64, 0x6e));
        block.veil |= gather(begins | hiding & !v) << shift;
        block.feed |= gather(equal(v, b'\n')) << shift;
        block.cell |= gather(equal(v, b'<') | equal(v, b'|')) << shift;
    }
    block
}

pub(super) const HIGH: u64 = 0x8080_8080_8080_8080;

fn splat(byte: u8) -> u64 {
    u64::from(byte) * 0x0101_0101_0101_0101
}

/// The high bit of each byte that equals `byte`; other bits are undefined.
pub(super) fn equal(v: u64, byte: u8) -> u64 {
    let x = v ^ splat(byte);
    !(((x & !HIGH) + !HIGH) | x)
}

/// The high bit of each ASCII byte in `low..=high`; other bits are undefined.
pub(super) fn in_range(v: u64, low: u8, high: u8) -> u64 {
    let seven = v & !HIGH;
    (seven + splat(0x80 - low)) & !(seven + splat(0x7f - high)) & !v
}

/// The eight high bits as eight bits.
fn gather(v: u64) -> u64 {
    ((v & HIGH) >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(bytes: &[u8; 64]) -> Block {
        let mask = |test: fn(u8) -> bool| {
            bytes.iter().enumerate().fold(0, |mask, (at, byte)| mask | (u64::from(test(*byte)) << at))
        };
        Block {
            digit: mask(|b| b.is_ascii_digit()),
            alpha: mask(|b| b.is_ascii_alphabetic()),
            word: mask(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-'),
            run: mask(|b| b.is_ascii_alphanumeric() || b == b'+' || b == b'/'),
            at: mask(|b| b == b'@'),
            mark: mask(|b| b == b':' || b == b'='),
            sep: mask(|b| b" -/()".contains(&b)),
            dot: mask(|b| b == b'.'),
            plus: mask(|b| b == b'+' || b == b'('),
            odd: mask(|b| matches!(b, 0..=8 | 0x1b | b'%' | b'\\' | b'&' | 0x7f..)),
            veil: mask(|b| matches!(b, 0..=8 | 0x1b | b'%' | b'\\' | b'&' | 0x7f | 0xc0..=0xe3 | 0xef..)),
            feed: mask(|b| b == b'\n'),
            cell: mask(|b| b == b'<' || b == b'|'),
        }
    }

    #[test]
    fn every_byte_in_every_place_is_classed_the_same_by_all_forms() {
        for byte in 0..=255u8 {
            for at in 0..64 {
                let mut bytes = [byte.wrapping_add(0x55); 64];
                bytes[at] = byte;
                let expected = plain(&bytes);
                assert_eq!(portable(&bytes), expected, "byte {byte:#x} at {at}");
                let mut blocks = Vec::new();
                classify(&bytes, &mut blocks);
                assert_eq!(blocks, [expected, Block::default()], "byte {byte:#x} at {at}");
                let mut shorter = Vec::new();
                classify(&bytes[..at], &mut shorter);
                cut(&bytes[..at], &mut blocks);
                assert_eq!(blocks, shorter, "byte {byte:#x} at {at}");
            }
        }
    }
}
