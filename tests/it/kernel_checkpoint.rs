//! Checkpoints: what a Python cell that kills its interpreter leaves of the state, and where there is none.

use futures::StreamExt;
use pathbox::host::jail::SandboxLimits;
use pathbox::host::kernel::{Options, Search};
use pathbox::wire::interpreter::{Event, ExecuteRequest};

use crate::kernel_support::{Bench, Told};

/// Says whether `kept` is there, after a cell that killed the interpreter.
async fn is_rolled_back(bench: &Bench, deadly: &str) -> bool {
    let told = bench.python(deadly).await;
    assert_eq!(told.error().name, "ContextRestarting", "{deadly}: {told:?}");
    let [state] = &told.states[..] else { panic!("{deadly}: {told:?}") };
    let kept = bench.python("'kept' in dir()").await;
    assert!(kept.states.is_empty(), "it is told once: {kept:?}");
    let is_kept = kept.value() == "True";
    assert_eq!(state, if is_kept { "rolled_back" } else { "lost" }, "{deadly}: the truth is told");
    is_kept
}

#[tokio::test]
async fn variables_outlive_whatever_kills_the_interpreter() {
    let bench = Bench::new().await;
    bench.python("import os, random; kept = {'a': [1]}; random.seed(7)").await;
    for (deadly, why) in [
        ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
        ("os._exit(7)", "exit code 7"),
        ("os.abort()", "SIGABRT"),
        ("os.kill(os.getpid(), 9)", "SIGKILL"),
        ("os.killpg(0, 9)", "SIGKILL"),
        ("os.close(3)", "exit code 1"),
        ("os.write(3, b'\\xff' * 100); import time; time.sleep(30)", "SIGKILL"),
    ] {
        let told =
            bench.python(&format!("kept['a'].append(2); made = 1\nprint('bye', flush=True)\n{deadly}")).await;
        if deadly == "os.close(3)" && told.errors.is_empty() {
            continue; // its last frame was quicker
        }
        assert_eq!((&*told.stdout, &told.states[..]), ("bye\n", &["rolled_back".to_owned()][..]), "{told:?}");
        let error = told.error();
        assert_eq!((&*error.name, &*error.value), ("ContextRestarting", "Context was restarted"));
        assert!(error.traceback.contains(why), "{deadly}: {}", error.traceback);
        assert!(error.traceback.contains("what they were before this execution"), "{}", error.traceback);
        let after = bench.python("kept, 'made' in dir(), random.random()").await;
        assert_eq!(after.value(), "({'a': [1]}, False, 0.32383276483316237)", "{deadly}");
        assert_eq!(after.count, told.count + 1, "{deadly}");
        bench.python("random.seed(7)").await;
    }
}

#[tokio::test]
async fn a_cell_that_ignores_interrupts_is_killed_and_the_next_is_informed() {
    let bench = Bench::new().await;
    bench.python("kept = 1").await;
    for deaf in [
        // In a loop, or an interrupt that is quicker than the sum would end the cell.
        "kept = 2\nwhile True:\n    try: print('on', flush=True); sum(range(10**12))\n    except BaseException: pass",
        "import signal, time; kept = 2; signal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('on', flush=True)\nwhile True: time.sleep(1)",
    ] {
        let mut stream = bench.kernels.execute(ExecuteRequest::in_language(deaf, "python")).unwrap();
        while !matches!(stream.next().await, Some(Event::Stdout(_))) {}
        drop(stream);
        let told = bench.python("kept").await;
        assert_eq!((told.value(), &told.states[..]), ("1", &["rolled_back".to_owned()][..]), "{deaf}");
        let told = bench.python("kept").await;
        assert_eq!((told.value(), told.states.len()), ("1", 0));
    }
}

#[tokio::test]
async fn the_cell_runs_in_the_interpreter_itself() {
    let bench = Bench::new().await;
    bench.python("import os, subprocess; pid = os.getpid(); kept = 1").await;
    assert_eq!(bench.python("os.getpid() == pid").await.value(), "True");
    // The copy is not a child of any process: a program that waits for children does not wait for it.
    let told = bench.python("try: os.wait()\nexcept ChildProcessError: print('none')").await;
    assert_eq!(told.output(), "none\n");
    let told = bench.python("subprocess.run(['true']).returncode, os.system('exit 3') >> 8").await;
    assert_eq!(told.value(), "(0, 3)");
    // After the roll-back, too.
    assert!(is_rolled_back(&bench, "os._exit(1)").await);
    let told = bench.python("try: os.wait()\nexcept ChildProcessError: print(os.getpid() != pid, os.getpgrp() == os.getpid())").await;
    assert_eq!(told.output(), "True True\n");
    assert!(is_rolled_back(&bench, "os._exit(1)").await, "the second death as the first");
    assert_eq!(bench.python("1/0").await.error().name, "ZeroDivisionError");
}

