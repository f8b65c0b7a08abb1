//! Python in a sandbox: values, errors, output, what a hostile cell can do to its driver.

use std::path::PathBuf;

use pathbox::host::jail::SandboxLimits;
use pathbox::host::kernel::{Options, Search};
use serde_json::json;

use crate::kernel_support::{Bench, Told};

/// A Python with pandas and matplotlib.
fn science() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/test-env/science/bin/python")
}

#[tokio::test]
async fn the_last_expression_is_the_result_and_variables_are_kept() {
    let bench = Bench::new().await;
    assert_eq!(bench.python("x = 41\nx + 1").await.value(), "42");
    assert_eq!(bench.python("x").await.value(), "41");
    assert_eq!(bench.python("_ + 1, Out[1]").await.value(), "(42, 42)");
    for silent in ["42;", "(42) ; # comment", "None", "y = 1", "", "  \n", "# nothing"] {
        assert_eq!(bench.python(silent).await.output(), "", "{silent:?}");
    }
    assert_eq!(bench.python("42 # ; no").await.value(), "42");
}

#[tokio::test]
async fn values_look_as_in_ipython() {
    let bench = Bench::new().await;
    for (code, text) in [
        ("'it''s'", "its"),
        ("\"he said \\\"hi\\\" and 'bye'\\nnext\"", "he said \"hi\" and \\'bye\\'\\nnext"),
        (
            "list(range(30))",
            "[0,\n 1,\n 2,\n 3,\n 4,\n 5,\n 6,\n 7,\n 8,\n 9,\n 10,\n 11,\n 12,\n 13,\n 14,\n 15,\n 16,\n 17,\n 18,\n 19,\n 20,\n 21,\n 22,\n 23,\n 24,\n 25,\n 26,\n 27,\n 28,\n 29]",
        ),
        ("int, {3, 1, 2}, frozenset(), (1,)", "(int, {1, 2, 3}, frozenset(), (1,))"),
        ("def f(a, *, b=2): pass\nf", "<function __main__.f(a, *, b=2)>"),
        ("class C: pass\nC", "__main__.C"),
        ("ValueError('a', 1)", "ValueError('a', 1)"),
        ("from collections import *; defaultdict(list, a=[1])", "defaultdict(list, {'a': [1]})"),
        ("l = []; l.append(l); l", "[[...]]"),
        (
            "{'key %d' % i: 'value' * 3 for i in range(4)}",
            "{'key 0': 'valuevaluevalue',\n 'key 1': 'valuevaluevalue',\n 'key 2': 'valuevaluevalue',\n 'key 3': 'valuevaluevalue'}",
        ),
        (
            "[['a' * 30, 'b' * 30], ['c' * 30, 'd' * 30]]",
            "[['aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', 'bbbbbbbbbbbbbbbbbbbbbbbbbbbbbb'],\n ['cccccccccccccccccccccccccccccc', 'dddddddddddddddddddddddddddddd']]",
        ),
    ] {
        assert_eq!(bench.python(code).await.value(), text, "{code}");
    }
    assert!(bench.python("C()").await.value().starts_with("<__main__.C at 0x"));
    let long = bench.python("list(range(10**6))").await;
    assert!(long.value().ends_with(" 999,\n ...]"), "IPython shows a thousand");
}

#[tokio::test]
async fn dictionaries_and_lists_come_as_json_too() {
    let bench = Bench::new().await;
    let told = bench.python("{'z': 1, 'a': [1, None, True, 10**30, 0.1], 'é': (), 2: 3}").await;
    let json = r#"{"z":1,"a":[1,null,true,1000000000000000000000000000000,0.1],"é":[],"2":3}"#;
    assert_eq!(told.results[0].json.as_ref().unwrap().to_string(), json);
    // What JSON cannot hold exactly is text only.
    for (code, text) in [
        ("{'a': float('nan')}", "{'a': nan}"),
        ("[1.0, float('-inf'), None]", "[1.0, -inf, None]"),
        ("{1: 'a', '1': 'b', None: 'c'}", "{1: 'a', '1': 'b', None: 'c'}"),
        ("['\\ud800']", "['\\ud800']"),
        ("{'a': {1, 2}}", "{'a': {1, 2}}"),
        ("[__import__('decimal').Decimal('1.10')]", "[Decimal('1.10')]"),
    ] {
        let told = bench.python(code).await;
        assert_eq!((told.value(), &told.results[0].json), (text, &None), "{code}");
    }
    let told = bench.python("'a\\nb \\'q\\''").await;
    assert_eq!(told.results[0].json, Some(json!("a\nb 'q'")), "a repr is not the text");
    assert_eq!(bench.python("'plain'").await.results[0].json, None);
    let told = bench.python("{1: object()}").await;
    assert_eq!(told.results[0].json, None);
    let told = bench.python("d = []\nfor _ in range(5000): d = [d]\nd").await;
    assert!(told.complete && !told.results.is_empty());
}

