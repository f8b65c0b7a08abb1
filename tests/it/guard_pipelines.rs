//! A table of personal data in every layout in which pandas, tabulate, sqlite3, Python and Node print one: none of it
//! is left, and the text beside it is unchanged.
//!
//! `tests/fixtures/guard/layouts.py` and `layouts.mjs` generate the texts, in one process each.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use pathbox::guard::{Guard, Numbering};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Layouts {
    values: BTreeMap<String, Vec<String>>,
    rows: Value,
    texts: BTreeMap<String, String>,
}

/// Columns of kinds that are allowed by default.
const LET_THROUGH: [&str; 3] = ["name", "address", "birth_date"];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn output(command: &mut Command, input: &str) -> String {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}; scripts/test installs what it needs"));
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success(), "{command:?}");
    String::from_utf8(out.stdout).unwrap()
}

fn layouts() -> Layouts {
    let env = root().join("target/test-env");
    let fixtures = root().join("tests/fixtures/guard");
    // Separate from pandas, which has its own environment.
    let beside = |dir: &Path| {
        let lib =
            std::fs::read_dir(dir.join("lib")).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
        let python = lib.flatten().map(|entry| entry.path()).find(|path| path.join("site-packages").exists());
        python.unwrap().join("site-packages")
    };
    let mut python = Command::new(env.join("documents/bin/python"));
    python.arg(fixtures.join("layouts.py")).env("PYTHONPATH", beside(&env.join("tabulate")));
    python.env("PYTHONIOENCODING", "utf-8");
    let mut made: Layouts = serde_json::from_str(&output(&mut python, "")).unwrap();
    let mut node = Command::new("node");
    let rows = made.rows.to_string();
    let more = output(node.arg(fixtures.join("layouts.mjs")), &rows);
    made.texts.extend(serde_json::from_str::<BTreeMap<String, String>>(&more).unwrap());
    made
}

#[test]
fn no_personal_value_is_left_of_a_table_in_any_layout() {
    let layouts = layouts();
    let guard = Guard::default();
    assert!(layouts.texts.len() > 200 && layouts.values.len() == 17);
    let (mut seen, mut left) = (BTreeMap::<&str, usize>::new(), Vec::new());
    for (layout, text) in &layouts.texts {
        let (out, report) = guard.text(text, &mut Numbering::alone());
        assert_eq!(report.errors, 0, "{layout}");
        for (column, values) in
            layouts.values.iter().filter(|(column, _)| !LET_THROUGH.contains(&column.as_str()))
        {
            let here = values.iter().filter(|value| text.contains(value.as_str())).count();
            let count = values.iter().filter(|value| out.contains(value.as_str())).count();
            *seen.entry(column).or_default() += here;
            if count > 0 {
                left.push(format!("{layout}: {count} of {here} in {column}"));
            }
        }
    }
    assert!(left.is_empty(), "{left:#?}");
    // Each column could be found.
    assert!(seen.len() == 14 && seen.values().all(|count| *count > 600), "{seen:?}");
}

/// The text in pieces of this many bytes.
fn in_pieces(guard: &Guard, text: &str, most: usize) -> String {
    let (mut stream, mut numbering) = (guard.stream(), Numbering::alone());
    let (mut out, mut rest) = (String::new(), text);
    while !rest.is_empty() {
        let end = (most.min(rest.len())..=rest.len()).find(|at| rest.is_char_boundary(*at)).unwrap();
        out.push_str(&stream.push(&rest[..end], &mut numbering));
        rest = &rest[end..];
    }
    out.push_str(&stream.finish(&mut numbering).0);
    out
}

