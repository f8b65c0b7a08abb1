"""As on macOS or Windows: the program has no local host and uses `pathbox host` in a container. Arguments: the program, the image's archive.

    scripts/package --only image && python3 tests/journeys/container.py target/debug/pathbox target/packages/pathbox-0.1.0-amd64.oci.tar

Needs podman and runc, as root. The commands are those of docs/deployment.md.
"""
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

program, archive = (Path(name).resolve() for name in sys.argv[1:3])
PODMAN = ["podman", "--runtime", "runc"]
KEY = os.urandom(16).hex()


def run(command, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, **options)
    assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout


with tempfile.TemporaryDirectory() as home:
    limits = Path(home) / "containers.conf"
    limits.write_text('[containers]\ndefault_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]\n')
    engine = {**os.environ, "CONTAINERS_CONF": str(limits)}
    run([*PODMAN, "load", "--input", archive], env=engine)
    # The network of the machine, where containers get none of their own; else `-p 127.0.0.1:3900:3900`.
    made = run([*PODMAN, "run", "-d", "--network=host", "--security-opt", "unmask=ALL", "-e", "E2B_API_KEY", "--tmpfs", "/data:mode=1777",
                "localhost/pathbox:latest", "host", "--listen", "127.0.0.1:3957"], env={**engine, "E2B_API_KEY": KEY}).strip()
    try:
        url = "http://127.0.0.1:3957"
        for _ in range(300):
            try:
                urllib.request.urlopen(f"{url}/health").read()
                break
            except OSError:
                time.sleep(0.1)
        else:
            sys.exit(f"the host did not come up: {run([*PODMAN, 'logs', made], env=engine)}")
        # No local host here: what the machine could isolate by itself does not count.
        client = {"PATH": os.environ["PATH"], "HOME": home, "E2B_API_URL": url, "E2B_SANDBOX_URL": url, "E2B_API_KEY": KEY}
        print(run([program, "doctor"], env=client))
        assert run([program, "run", "print(6 * 7)"], env=client) == "42\n"
        story = run([program, "demo", "--out", f"{home}/plot.png"], env=client, cwd=home)
        assert "[EMAIL_1]" in story and "NameError" in story and Path(home, "plot.png").read_bytes().startswith(b"\x89PNG"), story
        print("container: ok")
    finally:
        run([*PODMAN, "rm", "-f", "-t", "5", made], env=engine)
