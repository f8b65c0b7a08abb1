"""The same question under several rule sets: a table, the best per measure, and where differences come from."""
from decimal import Decimal

core = use("core")
cases = use("cases")

MONEY = ("tax", "net", "income")


def run(p):
    core.unique(p["rule_sets"], "rule_sets")
    sets = [(spec, cases.Case(p["analysis"], spec["parameters"], "rule_sets[%d].parameters" % index))
            for index, spec in enumerate(p["rule_sets"])]
    measures = cases.chosen(p, sets[0][1])
    for index, (_, case) in enumerate(sets):
        for measure in p.get("measures", []):
            cases.figure(case, measure["id"], "rule_sets[%d].parameters" % index)
    notes = [note for _, case in sets for note in case.notes]
    money = Money(p, sets, notes)
    for spec, case in sets:
        money.convert(spec, case)
    money.check_incomes(sets, notes)
    best = [best_of(measure, sets, money) for measure in measures]
    inputs, more_inputs = cases.differences({spec["id"]: spec["parameters"] for spec, _ in sets})
    details, more_details = cases.differences({spec["id"]: case.detail for spec, case in sets})
    if more_inputs or more_details:
        notes.append("Only the first %d differences are listed." % cases.MOST_DIFFERENCES)
    output = {
        "analysis": p["analysis"], "measures": measures, "currency": money.currency,
        "rule_sets": [{"id": spec["id"], "title": spec.get("title"), "source": spec.get("source"),
                       "measures": cases.shown_all(case, measures), "detail": case.detail} for spec, case in sets],
        "best": best, "differing_inputs": inputs, "differing_details": details,
    }
    sources = [spec["source"] for spec, _ in sets if spec.get("source")] + [s for _, case in sets for s in case.sources]
    arithmetic = " ".join(dict.fromkeys(case.arithmetic for _, case in sets))
    return core.Result(output, lambda: tables(output), lambda: sentences(output), arithmetic, sources, notes)


class Money:
    """Brings amounts of money into one currency, or says that they cannot be compared."""

    def __init__(self, p, sets, notes):
        self.applies = p["analysis"] == "tax_calculation"
        currencies = list(dict.fromkeys(spec["parameters"].get("currency") for spec, _ in sets)) if self.applies else []
        self.mixed = len(currencies) > 1
        self.rates = {name: Decimal(rate) for name, rate in p.get("rates_to", {}).items()}
        self.currency = currencies[0] if len(currencies) == 1 else None
        if self.mixed and self.rates:
            for index, (spec, _) in enumerate(sets):
                if spec["parameters"].get("currency") not in self.rates:
                    raise core.unknown("rates_to", "rate for the currency of rule_sets[%d]," % index, spec["parameters"].get("currency"), self.rates)
            self.currency = p.get("common_currency", "the common currency")
            self.mixed = False
            notes.append("Amounts were converted at the rates given and rounded half up to 2 decimal places; details are in each currency.")
            self.converting = True
        else:
            self.converting = False
            if self.mixed:
                notes.append("The currencies differ and no rates were given, so amounts are not compared.")

    def check_incomes(self, sets, notes):
        """Equal figures in different currencies are different incomes, and what follows from them is not compared."""
        self.unlike = False
        if len({spec["parameters"].get("currency") for spec, _ in sets}) < 2:
            return
        incomes = [figures(spec["parameters"]) for spec, _ in sets]
        if any(income == incomes[0] for income in incomes[1:]):
            self.unlike = True
            notes.append("The rule sets take the same income figures in different currencies. Give each rule set its income in its own currency.")
        else:
            notes.append("Each rule set's income was taken in its own currency, as given.")

    def convert(self, spec, case):
        if self.converting:
            rate = self.rates[spec["parameters"].get("currency")]
            round_it = core.Rounding(None)
            case.measures = {name: round_it(value * rate) if self.is_money(name) and value is not None else value
                             for name, value in case.measures.items()}

    def is_money(self, name):
        return self.applies and (name in MONEY or name.startswith("levy:"))


def figures(parameters):
    """The incomes of a tax calculation, whichever way they were given."""
    holders = [parameters] + parameters.get("periods", [])
    holders += [person for holder in holders for person in holder.get("persons", [])]
    return [holder["income"] for holder in holders if "income" in holder] + [
        item["amount"] for holder in holders for item in holder.get("incomes", [])]


def best_of(measure, sets, money):
    values = {spec["id"]: case.measures.get(measure["id"]) for spec, case in sets}
    known = {name: value for name, value in values.items() if value is not None}
    out = {"measure": measure["id"], "better": measure["better"], "best": [], "value": None, "differences": {}, "reason": None}
    if money.unlike:
        out["reason"] = "the same income figures stand in different currencies"
    elif money.mixed and money.is_money(measure["id"]):
        out["reason"] = "the currencies differ; give rates_to and common_currency"
    elif len(known) < len(values):
        out["reason"] = "not known for %s" % ", ".join(core.clip(name) for name in values if name not in known)
    elif measure["better"] is None:
        out["reason"] = "it was not said whether lower or higher is better"
        first = next(iter(known.values()))
        out["differences"] = {name: cases.shown(value - first) for name, value in known.items()}
    else:
        top = (min if measure["better"] == "lower" else max)(known.values())
        out["best"] = [name for name, value in known.items() if value == top]
        out["value"] = cases.shown(top)
        out["differences"] = {name: cases.shown(value - top) for name, value in known.items()}
    return out


def label(measure):
    return measure["title"] or measure["id"].replace("_", " ")


def tables(output):
    out = [core.Table("Comparison" + (" in %s" % output["currency"] if output["currency"] else ""),
                      ["rule set"] + ["#" + label(m) for m in output["measures"]] + ["source"], [
        [s["title"] or s["id"]] + [s["measures"][m["id"]] for m in output["measures"]] + [s["source"]] for s in output["rule_sets"]])]
    out.append(core.Table("Best", ["measure", "better", "best", "value", "why not"], [
        [b["measure"], b["better"], b["best"], b["value"], b["reason"]] for b in output["best"]]))
    names = [s["id"] for s in output["rule_sets"]]
    for title, key in (("Details that differ", "differing_details"), ("Inputs that differ", "differing_inputs")):
        if output[key]:
            out.append(core.Table(title, ["place"] + names, [[d["path"]] + [d["values"][n] for n in names] for d in output[key]]))
    return out


def sentences(output):
    said = []
    titles = {s["id"]: core.clip(s["title"] or s["id"]) for s in output["rule_sets"]}
    for measure, best in zip(output["measures"], output["best"]):
        figures = ", ".join("%s %s" % (titles[s["id"]], core.cell(s["measures"][measure["id"]])) for s in output["rule_sets"])
        line = "%s: %s." % (core.clip(label(measure)).capitalize(), figures)
        if best["best"]:
            line += " Best (%s): %s." % (best["better"], ", ".join(titles[name] for name in best["best"]))
        elif best["reason"]:
            line += " No best: %s." % best["reason"]
        said.append(line)
    if output["differing_details"]:
        said.append("The results differ in: %s." % ", ".join(core.clip(d["path"]) for d in output["differing_details"][:20]))
    said.append("The rule sets differ in %s: %s." % (
        core.count(len(output["differing_inputs"]), "input"), ", ".join(core.clip(d["path"]) for d in output["differing_inputs"][:20]) or "none"))
    return said
