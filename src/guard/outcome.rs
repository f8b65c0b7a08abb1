//! The guard over one run: raw chunks in; guarded chunks out as soon as they are safe, and the guarded outcome at
//! the end.
//!
//! Standard output, standard error, results and errors share one numbering, so the same value is the same
//! placeholder in each of them.

use std::io::{Read, Write};
use std::time::Duration;

use serde_json::{Map, Value};

use super::container::{self, Seen};
use super::picture::Format;
use super::policy::OpaqueFiles;
use super::stream::WITHHELD;
use super::walk::Walk;
use super::{Guard, Mode, Numbering, Report, Sanitized, StreamGuard, picture};
use crate::domain::terminal::{Screen, shown, visible};
use crate::domain::{
    Attachment, Capture, CodeError, EXIT_STATUS, Ended, Outcome, OutputChunk, Reading, RichResult, StopReason,
};

/// Bytes of a long text that are scanned at once.
const PIECE: usize = 256 * 1024;

/// How much of a run is kept in its outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputLimits {
    /// Characters of standard output, and of standard error; the middle is left out.
    pub max_chars: usize,
    /// Results; later ones are counted.
    pub max_results: usize,
}

impl Default for OutputLimits {
    fn default() -> Self {
        Self { max_chars: 50_000, max_results: 100 }
    }
}

/// Guards the output of one run.
#[derive(Debug)]
pub struct OutcomeGuard {
    guard: Guard,
    numbering: Numbering,
    limits: OutputLimits,
    stdout: Stream,
    stderr: Stream,
    results: Vec<RichResult>,
    results_dropped: u64,
    error: Option<CodeError>,
    report: Report,
    /// How many bytes PDFs may still inflate to.
    left: u64,
}

/// An output stream: guarded, then drawn as a terminal would, then kept up to the limit.
#[derive(Debug)]
struct Stream {
    guard: StreamGuard,
    screen: Screen,
    capture: Capture,
}

/// The result of [`OutcomeGuard::finish`].
#[derive(Debug)]
pub struct Guarded {
    /// The chunks that were still held back.
    pub rest: Vec<Sanitized<OutputChunk>>,
    /// The whole outcome.
    pub outcome: Sanitized<Outcome>,
    /// Whether standard output, and standard error, was overwritten by terminal control; the outcome has the final text.
    pub rewritten: [bool; 2],
    /// What was found.
    pub report: Report,
    /// The numbering, with the numbers newly issued.
    pub numbering: Numbering,
}

impl OutcomeGuard {
    /// A guard for one run.
    pub fn new(guard: &Guard, numbering: Numbering, limits: OutputLimits) -> Self {
        let stream = || Stream {
            guard: guard.stream(),
            screen: Screen::default(),
            capture: Capture::new(limits.max_chars),
        };
        Self {
            guard: guard.clone(),
            numbering,
            limits,
            stdout: stream(),
            stderr: stream(),
            results: Vec::new(),
            results_dropped: 0,
            error: None,
            report: guard.report(),
            left: picture::MAX_INFLATED,
        }
    }

    /// Takes a chunk and returns what is ready to go out: for progress and for the spool.
    pub fn push(&mut self, chunk: OutputChunk) -> Vec<Sanitized<OutputChunk>> {
        let ready = match chunk {
            OutputChunk::Stdout(text) => {
                self.stdout.push(&text, &mut self.numbering).map(OutputChunk::Stdout)
            }
            OutputChunk::Stderr(text) => {
                self.stderr.push(&text, &mut self.numbering).map(OutputChunk::Stderr)
            }
            OutputChunk::Result(_) if self.results.len() >= self.limits.max_results => {
                self.results_dropped += 1;
                None
            }
            OutputChunk::Result(result) => {
                let result = self.result(result);
                self.results.push(result.clone());
                Some(OutputChunk::Result(result))
            }
            OutputChunk::Error(error) => {
                let error = self.error(error);
                // The first error is the cause; later ones follow from it.
                self.error.get_or_insert_with(|| error.clone());
                Some(OutputChunk::Error(error))
            }
        };
        if self.is_blocked() {
            return Vec::new();
        }
        ready.map(Sanitized::vouch).into_iter().collect()
    }

