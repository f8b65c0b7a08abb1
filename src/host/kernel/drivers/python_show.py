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
    if method(value, "_ipython_display_"):
        call(value, "_ipython_display_")
        return {}
    data = {}
    if method(value, "_repr_mimebundle_"):
        made = call(value, "_repr_mimebundle_", include=None, exclude=None)
        data.update((made[0] if isinstance(made, tuple) else made) or {})
    for name, mime in METHODS:
        if mime not in data and method(value, name):
            made = call(value, name)
            if isinstance(made, tuple):  # with metadata, which nobody shows
                made = made[0]
            if made is not None:
                data[mime] = made
    if "text/plain" not in data:
        data["text/plain"] = text_of(value)
    if isinstance(value, (dict, list)) and "application/json" not in data:
        data["application/json"] = value
    if isinstance(value, getattr(sys.modules.get("pandas"), "DataFrame", ())):
        data["e2b/data"] = table(value)
    if "matplotlib.figure" in sys.modules and isinstance(value, sys.modules["matplotlib.figure"].Figure):
        data.update(core.figures.forms(value))
    return transportable(data)


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
    """Text as it is, bytes as base64, JSON as JSON; what is too long is left out and said."""
    out, left_out = {}, []
    for mime, value in data.items():
        if value is None:
            continue
        if isinstance(value, (bytes, bytearray)):
            import base64

            value = base64.b64encode(value).decode("ascii")
        if mime == "text/plain":
            out[mime] = core.clip(str(value))
            continue
        if not isinstance(value, str) or mime in ("application/json", "e2b/data", "e2b/chart"):
            value = json_of(value)
            if value is None:
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
    import json

    for attempt in (lambda: value, lambda: plain(value)):
        try:
            text = json.dumps(attempt(), ensure_ascii=False, allow_nan=False)
            return core.Json(json_ascii(text))
        except (TypeError, ValueError, RecursionError):
            pass
    return None


def json_ascii(text):
    if text.isascii():
        return text
    text = text.encode("utf-8", "replace").decode("utf-8")  # half a surrogate pair is no character
    if text.isascii():
        return text
    return "".join(c if c < "\x80" else core.quote(c)[1:-1] for c in text)


def plain(value, depth=0):
    """`value` without what JSON cannot say: not-a-number and infinities are null, times are ISO text."""
    if depth > 100:
        raise ValueError("nested too deeply")
    if isinstance(value, float):
        return value if value - value == 0 else None
    if value is None or isinstance(value, (str, int, bool)):
        return value
    if isinstance(value, dict):
        return {str(k): plain(v, depth + 1) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v, depth + 1) for v in value]
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # a numpy scalar
        return plain(value.item(), depth + 1)
    if hasattr(value, "isoformat"):
        return value.isoformat() if value == value else None
    raise TypeError(type(value).__name__)


def table(frame):
    """A DataFrame by columns, as E2B sends it."""
    if frame.size > 1_000_000:
        return None

    def cell(value):
        try:
            return plain(value)
        except (TypeError, ValueError):
            return None if value is None or value is getattr(sys.modules["pandas"], "NA", None) else str(value)

    return {str(name): [cell(v) for v in frame.iloc[:, at].tolist()] for at, name in enumerate(frame.columns)}


# ---------------------------------------------------------------- display()


class DisplayHandle:
    """Updates are accepted and not shown: E2B drops them too."""

    def __init__(self, display_id=None):
        self.display_id = display_id or "%032x" % id(self)

    def display(self, value, **options):
        display(value, display_id=self.display_id, **options)

    def update(self, value, **options):
        pass


def display(*values, include=None, exclude=None, metadata=None, transient=None, display_id=None, raw=False,
            clear=False, update=False, **others):
    if display_id is True:
        display_id = None
        handle = DisplayHandle()
    else:
        handle = DisplayHandle(display_id) if display_id is not None else None
    if not update:
        for value in values:
            if raw and isinstance(value, dict):
                core.emit_raw(transportable(value))
            else:
                core.emit(value)
    return handle


def publish_display_data(data, metadata=None, *, transient=None, update=False, **others):
    if not update:
        core.emit_raw(transportable(data))


def update_display(value, *, display_id=None, **options):
    pass


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
    """Data with a MIME type of its own."""

    form = None

    def __init__(self, data=None, url=None, filename=None, metadata=None, **options):
        if isinstance(data, str) and filename is None and self.binary and data and "\n" not in data:
            url, filename, data = (data, None, None) if "://" in data else (None, data, None)
        if filename is not None:
            with open(filename, "rb" if self.binary else "r") as file:
                data = file.read()
        self.data, self.url, self.filename, self.metadata = data, url, filename, metadata or {}
        self.options = options

    binary = False

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
            text = self.data.decode("utf-8") if isinstance(self.data, bytes) else self.data
            return {self.form: text[max(text.find("<svg"), 0) :]}

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

        def _repr_mimebundle_(self, include=None, exclude=None):
            if self.data is None:
                return {"text/html": '<img src="%s"/>' % self.url}
            return {"image/jpeg" if bytes(self.data[:2]) == b"\xff\xd8" else "image/png": self.data}

    for made in (HTML, Markdown, Latex, Math, SVG, JSON, Javascript, Pretty, Image):
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
