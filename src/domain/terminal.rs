//! Output as a terminal would leave it, and characters that no one sees made visible.
//!
//! A progress bar draws five hundred frames over each other and leaves one. [`Screen`] keeps as many lines as a terminal
//! shows and lets go of those that scroll off it; text that moves no cursor passes as it is, at the speed of a copy.

use anstyle_parse::{DefaultCharAccumulator, Params, Parser, Perform};

/// Lines that a program can still reach with the cursor.
const LINES: usize = 50;
/// The furthest column that a jump reaches.
const MAX_COLUMN: usize = 1_000;
/// Plain text is flushed when this much has accumulated.
const LET_GO: usize = 16 * 1024;

/// A terminal without a width, fed by pieces of text.
#[derive(Default)]
pub struct Screen {
    /// What stands there while the cursor is at its end, which is nearly always.
    plain: String,
    /// The same by lines while the cursor is elsewhere.
    grid: Option<Grid>,
    parser: Parser<DefaultCharAccumulator>,
    /// Whether the parser is within a sequence.
    within: bool,
    rewritten: bool,
}

impl std::fmt::Debug for Screen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Screen").field("rewritten", &self.rewritten).finish_non_exhaustive()
    }
}

impl Screen {
    /// Takes a piece and gives back what no later piece can change.
    pub fn push(&mut self, text: &str) -> String {
        if self.grid.is_none() && !self.within && !text.bytes().any(is_control) {
            self.plain.push_str(text);
        } else {
            self.draw(text);
        }
        self.let_go()
    }

    /// The rest, and whether anything was written over, cleared or drawn out of order.
    pub fn finish(mut self) -> (String, bool) {
        self.settle(true);
        (self.plain, self.rewritten)
    }

    fn draw(&mut self, text: &str) {
        let mut grid = match self.grid.take() {
            Some(grid) => grid,
            None => {
                let from = self.tail();
                let grid = Grid::of(&self.plain[from..]);
                self.plain.truncate(from);
                grid
            }
        };
        for byte in text.bytes() {
            self.within = self.within && !grid.acted || byte == 0x1b;
            grid.acted = false;
            self.parser.advance(&mut grid, byte);
            self.within &= !grid.acted;
        }
        self.rewritten |= grid.rewritten;
        self.grid = Some(grid);
        self.settle(false);
    }

    /// Goes back to plain text where the cursor allows it, or must.
    fn settle(&mut self, at_once: bool) {
        let Some(grid) = self.grid.take_if(|grid| at_once || grid.is_at_end()) else { return };
        self.plain.push_str(&grid.text());
    }

    fn let_go(&mut self) -> String {
        if let Some(grid) = &mut self.grid {
            let off = grid.scroll_off();
            let mut gone = std::mem::take(&mut self.plain);
            gone.push_str(&off);
            return gone;
        }
        if self.plain.len() < LET_GO {
            return String::new();
        }
        let from = self.tail();
        let kept = self.plain.split_off(from);
        std::mem::replace(&mut self.plain, kept)
    }

    /// Where the lines begin that the cursor can reach.
    fn tail(&self) -> usize {
        memchr::memrchr_iter(b'\n', self.plain.as_bytes()).nth(LINES - 1).map_or(0, |at| at + 1)
    }
}

fn is_control(byte: u8) -> bool {
    byte < 0x20 && byte != b'\n' && byte != b'\t' || byte == 0x7f
}

/// The lines that the cursor can reach.
#[derive(Default)]
struct Grid {
    lines: Vec<Vec<char>>,
    row: usize,
    column: usize,
    rewritten: bool,
    /// Whether the last byte came to something.
    acted: bool,
}

impl Grid {
    fn of(text: &str) -> Self {
        let lines: Vec<Vec<char>> = text.split('\n').map(|line| line.chars().collect()).collect();
        let row = lines.len() - 1;
        let column = lines[row].len();
        Self { lines, row, column, rewritten: false, acted: false }
    }

    fn is_at_end(&self) -> bool {
        self.row + 1 == self.lines.len() && self.column == self.lines[self.row].len()
    }

    fn text(&self) -> String {
        let mut out = String::new();
        for (at, line) in self.lines.iter().enumerate() {
            if at > 0 {
                out.push('\n');
            }
            out.extend(line);
        }
        out
    }

    fn scroll_off(&mut self) -> String {
        let over = self.lines.len().saturating_sub(LINES).min(self.row);
        self.row -= over;
        let mut out = String::new();
        for line in self.lines.drain(..over) {
            out.extend(line);
            out.push('\n');
        }
        out
    }

    fn line_feed(&mut self) {
        self.row += 1;
        self.column = 0;
        if self.row == self.lines.len() {
            self.lines.push(Vec::new());
        }
    }