    /// Guards a whole file according to its content.
    ///
    /// # Errors
    /// [`Refused`] when the policy enforces and the file may not go out.
    pub fn file(&mut self, bytes: &[u8]) -> Result<Sanitized<Vec<u8>>, Refused> {
        let kind = FileKind::of(bytes);
        if kind == FileKind::Text {
            let text = std::str::from_utf8(bytes).map_err(|_| Refused::Opaque)?;
            return Ok(Sanitized::vouch(self.text_with_pictures(text).into_bytes()));
        }
        if self.report.mode == Mode::Off {
            return Ok(Sanitized::vouch(bytes.to_vec()));
        }
        if let Some((encoding, text)) = (kind == FileKind::Binary).then(|| container::decode(bytes)).flatten()
        {
            let clean = self.text_with_pictures(&text);
            let out = if clean == text { bytes.to_vec() } else { container::encode(encoding, &clean) };
            return Ok(Sanitized::vouch(out));
        }
        let before = self.report.total();
        let clean = match kind {
            FileKind::Form(format) => {
                picture::clean(&mut self.inspector(), format, bytes).ok_or(Seen::Opaque)
            }
            _ => match container::look(&mut self.inspector(), bytes) {
                Seen::Clean => Ok(bytes.to_vec()),
                seen => Err(seen),
            },
        };
        let clean = clean.map_err(|seen| match seen {
            Seen::Opaque if self.report.total() == before => Refused::Opaque,
            _ => Refused::Holds,
        });
        let lets_out = self.guard.policy().opaque_files == OpaqueFiles::LetOut;
        let out = match clean {
            Ok(clean) if self.report.mode == Mode::Enforce => clean,
            Ok(_) => bytes.to_vec(),
            Err(why) => {
                self.report.withheld += 1;
                if self.report.mode == Mode::Enforce && !(lets_out && why == Refused::Opaque) {
                    return Err(why);
                }
                bytes.to_vec()
            }
        };
        Ok(Sanitized::vouch(out))
    }

