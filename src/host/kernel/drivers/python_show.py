"""What a value looks like: its text as IPython would print it, and every richer form it offers.

Compiled by the Python driver when it is first needed; `core` is the driver.
"""
import collections
import sys
import types

# ---------------------------------------------------------------- the forms of a value

METHODS = (
    ("_repr_html_", "text/html"),
    ("_repr_markdown_", "text/markdown"),
    ("_repr_svg_", "image/svg+xml"),
    ("_repr_png_", "image/png"),
    ("_repr_jpeg_", "image/jpeg"),
    ("_repr_pdf_", "application/pdf"),
    ("_repr_latex_", "text/latex"),
    ("_repr_json_", "application/json"),
    ("_repr_javascript_", "application/javascript"),
    ("_repr_e2b_data_", "e2b/data"),
    ("_repr_e2b_chart_", "e2b/chart"),
)


def bundle(value):
    """Every form of `value` by MIME type, ready for a frame; empty when it displayed itself."""
    data = core.charts.forms(value)  # of a chart that is not matplotlib's
    if data:
        return transportable(data)
    if method(value, "_ipython_display_"):
        call(value, "_ipython_display_")
        return {}
    if method(value, "_repr_mimebundle_"):
        made = call(value, "_repr_mimebundle_", include=None, exclude=None)
        data.update((made[0] if isinstance(made, tuple) else made) or {})
    for name, mime in METHODS:
        if mime not in data and method(value, name):
            made = call(value, name)
            if isinstance(made, tuple):  # with metadata, which is not shown
                made = made[0]
            if made is not None:
                data[mime] = made
    if "text/plain" not in data:
        data["text/plain"] = text_of(value)
    if type(value) is str:
        data.update(core.exact_text(value, data["text/plain"]))
    if isinstance(value, (dict, list)) and "application/json" not in data:
        data["application/json"] = value
    if is_a(value, "pandas", "DataFrame"):
        data["e2b/data"] = table(value)
    elif is_a(value, "pandas.io.formats.style", "Styler") and hasattr(value, "to_string"):
        data["text/plain"] = value.to_string()  # its repr is an address
    elif is_a(value, "matplotlib.figure", "Figure"):
        data.update(core.figures.forms(value))
    elif is_a(value, "PIL.Image", "Image") and "image/png" in data:
        data.pop("image/jpeg", None)  # the same picture, less exactly
    return transportable(data)


def is_a(value, module, name):
    """Whether it is an instance of a class whose module somebody has imported."""
    return isinstance(value, getattr(sys.modules.get(module), name, ()))


def method(value, name):
    """Whether `value` has the method; an object that answers to any name has none."""
    if isinstance(value, type):
        return None
    try:
        found = getattr(value, name, None)
        if found is None or callable(getattr(value, "_ipython_canary_method_should_not_exist_", None)):
            return None
        return callable(found)
    except Exception:
        return None


def call(value, name, **options):
    try:
        try:
            return getattr(value, name)(**options)
        except TypeError:
            if not options:
                raise
            return getattr(value, name)()
    except NotImplementedError:
        return None
    except Exception as error:
        print("%s.%s failed: %s: %s" % (type(value).__name__, name, type(error).__name__, error), file=sys.stderr)
        return None


def transportable(data):
    """Text as it is, bytes as base64, JSON as JSON; what is too long, or what JSON cannot say, is left out and said."""
    out, left_out = {}, []
    for mime in sorted(data, key="text/plain".__eq__):  # the text last, for what is said of the others
        value = data[mime]
        if value is None:
            continue
        if isinstance(value, (bytes, bytearray)):
            import base64

            value = base64.b64encode(value).decode("ascii")
        if mime == "text/plain":
            out[mime] = core.clip(str(value))
            continue
        if mime in ("application/json", "e2b/data", "e2b/chart") or not isinstance(value, str):
            value = value if isinstance(value, core.Json) else json_of(value)
            if value is None:
                if mime == "application/json" and str(data.get("text/plain", " object>")).endswith(" object>"):
                    data = {**data, "text/plain": text_of(data[mime])}  # an object that only has this form
                elif not mime.startswith(("e2b/", "application/json")):
                    left_out.append("%s left out, because JSON cannot hold it" % mime)
                continue
        size = len(value.text if isinstance(value, core.Json) else value)
        if size > core.TEXT_MAX:
            left_out.append("%s of %d characters left out" % (mime, size))
        else:
            out[mime] = value
    if left_out:
        out["text/plain"] = "%s\n[%s]" % (out.get("text/plain", ""), "; ".join(left_out))
    return out


