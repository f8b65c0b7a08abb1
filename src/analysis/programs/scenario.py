"""A base and named changes, a break-even search over one number, a grid over two."""
from decimal import Decimal

core = use("core")
cases = use("cases")

SAMPLES = 40  # places at which the search looks for a change of sign
MOST_ROOTS = 10


def run(p):
    base = cases.Case(p["analysis"], p["base"], "base")
    measures = cases.chosen(p, base)
    scenarios, sources = [], list(base.sources)
    for index, spec in enumerate(p["scenarios"]):
        case = cases.Case(p["analysis"], spec["parameters"], "scenarios[%d]" % index)
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
        "break_even": break_even(p, base) if "break_even" in p else None,
        "grid": grid(p, base) if "grid" in p else None,
    }
    cases.aligned([output["base"]["measures"]] + [scenario["measures"] for scenario in scenarios])
    return core.Result(output, lambda: tables(output), lambda: sentences(output), base.arithmetic, sources, base.notes)


def difference(base, case, name):
    before, after = base.measures.get(name), case.measures.get(name)
    if before is None or after is None or base.units.get(name) != case.units.get(name):  # euros less dollars is nothing
        return {"absolute": None, "relative": None}
    change = cases.minus(after, before)
    return {"absolute": core.shown(change), "relative": core.divide(change, abs(before)) if isinstance(before, Decimal) and before else None}


def break_even(p, base):
    """Brackets of the number in which the figure passes the target, each narrowed down to the tolerance."""
    spec = p["break_even"]
    number, target = spec["number"], Decimal(spec["target"])
    low, high = Decimal(spec["low"]), Decimal(spec["high"])
    if low >= high:
        raise core.Refused("break_even.low", "the low end is not below the high end")
    tolerance = Decimal(spec.get("tolerance", "0.01"))
    if tolerance == 0 or (high - low) / tolerance > Decimal(10) ** 15:
        raise core.Refused("break_even.tolerance", "too fine for this range")
    if number["whole"]:
        tolerance = core.ONE
    measure = cases.resolve(base, spec["measure"], "break_even.measure")
    if base.measures[measure] is not None and not isinstance(base.measures[measure], Decimal):
        raise core.Refused("break_even.measure", "a search needs a number, and this is a day")
    memo = {}

    def at(x):
        """How far the figure is from the target, and the figure as it is shown."""
        if x not in memo:
            case = cases.Case(p["analysis"], cases.with_number(p["base"], number, x), "break_even")
            value = cases.exact(case, measure)
            memo[x] = (None, None) if value is None else (value - target, core.shown(case.measures[measure]))
        return memo[x]

    gap = lambda x: at(x)[0]

    points = [low + (high - low) * step / SAMPLES for step in range(SAMPLES + 1)]
    if number["whole"]:
        points = sorted({core.round_to(x, core.ONE, "floor") for x in points})
    else:
        points = [Decimal(core.plain(x, 12)) for x in points]
    found, index = [], 0
    while index < len(points) and len(found) < MOST_ROOTS:
        first = last = index
        while last < len(points) and gap(points[last]) == 0:
            last += 1
        if last > first + 1:  # the figure keeps the target from one sample to the next
            near = lambda place, hit: points[place] if gap(points[place]) is not None else hit
            left, right = near(max(first - 1, 0), points[first]), near(min(last, len(points) - 1), points[last - 1])
            found.append(level(left, (points[first], points[last - 1]), right, at, tolerance, number["whole"]))
        elif last > first:
            found.append(root(points[first], points[first], at))
        elif first + 1 < len(points):
            a, b = gap(points[first]), gap(points[first + 1])
            if a is not None and b and (a < 0) != (b < 0):
                found.append(narrow(points[first], points[first + 1], at, tolerance, number["whole"]))
        index = max(last, first + 1)
    known = [x for x in points + [place["at"] for place in found] if gap(x) is not None]
    nearest = min(known, key=lambda x: abs(gap(x))) if known else None
    return {
        "path": spec["path"], "measure": measure, "target": target, "unit": base.units.get(measure), "tolerance": tolerance,
        "found": bool(found), "at": found, "at_low": at(points[0])[1], "at_high": at(points[-1])[1],
        "nearest": None if nearest is None else {"at": nearest, "value": at(nearest)[1]},
    }


def halved(left, right, whole):
    middle = (left + right) / 2
    return core.round_to(middle, core.ONE, "floor") if whole else Decimal(core.plain(middle, 20))


def narrow(left, right, at, tolerance, whole):
    gap = lambda x: at(x)[0]
    below = gap(left) < 0
    while right - left > tolerance:
        middle = halved(left, right, whole)
        here = gap(middle)
        if here is None or middle in (left, right):
            break
        if here == 0:
            return level(left, (middle, middle), right, at, tolerance, whole)
        if (here < 0) == below:
            left = middle
        else:
            right = middle
    even = core.round_to((left + right) / 2, tolerance, "half_even")
    if gap(even) == 0:  # a round number that hits the target is the better answer
        return root(even, even, at)
    return root(left, right, at, tolerance)


def tidy(x):
    """A number that was found, without idle zeros."""
    return Decimal(core.plain(x, 20))


def level(left, hits, right, at, tolerance, whole):
    """Where a figure keeps the target for a while, as a rounded one does: from its first place to its last."""
    ends = []
    for outside, inside, ways in ((left, hits[0], ("floor", "ceiling")), (right, hits[1], ("ceiling", "floor"))):
        while abs(outside - inside) > tolerance:
            middle = halved(outside, inside, whole)
            if middle in (outside, inside):
                break
            if at(middle)[0] == 0:
                inside = middle
            else:
                outside = middle
        even = [core.round_to(inside, tolerance, way) for way in ways]
        ends.append(tidy(next((x for x in even if left <= x <= right and at(x)[0] == 0), inside)))
    out = root(ends[0], ends[0], at)
    out.update(between=ends, values=[at(end)[1] for end in ends])
    return out


def root(left, right, at, tolerance=core.ONE):
    gap = lambda x: at(x)[0]
    best = left if abs(gap(left)) <= abs(gap(right)) else right
    if left != right:  # no more digits than the search is fine; `between` has the bracket
        coarse = core.round_to(best, tolerance, "half_even")
        best = coarse if left <= coarse <= right else best
    return {"at": tidy(best), "value": at(best)[1], "exact": gap(best) == 0, "between": [tidy(left), tidy(right)], "values": [at(left)[1], at(right)[1]]}


def grid(p, base):
    spec = p["grid"]
    measure = cases.resolve(base, spec["measure"], "grid.measure")
    rows, columns = spec["rows"], spec["columns"]
    cells = []
    for row in rows["values"]:
        with_row = cases.with_number(p["base"], rows["number"], Decimal(row))
        line = []
        for column in columns["values"]:
            case = cases.Case(p["analysis"], cases.with_number(with_row, columns["number"], Decimal(column)), "grid")
            line.append(core.shown(case.measures[measure]))
        cells.append(line)
    return {"measure": measure, "rows": {"path": rows["path"], "values": rows["values"]},
            "columns": {"path": columns["path"], "values": columns["values"]}, "cells": cells}


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
            row += [figure_of(s, m), change["absolute"], None if change["relative"] is None else (change["relative"] * 100).quantize(Decimal("0.01"))]
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
            search["measure"], core.plain(search["target"]), core.cell(search["at_low"]), core.cell(search["at_high"])))
    if output["grid"]:
        said.append("The grid of %s has %d by %d cells." % (output["grid"]["measure"], len(output["grid"]["cells"]), len(output["grid"]["columns"]["values"])))
    return said
