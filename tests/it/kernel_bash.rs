//! Bash in a sandbox: one shell that lives on, its exit statuses and interrupts.

use futures::StreamExt;
use pathbox::wire::interpreter::{Event, ExecuteRequest};

use crate::kernel_support::{Bench, Told};

impl Bench {
    async fn bash(&self, code: &str) -> Told {
        self.run(code, "bash").await
    }
}

#[tokio::test]
async fn the_shell_keeps_its_state() {
    let bench = Bench::new().await;
    assert_eq!(
        bench.bash("X=5; cd /tmp; f() { echo fn $1; }; set -o pipefail; echo $X").await.output(),
        "5\n"
    );
    assert_eq!(bench.bash("echo $X $PWD; f a").await.output(), "5 /tmp\nfn a\n");
    let told = bench.bash("echo hi; echo err >&2; pwd").await;
    assert_eq!((&*told.stdout, &*told.stderr), ("hi\n/tmp\n", "err\n"));
    assert_eq!(bench.bash("cat <<E\nheredoc $X\nE").await.output(), "heredoc 5\n");
    assert_eq!(bench.bash("echo 'ключ 🎉'; printf 'no newline'").await.output(), "ключ 🎉\nno newline");
    assert_eq!(bench.bash("").await.output(), "");
    assert_eq!(bench.bash("echo hi!! $(echo \"$0\" | wc -l)").await.output(), "hi!! 1\n");
    let big = bench.bash("x=$(head -c 1000000 /dev/zero | tr '\\0' a); echo ${#x}").await;
    assert_eq!(big.output(), "1000000\n");
    assert_eq!((bench.bash("true").await.count, bench.bash("true").await.count), (9, 10));
}

#[tokio::test]
async fn a_failure_is_an_error_with_the_status() {
    let bench = Bench::new().await;
    bench.bash("X=5").await;
    for (code, status, words) in [
        ("false", "1", ""),
        ("(exit 4)", "4", ""),
        ("echo 'open", "2", "bash: eval: line 1: unexpected EOF while looking for matching `''"),
        ("for i in 1 2; do", "2", "bash: eval: line 2: syntax error: unexpected end of file"),
        ("nosuchcommand", "127", "bash: nosuchcommand: command not found"),
        ("echo first >&2; ls /nowhere", "2", "ls: cannot access '/nowhere': No such file or directory"),
        ("sh -c 'kill -SEGV $$'", "139", "ended by SIGSEGV, a crash in native code"),
        ("return 3", "3", ""),
        ("set -u; echo $nope; echo no", "1", "bash: nope: unbound variable"),
        ("echo ${nope:?must be set}; echo no", "1", "bash: nope: must be set"),
    ] {
        let told = bench.bash(code).await;
        let error = told.error();
        assert_eq!((&*error.name, &*error.value, &*error.traceback), ("", status, words), "{code}: {told:?}");
        assert_eq!(told.stdout, "", "{code}");
    }
    assert_eq!(bench.bash("ls /nonexistent; echo rc=$?").await.stdout.lines().last(), Some("rc=2"));
    assert_eq!(bench.bash("echo $X").await.output(), "5\n");
    assert_eq!(bench.bash("read z; echo \"[$z]\"").await.output(), "[]\n");
}

#[tokio::test]
async fn ending_a_script_ends_the_cell_and_not_the_shell() {
    let bench = Bench::new().await;
    bench.bash("X=5; cd /tmp").await;
    for (code, status) in [
        ("echo on; exit 0", 0),
        ("echo on; exit 3; echo no", 3),
        ("echo on; exit 260; echo no", 4),
        ("f() { for i in 1 2; do exit 4; done; }; echo on; f; echo no", 4),
        ("set -euo pipefail; echo on; false; echo no", 1),
        ("set -e; g() { false; echo no; }; echo on; g; echo no", 1),
        ("set -e; echo on; x=$(exit 6); echo no", 6),
        ("set -o pipefail; echo on; false | true", 1),
    ] {
        let told = bench.bash(code).await;
        let ended = told.errors.first().map_or("0", |error| &*error.value);
        assert_eq!((&*told.stdout, &*told.stderr, ended), ("on\n", "", &*status.to_string()), "{code}");
        // Its options have ended with it, variables and directory have not.
        let told = bench.bash("false; false | true; echo $? $X $PWD $nope").await;
        assert_eq!((told.output(), told.states.len()), ("0 5 /tmp\n", 0), "{code}: {told:?}");
    }
    assert_eq!(bench.bash("(exit 7); echo $?; echo $(exit 8) $?").await.output(), "7\n8\n");
    assert_eq!(bench.bash("set -e; if false; then :; fi; false || true; echo fine").await.output(), "fine\n");
    let told = bench.bash("trap 'echo cleaned >&2' EXIT; trap 'echo cleaned' EXIT; echo on; exit 5").await;
    assert_eq!((&*told.stdout, &*told.error().value), ("on\ncleaned\n", "5"));
    assert_eq!(bench.bash("echo $X").await.output(), "5\n");
}

