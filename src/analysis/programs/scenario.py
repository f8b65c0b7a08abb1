"""A base and named changes, a break-even search over one number, a grid over two."""
import itertools
from decimal import Decimal

core = use("core")
cases = use("cases")

SAMPLES = 40  # places at which the search looks for a change of sign
MOST_ROOTS = 10
HALVINGS = 20  # of a bracket as fine as the tolerance, twice, to tell a jump of the figure from one through infinity


def run(p):
    base = cases.Case(p["analysis"], p["base"], "base")
    changed = [cases.Case(p["analysis"], spec["parameters"], "scenarios[%d]" % index) for index, spec in enumerate(p["scenarios"])]
    measures = cases.chosen(p, [base] + changed)
    scenarios, sources = [], list(base.sources)
    for spec, case in zip(p["scenarios"], changed):
        sources += ([spec["source"]] if spec.get("source") else []) + case.sources
        details, _ = cases.differences({"base": base.detail, "scenario": case.detail})
        scenarios.append({
            "id": spec["id"], "title": spec.get("title"), "source": spec.get("source"), "based_on": spec.get("based_on") or "base",
            "changes": spec["set"], "measures": cases.shown_all(case, measures), "units": case.units,
            "differences": {m["id"]: difference(base, case, m["id"]) for m in measures},
            "detail_changes": [{"detail": d["path"], "base": d["values"]["base"], "scenario": d["values"]["scenario"]} for d in details],
        })
    output = {
        "analysis": p["analysis"], "measures": measures,
        "base": {"measures": cases.shown_all(base, measures), "detail": base.detail},
        "scenarios": scenarios,
        "break_even": Search(p, base).result() if "break_even" in p else None,
        "grid": grid(p, base) if "grid" in p else None,
    }
    cases.aligned([output["base"]["measures"]] + [scenario["measures"] for scenario in scenarios])
    return core.Result(output, lambda: tables(output), lambda: sentences(output), base.arithmetic, sources, base.notes + missing(output))


def difference(base, case, name):
    before, after = base.measures.get(name), case.measures.get(name)
    if before is None or after is None or base.units.get(name) != case.units.get(name):  # euros less dollars is nothing
        return {"absolute": None, "relative": None}
    whole = abs(cases.exact(base, name)) if isinstance(before, Decimal) else None
    return {"absolute": cases.minus(case, base, name), "relative": core.divide(cases.exact(case, name) - cases.exact(base, name), whole) if whole else None}


