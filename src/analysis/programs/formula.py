"""Arithmetic on named numbers, in fractions: a third times three is one, and a decision about it falls as it should. The
caller's expressions are read as a syntax tree and walked, never run. Only roots are rounded, to 60 digits.

A number may carry a unit (`"25 EUR"`). Units multiply and divide; two different ones are never added or compared.
"""
import ast
import decimal
import math
from decimal import Decimal
from fractions import Fraction

core = use("core")

MAX_DIGITS = 60  # before the decimal point; a larger number is refused
LEAST = Fraction(1, 10 ** 1000)  # a smaller one is refused
MAX_BITS = 4000  # of a fraction; a longer one is rounded to a decimal number
FUNCTIONS = {"min": (1, 50), "max": (1, 50), "abs": (1, 1), "round": (1, 2), "floor": (1, 1), "ceil": (1, 1)}
COMPARE = {ast.Lt: lambda a, b: a < b, ast.LtE: lambda a, b: a <= b, ast.Gt: lambda a, b: a > b,
           ast.GtE: lambda a, b: a >= b, ast.Eq: lambda a, b: a == b, ast.NotEq: lambda a, b: a != b}


def run(p):
    rounding = core.Rounding(p["rounding"]) if "rounding" in p else None
    values = {name: Quantity.read(number) for name, number in p["values"].items()}
    results, units, without = evaluate(p["formulas"], values, rounding)
    exact = {} if rounding else {name: lambda number=values[name]: core.settled(number.decimal()) for name in results if name not in without}
    output = {"results": results, "units": units}
    stated = "rounded to %s" % rounding if rounding else "not rounded (12 places shown)"
    return core.Result(output, lambda: [], lambda: [], "Arithmetic in fractions; results %s." % stated,
                       [spec["source"] for spec in p["formulas"] if spec.get("source")], [], dict(results), units=units, exact=exact, without=without)


def evaluate(formulas, values, rounding=None):
    """The formulas one after another, each added to the values; the figures as they are shown, their units, and why one
    has no value."""
    core.unique(formulas, "formulas")
    results, units, without = {}, {}, {}
    for index, spec in enumerate(formulas):
        path = "formulas[%d].expression" % index
        if spec["id"] in values:
            raise core.Refused("formulas[%d].id" % index, "%r is already a value" % core.clip(spec["id"]))
        try:
            result = values[spec["id"]] = Expression(spec["expression"], path).quantity(values)
        except core.NoValue as error:
            values[spec["id"]], results[spec["id"]] = error, None
            without[spec["id"]] = error
            continue
        results[spec["id"]] = rounding(result.decimal()) if rounding else shorten(result.decimal())
        if result.unit:
            units[spec["id"]] = str(result)
    return results, units, without


def shorten(value):
    """A figure as it is shown, beyond the second decimal place without idle zeros."""
    places = -value.as_tuple().exponent
    if places <= 2:
        return value
    value = core.shown(value).normalize()
    return value.quantize(Decimal("0.01")) if -value.as_tuple().exponent < 2 else value


class Quantity:
    """A number, as a fraction, and the powers of its units."""

    __slots__ = ("number", "unit")

    def __init__(self, number, unit=None):
        self.number = Fraction(number)
        self.unit = unit or {}

    def decimal(self):
        """The number with at most 60 digits."""
        return Decimal(self.number.numerator) / self.number.denominator

    @classmethod
    def read(cls, value):
        """A number, or a text like `12.5 EUR/h`; nothing when it is neither."""
        found = core.quantity(value)
        if found is None:
            return None
        unit = {}
        for at, part in enumerate((found[1] or "").split("/")):
            if part:
                unit[part] = unit.get(part, 0) + (-1 if at else 1)
        return cls(found[0], {name: power for name, power in unit.items() if power})

    def __str__(self):
        """Its unit."""
        power = lambda name, times: name if times == 1 else "%s^%s" % (name, times)
        over = "*".join(power(name, times) for name, times in sorted(self.unit.items()) if times > 0)
        under = "".join("/" + power(name, -times) for name, times in sorted(self.unit.items()) if times < 0)
        return (over or ("1" if under else "")) + under

    def times(self, other, sign):
        unit = dict(self.unit)
        for name, power in other.unit.items():
            unit[name] = unit.get(name, 0) + sign * power
        return {name: power for name, power in unit.items() if power}


