"""Rows of data, described and related, with the standard library alone.

Sums and means are exact decimals; everything with squares and roots is binary floating point, shown with 12
significant digits. Numbers in text are read by what the whole column shows (`1.234,50` or `1,234.50`), and what is
not read as a number is counted and never silently dropped.
"""
import base64
import csv
import io
import json
import math
import operator
import os
import re
from decimal import Decimal

core = use("core")

MAX_FILE = 256 * 1024 * 1024
MISSING = {"", "na", "n/a", "null", "none", "nan", "-"}
POINT = re.compile(r"[+-]?(\d+|\d{1,3}(?:([, '])\d{3})(?:\2\d{3})*|\d{1,2}(?:,\d{2})+,\d{3})(\.\d+)?([eE][+-]?\d{1,3})?", re.ASCII)
COMMA = re.compile(r"[+-]?(\d+|\d{1,3}(?:([. '])\d{3})(?:\2\d{3})*)(,\d+)?", re.ASCII)
MONEY = re.compile(r"(-?)([€$£¥]|[A-Z]{3} )? ?(-?[0-9][0-9., ']*?)(?: ?([€$£¥%])| ([A-Z]{3}))?", re.ASCII)
UNIT = re.compile("[A-Z€$£¥%]")
TYPESET = str.maketrans({"\u00a0": " ", "\u2009": " ", "\u202f": " ", "\u2019": "'", "\u2212": "-"})  # in printed numbers
NEGATIVE = re.compile(r"([^()0-9]*)\(\s*([^()+-]*[0-9][^()+-]*?)\s*\)([^()0-9]*)", re.ASCII)  # (1,234.50), as accountants write it
DIGITS = {".": str.maketrans("", "", ", '"), ",": str.maketrans(",", ".", ". '")}
PADDED = re.compile(r"0\d+", re.ASCII)  # 02134 is a name that is written with digits
MAX_EXPONENT = 140  # squares of larger numbers, and of smaller ones, are out of reach for binary floating point
MOSTLY = 0.9  # share of a column's values that makes it numeric (or dated); the rest are counted as invalid
NO_TEXT = {  # how files begin that are often taken for tables
    b"PK\x03\x04": "is a ZIP archive, such as an Excel workbook", b"\xd0\xcf\x11\xe0": "is an old Excel workbook", b"PAR1\x15": "is Parquet",
    b"\x1f\x8b": "is compressed by gzip", b"SQLite format 3": "is an SQLite database", b"%PDF-": "is a PDF", b"ARROW1\0": "is an Arrow file"}
POINTS = 20000
MAX_JOINED = 500000
END = "\ue000end\ue000"
LISTED = 100
MOST_PERIODS = 5000


def run(p):
    notes = []
    names, rows = load(p, notes)
    if "join" in p:
        names, rows = join(names, rows, p, notes)
    table = Data(names, rows, p, notes)
    for index, rule in enumerate(p.get("fill", [])):
        table.fill(rule, "fill[%d]" % index)
    results, picture = [], None
    operations = p.get("operations", [{"do": "describe"}, {"do": "missing"}])
    if sum(1 for op in operations if op["do"] == "chart") > 1:
        raise core.Refused("operations", "one chart a call")
    for index, op in enumerate(operations):
        path = "operations[%d]" % index
        if op["do"] == "chart":
            result, picture = chart(table, op, path)
        else:
            result = OPERATIONS[op["do"]](table, op, path)
        results.append(dict({"do": op["do"]}, **result))
    output = {"rows": table.count, "columns": [column.summary() for column in table.columns.values()], "results": results}
    notes += table.notes
    return core.Result(
        output, lambda: tables(output), lambda: sentences(output),
        "Sums and means are exact decimals; deviations, correlations and trends are binary floating point shown with 12 "
        "significant digits. Quartiles interpolate linearly; deviations divide by n - 1.",
        [], notes, picture=picture)


# loading

def load(p, notes, path="parameters"):
    given = [name for name in ("records", "csv", "file") if name in p]
    if len(given) != 1:
        raise core.Refused(path, "exactly one of records, csv or file is needed, not %s" % (" and ".join(given) or "none"))
    if "records" in p:
        return from_records(p["records"])
    if "csv" in p:
        return from_csv(p["csv"], p, notes, "csv")
    return from_file(p, notes)


def join(names, rows, p, notes):
    """The rows with those of a second table beside them, matched on columns that both have."""
    spec = p["join"]
    other, second = load(dict({key: p[key] for key in ("decimal",) if key in p}, **spec), notes, "join")
    for at, name in enumerate(spec["on"]):
        for side, known in (("first", names), ("second", other)):
            if name not in known:
                raise core.unknown("join.on[%d]" % at, "column of the %s table" % side, name, known)
    new = [name for name in other if name not in spec["on"]]
    taken = dict.fromkeys(names)
    for name in new:
        taken[once(name, taken)] = None
    shown = list(taken)[len(names):]
    left, right = ([known.index(name) for name in spec["on"]] for known in (names, other))
    places = [other.index(name) for name in new]
    key = lambda row, side: tuple(key_of(row[at]) for at in side)
    index = {}
    for row in second:
        index.setdefault(key(row, right), []).append([row[at] for at in places])
    how, out, alone, several = spec.get("how", "inner"), [], 0, 0
    for row in rows:
        found = index.get(key(row, left), []) if all(key(row, left)) else []  # what is not known equals nothing
        alone += not found
        several += len(found) > 1
        out += [row + more for more in found]
        if not found and how == "left":
            out.append(row + [None] * len(new))
        if len(out) > MAX_JOINED:
            raise core.Refused("join.on", "the joined table has more than %d rows" % MAX_JOINED)
    if several:
        notes.append("%s of the first table matched several of the second and %s repeated, so a sum counts %s several times." % (
            core.count(several, "row"), *(("is", "it") if several == 1 else ("are", "them"))))
    if alone:
        notes.append("%s of the first table found no match in the second and %s %s." % (
            core.count(alone, "row"), "was" if alone == 1 else "were", "kept without its values" if how == "left" else "left out"))
    return names + shown, out


