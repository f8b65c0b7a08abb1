//! Data and custom code: figures worked out by hand or from their definition, files of every make, and code that fails.

use pathbox::analysis::{self, Kind, OutputFormat, Program, RESULT_FORMAT};
use serde_json::{Value, json};

use crate::analysis_run::{answers, each, golden, output, refusal, run_cells};

fn csv(text: &str, operations: Value) -> Value {
    json!({"csv": text, "operations": operations})
}

#[test]
fn data_by_hand() {
    let sales = "region,amount,day\nN,10,2024-01-01\nS,20,2024-01-02\nN,30,2024-01-03\nS,40,2024-01-05\n,50,2024-01-05\n";
    let do_ = |operation: Value| csv(sales, json!([operation]));
    golden(
        Kind::DataAnalysis,
        vec![
            // 10, 20, 30, 40, 50: mean 30, deviation √(1000/4) = 15.8113883008
            (
                "description",
                do_(json!({"do": "describe", "columns": ["amount"]})),
                vec![
                    ("/rows", json!(5)),
                    ("/results/0/columns/0/sum", json!("150")),
                    ("/results/0/columns/0/mean", json!("30")),
                    ("/results/0/columns/0/stdev", json!("15.8113883008")),
                    ("/results/0/columns/0/q1", json!("20")),
                    ("/results/0/columns/0/median", json!("30")),
                    ("/results/0/columns/0/max", json!("50")),
                ],
            ),
            (
                "missing",
                do_(json!({"do": "missing"})),
                vec![
                    ("/results/0/complete_rows", json!(4)),
                    ("/results/0/columns/0/missing", json!(1)),
                    ("/results/0/columns/0/share", json!("0.200000")),
                ],
            ),
            (
                "groups",
                do_(
                    json!({"do": "group_by", "by": ["region"], "measures": [{"function": "count"}, {"function": "sum", "column": "amount"}, {"function": "median", "column": "amount"}]}),
                ),
                vec![
                    ("/results/0/groups/0", json!({"group": ["N"], "rows": 2, "values": [2, "40", "20"]})),
                    ("/results/0/groups/2", json!({"group": [null], "rows": 1, "values": [1, "50", "50"]})),
                ],
            ),
            (
                "pivot",
                do_(json!({"do": "pivot", "rows": "region", "across": "day", "column": "amount"})),
                vec![
                    ("/results/0/columns/3", json!("2024-01-05")),
                    (
                        "/results/0/cells/1",
                        json!({"row": "S", "values": [null, "20", null, "40"], "total": "60"}),
                    ),
                ],
            ),
            // days 0, 1, 2, 4, 4 against 10 … 50: Σdx² = 12.8, Σdxdy = 110, Σdy² = 1000: slope 8.59375, r² = 110²/12800
            (
                "trend over days",
                do_(json!({"do": "trend", "x": "day", "y": "amount"})),
                vec![
                    ("/results/0/slope", json!("8.59375")),
                    ("/results/0/intercept", json!("11.09375")),
                    ("/results/0/r_squared", json!("0.9453125")),
                    ("/results/0/x_unit", json!("days from 2024-01-01")),
                ],
            ),
            (
                "correlation",
                do_(json!({"do": "correlation", "columns": ["day", "amount"]})),
                vec![("/results/0/pairs/0/r", json!("0.972271824132"))],
            ),
            // ranks 1, 2, 3, 4.5, 4.5 against 1 … 5: Σdx² = 9.5, Σdxdy = 9.5, r = 9.5 / √95
            (
                "rank correlation with a tie",
                do_(json!({"do": "correlation", "columns": ["day", "amount"], "method": "spearman"})),
                vec![("/results/0/pairs/0/r", json!("0.974679434481"))],
            ),
            // 1, 2, 3, 4, 100: quartiles 2 and 4, so beyond -1 and 7
            (
                "outliers by quartiles",
                csv("x\n1\n2\n3\n4\n100\n", json!([{"do": "outliers", "column": "x"}])),
                vec![
                    ("/results/0/low", json!("-1")),
                    ("/results/0/high", json!("7")),
                    ("/results/0/rows", json!([{"row": 5, "value": "100"}])),
                ],
            ),
            // median 3, deviations 2 1 0 1 97: median 1; 3.5 × 1 / 0.6745 = 5.18902891030
            (
                "outliers by median",
                csv("x\n1\n2\n3\n4\n100\n", json!([{"do": "outliers", "column": "x", "method": "mad"}])),
                vec![("/results/0/count", json!(1)), ("/results/0/high", json!("8.189028910304"))],
            ),
            (
                "no outlier by deviations",
                csv("x\n1\n2\n3\n4\n100\n", json!([{"do": "outliers", "column": "x", "method": "zscore"}])),
                vec![("/results/0/count", json!(0))],
            ),
            (
                "decimal commas",
                csv("n;v\na;1.234,50\nb;2,25\n", json!([{"do": "describe", "columns": ["v"]}])),
                vec![("/results/0/columns/0/sum", json!("1236.75"))],
            ),
            (
                "thousands with commas",
                csv("v\tw\n\"1,234.50\"\t1\n\"2.25\"\t2\n", json!([{"do": "describe", "columns": ["v"]}])),
                vec![("/results/0/columns/0/sum", json!("1236.75"))],
            ),
            (
                "parentheses around an amount are a minus",
                csv(
                    "a;b;c;d\n(1,234.50);(12.00) EUR;$ (3);(9\n2.50;1.00 EUR;($4.50);(8)\n",
                    json!([{"do": "describe"}]),
                ),
                vec![
                    ("/results/0/columns/0/sum", json!("-1232.00")),
                    ("/results/0/columns/1/sum", json!("-11.00")),
                    ("/columns/1/unit", json!("EUR")),
                    ("/columns/2/type", json!("text")),
                    ("/results/0/columns/2/top/0/value", json!("$ (3)")),
                    ("/columns/3/type", json!("text")),
                ],
            ),
            (
                "but not where no other cell is a number",
                csv("a,b,c\n(1),(2),(007)\n(3),n/a,1\n(4),note (2),2\n", json!([{"do": "describe"}])),
                vec![
                    ("/columns/0/type", json!("text")),
                    ("/results/0/columns/0/top/0/value", json!("(1)")),
                    ("/columns/1/type", json!("text")),
                    ("/columns/2/type", json!("text")),
                ],
            ),
            (
                "tenths stay tenths",
                csv("v\n0.1\n0.2\n0.3\n", json!([{"do": "describe"}])),
                vec![("/results/0/columns/0/sum", json!("0.6")), ("/results/0/columns/0/mean", json!("0.2"))],
            ),
            (
                "quotes, line ends and lines inside",
                csv("a,b\r\n\"x, \"\"y\"\"\r\nz\",1\r\n", json!([{"do": "describe"}])),
                vec![("/rows", json!(1)), ("/results/0/columns/0/top/0/value", json!("x, \"y\"  z"))],
            ),
            (
                "numbers that are none are counted",
                csv("v\n1\n2\n3\n4\n5\n6\n7\n8\n9\nten\n", json!([{"do": "describe"}])),
                vec![
                    ("/columns/0", json!({"name": "v", "type": "number", "missing": 0, "invalid": 1})),
                    ("/results/0/columns/0/count", json!(9)),
                ],
            ),
            (
                "marks of what is missing",
                csv("v\n1\nN/A\nnull\n-\n?\n", json!([{"do": "missing"}])),
                vec![("/columns/0/type", json!("text"))],
            ),
            (
                "marks of one's own",
                json!({"csv": "v\n1\nN/A\nnull\n-\n?\n", "missing_marks": ["?"]}),
                vec![("/columns/0", json!({"name": "v", "type": "number", "missing": 4, "invalid": 0}))],
            ),
            (
                "uneven rows and headings",
                csv("a,,a\n1\n1,2,3,4\n", json!([{"do": "missing"}])),
                vec![
                    ("/columns/1/name", json!("column_2")),
                    ("/columns/2/name", json!("a_2")),
                    ("/columns/2/missing", json!(1)),
                ],
            ),
            (
                "records",
                json!({"records": [{"a": 1, "b": true}, {"a": 2.5}, {"b": false, "c": {"x": 1}}]}),
                vec![
                    ("/rows", json!(3)),
                    ("/columns/0", json!({"name": "a", "type": "number", "missing": 1, "invalid": 0})),
                    ("/columns/1/type", json!("flag")),
                    ("/columns/2/type", json!("text")),
                ],
            ),
            ("no rows", json!({"records": []}), vec![("/rows", json!(0)), ("/columns", json!([]))]),
            (
                "a heading alone",
                csv("a,b\n", json!([{"do": "describe"}, {"do": "correlation"}, {"do": "missing"}])),
                vec![("/rows", json!(0)), ("/results/0/columns/0/type", json!("empty"))],
            ),
            (
                "a mean of small numbers is not 0",
                csv("x\n1e-13\n2e-13\n4.5e-13\n", json!([{"do": "describe"}])),
                vec![
                    ("/results/0/columns/0/mean", json!("0.00000000000025")),
                    ("/results/0/columns/0/q1", json!("0.00000000000015")),
                ],
            ),
            (
                "numbers of any size have a mean; beyond what can be squared they are counted as invalid",
                csv("x,y\n1e50,1e400\n3e50,1\n", json!([{"do": "describe"}])),
                vec![
                    ("/results/0/columns/0/mean", json!(format!("2{}", "0".repeat(50)))),
                    ("/columns/1/invalid", json!(1)),
                ],
            ),
            (
                "a column of one value has no deviation",
                csv("x\n0.1\n0.1\n0.1\n", json!([{"do": "describe"}])),
                vec![("/results/0/columns/0/stdev", json!("0"))],
            ),
            (
                "zeros before digits are kept",
                csv(
                    "zip,n\n02134,1\n02134,2\n90210,3\n",
                    json!([{"do": "group_by", "by": ["zip"], "measures": [{"function": "sum", "column": "n"}]}]),
                ),
                vec![
                    ("/columns/0/type", json!("text")),
                    ("/results/0/groups/0", json!({"group": ["02134"], "rows": 2, "values": ["3"]})),
                ],
            ),
            // 0, 6 and 12 hours against 1, 2 and 3: 4 a day
            (
                "times of day count",
                csv(
                    "at,v\n2024-01-01T00:00:00Z,1\n2024-01-01 06:00Z,2\n2024-01-01T12:00:00.000Z,3\n",
                    json!([{"do": "describe"}, {"do": "trend", "x": "at", "y": "v", "predict": ["2024-01-02T00:00"]},
                        {"do": "time_series", "date": "at", "period": "day", "measures": [{"function": "sum", "column": "v"}]}]),
                ),
                vec![
                    ("/results/0/columns/0/distinct", json!(3)),
                    ("/results/0/columns/0/max", json!("2024-01-01T12:00:00")),
                    ("/results/1/slope", json!("4")),
                    ("/results/1/predicted/0/y", json!("5")),
                    ("/results/2/groups", json!([{"group": ["2024-01-01"], "rows": 3, "values": ["6"]}])),
                ],
            ),
            (
                "a minus before the unit",
                csv("v\n€10\n-€2.50\n€-1\n", json!([{"do": "describe"}])),
                vec![("/columns/0/unit", json!("€")), ("/results/0/columns/0/sum", json!("6.50"))],
            ),
            (
                "midnights are days",
                csv("at\n2024-01-01T00:00:00\n2024-01-03\n", json!([{"do": "describe"}])),
                vec![("/results/0/columns/0/max", json!("2024-01-03"))],
            ),
            (
                "a range of days is not a day",
                csv("at\n2024-01-01 to 2024-02-01\n2024-01-01 to 2024-03-01\n", json!([{"do": "describe"}])),
                vec![("/columns/0/type", json!("text")), ("/results/0/columns/0/distinct", json!(2))],
            ),
            (
                "a trend counts from the first day that it uses",
                csv(
                    "d,v\n2024-01-01,\n2024-01-11,10\n2024-01-12,11\n",
                    json!([{"do": "trend", "x": "d", "y": "v"}]),
                ),
                vec![
                    ("/results/0/x_unit", json!("days from 2024-01-11")),
                    ("/results/0/intercept", json!("10")),
                ],
            ),
            (
                "nothing varies",
                csv("a,b\n1,2\n1,3\n", json!([{"do": "correlation"}, {"do": "trend", "x": "a", "y": "b"}])),
                vec![("/results/0/pairs/0/r", json!(null)), ("/results/1/slope", json!(null))],
            ),
        ],
    );
}

