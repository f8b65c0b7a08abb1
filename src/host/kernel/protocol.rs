//! The protocol of host and driver: frames on the control socket, marks in the output.
//!
//! Output is not framed, because cells, their subprocesses and C libraries write to descriptors 1 and 2
//! directly. So that a result keeps its place among the output, a driver writes a mark with the frame's number
//! to both before it sends the frame. A mark holds the cell's unguessable id. A cell that reads the id out of its
//! driver can forge marks and frames, and thereby only disarrange its own answer.

use std::collections::BTreeMap;

use bytes::{Buf, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

use crate::host::credit::THING;
use crate::wire::interpreter::Members;

/// The longest frame a driver may send. One that announces more is not talking our protocol.
pub(super) const FRAME_MAX: usize = 16 << 20;

/// The first message to a driver.
#[derive(Debug, Serialize)]
pub(super) struct Hello<'a> {
    /// Sources of driver parts that are compiled when they are first needed, by name.
    pub(super) parts: BTreeMap<&'a str, &'a str>,
    /// Displays of one cell beyond this number are counted, not sent.
    pub(super) results: u32,
    /// Bytes that a frame may have.
    pub(super) frame_max: usize,
    /// Where cells start.
    pub(super) cwd: &'a str,
    /// Bytes of memory up to which a checkpoint is made after each cell; 0 for none.
    pub(super) checkpoint: u64,
    /// What a copy that takes over is woken with; unguessable from outside the sandbox.
    pub(super) resume: &'a str,
    /// Modules to import before it is ready.
    pub(super) preload: &'a [String],
}

/// Runs one cell.
#[derive(Debug, Serialize)]
pub(super) struct Request<'a> {
    /// Unguessable; every frame of the cell carries it.
    pub(super) id: &'a str,
    /// The code that runs.
    pub(super) code: &'a str,
    /// What the user wrote, when that is something else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) source: Option<&'a str>,
    /// For each line of `code`, from 0, the line of `source`, from 1.
    #[serde(skip_serializing_if = "<[u32]>::is_empty")]
    pub(super) lines: &'a [u32],
    /// The cell's number.
    pub(super) n: u64,
    /// Environment for this cell only.
    pub(super) env: &'a BTreeMap<String, String>,
    /// Environment from now on.
    pub(super) base_env: &'a BTreeMap<String, String>,
}

/// A driver's message. Members that a kind does not have are absent.
#[derive(Debug, Deserialize)]
pub(super) struct Frame {
    /// Its kind.
    pub(super) t: FrameKind,
    /// The cell it belongs to; absent in [`FrameKind::Ready`].
    #[serde(default)]
    pub(super) id: Option<String>,
    /// Its number within the cell, from 0; its marks carry the same.
    #[serde(default)]
    pub(super) k: u32,
    /// Of a result: whether it is the value of the last expression.
    #[serde(default)]
    pub(super) main: bool,
    /// Of a result: its forms by MIME type.
    #[serde(default)]
    pub(super) data: Members,
    /// Of an error: its class.
    #[serde(default)]
    pub(super) name: String,
    /// Of an error: its message.
    #[serde(default)]
    pub(super) value: String,
    /// Of an error.
    #[serde(default)]
    pub(super) traceback: String,
    /// Of a source: what the answer is sent with.
    #[serde(default)]
    pub(super) n: u64,
    /// Of an error: the limit of the sandbox that it is about.
    #[serde(default)]
    pub(super) stop: Option<String>,
    /// Of the end: displays that were not sent.
    #[serde(default)]
    pub(super) dropped: u64,
    /// Of [`FrameKind::Rest`], and of [`FrameKind::Ready`] from a copy that took over: the process that goes on should
    /// the next cell kill this one; 0 for none.
    #[serde(default)]
    pub(super) successor: i32,
    /// Of [`FrameKind::Ready`]: modules that could not be imported, and why.
    #[serde(default)]
    pub(super) failed: BTreeMap<String, String>,
}

