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
    assert_eq!((&*told.stdout, &*told.stderr), ("hi\nerr\n/tmp\n", ""));
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
    for (code, status) in [
        ("false", "1"),
        ("(exit 4)", "4"),
        ("echo 'open", "2"),
        ("for i in 1 2; do", "2"),
        ("nosuchcommand", "127"),
    ] {
        let told = bench.bash(code).await;
        let error = told.error();
        assert_eq!((&*error.name, &*error.value, &*error.traceback), ("", status, ""), "{code}: {told:?}");
    }
    assert_eq!(bench.bash("ls /nonexistent; echo rc=$?").await.stdout.lines().last(), Some("rc=2"));
    let told = bench.bash("set -u; echo $nope").await;
    assert_eq!(told.error().value, "1", "{told:?}");
    assert_eq!(bench.bash("set +u; echo $X").await.output(), "5\n");
    assert_eq!(bench.bash("read z; echo \"[$z]\"").await.output(), "[]\n");
}

#[tokio::test]
async fn a_shell_that_ends_is_replaced() {
    let bench = Bench::new().await;
    for (code, status) in [("exit 3", "3"), ("set -e; false; echo no", "1"), ("exec sh -c 'exit 9'", "9")] {
        bench.bash("X=5; cd /tmp").await;
        let told = bench.bash(&format!("echo before; {code}")).await;
        // An interactive shell says `exit`, here as at E2B.
        assert_eq!(
            (told.stdout.trim_end_matches("exit\n"), &*told.error().value),
            ("before\n", status),
            "{code}"
        );
        let told = bench.bash("echo \"[$X]\" $PWD").await;
        assert_eq!((told.output(), told.count), ("[] /home/user\n", 1), "{code}: {told:?}");
    }
    assert!(bench.bash("exit 0").await.errors.is_empty());
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
async fn what_a_cell_does_to_descriptors_and_builtins_ends_with_it_or_with_the_shell() {
    let bench = Bench::new().await;
    assert_eq!(bench.bash("exec 3<&- 8>&-; echo closed").await.output(), "closed\n");
    assert_eq!(bench.bash("printf() { :; }; read() { :; }; eval() { :; }; echo ok").await.output(), "ok\n");
    assert_eq!(bench.bash("echo ok; unset -f eval printf read").await.stdout.lines().next(), Some("ok"));
    bench.bash("exec > /tmp/log").await;
    assert_eq!(bench.bash("echo into the file").await.output(), "");
    assert!(bench.bash("cat /tmp/log >&8 2>/dev/null || exec > /dev/stderr; echo x").await.complete);
}