def is_path(node):
    """Whether it is names with dots between, such as `company.debt`, none of them reserved."""
    while type(node) is ast.Attribute and not node.attr.startswith("_"):
        node = node.value
    return type(node) is ast.Name


class Expression:
    def __init__(self, text, path):
        self.text = text.strip()
        self.path = path
        try:
            self.tree = ast.parse(self.text, mode="eval").body
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            raise core.Refused(path, "this cannot be read as an expression like `min(x, 1000) * 0.2`")

    def names(self):
        """The names that stand in it, each once: of `company.debt` the whole path."""
        inside = {id(node.value) for node in ast.walk(self.tree) if type(node) is ast.Attribute}
        called = {id(node.func) for node in ast.walk(self.tree) if type(node) is ast.Call}
        found = [ast.get_source_segment(self.text, node) or "" for node in ast.walk(self.tree)
                 if type(node) in (ast.Name, ast.Attribute) and id(node) not in inside and id(node) not in called]
        return list(dict.fromkeys(found))

    def value(self, names):
        """The plain number that comes out for plain numbers."""
        return self.quantity({name: Quantity(number) for name, number in names.items()}).decimal()

    def quantity(self, names):
        try:
            return self.number(self.of(self.tree, names))
        except ZeroDivisionError:
            raise core.NoValue(self.path, "division by zero")
        except (decimal.InvalidOperation, decimal.Overflow):
            raise core.NoValue(self.path, "this has no value (such as a root of a negative number), or too large a one")

    def of(self, node, names):
        kind = type(node)
        if kind is ast.Constant:
            return self.constant(node)
        if kind is ast.Name or kind is ast.Attribute and is_path(node):
            return self.named(node, names)
        if kind is ast.UnaryOp:
            inner = self.of(node.operand, names)
            if type(node.op) is ast.Not:
                return not self.truth(inner)
            if type(node.op) in (ast.USub, ast.UAdd):
                inner = self.number(inner)
                return Quantity(-inner.number, inner.unit) if type(node.op) is ast.USub else inner
        if kind is ast.BinOp:
            return self.binary(node.op, self.number(self.of(node.left, names)), self.number(self.of(node.right, names)))
        if kind is ast.BoolOp:
            wanted = type(node.op) is ast.Or
            return any(self.truth(self.of(part, names)) for part in node.values) if wanted else all(
                self.truth(self.of(part, names)) for part in node.values)
        if kind is ast.Compare and all(type(op) in COMPARE for op in node.ops):
            parts = [self.number(self.of(part, names)) for part in [node.left] + node.comparators]
            self.same(parts, "compared")
            return all(COMPARE[type(op)](a.number, b.number) for op, a, b in zip(node.ops, parts, parts[1:]))
        if kind is ast.IfExp:
            return self.of(node.body if self.truth(self.of(node.test, names)) else node.orelse, names)
        if kind is ast.Call and type(node.func) is ast.Name and node.func.id in FUNCTIONS and not node.keywords:
            return self.call(node, names)
        raise core.Refused(self.path, "only arithmetic, comparisons, `a if c else b` and %s are allowed" % ", ".join(FUNCTIONS))

    def named(self, node, names):
        """A value by its name, which may be a path such as `company.debt`."""
        name = ast.get_source_segment(self.text, node) or ""
        if name not in names:
            raise core.unknown(self.path, "value", name, names)
        if isinstance(names[name], core.NoValue):  # an earlier formula
            raise names[name]
        return names[name]

    def constant(self, node):
        if isinstance(node.value, bool):
            return node.value
        text = ast.get_source_segment(self.text, node) or ""
        digits = text.replace("_", "")
        if type(node.value) in (int, float) and len(digits) <= MAX_DIGITS and digits.replace(".", "", 1).isdigit() and digits.isascii():
            return Quantity(Decimal(digits))  # from the text, so that 0.1 is one tenth
        raise core.Refused(self.path, "%r is not a plain number" % core.clip(text, 20))

    def number(self, value):
        return value if isinstance(value, Quantity) else Quantity(1 if value else 0)

    def truth(self, value):
        return bool(value.number) if isinstance(value, Quantity) else value

    def same(self, parts, what):
        """The unit that all have; a bare 0 goes with any."""
        units = {str(part): part.unit for part in parts if part.unit or part.number}
        if len(units) > 1:
            names = sorted(name or "a number without a unit" for name in units)
            raise core.Refused(self.path, "%s cannot be %s; convert one with a rate, such as `x * rate` with rate = \"1.17 EUR/GBP\"" % (
                " and ".join(names), what))
        return next(iter(units.values()), next((part.unit for part in parts if part.unit), {}))

    def binary(self, op, a, b):
        kind = type(op)
        x, y = a.number, b.number
        if kind is ast.Add or kind is ast.Sub:
            return self.bounded(x + y if kind is ast.Add else x - y, self.same([a, b], "added" if kind is ast.Add else "subtracted"))
        if kind is ast.Mult:
            return self.bounded(x * y, a.times(b, 1))
        if kind is ast.Div:
            return self.bounded(x / y, a.times(b, -1))
        if kind is ast.Mod:
            return self.bounded(x % y, self.same([a, b], "divided with a remainder"))
        if kind is ast.FloorDiv:
            return self.bounded(x // y, a.times(b, -1))
        if kind is ast.Pow:
            if abs(y) > 1000:
                raise core.NoValue(self.path, "a power of more than 1000")
            if b.unit or a.unit and y.denominator != 1:
                raise core.Refused(self.path, "a power is a number without a unit, and a whole one where what is raised has a unit")
            return self.bounded(self.power(a, b), {name: power * int(y) for name, power in a.unit.items() if y})
        raise core.Refused(self.path, "only + - * / // % and ** are allowed")

    def power(self, a, b):
        """Exact for whole powers, as long as the fraction does not get too long."""
        x, y = a.number, b.number
        bits = x.numerator.bit_length() + x.denominator.bit_length()
        return x ** int(y) if y.denominator == 1 and bits * abs(y) <= MAX_BITS else a.decimal() ** b.decimal()

    def bounded(self, value, unit):
        if abs(value) >= 10 ** MAX_DIGITS:
            raise core.NoValue(self.path, "a number of more than %d digits comes out" % MAX_DIGITS)
        if 0 < abs(value) < LEAST:
            raise core.NoValue(self.path, "a number nearer to 0 than 10 ** -1000 comes out")
        out = Quantity(value, unit)
        return out if out.number.denominator.bit_length() <= MAX_BITS else Quantity(out.decimal(), unit)

    def call(self, node, names):
        name = node.func.id
        low, high = FUNCTIONS[name]
        if not low <= len(node.args) <= high:
            raise core.Refused(self.path, "%s takes %d to %d numbers" % (name, low, high))
        args = [self.number(self.of(arg, names)) for arg in node.args]
        first = args[0].number
        if name in ("min", "max"):
            unit = self.same(args, "compared")
            return Quantity((min if name == "min" else max)(arg.number for arg in args), unit)
        if name == "abs":
            return Quantity(abs(first), args[0].unit)
        if name == "round":
            places = args[1].number if len(args) > 1 else 0
            if places not in range(21):
                raise core.NoValue(self.path, "round takes 0 to 20 places")
            places = int(places)
            steps = math.floor(abs(first) * 10 ** places + Fraction(1, 2))
            return Quantity(Fraction(-steps if first < 0 else steps, 10 ** places), args[0].unit)
        return Quantity((math.floor if name == "floor" else math.ceil)(first), args[0].unit)
