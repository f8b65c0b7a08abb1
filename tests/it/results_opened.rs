//! What comes out is opened by the programs that people open it with: a browser, and what reads documents.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::support::http::{HttpServer, Reply};
use crate::support::server::command;

const CODE: &str = r#"
import sqlite3, zipfile
import matplotlib; matplotlib.use('Agg')
import matplotlib.pyplot as plt, pandas as pd, plotly.express as px
df = pd.DataFrame({'month': [f'2023-{n:02}' for n in range(1, 13)], 'value': [n * 232.23 for n in range(12)],
                   'mail': ['zoe@example.com'] * 12})
fig, ax = plt.subplots(); ax.plot(df.month, df.value); ax.set_title('Values 2022 to 2023')
fig.savefig('chart.svg'); fig.savefig('chart.pdf')
px.bar(df, x='month', y='value', title='Bars 2023', hover_data=['mail']).write_html('plot.html', include_plotlyjs=True)
df.style.highlight_max(subset=['value']).to_html('style.html', doctype_html=True)
plain = df.drop(columns='mail')
plain.to_excel('book.xlsx', index=False)
plain.to_parquet('table.parquet')
base = sqlite3.connect('base.sqlite'); plain.to_sql('t', base, index=False); base.commit(); base.close()
with zipfile.ZipFile('all.zip', 'w', zipfile.ZIP_DEFLATED) as z:
    z.writestr('plain.csv', plain.to_csv(index=False)); z.write('chart.svg'); z.write('book.xlsx')
"#;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn python() -> PathBuf {
    root().join("target/test-env/documents/bin/python")
}

fn call(server: &HttpServer, tool: &str, arguments: Value) -> Value {
    let meta = json!({"dev.pathbox/conversationId": "opened"});
    let result = server.stateless(&[], tool, arguments, meta).answer()["result"].take();
    assert!(result.get("isError").is_none(), "{result}");
    result["structuredContent"].clone()
}

/// Takes a file of the sandbox out, as a person does.
fn take(server: &HttpServer, name: &str, to: &Path) {
    let answer = call(server, "files", json!({"action": "download", "path": name}));
    assert_eq!(answer["artifact"]["name"], name);
    let url = answer["url"].as_str().unwrap();
    let mut reply: Reply = server.send("GET", &url[url.find("/files/").unwrap()..], &[], b"");
    assert_eq!(reply.status, 200, "{name}");
    std::fs::write(to.join(name), reply.bytes()).unwrap();
}

struct Opened {
    dom: String,
    console: String,
}

/// Opens a file in a browser of its own: the document after its scripts have run, what the console says, and a picture.
fn open(file: &Path, shots: &Path) -> Opened {
    let run = |more: &[&str]| {
        let profile = tempfile::tempdir().unwrap();
        let output = Command::new("chromium")
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-quic",
                "--no-first-run",
                "--disable-sync",
            ])
            .args([
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-dev-shm-usage",
            ])
            .args(["--enable-logging=stderr", "--virtual-time-budget=10000", "--window-size=900,600"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .args(more)
            .arg(format!("file://{}", file.display()))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", text(&output));
        output
    };
    let name = file.file_name().unwrap().to_str().unwrap();
    run(&[&format!("--screenshot={}", shots.join(format!("{name}.png")).display())]);
    let output = run(&["--dump-dom"]);
    let console: Vec<&str> = str::from_utf8(&output.stderr)
        .unwrap_or_default()
        .lines()
        .filter(|line| line.contains("CONSOLE"))
        .collect();
    Opened { dom: String::from_utf8_lossy(&output.stdout).into_owned(), console: console.join("\n") }
}

/// How many colours a screenshot has: an empty page has one.
fn colours(shot: &Path) -> usize {
    let picture = image::open(shot).unwrap().to_rgb8();
    picture.pixels().map(|pixel| pixel.0).collect::<std::collections::BTreeSet<_>>().len()
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn says(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", text(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
#[ignore = "needs chromium, poppler-utils, unzip and Python packages: scripts/test installs them"]
fn browsers_and_tools_open_guarded_files() {
    let data = tempfile::tempdir().unwrap();
    let policy = data.path().join("policy.toml");
    std::fs::write(&policy, "opaque_files = \"let_out\"\n").unwrap();
    let server = HttpServer::start_with(
        command(data.path()).env("PATHBOX_HOST_PYTHON", python()).env("PATHBOX_GUARD_POLICY", &policy),
    );
    let made = call(&server, "run_code", json!({"code": CODE, "language": "python", "timeout_ms": 600_000}));
    assert_eq!(made["success"], true, "{made}");
    let out = tempfile::tempdir().unwrap();
    let names = [
        "chart.svg",
        "plot.html",
        "style.html",
        "chart.pdf",
        "book.xlsx",
        "base.sqlite",
        "all.zip",
        "table.parquet",
    ];
    for name in names {
        take(&server, name, out.path());
    }

    let shots = root().join("target/test-shots");
    std::fs::create_dir_all(&shots).unwrap();
    // A broken page is distinguished from a sound one.
    let broken = out.path().join("broken.html");
    std::fs::write(&broken, "<p>x</p><script>var a = [CREDIT CARD_1];</script>").unwrap();
    assert!(open(&broken, &shots).console.contains("Uncaught"));
    assert!(colours(&shots.join("broken.html.png")) < 100);
    for (name, mark, least) in
        [("chart.svg", "<svg", 100), ("plot.html", "main-svg", 100), ("style.html", "[EMAIL_1]", 20)]
    {
        let page = open(&out.path().join(name), &shots);
        assert!(
            !page.console.contains("Uncaught") && !page.dom.contains("parsererror"),
            "{name}: {}",
            page.console
        );
        assert!(page.dom.contains(mark), "{name}: {}", page.dom.chars().take(2000).collect::<String>());
        assert!(!page.dom.contains("zoe@example.com"), "{name}");
        let seen = colours(&shots.join(format!("{name}.png")));
        assert!(seen >= least, "{name}: {seen} colours");
    }

    let file = |name: &str| out.path().join(name);
    let reads = |code: &str, name: &str| says(Command::new(python()).args(["-c", code]).arg(file(name)));
    let code =
        "import sys, openpyxl; print([c.value for c in openpyxl.load_workbook(sys.argv[1]).active[3]])";
    assert_eq!(reads(code, "book.xlsx").trim(), "['2023-02', 232.23]");
    let code = "import sys, pyarrow.parquet as p; print(p.read_table(sys.argv[1]).to_pylist()[1])";
    assert_eq!(reads(code, "table.parquet").trim(), "{'month': '2023-02', 'value': 232.23}");
    let code =
        "import sys, sqlite3; print(sqlite3.connect(sys.argv[1]).execute('select * from t').fetchall()[1])";
    assert_eq!(reads(code, "base.sqlite").trim(), "('2023-02', 232.23)");
    assert!(says(Command::new("unzip").arg("-t").arg(file("all.zip"))).contains("No errors detected"));
    says(
        Command::new("pdftoppm")
            .args(["-png", "-singlefile"])
            .arg(file("chart.pdf"))
            .arg(shots.join("chart.pdf")),
    );
    assert!(colours(&shots.join("chart.pdf.png")) >= 20);
}