    /// Guards a text that is too long to be scanned whole, piece by piece from `from` to `to`. Findings that span lines are
    /// found as in printed output.
    ///
    /// # Errors
    /// Read and write errors, and text that is not UTF-8.
    pub fn long_text<W: Write>(&mut self, mut from: impl Read, mut to: W) -> std::io::Result<Sanitized<W>> {
        let mut stream = self.guard.stream();
        let mut piece = vec![0; PIECE];
        let mut kept = 0;
        loop {
            let read = from.read(&mut piece[kept..])?;
            if read == 0 {
                break;
            }
            let filled = kept + read;
            let whole = match std::str::from_utf8(&piece[..filled]) {
                Ok(text) => text,
                Err(cut) if cut.error_len().is_none() => {
                    std::str::from_utf8(&piece[..cut.valid_up_to()]).unwrap_or_default()
                }
                Err(wrong) => return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, wrong)),
            };
            let done = whole.len();
            to.write_all(stream.push(whole, &mut self.numbering).as_bytes())?;
            piece.copy_within(done..filled, 0);
            kept = filled - done;
        }
        if kept > 0 {
            return Err(std::io::ErrorKind::InvalidData.into());
        }
        let (rest, found) = stream.finish(&mut self.numbering);
        self.report.absorb(&found);
        to.write_all(rest.as_bytes())?;
        Ok(Sanitized::vouch(to))
    }

    /// A file that is too long to be inspected: it passes where opaque files may pass.
    ///
    /// # Errors
    /// [`Refused::Opaque`] where they may not.
    pub fn long_opaque<F>(&mut self, file: F) -> Result<Sanitized<F>, Refused> {
        if self.report.mode != Mode::Off {
            self.report.withheld += 1;
            let lets_out = self.guard.policy().opaque_files == OpaqueFiles::LetOut;
            if self.report.mode == Mode::Enforce && !lets_out {
                return Err(Refused::Opaque);
            }
        }
        Ok(Sanitized::vouch(file))
    }

    /// Whether a finding's action withholds the whole result. The run may as well be stopped.
    pub fn is_blocked(&self) -> bool {
        self.report.blocked || self.stdout.guard.report().blocked || self.stderr.guard.report().blocked
    }

    /// Ends the run. A blocked outcome keeps how the run ended, including the exit code, and none of its output.
    pub fn finish(mut self, ended: Ended, stops: Vec<StopReason>, duration: Duration) -> Guarded {
        let mut stdout = self.stdout.finish(&mut self.numbering, &mut self.report);
        let mut stderr = self.stderr.finish(&mut self.numbering, &mut self.report);
        let mut rest: Vec<_> = stdout.rest.take().map(OutputChunk::Stdout).into_iter().collect();
        rest.extend(stderr.rest.take().map(OutputChunk::Stderr));
        let rewritten = [stdout.rewritten, stderr.rewritten];
        // Text that is overwritten on the terminal may form a value that no single piece contained.
        let [stdout, stderr] = [stdout, stderr].map(|stream| match stream.rewritten {
            true => stream.capture.map(|text| self.guard.run(text, &mut self.numbering, &mut self.report)),
            false => stream.capture,
        });
        let outcome = Outcome {
            stdout,
            stderr,
            results: self.results,
            results_dropped: self.results_dropped,
            error: self.error,
            ended,
            stops,
            duration,
            rewritten: rewritten.contains(&true),
        };
        if self.report.blocked {
            rest.clear();
        }
        Guarded {
            rest: rest.into_iter().map(Sanitized::vouch).collect(),
            outcome: Sanitized::vouch(if self.report.blocked { silenced(outcome) } else { outcome }),
            rewritten,
            report: self.report,
            numbering: self.numbering,
        }
    }

    fn inspector(&mut self) -> picture::Inspector<'_> {
        picture::Inspector { guard: &self.guard, left: &mut self.left, report: &mut self.report }
    }

    /// A text, the pictures in it and the drawn parts in it.
    fn text_with_pictures(&mut self, text: &str) -> String {
        if self.report.mode == Mode::Off {
            return text.to_owned();
        }
        let Self { guard, numbering, report, left, .. } = self;
        Walk { guard, numbering, report, left }.text("", text)
    }

    fn text(&mut self, text: &str) -> String {
        self.guard.run(text, &mut self.numbering, &mut self.report)
    }

    fn error(&mut self, error: CodeError) -> CodeError {
        CodeError {
            name: self.text(&shown(&error.name)),
            message: self.text(&shown(&error.message)),
            traceback: self.text(&shown(&error.traceback)),
        }
    }

    fn result(&mut self, result: RichResult) -> RichResult {
        let mut formats = Map::new();
        for (format, content) in result.formats {
            let content = match content {
                Value::String(text) if READ.contains(&&*format) => Value::String(shown(&text)),
                other => other,
            };
            let content = self.content(&format, content);
            formats.insert(self.text(&format), content);
        }
        RichResult { formats, is_main: result.is_main }
    }

    /// One format of a result, by its content: a picture loses its text parts, what cannot be inspected is withheld,
    /// everything else is text or JSON.
    fn content(&mut self, format: &str, content: Value) -> Value {
        let enforced = self.report.mode == Mode::Enforce;
        if let Value::String(text) = &content
            && self.report.mode != Mode::Off
        {
            let binary = match Format::of(format) {
                Some(kind) => picture::strip(&mut self.inspector(), kind, text)
                    .map_or(picture::Content::Opaque, picture::Content::Clean),
                None => picture::content(&mut self.inspector(), format, text),
            };
            match binary {
                picture::Content::Clean(clean) if enforced => return Value::String(clean),
                picture::Content::Clean(_) => return content,
                picture::Content::Opaque => {
                    self.report.withheld += 1;
                    return if enforced { Value::String(WITHHELD.to_owned()) } else { content };
                }
                picture::Content::Text => {}
            }
        }
        // The content inside has the same media type, but JSON has its own names.
        let name = if format.contains('/') && !format.ends_with("json") { format } else { "" };
        let (value, report) = self.guard.json_within(name, content, &mut self.numbering, &mut self.left);
        self.report.absorb(&report);
        value.into_inner()
    }
}

/// Why a file may not go out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// The guard cannot inspect it.
    Opaque,
    /// It contains a finding that must be replaced, in a format in which nothing can be.
    Holds,
}