class Search:
    """Looks for the numbers at which a figure meets or passes a target.

    The range is sampled, and each bracket in which the figure passes the target is narrowed down to the tolerance. A
    number at which the figure has no value cannot end a bracket: each side is searched up to it.
    """

    def __init__(self, p, base):
        self.p, self.spec = p, p["break_even"]
        spec, self.whole = self.spec, self.spec["number"]["whole"]
        self.target, self.low, self.high = (Decimal(spec[name]) for name in ("target", "low", "high"))
        self.tolerance = Decimal(spec.get("tolerance", "0.01"))
        if self.low >= self.high:
            raise core.Refused("break_even.low", "the low end is not below the high end")
        if self.tolerance == 0 or (self.high - self.low) / self.tolerance > Decimal(10) ** 15:
            raise core.Refused("break_even.tolerance", "too fine for this range")
        if self.whole:
            self.tolerance = core.ONE
        self.measure = cases.resolve(base, spec["measure"], "break_even.measure")
        if base.measures[self.measure] is not None and not isinstance(base.measures[self.measure], Decimal):
            raise core.Refused("break_even.measure", "a search needs a number, and this is a day")
        self.unit = base.units.get(self.measure)
        self.memo, self.found, self.jumps = {}, [], []

    def at(self, x):
        """How far the figure is from the target, and the figure as it is shown; or nothing, and why."""
        if x not in self.memo:
            case, why = case_with(self.p, [(self.spec, x)], self.measure, "break_even")
            self.memo[x] = (None, why) if why else (cases.exact(case, self.measure) - self.target, core.shown(case.measures[self.measure]))
        return self.memo[x]

    def gap(self, x):
        return self.at(x)[0]

    def value(self, x):
        return None if self.gap(x) is None else self.at(x)[1]

    def result(self):
        points = [self.low + (self.high - self.low) * step / SAMPLES for step in range(SAMPLES + 1)]
        if self.whole:
            points = sorted({core.round_to(x, core.ONE, "floor") for x in points})
        else:
            points = [Decimal(core.plain(x, 12)) for x in points]
        self.along(points)
        known = [x for x in points + [place["at"] for place in self.found] if self.gap(x) is not None]
        nearest = min(known, key=lambda x: abs(self.gap(x))) if known else None
        return {
            "path": self.spec["path"], "measure": self.measure, "target": self.target, "unit": self.unit, "tolerance": self.tolerance,
            "found": bool(self.found), "at": self.found, "at_low": self.value(points[0]), "at_high": self.value(points[-1]),
            "nearest": None if nearest is None else {"at": nearest, "value": self.value(nearest)},
            "without_value": self.holes(),
        }

    def holes(self):
        """Where the figure was found to have no value, each from the first to the last such number, and where it jumps through infinity."""
        out = []
        for without, row in itertools.groupby(sorted(self.memo), lambda x: self.gap(x) is None):
            row = list(row)
            if without:
                first, last = (core.round_to(x, self.tolerance / 1000, way) for x, way in ((row[0], "ceiling"), (row[-1], "floor")))
                ends = [first, last] if first <= last else [row[0], row[-1]]
                out.append({"between": [tidy(x) for x in ends], "reason": self.at(row[0])[1]})
        jumps = [jump for jump in self.jumps if not any(jump[0] <= hole["between"][0] <= jump[1] for hole in out)]
        out += [{"between": [tidy(left), tidy(right)], "reason": "it goes to infinity between them"} for left, right in jumps]
        return sorted(out, key=lambda hole: hole["between"])

    def along(self, points):
        """Collects the places from the first of these points to the last."""
        points, index = self.with_edges(points), 0
        while index < len(points) and len(self.found) + len(self.jumps) < MOST_ROOTS:
            first = last = index
            while last < len(points) and self.gap(points[last]) == 0:
                last += 1
            if last > first + 1:  # the figure keeps the target from one point to the next
                near = lambda place, hit: points[place] if self.gap(points[place]) is not None else hit
                left, right = near(max(first - 1, 0), points[first]), near(min(last, len(points) - 1), points[last - 1])
                self.level(left, (points[first], points[last - 1]), right)
            elif last > first:
                self.root(points[first], points[first])
            elif first + 1 < len(points) and self.passes(points[first], points[first + 1]):
                self.narrow(points[first], points[first + 1])
            index = max(last, first + 1)

    def passes(self, left, right):
        """Whether the figure is below the target at one of them and above at the other."""
        a, b = self.gap(left), self.gap(right)
        return bool(a and b) and (a < 0) != (b < 0)

    def with_edges(self, points):
        """The points, and between two of which only one has a value the last number up to which the figure has one."""
        out = points[:1]
        for left, right in zip(points, points[1:]):
            gaps = self.gap(left), self.gap(right)
            if gaps[0] is not None and gaps[1] is None:
                out.append(self.edge(left, right))
            elif gaps[0] is None and gaps[1] is not None:
                out.append(self.edge(right, left))
            out.append(right)
        return list(dict.fromkeys(out))

    def edge(self, inside, outside):
        while abs(outside - inside) > self.tolerance / (1 if self.whole else 1024):
            middle = self.halved(inside, outside)
            if middle in (inside, outside):
                break
            inside, outside = (inside, middle) if self.gap(middle) is None else (middle, outside)
        return self.even(inside, outside, (inside, outside), lambda x: self.gap(x) is not None)

    def even(self, inside, outside, limits, fits):
        """A multiple of the tolerance next to `inside`, where one fits, that towards `outside` first; else the number itself."""
        near = sorted((core.round_to(inside, self.tolerance, way) for way in ("floor", "ceiling")), key=lambda x: abs(x - outside))
        return tidy(next((x for x in near if min(limits) <= x <= max(limits) and fits(x)), inside))

    def halved(self, left, right):
        middle = (left + right) / 2
        return core.round_to(middle, core.ONE, "floor") if self.whole else Decimal(core.plain(middle, 20))

    def narrow(self, left, right):
        while right - left > self.tolerance:
            middle = self.halved(left, right)
            if middle in (left, right):
                break
            if self.gap(middle) is None:
                return self.along([left, middle, right])
            if self.gap(middle) == 0:
                return self.level(left, (middle, middle), right)
            left, right = (left, middle) if self.passes(left, middle) else (middle, right)
        even = core.round_to((left + right) / 2, self.tolerance, "half_even")
        if left < even < right and self.gap(even) is None:
            self.along([left, even, right])
        elif left <= even <= right and self.gap(even) == 0:  # a round number that hits the target is the better answer
            self.root(even, even)
        elif self.endless(left, right):
            self.jumps.append((left, right))
        else:
            self.root(left, right)

    def endless(self, left, right):
        """Whether the figure passes the target through infinity: the nearer two numbers are, the farther apart are their figures."""
        spread = [abs(self.gap(left)) + abs(self.gap(right))]
        for _ in range(0 if self.whole else 2 * HALVINGS):
            middle = (left + right) / 2
            if not self.gap(middle):
                return self.gap(middle) is None
            left, right = (left, middle) if self.passes(left, middle) else (middle, right)
            spread.append(abs(self.gap(left)) + abs(self.gap(right)))
            if spread[-1] * 1000 < spread[0]:
                return False
        return not self.whole and spread[-1] > spread[HALVINGS] * 1000

    def level(self, left, hits, right):
        """Where a figure keeps the target for a while, as a rounded one does: from its first place to its last."""
        ends = []
        for outside, inside in ((left, hits[0]), (right, hits[1])):
            while abs(outside - inside) > self.tolerance:
                middle = self.halved(outside, inside)
                if middle in (outside, inside):
                    break
                inside, outside = (middle, outside) if self.gap(middle) == 0 else (inside, middle)
            ends.append(self.even(inside, outside, (left, right), lambda x: self.gap(x) == 0))
        self.root(ends[0], ends[0], ends)

    def root(self, left, right, level=None):
        best = left if abs(self.gap(left)) <= abs(self.gap(right)) else right
        if left != right:  # no more digits than the search is fine; `between` has the bracket
            coarse = core.round_to(best, self.tolerance, "half_even")
            best = coarse if left <= coarse <= right and self.gap(coarse) is not None else best
        ends = level or [tidy(left), tidy(right)]
        self.found.append({"at": tidy(best), "value": self.value(best), "exact": self.gap(best) == 0, "between": ends, "values": [self.value(x) for x in ends]})