#[tokio::test]
async fn a_checkpoint_works_where_only_an_ordinary_fork_exists() {
    let bench = Bench::new().await;
    let parts = "sys.modules['pathbox_driver'].checkpoint.take.__globals__";
    let told = bench.python(&format!("import os, sys; kept = 1; callable({parts}['fork_sibling'])")).await;
    if cfg!(all(target_env = "gnu", target_arch = "x86_64")) {
        assert_eq!(told.value(), "True", "the cheap way is taken where it is known");
    }
    bench.python(&format!("{parts}['fork_sibling'] = None")).await;
    assert!(is_rolled_back(&bench, "os._exit(1)").await);
    assert!(is_rolled_back(&bench, "os.killpg(0, 9)").await);
    let told = bench.python("try: os.wait()\nexcept ChildProcessError: print('none')").await;
    assert_eq!(told.output(), "none\n");
    // No process is left available: there is no copy, and nothing else is different.
    let no_fork = "def fail(): raise OSError(11, 'no')\nos.fork = fail; kept = 2";
    assert!(bench.python(no_fork).await.errors.is_empty());
    assert!(!is_rolled_back(&bench, "os._exit(1)").await);
}

/// A copy that takes over is a whole process: it makes threads, signals them, forks and is forked.
#[tokio::test]
async fn a_restored_interpreter_is_a_process_like_any_other() {
    let bench = Bench::new().await;
    bench.python("import os, random, signal, subprocess, threading, time; kept = 1").await;
    for _ in 0..2 {
        assert!(is_rolled_back(&bench, "os.kill(os.getpid(), 9)").await);
        let told = bench
            .python(
                "seen = []\nold = signal.signal(signal.SIGUSR1, lambda *a: seen.append(1))\n\
                 t = threading.Thread(target=lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1))\n\
                 t.start(); t.join(); time.sleep(0.01); signal.signal(signal.SIGUSR1, old)\n\
                 threading.get_native_id() == os.getpid(), seen, subprocess.run(['true']).returncode",
            )
            .await;
        assert_eq!(told.value(), "(True, [1], 0)");
    }
}

#[tokio::test]
async fn an_interrupt_reaches_the_interpreter_that_goes_on() {
    let bench = Bench::new().await;
    bench.python("kept = 1").await;
    bench.python("import os; os._exit(1)").await;
    let busy = "print('on', flush=True)\nwhile True: pass";
    let mut stream = bench.kernels.execute(ExecuteRequest::in_language(busy, "python")).unwrap();
    while !matches!(stream.next().await, Some(Event::Stdout(_))) {}
    drop(stream);
    let told = bench.python("kept").await;
    assert_eq!((told.value(), told.states.len()), ("1", 0), "it was interrupted, not killed");
}

#[tokio::test]
async fn no_checkpoint_is_made_where_it_would_be_incomplete() {
    for (unsafe_cell, deadly) in [
        (
            "import threading, time; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
            "os._exit(1)",
        ),
        ("import subprocess; p = subprocess.Popen(['sleep', '600'])", "os._exit(1)"),
        ("import socket; s = socket.create_server(('127.0.0.1', 0))", "os._exit(1)"),
        ("r, w = os.pipe()", "os._exit(1)"),
        ("import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)", "os._exit(1)"),
    ] {
        let bench = Bench::new().await;
        bench.python("import os; kept = 1").await;
        assert!(bench.python(unsafe_cell).await.errors.is_empty());
        assert!(!is_rolled_back(&bench, deadly).await, "{unsafe_cell}");
        assert_eq!(bench.python("1 + 1").await.value(), "2");
    }
    let change = |options| Options { checkpoint_bytes: 64 << 20, ..options };
    let bench = Bench::with(Search::default(), SandboxLimits::default(), change).await;
    bench.python("import os; kept = b'x' * (100 << 20)").await;
    assert!(!is_rolled_back(&bench, "os._exit(1)").await, "too large");
    bench.python("kept = 1").await;
    assert!(is_rolled_back(&bench, "import os; os._exit(1)").await, "small again");
}

