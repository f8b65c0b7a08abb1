"""One case of a comparison or a scenario: an inner analysis, its figures, and how cases differ."""
import copy
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
MOST_DIFFERENCES = 200


class Case:
    def __init__(self, analysis, parameters, path):
        self.parameters = parameters
        if analysis == "tax_calculation":
            parameters = dict(parameters, thresholds=False)
        try:
            result = use(analysis).run(parameters)
        except core.Refused as refused:
            raise core.Refused("%s.%s" % (path, refused.path), refused.message)
        self.measures = result.measures
        self.detail = detail(analysis, core.to_json(result.output))
        self.sources = result.sources
        self.notes = result.notes
        self.arithmetic = result.arithmetic


def detail(analysis, output):
    """The answer by its parts: each levy, rule, scheme, constraint or formula."""
    if analysis == "tax_calculation":
        return output["totals"]["by_levy"]
    if analysis == "formula":
        return output["results"]
    name = {"compliance_check": "rules", "eligibility": "schemes", "timeline": "constraints"}[analysis]
    return {part["id"]: part["status"] for part in output[name]}


def chosen(p, case):
    """The measures that are compared, each with the sense that is better, if any."""
    if "measures" not in p:
        main = MAIN.get(p["analysis"]) or tuple((name, None) for name in case.measures)
        return [{"id": name, "title": None, "better": better} for name, better in main]
    core.unique(p["measures"], "measures")
    for index, spec in enumerate(p["measures"]):
        figure(case, spec["id"], "measures[%d].id" % index)
    return [{"id": spec["id"], "title": spec.get("title"), "better": spec.get("better", SENSE.get(spec["id"]))} for spec in p["measures"]]


def figure(case, name, path):
    if name not in case.measures:
        raise core.unknown(path, "figure", name, case.measures)
    return case.measures[name]


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


def differences(named):
    """The places where the values differ, each with everyone's value; and whether some were left out."""
    flat = {name: flatten(value) for name, value in named.items()}
    places = dict.fromkeys(path for leaves in flat.values() for path in leaves)
    out = []
    for path in places:
        values = {name: leaves.get(path) for name, leaves in flat.items()}
        if len({repr(value) for value in values.values()}) > 1:
            out.append({"path": path, "values": values})
    return out[:MOST_DIFFERENCES], len(out) > MOST_DIFFERENCES


def shown(value):
    """A figure as results show it: at most 12 decimal places."""
    if isinstance(value, Decimal) and -value.as_tuple().exponent > 12:
        return Decimal(core.plain(value, 12))
    return value


def shown_all(case, measures):
    return {m["id"]: shown(case.measures.get(m["id"])) for m in measures}


def with_number(parameters, number, value):
    """The parameters with one number replaced."""
    parameters = copy.deepcopy(parameters)
    place = parameters
    for step in number["steps"][:-1]:
        place = place[step]
    place[number["steps"][-1]] = int(value) if number["whole"] else core.plain(value) if number["as_text"] else value
    return parameters