/// The type of a file, by its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// UTF-8 without a NUL that is not a PDF.
    Text,
    /// A picture or a PDF document.
    Form(Format),
    /// Something else: text in another encoding, an archive, a database, or a format that the guard cannot inspect.
    Binary,
}

impl FileKind {
    /// The type of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) if !text.contains('\0') => match picture::is_pdf_in_text(text) {
                true => Self::Form(Format::Pdf),
                false => Self::Text,
            },
            _ => Format::sniff(bytes).map_or(Self::Binary, Self::Form),
        }
    }
}

/// A display format that is kept as a file.
#[derive(Debug, Clone)]
pub struct Kept {
    /// `result-1.png`: the display's number, from 1, and its type.
    pub name: String,
    /// Its media type.
    pub mime_type: String,
    /// Its content.
    pub bytes: Sanitized<Vec<u8>>,
}

impl Sanitized<Outcome> {
    /// The pictures, documents and the like that the guard let pass, each once; and all displays as one text if they are
    /// longer than `max_chars`.
    pub fn attachments(&self, max_chars: usize) -> Vec<Kept> {
        let mut found: Vec<Kept> = Vec::new();
        for (at, result) in self.results.iter().enumerate() {
            for Attachment { extension, mime_type, bytes } in result.attachments() {
                if found.iter().any(|kept| *kept.bytes == bytes) {
                    continue;
                }
                let mut name = format!("result-{}.{extension}", at + 1);
                let mut count = 1;
                while found.iter().any(|kept| kept.name == name) {
                    count += 1;
                    name = format!("result-{}-{count}.{extension}", at + 1);
                }
                found.push(Kept { name, mime_type, bytes: Sanitized::vouch(bytes) });
            }
        }
        if let Some((text, kind)) = self.reading().filter(|(text, _)| text.chars().count() > max_chars) {
            let (name, mime_type) = match kind {
                Reading::Json => ("output.json", "application/json"),
                Reading::Text | Reading::Table => ("output.txt", "text/plain"),
            };
            let bytes = Sanitized::vouch(text.into_bytes());
            found.push(Kept { name: name.to_owned(), mime_type: mime_type.to_owned(), bytes });
        }
        found
    }
}

/// Formats that are read as text, and so as a terminal would show them.
const READ: [&str; 3] = ["text", "markdown", "latex"];

impl Guard {
    /// Guards an outcome again that was guarded and kept before, as reported in `before`. Earlier replacements stay; a value
    /// that is replaced only now gets a number if it has one already, because only the run that holds the context's turn issues
    /// new ones.
    pub fn recorded(
        &self,
        outcome: Outcome,
        before: &Report,
        numbering: Numbering,
    ) -> (Sanitized<Outcome>, Report) {
        let mut guard = OutcomeGuard::new(self, numbering.closed(), OutputLimits::default());
        let stdout = outcome.stdout.map(|text| guard.text(text));
        let stderr = outcome.stderr.map(|text| guard.text(text));
        let results = outcome.results.into_iter().map(|result| guard.result(result)).collect();
        let error = outcome.error.map(|error| guard.error(error));
        let outcome = Outcome { stdout, stderr, results, error, ..outcome };
        let outcome = if guard.report.blocked { silenced(outcome) } else { outcome };
        (Sanitized::vouch(outcome), guard.report.after(before))
    }

    /// Guards a file again that was guarded and kept before: an output (which may end within a character) or any other. `None`:
    /// it not go out.
    pub fn recorded_file(
        &self,
        bytes: &[u8],
        is_output: bool,
        numbering: Numbering,
    ) -> Option<Sanitized<Vec<u8>>> {
        let mut guard = OutcomeGuard::new(self, numbering.closed(), OutputLimits::default());
        let out = match is_output {
            true => Some(Sanitized::vouch(guard.text(&String::from_utf8_lossy(bytes)).into_bytes())),
            false => guard.file(bytes).ok(),
        };
        out.filter(|_| !guard.report.blocked)
    }
}

/// How a run ended, without its output.
fn silenced(outcome: Outcome) -> Outcome {
    let status = outcome.exit_code().to_string();
    let error = |_| CodeError { name: EXIT_STATUS.to_owned(), message: status, ..CodeError::default() };
    Outcome {
        stdout: Capture::default(),
        stderr: Capture::default(),
        results_dropped: outcome.results_dropped + outcome.results.len() as u64,
        results: Vec::new(),
        error: outcome.error.map(error),
        ..outcome
    }
}