#[tokio::test]
async fn an_exception_has_the_users_lines() {
    let bench = Bench::new().await;
    let told = bench.python("def f(): return 1/0\nprint('before')\nf()").await;
    assert_eq!(told.stdout, "before\n");
    let error = told.error();
    assert_eq!((&*error.name, &*error.value), ("ZeroDivisionError", "division by zero"));
    let dashes = "-".repeat(75);
    assert_eq!(
        error.traceback,
        format!(
            "{dashes}\nZeroDivisionError                         Traceback (most recent call last)\n\
             Cell In[1], line 3\n      1 def f(): return 1/0\n      2 print('before')\n----> 3 f()\n\n\
             Cell In[1], line 1, in f()\n----> 1 def f(): return 1/0\n\nZeroDivisionError: division by zero"
        )
    );
    // A function of an earlier cell still has its lines.
    let told = bench.python("f()").await;
    assert!(told.error().traceback.contains("Cell In[1], line 1, in f()\n----> 1 def f(): return 1/0"));
    // Nothing of the driver or the host is in it.
    assert!(!told.error().traceback.contains("pathbox"));
}

#[tokio::test]
async fn causes_groups_recursion_and_odd_exceptions_are_reported() {
    let bench = Bench::new().await;
    let told =
        bench.python("try:\n    {}['k']\nexcept KeyError as e:\n    raise ValueError('w') from e").await;
    let traceback = &told.error().traceback;
    assert!(traceback.contains(
        "KeyError: 'k'\n\nThe above exception was the direct cause of the following exception:\n\nValueError "
    ));
    assert!(traceback.contains("----> 2     {}['k']") && traceback.contains("----> 4     raise ValueError"));
    let told = bench.python("def r(n): return r(n + 1)\nr(0)").await;
    assert!(told.error().traceback.contains("skipping similar frames: r at line 1"));
    let told = bench.python("class E(Exception):\n    def __str__(self): raise OSError\nraise E").await;
    assert_eq!(told.error().value, "<exception str() failed>");
    let told = bench.python("exec('1 +')").await;
    assert_eq!(told.error().name, "SyntaxError");
    assert!(told.error().traceback.contains("----> 1 exec('1 +')"), "{}", told.error().traceback);
}

#[tokio::test]
async fn a_syntax_error_shows_its_place() {
    let bench = Bench::new().await;
    let told = bench.python("print('x'\ny =").await;
    let error = told.error();
    assert_eq!(error.name, "SyntaxError");
    assert!(error.value.starts_with("'(' was never closed"), "{}", error.value);
    assert_eq!(
        error.traceback,
        "  Cell In[1], line 1\n    print('x'\n         ^\nSyntaxError: '(' was never closed\n"
    );
    for broken in ["(".repeat(100_000), "x = \0".to_owned(), "def f(:".to_owned(), "-".repeat(50_000) + "1"] {
        let told = bench.python(&broken).await;
        assert!(told.complete && told.errors.len() == 1, "{told:?}");
    }
    assert_eq!(bench.python("1 + 1").await.value(), "2");
}