#[tokio::test]
async fn ended_work_does_not_prevent_a_checkpoint() {
    let bench = Bench::new().await;
    bench.python("import asyncio, os, socket, subprocess, threading; kept = 1").await;
    for over in [
        "t = threading.Thread(target=print); t.start(); t.join()",
        "subprocess.run(['true'])",
        "socket.socketpair()[0].close()",
        "await asyncio.sleep(0.01)",
        "f = open('a file', 'w'); f.write('x' * 10)",
    ] {
        bench.python(over).await;
        assert!(is_rolled_back(&bench, "os._exit(1)").await, "{over}");
    }
    assert_eq!(bench.python("await asyncio.sleep(0.01, 'woke')").await.value(), "woke");
    bench.python("f.close()").await;
    assert_eq!(bench.python("open('a file').read()").await.value(), "xxxxxxxxxx", "written once");
}

/// Cells that go for the copy instead of the interpreter. `others` are all processes of the sandbox but the agent
/// and the cell's own.
const OTHERS: &str = "import os, signal, time\n\
    others = [int(p) for p in os.listdir('/proc') if p.isdigit() and int(p) not in (1, os.getpid())]\n";

#[tokio::test]
async fn a_cell_that_kills_its_copy_loses_only_the_checkpoint() {
    let bench = Bench::new().await;
    bench.python("kept = 1").await;
    let told = bench.python(&format!("{OTHERS}for p in others: os.kill(p, 9)\nlen(others) > 0")).await;
    assert_eq!(told.value(), "True");
    assert_eq!(bench.python("kept").await.value(), "1");
    let told =
        bench.python(&format!("{OTHERS}for p in others: os.kill(p, 9)\ntime.sleep(0.1); os._exit(1)")).await;
    assert_eq!(told.states, ["lost"], "{told:?}");
    assert_eq!(bench.python("1 + 1").await.value(), "2");
    // Everything at once: the sender survives, because it is not its own target.
    bench.python("kept = 1").await;
    assert!(bench.python("import os; os.kill(-1, 9)").await.errors.is_empty());
    assert_eq!(bench.python("kept").await.value(), "1");
    for signal in ["SIGSTOP", "SIGUSR1", "SIGTERM", "SIGALRM"] {
        bench.python("kept = 1").await;
        let told = bench.python(&format!("{OTHERS}for p in others: os.kill(p, signal.{signal})")).await;
        assert!(told.errors.is_empty());
        let told = bench.python("import os; os.kill(-1, 18); os._exit(1)").await;
        assert!(told.complete && told.states.len() == 1, "{signal}: {told:?}");
        assert_eq!(bench.python("1 + 1").await.value(), "2", "{signal}");
    }
}

#[tokio::test]
async fn a_cell_that_names_a_false_successor_hurts_only_itself() {
    let bench = Bench::new().await;
    for pid in ["0", "1", "-1", "2", "99999", "os.getpid()", "2147483647"] {
        bench.python("kept = 1").await;
        let told = bench
            .python(&format!(
                "import os, sys\nsys.modules['pathbox_driver'].send('rest', successor={pid})\nos._exit(3)"
            ))
            .await;
        assert!(told.complete && told.errors.len() == 1, "{pid}: {told:?}");
        assert_eq!(bench.python("1 + 1").await.value(), "2", "{pid}");
    }
    // A process of the cell's own that outlives it: signals go to that one from then on, so what cannot be
    // interrupted any more is given up with it.
    let own = "import os, signal, subprocess, sys, time\n\
        if os.fork() == 0:\n    if os.fork() == 0:\n        os.setsid()\n        open('/tmp/pid', 'w').write(str(os.getpid()))\n        time.sleep(600)\n    os._exit(0)\n\
        time.sleep(0.5)\nsys.modules['pathbox_driver'].send('rest', successor=int(open('/tmp/pid').read()))\ntime.sleep(0.5); os._exit(3)";
    let told = bench.python(own).await;
    assert!(told.complete && told.states.len() == 1, "{told:?}");
    let busy = "print('on', flush=True)\nwhile True: pass";
    let mut stream = bench.kernels.execute(ExecuteRequest::in_language(busy, "python")).unwrap();
    while !matches!(stream.next().await, Some(Event::Stdout(_))) {}
    drop(stream);
    assert_eq!(bench.python("1 + 1").await.value(), "2");
}