#[test]
fn files_in_every_encoding_and_dialect_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let utf16: Vec<u8> = [0xFEFF_u16]
        .into_iter()
        .chain("stadt,n\nKöln,1\n".encode_utf16())
        .flat_map(u16::to_le_bytes)
        .collect();
    let sources = [
        file("bom.csv", b"\xef\xbb\xbfstadt,n\nK\xc3\xb6ln,1\n"),
        file("windows.csv", b"stadt;n\r\nK\xf6ln;1\r\n"),
        file("wide.csv", &utf16),
        file("tab.tsv", "stadt\tn\nKöln\t1\n".as_bytes()),
        file("list.json", r#"[{"stadt": "Köln", "n": 1}]"#.as_bytes()),
        file("lines.jsonl", "{\"stadt\": \"Köln\", \"n\": 1}\n\n".as_bytes()),
        file("separators.jsonl", "{\"stadt\": \"Köln\", \"n\": 1, \"note\": \"a\u{2028}b\"}\r\n".as_bytes()),
        file("excel.csv", "sep=|\r\nstadt|n\r\nKöln|1\r\n".as_bytes()),
    ];
    let calls = sources.iter().map(|path| json!({"file": path, "operations": [{"do": "describe"}]}));
    for (path, report) in sources.iter().zip(each(Kind::DataAnalysis, calls)) {
        let output = report.unwrap().output;
        assert_eq!(output["results"][0]["columns"][0]["name"], "stadt", "{path}");
        assert_eq!(output["results"][0]["columns"][0]["top"][0]["value"], "Köln", "{path}");
        assert_eq!(output["results"][0]["columns"][1]["sum"], "1", "{path}");
    }
    // A heading may begin as a Parquet file does.
    let parameters = file("parameters.csv", b"PAR1,PAR2\n1,2\n");
    let call = json!({"file": parameters, "operations": [{"do": "describe"}]});
    let report = each(Kind::DataAnalysis, [call]).remove(0).unwrap();
    assert_eq!(report.output["results"][0]["columns"][0]["name"], "PAR1");
    for (parameters, said) in [
        (json!({"file": "/nowhere/at/all.csv"}), "file: the file cannot be read (FileNotFoundError)"),
        (json!({"file": "a\u{0}b"}), "file: the file cannot be read"),
        (json!({"file": dir.path().to_str().unwrap()}), "file: the file cannot be read"),
        (json!({"file": file("no.json", b"{")}), "file: line 1 is not valid JSON"),
        (json!({"file": file("no.jsonl", b"{\"a\": 1}\n{\"a\": 2\n")}), "file: line 2 is not valid JSON"),
        (
            json!({"file": file("book.csv", b"PK\x03\x04\x14\0")}),
            "it is a ZIP archive, such as an Excel workbook",
        ),
        (
            json!({"file": file("table.parquet", b"PAR1\x15\x04")}),
            "file: the file is not a text: it is Parquet",
        ),
        (
            json!({"file": file("no-mark.csv", b"a\0,\0b\0")}),
            "file: the file is not a text: it holds NUL characters",
        ),
        (
            json!({"csv": "a,b\n1,2\n\"x,1\n2,3\n"}),
            "csv: a quote in the row that begins in line 3 is not closed",
        ),
        (
            json!({"csv": "Sales of 2024\n\nregion,amount\nN,5\nS,6\n"}),
            "csv: the first line has 1 field and most rows have more",
        ),
        (
            json!({"file": file("nested.json", "[".repeat(100_000).as_bytes())}),
            "file: line 1 is not valid JSON",
        ),
        (json!({"file": file("object.json", b"{\"a\": 1}")}), "file: the file holds no list of objects"),
        (
            json!({"file": file("latin.csv", b"a\n\xff\n"), "encoding": "utf-8"}),
            "encoding: the file is not utf-8",
        ),
        (json!({"file": file("empty.csv", b"")}), "file: there is no heading line"),
        (json!({"file": "x", "csv": "a"}), "exactly one of records, csv or file is needed, not csv and file"),
        (
            json!({"csv": "a\n1\n", "operations": [{"do": "trend", "x": "a"}]}),
            "operations[0].y: trend needs x, y; for instance {",
        ),
        (
            json!({"csv": "a\n1\n", "operations": [{"do": "trend", "x": "b", "y": "a"}]}),
            "operations[0].x: there is no column 'b'; there are: a",
        ),
        (
            json!({"csv": "a\nx\n", "operations": [{"do": "outliers", "column": "a"}]}),
            "operations[0].column: column 'a' holds text, not number",
        ),
        (
            json!({"csv": "a\nx\n", "operations": [{"do": "correlation", "columns": ["a"]}]}),
            "column 'a' holds text",
        ),
        (
            json!({"csv": "a\n1\n", "operations": [{"do": "chart", "x": "a", "y": "a"}, {"do": "chart", "x": "a", "y": "a"}]}),
            "operations: one chart a call",
        ),
        (json!({"csv": "a\n1\n", "delimiter": "\n"}), "delimiter: this cannot separate fields"),
    ] {
        let refused = refusal(Kind::DataAnalysis, parameters.clone());
        assert!(refused.contains(said), "{parameters}: {refused}");
    }
}