#[tokio::test]
async fn leaving_asking_and_interrupting_oneself_end_the_cell_only() {
    let bench = Bench::new().await;
    bench.python("kept = 1").await;
    let told = bench.python("import sys; sys.exit(3)").await;
    assert_eq!((&*told.error().name, &*told.error().value), ("SystemExit", "3"));
    for quiet in ["exit()", "quit()"] {
        assert_eq!(bench.python(&format!("print(1)\n{quiet}\nprint(2)")).await.output(), "1\n");
    }
    let told = bench.python("name = input('name? ')").await;
    assert_eq!(told.error().name, "StdinNotImplementedError");
    assert!(told.error().value.contains("does not support input requests"));
    assert_eq!(bench.python("import sys; sys.stdin.read()").await.value(), "");
    assert_eq!(bench.python("raise KeyboardInterrupt").await.error().name, "KeyboardInterrupt");
    assert_eq!(bench.python("kept").await.value(), "1");
}

#[tokio::test]
async fn top_level_await_shares_one_loop() {
    let bench = Bench::new().await;
    let code = "import asyncio\nq = asyncio.Queue()\nawait q.put(7)\nawait asyncio.sleep(0.01)\n'ok'";
    assert_eq!(bench.python(code).await.value(), "ok");
    // A cell that awaits nothing can make tasks; they go on while nothing else runs.
    let told = bench.python("t = asyncio.create_task(asyncio.sleep(0.01, 'done'))\nboth = asyncio.gather(t, asyncio.sleep(0, 2))").await;
    assert_eq!(
        told.stderr,
        "note: asyncio tasks of this cell that are still running: 1. A later cell can `await` them\n"
    );
    assert_eq!(bench.python("await both").await.value(), "['done', 2]");
    let told = bench.python("async def main(): return 1\nmain()").await;
    assert!(told.stderr.contains("did you mean `await main(..)`?"), "{told:?}");
    let told = bench.python("async def fails(): 1/0\nawait fails()").await;
    assert!(!told.error().traceback.contains("asyncio"), "only the user's lines: {told:?}");
    assert_eq!(bench.python("await q.get()").await.value(), "7");
    assert_eq!(bench.python("async def f(): return 3\nasyncio.run(f())").await.value(), "3");
    assert_eq!(
        bench.python("[x async for x in (lambda: (await f() for _ in range(2)))()]").await.errors.len(),
        0
    );
}

#[tokio::test]
async fn output_of_every_kind_arrives_and_results_keep_their_place() {
    let bench = Bench::new().await;
    let told = bench
        .python("import os, subprocess, sys\nprint('a')\nos.write(1, b'b\\n')\nsubprocess.run('echo c; echo e >&2', shell=True)\nsys.stdout.write('no newline')")
        .await;
    assert_eq!((&*told.stdout, &*told.stderr), ("a\nb\nc\nno newline", "e\n"));
    let told = bench.python("for i in range(200):\n    print('p', i)\n    display(i)\nprint('end')").await;
    assert_eq!(told.results.len(), 200);
    let expected: Vec<_> = ["count"]
        .into_iter()
        .chain(std::iter::repeat_n(["stdout", "result"], 200).flatten())
        .chain(["stdout", "end"])
        .collect();
    assert_eq!(told.kinds, expected);
    let told = bench
        .python(
            "import sys\nprint('é🎉', '\\ud800', '\\x00\\x1b[31m')\nsys.stdout.buffer.write(b'\\xff\\n');",
        )
        .await;
    assert_eq!(told.stdout, "é🎉 \\ud800 \0\u{1b}[31m\n\u{fffd}\n");
}

#[tokio::test]
async fn output_between_cells_belongs_to_no_cell() {
    let bench = Bench::new().await;
    let code = "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.2), print('late'))).start()\nprint('now')";
    assert_eq!(bench.python(code).await.output(), "now\n");
    let told = bench.python("time.sleep(0.5); print('next')").await;
    assert_eq!(told.output(), "next\n");
    assert_eq!(told.stderr, "note: printed late, by what cell 1 left running:\nlate\n");
    // A thread that is not the interpreter's has no name.
    let code = "import subprocess\np = subprocess.Popen('while [ ! -e go ]; do :; done; echo late; touch gone', shell=True)";
    assert_eq!(bench.python(code).await.output(), "");
    let told = bench.run("touch go; while [ ! -e gone ]; do :; done", "bash").await;
    assert_eq!(told.output(), "");
    let told = bench.python("p.wait(); print('third')").await;
    assert_eq!(told.output(), "third\n");
    assert_eq!(told.stderr, "note: printed since the last run, by what it left running:\nlate\n");
}