def key_of(value):
    """A value as a join compares it; an empty text where there is none."""
    if isinstance(value, (dict, list)):
        return repr(value)
    return "" if value is None else text_of(value.normalize() if isinstance(value, Decimal) else value).strip()


def from_records(records):
    names = list(dict.fromkeys(name for record in records for name in record))
    return names, [[record.get(name) for name in names] for record in records]


def from_file(p, notes):
    path = p["file"]
    try:
        if os.path.getsize(path) > MAX_FILE:
            raise core.Refused("file", "the file is larger than 256 MB")
        with open(path, "rb") as source:
            raw = source.read()
    except (OSError, ValueError) as error:
        raise core.Refused("file", "the file cannot be read (%s)" % type(error).__name__)
    text = decode(raw, p.get("encoding"), notes)
    kind = p.get("format") or {"tsv": "tsv", "json": "json", "jsonl": "jsonl", "ndjson": "jsonl"}.get(path.rpartition(".")[2].lower(), "csv")
    if kind in ("csv", "tsv"):
        return from_csv(text, dict(p, delimiter="\t") if kind == "tsv" and "delimiter" not in p else p, notes, "file")
    records, at = [], None
    try:
        if kind == "json":
            records = json.loads(text, parse_float=Decimal, parse_constant=lambda _: None)
        else:
            for at, line in enumerate(text.split("\n"), 1):
                if line.strip():
                    records.append(json.loads(line, parse_float=Decimal, parse_constant=lambda _: None))
    except (ValueError, RecursionError) as error:
        raise core.Refused("file", "line %s is not valid JSON" % (at or getattr(error, "lineno", 1)))
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise core.Refused("file", "the file holds no list of objects")
    return from_records(records)


def decode(raw, encoding, notes):
    text = decoded(raw, encoding, notes)
    if "\0" in text or raw.startswith(tuple(NO_TEXT)):
        kind = next((kind for start, kind in NO_TEXT.items() if raw.startswith(start)), "holds NUL characters")
        raise core.Refused("file", "the file is not a text: it %s; read it with run_code and write its table as CSV, or name its encoding" % kind)
    return text


def decoded(raw, encoding, notes):
    if encoding is None:
        if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
            encoding = "utf-16"
        else:
            try:
                return raw.decode("utf-8-sig")
            except UnicodeDecodeError:
                notes.append("The file is not UTF-8 and was read as Windows-1252.")
                return raw.decode("cp1252", errors="replace")
    try:
        return raw.decode("utf-8-sig" if encoding == "utf-8" else encoding)
    except (UnicodeDecodeError, UnicodeError):
        raise core.Refused("encoding", "the file is not %s" % encoding)


def from_csv(text, p, notes, path):
    text = text.lstrip("\ufeff")
    first = re.match(r"sep=(.)\r?\n", text)  # Excel's way to name the delimiter
    text = text[first.end():] if first else text
    delimiter = p.get("delimiter") or (first[1] if first else sniff(text))
    if delimiter in "\r\n\"":
        raise core.Refused("delimiter", "this cannot separate fields")
    lines = read_lines(text, delimiter, path)
    if not lines:
        raise core.Refused(path, "there is no heading line")
    names = headings(lines.pop(0), notes)
    uneven = longer = 0
    for line in lines:
        if len(line) != len(names):
            uneven += 1
            longer += len(line) > len(names)
            line[len(names):] = []
            line.extend([""] * (len(names) - len(line)))
    if 2 * longer > len(lines):
        raise core.Refused(path, "the first line has %s and most rows have more, so it is not the heading, or %r does not separate the fields; "
                           "remove lines before the heading, or say delimiter" % (core.count(len(names), "field"), delimiter))
    if uneven:
        notes.append("%s more or fewer fields than the heading; what is too much was cut, what is missing is empty." % core.count(uneven, "row has", "rows have"))
    p.setdefault("delimiter", delimiter)
    return names, lines


def read_lines(text, delimiter, path):
    """The rows with fields. A row is put behind the text: a quote that is never closed would hold it as well."""
    source = io.TextIOWrapper(io.BytesIO((text + "\n" + END).encode("utf-8", "surrogatepass")), "utf-8", "surrogatepass", newline="")
    reader, lines, begins = csv.reader(source, delimiter=delimiter), [], 1
    try:
        for line in reader:
            if line:
                lines.append(line)
                begins, last = reader.line_num + 1, begins
    except csv.Error:
        raise core.Refused(path, "the text cannot be read as CSV (a field over 128 KB, often after a quote that is not closed, in the row that begins in line %d)" % begins)
    if lines.pop() != [END]:
        raise core.Refused(path, "a quote in the row that begins in line %d is not closed" % last)
    return lines


def headings(fields, notes):
    """The names of the columns, each once."""
    names, renamed = {}, []
    for index, name in enumerate(fields):
        name = name.strip() or "column_%d" % (index + 1)
        unique = once(name, names)
        if unique != name:
            renamed.append("%s (column %d) is %s" % (core.clip(name), index + 1, core.clip(unique)))
        names[unique] = True
    if renamed:
        notes.append("Columns with equal names were renamed: %s." % ", ".join(renamed[:LISTED]))
    return list(names)


def once(name, taken):
    """The name, with a number behind it where it is taken."""
    again, unique = 2, name
    while unique in taken:
        unique, again = "%s_%d" % (name, again), again + 1
    return unique


def sniff(text):
    """The delimiter that gives the most columns, the same in each of the first lines."""
    sample = text[:65536].splitlines()[:50]
    if len(sample) > 1 and len(text) > 65536:
        sample.pop()
    best = (0, ",")
    for delimiter in (",", ";", "\t", "|"):
        try:
            counts = [len(line) for line in csv.reader(sample, delimiter=delimiter) if line]
        except csv.Error:
            continue
        if counts and counts[0] > 1:
            same = sum(1 for count in counts if count == counts[0]) / len(counts)
            best = max(best, (counts[0] * same ** 4, delimiter), key=lambda pair: pair[0])
    return best[1]


# columns

def held(column):
    return "no values" if column.kind == "empty" else column.kind


