//! A jail does its job: programs run, speak, are fed, signalled and ended; files go in and out.

use std::time::Duration;

use bytes::Bytes;
use pathbox::host::agent::{FileKind, ProcessEvent, ProcessSpec, Stdin};
use pathbox::host::jail::{EndCause, SandboxSpec};

use super::support::{Ran, launch, python, run, run_python, sandbox, spawner};

#[tokio::test]
async fn a_program_runs_as_an_unprivileged_user_and_its_end_is_reported() {
    let (_spawner, jailed) = sandbox().await;
    let ran = run(&jailed.agent, &["sh", "-c", "id -un; pwd; hostname; echo oops >&2; exit 3"]).await;
    assert_eq!(ran.stdout, "user\n/home/user\nsandbox\n");
    assert_eq!(ran.stderr, "oops\n");
    assert_eq!(ran.code, Some(3));
}

#[tokio::test]
async fn a_program_that_is_not_there_is_an_error_with_its_name() {
    let (_spawner, jailed) = sandbox().await;
    let spec = ProcessSpec { argv: vec!["no-such-program".into()], ..ProcessSpec::default() };
    let error = jailed.agent.start(spec).await.expect_err("must fail");
    assert_eq!(error.to_string(), "starting no-such-program");
}

#[tokio::test]
async fn input_is_fed_and_ended() {
    let (_spawner, jailed) = sandbox().await;
    let spec =
        ProcessSpec { argv: vec!["wc".into(), "-c".into()], stdin: Stdin::Pipe, ..ProcessSpec::default() };
    let process = jailed.agent.start(spec).await.expect("starts");
    let big = Bytes::from(vec![b'x'; 3_000_000]);
    process.handle.stdin(big).await.expect("feeds");
    process.handle.close_stdin().await.expect("closes");
    assert_eq!(Ran::of(process).await.stdout, "3000000\n");
}

