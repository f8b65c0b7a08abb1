"""What all analyses share: decimal numbers, stated rounding, dates, refusals, tables.

Amounts are `decimal.Decimal` in a context of our own (60 digits, errors trapped), so that a context which changed the
interpreter's default cannot change an answer.
"""
import datetime
import decimal
import difflib
import re
import unicodedata
from decimal import Decimal

MODES = {
    "half_up": decimal.ROUND_HALF_UP,
    "half_even": decimal.ROUND_HALF_EVEN,
    "half_down": decimal.ROUND_HALF_DOWN,
    "up": decimal.ROUND_UP,
    "down": decimal.ROUND_DOWN,
    "ceiling": decimal.ROUND_CEILING,
    "floor": decimal.ROUND_FLOOR,
}
ZERO, ONE = Decimal(0), Decimal(1)
SETTLED = decimal.Context(prec=50, rounding=decimal.ROUND_HALF_EVEN, Emin=-999999, Emax=999999, traps=[])
WIDE = decimal.Context(prec=2000, rounding=decimal.ROUND_HALF_EVEN, Emin=-999999, Emax=999999)  # room for the places of any figure
# a number, and after one space a unit such as EUR, EUR/h or kWh (the same form as `Shape::Quantity` in shape.rs)
QUANTITY = re.compile(r"(-?[0-9]{1,60}(?:\.[0-9]{1,60})?)(?: ([A-Za-z€$£¥][A-Za-z0-9€$£¥/_]{0,29}))?", re.ASCII)
TURNS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


class Refused(Exception):
    """The parameters are well formed and yet make no sense; `path` says where."""

    def __init__(self, path, message):
        super().__init__(message)
        self.path = path
        self.message = message


class NoValue(Refused):
    """An expression has no value for these numbers, such as a division by zero; for others it may have one."""


class Result:
    """What an analysis came to. `tables` and `sentences` are functions, because one call needs at most one of them."""

    def __init__(self, output, tables, sentences, arithmetic, sources=(), notes=(), measures=None, picture=None, units=None, exact=None, without=None):
        self.output = output
        self.tables = tables
        self.sentences = sentences
        self.arithmetic = arithmetic
        self.sources = list(dict.fromkeys(sources))
        self.notes = list(dict.fromkeys(notes))
        self.measures = measures or {}
        self.units = units or {}  # of the measures that have one
        self.exact = exact or {}  # measures whose shown figure is too coarse for a search, as functions
        self.without = without or {}  # measures that have no value, and why
        self.picture = picture


def arithmetic():
    """A decimal context for one analysis, as a context manager."""
    return decimal.localcontext(decimal.Context(
        prec=60, rounding=decimal.ROUND_HALF_EVEN, Emin=-999999, Emax=999999, capitals=1, clamp=0, flags=[],
        traps=[decimal.InvalidOperation, decimal.DivisionByZero, decimal.Overflow]))


class Rounding:
    """Places and mode for amounts; calling it rounds."""

    def __init__(self, spec):
        spec = spec or {}
        self.places = int(spec.get("places", 2))
        self.mode = spec.get("mode", "half_up")
        self.at = spec.get("at", "levy")

    def __call__(self, amount):
        return to_places(settled(amount), self.places, self.mode)

    def __str__(self):
        return "%d decimal places, %s" % (self.places, self.mode.replace("_", " "))


def round_to(amount, step, mode):
    """The amount as a multiple of `step`."""
    return settled(amount / step).to_integral_value(rounding=MODES[mode]) * step


def to_places(number, places, mode="half_even"):
    """The number with that many decimal places; never a negative zero."""
    out = number.quantize(ONE.scaleb(-places), rounding=MODES[mode], context=WIDE)
    return out if out else out.copy_abs()


def rounded(number, places, mode="half_even"):
    """The number with that many decimal places, or with more where it would be shown as 0 and is not."""
    out = to_places(number, places, mode)
    return out if out or not number else shown(number)


def settled(number):
    """The number without its last ten digits of 60, in which a third times three is not yet one; a long one keeps all."""
    return SETTLED.plus(number) if number.adjusted() < 40 else number


def plain(number, places=None):
    """A decimal as plain text: no exponent, no negative zero, at most `places` decimals without idle zeros."""
    if places is not None:
        text = format(number, ".%df" % places)
        text = text.rstrip("0").rstrip(".") if "." in text else text
    else:
        text = format(number, "f")
    return text[1:] if text.startswith("-") and not text.strip("-0.") else text


