//! Code contexts: queues, interrupts, restarts, limits, and what clients are sent.

use std::time::{Duration, Instant};

use futures::StreamExt;
use pathbox::host::jail::SandboxLimits;
use pathbox::host::kernel::{Kernels, Options, Search};
use pathbox::wire::interpreter::{Event, ExecuteRequest};

use crate::kernel_support::{Bench, Told};

fn start(kernels: &Kernels, code: &str, language: &str) -> pathbox::host::kernel::EventStream {
    kernels.execute(ExecuteRequest::in_language(code, language)).unwrap()
}

/// Reads until the execution prints.
async fn printed(stream: &mut pathbox::host::kernel::EventStream) {
    while let Some(event) = stream.next().await {
        if matches!(event, Event::Stdout(_)) {
            return;
        }
    }
    panic!("it ended without printing");
}

#[tokio::test]
async fn executions_of_one_context_run_in_their_order_of_arrival() {
    let bench = Bench::new().await;
    let streams: Vec<_> = (0..20)
        .map(|i| {
            start(
                &bench.kernels,
                &format!("import time; time.sleep(0.01); seen = globals().get('seen', []) + [{i}]; seen"),
                "python",
            )
        })
        .collect();
    for (i, stream) in streams.into_iter().enumerate() {
        let told = Told::of(stream).await;
        assert_eq!(told.results[0].json.as_ref().unwrap().as_array().unwrap().len(), i + 1);
        assert_eq!(told.count, i as u64 + 1);
    }
}

#[tokio::test]
async fn a_caller_that_leaves_interrupts_the_cell_and_the_variables_stay() {
    let bench = Bench::new().await;
    bench.python("kept = 'kept'").await;
    for busy in [
        "while True: pass",
        "import time; time.sleep(1000)",
        "import asyncio; await asyncio.sleep(1000)",
        "import re; re.match('(a+)+b', 'a' * 40)",
        "import subprocess; subprocess.run(['sleep', '1000'])",
        "import time\nfor _ in range(3):\n    try: time.sleep(1000)\n    except KeyboardInterrupt: pass",
        "while True: print('x' * 1000)",
    ] {
        let mut stream = start(&bench.kernels, &format!("print('on', flush=True)\n{busy}"), "python");
        printed(&mut stream).await;
        drop(stream);
        assert_eq!(bench.python("kept").await.value(), "kept", "{busy}");
    }
}

#[tokio::test]
async fn an_interpreter_that_ignores_interrupts_is_killed_and_replaced() {
    let change = |options| Options { checkpoint_bytes: 0, ..options };
    let bench = Bench::with(Search::default(), SandboxLimits::default(), change).await;
    for deaf in [
        "import time\nwhile True:\n    try: print('on'); time.sleep(1000)\n    except BaseException: pass",
        "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('on')\nwhile True: time.sleep(1)",
        // In a loop, or an interrupt that is quicker than the sum would end the cell.
        "while True:\n    try: print('on'); sum(range(10**12))\n    except BaseException: pass",
    ] {
        bench.python("lost = 1").await;
        let mut stream = start(&bench.kernels, deaf, "python");
        printed(&mut stream).await;
        let left = Instant::now();
        drop(stream);
        let told = bench.python("'lost' in dir()").await;
        assert_eq!((told.value(), told.count), ("False", 1), "{deaf}");
        assert_eq!(told.states, ["lost"], "who comes next is told");
        assert!(left.elapsed() >= Duration::from_secs(2), "it had its grace");
    }
}

#[tokio::test]
async fn a_cell_that_leaves_the_queue_is_never_run() {
    let bench = Bench::new().await;
    let first = start(&bench.kernels, "import time; time.sleep(0.5); 'first'", "python");
    let second = start(&bench.kernels, "open('ran', 'w')", "python");
    let third = start(&bench.kernels, "import os; os.path.exists('ran')", "python");
    drop(second);
    assert_eq!(Told::of(first).await.value(), "first");
    let third = Told::of(third).await;
    assert_eq!((third.value(), third.count), ("False", 2));
}

#[tokio::test]
async fn silence_is_filled_with_keepalives() {
    let change = |options| Options { keepalive: Duration::from_millis(300), ..options };
    let bench = Bench::with(Search::default(), SandboxLimits::default(), change).await;
    let told = bench.python("import time; time.sleep(1); print('woke')").await;
    assert!(told.keepalives >= 2, "{told:?}");
    assert_eq!(told.stdout, "woke\n");
}

