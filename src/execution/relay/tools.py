"""Tools of other servers, as functions.

    from tools import github
    commits = github.list_commits(repo="octo/hello")          # waits for the result
    commits = await github.list_commits.async_(repo="...")    # in parallel: asyncio.gather(...)

`dir(tools)` lists the servers, `print(github)` its tools, `help(github.list_commits)` says what one takes. A tool whose name
is no identifier is `github["its-name"]`. `tools.search("what you need")` finds tools. A failed call raises `ToolError`.
"""
import errno as _errno
import inspect as _inspect
import json as _json
import keyword as _keyword
import os as _os
import select as _select
import sys as _sys
import threading as _threading
import time as _time
import types as _types
import weakref as _weakref

_HERE = _os.path.dirname(_os.path.abspath(__file__))
_PIECE = 3900


class ToolError(Exception):
    """A call that failed. `tool` names it; `kind` says how: `tool` (it failed itself), `arguments`, `refused`, `timeout`..."""

    def __init__(self, message, tool=None, kind="tool"):
        super().__init__(message)
        self.tool, self.kind = tool, kind


# ---------------------------------------------------------------- the way to the relay


class _Link:
    """The pipes of this process to one relay. No thread of its own: whoever waits, reads for all."""

    def __init__(self, home):
        self.home, self.pid = home, _os.getpid()
        self.name = "p%d-%s" % (self.pid, _os.urandom(6).hex())
        self.path = _os.path.join(home, "c-" + self.name)
        try:
            with open(_os.path.join(home, "pid")) as file:
                self.relay = int(file.read())
            _os.mkfifo(self.path, 0o600)
            self.out = _os.open(_os.path.join(home, "calls"), _os.O_RDWR | _os.O_NONBLOCK | _os.O_CLOEXEC)
            self.into = _os.open(self.path, _os.O_RDWR | _os.O_NONBLOCK | _os.O_CLOEXEC)
        except (OSError, ValueError):
            raise ToolError("the way to the tools is gone; run the code again", kind="gone") from None
        self.reading, self.buffer = _threading.Lock(), bytearray()
        self.count, self.parts, self.done, self.wake = 0, {}, {}, {}
        self.counting = _threading.Lock()

    def begin(self, secret, message):
        text = _json.dumps(message, allow_nan=False, separators=(",", ":"))
        with self.counting:
            self.count += 1
            call = self.count
        head = ("%s %s %d " % (secret, self.name, call)).encode()
        data = text.encode("ascii")
        for at in range(0, len(data), _PIECE):
            last = at + _PIECE >= len(data)
            self.write(head + (b"." if last else b"+") + data[at : at + _PIECE] + b"\n")
        return call

    def cancel(self, secret, call):
        self.write(("%s %s %d x\n" % (secret, self.name, call)).encode())
        self.parts.pop(call, None)
        self.wake.pop(call, None)

    def write(self, line):
        while True:
            try:
                _os.write(self.out, line)  # whole or not at all
                return
            except OSError as error:
                if error.errno not in (_errno.EAGAIN, _errno.EINTR):
                    raise
            if not _select.select([], [self.out], [], 1.0)[1]:
                self.check()

    def check(self, sent=False):
        try:
            _os.kill(self.relay, 0)
            _os.stat(self.path)
        except OSError:
            text = "the way to the tools broke while the call was under way; the call may have had effects: look before you call again"
            raise ToolError(text if sent else "the way to the tools is gone; run the code again", kind="gone") from None

    def take(self):
        try:
            self.buffer += _os.read(self.into, 1 << 18)
        except OSError as error:
            if error.errno not in (_errno.EAGAIN, _errno.EINTR):
                raise
            return
        end = self.buffer.rfind(b"\n") + 1
        whole = bytes(self.buffer[:end])
        del self.buffer[:end]
        for line in whole.split(b"\n")[:-1]:
            call, _, piece = line.partition(b" ")
            call = int(call)
            self.parts.setdefault(call, []).append(piece[1:])
            if piece[:1] == b".":
                self.done[call] = b"".join(self.parts.pop(call))
                wake = self.wake.pop(call, None)
                if wake is not None:
                    wake()

    def wait(self, call):
        while call not in self.done:
            if not self.reading.acquire(timeout=0.02):
                continue
            try:
                if call in self.done:
                    break
                if _select.select([self.into], [], [], 1.0)[0]:
                    self.take()
                else:
                    self.check(sent=True)
            finally:
                self.reading.release()
        return self.done.pop(call)