    /// Empties part of a line.
    fn erase(&mut self, row: usize, columns: std::ops::Range<usize>) {
        let line = &mut self.lines[row];
        let end = columns.end.min(line.len());
        if columns.start >= end {
            return;
        }
        self.rewritten |= line[columns.start..end].iter().any(|c| *c != ' ');
        if end == line.len() {
            line.truncate(columns.start);
        } else {
            line[columns.start..end].fill(' ');
        }
    }

    fn erase_rows(&mut self, rows: std::ops::Range<usize>) {
        for row in rows {
            self.erase(row, 0..usize::MAX);
        }
    }
}

impl Perform for Grid {
    fn print(&mut self, c: char) {
        self.acted = true;
        let line = &mut self.lines[self.row];
        if line.len() < self.column {
            line.resize(self.column, ' ');
        }
        match line.get_mut(self.column) {
            Some(there) => {
                self.rewritten |= *there != c && *there != ' ';
                *there = c;
            }
            None => line.push(c),
        }
        self.column += 1;
    }

    fn execute(&mut self, byte: u8) {
        self.acted = true;
        match byte {
            b'\n' | 0x0b | 0x0c => self.line_feed(),
            b'\r' => self.column = 0,
            0x08 => self.column = self.column.saturating_sub(1),
            // The bell, and what locks shifts of old terminals.
            0x07 | 0x0e | 0x0f => {}
            // A tab is kept, for text with columns; others are shown by name later.
            other => self.print(char::from(other)),
        }
    }

    fn csi_dispatch(&mut self, params: &Params, intermediates: &[u8], _ignore: bool, action: u8) {
        self.acted = true;
        if !intermediates.is_empty() {
            return;
        }
        let given: Vec<usize> =
            params.iter().map(|param| param.first().copied().unwrap_or(0).into()).collect();
        let number = |at: usize| given.get(at).copied().unwrap_or(0);
        let count = number(0).max(1);
        let last = self.lines.len() - 1;
        match action {
            b'A' | b'F' => self.row = self.row.saturating_sub(count),
            b'B' | b'E' => self.row = (self.row + count).min(last),
            b'C' => self.column = (self.column + count).min(MAX_COLUMN.max(self.column)),
            b'D' => self.column = self.column.saturating_sub(count),
            b'G' => self.column = (count - 1).min(MAX_COLUMN),
            b'H' | b'f' => {
                let top = self.lines.len().saturating_sub(LINES);
                self.row = (top + count - 1).min(last);
                self.column = number(1).clamp(1, MAX_COLUMN) - 1;
            }
            b'K' => match number(0) {
                0 => self.erase(self.row, self.column..usize::MAX),
                1 => self.erase(self.row, 0..self.column + 1),
                _ => self.erase(self.row, 0..usize::MAX),
            },
            b'J' => match number(0) {
                0 => {
                    self.erase(self.row, self.column..usize::MAX);
                    self.erase_rows(self.row + 1..self.lines.len());
                    self.lines.truncate(self.row + 1);
                }
                1 => {
                    self.erase_rows(0..self.row);
                    self.erase(self.row, 0..self.column + 1);
                }
                _ => {
                    self.erase_rows(0..self.lines.len());
                    *self = Self {
                        lines: vec![Vec::new()],
                        rewritten: self.rewritten,
                        acted: true,
                        ..Self::default()
                    };
                }
            },
            _ => {}
        }
        if matches!(action, b'E' | b'F') {
            self.column = 0;
        }
    }

    fn esc_dispatch(&mut self, _intermediates: &[u8], _ignore: bool, _byte: u8) {
        self.acted = true;
    }

    fn osc_dispatch(&mut self, _params: &[&[u8]], _bell_terminated: bool) {
        self.acted = true;
    }

    fn unhook(&mut self) {
        self.acted = true;
    }
}

/// A whole text as a terminal would leave it, with hidden characters shown.
///
/// ```
/// use pathbox::domain::terminal::shown;
/// assert_eq!(shown("10%\r20%\r\x1b[32mdone\x1b[0m\n"), "done\n");
/// assert_eq!(shown("pay\u{202e}05"), "pay\\u202e05");
/// ```
pub fn shown(text: &str) -> String {
    if !text.bytes().any(is_control) {
        return visible(text);
    }
    let mut screen = Screen::default();
    let mut out = screen.push(text);
    out.push_str(&screen.finish().0);
    visible(&out)
}

/// A text in which each character that no one sees and that changes what is read is written out as `\u202e`, two units
/// for one beyond the basic plane: so it stays JSON where it was.
pub fn visible(text: &str) -> String {
    if text.is_ascii() && !text.bytes().any(is_control) || !text.contains(is_hidden) {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_hidden(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        } else {
            out.push(c);
        }
    }
    out
}

/// A name as one line: what would break or turn it is written out.
pub fn one_line(name: &str) -> String {
    visible(name).replace('\n', "\\n").replace('\t', "\\t")
}

