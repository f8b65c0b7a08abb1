"""Every call that the official Python clients make to a code interpreter sandbox, against a local host.

Started by the Rust tests with E2B_API_URL, E2B_SANDBOX_URL and E2B_API_KEY set. Arguments pick checks by name. Says which
of the clients' calls each check has made, and which no check has: `docs/e2b-compatibility.md` has to say the same.
"""

import asyncio
import concurrent.futures
import inspect
import io
import os
import sys
import threading
import time
import traceback
import urllib.request

import e2b_code_interpreter as ci
from e2b import (
    AuthenticationException,
    CommandExitException,
    ConnectionConfig,
    FilesystemEventType,
    FileType,
    InvalidArgumentException,
    NotEnoughSpaceException,
    NotFoundException,
    PtySize,
    RateLimitException,
    SandboxException,
    SandboxQuery,
    SandboxState,
    TimeoutException,
)
from e2b.api.client.api.sandboxes import get_sandboxes_sandbox_id_logs, get_v_2_sandboxes_sandbox_id_logs
from e2b.api.client_sync import get_api_client
from e2b.exceptions import FileNotFoundException, SandboxNotFoundException, SandboxNotRunningException
from e2b_code_interpreter import Sandbox

CHECKS = []
ALONE = []  # those that would disturb others


def check(function):
    CHECKS.append(function)
    return function


def check_alone(function):
    ALONE.append(function)
    return function


# --- which calls are made


def public_calls(*classes):
    """What callers find in the clients' classes, by the code that runs: `Sandbox.kill`, `AsyncCommands.run` and so on."""
    calls = {}
    for kind in classes:
        for name in dir(kind):
            found = inspect.getattr_static(kind, name)
            function = getattr(found, "method", getattr(found, "__func__", found))  # theirs, class methods, functions
            function = inspect.unwrap(function) if callable(function) else None
            if inspect.isfunction(function) and not name.startswith("_"):
                twin = getattr(found, "class_method_name", None)  # what runs when the class is asked, not a sandbox
                is_async = kind.__module__.count("async") and not kind.__name__.startswith("Async")
                call = calls.setdefault(function.__code__, f"{'Async' if is_async else ''}{kind.__name__}.{name}")
                if twin:
                    calls[inspect.unwrap(getattr(kind, twin)).__code__] = call
    return calls


def clients_classes():
    from e2b.sandbox_async.commands.command_handle import AsyncCommandHandle
    from e2b.sandbox_async.paginator import AsyncSandboxPaginator, AsyncSnapshotPaginator
    from e2b.sandbox_async.filesystem.watch_handle import AsyncWatchHandle
    from e2b.sandbox_sync.commands.command_handle import CommandHandle
    from e2b.sandbox_sync.paginator import SandboxPaginator, SnapshotPaginator
    from e2b.sandbox_sync.filesystem.watch_handle import WatchHandle

    parts = [getattr(kind, name).fget for kind in (Sandbox, ci.AsyncSandbox) for name in ("files", "commands", "pty", "git")]
    parts = [inspect.get_annotations(part, eval_str=True)["return"] for part in parts]
    handles = [CommandHandle, AsyncCommandHandle, WatchHandle, AsyncWatchHandle]
    pages = [SandboxPaginator, AsyncSandboxPaginator, SnapshotPaginator, AsyncSnapshotPaginator]
    return [Sandbox, ci.AsyncSandbox, *parts, *handles, *pages]


CALLS = public_calls(*clients_classes())
made = {}  # call -> checks
local = threading.local()  # the check that runs in a thread


def note_call(frame, event, _):
    if event == "call" and (call := CALLS.get(frame.f_code)):
        caller = frame.f_back
        if caller and caller.f_code.co_name == "_wrapper":  # between a class and its methods of two kinds
            caller = caller.f_back
        if caller and caller.f_code.co_filename == __file__:  # and not one of the clients' own functions
            made.setdefault(call, set()).add(local.running)


def raises(kind, call, *words):
    """The exact class matters to callers, so a subclass does not count."""
    try:
        call()
    except BaseException as error:
        assert type(error) is kind, f"{type(error).__name__}: {error}"
        for word in words:
            assert word in str(error), f"{word!r} is not in {error}"
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


def eventually(is_so):
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.02)


async def refuses(kind, coroutine, *words):
    """`raises` for what is awaited."""
    try:
        await coroutine
    except BaseException as error:
        return raises(kind, lambda: (_ for _ in ()).throw(error), *words)
    raise AssertionError(f"{kind.__name__} was not raised")


# --- control plane


@check
def a_sandbox_is_created_described_and_killed():
    with Sandbox.create(timeout=120, metadata={"user": "42"}, envs={"GREETING": "hi"}) as sandbox:
        assert sandbox.is_running()
        info = sandbox.get_info()
        assert info.sandbox_id == sandbox.sandbox_id and info.metadata == {"user": "42"}
        assert info.state == SandboxState.RUNNING and info.envd_version == "0.6.13"
        assert info.cpu_count >= 1 and info.memory_mb > 0
        assert 100 < (info.end_at - info.started_at).total_seconds() <= 120
        sandbox.set_timeout(60)
        assert 50 < (sandbox.get_info().end_at - info.started_at).total_seconds() < 110
        metrics = sandbox.get_metrics()
        assert metrics and metrics[0].mem_total > 0 and metrics[0].disk_total > 0
    assert not sandbox.is_running()
    assert sandbox.kill() is False
    raises(SandboxNotFoundException, sandbox.get_info)
    raises(SandboxNotFoundException, lambda: sandbox.set_timeout(60))
    raises(SandboxNotFoundException, lambda: Sandbox.connect(sandbox.sandbox_id))


