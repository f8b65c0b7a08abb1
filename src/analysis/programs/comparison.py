"""The same question under several rule sets: a table, the best per measure, and where differences come from."""
from decimal import Decimal

core = use("core")
cases = use("cases")


def run(p):
    core.unique(p["rule_sets"], "rule_sets")
    sets = [(spec, cases.Case(p["analysis"], spec["parameters"], "rule_sets[%d].parameters" % index))
            for index, spec in enumerate(p["rule_sets"])]
    measures = cases.chosen(p, [case for _, case in sets])
    for index, (_, case) in enumerate(sets):
        for measure in p.get("measures", []):
            cases.figure(case, measure["id"], "rule_sets[%d].parameters" % index)
    notes = [note for _, case in sets for note in case.notes]
    money = Money(p, sets, notes)
    for index, (spec, case) in enumerate(sets):
        money.convert(index, spec, case)
    money.check_incomes(sets, notes)
    best = [best_of(measure, sets, money) for measure in measures]
    for measure in measures:  # one unit, or none that holds for all
        units = {case.units.get(measure["id"]) for _, case in sets}
        measure["unit"] = units.pop() if len(units) == 1 else None
    shown = [cases.shown_all(case, measures) for _, case in sets]
    cases.aligned(shown)
    inputs, more_inputs = cases.differences({spec["id"]: spec["parameters"] for spec, _ in sets})
    details, more_details = cases.differences({spec["id"]: case.detail for spec, case in sets})
    if more_inputs or more_details:
        notes.append("Only the first %d differences are listed." % cases.MOST_DIFFERENCES)
    output = {
        "analysis": p["analysis"], "measures": measures, "currency": money.currency,
        "rule_sets": [{"id": spec["id"], "title": spec.get("title"), "source": spec.get("source"),
                       "measures": figures, "units": {m["id"]: case.units[m["id"]] for m in measures if case.units.get(m["id"])},
                       **({"unconverted": {m["id"]: case.unconverted[m["id"]] for m in measures if m["id"] in case.unconverted}} if money.converting else {}),
                       "detail": case.detail} for (spec, case), figures in zip(sets, shown)],
        "best": best, "differing_inputs": inputs, "differing_details": details,
    }
    sources = [spec["source"] for spec, _ in sets if spec.get("source")] + [s for _, case in sets for s in case.sources]
    arithmetic = " ".join(dict.fromkeys(case.arithmetic for _, case in sets))
    return core.Result(output, lambda: tables(output), lambda: sentences(output), arithmetic, sources, notes)


class Money:
    """Brings figures with units into one unit, or says that they cannot be compared."""

    def __init__(self, p, sets, notes):
        self.rates = {name: Decimal(rate) for name, rate in p.get("rates_to", {}).items()}
        self.tax = p["analysis"] == "tax_calculation"
        self.common = p.get("common_currency", "the common currency")
        if self.rates and "common_currency" in p:
            self.rates.setdefault(self.common, core.ONE)
        names = dict.fromkeys(name for _, case in sets for name in case.measures)
        used = [[case.units.get(name) for _, case in sets if name in case.measures] for name in names]
        if self.tax:  # an amount without a currency beside one with a currency is of another kind, too
            used.append([spec["parameters"].get("currency") for spec, _ in sets])
        self.differing = any(len(set(units)) > 1 for units in used)
        units = {unit for line in used for unit in line}
        self.currency = units.pop() if len(units) == 1 else None
        if self.tax and not self.differing:
            self.currency = sets[0][0]["parameters"].get("currency")
        self.converting = self.differing and bool(self.rates)
        if self.converting:
            self.currency = self.common
            notes.append("Amounts were converted at the rates given and rounded half up to 2 decimal places; details are in each currency.")
        elif self.differing:
            notes.append("The currencies or units differ and no rates were given, so amounts are not compared.")

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

    def convert(self, index, spec, case):
        if not self.converting:
            return
        if self.tax and spec["parameters"].get("currency") not in self.rates:
            raise core.unknown("rates_to", "rate for the currency of rule_sets[%d]," % index, spec["parameters"].get("currency"), self.rates)
        round_it, units = core.Rounding(None), {}
        for name, value in case.measures.items():
            unit = case.units.get(name)
            if unit in self.rates:
                if value is not None and unit != self.common:
                    case.unconverted[name] = core.with_unit(value, unit)
                case.measures[name] = value if value is None else round_it(value * self.rates[unit])
                case.exact.pop(name, None)
                units[name] = self.common
            elif unit is not None:
                units[name] = unit
        case.units = units


def figures(parameters):
    """The incomes of a tax calculation, whichever way they were given."""
    holders = [parameters] + parameters.get("periods", [])
    holders += [person for holder in holders for person in holder.get("persons", [])]
    return [holder["income"] for holder in holders if "income" in holder] + [
        item["amount"] for holder in holders for item in holder.get("incomes", [])]


def best_of(measure, sets, money):
    values = {spec["id"]: case for spec, case in sets}
    known = {name: case for name, case in values.items() if case.measures.get(measure["id"]) is not None}
    units = list(dict.fromkeys(case.units.get(measure["id"]) for case in known.values()))
    apart = lambda base: {name: cases.minus(case, base, measure["id"]) for name, case in known.items()}
    out = {"measure": measure["id"], "better": measure["better"], "best": [], "value": None, "differences": {}, "reason": None}
    if money.unlike:
        out["reason"] = "the same income figures stand in different currencies"
    elif len(units) > 1:
        out["reason"] = "the currencies differ (%s); give rates_to and common_currency" % ", ".join(core.clip(unit or "none") for unit in units)
    elif len(known) < len(values):
        out["reason"] = "not known for %s" % ", ".join(core.clip(name) for name in values if name not in known)
    elif measure["better"] is None:
        out["reason"] = "it was not said whether lower or higher is better"
        out["differences"] = apart(next(iter(known.values())))
    else:
        figure = lambda case: cases.exact(case, measure["id"])
        top = (min if measure["better"] == "lower" else max)(known.values(), key=figure)
        out["best"] = [name for name, case in known.items() if figure(case) == figure(top)]
        out["value"] = core.shown(top.measures[measure["id"]])
        out["differences"] = apart(top)
    return out


def label(measure):
    return (measure["title"] or measure["id"].replace("_", " ")) + (" (%s)" % measure["unit"] if measure["unit"] else "")


def figure_of(rule_set, measure):
    """A figure; with its unit where the column has none for all."""
    figure, unit = rule_set["measures"][measure["id"]], rule_set["units"].get(measure["id"])
    return figure if unit == measure["unit"] else core.with_unit(figure, unit)


def tables(output):
    out = [core.Table("Comparison" + (" in %s" % output["currency"] if output["currency"] else ""),
                      ["rule set"] + ["#" + label(m) for m in output["measures"]] + ["source"], [
        [s["title"] or s["id"]] + [figure_of(s, m) for m in output["measures"]] + [s["source"]] for s in output["rule_sets"]])]
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
        figures = ", ".join("%s %s" % (titles[s["id"]], core.cell(figure_of(s, measure))) for s in output["rule_sets"])
        name = core.clip(label(measure))
        line = "%s: %s." % (name[:1].upper() + name[1:], figures)
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
