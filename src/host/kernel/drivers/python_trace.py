"""Tracebacks that look like IPython's: the cell's number, the lines around each call, an arrow at the guilty one.

Compiled by the Python driver when it is first needed; `core` is the driver. The layout follows IPython's
"Context" mode, where a line of context is a *piece*: a whole statement, or the head of a compound one.
"""
import linecache

WIDTH = 75
GUTTER = 7  # columns for line numbers and the arrow
BEFORE, AFTER = 3, 2  # pieces around the guilty one; one less for an exception that caused another
FRAMES_MAX = 40
PIECE_MAX = 6  # lines of a piece that is not the guilty one
PARSED_MAX = 5000  # lines of a file that is parsed for its pieces


def describe(error):
    """Name, value and traceback of what ended a cell."""
    name = type(error).__name__
    core.State.busy = True  # a `__str__` of the cell may run for ever
    try:
        try:
            value = str(error)
        except Exception:
            value = "<exception str() failed>"
        if isinstance(error, SystemExit):
            return name, value, "An exception has occurred, use %%tb to see the full traceback.\n\n%s: %s" % (name, value)
        if isinstance(error, SyntaxError) and not visible(error.__traceback__):
            return name, value, syntax(error)
        return name, value, "\n".join(whole(error))
    except BaseException as broken:
        return name, "<no description: %s>" % type(broken).__name__, name
    finally:
        core.State.busy = False


def visible(traceback):
    """The traceback's entries without the driver's own, from the first that is a cell's, if one is."""
    out, first = [], None
    while traceback is not None:
        if not traceback.tb_frame.f_code.co_filename.startswith(core.FILE[:-1]):
            if first is None and core.is_cells(traceback.tb_frame):
                first = len(out)
            out.append(traceback)
        traceback = traceback.tb_next
    return out[first or 0 :]


def whole(error):
    parts, seen, depth = [], set(), 0
    while True:
        seen.add(id(error))
        parts[:0] = one(error, depth)
        cause, link = error.__cause__, "direct cause of the following exception"
        if cause is None and not error.__suppress_context__:
            cause, link = error.__context__, None
        if cause is None or id(cause) in seen or len(seen) == 10:
            return ["-" * WIDTH] + parts
        depth = 1
        parts.insert(0, "\n%s:\n" % (
            "The above exception was the " + link
            if link
            else "During handling of the above exception, another exception occurred"
        ))
        error = cause


def one(error, depth):
    name = type(error).__name__
    parts = [name + "Traceback (most recent call last)".rjust(WIDTH - len(name))]
    less = 1 if depth else 0
    entries = visible(error.__traceback__)
    at = 0
    while at < len(entries):
        here = where(entries[at])
        same = at
        while same + 1 < len(entries) and where(entries[same + 1]) == here:
            same += 1
        if same - at >= 3:
            parts.append(frame(entries[at], less))
            parts.append(
                "    [... skipping similar frames: %s at line %d (%d times)]\n"
                % (entries[at].tb_frame.f_code.co_name, here[1], same - at - 1)
            )
            at = same
        elif FRAMES_MAX // 2 <= at < len(entries) - FRAMES_MAX // 2:
            if at == FRAMES_MAX // 2:
                parts.append("    [... skipping %d frames]\n" % (len(entries) - FRAMES_MAX))
        else:
            parts.append(frame(entries[at], less))
        at += 1
    if isinstance(error, SyntaxError):
        parts.append(syntax(error).rstrip("\n"))
        return parts
    try:
        text = str(error)
    except Exception:
        text = "<exception str() failed>"
    parts.append("\n".join(["%s: %s" % (name, text)] + [str(n) for n in getattr(error, "__notes__", None) or ()]))
    for inner in getattr(error, "exceptions", None) or ():  # a group
        if isinstance(inner, BaseException):
            parts.append("  | %s: %s" % (type(inner).__name__, inner))
    return parts


def where(entry):
    return entry.tb_frame.f_code, entry.tb_lineno


def place(file, line):
    if file.startswith("<cell "):
        return "Cell In[%s], line %s" % (file[6:-1], line)
    return "File %s:%s" % (file, line)


def frame(entry, less):
    code, number = entry.tb_frame.f_code, entry.tb_lineno
    head = place(code.co_filename, number)
    if code.co_name != "<module>":
        head += ", in %s(%s)" % (getattr(code, "co_qualname", code.co_name), arguments(code))
    lines = linecache.getlines(code.co_filename, entry.tb_frame.f_globals)
    if not 0 < number <= len(lines):
        return head + "\n"
    shown = context(lines, code, number, BEFORE - less, AFTER - less)
    texts = {at: lines[at - 1].rstrip("\n").expandtabs() for at in shown if at}
    indent = min(len(t) - len(t.lstrip()) for t in texts.values() if t.strip())
    out = [head]
    for at in shown:
        if not at:
            out.append("   (...)")
            continue
        digits = str(at)
        if at == number:
            gutter = ("-" * (GUTTER - len(digits) - 2) + "> ").rjust(GUTTER - len(digits)) + digits
        else:
            gutter = digits.rjust(GUTTER)
        out.append("%s %s" % (gutter, texts[at][indent:]))
    return "\n".join(out) + "\n"