@check
def another_client_connects_by_id():
    sandbox = Sandbox.create()
    sandbox.run_code("x = 40")
    other = Sandbox.connect(sandbox.sandbox_id)
    assert other.run_code("x + 2").text == "42"
    assert Sandbox.kill(sandbox.sandbox_id) is True
    assert Sandbox.kill(sandbox.sandbox_id) is False


@check
def sandboxes_are_listed_by_metadata_and_in_pages():
    tag = f"t{time.time_ns()} &=%ü"
    made = [Sandbox.create(metadata={"tag": tag, "n": str(n)}) for n in range(3)]
    try:
        pages = Sandbox.list(query=SandboxQuery(metadata={"tag": tag}), limit=2)
        seen = []
        while pages.has_next:
            seen.append([listed.sandbox_id for listed in pages.next_items()])
        assert [len(page) for page in seen] == [2, 1], seen
        assert sorted(sum(seen, [])) == sorted(sandbox.sandbox_id for sandbox in made)
        one = Sandbox.list(query=SandboxQuery(metadata={"tag": tag, "n": "1"})).next_items()
        assert [listed.sandbox_id for listed in one] == [made[1].sandbox_id]
        paused = SandboxQuery(metadata={"tag": tag}, state=[SandboxState.PAUSED])
        assert Sandbox.list(query=paused).next_items() == []
    finally:
        for sandbox in made:
            sandbox.kill()


@check
def a_pause_keeps_everything_and_connect_wakes():
    sandbox = Sandbox.create()
    sandbox.run_code("import os; pid = os.getpid(); x = 'kept'")
    sandbox.files.write("note", "kept")
    assert sandbox.pause() is True
    assert sandbox.pause() is False
    assert sandbox.get_info().state == SandboxState.PAUSED
    assert not sandbox.is_running()
    again = Sandbox.connect(sandbox.sandbox_id, timeout=100)
    assert again.run_code("pid == os.getpid() and x").text == "kept"
    assert again.files.read("note") == "kept"
    again.pause()
    assert again.kill() is True


@check
def a_wrong_key_is_an_authentication_error():
    raises(AuthenticationException, lambda: Sandbox.create(api_key="e2b_" + "1" * 40), "401")


@check
def what_the_host_cannot_do_is_said():
    raises(SandboxException, lambda: Sandbox.create(template="no-such-template"), "no-such-template")
    raises(SandboxException, lambda: Sandbox.create(timeout=10**7), "Timeout cannot be greater than")
    with Sandbox.create() as sandbox:
        raises(SandboxException, lambda: sandbox.create_snapshot(mode="full"), "no memory")


@check
def a_snapshot_keeps_files_and_no_memory():
    name = f"n{time.time_ns()}"
    with Sandbox.create(envs={"OF": "first"}) as sandbox:
        sandbox.files.write("kept", "1")
        assert sandbox.run_code("kept = 1").error is None
        first = sandbox.create_snapshot()
        second = Sandbox.create_snapshot(sandbox.sandbox_id, name=name, mode="filesystem")
        assert first.names == [] and second.names == [name]
        pages, ids = sandbox.list_snapshots(limit=1), []
        while pages.has_next:
            ids += [snapshot.snapshot_id for snapshot in pages.next_items()]
        assert ids == [second.snapshot_id, first.snapshot_id], ids
        assert [found.names for found in Sandbox.list_snapshots(name=name).next_items()] == [[name]]
    for template in (first.snapshot_id, name):
        with Sandbox.create(template=template, envs={"ADDED": "second"}) as again:
            assert again.files.read("kept") == "1"
            assert again.run_code("kept").error.name == "NameError"
            assert again.commands.run("echo $OF $ADDED").stdout == "first second\n"
    for snapshot in (first, second):
        assert Sandbox.delete_snapshot(snapshot.snapshot_id) is True
        assert Sandbox.delete_snapshot(snapshot.snapshot_id) is False
    raises(SandboxException, lambda: Sandbox.create(template=first.snapshot_id), "not found")
    raises(SandboxNotFoundException, lambda: Sandbox.create_snapshot(sandbox.sandbox_id))


@check
def the_logs_have_the_form_that_the_clients_read():
    client = get_api_client(ConnectionConfig())
    with Sandbox.create() as sandbox:
        found = get_v_2_sandboxes_sandbox_id_logs.sync_detailed(sandbox.sandbox_id, client=client).parsed.logs
        assert "created" in found[0].message and found[0].level == "info", found
        older = get_sandboxes_sandbox_id_logs.sync_detailed(sandbox.sandbox_id, client=client).parsed
        assert older.logs[0].line == older.log_entries[0].message == found[0].message, older


@check
def a_fork_begins_with_the_files():
    with Sandbox.create(metadata={"of": "first"}) as sandbox:
        sandbox.files.write("kept", "1")
        made = sandbox.fork(timeout=120, count=2) + Sandbox.fork(sandbox.sandbox_id, timeout=120)
        assert len({fork.sandbox_id for fork in made}) == 3
        for fork in made:
            assert fork.files.read("kept") == "1" and fork.get_info().metadata == {"of": "first"}
            fork.kill()
    raises(SandboxNotFoundException, sandbox.fork)