#[tokio::test]
async fn displays_come_in_e2bs_fields() {
    let bench = Bench::new().await;
    let told = bench
        .python(
            "from IPython.display import *\ndisplay(HTML('<b>h</b>'))\ndisplay(Markdown('# m'))\ndisplay(Latex('$x$'))\n\
             display(SVG('<svg xmlns=\"http://www.w3.org/2000/svg\"/>'))\ndisplay(JSON({'a': 1}))\ndisplay(Javascript('alert(1)'))\n\
             display({'application/x-custom': 'v', 'text/plain': 'p'}, raw=True)\ndisplay(Image(data=b'\\xff\\xd8x'))",
        )
        .await;
    let [html, markdown, latex, svg, json_, script, custom, jpeg] = &told.results[..] else {
        panic!("{told:#?}")
    };
    assert_eq!(html.html.as_deref(), Some("<b>h</b>"));
    assert_eq!(html.text.as_deref(), Some("<IPython.core.display.HTML object>"));
    assert_eq!(markdown.markdown.as_deref(), Some("# m"));
    assert_eq!(latex.latex.as_deref(), Some("$x$"));
    assert_eq!(svg.svg.as_deref(), Some("<svg xmlns=\"http://www.w3.org/2000/svg\"/>"));
    assert_eq!(json_.json, Some(json!({"a": 1})));
    assert_eq!(script.javascript.as_deref(), Some("alert(1)"));
    assert_eq!(custom.extra["application/x-custom"], json!("v"));
    assert_eq!(jpeg.jpeg.as_deref(), Some("/9h4"));
    assert!(told.results.iter().all(|result| !result.is_main_result));

    let told = bench
        .python(
            "class P:\n    def _repr_png_(self): return b'png'\n    def _repr_html_(self): return 'h'\n    def _repr_latex_(self): raise NotImplementedError\n\
             class B:\n    def _repr_mimebundle_(self, include=None, exclude=None): return {'text/plain': 'b', 'text/markdown': 'm'}\n\
             class D:\n    def _ipython_display_(self): print('mine')\n\
             class Any:\n    def __getattr__(self, name): return lambda *a, **k: 'anything'\n    def __repr__(self): return 'any'\ndisplay(P(), B(), D())\nAny()",
        )
        .await;
    let [png, bundle, any] = &told.results[..] else { panic!("{told:#?}") };
    assert_eq!(
        (png.png.as_deref(), png.html.as_deref(), png.latex.as_deref()),
        (Some("cG5n"), Some("h"), None)
    );
    assert_eq!((bundle.text.as_deref(), bundle.markdown.as_deref()), (Some("b"), Some("m")));
    assert_eq!(told.stdout, "mine\n");
    assert_eq!((any.text.as_deref(), any.html.as_deref()), (Some("any"), None));
}

#[tokio::test]
async fn magics_and_shell_lines_work() {
    let bench = Bench::new().await;
    let told = bench.python("x = 5\n!echo got {x} $x\nfiles = !ls /usr/share/doc\nhere = %pwd\n%time sum(range(10))\nlen(files) > 0, here").await;
    assert!(told.stdout.starts_with("got 5 5\nCPU times: user "), "{}", told.stdout);
    assert_eq!(told.value(), "(True, '/home/user')");
    assert_eq!(bench.python("%%bash\necho hi\ncd /tmp; pwd").await.output(), "hi\n/tmp\n");
    assert_eq!(bench.python("    y = 1\n    y + 1").await.value(), "2");
    assert_eq!(bench.python("%%writefile a.txt\none\n").await.output(), "Writing a.txt\n");
    assert_eq!(bench.python("open('a.txt').read()").await.value(), "one\\n");
    assert!(bench.python("%nonsense").await.error().value.contains("`%nonsense` not found"));
    assert!(bench.python("%%nonsense\nx").await.error().value.contains("`%%nonsense` not found"));
    let told = bench.python("%%capture c\nprint('hidden'); display([1]); 5").await;
    assert_eq!(told.output(), "");
    assert_eq!(bench.python("c.stdout, len(c.outputs)").await.value(), "('hidden\\n', 2)");
    assert!(bench.python("%timeit -n 1 -r 1 1").await.stdout.contains("1 run, 1 loop each"));
    bench.python("%%writefile -a a.txt\ntwo").await;
    assert_eq!(bench.python("open('/home/user/a.txt').read()").await.value(), "one\\ntwo\\n");
    let told = bench.python("%%time\nx = 1\n1/0").await;
    assert!(told.error().traceback.contains("Cell In[13], line 3\n"), "{told:?}");
    assert!(bench.python("len?").await.stdout.contains("Return the number of items in a container."));
    assert_eq!(bench.python("if True:\n    %cd /tmp").await.output(), "/tmp\n");
    assert_eq!(bench.python("'''\n%pwd\n!ls\n'''").await.value(), "\\n%pwd\\n!ls\\n");
}