def arguments(code):
    count = code.co_argcount + code.co_kwonlyargcount
    names = list(code.co_varnames[:count])
    rest = code.co_varnames[count:]
    if code.co_flags & 4:  # *args
        names.insert(code.co_argcount, "*" + rest[0])
        rest = rest[1:]
    if code.co_flags & 8:  # **options
        names.append("**" + rest[0])
    return ", ".join(names)


def context(lines, code, number, before, after):
    """Numbers of the lines to show; 0 stands for a gap."""
    found = pieces_of(lines) if len(lines) <= PARSED_MAX else None
    guilty = next((at for at, (start, end) in enumerate(found or ()) if start <= number < end), None)
    if guilty is None:
        return range(max(1, number - before), min(len(lines), number + after) + 1)
    first, last = scope_of(lines, code, number)
    inside = [p for p in found if first <= p[0] and p[1] <= last]
    if found[guilty] not in inside:
        inside = found
    at = inside.index(found[guilty])
    shown = []
    for piece in inside[max(0, at - before) : at + after + 1]:
        numbers = list(range(*piece))
        if piece != found[guilty] and len(numbers) > PIECE_MAX:
            numbers = numbers[:3] + [0] + numbers[-2:]
        elif len(numbers) > 60:  # one huge statement: what is around the line
            numbers = [n for n in numbers if abs(n - number) <= 10]
        shown += numbers
    return shown


PARSED = {}


def tree_of(lines):
    key = (len(lines), hash("".join(lines)))
    if key not in PARSED:
        if len(PARSED) > 50:
            PARSED.clear()
        try:
            flags = core.State.flags | core._ast.PyCF_ONLY_AST
            PARSED[key] = compile("".join(lines), "<context>", "exec", flags, dont_inherit=True)
        except Exception:
            PARSED[key] = None
    return PARSED[key]


def bodies(node):
    for field in node._fields:
        body = getattr(node, field, None)
        if isinstance(body, list) and body and hasattr(body[0], "_fields"):
            if isinstance(body[0], (core._ast.stmt, core._ast.excepthandler)) or type(body[0]).__name__ == "match_case":
                yield body


def span(node):
    if type(node).__name__ == "match_case":
        return node.pattern.lineno, span(node.body[-1])[1]
    first = min([node.lineno] + [d.lineno for d in getattr(node, "decorator_list", ())])
    return first, node.end_lineno + 1


def split(node, start, end):
    for body in bodies(node):
        for inner in body:
            for piece in split(inner, *span(inner)):
                if start < piece[0]:
                    yield start, piece[0]
                yield piece
                start = max(start, piece[1])
    if start < end:
        yield start, end


def pieces_of(lines):
    tree = tree_of(lines)
    if tree is None:
        return None
    out = []
    for start, end in split(tree, 1, len(lines) + 1):
        while start < end and not lines[start - 1].strip():
            start += 1
        while start < end and not lines[end - 2].strip():
            end -= 1
        if out and start < out[-1][1]:  # several statements on one line
            out[-1] = (out[-1][0], max(end, out[-1][1]))
        elif start < end:
            out.append((start, end))
    return out


def scope_of(lines, code, number):
    """First line of the function or class around the line, and the line after its last."""
    best = (1, len(lines) + 1)

    def look(node):
        nonlocal best
        for body in bodies(node):
            for inner in body:
                if type(inner).__name__ == "match_case":
                    look(inner)
                    continue
                first, last = span(inner)
                if not first <= number < last:
                    continue
                if isinstance(inner, (core._ast.FunctionDef, core._ast.AsyncFunctionDef, core._ast.ClassDef)):
                    # The line of a definition is outside of it, unless its own code runs on that line.
                    if number > inner.lineno or inner.name == code.co_name:
                        best = (first, last)
                look(inner)

    tree = tree_of(lines)
    if tree is not None and code.co_name != "<module>":
        look(tree)
    return best


def syntax(error):
    """A syntax error in IPython's look."""
    file = error.filename or "<string>"
    out = ["  " + place(file, error.lineno or "unknown")]
    line = error.text or linecache.getline(file, error.lineno or 0)
    if line and line.strip():
        line = line.rstrip("\n")
        out.append("    " + line.strip())
        if error.offset is not None and error.offset > 0:
            indent = len(line) - len(line.lstrip())
            out.append("    " + " " * max(0, min(error.offset - 1, len(line)) - indent) + "^")
    out.append("%s: %s" % (type(error).__name__, error.msg))
    return "\n".join(out) + "\n"


def limit_met(error, value):
    """Which of the sandbox's limits the error speaks of, if any."""
    if isinstance(error, MemoryError):
        return "oom"
    number = error.errno if isinstance(error, OSError) else None
    if number in (27, 28, 122) or "SIGXFSZ" in value:  # EFBIG, ENOSPC, EDQUOT; a program that was ended for it
        return "disk_full"
    if number == 11 and fork_failed(error) or "start new thread" in value:
        return "too_many_processes"
    return None


def fork_failed(error):
    """Whether no process could be made, as against other reasons for "try again" by the guilty line."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None:
        return False
    code = traceback.tb_frame.f_code
    return code.co_name == "_execute_child" or "fork" in linecache.getline(code.co_filename, traceback.tb_lineno)