@check
def calls_on_the_class_take_an_id():
    sandbox = Sandbox.create(timeout=100)
    ident = sandbox.sandbox_id
    Sandbox.set_timeout(ident, 200)
    info = Sandbox.get_info(ident)
    assert 150 < (info.end_at - info.started_at).total_seconds() <= 210
    assert Sandbox.get_metrics(ident)[0].cpu_count >= 1
    Sandbox.update_network(ident, {"deny_out": ["0.0.0.0/0"]})
    assert Sandbox.pause(ident) is True and sandbox.beta_pause() is False
    assert Sandbox.connect(ident).sandbox_id == ident and sandbox.is_running()
    assert sandbox.connect(timeout=300).run_code("1").text == "1"
    assert sandbox.get_host(8000).startswith(f"8000-{ident}.")
    assert Sandbox.kill(ident) is True
    raises(SandboxNotFoundException, lambda: Sandbox.get_metrics(ident))
    raises(SandboxNotFoundException, lambda: Sandbox.pause(ident))


@check
def what_create_is_asked_for_is_kept():
    key = f"key-{time.time_ns()}"
    with Sandbox.create(
        template="code-interpreter-v1",
        lifecycle={"on_timeout": "pause", "auto_resume": True},
        network={"allow_public_traffic": False, "allow_out": ["1.1.1.1"], "deny_out": ["0.0.0.0/0"]},
        idempotency_key=key,
    ) as sandbox:
        assert sandbox.traffic_access_token
        info = sandbox.get_info()
        assert info.lifecycle["on_timeout"] == "pause" and info.lifecycle["auto_resume"] is True, info
        assert info.network["allow_out"] == ["1.1.1.1"] and info.network["allow_public_traffic"] is False, info
        assert sandbox.run_code("40 + 2").text == "42", "its interpreter asks for the traffic token"
        # A paused sandbox wakes when it is spoken to.
        assert sandbox.pause() is True
        assert sandbox.files.exists("none") is False
        assert sandbox.get_info().state == SandboxState.RUNNING
        sandbox.update_network({"allow_out": ["9.9.9.9"], "deny_out": ["0.0.0.0/0"]})
        assert sandbox.get_info().network["allow_out"] == ["9.9.9.9"]
        raises(SandboxException, lambda: sandbox.update_network({"allow_out": ["a.test"]}), "network")


@check
def what_is_not_here_is_an_error_of_the_clients():
    with Sandbox.create() as sandbox:
        assert sandbox.get_mcp_url().endswith("/mcp")
        raises(AuthenticationException, sandbox.get_mcp_token, "root")
    raises(SandboxException, lambda: Sandbox.create(mcp={"duckduckgo": {}}), "no MCP gateway")
    raises(SandboxException, lambda: Sandbox.create(volume_mounts={"/v": "v"}), "volumeMounts")


@check_alone
def one_sandbox_too_many_is_a_rate_limit_error():
    made = []
    try:
        for _ in range(40):
            made.append(Sandbox.create(timeout=600))
    except RateLimitException as error:
        assert "maximum number of concurrent" in str(error)
    else:
        raise AssertionError("no limit was met")
    finally:
        for sandbox in made:
            sandbox.kill()


# --- code interpreter


@check
def code_streams_output_results_and_errors():
    with Sandbox.create() as sandbox:
        out, err, results, errors = [], [], [], []
        execution = sandbox.run_code(
            "import sys\nprint('out ü\\u2028😀')\nprint('err', file=sys.stderr)\n{'a': 1}",
            on_stdout=out.append,
            on_stderr=err.append,
            on_result=results.append,
            on_error=errors.append,
        )
        assert "".join(execution.logs.stdout) == "out ü\u2028😀\n"
        assert "".join(execution.logs.stderr) == "err\n"
        assert execution.text == "{'a': 1}" and execution.results[0].json == {"a": 1}
        assert execution.execution_count == 1 and execution.error is None
        assert "".join(message.line for message in out) == "out ü\u2028😀\n"
        assert out[0].timestamp and not out[0].error and err[0].error
        assert len(results) == 1 and errors == []

        failed = sandbox.run_code("def f():\n    1/0\nf()", on_error=errors.append)
        assert failed.error.name == "ZeroDivisionError" and failed.error.value == "division by zero"
        assert "1/0" in failed.error.traceback and "line 2" in failed.error.traceback
        assert len(errors) == 1
        assert sandbox.run_code("").text is None
        assert sandbox.run_code("await __import__('asyncio').sleep(0.01, 'awaited')").text == "awaited"


@check
def results_have_every_form_that_a_value_has():
    with Sandbox.create() as sandbox:
        execution = sandbox.run_code(
            "class Rich:\n"
            "    def _repr_html_(self): return '<b>h</b>'\n"
            "    def _repr_markdown_(self): return '**m**'\n"
            "    def _repr_svg_(self): return '<svg/>'\n"
            "    def _repr_latex_(self): return '$l$'\n"
            "    def _repr_png_(self): return b'\\x89PNG'\n"
            "    def __repr__(self): return 'rich'\n"
            "Rich()"
        )
        result = execution.results[0]
        assert (result.text, result.html, result.markdown) == ("rich", "<b>h</b>", "**m**")
        assert (result.svg, result.latex, result.png.strip()) == ("<svg/>", "$l$", "iVBORw==")
        assert result.is_main_result