_links = {}
_linking = _threading.Lock()


def _link(home):
    key = (home, _os.getpid())
    with _linking:
        if key not in _links:
            _links.clear()  # another relay, or another process after a fork
            _links[key] = _Link(home)
        return _links[key]


_of_thread = _threading.local()
_of_task = _weakref.WeakKeyDictionary()


def _run():
    """Home of the relay and secret of the run that this call belongs to. What an earlier run left going stays that run's."""
    now = _os.environ.get("PATHBOX_TOOLS", "")
    if now.count("|") != 2:
        raise ToolError("no run with tools is under way; write `import tools` in the code of the call that needs them", kind="refused")
    task = None
    if "asyncio" in _sys.modules:
        try:
            task = _sys.modules["asyncio"].current_task()
        except RuntimeError:
            pass
    if task is not None:
        now = _of_task.setdefault(task, now)
    elif _threading.current_thread() is not _threading.main_thread():
        if not hasattr(_of_thread, "run"):
            _of_thread.run = now
        now = _of_thread.run
    home, secret, _ = now.split("|")
    return home, secret


def _value(answer, tool):
    answer = _json.loads(answer)
    if not answer.get("ok"):
        raise ToolError(answer.get("message", "the call failed"), tool=tool, kind=answer.get("kind", "tool"))
    if "text" not in answer:
        return answer.get("value")
    text = answer["text"]
    if text[:1] in "{[":
        try:
            return _json.loads(text)
        except ValueError:
            pass
    return text


def _wait(message):
    home, secret = _run()
    link = _link(home)
    call = link.begin(secret, message)
    try:
        return _value(link.wait(call), message.get("tool"))
    except BaseException as error:
        if not isinstance(error, ToolError):
            link.cancel(secret, call)
        raise


async def _await(message):
    import asyncio

    home, secret = _run()
    link = _link(home)
    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def wake():
        loop.call_soon_threadsafe(lambda: future.done() or future.set_result(None))

    def readable():
        if link.reading.acquire(blocking=False):
            try:
                link.take()
            finally:
                link.reading.release()

    call = link.begin(secret, message)
    link.wake[call] = wake
    if call in link.done:
        wake()
    loop.add_reader(link.into, readable)
    try:
        while call not in link.done:
            await asyncio.wait({future}, timeout=1.0)
            if call not in link.done:
                readable()
                link.check(sent=True)
        return _value(link.done.pop(call), message.get("tool"))
    except BaseException as error:
        if not isinstance(error, ToolError):
            link.cancel(secret, call)
        raise
    finally:
        if not link.wake:
            loop.remove_reader(link.into)


# ---------------------------------------------------------------- servers and their tools


class _Server(_types.ModuleType):
    """The tools of one server."""

    def __getitem__(self, name):
        return self.__dict__["_by_name"][name]

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        known = ", ".join(sorted(self.__dict__.get("_identifiers", ()))[:40])
        raise AttributeError("%s has no tool %r; it has: %s" % (self.__name__, name, known))

    def __dir__(self):
        return sorted(self.__dict__["_identifiers"])

    def __repr__(self):
        return "<tools of %s: %s>" % (self.__dict__["_server"], ", ".join(dir(self)))

    def __str__(self):
        return "\n".join(self.__dict__["_identifiers"][name] for name in dir(self))

    def call(self, name, arguments=None):
        """Calls a tool by its own name, with its arguments as a dictionary."""
        return self[name](arguments or {})