#[test]
fn numbers_are_read_as_each_country_writes_them() {
    for (cells, sum) in [
        (["1\u{a0}234,50", "12\u{202f}345,60", "7,00"], "13587.10"),
        (["1'234.50", "12\u{2019}345.60", "7.00"], "13587.10"),
        (["1,23,456.00", "12,34,567.50", "1.00"], "1358024.50"),
        (["\u{2212}5.5", "\u{2212}3", "7"], "-1.5"),
        (["1 234", "5 678", "12"], "6924"),
    ] {
        let rows: Vec<Value> = cells.iter().map(|cell| json!({"n": cell})).collect();
        let output = output(Kind::DataAnalysis, json!({"records": rows, "operations": [{"do": "describe"}]}));
        assert_eq!(output["results"][0]["columns"][0]["sum"], sum, "{cells:?}");
    }
    let output = output(Kind::DataAnalysis, json!({"csv": "n\n1 234 5678\n1.234 567\n1'234,567\n"}));
    assert_eq!(output["columns"][0]["type"], "text", "no number has two kinds of groups");
}

#[test]
fn no_column_is_lost_to_another_of_its_name() {
    let parameters = json!({"csv": "k,v,v,v_2\n1,2,3,4\n", "join": {"csv": "k,v\n1,9\n", "on": ["k"]}});
    let report = answers(&[(Kind::DataAnalysis, parameters, OutputFormat::Json)]).remove(0).unwrap();
    let names: Vec<&str> =
        report.output["columns"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["k", "v", "v_2", "v_2_2", "v_3"]);
    assert_eq!(report.output["results"][0]["columns"][4]["sum"], "9");
    assert!(report.notes[0].contains("v (column 3) is v_2, v_2 (column 4) is v_2_2"), "{:?}", report.notes);
}

