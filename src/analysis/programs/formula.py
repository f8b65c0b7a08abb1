"""Arithmetic on named numbers, in decimal: the caller's expressions are read as a syntax tree and walked, never run."""
import ast
import decimal
from decimal import Decimal

core = use("core")

MAX_DIGITS = 60  # before the decimal point; a larger number is refused
FUNCTIONS = {"min": (1, 50), "max": (1, 50), "abs": (1, 1), "round": (1, 2), "floor": (1, 1), "ceil": (1, 1)}
COMPARE = {ast.Lt: lambda a, b: a < b, ast.LtE: lambda a, b: a <= b, ast.Gt: lambda a, b: a > b,
           ast.GtE: lambda a, b: a >= b, ast.Eq: lambda a, b: a == b, ast.NotEq: lambda a, b: a != b}


def run(p):
    rounding = core.Rounding(p["rounding"]) if "rounding" in p else None
    core.unique(p["formulas"], "formulas")
    values = {name: Decimal(number) for name, number in p["values"].items()}
    results = {}
    for index, spec in enumerate(p["formulas"]):
        path = "formulas[%d].expression" % index
        if spec["id"] in values:
            raise core.Refused("formulas[%d].id" % index, "%r is already a value" % core.clip(spec["id"]))
        result = Expression(spec["expression"], path).value(values)
        if isinstance(result, bool):
            result = core.ONE if result else core.ZERO
        values[spec["id"]] = result
        results[spec["id"]] = rounding(result) if rounding else result
    output = {"results": {name: shorten(value) for name, value in results.items()}}
    stated = "rounded to %s" % rounding if rounding else "not rounded (60 digits, 12 places shown)"
    return core.Result(output, lambda: [], lambda: [], "Decimal arithmetic; results %s." % stated,
                       [spec["source"] for spec in p["formulas"] if spec.get("source")], [], results)


def shorten(value):
    return Decimal(core.plain(value, 12)) if -value.as_tuple().exponent > 12 else value


class Expression:
    def __init__(self, text, path):
        self.text = text.strip()
        self.path = path
        try:
            self.tree = ast.parse(self.text, mode="eval").body
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            raise core.Refused(path, "this cannot be read as an expression like `min(x, 1000) * 0.2`")

    def value(self, names):
        try:
            return self.of(self.tree, names)
        except decimal.DivisionByZero:
            raise core.Refused(self.path, "division by zero")
        except (decimal.InvalidOperation, decimal.Overflow):
            raise core.Refused(self.path, "this has no value (such as 0/0, or a root of a negative number), or too large a one")

    def of(self, node, names):
        kind = type(node)
        if kind is ast.Constant:
            return self.constant(node)
        if kind is ast.Name:
            if node.id not in names:
                raise core.unknown(self.path, "value", node.id, names)
            return names[node.id]
        if kind is ast.UnaryOp:
            inner = self.of(node.operand, names)
            if type(node.op) is ast.Not:
                return not inner
            if type(node.op) in (ast.USub, ast.UAdd):
                return -self.number(inner) if type(node.op) is ast.USub else self.number(inner)
        if kind is ast.BinOp:
            return self.bounded(self.binary(node.op, self.number(self.of(node.left, names)), self.number(self.of(node.right, names))))
        if kind is ast.BoolOp:
            wanted = type(node.op) is ast.Or
            return any(bool(self.of(part, names)) for part in node.values) if wanted else all(
                bool(self.of(part, names)) for part in node.values)
        if kind is ast.Compare and all(type(op) in COMPARE for op in node.ops):
            parts = [self.number(self.of(part, names)) for part in [node.left] + node.comparators]
            return all(COMPARE[type(op)](a, b) for op, a, b in zip(node.ops, parts, parts[1:]))
        if kind is ast.IfExp:
            return self.of(node.body if self.of(node.test, names) else node.orelse, names)
        if kind is ast.Call and type(node.func) is ast.Name and node.func.id in FUNCTIONS and not node.keywords:
            return self.call(node, names)
        raise core.Refused(self.path, "only arithmetic, comparisons, `a if c else b` and %s are allowed" % ", ".join(FUNCTIONS))

    def constant(self, node):
        if isinstance(node.value, bool):
            return node.value
        text = ast.get_source_segment(self.text, node) or ""
        digits = text.replace("_", "")
        if type(node.value) in (int, float) and len(digits) <= MAX_DIGITS and digits.replace(".", "", 1).isdigit() and digits.isascii():
            return Decimal(digits)  # from the text, so that 0.1 is one tenth
        raise core.Refused(self.path, "%r is no plain number" % core.clip(text, 20))

    def number(self, value):
        return value if isinstance(value, Decimal) else core.ONE if value else core.ZERO

    def bounded(self, value):
        if value and value.adjusted() > MAX_DIGITS:
            raise core.Refused(self.path, "a number of more than %d digits comes out" % MAX_DIGITS)
        return value

    def binary(self, op, a, b):
        kind = type(op)
        if kind is ast.Add:
            return a + b
        if kind is ast.Sub:
            return a - b
        if kind is ast.Mult:
            return a * b
        if kind is ast.Div:
            return a / b
        if kind is ast.Mod:
            return a - b * (a / b).to_integral_value(rounding=decimal.ROUND_FLOOR)
        if kind is ast.FloorDiv:
            return (a / b).to_integral_value(rounding=decimal.ROUND_FLOOR)
        if kind is ast.Pow:
            if abs(b) > 1000:
                raise core.Refused(self.path, "a power of more than 1000")
            return a ** b
        raise core.Refused(self.path, "only + - * / // % and ** are allowed")

    def call(self, node, names):
        name = node.func.id
        low, high = FUNCTIONS[name]
        if not low <= len(node.args) <= high:
            raise core.Refused(self.path, "%s takes %d to %d numbers" % (name, low, high))
        args = [self.number(self.of(arg, names)) for arg in node.args]
        if name in ("min", "max"):
            return min(args) if name == "min" else max(args)
        if name == "abs":
            return abs(args[0])
        if name == "round":
            places = int(args[1]) if len(args) > 1 else 0
            if not 0 <= places <= 20:
                raise core.Refused(self.path, "round takes 0 to 20 places")
            return args[0].quantize(core.ONE.scaleb(-places), rounding=decimal.ROUND_HALF_UP)
        return args[0].to_integral_value(rounding=decimal.ROUND_FLOOR if name == "floor" else decimal.ROUND_CEILING)