def _arguments(tool, positional, named):
    names = [parameter["name"] for parameter in tool["parameters"]]
    out = {}
    if len(positional) == 1 and isinstance(positional[0], dict) and not named:
        return dict(positional[0])
    if len(positional) > len(names):
        raise TypeError("%s takes %d arguments: %s" % (tool["identifier"], len(names), tool["signature"]))
    out.update(zip(names, positional))
    for name, value in named.items():
        plain = name[:-1] if name not in names and name.endswith("_") and name[:-1] in names else name
        if plain in out:
            raise TypeError("%s was given %r twice" % (tool["identifier"], plain))
        out[plain] = value
    return out


def _function(server, tool):
    name = server + "." + tool["name"]

    def function(*positional, **named):
        return _wait({"tool": name, "arguments": _arguments(tool, positional, named)})

    async def async_(*positional, **named):
        return await _await({"tool": name, "arguments": _arguments(tool, positional, named)})

    parameters = []
    for parameter in tool["parameters"]:
        if parameter["name"].isidentifier() and not _keyword.iskeyword(parameter["name"]):
            default = _inspect.Parameter.empty if parameter["required"] else parameter.get("default", ...)
            parameters.append(_inspect.Parameter(parameter["name"], _inspect.Parameter.KEYWORD_ONLY, default=default, annotation=_Shown(parameter["type"])))
    for made in (function, async_):
        made.__name__ = made.__qualname__ = tool["identifier"]
        made.__module__ = "tools." + tool["module"]
        made.__doc__ = tool["signature"] + "\n\n" + tool["doc"]
        try:
            made.__signature__ = _inspect.Signature(parameters, return_annotation=_Shown(tool["returns"]))
        except ValueError:
            pass
    function.async_ = async_
    return function


class _Shown(str):
    """A type as it is shown."""

    def __repr__(self):
        return str(self)


_servers, _loaded = {}, None


def _begin():
    """Reads the tools of this run, if they are other ones than before."""
    global _loaded
    version = _os.environ.get("PATHBOX_TOOLS", "").rpartition("|")[2]
    if version == _loaded:
        return
    with open(_os.path.join(_HERE, "catalog.json"), encoding="utf-8") as file:
        catalog = _json.load(file)
    present = set()
    for entry in catalog["servers"]:
        present.add(entry["module"])
        server = _servers.get(entry["module"])
        if server is None:
            server = _servers[entry["module"]] = _Server("tools." + entry["module"])
        functions = {tool["identifier"]: _function(entry["server"], tool) for tool in entry["tools"]}
        for old in list(server.__dict__.get("_identifiers", ())):
            server.__dict__.pop(old, None)
        server.__dict__.update(functions)
        server.__dict__["_server"] = entry["server"]
        server.__dict__["_identifiers"] = {tool["identifier"]: tool["signature"] for tool in entry["tools"]}
        server.__dict__["_by_name"] = dict(functions)
        server.__dict__["_by_name"].update((tool["name"], functions[tool["identifier"]]) for tool in entry["tools"])
        server.__doc__ = "Tools of the server %s.\n\n%s" % (entry["server"], server)
        _sys.modules["tools." + entry["module"]] = server
    for gone in set(_servers) - present:
        _sys.modules.pop("tools." + gone, None)
        del _servers[gone]
    _loaded = version


def search(query, limit=5):
    """Tools that fit a sentence best: a list of signatures with what each does."""
    return _wait({"search": query, "limit": limit})


def call(tool, arguments=None):
    """Calls `server.tool` with its arguments as a dictionary."""
    return _wait({"tool": tool, "arguments": arguments or {}})


def __getattr__(name):
    if not name.startswith("__"):
        _begin()
        if name in _servers:
            return _servers[name]
        raise AttributeError("there is no tool server %r; there are: %s" % (name, ", ".join(sorted(_servers)) or "none"))
    raise AttributeError(name)


def __dir__():
    _begin()
    return sorted(_servers) + ["ToolError", "call", "search"]


_begin()