#[test]
fn a_result_that_is_too_large_is_refused_with_what_to_do() {
    let message = refusal(Kind::Custom, json!({"code": "['x' * 100] * 100_000"}));
    assert!(message.contains("the result is larger than 4 MiB; ask for fewer columns"), "{message}");
}

#[test]
fn two_hundred_thousand_rows_are_described_and_related() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.csv");
    let mut text = "id,group,amount\n".to_owned();
    for n in 0..200_000_u64 {
        text.push_str(&format!("{n},{},{}.{:02}\n", ["a", "b", "c"][(n % 3) as usize], n % 1_000, n % 100));
    }
    std::fs::write(&path, text).unwrap();
    let output = output(
        Kind::DataAnalysis,
        json!({"file": path, "operations": [
        {"do": "describe"}, {"do": "group_by", "by": ["group"], "measures": [{"function": "sum", "column": "amount"}]}, {"do": "correlation"}, {"do": "outliers", "column": "amount"}]}),
    );
    // each thousand rows sum to 499,500 and ten times 0 … 99 hundredths, 495
    assert_eq!(output["results"][0]["columns"][2]["sum"], "99999000.00");
    assert_eq!(output["results"][0]["columns"][0]["sum"], "19999900000");
    assert_eq!(output["results"][1]["groups_in_all"], 3);
}

