"""An operator: Postgres, a sandbox host that two replicas share, keys, a branch, a replica that dies, the console. Argument: the program.

    python3 tests/journeys/server.py target/debug/pathbox

Needs Debian's postgresql. Everything is done with the commands of README.md and docs, from an empty home.
"""
import contextlib
import glob
import json
import os
import pwd
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

program = Path(sys.argv[1]).resolve()
HOST_KEY = "e2b_" + os.urandom(20).hex()
SECRET_KEYS = "1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="


def wait(what, done):
    for _ in range(600):
        if answer := done():
            return answer
        time.sleep(0.1)
    sys.exit(f"server: {what} did not come up")


@contextlib.contextmanager
def process(command, **options):
    child = subprocess.Popen(command, **options)
    try:
        yield child
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGINT if "postgres" in str(command[0]) else signal.SIGTERM)
            try:
                child.wait(20)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


@contextlib.contextmanager
def postgres(home):
    bin_dir = Path(sorted(glob.glob("/usr/lib/postgresql/*/bin"))[-1])
    data = Path(home, "pg")
    data.mkdir(mode=0o700)
    # The server refuses to be root.
    account = {}
    if os.getuid() == 0:
        name = next(entry for user in ("postgres", "nobody") for entry in pwd.getpwall() if entry.pw_name == user)
        account = {"user": name.pw_uid, "group": name.pw_gid}
        os.chown(data, name.pw_uid, name.pw_gid)
        os.chmod(home, 0o711)
    initdb = [bin_dir / "initdb", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "-D", data]
    subprocess.run(initdb, check=True, stdout=subprocess.DEVNULL, cwd="/", **account)
    log = open(Path(home, "pg.log"), "w")
    command = [bin_dir / "postgres", "-D", data, "-k", data, "-c", "listen_addresses=", "-c", "fsync=off"]
    with process(command, stdout=log, stderr=log, cwd="/", **account):
        ready = [bin_dir / "pg_isready", "-q", "-h", data]
        wait("Postgres", lambda: subprocess.run(ready, check=False).returncode == 0)
        subprocess.run([bin_dir / "createdb", "-U", "postgres", "-h", data, "pathbox"], check=True)
        yield f"postgres://postgres@localhost/pathbox?host={data}"


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def request(url, key, body=None, method=None, more=()):
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json", "X-Tenant-Id": "acme",
               "Accept": "application/json, text/event-stream", **dict(more)}
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers, method=method), timeout=120) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def run_code(base, key, code, path="main"):
    meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {},
            "io.modelcontextprotocol/clientInfo": {"name": "journey", "version": "0"},
            "dev.pathbox/conversationId": "c", "dev.pathbox/pathId": path}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call",
               "params": {"name": "run_code", "arguments": {"language": "python", "code": code}, "_meta": meta}}
    more = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "run_code"}
    status, text = request(f"{base}/mcp", key, message, more=more)
    assert status == 200, (status, text)
    events = [line[6:] for line in text.splitlines() if line.startswith("data: ")] or [text]
    answers = [json.loads(event) for event in events if event.strip()]
    return next(answer["result"] for answer in answers if answer.get("id") == 1)


with contextlib.ExitStack() as stack:
    home = stack.enter_context(tempfile.TemporaryDirectory(dir="/var/tmp"))
    url = stack.enter_context(postgres(home))
    base_env = {"PATH": os.environ["PATH"], "HOME": home}
    host_log = open(Path(home, "host.log"), "w")
    host = stack.enter_context(process([program, "host", "--listen", "127.0.0.1:0", "--api-key", HOST_KEY], stdout=subprocess.PIPE,
                                       stderr=host_log, text=True, env=base_env))
    address = re.search(r"E2B_API_URL=(\S+)", host.stdout.readline())[1]
    env = {**base_env, "DATABASE_URL": url, "PATHBOX_SECRET_KEYS": SECRET_KEYS, "E2B_API_URL": address, "E2B_SANDBOX_URL": address,
           "E2B_API_KEY": HOST_KEY, "PATHBOX_HTTP_AUTH": "required", "PATHBOX_HTTP_CONSOLE": "true"}

    def pathbox(*arguments):
        done = subprocess.run([program, *arguments], env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, (arguments, done.stdout[-2000:], done.stderr[-2000:])
        return done.stdout

    pathbox("migrate")
    checks = {check["name"]: check for check in json.loads(pathbox("doctor", "--json"))}
    assert all(check["ok"] for check in checks.values()), checks
    router = pathbox("keys", "add", "--name", "router", "--tenants", "acme", "--scopes", "run,read,paths").strip()
    admin = pathbox("keys", "add", "--name", "operator", "--tenant", "acme", "--scopes", "admin,run,read").strip()

    replicas = []
    for name in ("a", "b"):
        port, log = free_port(), open(Path(home, f"{name}.log"), "w")
        command = [program, "serve", "--http", f"127.0.0.1:{port}", "--data-dir", Path(home, name)]
        replicas.append((f"http://127.0.0.1:{port}", stack.enter_context(process(command, env=env, stdout=log, stderr=log))))

    def ready(base):
        try:
            return request(f"{base}/readyz", router)[0] == 200
        except OSError:
            return False

    (a, process_a), (b, _) = replicas
    wait("a replica", lambda: ready(a) and ready(b))
    assert request(f"{a}/mcp", "nobody", {})[0] == 401, "without a key there is no way in"
    first = run_code(a, router, "x = 41\nprint('mary.murphy@example.ie')")
    assert "[EMAIL_1]" in first["structuredContent"]["stdout"], first
    there = run_code(b, router, "x + 1")["structuredContent"]
    assert (there["output"], there["state"]) == ("42", "kept"), there

    status, text = request(f"{b}/v1/conversations/c/paths", router, {"path": "main"})
    assert status in (200, 201), (status, text)
    status, text = request(f"{a}/v1/conversations/c/paths/main/branch", router, {"path": "what-if", "branchedAtMessage": "m-1"})
    assert status in (200, 201), (status, text)
    branch = run_code(b, router, "x", "what-if")["structuredContent"]
    assert branch["error"]["name"] == "NameError", branch
    assert request(f"{b}/v1/conversations/c/paths/what-if", router, method="DELETE")[0] in (200, 204)
    gone = run_code(a, router, "1", "what-if")
    assert gone["_meta"]["dev.pathbox/error"]["code"] == "path_closed", gone

    run_code(a, router, "y = 1")
    process_a.kill()
    after = run_code(b, router, "x + y")["structuredContent"]
    assert (after["output"], after["state"]) == ("42", "kept"), after

    assert request(f"{b}/console", admin)[0] == 200
    status, state = request(f"{b}/console/state", admin)
    assert status == 200 and "example.ie" not in state, state
    assert request(f"{b}/console/state", router)[0] in (401, 403), "the console is the operator's"
    assert "sound" in pathbox("audit", "verify")
    usage = json.loads(pathbox("usage", "--json"))
    assert any(line["tenant"] == "acme" and line["executions"] >= 5 for line in usage["lines"]), usage
    print("server: ok")
