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
BARE = re.compile(r"^(pip3?|conda|cd|ls|cat|cp|mv|rm|mkdir|rmdir)\s+(.*)$")
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
    found = BARE.match(line)
    if found:
        return call("line", found.group(1), found.group(2))
    found = HELP.match(line)
    if found and "?" in line:
        return found.group(1) + call("explain", found.group(2))
    return None


def translate_cell(source):
    """Python for a cell whose first line is a `%%magic`."""
    head, _, body = source.lstrip().partition("\n")
    magic, _, rest = head[2:].strip().partition(" ")
    return call("cell", magic, rest.strip(), body if not body or body.endswith("\n") else body + "\n")


def call(function, *arguments):
    setattr(builtins, NAME % function, globals()[function])
    return "%s(%s)" % (NAME % function, ", ".join(map(repr, arguments)))


class UsageError(Exception):
    """A magic that is not there, or that was called wrongly."""


class InstallError(Exception):
    """pip ended with an error."""


def options_of(rest, flags, valued):
    """Splits `-n 3 -q code` into {"n": "3", "q": True} and what follows; only these letters are options."""
    found = {}
    while True:
        match = re.match(r"-([%s])(?=\s|$)\s*" % flags, rest) if flags else None
        if match:
            found[match.group(1)] = True
        else:
            match = re.match(r"-([%s])\s*(\S+)\s*" % valued, rest) if valued else None
            if not match:
                return found, rest
            found[match.group(1)] = match.group(2)
        rest = rest[match.end() :]


def evaluate(code, is_cell=False):
    """Value of an expression, or None for statements, in the cells' variables. The code of a cell magic starts on the
    cell's second line."""
    name = "<cell %d>" % core.State.count if is_cell else "<pathbox line>"
    code = "\n" + code if is_cell else code
    try:
        before, last, _ = core.compile_cell(code, name)
    except SyntaxError:
        before, last, _ = core.compile_cell(translate(code, name), name)
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
    if name == "prun":
        return profiled(rest)
    if name == "capture":
        raise UsageError("%capture is a cell magic; did you mean %%capture?")
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
    if name in ("pip", "pip3"):
        return pip(rest)
    if name in ("ls", "cat", "cp", "mv", "rm", "mkdir", "rmdir", "head", "tail", "grep"):
        return system("%s %s" % (name, rest))
    if name in ("sx", "system"):
        return getoutput(rest)
    if name in ("who", "whos"):
        names = [k for k in core.G if not k.startswith("_") and k not in ("In", "Out")]
        print("\t ".join(names))
        return None
    if name in ("reset", "reset_selective"):
        pattern = re.compile(rest.replace("-f", "").strip() if name == "reset_selective" else "")
        for key in [k for k in core.G if not k.startswith("_") and k not in ("In", "Out") and pattern.search(k)]:
            del core.G[key]
        return None
    if name == "run":
        return run_file(rest)
    if name == "history":
        print("\n".join(core.G["In"][1:-1]))
        return None
    if name in ("pinfo", "pinfo2", "pdoc"):
        return explain(rest)
    if name == "load_ext" and rest == "autoreload" or name in ("matplotlib", "config", "autosave", "colors", "xmode"):
        return None  # they set up a notebook that is not there
    if name == "autoreload":
        core.State.reload = rest.split()[:1] not in (["0"], ["off"])
        return None
    if name == "load_ext":
        raise UsageError("extensions of IPython cannot be loaded here: %s" % rest)
    raise UsageError("Line magic function `%%%s` not found." % name)


def cell(name, rest, body):
    if name in ("bash", "sh", "script", "perl", "ruby", "node"):
        command = rest.split() if name == "script" else ["/bin/" + name if name == "sh" else name] + rest.split()
        return script(command, body)
    if name == "time":
        return timed(body, True)
    if name == "timeit":
        return timeit(body, rest)
    if name == "capture":
        return captured(rest, body)
    if name == "prun":
        return profiled(body, True)
    if name in ("python", "python3", "pypy"):
        return script([sys.executable, "-"] + rest.split(), body)
    if name in ("writefile", "file"):
        found = re.match(r"(-a\s+|--append\s+)?[\"']?(.*?)[\"']?$", rest)
        append, path = bool(found.group(1)), os.path.expanduser(found.group(2))
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
    raise UsageError("Cell magic `%%%%%s` not found." % name)


def timed(code, is_cell=False):
    cpu, wall = os.times(), time.perf_counter()
    value = evaluate(code, is_cell)
    wall, end = time.perf_counter() - wall, os.times()
    user, kernel = end[0] - cpu[0], end[1] - cpu[1]
    print("CPU times: user %s, sys: %s, total: %s" % tuple(map(timing, (user, kernel, user + kernel))))
    print("Wall time: %s" % timing(wall))
    return value


