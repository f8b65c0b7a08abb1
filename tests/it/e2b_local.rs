//! The client against the real local host, for what no fake can play: files, processes, a shell, pauses, and how things
//! end when they are cut off.

use std::time::Duration;

use pathbox::domain::EXIT_STATUS;
use pathbox::e2b::{
    Command, Deadline, Deadlines, E2bError, Liveness, ProcessUpdate, Processes, Readiness, RunRequest,
    Settled, Subject, Target,
};
use pathbox::wire::Secret;
use pathbox::wire::envd::{FileEventType, FileType, PtySize, Selector, Signal};
use pathbox::wire::interpreter::{Event, ExecuteRequest};

use crate::e2b_contract::{Seen, Server, local};

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), work).await.expect("it ends within a minute")
}

#[tokio::test]
async fn a_new_sandbox_is_ready() {
    within(async {
        let server = local::start().await;
        let sandbox = server.create().await;
        let readiness = server.client.ready(&sandbox.access(), Duration::from_secs(10)).await.unwrap();
        assert!(matches!(readiness, Readiness::Ready { .. }));
        let left = server.client.time_left(&sandbox.id).await.unwrap();
        assert!((290..=300).contains(&left.as_secs()), "{left:?}");
    })
    .await;
}

#[tokio::test]
async fn files_are_written_read_listed_moved_and_removed() {
    within(async {
        let server = local::start().await;
        let access = server.create().await.access();
        let files = server.client.files(&access);
        let bytes: Vec<u8> = (0..300_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        let written = files.write("deep/er/a é'b.bin", bytes.clone()).await.unwrap();
        assert!(written.path.ends_with("/deep/er/a é'b.bin"), "{}", written.path);
        assert_eq!(files.read("deep/er/a é'b.bin", 1 << 20).await.unwrap(), bytes);
        let entry = files.stat("deep/er/a é'b.bin").await.unwrap();
        assert_eq!((entry.size, entry.file_type), (300_000, FileType::File));
        assert!(files.make_dir("deep/other").await.unwrap());
        assert!(!files.make_dir("deep/other").await.unwrap());
        let mut names: Vec<_> =
            files.list("deep", 2).await.unwrap().into_iter().map(|entry| entry.name).collect();
        names.sort();
        assert_eq!(names, ["a é'b.bin", "er", "other"]);
        files.rename("deep/er/a é'b.bin", "deep/c").await.unwrap();
        files.remove("deep/er").await.unwrap();
        files.remove("deep/er").await.unwrap();
        assert_eq!(files.list("deep", 1).await.unwrap().len(), 2);
        let many = vec![("m/1".to_owned(), "one".into()), ("m/2".to_owned(), "two".into())];
        assert_eq!(files.write_all(many).await.unwrap().len(), 2);
        assert_eq!(files.read("m/2", 10).await.unwrap(), "two");
    })
    .await;
}

#[tokio::test]
async fn file_errors_are_specific() {
    within(async {
        let server = local::start().await;
        let files = server.client.files(&server.create().await.access());
        for error in [files.read("nope", 1).await.unwrap_err(), files.stat("nope").await.unwrap_err()] {
            assert!(matches!(error, E2bError::NotFound { what: Subject::File, .. }), "{error:?}");
        }
        assert!(matches!(files.read("/tmp", 1).await.unwrap_err(), E2bError::Refused { status: 400, .. }));
        files.write("big", vec![0; 1000]).await.unwrap();
        assert!(matches!(files.read("big", 999).await.unwrap_err(), E2bError::TooLarge { .. }));
    })
    .await;
}

#[tokio::test]
async fn changes_of_files_are_seen() {
    within(async {
        let server = local::start().await;
        let files = server.client.files(&server.create().await.access());
        files.make_dir("watched").await.unwrap();
        let mut watch = files.watch("watched", false).await.unwrap();
        files.write("watched/new.txt", "x").await.unwrap();
        let event = watch.next().await.unwrap().unwrap();
        assert_eq!((event.name.as_str(), event.kind), ("new.txt", FileEventType::Create));
    })
    .await;
}

#[tokio::test]
async fn a_command_has_both_outputs_and_its_status() {
    within(async {
        let server = local::start().await;
        let processes = server.client.processes(&server.create().await.access());
        let command = Command {
            envs: [("NAME".to_owned(), Secret::new("it's é"))].into(),
            cwd: Some("/tmp".to_owned()),
            ..Command::shell("echo \"$NAME in $PWD\"; echo no >&2; exit 3")
        };
        let output = processes.run(&command, 1000).await.unwrap();
        assert_eq!(
            (output.stdout.as_str(), output.stderr.as_str(), output.exit_code),
            ("it's é in /tmp\n", "no\n", 3)
        );
        let flood = processes.run(&Command::shell("yes"), 100_000).await.unwrap_err();
        assert!(matches!(flood, E2bError::TooLarge { .. }));
        let nowhere = Command { cwd: Some("/no/such".to_owned()), ..Command::shell("true") };
        assert!(matches!(processes.start(&nowhere).await.unwrap_err(), E2bError::Rpc { .. }));
    })
    .await;
}

#[tokio::test]
async fn a_process_takes_input_signals_and_a_second_listener() {
    within(async {
        let server = local::start().await;
        let processes = server.client.processes(&server.create().await.access());
        let cat = Command { stdin: true, tag: Some("cat".to_owned()), ..Command::shell("cat; echo over") };
        let mut process = processes.start(&cat).await.unwrap();
        let listed = processes.list().await.unwrap();
        assert!(listed.iter().any(|info| info.pid == process.pid() && info.tag.as_deref() == Some("cat")));
        let mut second = processes.attach(Selector::Tag("cat".to_owned())).await.unwrap();
        assert_eq!(second.pid(), process.pid());
        processes.send_stdin(process.pid(), "hé\n".as_bytes()).await.unwrap();
        for listener in [&mut process, &mut second] {
            assert_eq!(listener.next().await.unwrap(), Some(ProcessUpdate::Stdout("hé\n".to_owned())));
        }
        processes.close_stdin(process.pid()).await.unwrap();
        assert_eq!(process.next().await.unwrap(), Some(ProcessUpdate::Stdout("over\n".to_owned())));
        assert!(matches!(process.next().await.unwrap(), Some(ProcessUpdate::Ended { exit_code: 0, .. })));
        assert_eq!(process.next().await.unwrap(), None);
        assert!(!processes.signal(process.pid(), Signal::Kill).await.unwrap(), "it has ended");
    })
    .await;
}

#[tokio::test]
async fn input_is_streamed_in_one_request() {
    within(async {
        let server = local::start().await;
        let processes = server.client.processes(&server.create().await.access());
        let count = Command { stdin: true, ..Command::shell("sha256sum | cut -c 1-12") };
        let mut process = processes.start(&count).await.unwrap();
        let pieces = futures::stream::iter((0..40).map(|n| bytes::Bytes::from(vec![n; 10_000])));
        processes.stream_stdin(process.pid(), pieces).await.unwrap();
        processes.close_stdin(process.pid()).await.unwrap();
        assert_eq!(process.next().await.unwrap(), Some(ProcessUpdate::Stdout("bee4a6e01518\n".to_owned())));
        while process.next().await.unwrap().is_some() {}
        let error = processes.stream_stdin(process.pid(), futures::stream::empty()).await.unwrap_err();
        assert!(matches!(error, E2bError::NotFound { what: Subject::Process, .. }), "{error:?}");
    })
    .await;
}

#[tokio::test]
async fn a_terminal_has_its_size_and_takes_what_is_typed() {
    within(async {
        let server = local::start().await;
        let processes = server.client.processes(&server.create().await.access());
        let mut shell = processes.start(&Command::terminal(PtySize { cols: 91, rows: 33 })).await.unwrap();
        let mut seen = String::new();
        let mut until = async |needle: &str, shell: &mut pathbox::e2b::Process| {
            while !seen.contains(needle) {
                match shell.next().await.unwrap() {
                    Some(ProcessUpdate::Stdout(text)) => seen.push_str(&text),
                    other => panic!("{other:?} after {seen:?}"),
                }
            }
        };
        // Arithmetic, so that the echo of what was typed is not taken for the answer.
        processes.send_terminal(shell.pid(), b"stty size; echo $((6 * 7))-first\n").await.unwrap();
        until("33 91", &mut shell).await;
        until("42-first", &mut shell).await;
        processes.resize(shell.pid(), PtySize { cols: 120, rows: 40 }).await.unwrap();
        processes.send_terminal(shell.pid(), b"stty size\n").await.unwrap();
        until("40 120", &mut shell).await;
        processes.send_terminal(shell.pid(), b"exit 5\n").await.unwrap();
        let ended = loop {
            match shell.next().await.unwrap() {
                Some(ProcessUpdate::Ended { exit_code, .. }) => break exit_code,
                Some(_) => {}
                None => panic!("no end"),
            }
        };
        assert_eq!(ended, 5);
    })
    .await;
}

/// Waits until this number of the sandbox's processes sleep for 4321, 4322 or 4323 seconds; `within` bounds it.
async fn wait_for_sleeps(processes: &Processes, count: &str) {
    let counting =
        Command::shell("cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -c '^432[123]$'");
    while processes.run(&counting, 100).await.unwrap().stdout != count {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn killing_a_process_kills_what_it_started() {
    within(async {
        let server = local::start().await;
        let processes = server.client.processes(&server.create().await.access());
        let mut job = processes
            .start(&Command::shell("setsid sleep 4321 & (sleep 4322 &) ; echo up; sleep 4323"))
            .await
            .unwrap();
        assert_eq!(job.next().await.unwrap(), Some(ProcessUpdate::Stdout("up\n".to_owned())));
        // The shell prints before its children have become what they run.
        wait_for_sleeps(&processes, "3\n").await;
        processes.kill_all(&job).await.unwrap();
        wait_for_sleeps(&processes, "0\n").await;
    })
    .await;
}

#[tokio::test]
async fn a_command_without_a_life_time_outlives_its_listener() {
    within(async {
        let server = local::start().await;
        let processes = server.client.processes(&server.create().await.access());
        let job =
            processes.start(&Command::shell("sleep 0.5; echo done > /tmp/done; sleep 100")).await.unwrap();
        drop(job);
        tokio::time::sleep(Duration::from_millis(900)).await;
        assert_eq!(processes.run(&Command::shell("cat /tmp/done"), 100).await.unwrap().stdout, "done\n");
    })
    .await;
}

#[tokio::test]
async fn a_shell_keeps_its_state_and_reports_both_outputs_and_the_status() {
    within(async {
        let server = local::start().await;
        let shell = server.client.shell(&server.create().await.access(), None);
        let run = async |code: &str| {
            let mut run = shell.run(&RunRequest::new(code)).await.unwrap();
            let mut seen = Seen::default();
            while let Some(event) = run.next().await.unwrap() {
                seen.add(event);
            }
            seen
        };
        run("cd /tmp; greet() { echo \"hi $1\"; }; name=é").await;
        let seen = run("pwd; greet $name; echo bad >&2; exit 7").await;
        assert_eq!((seen.stdout.as_str(), seen.stderr.as_str()), ("/tmp\nhi é\n", "bad\n"));
        let error = seen.error.unwrap();
        assert_eq!((error.name.as_str(), error.value.as_str()), (EXIT_STATUS, "7"));
        assert!(run("true").await.error.is_none());
    })
    .await;
}

#[tokio::test]
async fn a_shell_command_that_takes_too_long_is_killed_with_its_children() {
    within(async {
        let server = local::start().await;
        let access = server.create().await.access();
        let shell = server.client.shell(&access, None);
        let deadlines = Deadlines::overall(Duration::from_secs(2));
        let slow = RunRequest { code: "sleep 4321 & sleep 4322".into(), deadlines, ..RunRequest::default() };
        let mut run = shell.run(&slow).await.unwrap();
        assert_eq!(run.next().await.unwrap_err().clock(), Some(Deadline::Overall));
        drop(run);
        // Dropped in mid-run, likewise.
        drop(shell.run(&RunRequest::new("sleep 4323")).await.unwrap());
        wait_for_sleeps(&server.client.processes(&access), "0\n").await;
    })
    .await;
}

#[tokio::test]
async fn a_paused_sandbox_is_reported_as_paused_and_resumes_with_its_variables() {
    within(async {
        let server = local::start().await;
        let sandbox = server.create().await;
        let access = sandbox.access();
        let python = server.client.interpreter(&access, Target::Language("python".into()));
        let mut run = python.run(&RunRequest::new("kept = 1")).await.unwrap();
        while run.next().await.unwrap().is_some() {}
        drop(run);
        assert!(server.client.pause(&sandbox.id).await.unwrap());
        assert!(!server.client.pause(&sandbox.id).await.unwrap());
        assert_eq!(server.client.liveness(&access).await.unwrap(), Liveness::Paused);
        let request = ExecuteRequest::in_language("1", "python");
        let error = server.client.execute(&access, &request, Deadlines::default()).await.unwrap_err();
        assert!(error.is_lost() && !error.may_have_run());
        let resumed = server.client.connect(&sandbox.id, Duration::from_secs(300)).await.unwrap();
        assert!(resumed.resumed);
        let mut run = python.run(&RunRequest::new("kept + 1")).await.unwrap();
        let mut seen = Seen::default();
        while let Some(event) = run.next().await.unwrap() {
            seen.add(event);
        }
        assert_eq!(seen.main.as_deref(), Some("2"));
    })
    .await;
}

#[tokio::test]
async fn a_sandbox_killed_in_mid_run_is_lost_and_may_have_run() {
    within(async {
        let server = local::start().await;
        let sandbox = server.create().await;
        let request = ExecuteRequest::in_language("print('up', flush=True)\nwhile True: pass", "python");
        let mut run = server.client.execute(&sandbox.access(), &request, Deadlines::default()).await.unwrap();
        while !matches!(run.next().await.unwrap(), Some(Event::Stdout(_))) {}
        server.client.kill(&sandbox.id).await.unwrap();
        let error = loop {
            match run.next().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("no end event can have come"),
                Err(error) => break error,
            }
        };
        assert!(error.is_lost() && error.may_have_run(), "{error:?}");
    })
    .await;
}

#[tokio::test]
async fn after_code_that_ignores_interrupts_the_claim_about_the_state_is_true() {
    within(async {
        let server = local::start().await;
        let access = server.create().await.access();
        let python = server.client.interpreter(&access, Target::Language("python".into()));
        let run = async |code: &str| {
            let mut run = python.run(&RunRequest::new(code)).await.unwrap();
            let mut seen = Seen::default();
            while let Some(event) = run.next().await.unwrap() {
                seen.add(event);
            }
            seen.main
        };
        let stubborn = "while True:\n    try:\n        while True: pass\n    except BaseException: pass";
        for code in [stubborn, "sum(range(10 ** 15))"] {
            run("kept = 1; begun = False").await;
            let deadlines = Deadlines::overall(Duration::from_secs(2));
            let code = format!("begun = True\n{code}");
            let request = RunRequest { code: code.clone(), deadlines, ..RunRequest::default() };
            let mut aborted = python.run(&request).await.unwrap();
            while let Ok(Some(_)) = aborted.next().await {}
            let claim = aborted.settle().await.unwrap();
            let truth = match run("(kept, begun) if 'kept' in globals() else None").await.as_deref() {
                Some("(1, True)") => Settled::Kept,
                Some("(1, False)") => Settled::RolledBack,
                _ => Settled::StateLost,
            };
            assert_eq!(claim, truth, "{code}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_flood_of_output_is_read_to_its_end_in_bounded_memory() {
    within(async {
        let server = local::start().await;
        let request = ExecuteRequest::in_language("for _ in range(64): print('x' * 1_000_000)", "python");
        let access = server.create().await.access();
        let mut run = server.client.execute(&access, &request, Deadlines::default()).await.unwrap();
        let (mut bytes, mut ended) = (0, false);
        while let Some(event) = run.next().await.unwrap() {
            match event {
                Event::Stdout(output) => bytes += output.text.len(),
                Event::PathboxStop { dropped_bytes, .. } => bytes += usize::try_from(dropped_bytes).unwrap(),
                Event::EndOfExecution => ended = true,
                _ => {}
            }
        }
        assert!(ended);
        assert_eq!(bytes, 64 * 1_000_001);
    })
    .await;
}

#[tokio::test]
async fn two_sandboxes_do_not_see_each_other() {
    within(async {
        let server: Server = local::start().await;
        let (one, two) = (server.create().await.access(), server.create().await.access());
        server.client.files(&one).write("/tmp/mine", "x").await.unwrap();
        assert!(server.client.files(&two).stat("/tmp/mine").await.is_err());
        // A token opens its own sandbox only.
        let mixed = pathbox::e2b::SandboxAccess { envd_token: two.envd_token.clone(), ..one.clone() };
        let error = server.client.files(&mixed).stat("/tmp/mine").await.unwrap_err();
        assert!(matches!(error, E2bError::Unauthenticated(_)), "{error:?}");
    })
    .await;
}

#[tokio::test]
async fn a_signed_url_reads_one_file_and_no_other() {
    within(async {
        let server = local::start().await;
        let access = server.create().await.access();
        let files = server.client.files(&access);
        files.write("/tmp/a b.txt", "signed").await.unwrap();
        files.write("/tmp/other", "secret").await.unwrap();
        let url = files.download_url("/tmp/a b.txt", None).unwrap();
        let http = reqwest::Client::builder().build().unwrap();
        // A host at one address needs the name of the sandbox; the token is not sent.
        let get = async |url: String| {
            let request = http
                .get(url)
                .header("e2b-sandbox-id", access.id.as_str())
                .header("e2b-sandbox-port", "49983");
            let response = request.send().await.unwrap();
            (response.status().as_u16(), response.text().await.unwrap())
        };
        assert_eq!(get(url.expose().to_owned()).await, (200, "signed".to_owned()));
        let (status, _) = get(url.expose().replace("a%20b.txt", "other")).await;
        assert_eq!(status, 401);
        assert!(!format!("{url:?}").contains("signature"));
    })
    .await;
}