#[tokio::test]
async fn env_vars_are_data_and_for_one_execution() {
    let bench = Bench::new().await;
    let show = "import os; print(os.environ.get('FOO'), os.environ.get('Q'))";
    let told = bench.run_with_env(show, "python", &[("FOO", "bar"), ("Q", "it's \"a\"\nC:\\new")]).await;
    assert_eq!(told.output(), "bar it's \"a\"\nC:\\new\n");
    assert_eq!(bench.python(show).await.output(), "None None\n");
    let told = bench.run_with_env("x=1\n1/0", "python", &[("SECRET", "s3cret")]).await;
    assert!(
        told.error().traceback.contains("Cell In[3], line 2") && !told.error().traceback.contains("s3cret")
    );
    assert_eq!(bench.python("os.environ.get('SECRET')").await.output(), "");
    bench.kernels.set_env([("BASE".to_owned(), "b".to_owned())].into()).unwrap();
    assert_eq!(bench.python("os.environ['BASE']").await.value(), "b");
    let told = bench.run_with_env("os.environ['BASE']", "python", &[("BASE", "other")]).await;
    assert_eq!(told.value(), "other");
    assert_eq!(bench.python("os.environ['BASE']").await.value(), "b");
}

#[tokio::test]
async fn a_dead_interpreter_is_reported_and_replaced() {
    let change = |options| Options { checkpoint_bytes: 0, ..options };
    let bench = Bench::with(Search::default(), SandboxLimits::default(), change).await;
    for (kill, why) in [
        ("os._exit(7)", "exit code 7"),
        ("os.kill(os.getpid(), 9)", "SIGKILL"),
        ("os.abort()", "SIGABRT"),
        ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
        ("os.close(3)", "exit code"),
    ] {
        bench.python("lost = 1; open('kept', 'w').write('file')").await;
        let told = bench.python(&format!("import os\nprint('bye', flush=True)\n{kill}")).await;
        assert_eq!(told.stdout, "bye\n", "{kill}");
        if kill == "os.close(3)" && told.errors.is_empty() {
            continue;
        }
        let error = told.error();
        assert_eq!((&*error.name, &*error.value), ("ContextRestarting", "Context was restarted"));
        assert!(error.traceback.contains(why), "{kill}: {}", error.traceback);
        let traces = format!("{}{}", told.stderr, error.traceback);
        assert!(!traces.contains(env!("CARGO_MANIFEST_DIR")), "a path of the host: {traces}");
        assert!(why != "SIGSEGV" || traces.contains("File \"<cell "), "{traces}");
        let told = bench.python("'lost' in dir(), open('kept').read()").await;
        assert_eq!((told.value(), told.count), ("(False, 'file')", 1), "{kill}");
    }
}

#[tokio::test]
async fn a_fork_that_returns_reports_nothing() {
    let bench = Bench::new().await;
    let told = bench.python("import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\nprint('once' if pid else 'child')\npid > 0").await;
    assert_eq!((&*told.stdout, told.value()), ("child\nonce\n", "True"));
    let code =
        "import multiprocessing as m\nwith m.get_context('fork').Pool(2) as p: r = p.map(abs, [-1, -2])\nr";
    assert_eq!(bench.python(code).await.value(), "[1, 2]");
    // A fresh interpreter would not find what a cell defines.
    let code =
        "def double(x): return 2 * x\nwith m.get_context('spawn').Pool(2) as p: r = p.map(double, [1, 2])\nr";
    assert_eq!(bench.python(code).await.value(), "[2, 4]");
    let code =
        "pid = os.fork()\nif not pid: raise SystemExit(5)\nos.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])";
    assert_eq!(bench.python(code).await.value(), "5");
}

