//! One run of code: what is asked, what streams back, and what it came to.
//!
//! An [`Outcome`] here is raw: it is what a sandbox said. Only `guard` turns one into something that may leave.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::context::text_enum;
use super::{Code, Timeout};

text_enum! {
    /// A language that `run_code` takes.
    Language {
        /// CPython, stateful cells.
        Python = "python",
        /// Node.js, stateful cells.
        Javascript = "javascript",
        /// TypeScript, translated and run as JavaScript.
        Typescript = "typescript",
        /// GNU bash.
        Bash = "bash",
    }
}

impl Language {
    /// The language that is meant, by its usual names in lower case.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "python3" | "python_3" | "py" | "py3" | "ipython" | "cpython" => Some(Self::Python),
            "js" | "node" | "nodejs" | "node.js" | "mjs" | "cjs" | "jsx" | "ecmascript" => {
                Some(Self::Javascript)
            }
            "ts" | "tsx" | "mts" => Some(Self::Typescript),
            "sh" | "shell" | "zsh" | "shell_script" | "console" | "terminal" => Some(Self::Bash),
            other => other.parse().ok(),
        }
    }
}

/// What a caller wants run.
#[derive(Debug, Clone)]
pub struct CodeRequest {
    /// The language of `code`.
    pub language: Language,
    /// The source.
    pub code: Code,
    /// One line: what this computes. Goes to the audit record.
    pub purpose: Option<String>,
    /// How long the run may take.
    pub timeout: Timeout,
    /// What the code finds beside its own text.
    pub inputs: Inputs,
}

/// What code finds beside its own text.
#[derive(Debug, Clone, Default)]
pub struct Inputs {
    /// JSON that is bound as `data`.
    pub data: Option<Arc<str>>,
    /// Tools of other servers whose signatures are wanted.
    pub tools: Option<ToolsWanted>,
    /// The template that its sandbox is to be made from; whichever the context has when left out.
    pub template: Option<String>,
}

/// Which tools a caller asks the signatures of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolsWanted {
    /// By name: `server.tool`, or a whole server.
    pub names: Vec<String>,
    /// By what they are for, and how many at most.
    pub intent: Option<(String, usize)>,
}

/// A piece of what a run gives out, in order of arrival.
#[derive(Debug, Clone, PartialEq)]
pub enum OutputChunk {
    /// Standard output, cut anywhere.
    Stdout(String),
    /// Standard error, cut anywhere.
    Stderr(String),
    /// A value or a display.
    Result(RichResult),
    /// An exception, or a death of the interpreter.
    Error(CodeError),
}

/// A value in the forms that the interpreter offers: MIME-like format names to content.
///
/// Names are E2B's (`text html markdown svg png jpeg pdf latex json javascript data chart`), or a MIME type for
/// others. `png`, `jpeg` and `pdf` are base64 text.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RichResult {
    /// Format name to content, in the order in which the interpreter gave them.
    pub formats: Map<String, Value>,
    /// Whether it is the value of the last expression.
    pub is_main: bool,
}

impl RichResult {
    /// The plain text form.
    pub fn text(&self) -> Option<&str> {
        self.formats.get("text").and_then(Value::as_str)
    }
}

/// The name of the error that a status other than 0 becomes; its message is the status.
pub const EXIT_STATUS: &str = "ExitStatus";

/// Why a program failed, as its interpreter reported it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CodeError {
    /// The exception's class, or `timeout`, or the platform's name for a death.
    pub name: String,
    /// The message.
    pub message: String,
    /// The traceback with the user's own lines; may be empty.
    pub traceback: String,
}

impl CodeError {
    /// The exit status, if the program ended itself with one: a shell's, or that of `SystemExit`.
    fn status(&self) -> Option<i32> {
        match (self.name.as_str(), self.message.trim()) {
            ("SystemExit", "" | "None") => Some(0),
            ("SystemExit" | EXIT_STATUS | "", status) => status.parse().ok(),
            _ => None,
        }
    }
}

text_enum! {
    /// How a run came to its end.
    Ended {
        /// The interpreter finished the cell, with or without an exception.
        Completed = "completed",
        /// The deadline passed and the interpreter was interrupted.
        TimedOut = "timed_out",
        /// The caller went away or asked for it.
        Cancelled = "cancelled",
        /// The interpreter died or the sandbox vanished in mid-run.
        Died = "died",
    }
}

text_enum! {
    /// A limit of the sandbox that ended or cut something, reported beside the result.
    StopReason {
        /// Memory ran out.
        Oom = "oom",
        /// The process or thread limit was met.
        TooManyProcesses = "too_many_processes",
        /// A file system was full.
        DiskFull = "disk_full",
        /// Output beyond the limit was dropped.
        OutputTruncated = "output_truncated",
    }
}

/// Head and tail of a text that may be far larger, with exact counts.
///
/// Keeps the first half and the last half of `max_chars` and cuts on character boundaries, so its memory is
/// bounded by the limit and not by the text.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Capture {
    head: String,
    #[serde(with = "chars")]
    tail: VecDeque<char>,
    head_chars: usize,
    max_chars: usize,
    total_chars: u64,
    total_bytes: u64,
}

impl Capture {
    /// An empty capture that will keep at most `max_chars` characters.
    pub fn new(max_chars: usize) -> Self {
        Self { max_chars, ..Self::default() }
    }

