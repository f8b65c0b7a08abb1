//! Whole documents of the kinds that an analysis prints pass every entry point of the guard unchanged, byte for byte.
//!
//! They are generated rather than stored: long, and full of numbers that a rule could mistake for something else. None
//! contains a number with the form and the check digit of an identifier, so every finding is a false alarm.

use std::fmt::Write as _;

use pathbox::guard::{Guard, Numbering};
use serde_json::{Value, json};

/// A linear congruential generator (Knuth's MMIX constants): always the same documents.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    /// An amount with cents, from 100 to `limit`.
    fn amount(&mut self, limit: u64) -> f64 {
        (self.below(limit * 100) + 10_000) as f64 / 100.0
    }

    fn pick<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len() as u64) as usize]
    }

    fn hex(&mut self, len: usize) -> String {
        (0..len).map(|_| char::from(b"0123456789abcdef"[self.below(16) as usize])).collect()
    }
}

const ACTS: [&str; 6] = ["TCA 1997", "VATCA 2010", "CATCA 2003", "SDCA 1999", "SWCA 2005", "FA 2023"];
const COUNTRIES: [&str; 8] = ["IE", "DE", "FR", "NL", "ES", "IT", "PL", "SE"];

/// `1234567.8` with commas: `1,234,567.80`.
fn grouped(amount: f64) -> String {
    let cents = (amount * 100.0).round() as u64;
    let mut whole = (cents / 100).to_string();
    let mut at = whole.len();
    while at > 3 {
        at -= 3;
        whole.insert(at, ',');
    }
    format!("{whole}.{:02}", cents % 100)
}

fn pandas_table(n: &mut Numbers) -> String {
    let mut out =
        String::from("     employee_no      gross      paye      usc     prsi        net  rate  period\n");
    for row in 0..300 {
        let gross = n.amount(120_000);
        let (paye, usc, prsi) = (gross * 0.2134, gross * 0.0312, gross * 0.042);
        let net = gross - paye - usc - prsi;
        let (rate, month) = ((paye + usc + prsi) / gross, row % 12 + 1);
        writeln!(
            out,
            "{row:<4} {:>11} {gross:>10.2} {paye:>9.2} {usc:>8.2} {prsi:>8.2} {net:>10.2} {rate:.3} 2026-{month:02}",
            100_123 + row * 37,
        )
        .unwrap();
    }
    out + "\n[300 rows x 8 columns]\nName: net, Length: 300, dtype: float64\n"
}

fn markdown_comparison(n: &mut Numbers) -> String {
    let mut out = String::from(
        "# Directive 2006/112/EC against Directive (EU) 2025/516\n\n\
         Key: **A** agreed, **D** draft. Password-protected annexes are left out.\n\n\
         | Article | CELEX | Text before | Text after | OJ |\n|---:|---|---|---|---|\n",
    );
    for row in 0..120 {
        let (article, year) = (row + 1, 1977 + row % 49);
        writeln!(
            out,
            "| {article}({})({}) | 3{year}L{:04} | threshold EUR {} | EUR {} ({:+.1} %) | OJ L {}, {}.{}.{year}, p. {}-{} |",
            n.below(9) + 1,
            n.pick(&["a", "b", "c"]),
            n.below(3000),
            grouped(n.amount(90_000)),
            grouped(n.amount(90_000)),
            n.amount(20) - 110.0,
            n.below(350) + 1,
            n.below(28) + 1,
            n.below(12) + 1,
            n.below(90) + 1,
            n.below(90) + 91,
        )
        .unwrap();
    }
    out + "\nSee ECLI:EU:C:2023:961, S.I. No. 639/2010 and [2024] IESC 12, paras 44-57.\n"
}

fn json_records(n: &mut Numbers) -> Value {
    let record = |n: &mut Numbers, id: u64| {
        json!({
            "id": 100_000 + id,
            "key": format!("rates/{}/{}", n.pick(&COUNTRIES), 2019 + id % 8),
            "uuid": format!("{}-{}-4{}-8{}-{}", n.hex(8), n.hex(4), n.hex(3), n.hex(3), n.hex(12)),
            "amount": n.amount(5_000_000),
            "token_count": n.below(4096),
            "hash": format!("sha256:{}", n.hex(64)),
            "reference": format!("INV-{}-{:06}", 2019 + id % 8, n.below(999_999)),
            "account": format!("{}-{}", 4000 + n.below(900), 100 + n.below(800)),
            "at": format!("2026-{:02}-{:02}T10:45:{:02}.123Z", n.below(12) + 1, n.below(28) + 1, n.below(60)),
            "basis": format!("{}, s. {}({})", n.pick(&ACTS), n.below(900) + 1, n.below(9) + 1),
            "passwordRequired": id.is_multiple_of(2),
            "secret": null,
        })
    };
    Value::Array((0..200).map(|id| record(n, id)).collect())
}