class Column:
    unit = None  # that every value of the column was written with

    def __init__(self, name, kind, values, missing, invalid):
        self.name = name
        self.kind = kind
        self.values = values
        self.missing = missing
        self.invalid = invalid
        self.origin = core.ZERO
        self._floats = None

    def summary(self):
        out = {"name": self.name, "type": self.kind, "missing": self.missing, "invalid": self.invalid}
        if self.unit:
            out["unit"] = self.unit
        return out

    def present(self):
        return [value for value in self.values if value is not None]

    def floats(self):
        """How far the numbers are from the first one, which keeps what large ones differ in, as binary floating point (dates and
        times as day numbers); nothing where there is none."""
        if self._floats is None:
            if self.kind == "number":
                self.origin = next(iter(self.present()), core.ZERO)
            number = day_number if self.kind == "date" else lambda value: float(value - self.origin)
            self._floats = [None if value is None else number(value) for value in self.values]
        return self._floats


class Data:
    def __init__(self, names, rows, p, notes):
        self.notes = notes
        self.count = len(rows)
        raw = list(zip(*rows)) or [()] * len(names)
        rows.clear()  # a large table is held once, and each column's texts until they are read
        self.mixed = {}  # columns of amounts in several units
        marks = MISSING | {mark.strip().lower() for mark in p.get("missing_marks", [])}
        self.columns = {}
        for index, name in enumerate(names):
            cells, raw[index] = raw[index], None
            self.columns[name] = self.read(name, cells, marks, p)

    def read(self, name, raw, marks, p):
        texts, numbers, flags, others, missing = 0, 0, 0, 0, 0
        cells = []
        for value in raw:
            if isinstance(value, str):
                value = value.strip()
                if value.lower() in marks:
                    value = None
                else:
                    texts += 1
            elif isinstance(value, bool):
                flags += 1
            elif isinstance(value, (int, Decimal)):
                numbers += 1
            elif value is not None:
                others += 1
                value = json.dumps(core.to_json(value), ensure_ascii=False, sort_keys=True)
            missing += value is None
            cells.append(value)
        known = len(cells) - missing
        if known and not texts and not others and flags == known:
            return Column(name, "flag", cells, missing, 0)
        if known and not others and not flags:
            typed = [value.translate(TYPESET) if isinstance(value, str) and not value.isascii() else value for value in cells]
            signed, turned = self.with_signs(name, typed, known)
            bare, unit = self.without_unit(name, signed, known, numbers)
            number = self.numeric(name, bare, texts, numbers, known, p)
            if number is not None:
                if turned:
                    self.notes.append("Column %s: %s in parentheses, read as negative." % (core.clip(name), core.count(turned, "amount")))
                column = Column(name, "number", number, missing, known - sum(1 for v in number if v is not None))
                column.unit = unit
                return column
            if not numbers:
                dates, good = self.dated(name, cells, known, p)
                if good >= MOSTLY * known:
                    if good < known:
                        self.notes.append("Column %s: %s could not be read as dates and were left out." % (core.clip(name), core.count(known - good, "value")))
                    return Column(name, "date", dates, missing, known - good)
            lower = {value.lower() for value in cells if isinstance(value, str)}
            if not numbers and lower and lower <= {"true", "false"}:
                return Column(name, "flag", [None if v is None else v.lower() == "true" for v in cells], missing, 0)
        return Column(name, "text" if known else "empty", [None if v is None else text_of(v) for v in cells], missing, 0)

    def with_signs(self, name, cells, known):
        """The cells with a sign in place of parentheses around an amount, and how many these are. Where every cell has them they
        may be a way to write a list, or notes."""
        out, turned = [], 0
        for value in cells:
            match = NEGATIVE.fullmatch(value) if isinstance(value, str) and "(" in value else None
            amount = "-%s%s%s" % match.groups() if match and not PADDED.fullmatch(match[2]) else ""
            if MONEY.fullmatch(amount):
                value, turned = amount, turned + 1
            out.append(value)
        if turned and turned == known:
            self.notes.append("Column %s: every value is in parentheses, which may mean negative amounts or none; write them with a minus if they are." % core.clip(name))
            return cells, 0
        return out, turned

    def without_unit(self, name, cells, known, numbers):
        """The cells without the one unit that all are written with (`12.50 EUR`, `€3`); units that differ stay, so that
        amounts in two currencies are text and never added."""
        if not any(isinstance(value, str) and UNIT.search(value) for value in cells):
            return cells, None
        found = [MONEY.fullmatch(value) if isinstance(value, str) else None for value in cells]
        marks = [(match[2] or match[4] or match[5] or "").strip() for match in found if match]
        units = sorted(set(marks) - {""})
        if not units or len(marks) + numbers < MOSTLY * known:
            return cells, None
        if len(units) > 1 or "" in marks or numbers:
            self.mixed[name] = ", ".join(units) + (" and without a unit" if "" in marks or numbers else "")
            self.notes.append("Column %s holds amounts in %s. They are not added or compared; split the rows by unit, or convert them first." % (
                core.clip(name), self.mixed[name]))
            return cells, None
        return [match[1] + match[3] if match else value for match, value in zip(found, cells)], units[0]

    def dated(self, name, cells, known, p):
        """The cells as days or times, and how many could be read; which of 3/4/2024 is the day is decided for the whole column."""
        order = p.get("date_order")
        dates = [None if value is None else moment_of(value, order) for value in cells]
        good = sum(1 for value in dates if value is not None)
        if good or order:
            offsets = {timed[1] for timed in map(core.read_time, filter(None, cells)) if timed} if good else set()
            if len(offsets) > 1:
                self.notes.append("Column %s: the times have different offsets from UTC, and each counts as it is written." % core.clip(name))
            return alike(dates), good
        by_order = {}
        for order in ("dmy", "mdy"):
            days = [None if value is None else moment_of(value, order) for value in cells]
            by_order[order] = (days, sum(1 for value in days if value is not None))
        better = max(by_order, key=lambda order: by_order[order][1])
        if by_order["dmy"][1] == by_order["mdy"][1]:
            if by_order["dmy"][1] >= MOSTLY * known:
                self.notes.append("Column %s may hold dates, but which part is the day is not certain; say date_order dmy or mdy." % core.clip(name))
            return dates, 0
        self.notes.append("Column %s was read as dates in the order %s." % (core.clip(name), {"dmy": "day, month, year", "mdy": "month, day, year"}[better]))
        return by_order[better]

    def numeric(self, name, cells, texts, numbers, known, p):
        """The cells as decimals, or nothing when they are mostly no numbers."""
        sign = p.get("decimal")
        point = comma = 0
        for value in cells:
            if isinstance(value, str):
                point += POINT.fullmatch(value) is not None
                comma += COMMA.fullmatch(value) is not None
        if sign is None:
            sign = "," if comma > point or (comma == point and p.get("delimiter") == ";") else "."
            if point == comma and any(isinstance(v, str) and ("," in v or "." in v) for v in cells) and point >= MOSTLY * texts:
                self.notes.append("Column %s: the decimal sign is not certain; %r was taken." % (core.clip(name), sign))
        good = (comma if sign == "," else point) + numbers
        if good < MOSTLY * known:
            return None
        if any(isinstance(value, str) and PADDED.fullmatch(value) for value in cells):
            self.notes.append("Column %s holds digits with zeros before them; they were taken as text, which keeps the zeros." % core.clip(name))
            return None
        pattern = COMMA if sign == "," else POINT
        out, left_out = [], 0
        for value in cells:
            if isinstance(value, str):
                if pattern.fullmatch(value) is None:
                    number = None
                else:
                    number = Decimal(value.translate(DIGITS[sign]))
            else:
                number = None if value is None else Decimal(value)
            if number and abs(number.adjusted()) > MAX_EXPONENT:
                number = None
            left_out += number is None and value is not None
            out.append(number)
        if left_out:
            self.notes.append("Column %s: %s (or beyond 1e%d), left out." % (
                core.clip(name), core.count(left_out, "value is not a number", "values are not numbers"), MAX_EXPONENT))
        return out

    def fill(self, rule, path):
        """Puts a value where a column has none: a given one, the column's mean or median, or the row before."""
        column = self.get(rule["column"], path + ".column")
        how = rule["with"]
        if how in ("mean", "median") and column.kind != "number":
            raise core.Refused(path + ".with", "column %r holds %s, and %s needs numbers" % (core.clip(column.name), held(column), how))
        if (how == "value") != ("value" in rule):
            raise core.Refused(path + ".value", "a value goes with `with: value`, and with nothing else")
        present = column.present()
        if how == "value" and column.kind == "empty":  # it becomes what the value is
            column.kind = self.read(column.name, [rule["value"]], set(), {}).kind
        if how == "value":
            put = read_as(column, rule["value"])
            if put is None:
                raise core.Refused(path + ".value", "column %r holds %s%s, which this is not" % (core.clip(column.name), held(column), " in %s" % column.unit if column.unit else ""))
        elif how in ("mean", "median"):
            put = (figure(mean(present)) if how == "mean" else figure(quantile(sorted(present), Decimal("0.5")))) if present else None
        before, filled = None, 0
        for row, value in enumerate(column.values):
            if value is None:
                column.values[row] = before if how == "previous" else put
                filled += column.values[row] is not None
            before = column.values[row]
        if column.kind == "date":
            column.values = alike(column.values)
        left = column.missing + column.invalid - filled  # what could not be read counts as a hole too
        column.missing, column.invalid = min(column.missing, left), max(0, left - column.missing)
        self.notes.append("Column %s: %s filled with %s." % (core.clip(column.name), core.count(filled, "missing value was", "missing values were"), how if how != "value" else core.clip(rule["value"])))

    def get(self, name, path, kinds=None):
        if name not in self.columns:
            raise core.unknown(path, "column", name, self.columns)
        column = self.columns[name]
        if kinds and column.kind not in kinds and name in self.mixed:
            raise core.Refused(path, "column %r holds amounts in %s, which cannot be added or compared; split the rows by unit, or convert them first" % (
                core.clip(name), self.mixed[name]))
        if kinds and column.kind not in kinds:
            raise core.Refused(path, "column %r holds %s, not %s" % (core.clip(name), held(column), " or ".join(kinds)))
        return column

    def several(self, op, path, kinds=None):
        if "column" in op and "columns" not in op:
            return [self.get(op["column"], path + ".column", kinds)]
        if "columns" in op:
            return [self.get(name, "%s.columns[%d]" % (path, i), kinds) for i, name in enumerate(op["columns"])]
        return [column for column in self.columns.values() if kinds is None or column.kind in kinds]