/// A file that was made ready, or why it cannot be.
#[derive(Debug, Serialize)]
pub(super) struct Made<T> {
    /// The number of the frame that asked.
    pub(super) re: u64,
    /// The answer.
    pub(super) made: T,
}

/// Kinds of [`Frame`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FrameKind {
    /// The driver is ready.
    Ready,
    /// The cell starts; output from before is not its.
    Begin,
    /// A value or a display.
    Result,
    /// The cell failed.
    Error,
    /// A file that the cell imports must be made ready. The answer is a [`Made`].
    Source,
    /// The cell has ended.
    Done,
    /// The driver waits for the next cell. Only Python's reports it: it does more after [`FrameKind::Done`].
    Rest,
}

/// `value` as a frame: its length in four bytes, low byte first, then JSON.
pub(super) fn frame(value: &impl Serialize) -> Bytes {
    // Only maps with text keys and plain structs come here, so writing cannot fail.
    framed(&serde_json::to_vec(value).unwrap_or_default())
}

/// `payload` after its length.
pub(super) fn framed(payload: &[u8]) -> Bytes {
    let len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    [&len.to_le_bytes(), payload].concat().into()
}

/// The limits of a sandbox that a frame can name.
const LIMITS: [&str; 4] = ["oom", "too_many_processes", "disk_full", "output_truncated"];

/// Members of a frame and of the objects in it, one level down. What is deeper is kept as the text that it is.
const MEMBERS_MAX: usize = 256;