/// Controls except a line feed and a tab, characters that turn the direction of text, and tags.
fn is_hidden(c: char) -> bool {
    c.is_control() && c != '\n' && c != '\t'
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}')
        || matches!(c, '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn left(text: &str) -> (String, bool) {
        let mut screen = Screen::default();
        let mut out = screen.push(text);
        let (rest, rewritten) = screen.finish();
        out.push_str(&rest);
        (out, rewritten)
    }

    #[test]
    fn output_is_what_a_terminal_would_show() {
        for (raw, left_there, rewritten) in [
            ("plain\ttext\n", "plain\ttext\n", false),
            ("a\r\nb\r\n", "a\nb\n", false),
            ("10%\r20%\r100%\n", "100%\n", true),
            ("long line\rshort\n", "shortline\n", true),
            ("long line\r\x1b[Kshort\n", "short\n", true),
            ("\x1b[1;31merror\x1b[0m: x", "error: x", false),
            ("abc\x08\x08X", "aXc", true),
            ("one\ntwo\n\x1b[2A\x1b[2Knew\n\n", "new\ntwo\n", true),
            ("a\x1b[3Cb", "a   b", false),
            ("\x1b]8;;http://example.com\x07link\x1b]8;;\x07", "link", false),
            ("\x1b]0;title\x1b\\text", "text", false),
            ("before\x1b[H\x1b[2J\x1b[3Jafter", "after", true),
            ("ding\x07dong", "dingdong", false),
            ("\x1b[?25lhidden cursor\x1b[?25h", "hidden cursor", false),
            ("page\x0cnext", "page\nnext", false),
            ("cut \x1b[3", "cut ", false),
            ("é€😀\ré€😀!", "é€😀!", false),
            ("nul\0", "nul\0", false),
        ] {
            assert_eq!(left(raw), (left_there.to_owned(), rewritten), "{raw:?}");
        }
    }

    #[test]
    fn five_hundred_frames_leave_one() {
        let mut screen = Screen::default();
        let mut out = String::new();
        for frame in 0..500 {
            out.push_str(&screen.push(&format!("\r{frame:3}/500 |{}", "#".repeat(frame / 10))));
        }
        out.push_str(&screen.push("\ndone\n"));
        out.push_str(&screen.finish().0);
        assert_eq!(out, format!("499/500 |{}\ndone\n", "#".repeat(49)));
    }

    #[test]
    fn hidden_characters_are_shown_and_json_stays_json() {
        assert_eq!(
            visible("a\u{202e}b\u{0}\u{9b}\u{e0041}c\n\t"),
            "a\\u202eb\\u0000\\u009b\\udb40\\udc41c\n\t"
        );
        for kept in ["👨‍👩‍👧 ❤️ नमस्ते [EMAIL_1\u{200b}]", ""] {
            assert_eq!(visible(kept), kept);
        }
        assert_eq!(one_line("报告 é\n2\t\u{7}.txt"), "报告 é\\n2\\t\\u0007.txt");
        let value = serde_json::json!({"x": "a\u{202e}\u{e0041}b"});
        let back: serde_json::Value = serde_json::from_str(&visible(&value.to_string())).unwrap();
        assert_eq!(back, value);
    }

    proptest! {
        #[test]
        fn however_it_is_cut_it_leaves_the_same(
            parts in proptest::collection::vec(
                prop_oneof!["[a-z é😀]{0,5}", Just("\r".to_owned()), Just("\n".to_owned()), Just("\u{8}".to_owned()),
                    "\u{1b}\\[[0-9]{0,2}[ABCDGHJKm]", Just("\u{1b}]0;t\u{7}".to_owned()), Just("\n".repeat(60))], 0..30),
            cuts in proptest::collection::vec(0_usize..200, 0..10),
        ) {
            let text = parts.concat();
            let (whole, rewritten) = left(&text);
            let mut screen = Screen::default();
            let (mut out, mut rest) = (String::new(), text.as_str());
            for cut in cuts {
                let (now, later) = rest.split_at(rest.floor_char_boundary(cut.min(rest.len())));
                out.push_str(&screen.push(now));
                rest = later;
            }
            out.push_str(&screen.push(rest));
            let (last, again) = screen.finish();
            out.push_str(&last);
            // How far up the cursor reaches depends on what has scrolled off, and that is looked at after each piece.
            if !text.contains(&"\n".repeat(40)) {
                prop_assert_eq!(out, whole);
                prop_assert_eq!(again, rewritten);
            }
        }

        #[test]
        fn text_without_controls_passes_as_it_is(text in "[^\\p{Cc}]{0,300}(\n[^\\p{Cc}]{0,40}){0,80}") {
            prop_assert_eq!(left(&text), (text, false));
        }
    }
}