def read_as(column, value):
    """A value as one of the column's kind, or nothing."""
    if column.kind == "number":
        number, unit = core.quantity(value) or (None, None)
        return number if unit in (None, column.unit) and not (number and abs(number.adjusted()) > MAX_EXPONENT) else None
    if column.kind == "date":
        return moment_of(value)
    if column.kind == "flag":
        return value if isinstance(value, bool) else None
    return json.dumps(core.to_json(value), ensure_ascii=False, sort_keys=True) if isinstance(value, (dict, list)) else None if value is None else text_of(value)


def text_of(value):
    return value if isinstance(value, str) else core.plain(Decimal(value)) if not isinstance(value, bool) else str(value).lower()


def moment_of(value, order=None):
    """The day that a text names, or the time as it is written; or nothing."""
    if not isinstance(value, str) or not 8 <= len(value) <= 40:
        return None
    timed = core.read_time(value)
    return timed[0] if timed else core.read_date(value, order)


def alike(moments):
    """Days, or times where one of them has a time of day; never both, for they cannot be compared."""
    midnight = core.datetime.time()
    clock = lambda value: value.time() if isinstance(value, core.datetime.datetime) else midnight
    timed = any(clock(value) != midnight for value in moments if value is not None)
    day = lambda value: core.datetime.date(value.year, value.month, value.day)
    return [value and (core.datetime.datetime.combine(day(value), clock(value)) if timed else day(value)) for value in moments]


def day_number(moment):
    """Days since the calendar began, with the part of the day that has gone by."""
    seconds = moment.hour * 3600 + moment.minute * 60 + moment.second + moment.microsecond / 1e6 if isinstance(moment, core.datetime.datetime) else 0
    return moment.toordinal() + seconds / 86400