#[tokio::test]
async fn a_shell_without_a_terminal_prints_no_warning_about_it() {
    let bench = Bench::new().await;
    for (code, stdout) in [
        ("set -o pipefail; seq 1 1000000 | head -1; true", "1\n"),
        ("sleep 0.01 & echo hi; wait", "hi\n"),
        ("sh -c 'kill -9 $$'; sh -c 'kill $$'; echo on", "on\n"),
        ("exit 0", ""),
        ("set -x; { set +x; } 2>/dev/null; echo on", "on\n"),
        ("echo on", "on\n"),
    ] {
        let told = bench.bash(code).await;
        let stderr: Vec<&str> = told.stderr.lines().filter(|line| !line.starts_with('+')).collect();
        assert_eq!((&*told.stdout, &stderr[..]), (stdout, &[][..]), "{code}");
    }
    let told = bench.bash("(sleep 0.1; echo late) & echo now").await;
    assert_eq!(told.output(), "now\n");
    let told = bench.bash("wait; echo next").await;
    assert!(told.stdout.ends_with("next\n") && (told.stdout + &told.stderr).contains("late\n"));
}

#[tokio::test]
async fn a_shell_that_ends_is_replaced() {
    let bench = Bench::new().await;
    for (code, status) in [("builtin exit 3", "3"), ("exec sh -c 'exit 9'", "9")] {
        bench.bash("X=5; cd /tmp").await;
        let told = bench.bash(&format!("echo before; {code}")).await;
        assert_eq!((&*told.stdout, &*told.error().value), ("before\n", status), "{code}");
        assert!(told.error().traceback.contains("The shell ended."), "{told:?}");
        assert_eq!(told.states, ["lost"]);
        let told = bench.bash("echo \"[$X]\" $PWD").await;
        assert_eq!((told.output(), told.count), ("[] /home/user\n", 1), "{code}: {told:?}");
    }
    assert!(bench.bash("builtin exit 0").await.errors.is_empty());
    let told = bench.bash("kill -9 $$").await;
    assert_eq!(told.error().name, "ContextRestarting");
    assert_eq!(bench.bash("echo fresh").await.output(), "fresh\n");
}

#[tokio::test]
async fn an_interrupt_stops_the_line_and_keeps_the_variables() {
    let bench = Bench::new().await;
    bench.bash("X=kept").await;
    for busy in [
        "sleep 1000",
        "while :; do :; done",
        "while true; do sleep 0.1; done",
        "g() { while :; do :; done; }; for i in 1 2; do g; done",
        "python3 -c 'import time; time.sleep(1000)'",
        "cat /dev/zero | cat > /dev/null",
    ] {
        let request = ExecuteRequest::in_language(format!("echo on; {busy}"), "bash");
        let mut stream = bench.kernels.execute(request).unwrap();
        while !matches!(stream.next().await, Some(Event::Stdout(_)) | None) {}
        drop(stream);
        assert_eq!(bench.bash("echo $X").await.output(), "kept\n", "{busy}");
    }
}

#[tokio::test]
async fn env_vars_are_data_and_for_one_execution() {
    let bench = Bench::new().await;
    bench.bash("OLD=before").await;
    let show = "printf '%s|' \"$FOO\" \"$OLD\" \"$A\"; env | grep -c ^FOO=";
    let told = bench
        .run_with_env(show, "bash", &[("FOO", "it's $(id) `x`\n\"\\"), ("OLD", "now"), ("A-B", "x")])
        .await;
    assert_eq!(told.output(), "it's $(id) `x`\n\"\\|now||1\n");
    assert_eq!(bench.bash("echo \"[$FOO]\" $OLD").await.output(), "[] before\n");
}

#[tokio::test]
async fn changes_to_descriptors_and_builtins_end_with_the_cell_or_the_shell() {
    let bench = Bench::new().await;
    assert_eq!(bench.bash("exec 3<&- 8>&-; echo closed").await.output(), "closed\n");
    assert_eq!(bench.bash("printf() { :; }; read() { :; }; eval() { :; }; echo ok").await.output(), "ok\n");
    assert_eq!(bench.bash("echo ok; unset -f eval printf read").await.stdout.lines().next(), Some("ok"));
    bench.bash("exec > /tmp/log").await;
    assert_eq!(bench.bash("echo into the file").await.output(), "");
    assert!(bench.bash("cat /tmp/log >&8 2>/dev/null || exec > /dev/stderr; echo x").await.complete);
}