def timeit(code, setup=None):
    """`%timeit code`, or `%%timeit setup` with the cell as code."""
    import timeit as module

    options, rest = options_of(code if setup is None else setup, "tcqov", "nrp")
    if setup is None:
        code, rest = rest, ""
    timer = module.Timer(code.strip() or "pass", rest.strip() or "pass", globals=core.G)
    number, repeat = int(options.get("n", 0)), int(options.get("r", 7))
    if not number:
        number, _ = timer.autorange()
    runs = [t / number for t in timer.repeat(repeat, number)]
    mean = sum(runs) / len(runs)
    spread = (sum((r - mean) ** 2 for r in runs) / len(runs)) ** 0.5
    if "q" not in options:
        print("%s ± %s per loop (mean ± std. dev. of %d run%s, %s loop%s each)" % (
            timing(mean), timing(spread), repeat, "s"[: repeat != 1], format(number, ","), "s"[: number != 1]))
    if "o" in options:
        return TimeitResult(number, repeat, min(runs), max(runs), runs, mean, spread)


class TimeitResult:
    """What `%timeit -o` gives."""

    def __init__(self, loops, repeat, best, worst, all_runs, average, stdev):
        self.loops, self.repeat, self.best, self.worst = loops, repeat, best, worst
        self.all_runs, self.timings, self.average, self.stdev = all_runs, all_runs, average, stdev

    def __repr__(self):
        return "<TimeitResult : %s ± %s per loop>" % (timing(self.average), timing(self.stdev))


def profiled(code, is_cell=False):
    import cProfile
    import pstats

    profile = cProfile.Profile()
    value = profile.runcall(evaluate, code, is_cell)
    pstats.Stats(profile, stream=sys.stdout).sort_stats("tottime").print_stats(30)
    return value


class CapturedIO:
    """What `%%capture name` leaves in `name`."""

    def __init__(self, stdout, stderr, outputs):
        self._stdout, self._stderr, self.outputs = stdout, stderr, outputs

    stdout = property(lambda self: self._stdout.getvalue())
    stderr = property(lambda self: self._stderr.getvalue())

    def __str__(self):
        return self.stdout

    def show(self):
        sys.stdout.write(self.stdout)
        sys.stderr.write(self.stderr)
        for data in self.outputs:
            core.emit_raw(data)

    __call__ = show


def captured(rest, body):
    import io

    words = rest.split()
    kept = {word[5:] for word in words if word.startswith("--no-")}  # what is shown as ever
    names = [word for word in words if not word.startswith("--")]
    out, err, outputs = io.StringIO(), io.StringIO(), []
    before = sys.stdout, sys.stderr
    if "stdout" not in kept:
        sys.stdout = out
    if "stderr" not in kept:
        sys.stderr = err
    if "display" not in kept:
        core.State.capture = outputs
    try:
        value = evaluate(body, True)
        if value is not None:
            core.emit(value, "display" in kept)
        if "matplotlib.pyplot" in sys.modules:
            core.figures.show_all()
    finally:
        sys.stdout, sys.stderr = before
        core.State.capture = None
    if names:
        core.G[names[0]] = CapturedIO(out, err, outputs)


def run_file(rest):
    """`%run file arguments`: as a program, whose variables are there afterwards."""
    import runpy
    import shlex

    words = [word for word in shlex.split(rest)]
    path = os.path.expanduser(words[0])
    argv, directory = sys.argv, os.path.dirname(os.path.abspath(path))
    sys.argv = words
    sys.path.insert(0, directory)
    try:
        made = runpy.run_path(path, run_name="__main__")
    finally:
        sys.argv = argv
        if directory in sys.path:
            sys.path.remove(directory)
    core.G.update((key, value) for key, value in made.items() if not key.startswith("__"))


def pip(rest):
    """pip for the cells' own Python; an error when it fails."""
    status = run(["/bin/bash", "-c", '"%s" -m pip %s' % (sys.executable, expand(rest))]).returncode
    if not status:
        return
    why = "pip ended with exit code %d" % status
    if not has_network() and re.match(r"\s*(install|download|wheel)\b", rest):
        why += ". This sandbox has no network, so packages cannot be fetched; `%pip list` shows what is here"
    raise InstallError(why)


def has_network():
    """Whether there is a way out: a proxy, or an interface that is not the loopback."""
    import socket

    proxies = any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"))
    return proxies or any(name != "lo" for _, name in socket.if_nameindex())


def reload_changed():
    """`%autoreload`: imports modules again whose file in the working directory or below has changed."""
    import importlib

    here = os.getcwd() + os.sep
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if not file or not os.path.abspath(file).startswith(here):
            continue
        try:
            changed = os.stat(file).st_mtime_ns
        except OSError:
            continue
        if RELOADED.setdefault(file, changed) != changed:
            RELOADED[file] = changed
            importlib.reload(module)


RELOADED = {}


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