    /// Adds text at the end.
    pub fn push(&mut self, text: &str) {
        self.total_bytes += text.len() as u64;
        let half = self.max_chars - self.max_chars / 2;
        let room = half.saturating_sub(self.head_chars);
        let mut rest = text;
        if room > 0 {
            let at = text.char_indices().nth(room).map_or(text.len(), |(at, _)| at);
            self.head.push_str(&text[..at]);
            let taken = if at == text.len() { text.chars().count() } else { room };
            self.head_chars += taken;
            self.total_chars += taken as u64;
            rest = &text[at..];
        }
        if rest.is_empty() {
            return;
        }
        let keep = self.max_chars / 2;
        let count = rest.chars().count();
        self.total_chars += count as u64;
        let skip = count.saturating_sub(keep);
        let incoming = count - skip;
        let overflow = (self.tail.len() + incoming).saturating_sub(keep);
        self.tail.drain(..overflow.min(self.tail.len()));
        self.tail.extend(rest.chars().skip(skip));
    }

    /// Characters seen in all.
    pub fn total_chars(&self) -> u64 {
        self.total_chars
    }

    /// Bytes seen in all.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Whether something in the middle was left out.
    pub fn is_truncated(&self) -> bool {
        self.total_chars > (self.head_chars + self.tail.len()) as u64
    }

    /// The same capture with head and tail rewritten, for a text that is kept and looked at again.
    pub fn map(self, mut rewrite: impl FnMut(&str) -> String) -> Self {
        let tail: String = self.tail.iter().collect();
        let (head, tail) = (rewrite(&self.head), rewrite(&tail));
        let (before, after) =
            (self.head_chars + self.tail.len(), head.chars().count() + tail.chars().count());
        Self {
            total_chars: self.total_chars.saturating_sub(before as u64) + after as u64,
            head_chars: head.chars().count(),
            tail: tail.chars().collect(),
            head,
            ..self
        }
    }

    /// The text, with one line instead of what was left out that says how much.
    pub fn text(&self) -> String {
        let mut out = self.head.clone();
        let kept = (self.head_chars + self.tail.len()) as u64;
        if self.total_chars > kept {
            let omitted = self.total_chars - kept;
            out.push_str(&format!("\n[… {omitted} of {} characters left out …]\n", self.total_chars));
        }
        out.extend(self.tail.iter());
        out
    }
}

/// The tail of a capture as the text that it is.
mod chars {
    use std::collections::VecDeque;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(tail: &VecDeque<char>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&tail.iter().collect::<String>())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<VecDeque<char>, D::Error> {
        Ok(String::deserialize(deserializer)?.chars().collect())
    }
}

/// What a run came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Standard output, cut in the middle when it was long.
    pub stdout: Capture,
    /// Standard error, likewise.
    pub stderr: Capture,
    /// Values and displays in order.
    pub results: Vec<RichResult>,
    /// Results beyond the limit that were dropped.
    pub results_dropped: u64,
    /// The failure that matters most to the caller, if any.
    pub error: Option<CodeError>,
    /// How it ended.
    pub ended: Ended,
    /// Limits of the sandbox that were met.
    pub stops: Vec<StopReason>,
    /// From sending the code to the end of the stream.
    pub duration: Duration,
    /// Whether output was drawn over itself, so that not all of it is left (records of earlier versions do not say).
    #[serde(default)]
    pub rewritten: bool,
}

impl Outcome {
    /// 0 for success, 124 for a time-out (as `timeout(1)`), 130 for a cancel, the status of a shell or of
    /// `SystemExit` where it is a number, else 1.
    pub fn exit_code(&self) -> i32 {
        match (self.ended, &self.error) {
            (Ended::TimedOut, _) => 124,
            (Ended::Cancelled, _) => 130,
            (_, None) => 0,
            (_, Some(error)) => error.status().unwrap_or(1),
        }
    }

    /// What went wrong, if the program did not just end itself with a status. What is known of the end of a shell or of a
    /// command is in the traceback.
    pub fn exception(&self) -> Option<&CodeError> {
        let says = |error: &&CodeError| {
            error.status().is_none() || error.name != "SystemExit" && !error.traceback.is_empty()
        };
        self.error.as_ref().filter(says)
    }

    /// Whether the program did what it was asked to.
    pub fn success(&self) -> bool {
        self.exit_code() == 0 && self.ended == Ended::Completed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_text_is_kept_whole_in_any_cutting() {
        for cut in 1..7 {
            let mut capture = Capture::new(10);
            for piece in "aé€😀bc".chars().collect::<Vec<_>>().chunks(cut) {
                capture.push(&piece.iter().collect::<String>());
            }
            assert_eq!(capture.text(), "aé€😀bc");
            assert!(!capture.is_truncated());
        }
    }

    #[test]
    fn a_long_text_keeps_head_and_tail_and_says_how_much_is_gone() {
        for cut in [1, 3, 7, 64, 1000] {
            let mut capture = Capture::new(10);
            let text: String = (0..100).map(|n| char::from(b'a' + (n % 26) as u8)).collect();
            for piece in text.as_bytes().chunks(cut) {
                capture.push(std::str::from_utf8(piece).unwrap());
            }
            assert_eq!(capture.text(), "abcde\n[… 90 of 100 characters left out …]\nrstuv");
            assert_eq!((capture.total_chars(), capture.total_bytes()), (100, 100));
        }
    }
}