def tidy(x):
    """A number that was found, without idle zeros."""
    return Decimal(core.plain(x, 20))


def case_with(p, numbers, measure, path):
    """The base with some numbers replaced, and why the measure has no value there, if it has none."""
    parameters = p["base"]
    for spec, value in numbers:
        parameters = cases.with_number(parameters, spec["number"], value)
    try:
        case = cases.Case(p["analysis"], parameters, path, partial=True)
    except core.NoValue as error:
        return None, error.message
    except core.Refused as refused:
        places = ", ".join("%s at %s" % (core.clip(spec["path"]), core.plain(value)) for spec, value in numbers)
        raise core.Refused(refused.path, "%s (with %s)" % (refused.message, places))
    if case.measures.get(measure) is not None:
        return case, None
    return case, case.without[measure].message if measure in case.without else "it is not known there"


def grid(p, base):
    spec = p["grid"]
    measure = cases.resolve(base, spec["measure"], "grid.measure")
    rows, columns = spec["rows"], spec["columns"]
    if rows["number"]["steps"] == columns["number"]["steps"]:
        raise core.Refused("grid.columns.path", "rows and columns change the same number")
    cells, without = [], []
    for row in rows["values"]:
        line = []
        for column in columns["values"]:
            case, why = case_with(p, [(rows, Decimal(row)), (columns, Decimal(column))], measure, "grid")
            line.append(None if why else core.shown(case.measures[measure]))
            without += [{"row": row, "column": column, "reason": why}] if why else []
        cells.append(line)
    return {"measure": measure, "rows": {"path": rows["path"], "values": rows["values"]},
            "columns": {"path": columns["path"], "values": columns["values"]}, "cells": cells, "without_value": without}