/// The end of an output stream.
struct Streamed {
    capture: Capture,
    /// What was still held back.
    rest: Option<String>,
    rewritten: bool,
}

impl Stream {
    fn push(&mut self, text: &str, numbering: &mut Numbering) -> Option<String> {
        let ready = self.guard.push(text, numbering).into_inner();
        self.capture.push(&visible(&self.screen.push(&ready)));
        (!ready.is_empty()).then_some(ready)
    }

    fn finish(self, numbering: &mut Numbering, report: &mut Report) -> Streamed {
        let Self { guard, mut screen, mut capture } = self;
        let (rest, found) = guard.finish(numbering);
        report.absorb(&found);
        capture.push(&visible(&screen.push(&rest)));
        let (last, rewritten) = screen.finish();
        capture.push(&visible(&last));
        let rest = Some(rest.into_inner()).filter(|rest| !rest.is_empty());
        Streamed { capture, rest, rewritten }
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
    use serde_json::json;

    use super::*;
    use crate::guard::{Action, Kind, Policy};

    fn guard(mode: Mode, actions: &[(Kind, Action)]) -> Guard {
        let mut policy = Policy { mode, ..Policy::default() };
        policy.actions.extend(actions.iter().copied());
        Guard::new(policy).unwrap()
    }

    fn run(guard: &Guard) -> OutcomeGuard {
        OutcomeGuard::new(guard, Numbering::new([7; 32], []), OutputLimits::default())
    }

    fn ended(run: OutcomeGuard) -> Guarded {
        run.finish(Ended::Completed, Vec::new(), Duration::ZERO)
    }

    /// A GIF with a comment in it.
    fn gif() -> Vec<u8> {
        let comment = b"\x21\xfe\x15alice@example.com, 2026\0";
        [&b"GIF89a\x01\0\x01\0\x80\0\0\0\0\0\xff\xff\xff"[..], comment, &[0xf7, 0xbf, 0x9e, 0x3b].repeat(9)]
            .concat()
    }

    #[test]
    fn content_that_cannot_be_inspected_is_withheld_anywhere_in_a_result() {
        let (whole, url) = (STANDARD.encode(gif()), URL_SAFE_NO_PAD.encode(gif()));
        for content in [
            json!(whole),
            json!(format!(" {whole}")),
            json!(url),
            json!([whole]),
            json!({ "data": whole }),
            json!({ "value": [url] }),
        ] {
            let mut run = run(&Guard::default());
            run.push(OutputChunk::Result(RichResult {
                formats: Map::from_iter([("image/gif".to_owned(), content.clone())]),
                is_main: true,
            }));
            let done = ended(run);
            let shown = done.outcome.results[0].formats["image/gif"].to_string();
            let expected = content.to_string().replace(content_of(&content), WITHHELD);
            assert_eq!((shown, done.report.withheld), (expected, 1));
        }
    }

    fn content_of(value: &Value) -> &str {
        match value {
            Value::String(text) => text,
            Value::Array(items) => content_of(&items[0]),
            other => other.as_object().and_then(|fields| fields.values().next()).map_or("", content_of),
        }
    }

    #[test]
    fn report_only_counts_findings_in_pictures_and_documents() {
        let pdf = picture::tests::document(b"ask bob@example.com");
        let html = format!("<a href='data:application/zip;base64,{}'>", STANDARD.encode(gif()));
        for (file, found, withheld) in
            [(&pdf[..], 1, 1), (&gif(), 0, 1), (html.as_bytes(), 0, 1), (b"ask bob@example.com", 1, 0)]
        {
            let mut run = run(&guard(Mode::ReportOnly, &[]));
            assert_eq!(run.file(file).unwrap().get(), file);
            let report = ended(run).report;
            assert_eq!(
                (report.total(), report.withheld),
                (found, withheld),
                "{}",
                String::from_utf8_lossy(file)
            );
        }
        let formats = [
            ("application/pdf".to_owned(), json!(STANDARD.encode(pdf))),
            ("image/gif".to_owned(), json!(STANDARD.encode(gif()))),
            ("json".to_owned(), json!({ "image/gif": STANDARD.encode(gif()), "page": html })),
        ];
        let mut run = run(&guard(Mode::ReportOnly, &[]));
        run.push(OutputChunk::Result(RichResult { formats: Map::from_iter(formats.clone()), is_main: true }));
        let done = ended(run);
        assert_eq!(done.outcome.results[0].formats, Map::from_iter(formats));
        assert_eq!((done.report.total(), done.report.withheld), (1, 4));
        let mut run = self::run(&guard(Mode::Off, &[]));
        assert_eq!(run.file(&gif()).unwrap().get(), &gif());
        assert_eq!(ended(run).report.withheld, 0);
    }

    #[test]
    fn a_blocked_run_shows_only_how_it_ended() {
        for (name, message, status) in
            [("alice_of_example", "x", 1), ("SystemExit", "3", 3), ("SystemExit", "0", 0)]
        {
            let mut run = run(&guard(Mode::Enforce, &[(Kind::Email, Action::Block)]));
            run.push(OutputChunk::Stdout("alice@example.com\n".to_owned()));
            run.push(OutputChunk::Error(CodeError {
                name: name.to_owned(),
                message: message.to_owned(),
                traceback: String::new(),
            }));
            let outcome = ended(run).outcome;
            let error = outcome.error.clone().unwrap();
            assert_eq!((error.name.as_str(), error.message), ("ExitStatus", status.to_string()));
            assert_eq!(outcome.exit_code(), status);
        }
    }

    #[test]
    fn a_recorded_outcome_is_guarded_by_the_current_policy() {
        let allowing = guard(Mode::Enforce, &[(Kind::Ip, Action::Allow)]);
        let mut run = run(&allowing);
        run.push(OutputChunk::Stdout("bob@example.com from 185.12.44.9\n".to_owned()));
        let formats = Map::from_iter([("text".to_owned(), json!("shown"))]);
        run.push(OutputChunk::Result(RichResult { formats, is_main: true }));
        let done = ended(run);
        let again = |guard: &Guard, rows: Vec<_>| {
            let numbering = Numbering::new([7; 32], rows);
            let (outcome, report) =
                guard.recorded(done.outcome.clone().into_inner(), &done.report, numbering);
            (outcome.stdout.text(), outcome.results.len(), report)
        };
        let mut numbering = done.numbering.clone();
        let rows = numbering.take_fresh();

        // The same policy: nothing is new.
        let (text, _, report) = again(&allowing, rows.clone());
        assert_eq!((text.as_str(), &report), ("[EMAIL_1] from 185.12.44.9\n", &done.report));
        // A tighter one. A value without a number gets none, or it would collide with the next run's first.
        let (text, _, report) = again(&Guard::default(), rows.clone());
        assert_eq!(text, "[EMAIL_1] from [IP]\n");
        let counts: Vec<_> = report.by_kind().into_iter().collect();
        assert_eq!(counts, [(Kind::Email, 1), (Kind::Ip, 1)]);
        assert_eq!(report.policy_fingerprint, Guard::default().report().policy_fingerprint);
        let mut numbering = Numbering::new([7; 32], rows.clone());
        let (next, _) = Guard::default().text("5.9.11.77 and 185.12.44.9", &mut numbering);
        assert_eq!(next.get(), "[IP_1] and [IP_2]");
        let rows = rows.into_iter().chain(numbering.take_fresh()).collect();
        assert_eq!(again(&Guard::default(), rows).0, "[EMAIL_1] from [IP_2]\n");
        // One that withholds the whole result withholds all of it.
        let blocking = guard(Mode::Enforce, &[(Kind::Ip, Action::Block)]);
        let (text, results, report) = again(&blocking, Vec::new());
        assert_eq!((text.as_str(), results, report.blocked), ("", 0, true));
        let file = |is_output| {
            blocking.recorded_file(b"from 185.12.44.9\n", is_output, Numbering::alone()).is_none()
        };
        assert!(file(true) && file(false));
        let kept = Guard::default().recorded_file("from 185.12.44.9 é".as_bytes(), true, Numbering::alone());
        assert_eq!(kept.unwrap().get(), "from [IP] é".as_bytes());
    }
}