@check
def state_is_kept_in_a_context_and_apart_between_contexts():
    with Sandbox.create() as sandbox:
        sandbox.run_code("x = 1")
        assert sandbox.run_code("x").text == "1"
        context = sandbox.create_code_context(cwd="/tmp", language="python")
        assert sandbox.run_code("x", context=context).error.name == "NameError"
        assert sandbox.run_code("import os; os.getcwd()", context=context).text == "/tmp"
        ids = [listed.id for listed in sandbox.list_code_contexts()]
        assert context.id in ids and len(ids) >= 2
        sandbox.run_code("y = 2", context=context)
        sandbox.restart_code_context(context)
        assert sandbox.run_code("y", context=context).error.name == "NameError"
        sandbox.remove_code_context(context)
        raises(NotFoundException, lambda: sandbox.run_code("1", context=context), "not found")
        raises(NotFoundException, lambda: sandbox.restart_code_context(context.id))
        raises(SandboxException, lambda: sandbox.create_code_context(language="cobol"), "cobol")


@check
def the_environment_is_the_sandboxs_then_the_calls():
    with Sandbox.create(envs={"A": "sandbox", "TRICKY": "it's \"\\n\" ü"}) as sandbox:
        sandbox.run_code("import os")
        assert sandbox.run_code("os.environ['A']").text == "sandbox"
        assert "".join(sandbox.run_code("print(os.environ['TRICKY'])").logs.stdout) == "it's \"\\n\" ü\n"
        assert sandbox.run_code("os.environ['A']", envs={"A": "call", "B": "b'\\"}).text == "call"
        assert sandbox.run_code("os.environ['A'], os.environ.get('B')").text == "('sandbox', None)"


@check
def a_time_out_interrupts_and_keeps_the_state():
    with Sandbox.create() as sandbox:
        sandbox.run_code("x = 'kept'")
        raises(TimeoutException, lambda: sandbox.run_code("while True: pass", timeout=1))
        assert sandbox.run_code("x", timeout=10).text == "kept"


@check
def an_interpreter_that_dies_says_so_and_the_next_run_works():
    with Sandbox.create() as sandbox:
        sandbox.files.write("file", "stays")
        died = sandbox.run_code("print('before', flush=True); import os; os._exit(7)")
        assert died.error.name == "ContextRestarting", died.error
        assert "".join(died.logs.stdout) == "before\n"
        assert sandbox.run_code("open('file').read()").text == "stays"
        assert sandbox.run_code("import sys; sys.exit(3)").error.name == "SystemExit"


@check
def every_language_streams_fails_stops_and_keeps():
    """Output by callback, a result, an error by its class, a time-out with state kept, and a context of its own."""
    languages = {
        "python": ("x = 40", "print('out')", "x + 2", "raise TypeError('bad')", "while True: pass"),
        "javascript": ("const x = 40", "console.log('out')", "x + 2", "throw new TypeError('bad')", "for (;;) {}"),
        "typescript": (
            "const x: number = 40",
            "console.log('out' as string)",
            "x + 2",
            "throw new TypeError('bad')",
            "for (;;) {}",
        ),
        "bash": ("x=40", "echo out", "echo $((x + 2))", "(exit 3)", "while :; do :; done"),
    }
    wanted = ["python", *filter(None, os.environ.get("PATHBOX_TEST_LANGUAGES", "").split(","))]
    with Sandbox.create() as sandbox:
        for language in wanted:
            keep, say, value, fail, spin = languages[language]
            out, errors, results = [], [], []
            sandbox.run_code(keep, language=language)
            told = sandbox.run_code(say, language=language, on_stdout=out.append, on_error=errors.append)
            assert "".join(message.line for message in out) == "out\n" and not errors and told.error is None, language
            raises(TimeoutException, lambda: sandbox.run_code(spin, language=language, timeout=1))
            told = sandbox.run_code(value, language=language, on_result=results.append, timeout=60)
            if language == "bash":
                assert "".join(told.logs.stdout) == "42\n", told
            else:
                assert told.text == "42" and [result.text for result in results] == ["42"], (language, told)
            told = sandbox.run_code(fail, language=language, on_error=errors.append)
            said = ("", "3") if language == "bash" else ("TypeError", "bad")
            assert (told.error.name, told.error.value) == said and len(errors) == 1, (language, told)
            context = sandbox.create_code_context(language=language, cwd="/tmp")
            assert context.language == language and context.cwd == "/tmp"
            where = {"python": "import os; os.getcwd()", "bash": "pwd"}.get(language, "process.cwd()")
            told = sandbox.run_code(where, context=context)
            assert (told.text or "".join(told.logs.stdout).strip()) == "/tmp", (language, told)
            envs = {"ONCE": "a 'b' $c"}
            show = {"python": "print(os.environ.get('ONCE'))", "bash": "echo \"${ONCE-None}\""}
            show = show.get(language, "console.log(process.env.ONCE ?? 'None')")
            for given, expected in ((envs, "a 'b' $c\n"), (None, "None\n")):
                told = sandbox.run_code(show, context=context, envs=given)
                assert "".join(told.logs.stdout) == expected, (language, told)


@check
def contexts_run_side_by_side():
    with Sandbox.create() as sandbox:
        contexts = [sandbox.create_code_context() for _ in range(2)]

        async def both():
            other = await ci.AsyncSandbox.connect(sandbox.sandbox_id)
            code = "import time; start = time.time(); time.sleep(1); (start, time.time())"
            return await asyncio.gather(*(other.run_code(code, context=context) for context in contexts))

        (one_start, one_end), (two_start, two_end) = (eval(execution.text) for execution in asyncio.run(both()))
        assert max(one_start, two_start) < min(one_end, two_end), "one waited for the other"


@check
def large_output_arrives_whole():
    with Sandbox.create() as sandbox:
        execution = sandbox.run_code("for n in range(3): print(str(n) * 1_000_000)\n'r' * 2_000_000")
        assert len("".join(execution.logs.stdout)) == 3_000_003
        assert len(execution.text) == 2_000_000


