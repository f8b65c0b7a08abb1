"""The caller's Python with `params` bound, in a namespace of its own.

Its value is the value of the last expression, or the variable `result`. An exception is an answer too: name, message
and the caller's own lines.
"""
import ast
import decimal
import traceback
from decimal import Decimal

core = use("core")

FILE = "<analysis>"
MOST_VALUES = 200000
MOST_DEPTH = 50
SHOWN_ROWS, SHOWN_COLUMNS = 200, 30


def run(p):
    params = convert_params(p.get("params", {}), p.get("numbers", "float") == "float")
    scope = {"__name__": "__main__", "params": params}
    output = {"success": True, "result": None, "error": None}
    with decimal.localcontext(decimal.Context(prec=28, rounding=decimal.ROUND_HALF_EVEN)):
        try:
            output["result"] = Plain().of(evaluate(p["code"], scope))
        except (Exception, SystemExit) as error:
            output.update(success=False, error=told(error, p["code"]))
    return core.Result(output, lambda: tables(output), lambda: sentences(output),
                       "Computed by the caller's code; Pathbox rounds nothing.")


def evaluate(code, scope):
    tree = ast.parse(code, FILE)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, FILE, "exec"), scope)
    value = eval(compile(ast.Expression(last.value), FILE, "eval"), scope) if last is not None else None
    return scope["result"] if value is None and "result" in scope else value


def convert_params(value, to_float):
    if isinstance(value, Decimal):
        return float(value) if to_float else value
    if isinstance(value, dict):
        return {key: convert_params(item, to_float) for key, item in value.items()}
    if isinstance(value, list):
        return [convert_params(item, to_float) for item in value]
    return value


def told(error, code):
    lines = code.splitlines()
    frames = []
    if isinstance(error, SyntaxError) and error.filename == FILE and error.lineno:
        frames.append(error.lineno)
    else:
        frames = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == FILE]
    shown = frames if len(frames) <= 20 else frames[:10] + frames[-10:]
    trace = ["line %d: %s" % (n, core.clip(lines[n - 1], 200) if 0 < n <= len(lines) else "") for n in shown]
    try:
        message = str(error)
    except Exception:
        message = ""
    return {"name": type(error).__name__, "message": message[:2000], "traceback": "\n".join(trace)}


class Plain:
    """A value in JSON's terms; what has no such form is its `repr`. Bounded in depth and count."""

    def __init__(self):
        self.count = 0

    def of(self, value, depth=0):
        self.count += 1
        if self.count > MOST_VALUES:
            raise ValueError("the result has more than %d values" % MOST_VALUES)
        if depth > MOST_DEPTH:
            raise ValueError("the result is nested more than %d levels deep" % MOST_DEPTH)
        kind = type(value)
        if value is None or kind in (bool, str, int, float):
            return value
        if isinstance(value, (Decimal, core.datetime.date, core.datetime.time)):
            return core.to_json(value)
        if isinstance(value, dict):
            names = list(map(str, value))
            if len(set(names)) < len(names):  # 1 and "1" are two keys
                names = list(map(repr, value))
            return {name: self.of(item, depth + 1) for name, item in zip(names, value.values())}
        if isinstance(value, (list, tuple)):
            return [self.of(item, depth + 1) for item in value]
        if isinstance(value, (set, frozenset)):
            return sorted((self.of(item, depth + 1) for item in value), key=str)
        if isinstance(value, (bool, int, float, str)):
            return next(base(value) for base in (bool, int, float, str) if isinstance(value, base))
        return self.foreign(value, depth)

    def foreign(self, value, depth):
        """Tables, arrays and scalars of numpy and pandas by the methods they share. An index that only counts rows is none."""
        if hasattr(type(value), "reset_index") and list(value.index) != list(range(len(value))):
            value = value.rename_axis([None] * value.index.nlevels) if clash(value) else value
            value = value.reset_index()
        if hasattr(type(value), "to_dict") and hasattr(value, "columns"):
            columns = list(map(str, value.columns))
            if len(set(columns)) < len(columns):
                return self.of({"columns": columns, "rows": list(value.itertuples(index=False, name=None))}, depth + 1)
            return self.of(value.to_dict("records"), depth + 1)
        if hasattr(type(value), "tolist"):
            return self.of(value.tolist(), depth + 1)
        if hasattr(type(value), "item"):
            return self.of(value.item(), depth + 1)
        return repr(value)[:2000]


def clash(value):
    """Whether a level of the index has the name of a column."""
    return bool(set(value.index.names) & set(getattr(value, "columns", [getattr(value, "name", None)])))


def tables(output):
    if output["error"]:
        return [core.Table("The code failed", ["error", "message", "where"], [[output["error"]["name"], output["error"]["message"], output["error"]["traceback"]]])]
    result = output["result"]
    if isinstance(result, list) and result and all(isinstance(row, dict) for row in result):
        names = list(dict.fromkeys(name for row in result[:SHOWN_ROWS] for name in row))[:SHOWN_COLUMNS]
        sign = lambda name: "#" if all(isinstance(row.get(name), (int, float)) for row in result[:SHOWN_ROWS]) else ""
        title = "Result" if len(result) <= SHOWN_ROWS else "The first %d of %d rows" % (SHOWN_ROWS, len(result))
        return [core.Table(title, [sign(name) + name for name in names], [[row.get(name) for name in names] for row in result[:SHOWN_ROWS]])]
    if isinstance(result, dict):
        return [core.Table("Result", ["name", "value"], [[name, value] for name, value in list(result.items())[:SHOWN_ROWS]])]
    return [core.Table("Result", ["value"], [[result]])]


def sentences(output):
    if output["error"]:
        return ["The code failed: %s: %s" % (output["error"]["name"], core.clip(output["error"]["message"], 500)), output["error"]["traceback"]]
    result = output["result"]
    if isinstance(result, dict):
        return ["%s is %s." % (core.clip(name), core.clip(core.cell(value), 300)) for name, value in list(result.items())[:SHOWN_ROWS]] or ["The result is empty."]
    if isinstance(result, list):
        return ["The result has %d items: %s." % (len(result), core.clip(core.cell(result[:20]), 1000))]
    return ["The result is %s." % core.clip(core.cell(result), 2000)]
