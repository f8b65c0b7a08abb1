"""Writes what the linker has to know of the two macOS frameworks that the program uses, so that it links without Apple's SDK.

    python3 packaging/macos/stubs.py DIRECTORY

The names come from the `extern` blocks of the crates that declare them. The files hold names only; on a Mac the frameworks are the system's.
"""
import json
import re
import subprocess
import sys
from pathlib import Path

FRAMEWORKS = {"Security": "security-framework-sys", "CoreFoundation": "core-foundation-sys"}
ROOT = Path(__file__).resolve().parents[2]

metadata = ["cargo", "metadata", "--locked", "--format-version=1", "--filter-platform=aarch64-apple-darwin"]
packages = json.loads(subprocess.run(metadata, cwd=ROOT, check=True, capture_output=True, text=True).stdout)["packages"]
for framework, crate in FRAMEWORKS.items():
    sources = [Path(package["manifest_path"]).parent / "src" for package in packages if package["name"] == crate]
    text = "\n".join(file.read_text() for source in sources for file in sorted(source.rglob("*.rs")))
    blocks = re.findall(r'extern "C" \{(.*?)^\}', text, re.S | re.M)
    names = sorted({name for block in blocks for name in re.findall(r"\b(?:fn|static(?: mut)?) (\w+)\s*[(:]", block)})
    assert names, f"no symbols of {framework}: is {crate} still a dependency?"
    folder = Path(sys.argv[1]) / f"{framework}.framework"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{framework}.tbd").write_text(
        "--- !tapi-tbd\ntbd-version: 4\ntargets: [ x86_64-macos, arm64-macos ]\n"
        f"install-name: '/System/Library/Frameworks/{framework}.framework/Versions/A/{framework}'\n"
        f"exports:\n  - targets: [ x86_64-macos, arm64-macos ]\n    symbols: [ {', '.join('_' + name for name in names)} ]\n...\n")