def json_of(value):
    """JSON that holds exactly `value`; `None` where there is none."""
    import json

    try:
        return core.Json(json.dumps(exact(value), allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        return None


SIMPLE = {int, bool, type(None)}


def exact(value, depth=0):
    """`value` made of what JSON has, if nothing is lost by that: no not-a-number, no infinities, no two keys that would
    be one, no half of a surrogate pair. Times are ISO text, tuples are lists, whole numbers as keys are text."""
    kind = type(value)
    if kind in SIMPLE:
        return value
    if kind is str:
        if not value.isascii():
            value.encode()
        return value
    if kind is float:
        if value - value != 0:
            raise ValueError("not a number, or infinite")
        return value
    if depth > 100:
        raise ValueError("nested too deeply")
    if isinstance(value, (list, tuple)):
        if set(map(type, value)) <= SIMPLE:
            return value
        return [exact(item, depth + 1) for item in value]
    if isinstance(value, dict):
        keys = [key if type(key) is str else str(key) if type(key) is int else exact_key(key) for key in value]
        if len(set(keys)) < len(keys):
            raise ValueError("two keys would be one")
        return dict(zip(map(exact, keys), [exact(item, depth + 1) for item in value.values()]))
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item") and type(value.item()) is not kind:  # numpy's scalars
        return exact(value.item(), depth + 1)
    if hasattr(value, "isoformat") and value == value:
        return value.isoformat()
    raise TypeError(kind.__name__)


def exact_key(key):
    """A key that is neither text nor a whole number of Python's."""
    if getattr(key, "ndim", None) == 0 and type(key.item()) in (int, str):
        return str(key.item())
    if hasattr(key, "isoformat") and key == key:
        return key.isoformat()
    raise TypeError("a key that is not a string")


def table(frame):
    """A DataFrame by columns, as E2B sends it; `None` where JSON would say something else. What is missing is null."""
    names = [str(name) for name in frame.columns]
    if frame.size > 1_000_000 or len(set(names)) < len(names):
        return None
    pandas = sys.modules["pandas"]
    try:
        return {name: column(frame.iloc[:, at], pandas) for at, name in enumerate(names)}
    except (TypeError, ValueError):
        return None


def column(values, pandas):
    kind, cells = values.dtype.kind, values.tolist()
    if kind in "biu":
        return cells
    out = []
    for cell in cells:
        if cell is pandas.NaT or cell is getattr(pandas, "NA", None) or cell is None:
            out.append(None)
        elif isinstance(cell, float) and cell != cell:
            if kind == "O" and any(other is None for other in cells):
                raise ValueError("None and not-a-number would be the same")
            out.append(None)
        else:
            try:
                out.append(exact(cell))
            except TypeError:
                out.append(str(cell))
    return out


# ---------------------------------------------------------------- display()


class DisplayHandle:
    """What `display(.., display_id=..)` gives. E2B drops updates; here the last of a cell is shown at its end."""

    def __init__(self, display_id=None):
        self.display_id = display_id or "%032x" % id(self)

    def display(self, value, **options):
        display(value, display_id=self.display_id, **options)

    def update(self, value, **options):
        update_display(value, display_id=self.display_id, **options)


def display(*values, include=None, exclude=None, metadata=None, transient=None, display_id=None, raw=False,
            clear=False, update=False, **others):
    if display_id is True:
        display_id = None
        handle = DisplayHandle()
    else:
        handle = DisplayHandle(display_id) if display_id is not None else None
    for value in values:
        data = transportable(value) if raw and isinstance(value, dict) else None
        if update:
            core.State.updates[display_id] = bundle(value) if data is None else data
        elif data is not None:
            core.emit_raw(data)
        else:
            core.emit(value)
    return handle


def publish_display_data(data, metadata=None, *, transient=None, update=False, **others):
    if update:
        core.State.updates[(transient or {}).get("display_id")] = transportable(data)
    else:
        core.emit_raw(transportable(data))


def update_display(value, *, display_id=None, **options):
    display(value, display_id=display_id, update=True, **options)


def clear_output(wait=False):
    pass


def adopt(module):
    """IPython is there, but no IPython shell: its `display` must speak to us."""
    for made in (display, publish_display_data, update_display, clear_output):
        if hasattr(module, made.__name__):
            setattr(module, made.__name__, made)


# ---------------------------------------------------------------- IPython's names, when it is missing


def ipython_spec(name):
    known = {
        "IPython": define_ipython,
        "IPython.core": lambda module: None,
        "IPython.core.display": define_display,
        "IPython.core.getipython": lambda module: setattr(module, "get_ipython", lambda: None),
        "IPython.display": define_display,
    }
    if name not in known:
        return None
    return core.module_spec(name, known[name], is_package=name in ("IPython", "IPython.core"))


def define_ipython(module):
    module.version_info, module.__version__ = (9, 0, 0, ""), "9.0.0"
    module.get_ipython = lambda: None  # no shell: libraries then leave their hooks alone
    module.display = core.display


class DisplayObject:
    """Data with a MIME type of its own: given as such, as the name of a file that exists, or as an address."""

    form, binary = None, False

    def __init__(self, data=None, url=None, filename=None, metadata=None, **options):
        import os

        if isinstance(data, os.PathLike):
            data = os.fspath(data)
        if isinstance(data, str) and url is None and filename is None:
            if data.startswith(("http://", "https://")):
                data, url = None, data
            elif len(data) < 4096 and "\0" not in data and "\n" not in data and os.path.isfile(data):
                data, filename = None, data
            elif self.binary:
                raise FileNotFoundError("no such file: %r" % data[:200])
        self.data, self.url, self.filename, self.metadata = data, url, filename, metadata or {}
        self.options = options
        self.reload()

    def reload(self):
        if self.filename is not None:
            with open(self.filename, "rb") as file:
                self.data = file.read()
        elif self.url is not None and self.fetched():
            from urllib.request import urlopen

            with urlopen(self.url) as answer:
                self.data = answer.read()
        if isinstance(self.data, bytes) and not self.binary:
            self.data = self.data.decode("utf-8", "replace")

    def fetched(self):
        return True

    def __repr__(self):
        return "<IPython.core.display.%s object>" % type(self).__name__

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {self.form: self.data}


def define_display(module):
    class HTML(DisplayObject):
        form = "text/html"

        def __html__(self):
            return self.data

    class Markdown(DisplayObject):
        form = "text/markdown"

    class Latex(DisplayObject):
        form = "text/latex"

    class Math(Latex):
        def _repr_mimebundle_(self, include=None, exclude=None):
            return {self.form: "$\\displaystyle %s$" % self.data.strip("$")}

    class SVG(DisplayObject):
        form = "image/svg+xml"

        def _repr_mimebundle_(self, include=None, exclude=None):
            return {self.form: self.data[max(self.data.find("<svg"), 0) :]}

    class JSON(DisplayObject):
        form = "application/json"

        def _repr_mimebundle_(self, include=None, exclude=None):
            value = self.data
            if isinstance(value, str):
                import json

                value = json.loads(value)
            return {self.form: value}

    class Javascript(DisplayObject):
        form = "application/javascript"

    class Pretty(DisplayObject):
        form = "text/plain"

    class Image(DisplayObject):
        binary = True

        def fetched(self):
            return bool(self.options.get("embed"))

        def _repr_mimebundle_(self, include=None, exclude=None):
            if self.data is None:
                return {"text/html": '<img src="%s"/>' % self.url}
            head = bytes(self.data[:12])
            for start, mime in ((b"\xff\xd8", "image/jpeg"), (b"GIF8", "image/gif"), (b"RIFF", "image/webp"), (b"%PDF", "application/pdf")):
                if head.startswith(start):
                    return {mime: self.data}
            if head.lstrip().startswith((b"<svg", b"<?xml")):
                return {"image/svg+xml": bytes(self.data).decode("utf-8", "replace")}
            return {"image/png": self.data}

    class Video(DisplayObject):
        binary = True

        def fetched(self):
            return False

        def _repr_mimebundle_(self, include=None, exclude=None):
            if self.data is None:
                return {"text/html": '<video src="%s" controls></video>' % self.url}
            return {"video/mp4": self.data}

    class Audio(Video):
        def __init__(self, data=None, rate=None, **options):
            if rate is not None:
                import io, wave, array

                peak = max((abs(float(v)) for v in data), default=0) or 1
                samples = array.array("h", (int(float(v) / peak * 32767) for v in data))
                buffer = io.BytesIO()
                with wave.open(buffer, "wb") as file:
                    file.setnchannels(1)
                    file.setsampwidth(2)
                    file.setframerate(rate)
                    file.writeframes(samples.tobytes())
                data = buffer.getvalue()
            super().__init__(data, **options)

        def _repr_mimebundle_(self, include=None, exclude=None):
            if self.data is None:
                return {"text/html": '<audio src="%s" controls></audio>' % self.url}
            return {"audio/wav" if bytes(self.data[:4]) == b"RIFF" else "audio/mpeg": self.data}

    class IFrame(DisplayObject):
        form = "text/html"

        def __init__(self, src, width="100%", height=300, **options):
            self.src = src
            super().__init__('<iframe src="%s" width="%s" height="%s"></iframe>' % (src, width, height))

    class FileLink(DisplayObject):
        form = "text/plain"

        def __init__(self, path, **options):
            super().__init__("file: %s" % path)

    for made in (HTML, Markdown, Latex, Math, SVG, JSON, Javascript, Pretty, Image, Video, Audio, IFrame, FileLink):
        made.__module__ = "IPython.core.display"
        setattr(module, made.__name__, made)
    for made in (DisplayObject, DisplayHandle, display, publish_display_data, update_display, clear_output):
        setattr(module, made.__name__, made)
    module.TextDisplayObject = DisplayObject

    def shown_as(make):
        return lambda *values, **options: display(*[v if isinstance(v, make) else make(v) for v in values])

    for made in (HTML, Markdown, Latex, SVG, JSON, Javascript):
        setattr(module, "display_" + made.__name__.lower(), shown_as(made))
    module.__all__ = [name for name in vars(module) if not name.startswith("_")]


# ---------------------------------------------------------------- text, as IPython lays it out

WIDTH, LENGTH_MAX = 79, 1000


def text_of(value):
    try:
        return pretty(value)
    except RecursionError:
        return "<%s: nested too deeply to show>" % type(value).__name__
    except Exception as error:
        return "<%s: repr failed with %s: %s>" % (type(value).__name__, type(error).__name__, error)


def pretty(value):
    printer = Printer()
    printer.pretty(value)
    printer.flush()
    return "".join(printer.out)


class Group:
    def __init__(self, depth):
        self.depth, self.breaks, self.broken = depth, collections.deque(), False


class Printer:
    """Breaks the outermost groups first until a line fits, as Oppen's "Prettyprinting" (1980) does.

    The methods are those that `_repr_pretty_` methods call.
    """

    def __init__(self):
        self.out, self.width, self.waiting, self.waiting_width = [], 0, collections.deque(), 0
        self.groups, self.indentation, self.stack = [Group(0)], 0, []
        self.by_depth = [[self.groups[0]]]

    # Waiting items are text, or (separator, indentation, group) for a place that may become a new line.

    def text(self, text):
        if self.waiting:
            self.waiting.append(text)
            self.waiting_width += len(text)
            self._break_outer()
        else:
            self.out.append(text)
            self.width += len(text)

    def breakable(self, sep=" "):
        group = self.groups[-1]
        if group.broken:
            self.break_()
        else:
            group.breaks.append(None)
            self.waiting.append((sep, self.indentation, group))
            self.waiting_width += len(sep)
            self._break_outer()

    def break_(self):
        self.flush()
        self.out.append("\n" + " " * self.indentation)
        self.width = self.indentation

    def begin_group(self, indent=0, open=""):
        if open:
            self.text(open)
        group = Group(self.groups[-1].depth + 1)
        self.groups.append(group)
        while len(self.by_depth) <= group.depth:
            self.by_depth.append([])
        self.by_depth[group.depth].append(group)
        self.indentation += indent

    def end_group(self, dedent=0, close=""):
        self.indentation -= dedent
        group = self.groups.pop()
        if not group.breaks and group in self.by_depth[group.depth]:
            self.by_depth[group.depth].remove(group)
        if close:
            self.text(close)

    def group(self, indent=0, open="", close=""):
        printer = self

        class Scope:
            def __enter__(self):
                printer.begin_group(indent, open)

            def __exit__(self, *_):
                printer.end_group(indent, close)

        return Scope()

    def indent(self, by):
        printer = self

        class Scope:
            def __enter__(self):
                printer.indentation += by

            def __exit__(self, *_):
                printer.indentation -= by

        return Scope()

    def flush(self):
        while self.waiting:
            self._write_first()
        self.waiting_width = 0

    def _write_first(self):
        item = self.waiting.popleft()
        if isinstance(item, str):
            self.out.append(item)
            self.width += len(item)
            self.waiting_width -= len(item)
            return
        sep, indentation, group = item
        group.breaks.popleft()
        self.waiting_width -= len(sep)
        if group.broken:
            self.out.append("\n" + " " * indentation)
            self.width = indentation
        else:
            if not group.breaks and group in self.by_depth[group.depth]:
                self.by_depth[group.depth].remove(group)
            self.out.append(sep)
            self.width += len(sep)

    def _break_outer(self):
        while self.width + self.waiting_width > WIDTH:
            group = self._outermost()
            if group is None:
                return
            while group.breaks:
                self._write_first()
            while self.waiting and isinstance(self.waiting[0], str):
                self._write_first()

    def _outermost(self):
        for level in self.by_depth:
            for at, group in enumerate(level):
                if group.breaks:
                    del level[at]
                    group.broken = True
                    return group
            for group in level:
                group.broken = True
            del level[:]
        return None

    def pretty(self, value):
        known = id(value)
        cycle = known in self.stack
        self.stack.append(known)
        self.begin_group()
        try:
            for cls in type(value).__mro__ if not isinstance(value, type) else (type,):
                write = WRITERS.get(cls) or WRITERS_BY_NAME.get((cls.__module__, cls.__name__))
                if write:
                    return write(self, value, cycle)
                if "_repr_pretty_" in cls.__dict__ and callable(cls._repr_pretty_):
                    return cls._repr_pretty_(value, self, cycle)
                if cls is not object and callable(cls.__dict__.get("__repr__")):
                    return write_repr(self, value, cycle)
            self.begin_group(1, "<")
            self.pretty(type(value))
            self.text(" at 0x%x" % known)
            self.end_group(1, ">")
        finally:
            self.end_group()
            self.stack.pop()


def write_repr(printer, value, cycle=False):
    with printer.group():
        for at, line in enumerate(repr(value).splitlines()):
            if at:
                printer.break_()
            printer.text(line)


def items_of(printer, values):
    for at, value in enumerate(values):
        if at:
            printer.text(",")
            printer.breakable()
        if at >= LENGTH_MAX:
            printer.text("...")
            return
        yield value


def sequence(start, end):
    def write(printer, value, cycle):
        if cycle:
            return printer.text(start + "..." + end)
        printer.begin_group(len(start), start)
        for item in items_of(printer, value):
            printer.pretty(item)
        if isinstance(value, tuple) and len(value) == 1:
            printer.text(",")
        printer.end_group(len(start), end)

    return write


def set_like(start, end, empty):
    def write(printer, value, cycle):
        if cycle:
            return printer.text(start + "..." + end)
        if not value:
            return printer.text(empty)
        items = value
        if len(value) < LENGTH_MAX:
            try:
                items = sorted(value)
            except Exception:
                try:
                    items = sorted(value, key=str)
                except Exception:
                    pass
        printer.begin_group(len(start), start)
        for item in items_of(printer, items):
            printer.pretty(item)
        printer.end_group(len(start), end)

    return write


def mapping(start, end):
    def write(printer, value, cycle):
        if cycle:
            return printer.text(start + "..." + end)
        printer.begin_group(len(start), start)
        for key in items_of(printer, value.keys()):
            printer.pretty(key)
            printer.text(": ")
            printer.pretty(value[key])
        printer.end_group(len(start), end)

    return write


def write_call(printer, name, *positional, **named):
    printer.begin_group(len(name) + 1, name + "(")
    at = 0
    for key, value in [(None, v) for v in positional] + list(named.items()):
        if at:
            printer.text(",")
            printer.breakable()
        at += 1
        if key:
            with printer.group(len(key) + 1, key + "="):
                printer.pretty(value)
        else:
            printer.pretty(value)
    printer.end_group(len(name) + 1, ")")


def write_type(printer, value, cycle):
    if next(m for m in type(value).__mro__ if "__repr__" in vars(m)) is not type:
        return write_repr(printer, value)
    try:
        name = value.__qualname__
    except Exception:
        name = value.__name__
    module = getattr(value, "__module__", None)
    printer.text(name if module in (None, "builtins") else "%s.%s" % (module, name))


def write_function(printer, value, cycle):
    import inspect

    name = getattr(value, "__qualname__", value.__name__)
    if value.__module__ and value.__module__ != "builtins":
        name = "%s.%s" % (value.__module__, name)
    try:
        name += str(inspect.signature(value))
    except (ValueError, TypeError):
        pass
    printer.text("<function %s>" % name)


def write_exception(printer, value, cycle):
    cls = type(value)
    name = cls.__qualname__ if cls.__module__ == "builtins" else "%s.%s" % (cls.__module__, cls.__qualname__)
    if cycle:
        return printer.text(name + "(...)")
    write_call(printer, name, *getattr(value, "args", ()))


def of_collection(arguments):
    def write(printer, value, cycle):
        if cycle:
            return printer.text(type(value).__name__ + "(...)")
        positional, named = arguments(value)
        write_call(printer, type(value).__name__, *positional, **named)

    return write


WRITERS = {
    int: write_repr,
    float: write_repr,
    str: write_repr,
    bytes: write_repr,
    tuple: sequence("(", ")"),
    list: sequence("[", "]"),
    dict: mapping("{", "}"),
    set: set_like("{", "}", "set()"),
    frozenset: set_like("frozenset({", "})", "frozenset()"),
    type: write_type,
    types.FunctionType: write_function,
    types.BuiltinFunctionType: write_function,
    types.MappingProxyType: mapping("mappingproxy({", "})"),
    types.SimpleNamespace: lambda p, v, cycle: p.text("namespace(...)")
    if cycle
    else write_call(p, "namespace", **v.__dict__),
    BaseException: write_exception,
    type(sys.modules["os"].environ): mapping("environ{", "}"),
}
WRITERS_BY_NAME = {
    ("collections", "defaultdict"): of_collection(lambda v: ((v.default_factory, dict(v)), {})),
    ("collections", "OrderedDict"): of_collection(lambda v: ((list(v.items()),) if v else (), {})),
    ("collections", "Counter"): of_collection(lambda v: ((dict(v),) if v else (), {})),
    ("collections", "deque"): of_collection(
        lambda v: ((list(v),), {} if v.maxlen is None else {"maxlen": v.maxlen})
    ),
}
