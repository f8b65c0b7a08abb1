"""Prints sources through the guard, each file whole: `guard_sources.py PATHBOX ENVIRONMENT`.

Writes a table to `tests/fixtures/guard/sources.md`: the findings by rule, carrier and reason, how many, the first place, and the
verdict of `sources.toml` beside it. Fails on a finding that no row there fits, and on a file that parsed before and does not after.
"""

import ast
import concurrent.futures
import json
import re
import pathlib
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import warnings

pathbox, environment = sys.argv[1], pathlib.Path(sys.argv[2])
kept = pathlib.Path("tests/fixtures/guard")
rows = tomllib.loads((kept / "sources.toml").read_text(encoding="utf-8"))["finding"]
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


def judged(finding, carrier, path, data):
    """The group of a finding, and its place."""
    start, end = finding["start"], finding["end"]
    line = data[data.rfind(b"\n", 0, start) + 1 :].split(b"\n", 1)[0][:4096].decode(errors="replace")
    value = data[start:end].decode(errors="replace")
    texts = {"file": str(path), "value": value, "line": line}
    fits = lambda row: finding["rule"] in row["rule"] and all(
        re.search(row[name], text) for name, text in texts.items() if name in row
    )
    row = next(filter(fits, rows), {"reason": f"not judged: {value}", "verdict": "unjudged"})
    return (finding["rule"], carrier, row["reason"], row["verdict"]), f"{path}:{finding['line']}"


def guarded(found):
    library, root, path = found
    data = path.read_bytes()
    try:
        data.decode()
    except UnicodeDecodeError:
        return library, path.relative_to(root), len(data), [], None
    run = lambda *form: subprocess.run([pathbox, "guard", "check", *form, "-"], input=data, capture_output=True).stdout
    checked = json.loads(run("--json", "--explain"))
    groups = []
    for finding in checked["findings"]:
        if finding["action"] == "allow":
            continue
        overlap = lambda one: one["outcome"] == "found" and one["start"] < finding["end"] and finding["start"] < one["end"]
        carrier = next((one["carrier"] for one in checked["candidates"] if overlap(one)), "other")
        groups.append(judged(finding, carrier, path.relative_to(root), data))
    broken = None
    if groups and parses(path, data.decode()):
        broken = not parses(path, run("--text").decode())
    return library, path.relative_to(root), len(data), groups, broken


files = [
    (library, root, path)
    for library, root, names in sources()
    for path in sorted(root.glob(names))
    if "site-packages" not in path.relative_to(root).parts
]
# The table of excuses looks at the same files.
(environment / "files.txt").write_text("".join(f"{path}\n" for *_, path in files), encoding="utf-8")
groups, broken_files, size = {}, [], 0
with concurrent.futures.ThreadPoolExecutor(2) as pool:
    for library, path, length, found, broken in pool.map(guarded, files):
        size += length
        for group, place in found:
            groups.setdefault(group, []).append(f"{library} {place}")
        if broken:
            broken_files.append(f"{library} {path}")
counts = {}
for (*_, verdict), places in groups.items():
    counts[verdict] = counts.get(verdict, 0) + len(places)
said = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
end = f"{len(files)} files, {size / 1e6:.1f} MB: {said}; no longer parse: {', '.join(broken_files) or 'none'}"
order = sorted(groups.items(), key=lambda group: (["unjudged", "wrong", "right", "harmless"].index(group[0][3]), -len(group[1])))
table = "\n".join(
    f"| {verdict} | {rule} | {carrier} | {reason} | {len(places)} | {places[0]} |"
    for (rule, carrier, reason, verdict), places in order
)
(kept / "sources.md").write_text(
    f"""# What is found in printed sources

The sources of numpy, pandas, matplotlib, plotly.js, react, jquery and the standard libraries of Python and Node, printed whole:
{end}.
Right: it is what the rule says. Harmless: made up, as in a test, but of the form. Wrong: it is something else.

Printed by `scripts/guard-sources`; the verdicts are rows of `sources.toml`.

| verdict | rule | carrier | reason | findings | the first |
| --- | --- | --- | --- | --- | --- |
{table}
""",
    encoding="utf-8",
)
print(end)
sys.exit(bool(broken_files) or "unjudged" in counts)
