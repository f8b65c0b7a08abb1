"""Each package, installed and started from an empty home. Arguments: the program, the packages' directory, then kinds or nothing.

Needs python3 with venv, node and npm, dpkg; what it installs comes from the directory alone, without any registry. `uv` and `mcpb` are
taken from the directories that PATHBOX_TEST_ENV names (scripts/test installs them), and left out where they are not there. The image
is started with podman when it was made.
"""
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
program, out = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
ENV = Path(os.environ.get("PATHBOX_TEST_ENV", ROOT / "target/test-env"))
VERSION = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.strip()


def run(command, home, **options):
    environment = {"PATH": f"{home}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(home), **options.pop("env", {})}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, **options)
    assert done.returncode == 0, (command, done.stdout[-3000:], done.stderr[-3000:])
    return done.stdout


def session(command, home, env=None, output="42"):
    """What a desktop client does: starts it, shakes hands, lists the tools, calls one, closes, and the process is gone."""
    environment = {"PATH": f"{home}/bin:/usr/local/bin:/usr/bin:/bin", "HOME": str(home), **(env or {})}
    server = subprocess.Popen(command, env=environment, cwd=home, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "journey", "version": "0"}}
    call = {"name": "run_code", "arguments": {"code": "6 * 7", "language": "python"}}
    answers = {}
    for number, (method, params) in enumerate([("initialize", hello), ("tools/list", {}), ("tools/call", call)], 1):
        server.stdin.write(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}) + "\n")
        if number == 1:
            server.stdin.write(json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}) + "\n")
        server.stdin.flush()
        while number not in answers:
            line = server.stdout.readline()
            assert line, (command, server.stderr.read()[-3000:])
            answer = json.loads(line)
            answers[answer.get("id")] = answer
    assert answers[3]["result"]["structuredContent"]["output"] == output, answers[3]
    server.stdin.close()
    assert server.wait(timeout=120) == 0, command


def only(pattern):
    found = sorted(out.glob(pattern))
    assert len(found) == 1, (pattern, found)
    return found[0]


def archive(home):
    run(["tar", "xzf", only("pathbox-*.tar.gz"), "--strip-components=1", "-C", home], home)
    assert run([home / "pathbox", "--version"], home).strip() == VERSION
    assert (home / "LICENSE").exists() and (home / "share/man/man1/pathbox.1.gz").exists()
    session([home / "pathbox", "serve"], home)


def wheel(home):
    file = only("pathbox-*.whl")
    run([sys.executable, "-m", "venv", home / "venv"], home)
    run([home / "venv/bin/pip", "install", "--quiet", "--no-index", file], home)
    assert run([home / "venv/bin/pathbox", "--version"], home).strip() == VERSION
    session([home / "venv/bin/pathbox", "serve"], home)
    uvx = ENV / "uv/bin/uvx"
    if uvx.exists():
        session([uvx, "--offline", "--from", str(file), "pathbox", "serve"], home)
        return "pip, uvx"
    return "pip"


def npm(home):
    own = only("pathbox-linux-*.tgz")
    main = next(file for file in out.glob("pathbox-*.tgz") if file != own)
    (home / "package.json").write_text("{}")
    run(["npm", "install", "--offline", "--no-audit", "--no-fund", main, own], home, cwd=home)
    assert run(["npx", "--offline", "pathbox", "--version"], home, cwd=home).strip() == VERSION
    session(["npx", "--offline", "pathbox", "serve"], home)
    # Without the platform's package it says so.
    subprocess.run(["rm", "-r", home / "node_modules/@pathbox"], check=True)
    done = subprocess.run(["node", home / "node_modules/pathbox/pathbox.js"], capture_output=True, text=True)
    assert done.returncode == 1 and "--omit=optional" in done.stderr, done


def mcpb(home):
    with zipfile.ZipFile(only("pathbox-*.mcpb")) as bundle:
        bundle.extractall(home / "bundle")
    manifest = json.loads((home / "bundle/manifest.json").read_text())
    validator = ENV / "mcpb/node_modules/.bin/mcpb"
    if validator.exists():
        run([validator, "validate", home / "bundle/manifest.json"], home, env={"PATH": os.environ["PATH"]})
    config = manifest["server"]["mcp_config"]
    command = [config["command"].replace("${__dirname}", str(home / "bundle")), *config["args"]]
    # zipfile does not restore modes; a host does.
    os.chmod(command[0], 0o755)
    with zipfile.ZipFile(only("pathbox-*.mcpb")) as bundle:
        assert bundle.getinfo(manifest["server"]["entry_point"]).external_attr >> 16 & 0o111, "the program is not executable"
    session(command, home, {name: "" for name in config["env"]})
    return "validated" if validator.exists() else "not validated"


def deb(home):
    file, root = only("pathbox_*.deb"), home / "root"
    (root / "var/lib/dpkg/info").mkdir(parents=True)
    (root / "var/lib/dpkg/updates").mkdir()
    (root / "var/lib/dpkg/status").touch()
    run(["dpkg", f"--root={root}", "--force-not-root", "--force-depends", "--force-script-chrootless", "--log=/dev/null", "-i", file], home)
    session([root / "usr/bin/pathbox", "serve"], home)
    shown = run([root / "usr/bin/pathbox", "--config", root / "etc/pathbox/pathbox.toml", "config"], home)
    assert "127.0.0.1:8080" in shown, shown
    unit = root / "usr/lib/systemd/system/pathbox.service"
    if subprocess.run(["sh", "-c", "command -v systemd-analyze"], capture_output=True).returncode == 0:
        done = subprocess.run(["systemd-analyze", "verify", f"--root={root}", "pathbox.service"], capture_output=True, text=True)
        unknown = [line for line in done.stderr.splitlines() if "Unknown" in line or "Invalid" in line or "Failed to parse" in line]
        assert not unknown, unknown
        return "unit verified"
    assert "ExecStart=/usr/bin/pathbox serve" in unit.read_text()
    return "unit not verified"


def image(home):
    """By hand, as root: `scripts/package --only image`, then this with `image`."""
    podman = ["podman", "--runtime", "runc"]
    limits = home / "containers.conf"
    limits.write_text('[containers]\ndefault_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]\n')
    env = {"CONTAINERS_CONF": str(limits)}
    run([*podman, "load", "--input", only("pathbox-*.oci.tar")], home, env=env)
    name = run([*podman, "images", "--noheading", "--format", "{{.ID}}", "--filter", "label=org.opencontainers.image.title=pathbox"], home, env=env).split()[0]
    options = ["--network=none", "--security-opt", "unmask=ALL"]
    assert run([*podman, "run", "--rm", *options, name, "--version"], home, env=env).strip() == VERSION
    session([*podman, "run", "--rm", "-i", *options, name, "serve"], home, env)


def sbom(home):
    bom = json.loads(only("pathbox-*.cdx.json").read_text())
    names = {component["name"] for component in bom["components"]}
    assert {"rmcp", "tokio", "sqlx"} <= names and "proptest" not in names, sorted(names)
    assert all(component.get("licenses") for component in bom["components"]), [c["name"] for c in bom["components"] if not c.get("licenses")]
    return f"{len(names)} components"


def checksums(home):
    run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], home, cwd=out)


KINDS = [archive, wheel, npm, mcpb, deb, sbom, checksums, image]
wanted = [kind for kind in KINDS if kind.__name__ in sys.argv[3:] or (not sys.argv[3:] and kind is not image)]
for kind in wanted:
    with tempfile.TemporaryDirectory() as home:
        note = kind(Path(home))
        print(f"{kind.__name__}: ok{f' ({note})' if note else ''}", flush=True)