#[test]
fn a_chart_is_a_picture_beside_the_report_or_a_reason() {
    let checked = analysis::check(
        Kind::DataAnalysis,
        &csv("d,$v$\n2024-01-01,1\n2024-01-02,3\n", json!([{"do": "chart", "x": "d", "y": "$v$"}])),
    )
    .unwrap();
    let ran = run_cells(&[Program::new(&checked, OutputFormat::Json).code]).remove(0);
    let said = &ran.formats[RESULT_FORMAT];
    let chart = &said["output"]["results"][0];
    if chart["drawn"] == true {
        assert!(ran.formats["image/png"].as_str().unwrap().starts_with("iVBOR"));
    } else {
        assert_eq!(chart["reason"], "matplotlib is not installed");
        assert!(!ran.formats.contains_key("image/png"));
    }
}

/// Two bars at one place would hide each other, and so would two long names that begin alike.
#[test]
fn each_row_is_seen_in_a_chart() {
    const DRAWING: &str = "import sys, types
drawn = []
class Axes:
    def __getattr__(self, name):
        return lambda *given, **how: drawn.append([name, *map(list, given)])
class Figure:
    def __init__(self, **how): pass
    def add_subplot(self): return Axes()
    def autofmt_xdate(self): pass
    def savefig(self, file, **how): file.write(b'picture')
for name in ('matplotlib', 'matplotlib.backends', 'matplotlib.backends.backend_agg', 'matplotlib.figure'):
    sys.modules[name] = types.ModuleType(name)
sys.modules['matplotlib.figure'].Figure = Figure
sys.modules['matplotlib.backends.backend_agg'].FigureCanvasAgg = Figure.autofmt_xdate";
    let chart = |rows: &str, kind: &str| {
        let operation = json!([{"do": "chart", "kind": kind, "x": "name", "y": "n"}]);
        let checked = analysis::check(Kind::DataAnalysis, &csv(rows, operation)).unwrap();
        Program::new(&checked, OutputFormat::Json).code
    };
    let long = "l".repeat(40);
    let cells = [
        DRAWING.to_owned(),
        chart("name,n\na,1\nb,2\na,3\n", "bar"),
        chart(&format!("name,n\n{long}1,1\n{long}2,2\n{long}1,3\n,4\n"), "scatter"),
        "[given for given in drawn if given[0] in ('bar', 'scatter')]".to_owned(),
        "drawn[3][1:]".to_owned(),
    ];
    let ran = run_cells(&cells);
    assert_eq!(ran[1].formats["image/png"], "cGljdHVyZQ==");
    assert_eq!(
        ran[3].formats["text/plain"],
        "[['bar', [0, 1, 2], [1.0, 2.0, 3.0]], ['scatter', [0, 1, 0], [1.0, 2.0, 3.0]]]"
    );
    assert_eq!(ran[4].formats["text/plain"], "[[0, 1, 2], ['a', 'b', 'a']]");
    let notes = &ran[2].formats[RESULT_FORMAT]["notes"];
    assert_eq!(notes, &json!(["Not in the chart: 1 row without a value."]));
}