fn vega_chart(n: &mut Numbers) -> Value {
    let values: Vec<Value> = (0..150)
        .map(|row| json!({"key": n.pick(&COUNTRIES), "year": 2005 + row % 21, "revenue": n.amount(9_000_000), "share": n.below(10_000) as f64 / 1e4}))
        .collect();
    json!({
        "$schema": "https://vega.github.io/schema/vega-lite/v5.20.1.json",
        "data": {"values": values},
        "mark": {"type": "line", "point": true},
        "encoding": {
            "x": {"field": "year", "type": "temporal", "axis": {"format": "%Y"}},
            "y": {"field": "revenue", "type": "quantitative", "title": "Revenue (kEUR)"},
            "color": {"field": "key", "legend": {"title": "Key"}, "scale": {"range": ["#1f77b4", "#ff7f0e", "#2ca02c"]}},
        },
        "usermeta": {"embedOptions": {"renderer": "svg"}, "sortKey": "revenue"},
    })
}

fn svg_chart(n: &mut Numbers) -> String {
    let mut out = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 640 480\" class=\"key\">\n<title>Key rates</title>\n",
    );
    for row in 0..150 {
        let (x, y, height) = (row * 4, n.amount(300), n.amount(200));
        writeln!(
            out,
            "<rect id=\"r{row}\" x=\"{x}\" y=\"{y:.3}\" width=\"3.5\" height=\"{height:.3}\" fill=\"#{}\"/>",
            n.hex(6)
        )
        .unwrap();
        write!(out, "<path d=\"M{x},{y:.2} C").unwrap();
        for _ in 0..6 {
            write!(out, "{:.4} {:.4},", n.amount(600), n.amount(400)).unwrap();
        }
        writeln!(
            out,
            "Z\"/><text x=\"{x}\" y=\"470\" transform=\"rotate(-90)\">{}</text>",
            grouped(n.amount(900_000))
        )
        .unwrap();
    }
    out + "</svg>\n"
}

fn traceback(n: &mut Numbers) -> String {
    let frames = [
        ("/workspace/report.py", "<module>", "main(sys.argv[1:])"),
        ("/workspace/report.py", "main", "rates = load(Path(args.path), key=args.key)"),
        ("/workspace/rates.py", "load", "return parse(path.read_text(), token=Token.NUMBER)"),
        ("/workspace/parser.py", "parse", "token = next(tokens)"),
        ("/workspace/parser.py", "tokens", "yield Token(kind, value=match.group(0), pos=match.start())"),
        (
            "/usr/lib/python3.12/re/__init__.py",
            "finditer",
            "return _compile(pattern, flags).finditer(string)",
        ),
        (
            "/usr/lib/python3.12/site-packages/pandas/core/frame.py",
            "__getitem__",
            "indexer = self.columns.get_loc(key)",
        ),
        (
            "/usr/lib/python3.12/site-packages/pandas/core/indexes/base.py",
            "get_loc",
            "raise KeyError(key) from err",
        ),
        ("/workspace/auth.py", "login", "session = authenticate(user, password=password)"),
        ("/workspace/auth.py", "authenticate", "if not hmac.compare_digest(secret, expected_secret):"),
        ("/workspace/auth.py", "secret", "return os.environ[\"REPORT_SECRET\"]"),
        ("<frozen os>", "__getitem__", "raise KeyError(key) from None"),
    ];
    let mut out = String::new();
    for error in ["KeyError: 'REPORT_SECRET'", "ValueError: password must have at least 12 characters, got 0"]
    {
        if !out.is_empty() {
            out.push_str("\nDuring handling of the above exception, another exception occurred:\n\n");
        }
        out.push_str("Traceback (most recent call last):\n");
        for (file, name, line) in frames {
            let marks = "^".repeat(line.len() - 4);
            writeln!(
                out,
                "  File \"{file}\", line {}, in {name}\n    {line}\n    ~~~~{marks}",
                n.below(4000) + 1
            )
            .unwrap();
        }
        writeln!(out, "{error}").unwrap();
    }
    out
}

fn latex_table(n: &mut Numbers) -> String {
    let mut out = String::from(
        "\\begin{longtable}{@{}lrrr@{}}\n\\caption{Key figures, \\cite{oecd2024key}}\\label{tab:key}\\\\\n\\toprule\nKey & 2024 & 2025 & \
         $\\Delta$ \\\\\n\\midrule\n",
    );
    for row in 0..150 {
        writeln!(
            out,
            "\\S~{}({}) & {} & {} & ${:+.4}\\times10^{{-{}}}$ \\\\",
            row + 1,
            n.pick(&["a", "b", "c"]),
            grouped(n.amount(900_000)).replace(',', "\\,"),
            grouped(n.amount(900_000)).replace(',', "\\,"),
            n.amount(100) - 150.0,
            n.below(9) + 1,
        )
        .unwrap();
    }
    out + "\\bottomrule\n\\end{longtable}\n"
}

