"""Prints sources through the guard, each file whole: `guard_sources.py PATHBOX ENVIRONMENT`.

A line for each finding: library, file, line, rule, and what `tests/fixtures/guard/sources.tsv` says of it: `right` (it is
what the rule says, such as the address of an author), `harmless` (made up, as in an example, but of the form) or `wrong`.
At the end how many there are of each, and what no longer parses.
"""

import ast
import collections
import concurrent.futures
import json
import pathlib
import subprocess
import sys
import sysconfig
import tempfile
import warnings

pathbox, environment = sys.argv[1], pathlib.Path(sys.argv[2])
kept = pathlib.Path("tests/fixtures/guard/sources.tsv")
node = environment / "node_modules/node/bin/node"
warnings.simplefilter("ignore")


def sources():
    """Library, its directory, the names of its files."""
    packages = pathlib.Path(sysconfig.get_paths()["purelib"])
    for name in ["numpy", "pandas", "matplotlib"]:
        yield name, packages / name, "**/*.py"
    yield "python", pathlib.Path(sysconfig.get_paths()["stdlib"]), "**/*.py"
    yield "plotly.js", packages / "plotly/package_data", "plotly.min.js"
    for name in ["react", "react-dom", "jquery"]:
        yield name, environment / "node_modules" / name, "**/*.js"
    natives = environment / "natives"
    if not natives.exists():
        write = """
          const fs = require('fs'), path = require('path');
          for (const [name, text] of Object.entries(process.binding('natives'))) {
            if (typeof text !== 'string') continue;
            const file = path.join(process.argv[1], name + '.js');
            fs.mkdirSync(path.dirname(file), { recursive: true });
            fs.writeFileSync(file, text);
          }"""
        subprocess.run([node, "--no-deprecation", "-e", write, natives], check=True)
    yield "node", natives, "**/*.js"


def parses(path, text):
    if path.suffix == ".py":
        try:
            ast.parse(text)
            return True
        except (SyntaxError, ValueError, RecursionError):
            return False
    for suffix in [".cjs", ".mjs"]:
        with tempfile.NamedTemporaryFile("w", suffix=suffix, encoding="utf-8") as file:
            # The modules of Node are bodies of functions.
            file.write(f"(function () {{{text}\n}})" if "natives" in str(path) else text)
            file.flush()
            if subprocess.run([node, "--check", file.name], capture_output=True).returncode == 0:
                return True
    return False


def guarded(found):
    library, root, path = found
    data = path.read_bytes()
    try:
        data.decode()
    except UnicodeDecodeError:
        return library, path.relative_to(root), len(data), [], None
    run = lambda form: subprocess.run([pathbox, "guard", "check", form, "-"], input=data, capture_output=True).stdout
    findings = [f for f in json.loads(run("--json"))["findings"] if f["action"] != "allow"]
    broken = None
    if findings and parses(path, data.decode()):
        broken = not parses(path, run("--text").decode())
    return library, path.relative_to(root), len(data), [(f["line"], f["rule"]) for f in findings], broken


verdicts = {}
if kept.exists():
    for line in kept.read_text(encoding="utf-8").splitlines():
        *place, verdict = line.split("\t")
        verdicts[tuple(place)] = verdict
files = [
    (library, root, path)
    for library, root, names in sources()
    for path in sorted(root.glob(names))
    if "site-packages" not in path.relative_to(root).parts
]
counts, broken_files, size, seen = collections.Counter(), [], 0, set()
with concurrent.futures.ThreadPoolExecutor(2) as pool:
    for library, path, length, findings, broken in pool.map(guarded, files):
        size += length
        for line, rule in findings:
            place = (library, str(path), str(line), rule)
            if place in seen:
                continue
            seen.add(place)
            verdict = verdicts.get(place, "unjudged")
            counts[verdict] += 1
            print(*place, verdict, sep="\t")
        if broken:
            broken_files.append(f"{library} {path}")
said = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
print(f"{len(files)} files, {size / 1e6:.1f} MB: {said}; no longer parse: {', '.join(broken_files) or 'none'}", file=sys.stderr)