#[tokio::test]
async fn control_bytes_come_after_the_output_that_was_written_before_them() {
    let (_spawner, jailed) = sandbox().await;
    let script = "head -c 50000 /dev/zero; echo ready >&3; read -r line <&3; echo got $line";
    let spec = ProcessSpec {
        argv: ["bash", "-c", script].map(String::from).to_vec(),
        control: true,
        ..ProcessSpec::default()
    };
    let mut process = jailed.agent.start(spec).await.expect("starts");
    let mut before = 0;
    loop {
        match process.events.recv().await.expect("event") {
            ProcessEvent::Stdout(bytes) => before += bytes.len(),
            ProcessEvent::Control(bytes) => {
                assert_eq!(&bytes[..], b"ready\n");
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(before, 50_000);
    process.handle.control(Bytes::from_static(b"it\n")).await.expect("speaks");
    assert_eq!(Ran::of(process).await.stdout, "got it\n");
}

/// Many small pieces without a pause, to the very end of the program: whichever moment the agent looks at, a control byte
/// that has arrived represents an output byte that has arrived before it.
#[tokio::test]
async fn control_bytes_never_overtake_output_however_fast_they_are_written() {
    let (_spawner, jailed) = sandbox().await;
    let script = "import os\nfor _ in range(40_000):\n    os.write(1, b'o')\n    os.write(3, b'c')\n";
    for _ in 0..3 {
        let spec = ProcessSpec {
            argv: ["/usr/bin/python3", "-I", "-S", "-c", script].map(String::from).to_vec(),
            control: true,
            ..ProcessSpec::default()
        };
        let mut process = jailed.agent.start(spec).await.expect("starts");
        let (mut output, mut control) = (0, 0);
        loop {
            match process.events.recv().await.expect("event") {
                ProcessEvent::Stdout(bytes) => output += bytes.len(),
                ProcessEvent::Control(bytes) => control += bytes.len(),
                ProcessEvent::Exited { code, .. } => break assert_eq!(code, Some(0)),
                other => panic!("{other:?}"),
            }
            assert!(control <= output, "{control} control bytes came, and {output} of output");
        }
        assert_eq!((output, control), (40_000, 40_000));
    }
}

#[tokio::test]
async fn a_terminal_has_a_size_that_can_change() {
    let (_spawner, jailed) = sandbox().await;
    let spec = ProcessSpec {
        argv: ["bash", "-c", "tty; stty size; read -r x; stty size"].map(String::from).to_vec(),
        pty: Some((100, 40)),
        ..ProcessSpec::default()
    };
    let mut process = jailed.agent.start(spec).await.expect("starts");
    let mut before = Vec::new();
    while !before.ends_with(b"40 100\r\n") {
        match process.events.recv().await.expect("event") {
            ProcessEvent::Pty(bytes) => before.extend_from_slice(&bytes),
            other => panic!("{other:?}"),
        }
    }
    assert!(before.starts_with(b"/dev/pts/0\r\n"), "{:?}", String::from_utf8_lossy(&before));
    process.handle.resize(80, 24).await.expect("resizes");
    process.handle.stdin(Bytes::from_static(b"go\n")).await.expect("types");
    let ran = Ran::of(process).await;
    assert!(ran.stdout.ends_with("24 80\r\n"), "{:?}", ran.stdout);
}

/// The kernel carries it to this side in its own time, which many at once make long.
#[tokio::test]
async fn a_terminal_gives_what_was_written_just_before_the_end() {
    let (_spawner, jailed) = sandbox().await;
    for _ in 0..20 {
        let spec = ProcessSpec {
            argv: ["printf", "last words"].map(String::from).to_vec(),
            pty: Some((80, 24)),
            ..ProcessSpec::default()
        };
        let processes = futures::future::join_all((0..16).map(|_| jailed.agent.start(spec.clone()))).await;
        for process in processes {
            assert_eq!(Ran::of(process.expect("starts")).await.stdout, "last words");
        }
    }
}

#[tokio::test]
async fn a_terminal_s_input_can_be_ended_before_anything_was_typed() {
    let (_spawner, jailed) = sandbox().await;
    let spec = ProcessSpec { argv: vec!["cat".into()], pty: Some((80, 24)), ..ProcessSpec::default() };
    let process = jailed.agent.start(spec).await.expect("starts");
    process.handle.close_stdin().await.expect("types control-D");
    assert_eq!(Ran::of(process).await.code, Some(0));
    assert_eq!(run(&jailed.agent, &["echo", "on"]).await.stdout, "on\n");
}

#[tokio::test]
async fn input_that_comes_byte_by_byte_arrives_whole() {
    let (_spawner, jailed) = sandbox().await;
    let argv = ["wc", "-c"].map(String::from).to_vec();
    let spec = ProcessSpec { argv, stdin: Stdin::Pipe, ..ProcessSpec::default() };
    let process = jailed.agent.start(spec).await.expect("starts");
    for _ in 0..5000 {
        process.handle.stdin(Bytes::from_static(b"x")).await.expect("is taken");
    }
    process.handle.close_stdin().await.expect("ends");
    assert_eq!(Ran::of(process).await.stdout, "5000\n");
}

#[tokio::test]
async fn a_signal_reaches_the_whole_group() {
    let (_spawner, jailed) = sandbox().await;
    let mut process = launch(&jailed.agent, &["bash", "-c", "sleep 100 & echo up; wait"]).await;
    assert!(matches!(process.events.recv().await, Some(ProcessEvent::Stdout(_))));
    process.handle.signal(libc::SIGTERM, true).await.expect("signals");
    let ran = Ran::of(process).await;
    assert_eq!(ran.signal, Some(libc::SIGTERM));
    // Who has been killed is there until the first process has waited for it.
    let mut left = String::new();
    for _ in 0..100 {
        left = run(&jailed.agent, &["sh", "-c", "pgrep sleep || echo none"]).await.stdout;
        if left == "none\n" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(left, "none\n");
}

#[tokio::test]
async fn files_go_in_and_out() {
    let (_spawner, jailed) = sandbox().await;
    let agent = &jailed.agent;
    let content = Bytes::from((0..200_000_u32).map(|i| i as u8).collect::<Vec<_>>());
    agent.write_file("deep/er/data.bin", 0, true, content.clone()).await.expect("writes");
    let mut back = Vec::new();
    loop {
        let piece = agent.read_file("deep/er/data.bin", back.len() as u64, 150_000).await.expect("reads");
        if piece.is_empty() {
            break;
        }
        back.extend_from_slice(&piece);
    }
    assert_eq!(back, content);
    let info = agent.stat("/home/user/deep/er/data.bin").await.expect("is there");
    assert_eq!((info.kind, info.size, info.name.as_str()), (FileKind::File, 200_000, "data.bin"));
    assert!(agent.make_dir("deep/two").await.expect("makes"));
    assert!(!agent.make_dir("deep/two").await.expect("was there"));
    agent.rename("deep/er/data.bin", "deep/two/b").await.expect("renames");
    let names: Vec<String> =
        agent.list_dir("deep", 2).await.expect("lists").iter().map(|i| i.name.clone()).collect();
    assert_eq!(names, ["er", "two", "b"]);
    agent.remove("deep").await.expect("removes");
    let error = agent.stat("deep").await.expect_err("is gone");
    assert_eq!(
        std::error::Error::source(&error).map(ToString::to_string).as_deref(),
        Some("No such file or directory (os error 2)")
    );
}

#[tokio::test]
async fn changes_in_new_directories_are_reported_too() {
    let (_spawner, jailed) = sandbox().await;
    let mut changes = jailed.agent.watch("/home/user", true).await.expect("watches");
    jailed.agent.make_dir("new").await.expect("makes");
    assert_eq!(changes.recv().await.expect("event").name, "new");
    jailed.agent.write_file("new/f", 0, true, Bytes::from_static(b"x")).await.expect("writes");
    assert_eq!(changes.recv().await.expect("event").name, "new/f");
}

#[tokio::test]
async fn a_killed_sandbox_says_so_and_so_does_one_that_died() {
    let (spawner, jailed) = sandbox().await;
    let process = launch(&jailed.agent, &["sleep", "100"]).await;
    let mut events = process.events;
    jailed.kill().await;
    assert_eq!(events.recv().await, None);
    assert!(process.handle.stdin(Bytes::from_static(b"x")).await.is_err());

    let jailed = spawner.spawn(&SandboxSpec::default()).await.expect("spawns");
    spawner.shutdown().await;
    let cause = tokio::time::timeout(Duration::from_secs(30), jailed.ended()).await.expect("ends");
    assert_eq!(cause, EndCause::Spawner);
    assert!(jailed.agent.stat("/").await.is_err());
}

#[tokio::test]
async fn unread_output_stops_only_the_program_that_wrote_it() {
    let (_spawner, jailed) = sandbox().await;
    let flood = launch(&jailed.agent, &["yes"]).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let ran = run(&jailed.agent, &["echo", "hello"]).await;
    assert_eq!(ran.stdout, "hello\n");
    let cpu = run(
        &jailed.agent,
        &[
            "sh",
            "-c",
            "a=$(ps -o time= -C yes); sleep 1; b=$(ps -o time= -C yes); test \"$a\" = \"$b\" && echo stopped",
        ],
    )
    .await;
    assert_eq!(cpu.stdout, "stopped\n");
    drop(flood.events);
    flood.handle.signal(libc::SIGKILL, false).await.expect("signals");
}

#[tokio::test]
async fn each_sandbox_has_its_own_environment_and_files() {
    let spawner = spawner().await;
    let spec = SandboxSpec { env: vec![("COLOUR".into(), "blue".into())], ..SandboxSpec::default() };
    let first = spawner.spawn(&spec).await.expect("spawns");
    let second = spawner.spawn(&SandboxSpec::default()).await.expect("spawns");
    let ran = run(&first.agent, &["sh", "-c", "echo $COLOUR > /tmp/x; cat /tmp/x"]).await;
    assert_eq!(ran.stdout, "blue\n");
    let ran = run(&second.agent, &["sh", "-c", "echo [$COLOUR]; cat /tmp/x"]).await;
    assert_eq!((ran.stdout.as_str(), ran.code), ("[]\n", Some(1)));
}

#[tokio::test]
async fn python_runs_from_where_it_lives_and_its_neighbours_stay_hidden() {
    let (_spawner, jailed) = sandbox().await;
    let code = "import sys, json, ssl, sqlite3, ctypes, threading, subprocess, multiprocessing as m; \
                v = m.Value('i', 4); p = m.Process(target=lambda: setattr(v, 'value', 5)); p.start(); p.join(); \
                print(v.value, subprocess.check_output(['echo', 'child']).decode(), end='')";
    let ran = run_python(&jailed.agent, code).await;
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("5 child\n", ""));
    for dir in &python().dirs {
        for above in dir.ancestors().skip(1).take_while(|above| above.parent().is_some()) {
            let inside = jailed.agent.list_dir(&above.to_string_lossy(), 1).await.expect("lists");
            assert_eq!(inside.len(), 1, "{} shows {inside:?}", above.display());
        }
    }
}

#[tokio::test]
async fn programs_go_before_the_agent_when_memory_runs_out() {
    let (_spawner, jailed) = sandbox().await;
    assert_eq!(run(&jailed.agent, &["cat", "/proc/self/oom_score_adj"]).await.stdout, "500\n");
}