/// How many of those there are, counted before a frame is built from them: each costs many times its bytes.
fn members(json: &[u8]) -> usize {
    let (mut depth, mut count, mut at) = (0_usize, 0, 0);
    while let Some(byte) = json.get(at) {
        match byte {
            b'"' => {
                at += 1;
                while let Some(found) = memchr::memchr2(b'"', b'\\', &json[at.min(json.len())..]) {
                    at += found;
                    if json[at] == b'"' {
                        break;
                    }
                    at += 2;
                }
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b':' if depth <= 2 => count += 1,
            _ => {}
        }
        at += 1;
    }
    count
}

/// Takes frames out of bytes that come cut anywhere.
#[derive(Debug, Default)]
pub(super) struct Frames {
    buffer: BytesMut,
}

/// The other side does not talk our protocol.
#[derive(Debug, thiserror::Error)]
pub(super) enum FrameError {
    #[error("a frame of {0} bytes was announced")]
    TooLong(usize),
    #[error("a frame does not parse")]
    Malformed(#[source] serde_json::Error),
    #[error("there was no room for a frame of {0} bytes")]
    NoRoom(usize),
}

impl Frames {
    /// Adds what was received.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The length of the frame that has begun, if one has.
    pub(super) fn announced(&self) -> Result<Option<usize>, FrameError> {
        let Some(head) = self.buffer.first_chunk::<4>() else { return Ok(None) };
        let len = u32::from_le_bytes(*head) as usize;
        if len > FRAME_MAX { Err(FrameError::TooLong(len)) } else { Ok(Some(len)) }
    }

    /// The bytes of the next frame, once they are all here.
    pub(super) fn whole(&mut self) -> Result<Option<BytesMut>, FrameError> {
        let Some(len) = self.announced()?.filter(|len| self.buffer.len() >= 4 + len) else { return Ok(None) };
        self.buffer.advance(4);
        Ok(Some(self.buffer.split_to(len)))
    }
}

#[cfg(test)]
impl Frames {
    pub(super) fn next(&mut self) -> Result<Option<Frame>, FrameError> {
        self.whole()?.map(|payload| Frame::parse(&payload)).transpose()
    }
}

impl Frame {
    /// Takes a frame apart. Gives up before anything is built from one that has too many parts.
    pub(super) fn parse(payload: &[u8]) -> Result<Self, FrameError> {
        if members(payload) > MEMBERS_MAX {
            return Err(FrameError::Malformed(serde::de::Error::custom("too many members")));
        }
        let mut frame: Self = serde_json::from_slice(payload).map_err(FrameError::Malformed)?;
        // It may hold anything; what is kept for the answer is one of a few words.
        if frame.stop.as_ref().is_some_and(|stop| !LIMITS.contains(&stop.as_str())) {
            frame.stop = Some("other".to_owned());
        }
        Ok(frame)
    }
}

/// What one of the two outputs holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Piece {
    /// Output.
    Text(Bytes),
    /// What comes after it was written after frame `.0` was made.
    Mark(u32),
}

impl Piece {
    /// Its cost while it is kept.
    pub(super) fn cost(&self) -> usize {
        let text = if let Self::Text(text) = self { text.len() } else { 0 };
        THING + text
    }
}

/// Takes marks out of output that comes cut anywhere.
#[derive(Debug)]
pub(super) struct Marks {
    /// What every mark of the cell starts with.
    head: Vec<u8>,
    /// An end that may be the beginning of a mark.
    held: Vec<u8>,
}

const NUMBER_LEN: usize = 8;

impl Marks {
    /// For the cell with this id.
    pub(super) fn new(id: &str) -> Self {
        Self { head: format!("\x1e{id}:").into_bytes(), held: Vec::new() }
    }

    /// What `bytes` add, in order.
    pub(super) fn push(&mut self, bytes: Bytes) -> Vec<Piece> {
        let mut rest = if self.held.is_empty() {
            bytes
        } else {
            [&std::mem::take(&mut self.held)[..], &bytes].concat().into()
        };
        let mut pieces = Vec::new();
        let mut text_len = 0;
        while let Some(at) = memchr::memchr(0x1e, &rest[text_len..]) {
            let at = text_len + at;
            match self.mark_at(&rest[at..]) {
                Found::Mark(number, len) => {
                    if at > 0 {
                        pieces.push(Piece::Text(rest.slice(..at)));
                    }
                    // Marks with nothing between them mean no more than the highest of them.
                    match pieces.last_mut() {
                        Some(Piece::Mark(last)) => *last = number.max(*last),
                        _ => pieces.push(Piece::Mark(number)),
                    }
                    rest.advance(at + len);
                    text_len = 0;
                }
                Found::Perhaps => {
                    self.held = rest.split_off(at).to_vec();
                    break;
                }
                Found::Nothing => text_len = at + 1,
            }
        }
        if !rest.is_empty() {
            pieces.push(Piece::Text(rest));
        }
        // A text that waits must not keep all that came with it.
        if pieces.iter().any(|piece| matches!(piece, Piece::Mark(_))) {
            for piece in &mut pieces {
                if let Piece::Text(text) = piece {
                    *text = Bytes::copy_from_slice(text);
                }
            }
        }
        pieces
    }

    /// What was held back; the output has ended.
    pub(super) fn finish(&mut self) -> Bytes {
        std::mem::take(&mut self.held).into()
    }

    fn mark_at(&self, bytes: &[u8]) -> Found {
        let len = self.head.len() + NUMBER_LEN + 1;
        let known = bytes.len().min(self.head.len());
        if bytes[..known] != self.head[..known] {
            return Found::Nothing;
        }
        if bytes.len() < len {
            return Found::Perhaps;
        }
        let number = std::str::from_utf8(&bytes[self.head.len()..len - 1])
            .ok()
            .and_then(|digits| u32::from_str_radix(digits, 16).ok());
        match number {
            Some(number) if bytes[len - 1] == 0x1e => Found::Mark(number, len),
            _ => Found::Nothing,
        }
    }
}

enum Found {
    /// Number and length.
    Mark(u32, usize),
    /// Undecided until more bytes come.
    Perhaps,
    Nothing,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(text: &[u8], every: usize) -> Vec<Piece> {
        let mut marks = Marks::new("abc");
        let mut pieces: Vec<Piece> = Vec::new();
        for part in text.chunks(every) {
            pieces.extend(marks.push(Bytes::copy_from_slice(part)));
        }
        let rest = marks.finish();
        if !rest.is_empty() {
            pieces.push(Piece::Text(rest));
        }
        // Neighbouring texts are one.
        pieces.into_iter().fold(Vec::new(), |mut all, piece| {
            match (all.last_mut(), piece) {
                (Some(Piece::Text(before)), Piece::Text(more)) => {
                    *before = [&before[..], &more].concat().into()
                }
                (_, piece) => all.push(piece),
            }
            all
        })
    }

    fn text(text: &'static str) -> Piece {
        Piece::Text(Bytes::from_static(text.as_bytes()))
    }

    #[test]
    fn a_frame_of_a_million_members_is_not_built_and_marks_without_text_are_one() {
        let many: Vec<String> = (0..100_000).map(|n| format!("\"{n}\":1")).collect();
        for text in [
            format!("{{\"t\":\"ready\",\"failed\":{{{}}}}}", many.join(",")),
            format!("{{\"t\":\"ready\",{}}}", many.join(",")),
        ] {
            let mut frames = Frames::default();
            frames.push(&framed(text.as_bytes()));
            assert!(matches!(frames.next(), Err(FrameError::Malformed(_))));
        }
        // What is deeper, or in a text, is a value.
        assert_eq!(members(br#"{"a":"b:\\\":c:","d":{"e":{"f":1,"g":2}}}"#), 3);
        let mut frames = Frames::default();
        frames.push(&framed(br#"{"t":"error","stop":"anything"}"#));
        assert_eq!(frames.next().unwrap().unwrap().stop.as_deref(), Some("other"));

        let mark = |number: u32| format!("\x1eid:{number:08x}\x1e");
        let mut marks = Marks::new("id");
        let pieces = marks.push(format!("a{}{}b{}", mark(7), mark(3).repeat(2000), mark(9)).into());
        let text = |text: &'static str| Piece::Text(text.into());
        assert_eq!(pieces, [text("a"), Piece::Mark(7), text("b"), Piece::Mark(9)]);
    }

    #[test]
    fn marks_are_found_however_the_output_is_cut() {
        let output = b"one\x1eabc:0000001f\x1e\x1eabc:00000020\x1etwo";
        for every in 1..output.len() + 1 {
            let mut found = cut(output, every);
            // Marks that come together are one; cut apart, the first of them is there as well.
            if found.len() == 4 {
                assert_eq!(found.remove(1), Piece::Mark(31));
            }
            assert_eq!(found, [text("one"), Piece::Mark(32), text("two")]);
        }
    }

    #[test]
    fn text_that_resembles_a_mark_is_output() {
        for like in
            ["\x1e", "\x1eabc", "\x1eabd:00000001\x1e", "\x1eabc:0000001g\x1e", "a\x1e\x1eabc:00000001!"]
        {
            for every in 1..like.len() + 1 {
                assert_eq!(
                    cut(like.as_bytes(), every),
                    [Piece::Text(Bytes::copy_from_slice(like.as_bytes()))]
                );
            }
        }
        assert_eq!(cut(b"\x1e\x1eabc:00000001\x1e", 3), [text("\x1e"), Piece::Mark(1)]);
    }

    #[test]
    fn frames_are_found_however_they_are_cut_and_a_huge_one_is_refused() {
        let ready = framed(br#"{"t":"ready","version":"3.11"}"#);
        let done = framed(br#"{"t":"done","id":"x","k":7,"dropped":2}"#);
        let all = [&ready[..], &done[..]].concat();
        for every in 1..all.len() + 1 {
            let mut frames = Frames::default();
            let mut found = Vec::new();
            for part in all.chunks(every) {
                frames.push(part);
                while let Some(frame) = frames.next().unwrap() {
                    found.push((frame.t, frame.k, frame.dropped));
                }
            }
            assert_eq!(found, [(FrameKind::Ready, 0, 0), (FrameKind::Done, 7, 2)]);
        }
        let mut frames = Frames::default();
        frames.push(&u32::MAX.to_le_bytes());
        assert!(matches!(frames.next(), Err(FrameError::TooLong(_))));
        let mut frames = Frames::default();
        frames.push(&framed(b"{\"t\":\"nonsense\"}"));
        assert!(matches!(frames.next(), Err(FrameError::Malformed(_))));
    }
}