#[tokio::test]
async fn a_cell_that_forges_frames_hurts_only_itself() {
    let bench = Bench::new().await;
    let guess = "import os\nf = b'{\"t\":\"done\",\"id\":\"00000000000000000000000000000000\",\"k\":1}'\nos.write(3, len(f).to_bytes(4, 'little') + f)\nimport time; time.sleep(0.2)\nprint('still here')\n1";
    let told = bench.python(guess).await;
    assert_eq!((&*told.stdout, told.value()), ("still here\n", "1"));
    // With the true id, the cell ends its own answer early; what it prints later is no one's.
    let own = "import sys; d = sys.modules['pathbox_driver']; d.send('done', dropped=0)\nprint('too late')";
    assert!(bench.python(own).await.complete);
    assert_eq!(bench.python("2").await.value(), "2");
    for nonsense in ["b'\\xff' * 100", "(100).to_bytes(4, 'little') + b'x' * 100", "b'\\x02\\0\\0\\0[]'"] {
        let told =
            bench.python(&format!("import os\nos.write(3, {nonsense})\nimport time; time.sleep(30)")).await;
        assert_eq!(told.error().name, "ContextRestarting", "{nonsense}");
        assert_eq!(bench.python("3").await.value(), "3");
    }
}

#[tokio::test]
async fn a_million_results_and_a_flood_are_bounded_and_counted() {
    let change = |options| Options { max_output_bytes: 1 << 20, max_results: 100, ..options };
    let bench = Bench::with(Search::default(), SandboxLimits::default(), change).await;
    let told = bench.python("for i in range(10**6): display(i)\nprint('end')\n'main'").await;
    assert_eq!((told.results.len(), &*told.stdout), (101, "end\n"));
    assert_eq!(told.stops[0].0, "output_truncated");
    let told =
        bench.python("import os\nfor _ in range(200): os.write(1, b'x' * 100_000)\nprint('end')\n1").await;
    assert_eq!((told.stdout.len(), told.stops.len()), (1 << 20, 1));
    assert!(told.stops[0].1 > 18_000_000 && told.complete, "{:?}", told.stops);
    let told = bench.python("'x' * 50_000_000").await;
    assert!(told.complete && told.stops.len() == 1);
    let told = bench.python("class R:\n    def __repr__(self): return 'r' * 30_000_000\nR()").await;
    assert!(told.complete, "{:?}", told.stops);
    assert_eq!(bench.python("1 + 1").await.value(), "2");
}

#[tokio::test]
async fn a_closed_stream_is_open_again_for_the_next_cell() {
    let bench = Bench::new().await;
    for close in ["import os; os.close(1)", "import sys; sys.stdout.close()"] {
        let told = bench.python(close).await;
        assert!(told.stderr.starts_with("note: this cell closed stdout"), "{told:?}");
        assert_eq!(bench.python("print('on')").await.output(), "on\n");
    }
    let told = bench.python("import io, sys; sys.stdout = io.StringIO()").await;
    assert!(told.stderr.contains("sys.stdout replaced by StringIO"), "{told:?}");
    assert_eq!(bench.python("sys.stdout = sys.__stdout__; print('on')").await.output(), "on\n");
}

#[tokio::test]
async fn limits_of_the_sandbox_are_named() {
    let limits = SandboxLimits { home_bytes: 4 << 20, processes: 24, ..SandboxLimits::default() };
    let bench = Bench::with(Search::default(), limits, |options| options).await;
    let told = bench.python("open('big', 'wb').write(b'x' * (8 << 20))").await;
    assert_eq!((&*told.stops[0].0, &*told.error().name), ("disk_full", "OSError"));
    bench.python("import os; os.remove('big')").await;
    let told = bench
        .python("import subprocess\nps = []\nwhile True: ps.append(subprocess.Popen(['sleep', '60']))")
        .await;
    assert_eq!(told.stops, [("too_many_processes".to_owned(), 0)], "{told:?}");
    bench.python("for p in ps: p.kill(); p.wait()").await;
    let told = bench.python("import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()").await;
    assert_eq!(told.stops, [("too_many_processes".to_owned(), 0)], "{told:?}");
    let told = bench.python("x = bytearray(10**14)").await;
    assert_eq!((&*told.stops[0].0, &*told.error().name), ("oom", "MemoryError"));
}