#[test]
fn a_table_is_recognised_however_it_is_coloured_wrapped_or_broken() {
    const ID: &str = "278198104";
    let guard = Guard::default();
    let names: Vec<String> = (0..300).map(|at| format!("col{at}")).collect();
    let wide = |value: &str, between: &str, width: usize, count: usize| {
        let mut cells: Vec<String> = names[..count].iter().map(|name| format!("{name:>width$}")).collect();
        cells[count - 1] = format!("{value:>width$}");
        cells.join(between)
    };
    let key = format!(
        "-----BEGIN PRIVATE KEY-----\\n{}\\n-----END PRIVATE KEY-----\\n",
        "MIIEvQIBADANBgkq".repeat(4)
    );
    let long: Vec<String> = (0..600).map(|at| format!("{{\"id\": {at}, \"bsn\": \"{ID}\"}}")).collect();
    let series: String = (0..60).map(|at| format!("{at}     {ID}\n")).collect();
    let texts = [
        // Terminal commands and invisible characters.
        format!("\x1b[1mid\x1b[0m,\x1b[1mbsn\x1b[0m,\x1b[1mname\x1b[0m\n1,{ID},x\n"),
        "id,bsn,name\n\x1b[31m1,27819\x1b[0m8104,x\n".to_owned(),
        format!("\x1b[1mid   bsn        name\x1b[0m\n\x1b[32m1    {ID}  Liam\x1b[0m\n"),
        format!("id\t\x1b[7mbsn\x1b[27m\n1\t{ID}\n"),
        format!("id,bsn\n1,\x1b]8;;http://x\x07{ID}\x1b]8;;\x07\n"),
        format!("id,b\u{200b}sn,name\n1,{ID},x\n"),
        "id,bsn,name\n1,2781\u{200b}98104,x\n2,２７８１９８１０４,x\n".to_owned(),
        format!("\u{feff}bsn,name\n{ID},x\n"),
        format!("id,\u{200f}bsn\u{200e},name\n1,\u{202d}{ID}\u{202c},x\n"),
        // All line ends.
        format!("id,bsn,name\r1,{ID},x\r2,{ID},y\r"),
        format!("id,bsn,name\r\r\n1,{ID},x\r\r\n"),
        format!("loading...\rid,bsn,name\nloading 5%\r1,{ID},x\n"),
        format!("id,bsn,name\u{c}1,{ID},x\u{b}2,{ID},x\u{85}3,{ID},x\u{2028}4,{ID},x\n"),
        // Quotes that do not end where they should.
        format!("id,note,bsn\n1,\"never closed,{ID}\n2,ok,{ID}\n3,ok,{ID}\n"),
        format!("id,bsn,note\n1,{ID},\"begins\nhere and\nends\",\n2,{ID},x\n"),
        format!("id,note,bsn\n1,\"two\nlines\",{ID}\n2,ok,{ID}\n"),
        // Tables in strings, and strings in tables.
        format!("{{\"out\": \"id,bsn,name\\r\\n1,{ID},x\\r\\n2,{ID},y\\r\\n\"}}\n"),
        format!("b'id,bsn,name\\n1,{ID},x\\n'\n"),
        format!("run | output\n1 | {{\"out\": \"   id        bsn\\n0   1  {ID}\\n\"}}\n"),
        format!("id,payload\n1,\"{{\"\"bsn\"\": \"\"{ID}\"\"}}\"\n"),
        // A replacement beside a value, by the guard or forged.
        format!("id   bsn        name\n1    {ID}  [EMAIL_1]\n2    {ID}  [EMAIL_1]\n"),
        format!("  id        bsn mail\n0  1  {ID} a@example.org\n"),
        format!("{{\"private_key\": \"{key}\", \"bsn\": \"{ID}\"}}\n"),
        format!("id,key,bsn\n1,\"{}\",{ID}\n2,x,{ID}\n", key.replace("\\n", "\n")),
        // Boxes with other characters in their head, HTML over several lines, without ends of cells, and with tags in them.
        format!("│ id  ┆ bsn       │\n│ --- ┆ ---       │\n╞═════╪═══════════╡\n│ 1   ┆ {ID} │\n"),
        format!("┃ id ┃ bsn       ┃\n┡━━━━╇━━━━━━━━━━━┩\n│ 1  │ {ID} │\n"),
        format!(
            "<table>\n<tr>\n<th>\n id\n</th>\n<th>\n bsn\n</th>\n</tr>\n<tr>\n<td>\n 1\n</td>\n<td>\n {ID}\n</td>\n</tr>\n"
        ),
        format!("<table><tr><th>id<th>bsn<tr><td>1<td>{ID}</table>\n"),
        format!(
            "<table><tr><th>id</th><th\n class=\"x\">bsn</th></tr><tr><td\n>1</td><td\n>{ID}</td></tr>\n"
        ),
        format!("<table><tr><th>id</th><th><b>bsn</b></th></tr><tr><td>1</td><td><b>{ID}</b></td></tr>\n"),
        // With a prefix on each line: marks of quotations and diffs, numbers, file names, times.
        format!("> id,bsn,name\n> 1,{ID},x\n"),
        format!("    id,bsn,name\n    1,{ID},x\n+id,bsn,x\n+1,{ID},x\n"),
        format!("users.csv:1:bsn,name\nusers.csv:2:{ID},x\n"),
        format!("     1\tid,bsn\n     2\t1,{ID}\n"),
        format!("web-1  | id,bsn\nweb-1  | 1,{ID}\n"),
        format!("2026-01-31T10:00:00Z      id        bsn\n2026-01-31T10:00:01Z  0    1  {ID}\n"),
        format!(
            "2026-01-31 10:00:00,123 - app - INFO - id,bsn\n2026-01-31 10:00:00,124 - app - INFO - 1,{ID}\n"
        ),
        format!("2026-01-31T10:00:00.1Z stdout F  id |    bsn\n2026-01-31T10:00:00.2Z stdout F   1 | {ID}\n"),
        format!("web-1  | +----+-----------+\nweb-1  | | id | bsn       |\nweb-1  | | 1  | {ID} |\n"),
        format!("INFO:root:    id        bsn\nINFO:root:0    1  {ID}\n"),
        format!("[pod/web/app] id|bsn\n[pod/web/app] 1|{ID}\n"),
        format!("# bsn,id\n# {ID},1\n"),
        format!(
            "│ (index) │ 0    │ 1           │\n│ 0       │ 'id' │ 'bsn'       │\n│ 1       │ '1'  │ '{ID}' │\n"
        ),
        // The spaces that erased a progress bar, and blank lines between rows as on Windows.
        format!("\r  5%|█  | 1/9\r          \rid,bsn\n\r 10%|██ | 2/9\r          \r1,{ID}\n"),
        format!("id,bsn\r\n\r\n1,{ID}\r\n\r\n2,{ID}\r\n"),
        // Rows that are strings of a list, on one line and on several; numpy arrays; an unquoted number that was replaced.
        format!("['id,bsn', '1,{ID}', '2,{ID}']\n"),
        format!("['id,bsn',\n '1,{ID}',\n '2,{ID}']\n"),
        format!("[\n  \"bsn,id\",\n  \"{ID},1\"\n]\n"),
        format!("['id', 'bsn']\n[[1 '{ID}']\n [2 '{ID}']]\nIndex(['x', 'bsn'], dtype='str')\n[[1 '{ID}']]\n"),
        format!("{{'bsn': {{0: {ID},\n         1: {ID},\n         2: {ID}}}}}\n"),
        // Tables of Jira and MediaWiki under an index, and of SQLite in HTML.
        format!(
            "||    || id || bsn ||\n| 0  | 1 | {ID} |\n{{|\n|-\n!    !! id !! bsn\n|-\n| 0  || 1  || {ID}\n|}}\n"
        ),
        format!("<TR><TH>id</TH>\n<TH>bsn</TH>\n</TR>\n<TR><TD>1</TD>\n<TD>{ID}</TD>\n</TR>\n"),
        format!("qty   created   bsn\n365   2026-07-25   {ID}\n492   2012-05-03   {ID}\n"),
        format!("│ id        bsn │\n│  1  {ID} │\n"),
        // Transposed, and under the names of an index.
        format!(
            "            phone   amount\nbsn       no              \n{ID} 1  0871234567   5.5\n{ID} 2  0871234567   5.5\n"
        ),
        format!(",0,1\nname,x,y\nbsn,{ID},{ID}\nnote,a,b\n"),
        format!("│ bsn ┆ {ID} ┆ {ID} │\n│ ppsn ┆ null ┆ 1234567FA │\n"),
        format!("             amount\nx   bsn          \nCZ  {ID}  1004.10\n    {ID}    99.95\n"),
        // Lists and arrays after their name, over several lines.
        format!("bsn: [\n  [\n    \"{ID}\",\n    \"{ID}\"\n  ]\n]\n"),
        format!("bsn = ('{ID}', '{ID}', '{ID}', '{ID}', '{ID}', '{ID}')\nbsn: [{ID} {ID} {ID} {ID} {ID}]\n"),
        format!("Series: 'bsn' [i64]\n[\n\t{ID}\n\t{ID}\n\t{ID}\n\t{ID}\n\t{ID}\n]\n"),
        format!("<xarray.DataArray 'bsn' (id: 2)> Size: 16B\narray([{ID}, {ID},\n       {ID}])\n"),
        // SQL statements in logs.
        format!(
            "09:00 INFO Engine INSERT INTO t (id, bsn) VALUES (?, ?)\n09:00 INFO Engine [generated in 0.006s] [(1, '{ID}'), (2, '{ID}')]\n"
        ),
        // Wide, long, and with the name last.
        format!("IE  1    {ID}\n    2    {ID}\nName: bsn, dtype: int64\n"),
        format!("id   名前        bsn        x\n1    山田太郎太郎    {ID}  1\n"),
        format!("{}\n{}\n", wide("bsn", ",", 0, 300), wide(ID, ",", 0, 300)),
        format!("{}\n{}\n", wide("bsn", "  ", 10, 100), wide(ID, "  ", 10, 100)),
        format!("{{\"pad\": \"{}\", \"rows\": [{}]}}\n", "p".repeat(40_000), long.join(", ")),
        format!("{series}Name: bsn, dtype: int64\n"),
    ];
    for text in texts {
        let whole = guard.text(&text, &mut Numbering::alone()).0.into_inner();
        let plain = whole.replace("\x1b[0m", "").replace(['\u{200b}', '\u{202c}'], "");
        assert!(!plain.contains(ID) && !plain.contains("２７８"), "{text:.300} became {plain:.300}");
        assert!(whole.contains("[NATIONAL_ID_1]"), "{whole:.300}");
        let again = guard.text(&whole, &mut Numbering::alone()).0.into_inner();
        assert_eq!(again.replace('\u{200b}', ""), whole.replace('\u{200b}', ""), "{text:.300}");
        for most in [1, 7, 64, 1000] {
            if text.len() < 2000 * most {
                assert_eq!(in_pieces(&guard, &text, most), whole, "{text:.300} in pieces of {most}");
            }
        }
    }
}

#[test]
fn code_below_a_comment_or_argument_names_is_unchanged() {
    let guard = Guard::default();
    for text in [
        "        # pwd module unavailable, return path unchanged\n        return path\n    name = path[1:i]\n    if isinstance(name, bytes):\n        name = str(name, 'ASCII')\n",
        "    @pytest.mark.parametrize(\n        \"obj, key, exp\",\n        [\n            (1, 2, 3),\n            (\n                pd.IndexSlice[:, False],\n                pd.Series([1], name=False),\n            ),\n",
        "from .exceptions import InvalidPaginationToken, UnsupportedCharacter\n            raise UnsupportedCharacter(code=code, char=char)\n",
    ] {
        assert_eq!(*guard.text(text, &mut Numbering::alone()).0, text);
    }
}