fn notebook(n: &mut Numbers) -> Value {
    let cells: Vec<Value> = (0..40)
        .map(|cell| {
            let table: Vec<String> =
                (0..10).map(|row| format!("{row}  {:>12.2}  {:>8.4}\n", n.amount(80_000), n.below(10_000) as f64 / 1e4)).collect();
            json!({
                "cell_type": "code",
                "id": n.hex(8),
                "execution_count": cell + 1,
                "metadata": {"tags": ["parameters"]},
                "source": ["token = tokens[0]\n", "key = lambda row: row[\"net\"]\n", "df.sort_values(\"net\", key=abs).head(10)\n", "password = getpass.getpass(\"Password: \")"],
                "outputs": [{"output_type": "execute_result", "execution_count": cell + 1, "metadata": {}, "data": {"text/plain": table}}],
            })
        })
        .collect();
    json!({
        "nbformat": 4, "nbformat_minor": 5, "cells": cells,
        "metadata": {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}, "language_info": {"version": "3.12.7"}},
    })
}

fn html_report(n: &mut Numbers) -> String {
    let mut out = String::from(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Key rates</title>\n<style>.key{color:#1f77b4} td::after{content:\"\\2014\"}</style>\n\
         </head><body>\n<h1 id=\"key\">Key</h1><p>Forgot your password? See <a href=\"/account/password/edit\">settings</a>.</p>\n<table>\n\
         <tr><th>Token</th><th>Key</th><th>Amount</th><th>Section</th></tr>\n",
    );
    for row in 0..150 {
        writeln!(
            out,
            "<tr data-key=\"row-{row}\"><td>{}</td><td>{}</td><td class=\"num\">&euro;{}</td><td>{} s.&nbsp;{}</td></tr>",
            n.below(500),
            n.pick(&COUNTRIES),
            grouped(n.amount(900_000)),
            n.pick(&ACTS),
            n.below(900) + 1,
        )
        .unwrap();
    }
    out + "</table><script src=\"/js/app.3f9d2c1b7e6a5048.js\" defer></script></body></html>\n"
}

fn payroll_csv(n: &mut Numbers) -> String {
    let mut out = String::from(
        "period,employee_no,cost_centre,gross,paye,usc,prsi_ee,prsi_er,pension,net,prsi_class\n",
    );
    for row in 0..300 {
        let gross = n.amount(9_000);
        let parts = [0.2011, 0.0283, 0.042, 0.1125, 0.05].map(|rate| gross * rate);
        let net = gross - parts[0] - parts[1] - parts[2] - parts[4];
        write!(out, "2026-{:02},{:06},{},{gross:.2}", row % 12 + 1, 123 + row, 1000 + n.below(90)).unwrap();
        for part in parts {
            write!(out, ",{part:.2}").unwrap();
        }
        writeln!(out, ",{net:.2},{}", n.pick(&["A1", "AX", "S1", "J0"])).unwrap();
    }
    out
}

fn xbrl(n: &mut Numbers) -> String {
    let mut out = String::from(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<xbrli:xbrl xmlns:xbrli=\"http://www.xbrl.org/2003/instance\" xmlns:iso4217=\"http://www.xbrl.org/2003/iso4217\" \
         xmlns:ifrs-full=\"https://xbrl.ifrs.org/taxonomy/2024-03-27/ifrs-full\">\n",
    );
    for row in 0..60 {
        let year = 2019 + row % 7;
        writeln!(
            out,
            "<xbrli:context id=\"c{row}\"><xbrli:entity><xbrli:identifier scheme=\"http://standards.iso.org/iso/17442\">635400DZBUIMTBCJD417</xbrli:identifier>\
             </xbrli:entity><xbrli:period><xbrli:startDate>{year}-01-01</xbrli:startDate><xbrli:endDate>{year}-12-31</xbrli:endDate></xbrli:period></xbrli:context>\n\
             <ifrs-full:{} contextRef=\"c{row}\" unitRef=\"EUR\" decimals=\"-3\">{}000</ifrs-full:{}>",
            ["Revenue", "ProfitLoss", "KeyManagementPersonnelCompensation"][row % 3],
            n.below(900_000) + 1000,
            ["Revenue", "ProfitLoss", "KeyManagementPersonnelCompensation"][row % 3],
        )
        .unwrap();
    }
    out + "</xbrli:xbrl>\n"
}

fn payment_xml(n: &mut Numbers) -> String {
    let mut out = String::from(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Document xmlns=\"urn:iso:std:iso:20022:tech:xsd:camt.053.001.08\"><BkToCstmrStmt><GrpHdr>\
         <MsgId>20261128-CAMT053-000471</MsgId><CreDtTm>2026-11-28T10:45:00.123+00:00</CreDtTm></GrpHdr><Stmt><Id>STMT-2026-332</Id><ElctrncSeqNb>332</ElctrncSeqNb>\n",
    );
    for row in 0..120 {
        writeln!(
            out,
            "<Ntry><NtryRef>{:08}</NtryRef><Amt Ccy=\"EUR\">{:.2}</Amt><CdtDbtInd>{}</CdtDbtInd><Sts><Cd>BOOK</Cd></Sts><BookgDt><Dt>2026-11-{:02}</Dt></BookgDt>\
             <BkTxCd><Domn><Cd>PMNT</Cd><Fmly><Cd>RCDT</Cd><SubFmlyCd>ESCT</SubFmlyCd></Fmly></Domn></BkTxCd><NtryDtls><TxDtls><Refs><EndToEndId>E2E-{}-{row:04}</EndToEndId>\
             <UETR>{}-{}-4{}-a{}-{}</UETR></Refs></TxDtls></NtryDtls><AddtlNtryInf>{} s. {}</AddtlNtryInf></Ntry>",
            row + 1,
            n.amount(90_000),
            n.pick(&["CRDT", "DBIT"]),
            row % 28 + 1,
            n.hex(6).to_uppercase(),
            n.hex(8),
            n.hex(4),
            n.hex(3),
            n.hex(3),
            n.hex(12),
            n.pick(&ACTS),
            n.below(900) + 1,
        )
        .unwrap();
    }
    out + "</Stmt></BkToCstmrStmt></Document>\n"
}

fn texts() -> Vec<(&'static str, String)> {
    let n = &mut Numbers(2026);
    vec![
        ("a table of pandas", pandas_table(n)),
        ("a comparison in Markdown", markdown_comparison(n)),
        ("records in JSON", serde_json::to_string_pretty(&json_records(n)).unwrap()),
        ("a Vega-Lite chart", vega_chart(n).to_string()),
        ("a chart in SVG", svg_chart(n)),
        ("a traceback", traceback(n)),
        ("a table in LaTeX", latex_table(n)),
        ("a notebook", serde_json::to_string_pretty(&notebook(n)).unwrap()),
        ("a report in HTML", html_report(n)),
        ("a payroll in CSV", payroll_csv(n)),
        ("XBRL", xbrl(n)),
        ("a statement in ISO 20022", payment_xml(n)),
    ]
}

/// The first line that differs, for the message.
fn difference<'a>(before: &'a str, after: &'a str) -> Option<(&'a str, &'a str)> {
    before.lines().zip(after.lines()).find(|(a, b)| a != b)
}