#[tokio::test]
#[ignore = "needs pandas and matplotlib: scripts/test installs them"]
async fn data_frames_and_figures_come_with_their_data() {
    let bench = Bench::with_python(science()).await;
    let told = bench
        .python("import pandas as pd\npd.DataFrame({'n': [1, 2], 't': pd.to_datetime(['2024-01-01', '2024-01-02']), 's': ['x', None]})")
        .await;
    let frame = &told.results[0];
    assert!(frame.html.as_deref().is_some_and(|html| html.contains("<table")));
    assert_eq!(
        frame.data,
        Some(json!({"n": [1, 2], "t": ["2024-01-01T00:00:00", "2024-01-02T00:00:00"], "s": ["x", null]}))
    );

    let told = bench
        .python("import matplotlib.pyplot as plt\nfig, ax = plt.subplots(figsize=(2, 1.5))\nax.bar(['a', 'b'], [1, 2], label='L'); ax.set_title('T'); ax.set_xlabel('X (s)')\nplt.show()\nprint('after')")
        .await;
    assert_eq!(told.kinds, ["count", "result", "stdout", "end"]);
    let figure = &told.results[0];
    assert_eq!(figure.text.as_deref(), Some("<Figure size 200x150 with 1 Axes>"));
    assert!(figure.png.as_deref().is_some_and(|png| png.starts_with("iVBORw0KGgo")));
    let chart = figure.chart.as_ref().unwrap();
    assert_eq!(
        (&chart["type"], &chart["title"], &chart["x_unit"]),
        (&json!("bar"), &json!("T"), &json!("s"))
    );
    assert_eq!(chart["elements"][1], json!({"label": "b", "group": "L", "value": 2.0}));

    for (code, kind) in [
        ("plt.plot([1, 2], [3, 4]);", "line"),
        ("plt.scatter([1, 2], [3, 4]);", "scatter"),
        ("plt.pie([1, 2], labels=['a', 'b']);", "pie"),
        ("plt.boxplot([[1, 2, 3, 4, 10]]);", "box_and_whisker"),
        ("plt.imshow([[1, 2], [3, 4]]);", "unknown"),
        ("f, (a, b) = plt.subplots(1, 2); a.plot([1]); b.bar([1], [2]);", "superchart"),
    ] {
        let told = bench.python(code).await;
        assert_eq!(told.results[0].chart.as_ref().unwrap()["type"], json!(kind), "{code}: {told:?}");
    }
    let told = bench.python("plt.plot([1])\n1/0").await;
    assert_eq!(told.kinds, ["count", "error", "result", "end"], "a figure of a failed cell is shown");
    // A plot script in a process of its own is not led to a backend that it cannot see.
    let told = bench.python("import subprocess, sys\nprint(subprocess.check_output([sys.executable, '-c', 'import matplotlib.pyplot as p; print(p.get_backend())']).decode())").await;
    assert_eq!(told.stdout.trim().to_lowercase(), "agg");
}

#[tokio::test]
async fn an_empty_cell_has_no_number_of_its_own() {
    let bench = Bench::new().await;
    let mut counts = Vec::new();
    for code in ["1", "", "# c", "2"] {
        let Told { count, .. } = bench.python(code).await;
        counts.push(count);
    }
    assert_eq!(counts, [1, 2, 2, 3]);
}