#[test]
fn custom_code_gives_its_last_expression_or_its_result() {
    let code = |code: &str| json!({"code": code, "params": {"x": 2, "rate": 0.1, "text": "'; 1/0 #", "list": [true, null]}});
    let value = |value: Value| vec![("/success", json!(true)), ("/result", value), ("/error", json!(null))];
    let failure = |name: &str, message: &str, trace: &str| {
        vec![
            ("/success", json!(false)),
            ("/error", json!({"name": name, "message": message, "traceback": trace})),
        ]
    };
    golden(
        Kind::Custom,
        vec![
            ("last expression", code("y = params['x'] * 21\ny"), value(json!(42))),
            (
                "result",
                code("result = {'a': params['x']}\nfor n in range(3): result['a'] += n"),
                value(json!({"a": 5})),
            ),
            ("a value goes before result", code("result = 1\n2"), value(json!(2))),
            ("nothing", code("x = 1"), value(json!(null))),
            ("a call for its effect", code("result = [1]\nresult.append(2)"), value(json!([1, 2]))),
            ("parameters are data", code("params['text']"), value(json!("'; 1/0 #"))),
            ("true and null", code("params['list']"), value(json!([true, null]))),
            ("floats", code("params['rate'] * 3 == 0.1 * 3"), value(json!(true))),
            (
                "decimals",
                json!({"code": "params['rate'] * 3", "params": {"rate": 0.1}, "numbers": "decimal"}),
                value(json!("0.3")),
            ),
            (
                "decimal by default precision",
                code("import decimal\ndecimal.Decimal(1) / 3"),
                value(json!("0.3333333333333333333333333333")),
            ),
            (
                "dates, sets, tuples, bytes",
                code("import datetime\n[datetime.date(2024, 2, 29), {3, 1, 2}, (1,), b'x']"),
                value(json!(["2024-02-29", [1, 2, 3], [1], "b'x'"])),
            ),
            ("what is no number", code("[float('nan'), float('inf')]"), value(json!(["nan", "inf"]))),
            ("large numbers", code("2 ** 70"), value(json!("1180591620717411303424"))),
            (
                "functions see each other",
                code("def f(n): return g(n) + 1\ndef g(n): return n * 2\nf(4)"),
                value(json!(9)),
            ),
            (
                "an exception",
                code("def f():\n    return params['nope']\nf()"),
                failure("KeyError", "'nope'", "line 3: f()\nline 2: return params['nope']"),
            ),
            (
                "a syntax error",
                code("x = = 1"),
                failure("SyntaxError", "invalid syntax (<analysis>, line 1)", "line 1: x = = 1"),
            ),
            ("an exit", code("import sys\nsys.exit(3)"), failure("SystemExit", "3", "line 2: sys.exit(3)")),
            (
                "a circle",
                code("l = []\nl.append(l)\nl"),
                vec![
                    ("/success", json!(false)),
                    ("/error/message", json!("the result is nested more than 50 levels deep")),
                ],
            ),
            (
                "a flood",
                code("list(range(10**6))"),
                vec![
                    ("/success", json!(false)),
                    ("/error/message", json!("the result has more than 200000 values")),
                ],
            ),
            (
                "a liar",
                code("class Liar:\n    def __repr__(self): raise OSError('no')\nLiar()"),
                vec![("/success", json!(false)), ("/error/name", json!("OSError"))],
            ),
            (
                "endless recursion",
                code("def f(): return f()\nf()"),
                vec![("/success", json!(false)), ("/error/name", json!("RecursionError"))],
            ),
            ("a half character", code("'\\ud800'"), vec![("/result", json!("\\ud800"))]),
            (
                "keys that read alike",
                code("{1: 'a', '1': 'b', 2: 'c'}"),
                vec![("/result", json!({"1": "a", "'1'": "b", "2": "c"}))],
            ),
            // As `value_counts()` of pandas.
            (
                "a column with an index",
                code(
                    "class Frame:\n    columns = ['index', 'count']\n    def to_dict(self, how): return [{'index': 'x', 'count': 2}]\n\
                      class Names(list):\n    nlevels, names = 1, [None]\nclass Counts:\n    index, name = Names('x'), 'count'\n    def __len__(self): return 1\n    \
                      def reset_index(self): return Frame()\n    def tolist(self): return [2]\nCounts()",
                ),
                vec![("/result", json!([{"index": "x", "count": 2}]))],
            ),
        ],
    );
}

