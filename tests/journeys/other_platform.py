"""A program of another platform, from an empty home. Arguments: the program, and one of this machine for the sandboxes.

pathbox.exe runs under Wine (Debian's `wine64`, and Zig, which scripts/platforms installs), an arm64 program under `qemu-aarch64-static`.
What passes: doctor, MCP over standard input and output, the database in the platform's own place, and code in sandboxes of `pathbox host`
on this machine, as a Windows user has it in WSL or a container. The local host of arm64 cannot run there: qemu-user has no seccomp filters.
"""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

exe, native = (Path(name).resolve() for name in sys.argv[1:3])
WINDOWS = exe.suffix == ".exe"
RUNNER = "wine" if WINDOWS else "qemu-aarch64-static"
# Wine 8 lacks the one function that every Rust program takes random bytes from.
SHIM = """#include <windows.h>
BOOLEAN WINAPI SystemFunction036(PVOID, ULONG);
__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE data, SIZE_T size) { return SystemFunction036(data, size); }
"""


def shim(folder):
    (folder / "prng.c").write_text(SHIM)
    python = Path(__file__).resolve().parents[2] / "target/test-env/zig/bin/python"
    zig = [os.environ.get("ZIG_PYTHON", str(python)), "-m", "ziglang", "cc", "-target", "x86_64-windows-gnu", "-shared"]
    subprocess.run([*zig, "-o", folder / "bcryptprimitives.dll", folder / "prng.c", "-ladvapi32"], check=True)


def main(folder):
    program = folder / exe.name
    program.symlink_to(exe)
    if WINDOWS:
        shim(folder)
    home = {"PATH": os.environ["PATH"], "HOME": str(folder), "WINEPREFIX": str(folder / "wine"), "WINEDEBUG": "-all"}

    def run(*args, code=0, **options):
        done = subprocess.run([RUNNER, program, *args], env={**home, **options}, capture_output=True, text=True, timeout=300)
        assert done.returncode == code, (args, done)
        return done.stdout

    assert run("--version").startswith("pathbox "), "it does not start"
    checks = {check["name"]: check for check in json.loads(run("doctor", "--json", code=1))}
    assert not checks["isolation"]["ok"] and (not WINDOWS or "needs Linux" in checks["isolation"]["detail"]), checks
    assert checks["database"]["ok"], checks
    place = "AppData/Local/pathbox/pathbox.db" if WINDOWS else ".local/share/pathbox/pathbox.db"
    found = list(folder.rglob(place))
    assert found, f"no database at {place}"
    print("doctor: ok, database at", found[0].relative_to(folder))

    def serve(messages, **options):
        server = subprocess.Popen([RUNNER, program, "serve"], env={**home, **options}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        answers = {}
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "journey", "version": "0"}}
        for number, (method, params) in enumerate([("initialize", hello), *messages], 1):
            server.stdin.write(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}) + "\n")
            if number == 1:
                server.stdin.write(json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}) + "\n")
            server.stdin.flush()
            while number not in answers:
                answer = json.loads(server.stdout.readline())
                answers[answer.get("id")] = answer
        server.stdin.close()
        assert server.wait(timeout=60) == 0
        return [answers[number] for number in range(2, len(messages) + 2)]

    call = lambda code: ("tools/call", {"name": "run_code", "arguments": {"code": code, "language": "python"}})
    listed, refused = serve([("tools/list", {}), call("6 * 7")])
    assert "run_code" in [tool["name"] for tool in listed["result"]["tools"]], listed
    assert refused["result"]["isError"] and (not WINDOWS or "needs Linux" in json.dumps(refused)), refused
    print("serve: ok, without a host it says:", refused["result"]["content"][0]["text"][:200])

    host = subprocess.Popen([native, "host", "--listen", "127.0.0.1:0"], env={**os.environ, "PATHBOX_DATA_DIR": str(folder / "host")},
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        lines = [host.stdout.readline() for _ in range(2)]
        named = dict(pair.split("=", 1) for line in lines for pair in line.split()[1:])
        first, second = serve([call("x = 6"), call("x * 7")], **named)
        assert second["result"]["structuredContent"]["output"] == "42", second
        assert run("run", "print(6 * 7)", **named) == "42\n"
        print("host: ok, state", second["result"]["structuredContent"]["state"])
    finally:
        host.terminate()
        host.wait()


with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
    main(Path(name))
print(f"{exe.name} under {RUNNER}: ok")