#[tokio::test]
async fn contexts_are_separate_and_run_side_by_side() {
    let bench = Bench::new().await;
    let a = bench.kernels.create(Some("python"), Some("/tmp")).await.unwrap();
    let b = bench.kernels.create(None, None).await.unwrap();
    assert_eq!((&*a.cwd, &*b.cwd, &*b.language), ("/tmp", "/home/user", "python"));
    let run = |code: &'static str, id: &str| bench.execute(ExecuteRequest::in_context(code, id));
    assert_eq!(run("import os; print(os.getcwd()); z = 5", &a.id).await.output(), "/tmp\n");
    assert_eq!(run("'z' in dir()", &b.id).await.value(), "False");
    // Each waits for the other's file: only side by side both end.
    let wait = "import os, time\nopen('/tmp/%s', 'w')\nwhile not os.path.exists('/tmp/%s'): time.sleep(0.01)";
    let (left, right) = (
        wait.replacen("%s", "l", 1).replacen("%s", "r", 1),
        wait.replacen("%s", "r", 1).replacen("%s", "l", 1),
    );
    let left = bench.kernels.execute(ExecuteRequest::in_context(left, &a.id)).unwrap();
    let right = bench.kernels.execute(ExecuteRequest::in_context(right, &b.id)).unwrap();
    let (left, right) = tokio::join!(Told::of(left), Told::of(right));
    assert!(left.output().is_empty() && right.output().is_empty());

    let nowhere = bench.kernels.create(Some(" PYTHON "), Some("/no/such/dir")).await.unwrap();
    assert_eq!(run("import os; os.getcwd()", &nowhere.id).await.value(), "/home/user");
    bench.kernels.remove(&nowhere.id).await.unwrap();
    let gone = bench.kernels.execute(ExecuteRequest::in_context("1", &nowhere.id)).unwrap_err();
    assert_eq!((gone.status(), gone.to_string()), (404, format!("Context {} not found", nowhere.id)));
    let listed: Vec<_> = bench.kernels.contexts().into_iter().map(|context| context.id).collect();
    assert!(listed.contains(&a.id) && listed.contains(&b.id) && !listed.contains(&nowhere.id));
}

#[tokio::test]
async fn a_restart_breaks_the_run_off_and_starts_afresh() {
    let bench = Bench::new().await;
    let context = bench.kernels.create(None, Some("/tmp")).await.unwrap();
    let request = |code| ExecuteRequest::in_context(code, &context.id);
    bench.execute(request("z = 1")).await;
    let mut stream =
        bench.kernels.execute(request("print('on', flush=True)\nimport time; time.sleep(1000)")).unwrap();
    printed(&mut stream).await;
    let (restarted, told) = tokio::join!(bench.kernels.restart(&context.id), Told::of(stream));
    restarted.unwrap();
    let names: Vec<_> = told.errors.iter().map(|error| &*error.name).collect();
    assert_eq!(names, ["WebSocketError", "UnexpectedEndOfExecution"]);
    assert!(told.complete);
    let told = bench.execute(request("import os; print(os.getcwd(), 'z' in dir())")).await;
    assert_eq!((told.output(), told.count), ("/tmp False\n", 1));
    let unknown = bench.kernels.restart("nope").await.unwrap_err();
    assert_eq!((unknown.status(), unknown.to_string()), (404, "Context nope not found".to_owned()));
}

#[tokio::test]
async fn an_interpreter_that_dies_between_executions_is_replaced() {
    let bench = Bench::new().await;
    bench.python("import os, threading, time\nthreading.Thread(target=lambda: (time.sleep(0.1), os._exit(1))).start()").await;
    tokio::time::sleep(Duration::from_millis(400)).await;
    let told = bench.python("'os' in dir()").await;
    assert_eq!((told.value(), told.count), ("False", 1));
    assert_eq!(told.states, ["lost"]);
}