def need(op, path, *names):
    if "column" in names and "column" not in op and len(op.get("columns", [])) == 1:
        op["column"] = op["columns"][0]
    for name in names:
        if name not in op:
            raise core.Refused("%s.%s" % (path, name), "%s needs %s; for instance %s" % (op["do"], ", ".join(names), EXAMPLES[op["do"]]))
    return [op[name] for name in names]


# numbers

def figure(number):
    """A computed figure without idle zeros; a float with 12 significant digits."""
    if isinstance(number, float):
        return Decimal(core.plain(Decimal("%.12g" % number) + core.ZERO)) if math.isfinite(number) else None
    return core.shown(number).normalize() if isinstance(number, Decimal) else number


def total(values):
    """The exact sum, however far apart the values are."""
    with core.decimal.localcontext(core.WIDE):
        return sum(values, core.ZERO)


def mean(values):
    return total(values) / len(values)


def quantile(ordered, share):
    """Linear interpolation between the two nearest values."""
    at = Decimal(len(ordered) - 1) * share
    low = int(at)
    if low + 1 >= len(ordered):
        return ordered[-1]
    return ordered[low] + (ordered[low + 1] - ordered[low]) * (at - low)


def stdev(values):
    if len(values) < 2:
        return None
    floats = [float(value - values[0]) for value in values]
    middle = math.fsum(floats) / len(floats)
    return math.sqrt(math.fsum((x - middle) ** 2 for x in floats) / (len(floats) - 1))


def aggregate(function, column, at, share=None):
    """One figure over the rows `at` of a column."""
    if function == "count" and column is None:
        return len(at)
    values = [column.values[row] for row in at if column.values[row] is not None]
    if function == "count":
        return len(values)
    if function == "distinct":
        return len(set(values))
    if not values:
        return core.ZERO if function == "sum" else None
    if function in ("min", "max"):
        return (min if function == "min" else max)(values)
    if function == "sum":
        return total(values)
    if function == "mean":
        return figure(mean(values))
    if function in ("median", "percentile"):
        return figure(quantile(sorted(values), Decimal("0.5") if share is None else share))
    return figure(stdev(values))


def column_for(table, function, op, path):
    if function == "count" and "column" not in op:
        return None
    if "column" not in op:
        raise core.Refused(path + ".column", "%s needs the column that it is taken of" % function)
    if (function == "percentile") != ("percent" in op):
        raise core.Refused(path + ".percent", "percentile needs percent, and nothing else takes it")
    kinds = None if function in ("count", "distinct") else ("number", "date") if function in ("min", "max") else ("number",)
    return table.get(op["column"], path + ".column", kinds)


# operations

def describe(table, op, path):
    out = []
    for column in table.several(op, path):
        values = column.present()
        entry = dict(column.summary(), count=len(values), distinct=len(set(values)))
        if column.kind == "number" and values:
            ordered = sorted(values)
            entry.update({
                "sum": total(values), "mean": figure(mean(values)), "stdev": figure(stdev(values)),
                "min": ordered[0], "q1": figure(quantile(ordered, Decimal("0.25"))),
                "median": figure(quantile(ordered, Decimal("0.5"))), "q3": figure(quantile(ordered, Decimal("0.75"))), "max": ordered[-1]})
        elif column.kind == "date" and values:
            entry.update({"min": min(values), "max": max(values), "days": (max(values) - min(values)).days})
        elif values:
            counts = {}
            for value in values:
                counts[value] = counts.get(value, 0) + 1
            top = sorted(counts.items(), key=lambda item: (-item[1], str(item[0])))[:5]
            entry["top"] = [{"value": core.clip(value, 200) if isinstance(value, str) else value, "count": count} for value, count in top]
        out.append(entry)
    return {"columns": out}


def missing(table, op, path):
    columns = table.several(op, path)
    complete = sum(1 for row in range(table.count) if all(column.values[row] is not None for column in columns))
    share = lambda count: core.divide(Decimal(count), Decimal(table.count), 6) if table.count else None
    return {"complete_rows": complete, "columns": [
        {"name": c.name, "missing": c.missing, "invalid": c.invalid, "share": share(c.missing + c.invalid)} for c in columns]}


def group_by(table, op, path):
    by, measures = need(op, path, "by", "measures")
    keys = [table.get(name, "%s.by[%d]" % (path, i)).values for i, name in enumerate(by)]
    if "period" in op:
        keys = [by_period(table, name, "%s.by[%d]" % (path, i), op["period"]) for i, name in enumerate(by)]
        if not any(table.columns[name].kind == "date" for name in by):
            raise core.Refused(path + ".period", "none of the columns in by holds dates")
    groups = {}
    for row in range(table.count):
        groups.setdefault(tuple(key[row] for key in keys), []).append(row)
    return grouped(table, op, path, by, measures, groups)


def grouped(table, op, path, by, measures, groups):
    """The measures of each group, at most `top` groups: the largest ones, in the order of their keys."""
    columns = [column_for(table, m["function"], m, "%s.measures[%d]" % (path, i)) for i, m in enumerate(measures)]
    most = op.get("top", 100)
    kept = sorted(groups, key=lambda key: -len(groups[key]))[:most]
    kept = sorted(kept, key=order)
    rows = [{"group": list(key), "rows": len(groups[key]),
             "values": [aggregate(m["function"], column, groups[key], share_of(m)) for m, column in zip(measures, columns)]} for key in kept]
    if len(groups) > most:
        table.notes.append("Of %d groups the %d largest are shown; `top` sets how many." % (len(groups), most))
    return {"by": by, "measures": [name_of(m, column) for m, column in zip(measures, columns)], "groups": rows, "groups_in_all": len(groups)}


def share_of(measure):
    return Decimal(measure["percent"]) / 100 if "percent" in measure else None