def shown(value):
    """A computed figure as results show it: 12 decimal places, and of a small one 12 digits, for a figure that is not 0
    is never shown as 0."""
    if not isinstance(value, Decimal) or -value.as_tuple().exponent <= 12:
        return value
    return Decimal(plain(value, max(12, 11 - value.adjusted())))


def percent(share):
    """A share as text: 0.2 is `20 %`."""
    return "none" if share is None else plain(share * 100, max(4, -1 - share.adjusted()) if share else 0) + " %"


def quantity(value):
    """A number with its unit (none for a plain number), or nothing: `12.5`, `"12.5"`, `"12.5 EUR"`."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, Decimal)):
        return Decimal(value), None
    if not isinstance(value, str) or not 0 < len(value) <= 160:
        return None
    found = QUANTITY.fullmatch(value)
    return (Decimal(found[1]), found[2]) if found else None


def with_unit(number, unit):
    """A figure as text, its unit after it."""
    return cell(number) if unit is None or number is None else "%s %s" % (cell(number), flat(unit))


def divide(part, whole, places=6):
    """A quotient rounded half up, or nothing when there is nothing to divide by. One that is not 0 is never shown as 0."""
    if not whole:
        return None
    return rounded(part / whole, places, "half_up")


MONTHS = ("january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november", "december")
YEAR_FIRST = re.compile(r"(\d{4})([-/.])(\d{1,2})\2(\d{1,2})", re.ASCII)
DAY_FIRST = re.compile(r"(\d{1,2})\. ?(\d{1,2})\. ?(\d{4})", re.ASCII)
MONTH_NAMED = re.compile(r"(?:(\d{1,2})\.? ([A-Za-z]{3,9})\.?,? (\d{4})|([A-Za-z]{3,9})\.? (\d{1,2}),? (\d{4}))", re.ASCII)
TIMED = re.compile(r"(\d{4}-\d{2}-\d{2})[Tt ](\d{2}):(\d{2})(?::(\d{2})(?:[.,](\d{1,20}))?)? ?([Zz]|UTC|[+-]\d{2}:?\d{2})?", re.ASCII)
SLASHED = re.compile(r"(\d{1,2})([-/])(\d{1,2})\2(\d{4})", re.ASCII)


def date_of(text):
    return datetime.date(int(text[:4]), int(text[5:7]), int(text[8:10]))


def read_date(text, order=None):
    """The day that a text names, or nothing.

    Forms whose order is certain are read as they are: year first, day first with dots, a month by name. `3/4/2024` is
    read only when `order` is `dmy` or `mdy`.
    """
    found = YEAR_FIRST.fullmatch(text)
    if found:
        return day_or_none(found[1], found[3], found[4])
    found = DAY_FIRST.fullmatch(text)
    if found:
        return day_or_none(found[3], found[2], found[1])
    found = MONTH_NAMED.fullmatch(text)
    if found:
        day, name, year = found.group(1, 2, 3) if found[1] else found.group(5, 4, 6)
        months = [at + 1 for at, month in enumerate(MONTHS) if month == name.lower() or name.lower() in (month[:3], month[:4])]
        return day_or_none(year, months[0], day) if len(months) == 1 else None
    found = SLASHED.fullmatch(text) if order else None
    if found:
        day, month = (found[1], found[3]) if order == "dmy" else (found[3], found[1])
        return day_or_none(found[4], month, day)
    return None


def read_time(text):
    """The date and time that an ISO text names, as written, and its offset from UTC where it has one; or nothing."""
    found = TIMED.fullmatch(text)
    if not found:
        return None
    day, hour, minute, second, fraction, zone = found.groups()
    if second == "60":  # a leap second, which clocks of programs do not have: the last instant before it ends
        second, fraction = "59", "999999"
    offset = None
    if zone:
        hours, minutes = (int(zone[1:3]), int(zone[-2:])) if zone[0] in "+-" else (0, 0)
        offset = datetime.timedelta(hours=hours, minutes=minutes) * (-1 if zone[0] == "-" else 1)
    try:
        time = datetime.time(int(hour), int(minute), int(second or 0), int((fraction or "").ljust(6, "0")[:6]))
        return datetime.datetime.combine(date_of(day), time), offset
    except ValueError:
        return None


def day_or_none(year, month, day):
    try:
        return datetime.date(int(year), int(month), int(day))
    except ValueError:
        return None


def last_day(year, month):
    """The number of the month's last day."""
    if month == 12:
        return 31
    return (datetime.date(year, month + 1, 1) - datetime.timedelta(days=1)).day


