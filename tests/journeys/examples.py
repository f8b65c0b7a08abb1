"""Runs the examples as they stand, with a scripted model in the place of a real one. Arguments: the program, then names or nothing.

The frameworks come from target/test-env (scripts/test installs them).
"""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENV = Path(os.environ.get("PATHBOX_TEST_ENV", ROOT / "target/test-env"))
sys.path.insert(0, str(ROOT / "tests/clients/frameworks"))
from model import Model  # noqa: E402

program = Path(sys.argv[1]).resolve()
AGENTS = {
    "langchain_agent.py": "fw-langchain",
    "openai_agents.py": "openai-agents",
    "pydantic_ai_agent.py": "fw-pydantic-ai",
    "llama_index_agent.py": "fw-llama-index",
    "ai-sdk.mjs": "fw-ai-sdk",
}


def environment(home, **more):
    (home / "bin").mkdir(exist_ok=True)
    if not (home / "bin/pathbox").exists():
        (home / "bin/pathbox").symlink_to(program)
    return {"PATH": f"{home}/bin:/usr/local/bin:/usr/bin:/bin", "HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1", **more}


def check(done):
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


class Served:
    """`pathbox serve` over HTTP on a free port."""

    def __init__(self, home, *args):
        self.env = environment(home)
        self.server = subprocess.Popen([program, "serve", "--http", "127.0.0.1:0", *args], env=self.env, stderr=subprocess.PIPE, text=True)
        line = next(line for line in self.server.stderr if "serving MCP at http://" in line)
        self.url = "http://" + line.split("serving MCP at http://")[1].split("/")[0]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.terminate()
        self.server.stderr.read()
        self.server.wait()


def agent(name, home):
    """It runs, its calls run code in one context, and the model sees the state of the call before."""
    model = Model()
    env = environment(home, OPENAI_BASE_URL=model.url, OPENAI_API_KEY="none")
    if name.endswith(".py"):
        command = [ENV / AGENTS[name] / "bin/python", ROOT / "examples" / name]
    else:
        # Node looks for packages from the file's own directory on.
        (home / name).write_text((ROOT / "examples" / name).read_text())
        (home / "node_modules").symlink_to(ENV / AGENTS[name] / "node_modules")
        command = [ENV / "mcp-js/node_modules/node/bin/node", home / name]
    with Served(home) as served:
        check(subprocess.run(command, env={**env, "MCP_SERVER_URL": served.url}, capture_output=True, text=True, timeout=300))
    seen = model.report()
    assert seen["state"] and seen["error"], seen
    return f"picture {'shown' if seen['picture'] else 'not shown'} to the model"


def curl(name, home):
    with Served(home) as served:
        said = check(subprocess.run([ROOT / "examples" / name], env={**served.env, "MCP_SERVER_URL": served.url}, capture_output=True, text=True, timeout=300))
    results = [json.loads(line)["result"]["structuredContent"] for line in said.splitlines() if line.startswith("{")]
    assert results[-1]["output"] == "42" and results[-1]["state"] == "kept", said


def router(name, home):
    key = json.loads(check(subprocess.run([program, "keys", "add", "--json", "--name", "router", "--any-tenant"], env=environment(home), capture_output=True, text=True)))
    with Served(home, "--set", "http.auth=required") as served:
        env = {**served.env, "MCP_SERVER_URL": served.url, "MCP_SERVER_KEY": key["key"]}
        said = check(subprocess.run([ENV / "mcp-2/bin/python", ROOT / "examples" / name], env=env, capture_output=True, text=True, timeout=300))
    assert "acme: " in said and "NameError" in said, said


EXAMPLES = {**dict.fromkeys(AGENTS, agent), "curl.sh": curl, "router/router.py": router}
for name in sys.argv[2:] or EXAMPLES:
    with tempfile.TemporaryDirectory() as home:
        note = EXAMPLES[name](name, Path(home))
        print(f"{name}: ok{f' ({note})' if note else ''}", flush=True)
