"""What IPython adds to Python's syntax, as far as it is common: `%magics`, `!commands`, `name?`, indented cells.

Compiled by the Python driver when a cell does not parse; `core` is the driver. Lines are translated one for
one, so line numbers stay true: each is a call of a function below.
"""
import builtins
import os
import re
import sys
import time

ASSIGNED = re.compile(r"^(\s*)([\w, ]+?)\s*=\s*([%!])(?!=)(.*)$")
MAGIC = re.compile(r"^(\s*)%(?!%)(\w[\w.]*)\s*(.*)$")
SHELL = re.compile(r"^(\s*)(!!?)(.*)$")
HELP = re.compile(r"^(\s*)\??\??([\w.]+)\??\??\s*$")
NAME = "__pathbox_%s__"


def translate(source, name):
    """Python for `source`, which did not parse. What still does not parse is reported by whoever compiles it."""
    flags = core.State.flags | core._ast.PyCF_ONLY_AST
    lines = source.split("\n")
    first = next((line for line in lines if line.strip()), "")
    indent = first[: len(first) - len(first.lstrip())]
    if indent:
        lines = [line[len(indent) :] if line.startswith(indent) else line for line in lines]
    for _ in range(1000):
        try:
            compile("\n".join(lines), name, "exec", flags, dont_inherit=True)
            break
        except SyntaxError as error:
            at = (error.lineno or 0) - 1
            translated = translate_line(lines[at]) if 0 <= at < len(lines) else None
            if translated is None:
                break
            lines[at] = translated
    return "\n".join(lines)


def translate_line(line):
    found = ASSIGNED.match(line)
    if found:
        indent, target, sign, rest = found.groups()
        if sign == "!":
            return "%s%s = %s" % (indent, target, call("getoutput", rest))
        magic, _, rest = rest.partition(" ")
        return "%s%s = %s" % (indent, target, call("line", magic, rest))
    found = MAGIC.match(line)
    if found:
        return found.group(1) + call("line", found.group(2), found.group(3))
    found = SHELL.match(line)
    if found:
        return found.group(1) + call("getoutput" if found.group(2) == "!!" else "system", found.group(3))
    found = HELP.match(line)
    if found and "?" in line:
        return found.group(1) + call("explain", found.group(2))
    return None


def translate_cell(source):
    """Python for a cell whose first line is a `%%magic`."""
    head, _, body = source.lstrip().partition("\n")
    magic, _, rest = head[2:].strip().partition(" ")
    return call("cell", magic, rest.strip(), body)


def call(function, *arguments):
    setattr(builtins, NAME % function, globals()[function])
    return "%s(%s)" % (NAME % function, ", ".join(map(repr, arguments)))


class UsageError(Exception):
    pass


def evaluate(code):
    """Value of an expression, or None for statements, in the cells' variables."""
    before, last, _ = core.compile_cell(code, "<magic>")
    if before is not None:
        core.evaluate(before)
    return None if last is None else core.evaluate(last)


def timing(seconds):
    for scale, unit in ((1, "s"), (1e3, "ms"), (1e6, "μs")):
        if seconds * scale >= 1:
            return "%.3g %s" % (seconds * scale, unit)
    return "%.3g ns" % (seconds * 1e9)


def line(name, rest):
    rest = rest.strip()
    if name == "time":
        return timed(rest)
    if name == "timeit":
        return timeit(rest)
    if name == "pwd":
        return os.getcwd()
    if name == "cd":
        os.chdir(os.path.expanduser(rest.strip("'\"") or "~"))
        print(os.getcwd())
        return None
    if name in ("env", "set_env"):
        key, equals, value = rest.partition("=") if "=" in rest else rest.partition(" ")
        if equals:
            os.environ[key.strip()] = expand(value.strip())
            print("env: %s=%s" % (key.strip(), os.environ[key.strip()]))
            return None
        return os.environ[key] if key else dict(os.environ)
    if name == "pip":
        return system('"%s" -m pip %s' % (sys.executable, rest))
    if name in ("ls", "cat", "cp", "mv", "rm", "mkdir", "rmdir", "head", "tail", "grep"):
        return system("%s %s" % (name, rest))
    if name in ("sx", "system"):
        return getoutput(rest)
    if name in ("who", "whos"):
        names = [k for k in core.G if not k.startswith("_") and k not in ("In", "Out")]
        print("\t ".join(names))
        return None
    if name in ("reset", "reset_selective"):
        for key in [k for k in core.G if not k.startswith("_") and k not in ("In", "Out")]:
            del core.G[key]
        return None
    if name == "run":
        with open(rest.split()[0]) as file:
            exec(compile(file.read(), rest.split()[0], "exec"), core.G)
        return None
    if name in ("matplotlib", "config", "load_ext", "reload_ext", "autoreload", "precision", "autosave", "colors", "xmode"):
        return None  # they set up a notebook that is not there
    print("UsageError: Line magic function `%%%s` not found." % name, file=sys.stderr)
    return None