#[tokio::test]
async fn requests_are_refused_with_e2bs_messages() {
    let bench = Bench::new().await;
    let refused = |request| bench.kernels.execute(request).map(|_| ()).unwrap_err();
    let both = ExecuteRequest { language: Some("python".into()), ..ExecuteRequest::in_context("1", "x") };
    let error = refused(both);
    assert_eq!(
        (error.status(), &*error.to_string()),
        (400, "Only one of context_id or language can be provided")
    );
    let error = refused(ExecuteRequest::in_language("1", "cobol"));
    assert_eq!(error.status(), 500);
    assert_eq!(
        error.to_string(),
        r#"Failed to create context: {"message": "The 'cobol' kernel is not available. Please pick another suitable kernel instead, or install that kernel.", "short_message": "cobol not found"}"#
    );
    let mut request = ExecuteRequest::in_language("1", "python");
    for bad in [("", "x"), ("A=B", "x"), ("A", "x\0"), ("A\0", "x")] {
        request.env_vars = Some([(bad.0.to_owned(), bad.1.to_owned())].into());
        assert_eq!(refused(request.clone()).status(), 400, "{bad:?}");
    }
    // An empty text counts as none.
    let empty = ExecuteRequest {
        context_id: Some(String::new()),
        language: Some(String::new()),
        ..ExecuteRequest::in_context("1", "")
    };
    assert_eq!(bench.execute(empty).await.value(), "1");
    assert_eq!(bench.run("1", "python3").await.value(), "1");
}

#[tokio::test]
async fn a_missing_interpreter_is_named_with_its_package() {
    let search = Search { node: Some("/nowhere/node".into()), ..Search::default() };
    let bench = Bench::with(search, SandboxLimits::default(), |options| options).await;
    let error =
        bench.kernels.execute(ExecuteRequest::in_language("1", "javascript")).map(|_| ()).unwrap_err();
    assert_eq!(error.status(), 500);
    assert!(error.to_string().contains("install Debian's package nodejs"), "{error}");
    assert!(bench.kernels.contexts().iter().all(|context| context.language != "javascript"));
}

#[tokio::test]
async fn contexts_and_waiting_executions_are_limited() {
    let change = |options| Options { max_contexts: 3, ..options };
    let bench = Bench::with(Search::default(), SandboxLimits::default(), change).await;
    let mut made = Vec::new();
    let error = loop {
        match bench.kernels.create(None, None).await {
            Ok(context) => made.push(context),
            Err(error) => break error,
        }
    };
    assert_eq!((error.status(), bench.kernels.contexts().len()), (429, 3));
    bench.kernels.remove(&made[0].id).await.unwrap();
    bench.kernels.create(None, None).await.unwrap();

    let mut waiting = Vec::new();
    let error = loop {
        match bench.kernels.execute(ExecuteRequest::in_language("import time; time.sleep(5)", "python")) {
            Ok(stream) => waiting.push(stream),
            Err(error) => break error,
        }
    };
    assert_eq!(error.status(), 429);
    assert!(waiting.len() >= 200);

    drop(waiting);
    let context =
        bench.kernels.create(None, None).await.unwrap_or_else(|_| bench.kernels.contexts()[2].clone());
    let large = format!("import time; time.sleep(5) #{}", "x".repeat(10 << 20));
    let mut waiting = Vec::new();
    let error = loop {
        match bench.kernels.execute(ExecuteRequest::in_context(large.clone(), &context.id)) {
            Ok(stream) => waiting.push(stream),
            Err(error) => break error,
        }
    };
    assert_eq!(error.status(), 429);
    assert!((1..=4).contains(&waiting.len()), "{} of 10 MiB wait", waiting.len());
}

#[tokio::test]
async fn a_slow_reader_slows_the_program_and_not_the_host() {
    let bench = Bench::new().await;
    let code = "import os\nopen('/tmp/n', 'w').write('0')\nfor i in range(1000):\n    os.write(1, b'x' * 65536)\n    open('/tmp/n', 'w').write(str(i + 1))";
    let mut stream = start(&bench.kernels, code, "python");
    printed(&mut stream).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let context = bench.kernels.create(None, None).await.unwrap();
    let told = bench.execute(ExecuteRequest::in_context("int(open('/tmp/n').read())", &context.id)).await;
    let written: u32 = told.value().parse().unwrap();
    assert!(written < 900, "the program waits: {written} of 1000");
    let mut told = Told::default();
    while let Some(event) = stream.next().await {
        told.add(event);
    }
    assert!(told.complete && told.stdout.len() > 64_000_000);
}

#[tokio::test]
async fn the_end_of_the_sandbox_breaks_the_stream_off() {
    let Bench { kernels, jailed, _spawner } = Bench::new().await;
    let mut stream = start(&kernels, "print('on', flush=True)\nimport time; time.sleep(1000)", "python");
    printed(&mut stream).await;
    let (told, ()) = tokio::join!(Told::of(stream), jailed.kill());
    assert!(!told.complete, "{told:?}");
}