#[test]
fn documents_pass_as_text_and_as_a_stream_cut_anywhere() {
    let guard = Guard::default();
    let n = &mut Numbers(7);
    for (name, text) in texts() {
        assert!(text.len() > 2_000, "{name}");
        let (out, report) = guard.text(&text, &mut Numbering::alone());
        assert_eq!(difference(&text, &out), None, "{name}: {report:?}");
        assert_eq!(*out, text, "{name}");
        for most in [7, 400, 9_000] {
            let (mut stream, numbering) = (guard.stream(), &mut Numbering::alone());
            let (mut sent, mut rest) = (String::new(), text.as_str());
            while !rest.is_empty() {
                let mut cut = (n.below(most) as usize + 1).min(rest.len());
                while !rest.is_char_boundary(cut) {
                    cut += 1;
                }
                sent.push_str(&stream.push(&rest[..cut], numbering));
                rest = &rest[cut..];
            }
            sent.push_str(&stream.finish(numbering).0);
            assert_eq!(difference(&text, &sent), None, "{name} in pieces of up to {most}");
            assert_eq!(sent, text, "{name} in pieces of up to {most}");
        }
    }
}

#[test]
fn documents_pass_as_json_values() {
    let guard = Guard::default();
    let n = &mut Numbers(2026);
    for value in [json_records(n), vega_chart(n), notebook(n)] {
        let (out, report) = guard.json(value.clone(), &mut Numbering::alone());
        assert_eq!(*out, value, "{report:?}");
    }
    for (name, text) in texts() {
        let (out, report) = guard.json(json!({"text/plain": text}), &mut Numbering::alone());
        assert_eq!(difference(&text, out["text/plain"].as_str().unwrap()), None, "{name}: {report:?}");
    }
}