@check
def a_sandbox_killed_during_a_run_is_told_apart():
    sandbox = Sandbox.create()
    threading.Timer(0.5, sandbox.kill).start()
    raises(TimeoutException, lambda: sandbox.run_code("import time; time.sleep(30)"), "sandbox")


@check
def the_other_languages_keep_state_too():
    with Sandbox.create() as sandbox:
        for language in filter(None, os.environ.get("PATHBOX_TEST_LANGUAGES", "").split(",")):
            if language == "bash":
                sandbox.run_code("X=40; cd /tmp", language="bash")
                execution = sandbox.run_code("echo $((X + 2)) $PWD", language="bash")
                assert "".join(execution.logs.stdout) == "42 /tmp\n", execution
                continue
            annotation = ": number" if language == "typescript" else ""
            sandbox.run_code(f"const x{annotation} = 40; console.log('out')", language=language)
            assert sandbox.run_code("x + 2", language=language).text == "42"
            failed = sandbox.run_code("throw new TypeError('bad')", language=language)
            assert failed.error.name == "TypeError" and "bad" in failed.error.value, failed.error


# --- files


@check
def files_are_written_read_and_described():
    with Sandbox.create() as sandbox:
        info = sandbox.files.write("dir/a b ü.txt", "héllo")
        assert info.path == "/home/user/dir/a b ü.txt" and info.name == "a b ü.txt" and info.type == FileType.FILE
        assert sandbox.files.read("dir/a b ü.txt") == "héllo"
        data = bytes(range(256)) * 1000
        sandbox.files.write("/tmp/bin", data)
        assert sandbox.files.read("/tmp/bin", format="bytes") == bytearray(data)
        assert b"".join(sandbox.files.read("/tmp/bin", format="stream")) == data
        written = sandbox.files.write_files([{"path": "m/1", "data": "one"}, {"path": "m/2", "data": b"two"}])
        assert [entry.path for entry in written] == ["/home/user/m/1", "/home/user/m/2"]
        assert sandbox.files.read("m/2") == "two"
        assert sandbox.files.exists("m/1") and not sandbox.files.exists("m/3")
        entry = sandbox.files.get_info("m/1")
        assert entry.size == 3 and entry.owner == "user" and entry.permissions.startswith("-rw")
        assert entry.mode & 0o600 == 0o600
        assert sandbox.files.make_dir("m/d/e") is True and sandbox.files.make_dir("m/d/e") is False
        assert sorted(entry.name for entry in sandbox.files.list("m")) == ["1", "2", "d"]
        assert any(entry.path == "/home/user/m/d/e" for entry in sandbox.files.list("m", depth=2))
        assert sandbox.files.rename("m/1", "moved").path == "/home/user/moved"
        sandbox.files.remove("m")
        assert not sandbox.files.exists("m")
        raises(FileNotFoundException, lambda: sandbox.files.read("none"))
        raises(FileNotFoundException, lambda: sandbox.files.list("none"))
        raises(FileNotFoundException, lambda: sandbox.files.get_info("none"))
        raises(InvalidArgumentException, lambda: sandbox.files.read("/tmp"))
        raises(InvalidArgumentException, lambda: sandbox.files.list("moved"))
        raises(NotEnoughSpaceException, lambda: sandbox.files.write("/tmp/full", b"\0" * (80 << 20)))


@check
def files_go_up_and_come_down_in_every_form():
    with Sandbox.create() as sandbox:
        data = bytes(range(256)) * 1000
        forms = {
            "multipart": lambda path: sandbox.files.write(path, data),
            "octets": lambda path: sandbox.files.write(path, data, use_octet_stream=True),
            "zipped": lambda path: sandbox.files.write(path, data, gzip=True),
            "file": lambda path: sandbox.files.write(path, io.BytesIO(data)),
            "pieces": lambda path: sandbox.files.write(path, iter([data[:7], data[7:]])),
            "user": lambda path: sandbox.files.write(path, data, user="user"),
        }
        for name, write in forms.items():
            assert write(f"up/{name}").path == f"/home/user/up/{name}"
            assert sandbox.files.read(f"up/{name}", format="bytes") == bytearray(data), name
        assert sandbox.files.read("up/octets", format="bytes", gzip=True) == bytearray(data)
        with sandbox.files.read("up/octets", format="stream", stream_idle_timeout=30) as stream:
            assert b"".join(stream) == data
        assert sandbox.files.write_files([]) == []
        tagged = lambda: sandbox.files.write("tagged", "x", metadata={"origin": "test"})
        raises(InvalidArgumentException, tagged, "metadata")
        sandbox.files.write("tagged", "x")
        sandbox.commands.run("ln -s tagged link")
        entry = sandbox.files.get_info("link")
        assert entry.symlink_target and entry.symlink_target.endswith("tagged"), entry
        raises(AuthenticationException, lambda: sandbox.files.write("x", "x", user="root"), "root")
        raises(InvalidArgumentException, lambda: sandbox.files.make_dir("tagged"))
        raises(FileNotFoundException, lambda: sandbox.files.rename("none", "other"))
        raises(InvalidArgumentException, lambda: sandbox.files.write("/tmp", "x"))


@check
def addresses_for_files_work_without_headers():
    with Sandbox.create() as sandbox:
        sandbox.files.write("a.txt", "by address")
        for address in (
            sandbox.download_url("a.txt"),
            sandbox.download_url("a.txt", use_signature_expiration=60),
            sandbox.download_url("a.txt", user="user"),
        ):
            assert urllib.request.urlopen(address).read() == b"by address", address
        body = b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\nnew\r\n--b--\r\n'
        request = urllib.request.Request(
            sandbox.upload_url("up.txt"), body, {"Content-Type": "multipart/form-data; boundary=b"}
        )
        urllib.request.urlopen(request)
        assert sandbox.files.read("up.txt") == "new"


