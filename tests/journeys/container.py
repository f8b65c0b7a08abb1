"""As on macOS or Windows: the program has no local host and uses one in a container. Arguments: the program, the image's archive, and
the runtime (podman or docker; podman when left out).

    scripts/package --only image && python3 tests/journeys/container.py target/debug/pathbox target/packages/pathbox-0.1.0-amd64.oci.tar

Needs podman and runc as root, or a Docker daemon (DOCKER_HOST says where). The command is that of docs/deployment.md.
"""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

program, archive = (Path(name).resolve() for name in sys.argv[1:3])
runtime = sys.argv[3] if len(sys.argv) > 3 else "podman"


def run(command, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, **options)
    assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout


with tempfile.TemporaryDirectory() as home:
    # crun refuses machines with both versions of control groups, and a machine may not raise limits for its containers.
    limits = Path(home) / "containers.conf"
    limits.write_text('[engine]\nruntime = "runc"\n[containers]\ndefault_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]\n')
    # No local host here: what the machine could isolate by itself does not count.
    client = {"PATH": os.environ["PATH"], "HOME": home, "CONTAINERS_CONF": str(limits), "PATHBOX_HOST_PYTHON": "/nowhere/python3"}
    if where := os.environ.get("DOCKER_HOST"):
        client["DOCKER_HOST"] = where
    up = [program, "container", "up", "--json", "--runtime", runtime, "--image", archive, "--name", "pathbox-journey", "--port", "3957"]
    if runtime == "podman":
        # The network of the machine, where containers get none of their own.
        up += ["--", "--network=host"]
    try:
        assert json.loads(run(up, env=client))["state"] == "started"
        print(run([program, "doctor"], env=client))
        assert run([program, "run", "print(6 * 7)"], env=client) == "42\n"
        story = run([program, "demo", "--out", f"{home}/plot.png"], env=client, cwd=home)
        assert "[EMAIL_1]" in story and "NameError" in story and Path(home, "plot.png").read_bytes().startswith(b"\x89PNG"), story
        run([runtime, "stop", "-t", "5", "pathbox-journey"], env=client)
        assert run([program, "run", "print(6 * 7)"], env=client) == "42\n", "it is started again"
        assert json.loads(run(up, env=client))["state"] == "running"
        run([runtime, "rm", "-f", "pathbox-journey"], env=client)
        print(run([program, "container", "down"], env=client).strip(), "though it was removed by hand")
        assert json.loads(run(up, env=client))["state"] == "started"
        print(f"container in {runtime}: ok")
    finally:
        print(run([program, "container", "down"], env=client).strip())
    assert subprocess.run([runtime, "inspect", "pathbox-journey"], env=client, check=False, capture_output=True).returncode != 0