def cell(name, rest, body):
    if name in ("bash", "sh", "script", "perl", "ruby", "python3", "node"):
        command = rest.split() if name == "script" else ["/bin/" + name if name == "sh" else name] + rest.split()
        return script(command, body)
    if name == "time":
        return timed(body)
    if name == "timeit":
        return timeit(body, rest)
    if name in ("capture", "prun"):
        return evaluate(body)
    if name in ("writefile", "file"):
        append, path = rest.startswith("-a "), rest[3:].strip() if rest.startswith("-a ") else rest
        existed = os.path.exists(path)
        with open(path, "a" if append else "w") as file:
            file.write(body)
        print("%s %s" % ("Appending to" if append else "Overwriting" if existed else "Writing", path))
        return None
    forms = {"html": "text/html", "markdown": "text/markdown", "latex": "text/latex", "svg": "image/svg+xml",
             "javascript": "application/javascript", "js": "application/javascript"}
    if name.lower() in forms:
        core.emit_raw({forms[name.lower()]: body})
        return None
    print("UsageError: Cell magic `%%%%%s` not found." % name, file=sys.stderr)
    return None


def timed(code):
    cpu, wall = os.times(), time.perf_counter()
    value = evaluate(code)
    wall, end = time.perf_counter() - wall, os.times()
    user, kernel = end[0] - cpu[0], end[1] - cpu[1]
    print("CPU times: user %s, sys: %s, total: %s" % tuple(map(timing, (user, kernel, user + kernel))))
    print("Wall time: %s" % timing(wall))
    return value


def timeit(code, setup=""):
    import timeit as module

    timer = module.Timer(code.strip(), setup or "pass", globals=core.G)
    number, _ = timer.autorange()
    runs = [t / number for t in timer.repeat(7, number)]
    mean = sum(runs) / len(runs)
    spread = (sum((r - mean) ** 2 for r in runs) / len(runs)) ** 0.5
    print("%s ± %s per loop (mean ± std. dev. of 7 runs, %s loops each)" % (timing(mean), timing(spread), format(number, ",")))


def expand(command):
    """`{expression}` and `$name` of the cells' variables, as IPython does."""

    def value(found):
        try:
            return str(eval(found.group(1) or found.group(2), core.G))
        except Exception:
            return found.group(0)

    return re.sub(r"\{([^{}]+)\}|\$([A-Za-z_]\w*)", value, command)


def run(arguments, **options):
    import subprocess

    sys.stdout.flush()
    sys.stderr.flush()
    return subprocess.run(arguments, stdin=options.pop("stdin", subprocess.DEVNULL), **options)


def system(command):
    core.G["_exit_code"] = run(["/bin/bash", "-c", expand(command)]).returncode


def getoutput(command):
    import subprocess

    made = run(["/bin/bash", "-c", expand(command)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return made.stdout.decode("utf-8", "replace").splitlines()


def script(command, body):
    import subprocess

    made = run(command, input=body.encode(), stdin=None)
    if made.returncode:
        raise subprocess.CalledProcessError(made.returncode, command)


def explain(name):
    import inspect

    value = eval(name, core.G)
    try:
        print("Signature: %s%s" % (name, inspect.signature(value)))
    except (TypeError, ValueError):
        pass
    print("Type:      %s" % type(value).__name__)
    print("Docstring:\n%s" % (inspect.getdoc(value) or "<no docstring>"))