@check
def changes_to_files_are_seen():
    with Sandbox.create() as sandbox:
        sandbox.files.make_dir("w")
        watch = sandbox.files.watch_dir("w", recursive=True)
        sandbox.files.write("w/sub/new", "x")
        sandbox.commands.run("sleep 0.1; echo y > w/other; rm w/other; mv w/sub/new w/moved")
        seen, deadline = set(), time.monotonic() + 10
        while time.monotonic() < deadline and ("other", FilesystemEventType.REMOVE) not in seen:
            seen |= {(event.name, event.type) for event in watch.get_new_events()}
            time.sleep(0.05)
        assert ("other", FilesystemEventType.CREATE) in seen and ("sub", FilesystemEventType.CREATE) in seen, seen
        watch.stop()
        raises(FileNotFoundException, lambda: sandbox.files.watch_dir("none"))


# --- commands


@check
def commands_run_and_tell_how_they_ended():
    with Sandbox.create(envs={"A": "1"}) as sandbox:
        out, err = [], []
        result = sandbox.commands.run("echo $A ü; echo oops >&2", on_stdout=out.append, on_stderr=err.append)
        assert (result.stdout, result.stderr, result.exit_code) == ("1 ü\n", "oops\n", 0)
        assert ("".join(out), "".join(err)) == ("1 ü\n", "oops\n")
        failed = raises(CommandExitException, lambda: sandbox.commands.run("echo half; exit 3"))
        assert (failed.exit_code, failed.stdout) == (3, "half\n")
        assert sandbox.commands.run("pwd; echo $B", cwd="/tmp", envs={"B": "b"}).stdout == "/tmp\nb\n"
        assert sandbox.commands.run("whoami", user="user").stdout == "user\n"
        raises(AuthenticationException, lambda: sandbox.commands.run("id", user="root"), "root")
        raises(InvalidArgumentException, lambda: sandbox.commands.run("true", cwd="/none"))
        raises(TimeoutException, lambda: sandbox.commands.run("sleep 30", timeout=1))
        assert len(sandbox.commands.run("head -c 3000000 /dev/zero | tr '\\0' x").stdout) == 3_000_000


@check
def background_commands_are_connected_spoken_to_and_killed():
    with Sandbox.create() as sandbox:
        handle = sandbox.commands.run(
            "while read line; do echo got $line; done; echo bye", background=True, stdin=True, timeout=0
        )
        listed = [process for process in sandbox.commands.list() if process.pid == handle.pid]
        assert listed and listed[0].cmd == "/bin/bash"
        handle.disconnect()
        again = sandbox.commands.connect(handle.pid, timeout=0)
        sandbox.commands.send_stdin(handle.pid, "one\n")
        again.send_stdin("two\n")
        again.close_stdin()
        result = again.wait()
        assert result.stdout == "got one\ngot two\nbye\n" and result.exit_code == 0

        sleeping = sandbox.commands.run("sleep 1000", background=True, timeout=0)
        assert sandbox.commands.kill(sleeping.pid) is True
        assert raises(CommandExitException, sleeping.wait).exit_code != 0
        assert sandbox.commands.kill(sleeping.pid) is False
        raises(NotFoundException, lambda: sandbox.commands.connect(99_999))


@check
def input_streams_and_output_is_heard_piece_by_piece():
    with Sandbox.create() as sandbox:
        out, err = [], []
        counting = sandbox.commands.run("sha256sum | cut -c 1-12; echo end >&2", background=True, stdin=True, timeout=0)
        sandbox.commands.stream_input(counting.pid, (bytes([n]) * 10_000 for n in range(40)))
        sandbox.commands.close_stdin(counting.pid)
        result = counting.wait(on_stdout=out.append, on_stderr=err.append)
        assert (result.stdout, "".join(out), "".join(err)) == ("bee4a6e01518\n", "bee4a6e01518\n", "end\n")
        unheard = sandbox.commands.run("echo much", retain_output=False, on_stdout=out.append)
        assert unheard.stdout is None and out[-1] == "much\n"
        deaf = sandbox.commands.run("trap '' TERM; sleep 1000", background=True, timeout=0)
        assert deaf.kill() is True
        raises(CommandExitException, deaf.wait)
        assert deaf.kill() is False
        raises(NotFoundException, lambda: sandbox.commands.send_stdin(99_999, "x"))
        raises(NotFoundException, lambda: sandbox.commands.stream_input(99_999, ["x"]))
        raises(NotFoundException, lambda: sandbox.commands.close_stdin(99_999))
        limited = sandbox.commands.run("echo begun; sleep 1000", background=True, timeout=1)
        raises(TimeoutException, limited.wait)
        lives = lambda: any(process.pid == limited.pid for process in sandbox.commands.list())
        eventually(lambda: not lives())


async def settle(value):
    return await value if inspect.isawaitable(value) else value