def missing(output):
    """Notes on the numbers at which a search or a grid found no value."""
    search, table, notes = output["break_even"], output["grid"], []
    for hole in search["without_value"][:10] if search else ():
        first, last = hole["between"]
        notes.append("%s has no value at %s = %s: %s." % (core.clip(search["measure"]), core.clip(search["path"]),
            core.plain(first) if first == last else "%s to %s" % (core.plain(first), core.plain(last)), hole["reason"]))
    for cell in table["without_value"][:10] if table else ():
        notes.append("%s has no value at %s = %s, %s = %s: %s." % (core.clip(table["measure"]), core.clip(table["rows"]["path"]), cell["row"],
            core.clip(table["columns"]["path"]), cell["column"], cell["reason"]))
    return notes


def label(measure):
    return (measure["title"] or measure["id"].replace("_", " ")) + (" (%s)" % measure["unit"] if measure["unit"] else "")


def figure_of(scenario, measure):
    """A figure; with its unit where that is not the base's."""
    figure, unit = scenario["measures"][measure["id"]], scenario["units"].get(measure["id"])
    return figure if unit == measure["unit"] else core.with_unit(figure, unit or "without a unit")


def number_at(place):
    """Where the search found the target: one number, or a range in which the figure stays there."""
    first, last = place["between"]
    if place["exact"] and first != last:
        return "%s to %s" % (core.plain(first), core.plain(last))
    return core.plain(place["at"])


def tables(output):
    measures = output["measures"]
    headings, base = ["scenario"], ["base"]
    for m in measures:
        headings += ["#" + label(m), "#change", "#change %"]
        base += [output["base"]["measures"][m["id"]], None, None]
    rows = [base]
    headings.append("source")
    base.append(None)
    for s in output["scenarios"]:
        row = [s["title"] or s["id"]]
        for m in measures:
            change = s["differences"][m["id"]]
            row += [figure_of(s, m), change["absolute"], None if change["relative"] is None else core.rounded(change["relative"] * 100, 2)]
        rows.append(row + [s["source"]])
    out = [core.Table("Scenarios", headings, rows)]
    search = output["break_even"]
    if search:
        out.append(core.Table("Where %s is %s" % (search["measure"], core.plain(search["target"])), ["#" + search["path"], "#value", "exact", "#from", "#to"], [
            [r["at"], r["value"], r["exact"], r["between"][0], r["between"][1]] for r in search["at"]]))
    table = output["grid"]
    if table:
        out.append(core.Table("%s by %s (down) and %s (across)" % (table["measure"], table["rows"]["path"], table["columns"]["path"]),
                              ["#"] + ["#" + core.cell(c) for c in table["columns"]["values"]],
                              [[value] + line for value, line in zip(table["rows"]["values"], table["cells"])]))
    return out


def sentences(output):
    base = output["base"]["measures"]
    said = ["Base: %s." % ", ".join("%s %s" % (label(m), core.cell(base[m["id"]])) for m in output["measures"])]
    for s in output["scenarios"]:
        parts = []
        for m in output["measures"]:
            change = s["differences"][m["id"]]["absolute"]
            sign = "" if change is None else " (%s%s)" % ("+" if change > 0 else "", core.plain(change))
            parts.append("%s %s%s" % (label(m), core.cell(figure_of(s, m)), sign))
        said.append("%s: %s." % (core.clip(s["title"] or s["id"]), ", ".join(parts)))
    search = output["break_even"]
    if search and search["found"]:
        for r in search["at"]:
            about = "" if r["exact"] else " (to within %s, where it is %s)" % (core.plain(search["tolerance"]), core.cell(r["value"]))
            said.append("%s reaches %s at %s = %s%s." % (search["measure"], core.with_unit(search["target"], search["unit"]), core.clip(search["path"]), number_at(r), about))
    elif search:
        said.append("%s does not reach %s in the range searched: it is %s at the low end and %s at the high end." % (
            search["measure"], core.plain(search["target"]), *("without a value" if search[end] is None else core.cell(search[end]) for end in ("at_low", "at_high"))))
    if output["grid"]:
        said.append("The grid of %s has %d by %d cells." % (output["grid"]["measure"], len(output["grid"]["cells"]), len(output["grid"]["columns"]["values"])))
    return said