#[tokio::test]
async fn leftover_input_and_output_of_a_dead_interpreter_is_discarded() {
    let bench = Bench::new().await;
    bench.python("import os; kept = 1").await;
    // Half a frame, and a mark of a later one.
    let half = "os.write(3, (1000).to_bytes(4, 'little') + b'{\"t\":\"result\"')\nos._exit(1)";
    assert!(is_rolled_back(&bench, half).await);
    // The cell eats its own next request and dies of it; a long one is on its way then.
    let eater = "import threading\nos.set_blocking(3, False)\nos._exit(1)";
    assert!(is_rolled_back(&bench, eater).await);
    let long = format!("x = {:?}; len(x)", "y".repeat(3 << 20));
    let first = bench
        .kernels
        .execute(ExecuteRequest::in_language("import time; time.sleep(0.3); os._exit(1)", "python"));
    let second = bench.kernels.execute(ExecuteRequest::in_language(long, "python"));
    assert_eq!(Told::of(first.unwrap()).await.states, ["rolled_back"]);
    assert_eq!(Told::of(second.unwrap()).await.value(), "3145728");
    assert_eq!(bench.python("kept").await.value(), "1");
}

#[tokio::test]
async fn a_fork_in_a_cell_is_not_a_checkpoint_and_a_flood_is_cut_off() {
    let bench = Bench::new().await;
    bench.python("import os; kept = 1").await;
    let flood = "if os.fork() == 0:\n    os.setsid()\n    while True: os.write(1, b'x' * 65536)\nos._exit(1)";
    assert!(is_rolled_back(&bench, flood).await);
    let told =
        bench.python("pid = os.fork()\nif pid: os.waitpid(pid, 0)\n'parent' if pid else 'child'").await;
    assert_eq!(told.value(), "parent");
}

#[tokio::test]
async fn environment_and_directories_are_right_after_a_roll_back() {
    let bench = Bench::new().await;
    bench.kernels.set_env([("BASE".to_owned(), "one".to_owned())].into()).unwrap();
    bench.python("import os; kept = 1; os.chdir('/tmp'); os.environ['MINE'] = 'm'").await;
    bench.kernels.set_env([("BASE".to_owned(), "two".to_owned())].into()).unwrap();
    let told = bench
        .run_with_env(
            "print(os.environ['BASE'], flush=True); os.chdir('/'); os._exit(1)",
            "python",
            &[("ONCE", "1")],
        )
        .await;
    assert_eq!((&*told.stdout, &told.states[..]), ("two\n", &["rolled_back".to_owned()][..]));
    let told =
        bench.python("os.getcwd(), os.environ['BASE'], os.environ.get('ONCE'), os.environ['MINE']").await;
    assert_eq!(told.value(), "('/tmp', 'two', None, 'm')");
}

#[tokio::test]
async fn a_context_that_is_restarted_or_removed_takes_its_copy_along() {
    let bench = Bench::new().await;
    let count = "import os, time\ntime.sleep(0.3)\nsum(open(f'/proc/{p}/comm').read().startswith('python') for p in os.listdir('/proc') if p.isdigit())";
    bench.python("1").await;
    let before = bench.python(count).await.value().to_owned();
    let context = bench.kernels.create(None, None).await.unwrap();
    let run = |code: &'static str| bench.execute(ExecuteRequest::in_context(code, &context.id));
    run("kept = 1").await;
    bench.kernels.restart(&context.id).await.unwrap();
    assert_eq!(run("'kept' in dir()").await.value(), "False");
    assert!(run("import os; os._exit(1)").await.states == ["rolled_back"]);
    bench.kernels.remove(&context.id).await.unwrap();
    assert_eq!(bench.python(count).await.value(), before);
}

#[tokio::test]
async fn memory_that_copies_share_counts_once() {
    // Half of the limit as a copy: the sum of both would be the limit, the truth is half of it.
    let limits = SandboxLimits { memory_bytes: 320 << 20, ..SandboxLimits::default() };
    let bench = Bench::with(Search::default(), limits, |options| options).await;
    let told = bench.python("import os; kept = b'x' * (200 << 20)").await;
    assert!(told.errors.is_empty(), "{told:?}");
    let told = bench.python("import time; time.sleep(1); len(kept)").await;
    assert_eq!(told.value(), (200 << 20).to_string(), "{told:?}");
    // What is too much kills the cell and not the copy.
    let told = bench.python("more = b'y' * (250 << 20); time.sleep(2)").await;
    if !told.errors.is_empty() && told.error().name == "ContextRestarting" {
        assert_eq!((&*told.stops[0].0, &*told.states[0]), ("oom", "rolled_back"), "{told:?}");
    } else {
        assert_eq!(told.error().name, "MemoryError", "{told:?}");
    }
    assert_eq!(bench.python("len(kept)").await.value(), (200 << 20).to_string());
}