async def keep_a_repository(sandbox):
    """With either client."""
    git, files = sandbox.git, sandbox.files
    if (await settle(sandbox.commands.run("command -v git || true"))).stdout == "":
        return
    await settle(git.configure_user("A User", "user@example.test"))
    await settle(git.init("repo", initial_branch="main"))
    await settle(files.write("repo/a.txt", "one"))
    assert not (await settle(git.status("repo"))).is_clean
    await settle(git.add("repo"))
    await settle(git.commit("repo", "first"))
    assert (await settle(git.status("repo"))).is_clean
    await settle(git.create_branch("repo", "topic"))
    await settle(git.checkout_branch("repo", "main"))
    assert set((await settle(git.branches("repo"))).branches) == {"main", "topic"}
    await settle(git.delete_branch("repo", "topic"))
    await settle(git.set_config("core.abbrev", "12", scope="local", path="repo"))
    assert await settle(git.get_config("core.abbrev", scope="local", path="repo")) == "12"
    await settle(git.remote_add("repo", "origin", "/home/user/origin.git"))
    assert await settle(git.remote_get("repo", "origin")) == "/home/user/origin.git"
    await settle(sandbox.commands.run("git init --bare -b main origin.git"))
    await settle(git.push("repo", remote="origin", branch="main"))
    await settle(git.clone("/home/user/origin.git", path="clone"))
    await settle(git.pull("clone", remote="origin", branch="main"))
    assert await settle(files.read("clone/a.txt")) == "one"
    await settle(files.write("repo/a.txt", "two"))
    await settle(git.restore("repo", ["a.txt"]))
    assert await settle(files.read("repo/a.txt")) == "one"
    await settle(git.reset("repo", mode="hard"))
    await settle(git.dangerously_authenticate("name", "password", host="example.test"))


@check
def repositories_are_kept_by_git():
    with Sandbox.create() as sandbox:
        asyncio.run(keep_a_repository(sandbox))

    async def story():
        async with await ci.AsyncSandbox.create() as sandbox:
            await keep_a_repository(sandbox)

    asyncio.run(story())


@check
def a_terminal_can_be_typed_into():
    with Sandbox.create() as sandbox:
        terminal = sandbox.pty.create(PtySize(rows=11, cols=77), timeout=30)
        sandbox.pty.resize(terminal.pid, PtySize(rows=22, cols=99))
        sandbox.pty.send_stdin(terminal.pid, b"stty size; exit 4\n")
        screen = bytearray()
        ended = raises(CommandExitException, lambda: terminal.wait(on_pty=screen.extend))
        assert ended.exit_code == 4 and b"22 99" in screen, screen

        terminal = sandbox.pty.create(PtySize(rows=11, cols=77), cwd="/tmp", envs={"A": "b"}, timeout=0)
        again = sandbox.pty.connect(terminal.pid, timeout=30)
        sandbox.pty.stream_input(terminal.pid, [b"echo $PWD-$A-$TERM;", b" exit\n"])
        screen = bytearray()
        again.wait(on_pty=screen.extend)
        assert b"/tmp-b-xterm-256color" in screen, screen
        terminal = sandbox.pty.create(PtySize(rows=11, cols=77), timeout=0)
        assert sandbox.pty.kill(terminal.pid) is True
        raises(CommandExitException, terminal.wait)
        assert sandbox.pty.kill(terminal.pid) is False
        raises(NotFoundException, lambda: sandbox.pty.resize(99_999, PtySize(rows=1, cols=1)))


@check
def a_dead_sandbox_is_told_apart_at_every_call():
    sandbox = Sandbox.create()
    sandbox.kill()
    raises(SandboxNotRunningException, lambda: sandbox.commands.run("true"))
    raises(SandboxNotRunningException, lambda: sandbox.files.read("x"))
    raises(SandboxNotRunningException, lambda: sandbox.files.list("/"))
    raises(TimeoutException, lambda: sandbox.run_code("1"))


# --- the asynchronous client


@check
def the_asynchronous_client_runs_code():
    async def story():
        async with await ci.AsyncSandbox.create(envs={"A": "1"}) as sandbox:
            out, results, errors = [], [], []

            async def hear(message):
                out.append(message.line)

            execution = await sandbox.run_code(
                "import os\nprint(os.environ['A'])\n6 * 7", on_stdout=hear, on_result=results.append
            )
            assert execution.text == "42" and "".join(out) == "1\n" and len(results) == 1
            failed = await sandbox.run_code("1/0", on_error=errors.append)
            assert failed.error.name == "ZeroDivisionError" and len(errors) == 1
            await refuses(TimeoutException, sandbox.run_code("while True: pass", timeout=1))
            assert (await sandbox.run_code("1 + 1", timeout=60)).text == "2"
            context = await sandbox.create_code_context(cwd="/tmp", language="python")
            assert context.id in [listed.id for listed in await sandbox.list_code_contexts()]
            await sandbox.run_code("x = 1", context=context)
            await sandbox.restart_code_context(context)
            assert (await sandbox.run_code("x", context=context)).error.name == "NameError"
            await sandbox.remove_code_context(context)
            await refuses(NotFoundException, sandbox.run_code("1", context=context))
        await refuses(TimeoutException, sandbox.run_code("1"))

    asyncio.run(story())