#[tokio::test]
#[ignore = "needs plotly, altair and bokeh: scripts/test installs them"]
async fn charts_of_every_library_are_shown() {
    let charts = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/test-env/charts/bin/python");
    let bench = Bench::with_python(charts).await;
    bench.python("import plotly.express as px, altair as alt, pandas as pd\nfrom bokeh.plotting import figure, show\ndf = pd.DataFrame({'a': [1], 'b': [2]})").await;
    let page = ". Interactive page, no picture: the package";
    for (code, text, is_main) in [
        (
            "px.bar(df, x='a', y='b', title='T')",
            format!("plotly chart (bar): T{page} kaleido is not installed"),
            true,
        ),
        ("_.show()", format!("plotly chart (bar): T{page} kaleido is not installed"), false),
        (
            "p = figure(title='B'); p.line([1], [2]); show(p)",
            format!("bokeh chart (Line): B{page} selenium is not installed"),
            false,
        ),
        ("p", format!("bokeh chart (Line): B{page} selenium is not installed"), true),
    ] {
        let told = bench.python(code).await;
        let [shown] = &told.results[..] else { panic!("{code}: {told:?}") };
        assert_eq!((shown.text.as_deref(), shown.is_main_result), (Some(&*text), is_main), "{code}");
        let html = shown.html.as_deref().unwrap();
        assert!(html.len() > 500_000 && html.contains("</html>"), "a page that needs no network");
    }
    let told = bench.python("px.bar(df, x='a', y='b')").await;
    assert_eq!(told.results[0].extra["application/vnd.plotly.v1+json"]["data"][0]["type"], json!("bar"));
    for code in ["chart = alt.Chart(df).mark_bar().encode(x='a', y='b'); chart", "chart.show()"] {
        let told = bench.python(code).await;
        let [shown] = &told.results[..] else { panic!("{code}: {told:?}") };
        assert_eq!((shown.text.as_deref(), &shown.html), (Some("altair chart (bar)"), &None));
        assert!(shown.png.as_deref().is_some_and(|png| png.starts_with("iVBORw0KGgo")));
        assert!(shown.extra.keys().any(|mime| mime.starts_with("application/vnd.vegalite.v")));
    }
    let told = bench.python("df.style").await;
    assert!(told.value().contains("1 2"), "{told:?}");
    assert!(told.results[0].html.as_deref().is_some_and(|html| html.contains("<table")));
}

#[tokio::test]
#[ignore = "needs pandas and matplotlib: scripts/test installs them"]
async fn each_picture_is_shown_once_and_bars_have_the_names_of_their_ticks() {
    let bench = Bench::with_python(science()).await;
    bench.python("import matplotlib.pyplot as plt, numpy as np\nfrom PIL import Image").await;
    for (code, pictures) in [
        ("fig, ax = plt.subplots(); ax.plot([1, 2]); fig", 1),
        ("fig, ax = plt.subplots(); ax.plot([1, 2]); display(fig); ax.set_title('new');", 2),
        ("plt.plot([1]); plt.show(); plt.savefig('empty.png')", 1),
        ("plt.plot([1]); plt.savefig('a.png')", 1),
        ("Image.new('RGB', (4, 4)).save('b.png')", 1),
        ("for i in range(30): Image.new('RGB', (4, 4)).save('c.png')", 10),
    ] {
        let told = bench.python(code).await;
        let shown = told.results.iter().filter(|result| result.png.is_some()).count();
        assert_eq!(shown, pictures, "{code}: {told:?}");
        assert!(told.results.iter().all(|result| result.jpeg.is_none()), "{code}");
    }
    let told = bench.python("plt.plot([1]); plt.title('报告 報'); plt.show()").await;
    assert!(told.stderr.lines().count() <= 1 && !told.stderr.contains("Glyph"), "{told:?}");
    let told = bench.python("fig, ax = plt.subplots(); x = np.arange(2)\nax.bar(x - .2, [1, 2], .4, label='A'); ax.bar(x + .2, [3, 4], .4, label='B'); ax.set_xticks(x, ['Q1', 'Q2']); plt.show()").await;
    let chart = told.results[0].chart.as_ref().unwrap();
    let names: Vec<_> =
        chart["elements"].as_array().unwrap().iter().map(|bar| (&bar["label"], &bar["group"])).collect();
    let expected = [("Q1", "A"), ("Q2", "A"), ("Q1", "B"), ("Q2", "B")].map(|(l, g)| (json!(l), json!(g)));
    assert_eq!(names, expected.iter().map(|(l, g)| (l, g)).collect::<Vec<_>>());
    let told = bench
        .python("plt.barh(['a', 'b'], [1, 3]); plt.xlabel('value'); plt.ylabel('name'); plt.show()")
        .await;
    let chart = told.results[0].chart.as_ref().unwrap();
    assert_eq!((&chart["x_label"], &chart["y_label"]), (&json!("name"), &json!("value")), "as at E2B");
}