def unique(items, path):
    """The ids of the items, refused when two are the same."""
    seen = {}
    for index, item in enumerate(items):
        if item["id"] in seen:
            raise Refused("%s[%d].id" % (path, index), "the id %r stands twice" % clip(item["id"]))
        seen[item["id"]] = item
    return seen


def unknown(path, what, name, known):
    """The refusal of a name that is not there: the nearest that are, and what there is."""
    known = list(known)
    near = difflib.get_close_matches(str(name), [str(item) for item in known], 3, 0.6)
    message = "there is no %s %r" % (what, clip(name))
    if near:
        message += "; the nearest is %s" % " or ".join(repr(clip(item)) for item in near)
    if near and len(known) <= 12 and len(known) > len(near):
        message += " (of %s)" % ", ".join(clip(item) for item in known)
    elif known and not near:
        message += "; there are: %s" % ", ".join(clip(item) for item in known[:30])
    else:
        message += "; there is none at all"
    return Refused(path, message)


def nearest(name, known):
    """The one name that `name` was most likely meant to be, or nothing."""
    near = difflib.get_close_matches(str(name), [str(item) for item in known], 1, 0.75)
    return near[0] if near else None


def count(number, noun, nouns=None):
    """`1 rule`, `2 rules`."""
    return "%s %s" % (number, noun if number == 1 else nouns or noun + "s")


def clip(text, most=60):
    """A text for a message: one line, not longer than that."""
    text = flat(text)
    return text if len(text) <= most else text[: most - 1] + "…"


def flat(text):
    """A text on one line, without control characters and without marks that turn the direction of writing."""
    return "".join(" " if unicodedata.category(c) in ("Cc", "Zl", "Zp") or c in TURNS else c for c in str(text)).strip()


def whole(text):
    """The text with lone surrogates, which UTF-8 cannot encode, as escapes."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def to_json(value, depth=0):
    """The value in JSON's terms: decimals as plain text, dates as ISO text, sets in order."""
    if depth > 100:
        raise Refused("output", "the result is nested more than 100 levels deep")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return whole(value)
    if isinstance(value, int):
        return value if -(2 ** 53) < value < 2 ** 53 else str(value)
    if isinstance(value, Decimal):
        return plain(value) if value.is_finite() else str(value)
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, dict):
        return {whole(str(key)): to_json(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted((to_json(item, depth + 1) for item in value), key=str)
    if isinstance(value, (list, tuple)):
        return [to_json(item, depth + 1) for item in value]
    raise TypeError(type(value).__name__)


class Table:
    """Rows under headings. A heading that starts with `#` is a column of numbers, set to the right."""

    def __init__(self, title, headings, rows):
        self.title = title
        self.headings = headings
        self.rows = rows


def width(text):
    """Columns that a text takes in a terminal."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def cell(value):
    if value is None:
        return "–"
    if value is True or value is False:
        return "yes" if value else "no"
    if isinstance(value, Decimal):
        return plain(value)
    if isinstance(value, (list, tuple)):
        return "; ".join(cell(item) for item in value) or "–"
    text = flat(value).replace("\\", "\\\\").replace("|", "\\|").replace("`", "\\`").replace("<", "&lt;")
    return text if len(text) <= 300 else text[:299] + "…"


def decimals(value):
    """Decimal places that a number is written with."""
    return max(0, -value.as_tuple().exponent) if isinstance(value, Decimal) and value.is_finite() else 0


def padded(value, places):
    """A cell; numbers of one column get the same number of decimal places."""
    if places and isinstance(value, Decimal) and value.is_finite():
        return format(value or ZERO, ".%df" % places)
    return cell(value)


def markdown(table):
    """The table in Markdown, aligned as plain text too; any cell text stays inside its cell."""
    right = [heading.startswith("#") for heading in table.headings]
    places = [max([decimals(row[at]) for row in table.rows], default=0) if right[at] else 0 for at in range(len(right))]
    lines = [[cell(heading.lstrip("#")) for heading in table.headings]]
    lines += [[padded(value, places[at]) for at, value in enumerate(row)] for row in table.rows]
    widths = [max(3, *(width(line[at]) for line in lines)) for at in range(len(right))]

    def row(line):
        out = []
        for at, text in enumerate(line):
            room = " " * (widths[at] - width(text))
            out.append(room + text if right[at] else text + room)
        return "| " + " | ".join(out) + " |"

    rule = "| " + " | ".join("-" * (w - 1) + (":" if r else "-") for w, r in zip(widths, right)) + " |"
    body = [row(lines[0]), rule] + [row(line) for line in lines[1:]]
    return "\n".join(["**%s**" % cell(table.title), ""] + body)