@check
def the_asynchronous_client_controls_sandboxes():
    async def story():
        tag = f"t{time.time_ns()}"
        sandbox = await ci.AsyncSandbox.create(timeout=100, metadata={"tag": tag})
        assert await sandbox.is_running()
        await sandbox.set_timeout(200)
        info = await sandbox.get_info()
        assert 150 < (info.end_at - info.started_at).total_seconds() <= 210 and info.metadata == {"tag": tag}
        assert (await sandbox.get_metrics())[0].mem_total > 0
        pages = ci.AsyncSandbox.list(query=SandboxQuery(metadata={"tag": tag}))
        assert [listed.sandbox_id for listed in await pages.next_items()] == [sandbox.sandbox_id]
        await sandbox.update_network({"deny_out": ["0.0.0.0/0"]})
        assert await sandbox.pause() is True and await sandbox.beta_pause() is False
        again = await ci.AsyncSandbox.connect(sandbox.sandbox_id)
        assert (await again.run_code("40 + 2")).text == "42"
        await sandbox.files.write("kept", "1")
        snapshot = await sandbox.create_snapshot()
        assert [found.snapshot_id for found in await sandbox.list_snapshots().next_items()] == [snapshot.snapshot_id]
        made = await sandbox.fork(timeout=120) + [await ci.AsyncSandbox.create(template=snapshot.snapshot_id)]
        for copy in made:
            assert await copy.files.read("kept") == "1" and await copy.kill() is True
        assert await ci.AsyncSandbox.delete_snapshot(snapshot.snapshot_id) is True
        assert await ci.AsyncSandbox.delete_snapshot("none") is False
        await refuses(AuthenticationException, sandbox.get_mcp_token(), "root")
        assert await sandbox.kill() is True and await ci.AsyncSandbox.kill(sandbox.sandbox_id) is False
        assert not await sandbox.is_running()
        await refuses(SandboxNotFoundException, sandbox.get_info())

    asyncio.run(story())


@check
def the_asynchronous_client_works_with_files():
    async def story():
        async with await ci.AsyncSandbox.create() as sandbox:
            files = sandbox.files
            await files.make_dir("w")
            seen = asyncio.Queue()
            watch = await files.watch_dir("w", on_event=seen.put_nowait)
            await files.write("w/a", "x")
            assert (await asyncio.wait_for(seen.get(), 30)).name == "a"
            await watch.stop()
            await files.write_files([{"path": "m/1", "data": "one"}, {"path": "m/2", "data": b"two"}])
            assert await files.read("m/1") == "one" and await files.read("m/2", format="bytes") == b"two"
            stream = await files.read("m/1", format="stream")
            assert b"".join([piece async for piece in stream]) == b"one"
            assert (await files.get_info("m/1")).size == 3
            assert sorted(entry.name for entry in await files.list("m")) == ["1", "2"]
            await files.rename("m/1", "moved")
            await files.remove("m")
            assert await files.exists("moved") and not await files.exists("m")
            await refuses(FileNotFoundException, files.read("none"))

    asyncio.run(story())


@check
def the_asynchronous_client_runs_commands():
    async def story():
        async with await ci.AsyncSandbox.create() as sandbox:
            commands = sandbox.commands
            assert (await commands.run("echo hi")).stdout == "hi\n"
            out = []
            handle = await commands.run("cat", background=True, stdin=True, timeout=0, on_stdout=out.append)
            assert handle.pid in [process.pid for process in await commands.list()]
            await handle.send_stdin("one\n")
            await commands.send_stdin(handle.pid, "two\n")
            pieces = commands.stream_input(handle.pid)
            await pieces.send("three")
            await pieces.send("\n")
            await pieces.close()
            await handle.close_stdin()
            assert (await handle.wait()).stdout == "one\ntwo\nthree\n" == "".join(out)
            handle = await commands.run("cat", background=True, stdin=True, timeout=0)
            await handle.disconnect()
            again = await commands.connect(handle.pid, timeout=0)
            await commands.close_stdin(handle.pid)
            assert (await again.wait()).exit_code == 0
            sleeping = await commands.run("sleep 1000", background=True, timeout=0)
            assert await sleeping.kill() is True
            await refuses(CommandExitException, sleeping.wait())
            assert await commands.kill(sleeping.pid) is False
            await refuses(TimeoutException, commands.run("sleep 30", timeout=1))

            screen = bytearray()
            size = PtySize(rows=11, cols=77)
            terminal = await sandbox.pty.create(size, on_data=screen.extend, timeout=0)
            await sandbox.pty.resize(terminal.pid, PtySize(rows=22, cols=99))
            await sandbox.pty.send_stdin(terminal.pid, b"stty size\n")
            typed = sandbox.pty.stream_input(terminal.pid)
            await typed.send(b"exit 4\n")
            await typed.close()
            assert (await refuses(CommandExitException, terminal.wait())).exit_code == 4
            assert b"22 99" in screen, screen
            terminal = await sandbox.pty.create(size, on_data=screen.extend, timeout=0)
            again = await sandbox.pty.connect(terminal.pid, on_data=screen.extend, timeout=0)
            assert await sandbox.pty.kill(terminal.pid) is True
            await refuses(CommandExitException, again.wait())

    asyncio.run(story())


def run(function):
    """Whether it failed."""
    local.running = function.__name__
    started = time.monotonic()
    sys.setprofile(note_call)
    try:
        function()
        said = f"ok {function.__name__} {time.monotonic() - started:.2f} s\n"
    except BaseException:
        said = f"FAILED {function.__name__}\n{traceback.format_exc()}\n"
    finally:
        sys.setprofile(None)
    sys.stdout.write(said)
    sys.stdout.flush()
    return said.startswith("FAILED")


def main():
    picked = lambda function: len(sys.argv) == 1 or any(word in function.__name__ for word in sys.argv[1:])
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        failed = any(list(pool.map(run, filter(picked, CHECKS))))
    failed |= any([run(function) for function in filter(picked, ALONE)])
    for call in sorted(set(CALLS.values())):
        print("call", call, *sorted(made.get(call, ())), sep="\t")
    sys.stdout.flush()
    # The clients' transport keeps native threads, and an interpreter that takes itself apart beside them sometimes
    # crashes after every check has passed. What is to be told has been told.
    os._exit(1 if failed else 0)


main()
