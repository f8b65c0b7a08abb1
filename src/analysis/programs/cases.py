"""One case of a comparison or a scenario: an inner analysis, its figures, and how cases differ."""
import copy
import datetime
from decimal import Decimal

core = use("core")

MAIN = {
    "tax_calculation": (("tax", "lower"), ("net", "higher"), ("effective_rate", "lower"), ("marginal_rate", "lower")),
    "compliance_check": (("failed", "lower"), ("unknown", "lower"), ("passed", "higher")),
    "eligibility": (("eligible", "higher"), ("unknown", "lower")),
    "timeline": (("failed", "lower"), ("unknown", "lower"), ("least_slack_days", "higher")),
}
SENSE = {"tax": "lower", "net": "higher", "income": "higher", "effective_rate": "lower", "marginal_rate": "lower",
         "failed": "lower", "unknown": "lower", "passed": "higher", "eligible": "higher", "not_eligible": "lower",
         "holds": "higher", "least_slack_days": "higher"}
ALSO = {"net_income": "net", "net_pay": "net", "after_tax": "net", "total_tax": "tax", "tax_due": "tax", "average_rate": "effective_rate"}
MOST_DIFFERENCES = 200


class Case:
    def __init__(self, analysis, parameters, path, partial=False):
        """The case's figures. One without a value is refused, or with `partial` missing."""
        self.parameters = parameters
        if analysis == "tax_calculation":
            parameters = dict(parameters, thresholds=False)
        try:
            result = use(analysis).run(parameters)
            for error in result.without.values() if not partial else ():
                raise error
        except core.Refused as refused:
            raise type(refused)("%s.%s" % (path, refused.path), refused.message)
        self.measures = result.measures
        self.exact = result.exact
        self.without = result.without
        self.units = result.units
        self.unconverted = {}  # amounts in their own currency, where they were brought into another
        self.detail = detail(analysis, core.to_json(result.output))
        self.sources = result.sources
        self.notes = result.notes
        self.arithmetic = result.arithmetic


def detail(analysis, output):
    """The answer by its parts: each levy, rule, scheme, constraint (with its limit) or formula, and what an undated event may be."""
    if analysis == "tax_calculation":
        return output["totals"]["by_levy"]
    if analysis == "formula":
        return output["results"]
    name = {"compliance_check": "rules", "eligibility": "schemes", "timeline": "constraints"}[analysis]
    out = {part["id"]: part["status"] for part in output[name]}
    if analysis == "timeline":
        out.update({"limit of " + part["id"]: part["bound"] for part in output[name] if part["bound"]})
        out.update({"%s:%s" % (end, event["id"]): event[end] for event in output["events"] if event["date"] is None
                    for end in ("earliest", "latest") if event[end]})
    return out


def chosen(p, cases):
    """The measures that are compared, each with its unit in the first case that has it and the sense that is better, if any."""
    unit = lambda name: next((case.units.get(name) for case in cases if name in case.measures), None)
    if "measures" not in p:
        figures = {name: figure for case in reversed(cases) for name, figure in case.measures.items()}
        names = dict.fromkeys(name for case in cases for name in case.measures)
        main = MAIN.get(p["analysis"], ()) or tuple((name, None) for name in names)
        main += tuple((name, None) for name in names if isinstance(figures[name], datetime.date))
        return [{"id": name, "title": None, "better": better, "unit": unit(name)} for name, better in main]
    core.unique(p["measures"], "measures")
    case, out = cases[0], []
    for index, spec in enumerate(p["measures"]):
        name = resolve(case, spec["id"], "measures[%d].id" % index)
        out.append({"id": name, "title": spec.get("title") or (spec["id"] if name != spec["id"] else None),
                    "better": spec.get("better", SENSE.get(name)), "unit": unit(name)})
    return out


def resolve(case, name, path):
    """The figure that is meant: by its name, by a usual other one, or by the id of a levy or an undated event."""
    for known in (name, ALSO.get(name), "levy:" + name, "latest:" + name):
        if known in case.measures:
            return known
    raise core.unknown(path, "figure", name, case.measures)


def figure(case, name, path):
    return case.measures[resolve(case, name, path)]


def exact(case, name):
    """The figure as it is compared, without the rounding of what is shown."""
    return case.exact[name]() if name in case.exact else case.measures[name]


def minus(after, before, name):
    """What a figure has more in one case than in another: a number with the places that both are shown with, or days between
    two dates. It is 0 only where the figures are the same."""
    if isinstance(after.measures[name], datetime.date):
        return Decimal((after.measures[name] - before.measures[name]).days)
    places = max(core.decimals(case.measures[name]) for case in (after, before))
    return core.shown(core.rounded(exact(after, name) - exact(before, name), places))


def aligned(rows):
    """Rows of figures by name; those of one name get the same number of decimal places, so that a column reads as one."""
    for name in dict.fromkeys(name for row in rows for name in row):
        places = max(core.decimals(row.get(name)) for row in rows)
        for row in rows:
            if isinstance(row.get(name), Decimal) and row[name].is_finite():
                row[name] = core.to_places(row[name], places)


def flatten(value, path="", out=None):
    """Every leaf with its path."""
    out = {} if out is None else out
    if isinstance(value, dict) and value:
        for name, item in value.items():
            flatten(item, "%s.%s" % (path, name) if path else name, out)
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            flatten(item, "%s[%d]" % (path, index), out)
    else:
        out[path] = value
    return out


def canonical(value):
    """A number without the zeros at its end: 0.20 and 0.2 do not differ."""
    if isinstance(value, Decimal):
        return Decimal(core.plain(value.normalize()))
    found = core.QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if not found or "." not in found[1]:
        return value
    return found[1].rstrip("0").rstrip(".") + value[found.end(1):]


def differences(named):
    """The places where the values differ, each with everyone's value; and whether some were left out."""
    flat = {name: flatten(value) for name, value in named.items()}
    places = dict.fromkeys(path for leaves in flat.values() for path in leaves)
    out = []
    for path in places:
        values = {name: leaves.get(path) for name, leaves in flat.items()}
        if len({repr(canonical(value)) for value in values.values()}) > 1:
            out.append({"path": path, "values": values})
    return out[:MOST_DIFFERENCES], len(out) > MOST_DIFFERENCES


def shown_all(case, measures):
    return {m["id"]: core.shown(case.measures.get(m["id"])) for m in measures}


def with_number(parameters, number, value):
    """The parameters with one number replaced."""
    parameters = copy.deepcopy(parameters)
    place = parameters
    for step in number["steps"][:-1]:
        place = place[step]
    if number.get("unit"):
        value = "%s %s" % (core.plain(value), number["unit"])
    elif number["whole"]:
        value = int(value)
    elif number["as_text"]:
        value = core.plain(value)
    place[number["steps"][-1]] = value
    return parameters