#[test]
fn custom_code_runs_apart_from_the_context_and_prints_to_it() {
    let cell = |code: &str| {
        let checked = analysis::check(Kind::Custom, &json!({"code": code})).unwrap();
        Program::new(&checked, OutputFormat::Summary).code
    };
    let ran = run_cells(&[
        "mine = 1".to_owned(),
        cell("print('seen'); 'mine' in globals()"),
        cell("mine = 2"),
        "mine".to_owned(),
        cell("raise KeyboardInterrupt"),
    ]);
    assert_eq!(ran[1].printed, "seen\n");
    assert!(ran[1].formats[RESULT_FORMAT]["text"].as_str().unwrap().contains("The result is no."));
    assert_eq!(ran[3].formats["text/plain"], "1");
    assert_eq!(ran[4].error.as_deref(), Some("KeyboardInterrupt"), "the platform sees an interrupt");
}

#[test]
fn rows_that_custom_code_gives_become_a_table() {
    let parameters = json!({"code": "[{'name': 'a|b', 'n': 1}, {'name': 'c', 'n': 20}]"});
    let report = answers(&[(Kind::Custom, parameters, OutputFormat::Table)]).remove(0).unwrap();
    assert!(
        report.text.contains("| name |   n |\n| ---- | --: |\n| a\\|b |   1 |\n| c    |  20 |"),
        "{}",
        report.text
    );
}

fn filled(value: Value, records: Value) -> Value {
    json!({"records": records, "fill": [{"column": "v", "with": "value", "value": value}],
        "operations": [{"do": "group_by", "by": ["v"], "measures": [{"function": "count"}]}]})
}