def period_of(day, period):
    """The name of the day's period, in an order that sorts as time does."""
    if period == "week":
        year, week, _ = day.isocalendar()
        return "%04d-W%02d" % (year, week)
    return {"day": day.isoformat()[:10], "month": "%04d-%02d" % (day.year, day.month),
            "quarter": "%04d-Q%d" % (day.year, (day.month + 2) // 3), "year": "%04d" % day.year}[period]


def by_period(table, name, path, period):
    column = table.get(name, path)
    if column.kind != "date":
        return column.values
    return [None if day is None else period_of(day, period) for day in column.values]


def time_series(table, op, path):
    """Measures by period, with the periods in between that have no rows."""
    date, period, measures = need(op, path, "date", "period", "measures")
    column = table.get(date, path + ".date", ("date",))
    groups, undated = {}, 0
    for row, day in enumerate(column.values):
        if day is None:
            undated += 1
        else:
            groups.setdefault((period_of(day, period),), []).append(row)
    if undated:
        table.notes.append("%s without a date in %s are in no period." % (core.count(undated, "row"), core.clip(date)))
    days = column.present()
    if days:
        day, last = min(days), max(days)
        while day < last and len(groups) <= MOST_PERIODS:
            groups.setdefault((period_of(day, period),), [])
            day += core.datetime.timedelta(days=1)
    if len(groups) > MOST_PERIODS:
        raise core.Refused(path + ".period", "this comes to more than %d periods; take a longer one" % MOST_PERIODS)
    return grouped(table, dict({"top": MOST_PERIODS}, **op), path, [period], measures, groups)


def order(key):
    return [(value is None, isinstance(value, str), value if not isinstance(value, bool) else int(value)) for value in key]


def name_of(measure, column=None):
    function = measure["function"]
    if "percent" in measure:
        function = "percentile %s" % core.plain(Decimal(measure["percent"]))
    unit = " (%s)" % column.unit if column is not None and column.unit and function not in ("count", "distinct") else ""
    return "%s of %s%s" % (function, measure["column"], unit) if "column" in measure else function


def pivot(table, op, path):
    rows, across = need(op, path, "rows", "across")
    down, along = table.get(rows, path + ".rows"), table.get(across, path + ".across")
    function = op.get("function", "sum")
    column = column_for(table, function, op, path)
    places = {}
    for row in range(table.count):
        places.setdefault((down.values[row], along.values[row]), []).append(row)
    names = sorted({key[1] for key in places}, key=lambda v: order([v]))
    sides = sorted({key[0] for key in places}, key=lambda v: order([v]))
    most = op.get("top", 100)
    if len(names) > most or len(sides) > most:
        table.notes.append("The pivot shows the first %d rows and columns of %d and %d; totals are of all." % (most, len(sides), len(names)))
    along_all, names, sides = names, names[:most], sides[:most]
    cells = [[aggregate(function, column, places[(side, name)], share_of(op)) if (side, name) in places else None for name in names] for side in sides]
    totals = [aggregate(function, column, [row for name in along_all for row in places.get((side, name), [])], share_of(op)) for side in sides]
    return {"function": name_of(dict(op, function=function), column), "rows": rows, "across": across, "columns": names,
            "cells": [{"row": side, "values": line, "total": total} for side, line, total in zip(sides, cells, totals)]}


def correlation(table, op, path):
    columns = table.several(op, path, ("number", "date"))
    if "columns" in op and len(columns) < 2 or len(columns) > 40:
        raise core.Refused(path + ".columns", "2 to 40 columns of numbers or dates are needed, not %d" % len(columns))
    method = op.get("method", "pearson")
    if method not in ("pearson", "spearman"):
        raise core.Refused(path + ".method", "a correlation is pearson or spearman")
    pairs = []
    for i, a in enumerate(columns):
        for b in columns[i + 1:]:
            xs, ys = both(a, b)
            if method == "spearman":
                xs, ys = ranks(xs), ranks(ys)
            pairs.append({"a": a.name, "b": b.name, "r": figure(pearson(xs, ys)), "n": len(xs)})
    return {"method": method, "pairs": pairs}


def both(a, b):
    xs, ys = a.floats(), b.floats()
    if a.missing or b.missing or a.invalid or b.invalid:
        kept = [(x, y) for x, y in zip(xs, ys) if x is not None and y is not None]
        return [x for x, _ in kept], [y for _, y in kept]
    return xs, ys


def centred(values):
    middle = math.fsum(values) / len(values)
    return [value - middle for value in values], middle


def pearson(xs, ys):
    """Nothing where a correlation has no meaning: fewer than two rows, or a column that does not vary."""
    if len(xs) < 2 or min(xs) == max(xs) or min(ys) == max(ys):
        return None
    dx, _ = centred(xs)
    dy, _ = centred(ys)
    spread = math.sqrt(math.fsum(x * x for x in dx)) * math.sqrt(math.fsum(y * y for y in dy))
    return max(-1.0, min(1.0, math.fsum(map(operator.mul, dx, dy)) / spread)) if spread else None


def ranks(values):
    """Ranks from 1; equal values share the mean of theirs."""
    out = [0.0] * len(values)
    by_value = sorted(range(len(values)), key=values.__getitem__)
    at = 0
    while at < len(by_value):
        end = at
        while end + 1 < len(by_value) and values[by_value[end + 1]] == values[by_value[at]]:
            end += 1
        for index in by_value[at:end + 1]:
            out[index] = (at + end) / 2 + 1
        at = end + 1
    return out


def trend(table, op, path):
    x, y = need(op, path, "x", "y")
    a, b = table.get(x, path + ".x", ("number", "date")), table.get(y, path + ".y", ("number",))
    xs, ys = both(a, b)
    out = {"x": x, "y": y, "n": len(xs), "slope": None, "intercept": None, "r_squared": None, "slope_error": None, "x_unit": None, "predicted": []}
    wanted = [(text, place_of(a, text, "%s.predict[%d]" % (path, i))) for i, text in enumerate(op.get("predict", []))]
    if a.kind == "date":
        dated = [day for day, number in zip(a.values, b.values) if day is not None and number is not None]
        out["x_unit"] = "days from %s" % (min(dated).isoformat() if dated else "the first date")
        first = min(xs) if xs else 0.0
        xs = [value - first for value in xs]
        wanted = [(text, place - first) for text, place in wanted]
    if len(xs) < 2 or min(xs) == max(xs):
        return out
    dx, mx = centred(xs)
    dy, my = centred(ys)
    sxx, sxy, syy = math.fsum(v * v for v in dx), math.fsum(map(operator.mul, dx, dy)), math.fsum(v * v for v in dy)
    if not sxx:
        return out
    slope = sxy / sxx
    left = math.fsum((v - slope * u) ** 2 for u, v in zip(dx, dy))
    at_zero = float(core.Decimal(my) + b.origin - core.Decimal(slope) * (core.Decimal(mx) + a.origin))
    out.update(slope=figure(slope), intercept=figure(at_zero), r_squared=figure(1 - left / syy) if syy else None,
               slope_error=figure(math.sqrt(left / (len(xs) - 2) / sxx)) if len(xs) > 2 else None,
               predicted=[{"x": text, "y": figure(float(core.Decimal(my + slope * (place - mx)) + b.origin))} for text, place in wanted])
    return out


def place_of(column, text, path):
    """A number, or a day of a column of dates, as a place along the trend."""
    if column.kind == "date":
        day = moment_of(text)
        if day is None:
            raise core.Refused(path, "column %r holds dates, and this is none" % core.clip(column.name))
        return float(day_number(day))
    number = core.quantity(text)
    if number is None or number[1]:
        raise core.Refused(path, "column %r holds numbers, and this is none" % core.clip(column.name))
    return float(number[0] - column.origin)


def outliers(table, op, path):
    name, = need(op, path, "column")
    column = table.get(name, path + ".column", ("number",))
    method = op.get("method", "iqr")
    if method not in ("iqr", "zscore", "mad"):
        raise core.Refused(path + ".method", "outliers are found by iqr, zscore or mad")
    limit = Decimal(op.get("limit", {"iqr": "1.5", "zscore": "3", "mad": "3.5"}[method]))
    values = column.present()
    out = {"column": name, "method": method, "limit": limit, "low": None, "high": None, "count": 0, "rows": []}
    if not values:
        return out
    ordered = sorted(values)
    if method == "iqr":
        q1, q3 = quantile(ordered, Decimal("0.25")), quantile(ordered, Decimal("0.75"))
        low, high = q1 - limit * (q3 - q1), q3 + limit * (q3 - q1)
    elif method == "zscore":
        spread = stdev(values)
        if not spread:
            return out
        low, high = mean(values) - limit * Decimal(spread), mean(values) + limit * Decimal(spread)
    else:
        middle = quantile(ordered, Decimal("0.5"))
        spread = quantile(sorted(abs(value - middle) for value in values), Decimal("0.5")) / Decimal("0.6745")
        low, high = middle - limit * spread, middle + limit * spread
    hits = [(row + 1, value) for row, value in enumerate(column.values) if value is not None and not low <= value <= high]
    out.update(low=figure(low), high=figure(high), count=len(hits), rows=[{"row": row, "value": value} for row, value in hits[:LISTED]])
    return out


def chart(table, op, path):
    kind = op.get("kind", "line")
    x, = need(op, path, "x")
    a = table.get(x, path + ".x", ("number",) if kind == "histogram" else None)
    b = None if kind == "histogram" else table.get(need(op, path, "y")[0], path + ".y", ("number",))
    out = {"kind": kind, "x": x, "y": b.name if b else None, "drawn": False, "reason": None}
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        out["reason"] = "matplotlib is not installed"
        return out, None
    rows = [row for row in range(table.count) if a.values[row] is not None and (b is None or b.values[row] is not None)]
    if kind == "line" and a.kind in ("number", "date"):
        rows.sort(key=lambda row: a.values[row])  # along the axis, whatever the order of the rows
    if len(rows) < table.count:
        table.notes.append("Not in the chart: %s without a value." % core.count(table.count - len(rows), "row"))
    step = max(1, -(-len(rows) // (60 if kind == "bar" else POINTS)))
    if step > 1 and kind != "histogram":
        rows = rows[::step]
        table.notes.append("The chart shows 1 row of each %d; group_by sums them up." % step)
    picture = Figure(figsize=(8, 4.5))
    FigureCanvasAgg(picture)
    axes = picture.add_subplot()
    xs, labels = places(a, rows, kind)
    if kind == "histogram":
        axes.hist(xs, bins=min(50, max(5, int(math.sqrt(len(xs) or 1)))))
    else:
        ys = [float(b.values[row]) for row in rows]
        {"line": axes.plot, "bar": axes.bar, "scatter": axes.scatter}[kind](xs, ys)
        axes.set_ylabel(core.clip(b.name).replace("$", r"\$"))
    axes.set_xlabel(core.clip(x).replace("$", r"\$"))
    if a.kind != "number":
        picture.autofmt_xdate()
    if labels:
        every = -(-len(labels) // 60)
        axes.set_xticks(range(0, len(labels), every), labels[::every])
    stored = io.BytesIO()
    picture.savefig(stored, format="png", dpi=100, bbox_inches="tight")
    out["drawn"] = True
    return out, base64.b64encode(stored.getvalue()).decode("ascii")


def places(column, rows, kind):
    """Where the rows are on the x axis, and what is written there. Each row has a bar of its own, for one at the place of
    another would hide it; texts are told apart before they are cut."""
    label = lambda value: core.clip(value if isinstance(value, str) else core.cell(value), 30).replace("$", r"\$")
    if kind == "bar":
        return range(len(rows)), [label(column.values[row]) for row in rows]
    if column.kind in ("number", "date"):
        return [float(column.values[row]) if column.kind == "number" else column.values[row] for row in rows], None
    seen = {}
    xs = [seen.setdefault(column.values[row], len(seen)) for row in rows]
    return xs, [label(value) for value in seen]


EXAMPLES = {
    "group_by": '{"do": "group_by", "by": ["region"], "measures": [{"function": "sum", "column": "amount"}]}',
    "time_series": '{"do": "time_series", "date": "day", "period": "month", "measures": [{"function": "sum", "column": "amount"}]}',
    "pivot": '{"do": "pivot", "rows": "region", "across": "year", "column": "amount", "function": "sum"}',
    "trend": '{"do": "trend", "x": "year", "y": "amount"}', "outliers": '{"do": "outliers", "column": "amount"}',
    "chart": '{"do": "chart", "kind": "line", "x": "year", "y": "amount"}',
}
OPERATIONS = {"describe": describe, "missing": missing, "group_by": group_by, "time_series": time_series, "pivot": pivot, "correlation": correlation,
              "trend": trend, "outliers": outliers}


# reading

def typed(columns):
    """Columns whose type says the unit, too."""
    return [dict(c, type="%s (%s)" % (c["type"], c["unit"]) if c.get("unit") else c["type"]) for c in columns]


def tables(output):
    out = []
    for r in output["results"]:
        do = r["do"]
        if do == "describe":
            keys = ("type", "count", "missing", "distinct", "sum", "mean", "stdev", "min", "q1", "median", "q3", "max")
            out.append(core.Table("Description of %s" % core.count(output["rows"], "row"), ["column", "type"] + ["#" + k for k in keys[1:]],
                                  [[c["name"]] + [c.get(k) for k in keys] for c in typed(r["columns"])]))
            rows = [[c["name"], t["value"], t["count"]] for c in r["columns"] for t in c.get("top", [])]
            if rows:
                out.append(core.Table("Most frequent values", ["column", "value", "#count"], rows))
        elif do == "missing":
            out.append(core.Table("Missing values (%s complete)" % core.count(r["complete_rows"], "row is", "rows are"), ["column", "#missing", "#invalid", "#share"],
                                  [[c["name"], c["missing"], c["invalid"], core.percent(c["share"])] for c in r["columns"]]))
        elif do in ("group_by", "time_series"):
            out.append(core.Table("By %s (%s)" % (", ".join(r["by"]), core.count(r["groups_in_all"], "group")), r["by"] + ["#rows"] + ["#" + m for m in r["measures"]],
                                  [g["group"] + [g["rows"]] + g["values"] for g in r["groups"]]))
        elif do == "pivot":
            out.append(core.Table("%s by %s and %s" % (r["function"], r["rows"], r["across"]), [r["rows"]] + ["#" + core.cell(c) for c in r["columns"]] + ["#total"],
                                  [[c["row"]] + c["values"] + [c["total"]] for c in r["cells"]]))
        elif do == "correlation":
            out.append(core.Table("Correlation (%s)" % r["method"], ["a", "b", "#r", "#rows"], [[c["a"], c["b"], c["r"], c["n"]] for c in r["pairs"]]))
        elif do == "outliers":
            out.append(core.Table("Outliers of %s: %d outside %s to %s (%s, limit %s)" % (
                r["column"], r["count"], core.cell(r["low"]), core.cell(r["high"]), r["method"], core.plain(r["limit"])),
                                  ["#row", "#value"], [[o["row"], o["value"]] for o in r["rows"]]))
        else:
            rows = [[k.replace("_", " "), v] for k, v in r.items() if k not in ("do", "predicted")]
            rows += [["at %s" % place["x"], place["y"]] for place in r.get("predicted", [])]
            out.append(core.Table(do.capitalize(), ["what", "figure"], rows))
    return out


def sentences(output):
    said = ["%s with %s: %s." % (core.count(output["rows"], "row"), core.count(len(output["columns"]), "column"), ", ".join(
        "%s (%s)" % (core.clip(c["name"]), ", ".join(filter(None, [c["type"], c.get("unit")]))) for c in output["columns"][:40]))]
    for r in output["results"]:
        do = r["do"]
        if do == "describe":
            for c in r["columns"]:
                if "mean" in c:
                    said.append("%s: %s from %s to %s, mean %s, median %s, sum %s." % tuple(
                        [core.clip(c["name"]), core.count(c["count"], "value")] + [core.cell(c[k]) for k in ("min", "max", "mean", "median", "sum")]))
                elif c.get("top"):
                    said.append("%s: %s, most often %s (%d)." % (core.clip(c["name"]), core.count(c["distinct"], "distinct value"), core.cell(c["top"][0]["value"]), c["top"][0]["count"]))
                elif "days" in c:
                    said.append("%s: from %s to %s." % (core.clip(c["name"]), c["min"], c["max"]))
        elif do == "missing":
            holes = ["%s %d" % (core.clip(c["name"]), c["missing"] + c["invalid"]) for c in r["columns"] if c["missing"] + c["invalid"]]
            said.append("%s complete; missing: %s." % (core.count(r["complete_rows"], "row is", "rows are"), ", ".join(holes) or "nothing"))
        elif do in ("group_by", "time_series"):
            for g in r["groups"][:50]:
                said.append("%s: %s." % (", ".join(core.cell(v) for v in g["group"]), ", ".join("%s %s" % (m, core.cell(v)) for m, v in zip(r["measures"], g["values"]))))
        elif do == "pivot":
            said.append("%s by %s and %s:" % (core.clip(r["function"]), core.clip(r["rows"]), core.clip(r["across"])))
            for c in r["cells"][:50]:
                said.append("%s: %s; total %s." % (core.clip(core.cell(c["row"])), ", ".join(
                    "%s %s" % (core.cell(name), core.cell(value)) for name, value in list(zip(r["columns"], c["values"]))[:20]), core.cell(c["total"])))
        elif do == "correlation":
            said += ["%s and %s correlate with %s (%s)." % (core.clip(c["a"]), core.clip(c["b"]), core.cell(c["r"]), core.count(c["n"], "row")) for c in r["pairs"][:50]]
        elif do == "trend":
            said.append("%s changes by %s for each 1 of %s (intercept %s, R² %s, %s)." % (
                core.clip(r["y"]), core.cell(r["slope"]), core.clip(r["x_unit"] or r["x"]), core.cell(r["intercept"]), core.cell(r["r_squared"]), core.count(r["n"], "row"))
                if r["slope"] is not None else "%s has no trend over %s (%s, or one that does not vary)." % (
                    core.clip(r["y"]), core.clip(r["x"]), core.count(r["n"], "row")))
            said += ["At %s the trend gives %s." % (core.clip(place["x"]), core.cell(place["y"])) for place in r["predicted"]]
        elif do == "outliers":
            rows = ", ".join("%s in row %d" % (core.cell(o["value"]), o["row"]) for o in r["rows"][:10])
            said.append("%s has %s outside %s to %s (%s, limit %s)%s." % (
                core.clip(r["column"]), core.count(r["count"], "value"), core.cell(r["low"]), core.cell(r["high"]), r["method"], core.plain(r["limit"]), ": " + rows if rows else ""))
        else:
            said.append("A %s chart of %s was %s." % (r["kind"], core.clip(r["x"]), "drawn" if r["drawn"] else "not drawn: " + r["reason"]))
    return said