#[test]
fn a_value_that_fills_holes_is_one_of_its_column() {
    let groups = |parameters: Value| output(Kind::DataAnalysis, parameters)["results"][0]["groups"].clone();
    let group = |key: &str, rows: u32| json!({"group": [key], "rows": rows, "values": [rows]});
    let texts = json!([{"v": "x"}, {"v": "3"}, {"v": null}]);
    assert_eq!(groups(filled(json!(3), texts.clone())), json!([group("3", 2), group("x", 1)]));
    assert_eq!(groups(filled(json!({"k": 1}), texts))[2], group("{\"k\": 1}", 1));
    let euros = json!([{"v": "5 EUR"}, {"v": null}]);
    assert_eq!(groups(filled(json!("5.00 EUR"), euros.clone())), json!([group("5", 2)]));
    for (value, records, kind) in [
        (json!("7 USD"), euros, "number in EUR"),
        (json!("NaN"), json!([{"v": 1}, {"v": null}]), "number"),
        (json!("Infinity"), json!([{"v": 1}, {"v": null}]), "number"),
        (json!("maybe"), json!([{"v": true}, {"v": null}]), "flag"),
        (json!("soon"), json!([{"v": "2024-02-29"}, {"v": null}]), "date"),
    ] {
        let refused = refusal(Kind::DataAnalysis, filled(value.clone(), records));
        assert!(
            refused.contains(&format!("fill[0].value: column 'v' holds {kind}, which this is not")),
            "{refused}"
        );
    }
    // A column without any value becomes what fills it.
    let sums = json!({"records": [{"v": null}, {"v": null}], "fill": [{"column": "v", "with": "value", "value": "2.5"}]});
    assert_eq!(output(Kind::DataAnalysis, sums)["results"][0]["columns"][0]["sum"], "5.0");
}

#[test]
fn large_numbers_keep_what_they_differ_in() {
    let big = 9_007_199_254_740_992_i64; // 2^53, from which on doubles skip numbers
    let records: Vec<Value> =
        (0..3).map(|n| json!({"v": (big + n).to_string(), "w": n, "c": "0.1"})).collect();
    let operations = json!([{"do": "describe", "columns": ["v"]}, {"do": "correlation", "columns": ["v", "w"]},
        {"do": "trend", "x": "v", "y": "w", "predict": [(big + 7).to_string()]}, {"do": "trend", "x": "w", "y": "c"}]);
    let results =
        &output(Kind::DataAnalysis, json!({"records": records, "operations": operations}))["results"];
    assert_eq!(results[0]["columns"][0]["stdev"], "1");
    assert_eq!(results[1]["pairs"][0]["r"], "1");
    assert_eq!((&results[2]["slope"], &results[2]["predicted"][0]["y"]), (&json!("1"), &json!("7")));
    assert_eq!(
        (&results[3]["slope"], &results[3]["r_squared"]),
        (&json!("0"), &json!(null)),
        "it does not vary"
    );
    let far = output(Kind::DataAnalysis, json!({"csv": "v\n1e100\n1\n-1e100\n"}));
    assert_eq!(far["results"][0]["columns"][0]["sum"], "1");
}

#[test]
fn a_join_matches_what_is_known_and_says_what_it_repeats() {
    let join = |records: Value, second: Value| {
        let call = json!({"records": records, "join": {"records": second, "on": ["id"]}, "operations": [
            {"do": "group_by", "by": ["z"], "measures": [{"function": "sum", "column": "v"}]}]});
        each(Kind::DataAnalysis, [call]).remove(0).unwrap()
    };
    let report = join(
        json!([{"id": null, "v": 1}, {"id": 2.0, "v": 2}]),
        json!([{"id": null, "z": "none"}, {"id": 2, "z": "a"}, {"id": "2", "z": "b"}]),
    );
    let groups: Vec<&Value> = report.output["results"][0]["groups"]
        .as_array()
        .unwrap()
        .iter()
        .map(|group| &group["group"][0])
        .collect();
    assert_eq!(groups, ["a", "b"]);
    assert_eq!(
        report.notes,
        [
            "1 row of the first table matched several of the second and is repeated, so a sum counts it several times.",
            "1 row of the first table found no match in the second and was left out."
        ]
    );
}

#[test]
fn long_pivots_and_series_count_everything() {
    let wide: Vec<Value> = (0..150).map(|n| json!({"r": "a", "c": format!("c{n}"), "v": 1})).collect();
    let pivot =
        json!({"records": wide, "operations": [{"do": "pivot", "rows": "r", "across": "c", "column": "v"}]});
    let cells = &output(Kind::DataAnalysis, pivot)["results"][0]["cells"][0];
    assert_eq!((cells["values"].as_array().unwrap().len(), &cells["total"]), (100, &json!("150")));
    let days = json!({"records": [{"d": "2020-01-01", "v": 1}, {"d": "2023-12-31", "v": 1}], "operations": [
        {"do": "time_series", "date": "d", "period": "day", "measures": [{"function": "sum", "column": "v"}]}]});
    let series = &output(Kind::DataAnalysis, days)["results"][0];
    assert_eq!(series["groups"].as_array().unwrap().len(), 1461, "four years, one with a leap day");
}
