"""Taxes and charges from rules that come with the call.

Every amount is computed twice in two senses: once with the stated rounding, for the answer, and once exactly, with
stepped tapers as straight lines, for marginal rates. A *unit* is who is assessed together: one person, or all.
"""
from decimal import Decimal
from fractions import Fraction

core = use("core")
formula = use("formula")
ZERO, ONE, CENT = core.ZERO, core.ONE, Decimal("0.01")
THRESHOLD_WORK = 40000  # thresholds times bands beyond which the rates around thresholds are left out


def run(parameters):
    return Calculation(parameters).result()


class Calculation:
    def __init__(self, p):
        self.rounding = core.Rounding(p.get("rounding"))
        self.currency = p.get("currency")
        self.assessment = p.get("assessment", "separate")
        self.basis = p.get("basis", "each")
        self.parts = number(p, "parts")
        if self.parts is not None and self.parts < 1:
            raise core.Refused("parts", "at least one part is needed")
        self.carry = p.get("carry_losses", False)
        self.want_thresholds = p.get("thresholds", True)
        self.deductions = [allowance(d, "deductions[%d]" % i) for i, d in enumerate(p.get("deductions", []))]
        core.unique(p.get("deductions", []), "deductions")
        core.unique(p["levies"], "levies")
        self.levies = [Levy(spec, "levies[%d]" % i) for i, spec in enumerate(p["levies"])]
        core.unique(p.get("credits", []), "credits")
        self.credits = [allowance(c, "credits[%d]" % i) for i, c in enumerate(p.get("credits", []))]
        self.periods = periods(p)
        splits = {levy.assessment or self.assessment for levy in self.levies}
        if self.parts is not None and "split" not in splits:
            raise core.Refused("parts", "only the assessment split divides into parts")
        for levy in self.levies:
            if levy.parts_limit and (self.parts is None or (levy.assessment or self.assessment) != "split"):
                raise core.Refused(levy.path + ".parts_limit", "it goes with parts and the assessment split")
        self.notes = []
        self.check_names()
        if self.carry and self.basis == "cumulative":
            raise core.Refused("carry_losses", "a cumulative basis already sets losses against later income")
        if self.basis == "each" and any(period["fraction"] is not None for period in self.periods):
            raise core.Refused("basis", "a fraction is given; the basis has to be fraction or cumulative")
        for index, period in enumerate(self.periods):
            if period["fraction"] is None and self.basis != "each":
                raise core.Refused("periods[%d].fraction" % index, "the basis %s scales the bands by each period's fraction: give \"1/12\" for a month "
                                   "under bands of a year, 1 for a month under bands of a month" % self.basis)

    def check_names(self):
        kinds = {kind for period in self.periods for person in period["persons"] for kind in person["incomes"]}
        people = {person["id"] for period in self.periods for person in period["persons"]}
        ids = {levy.id for levy in self.levies}
        earlier = {}
        for levy in self.levies:
            for field, names in (("deduct_levies", levy.deduct), ("on_levies", levy.on_levies or []), ("less_levies", levy.less)):
                for at, name in enumerate(names):
                    if name not in earlier:
                        raise core.unknown("%s.%s[%d]" % (levy.path, field, at), "earlier levy", name, earlier)
            earlier[levy.id] = levy
            for field, names in (("incomes", levy.incomes or []), ("on_top_of", levy.under)):
                for at, name in enumerate(names):
                    path = "%s.%s[%d]" % (levy.path, field, at)
                    if name not in kinds and name in ids:
                        raise core.Refused(path, "%r is a levy and not an income; a levy on another levy names it in on_levies" % core.clip(name))
                    if name not in kinds:
                        raise core.unknown(path, "income", name, sorted(kinds))
            if set(levy.incomes or []) & set(levy.under):
                raise core.Refused(levy.path + ".on_top_of", "an income cannot be both charged and underneath")
        rules = self.deductions + self.credits
        rules += [rule for levy in self.levies for rule in levy.deductions + levy.credits]
        for rule in rules:
            for at, name in enumerate(rule["persons"] or []):
                if name not in people:
                    raise core.unknown("%s.persons[%d]" % (rule["path"], at), "person", name, sorted(people))

    # one period

    def charge(self, persons, scale, exact, losses=None, trace=None):
        """All levies of one period. `losses` carries over between calls; `trace` collects what thresholds look at."""
        charged, levies = {}, []
        for levy in self.levies:
            units = self.units(levy.assessment or self.assessment, persons)
            lines = []
            for unit in units:
                prior = ZERO
                for name in levy.deduct:
                    prior += share_of(charged[name], unit, levy.path)
                taxed = None
                if levy.on_levies is not None:
                    taxed = sum((share_of(charged[name], unit, levy.path) for name in levy.on_levies), ZERO)
                less = sum((share_of(charged[name], unit, levy.path) for name in levy.less), ZERO)
                split = (levy.assessment or self.assessment) == "split"
                line = levy.charge(self, unit, scale, exact, split, prior, losses, trace, taxed, less)
                lines.append(line)
            charged[levy.id] = [(line["people"], line["amount"]) for line in lines]
            levies.append({"levy": levy, "lines": lines, "amount": sum((line["amount"] for line in lines), ZERO)})
        credits = []
        for unit in self.units(self.assessment, persons) if self.credits else []:
            due = sum((share_of(charged[levy.id], unit, "credits") for levy in self.levies), ZERO)
            total = sum((amount for person in unit for amount in person["incomes"].values()), ZERO)
            used, _ = spend(self.credits, due, unit, scale, total, total, exact, self.money(exact, "levy"))
            credits += used
            if trace is not None:
                trace.append(("the call's credits are used up", due - limit_of(used), ZERO))
        tax = sum((entry["amount"] for entry in levies), ZERO) - sum((credit["used"] for credit in credits), ZERO)
        return {"levies": levies, "credits": credits, "tax": tax if exact else self.rounding(tax)}

    def money(self, exact, at):
        """Rounding at one of the three places, or none."""
        return self.rounding if not exact and self.rounding.at == at else (lambda amount: amount)

    @staticmethod
    def units(assessment, persons):
        return [[person] for person in persons] if assessment == "separate" else [persons]

    # all periods

    def charges(self, exact, change=None):
        """Each period's charge; `change` adds (period, person, kind, amount) to one income."""
        out, losses = [], {} if self.carry else None
        so_far, scale_so_far, before = {}, Share(0), None
        for index, period in enumerate(self.periods):
            persons = [dict(person, incomes=dict(person["incomes"])) for person in period["persons"]]
            if change is not None and change[0] == index:
                incomes = persons[change[1]]["incomes"]
                incomes[change[2]] = incomes.get(change[2], ZERO) + change[3]
            if self.basis != "cumulative":
                scale = period["fraction"] if self.basis == "fraction" else WHOLE
                out.append(self.charge(persons, scale, exact, losses))
                continue
            for person in persons:
                sums = so_far.setdefault(person["id"], {})
                for kind, amount in person["incomes"].items():
                    sums[kind] = sums.get(kind, ZERO) + amount
            scale_so_far = scale_so_far + period["fraction"]
            people = [{"id": name, "incomes": dict(sums)} for name, sums in so_far.items()]
            now = self.charge(people, scale_so_far, exact)
            step = dict(now, before=before)
            step["tax"] = now["tax"] - (before["tax"] if before else ZERO)
            out.append(step)
            before = now
        return out

    def marginal(self, index):
        """The change of all tax for one cent more of the period's first income, as a share."""
        person = self.periods[index]["persons"][0]
        kind = next(iter(person["incomes"]))
        less = sum(charge["tax"] for charge in self.charges(True))
        more = sum(charge["tax"] for charge in self.charges(True, (index, 0, kind, CENT)))
        return core.divide(more - less, CENT)

    def thresholds(self):
        """Where the marginal rate of the first period's first income changes, others held fixed."""
        work = sum(len(levy.bands) for levy in self.levies)
        if self.basis == "cumulative" or self.carry:
            self.notes.append("Rates around thresholds are given only where periods do not depend on each other.")
            return []
        period = self.periods[0]
        scale = period["fraction"] if self.basis == "fraction" else WHOLE
        kind = next(iter(period["persons"][0]["incomes"]))

        def at(cents, trace=None):
            persons = [dict(person, incomes=dict(person["incomes"])) for person in period["persons"]]
            persons[0]["incomes"][kind] = Decimal(cents) * CENT
            return self.charge(persons, scale, True, None, trace)["tax"]

        def values(cents):
            trace = []
            at(cents, trace)
            return trace

        marks = values(0)
        if work * len(marks) > THRESHOLD_WORK:
            self.notes.append("There are too many thresholds to give the rates around each.")
            return []
        others = sum((abs(a) for person in period["persons"] for a in person["incomes"].values()), ZERO)
        largest = max([target for _, _, target in marks] + [ZERO])
        allowances = sum((rule["amount"] * len(period["persons"]) for levy in self.levies
                          for rule in self.deductions + levy.deductions + levy.credits), ZERO)
        top = int((largest + others + allowances + 1000) * 2 * len(period["persons"]) * 100)
        memo = {}

        def value(cents, mark):
            if cents not in memo:
                memo[cents] = values(cents)
            return memo[cents][mark]

        found = {}
        for mark, (label, low_value, target) in enumerate(marks):
            if low_value > target or value(top, mark)[1] <= target:
                continue
            low, high = 0, top
            while high - low > 1:
                middle = (low + high) // 2
                if value(middle, mark)[1] > target:
                    high = middle
                else:
                    low = middle
            found.setdefault(low, []).append(label)
        out = []
        for cents in sorted(found):
            here, after, further = at(cents), at(cents + 1), at(cents + 2)
            above = (further - after) / CENT
            jump = after - here - above * CENT
            out.append({
                "at": Decimal(cents) * CENT,
                "what": list(dict.fromkeys(found[cents])),
                "rate_below": core.divide(here - at(cents - 1), CENT) if cents else None,
                "rate_above": core.divide(above, ONE),
                "jump": self.rounding(jump) if abs(jump) >= CENT else ZERO,
            })
        return [t for t in out if (t["rate_below"] or ZERO) != t["rate_above"] or t["jump"]]

    # the answer

    def result(self):
        charges = self.charges(False)
        periods_out, income_all, tax_all = [], ZERO, ZERO
        by_levy = {}
        for index, (period, charge) in enumerate(zip(self.periods, charges)):
            income = sum((a for person in period["persons"] for a in person["incomes"].values()), ZERO)
            income_all += income
            tax_all += charge["tax"]
            before = charge.get("before")
            levies = []
            for at, entry in enumerate(charge["levies"]):
                amount = entry["amount"] - (before["levies"][at]["amount"] if before else ZERO)
                levy = entry["levy"]
                by_levy[levy.id] = by_levy.get(levy.id, ZERO) + amount
                levies.append({"id": levy.id, "title": levy.title, "source": levy.source, "amount": amount,
                               "units": [levy.unit_out(line) for line in entry["lines"]]})
            periods_out.append({
                "id": period["id"], "income": income, "levies": levies,
                "credits": [credit_out(credit) for credit in charge["credits"]],
                "tax": charge["tax"], "net": income - charge["tax"],
                "effective_rate": core.divide(charge["tax"], income) if income > 0 else None,
                "marginal_rate": self.marginal(index) if len(self.periods) <= 12 else None,
            })
        if len(self.periods) > 12:
            self.notes.append("With more than twelve periods no marginal rates are given.")
        self.note_untaxed(charges)
        limited = sorted({entry["levy"].id for charge in charges for entry in charge["levies"] for line in entry["lines"] if line["parts_limited"]})
        if limited:
            self.notes.append("The advantage of further parts was limited in %s; the bands shown are those before the limit." % ", ".join(core.clip(name) for name in limited))
        first = self.periods[0]["persons"][0]
        totals = {
            "income": income_all, "tax": tax_all, "net": income_all - tax_all,
            "effective_rate": core.divide(tax_all, income_all) if income_all > 0 else None,
            "marginal_rate": periods_out[0]["marginal_rate"],
            "by_levy": by_levy,
        }
        output = {
            "currency": self.currency,
            "periods": periods_out,
            "totals": totals,
            "marginal_income": {"period": self.periods[0]["id"], "person": first["id"], "kind": next(iter(first["incomes"]))},
            "thresholds": self.thresholds() if self.want_thresholds else [],
        }
        if self.basis == "cumulative":
            self.notes.append("On the cumulative basis the bands shown are those of the periods so far; amounts are the period's own.")
        if any(rule["taper"] and rule["taper"].get("partial", "exact") != "exact" for rule in self.all_rules()):
            self.notes.append("Marginal rates take stepped tapers as straight lines.")
        measures = {"income": income_all, "tax": tax_all, "net": totals["net"],
                    "effective_rate": totals["effective_rate"], "marginal_rate": totals["marginal_rate"]}
        measures.update({"levy:" + name: amount for name, amount in by_levy.items()})
        exact = {"effective_rate": lambda: sum(charge["tax"] for charge in self.charges(True)) / income_all} if income_all > 0 else {}
        units = {name: self.currency for name in measures if self.currency and not name.endswith("_rate")}
        where = {"band": "each band's amount", "levy": "each levy", "total": "only the total"}[self.rounding.at]
        return core.Result(
            output, lambda: self.tables(output), lambda: self.sentences(output),
            "Decimal arithmetic; %s rounded to %s." % (where, self.rounding),
            [rule["source"] for rule in self.all_rules() if rule["source"]] +
            [levy.source for levy in self.levies if levy.source],
            self.notes, measures, units=units, exact=exact)

    def note_untaxed(self, charges):
        """Says what part of a base no band of its levy reaches."""
        for levy_at, levy in enumerate(self.levies):
            above = max((line["untaxed"] for charge in charges for line in charge["levies"][levy_at]["lines"]), default=ZERO)
            if above:
                self.notes.append("The bands of levy %s end at %s; %s of the base above that was charged nothing. If that is not meant, give the last band no end." % (
                    core.clip(levy.id), core.plain(levy.closed), core.plain(above)))

    def all_rules(self):
        return self.deductions + self.credits + [r for levy in self.levies for r in levy.deductions + levy.credits]

    def tables(self, output):
        rows = []
        for period in output["periods"]:
            for levy in period["levies"]:
                name = levy["title"] or levy["id"]
                for unit in levy["units"]:
                    who = ", ".join(unit["persons"])
                    for deduction in unit["deductions"]:
                        rows.append([period["id"], name, who, "less " + deduction["id"], None, deduction["amount"], None])
                    for band in unit["bands"]:
                        span = "over %s" % core.plain(band["from"])
                        if band["up_to"] is not None:
                            span = "%s to %s" % (core.plain(band["from"]), core.plain(band["up_to"]))
                        rate = "formula" if band["rate"] is None else core.percent(band["rate"])
                        rows.append([period["id"], name, who, span, rate, band["base"], self.rounding(band["amount"])])
                    if unit["less_levies"]:
                        rows.append([period["id"], name, who, "less earlier levies", None, None, -unit["less_levies"]])
                    for credit in unit["credits"]:
                        rows.append([period["id"], name, who, "credit " + credit["id"], None, None, -credit["used"]])
                rows.append([period["id"], name, None, "levy" + (" (%s)" % levy["source"] if levy["source"] else ""), None, None, levy["amount"]])
            for credit in period["credits"]:
                rows.append([period["id"], "all", None, "credit " + credit["id"], None, None, -credit["used"]])
            rows.append([period["id"], "all", None, "total", core.percent(period["effective_rate"]), period["income"], period["tax"]])
        money = "#amount" + (" (%s)" % self.currency if self.currency else "")
        tables = [core.Table("Tax", ["period", "levy", "person", "part", "#rate", "#on", money], rows)]
        if output["thresholds"]:
            tables.append(core.Table("Marginal rates", ["#income", "what", "#below", "#above", "#jump"], [
                [t["at"], t["what"], core.percent(t["rate_below"]), core.percent(t["rate_above"]), t["jump"]]
                for t in output["thresholds"]]))
        return tables

    def sentences(self, output):
        totals = output["totals"]
        unit = " " + core.flat(self.currency) if self.currency else ""

        def money(amount):
            return core.plain(amount) + unit

        said = ["On an income of %s the tax is %s, which leaves %s." % (
            money(totals["income"]), money(totals["tax"]), money(totals["net"]))]
        if totals["effective_rate"] is not None:
            said.append("The effective rate is %s; the marginal rate is %s." % (
                core.percent(totals["effective_rate"]), core.percent(totals["marginal_rate"])))
        if len(totals["by_levy"]) > 1:
            said.append("Of that: " + "; ".join("%s %s" % (core.flat(n), money(a)) for n, a in totals["by_levy"].items()) + ".")
        if len(output["periods"]) > 1:
            said += ["%s: income %s, tax %s." % (core.flat(p["id"]), money(p["income"]), money(p["tax"])) for p in output["periods"]]
        for t in output["thresholds"]:
            said.append("At %s (%s) the marginal rate goes from %s to %s%s." % (
                money(t["at"]), core.clip("; ".join(t["what"]), 120), core.percent(t["rate_below"]),
                core.percent(t["rate_above"]), ", with a jump of " + money(t["jump"]) if t["jump"] else ""))
        return said


class Levy:
    def __init__(self, spec, path):
        self.path = path
        self.id = spec["id"]
        self.title = spec.get("title")
        self.source = spec.get("source")
        self.incomes = spec.get("incomes")
        self.under = spec.get("on_top_of", [])
        self.assessment = spec.get("assessment")
        self.use_deductions = spec.get("use_deductions", "on_levies" not in spec)
        self.deductions = [allowance(d, "%s.deductions[%d]" % (path, i)) for i, d in enumerate(spec.get("deductions", []))]
        core.unique(spec.get("deductions", []), path + ".deductions")
        self.deduct = spec.get("deduct_levies", [])
        self.on_levies = spec.get("on_levies")
        self.less = spec.get("less_levies", [])
        for name in ("incomes", "on_top_of", "nil_rate"):
            if self.on_levies is not None and name in spec:
                raise core.Refused("%s.%s" % (path, name), "a levy on other levies has no incomes of its own")
        self.above, self.until = number(spec, "income_above"), number(spec, "income_up_to")
        self.excess = spec.get("excess_limit")
        self.rounding = core.Rounding(spec["rounding"]) if "rounding" in spec else None
        self.parts_limit = spec.get("parts_limit")
        if self.parts_limit and (Decimal(self.parts_limit["parts"]) < 1 or Decimal(self.parts_limit["per"]) == 0):
            raise core.Refused(path + ".parts_limit", "at least one part, and a step above 0, are needed")
        self.exempt = number(spec, "exempt_up_to")
        self.base_rounding = spec.get("base_rounding")
        if self.base_rounding and Decimal(self.base_rounding["to"]) == 0:
            raise core.Refused(path + ".base_rounding.to", "a multiple of 0 is no multiple")
        self.nil_rate = number(spec, "nil_rate") or ZERO
        self.slab = spec.get("method") == "slab"
        self.flat = number(spec, "flat") or ZERO
        self.minimum = number(spec, "minimum")
        self.maximum = number(spec, "maximum")
        if None not in (self.minimum, self.maximum) and self.minimum > self.maximum:
            raise core.Refused(path + ".minimum", "the minimum is above the maximum")
        self.credits = [allowance(c, "%s.credits[%d]" % (path, i)) for i, c in enumerate(spec.get("credits", []))]
        core.unique(spec.get("credits", []), path + ".credits")
        self.bands = bands(spec.get("bands", []), path)
        self.closed = number(spec["bands"][-1], "up_to") if spec.get("bands") else None
        self.tariffs = self.tariff(spec, path)
        if not self.bands and not self.flat and self.minimum is None:
            raise core.Refused(path, "a levy needs bands, a flat amount or a minimum")

    def tariff(self, spec, path):
        """The expression of each band that has one: the levy's whole amount on a base `x` that ends in the band."""
        given = spec.get("bands", [])
        if not any("formula" in band for band in given):
            return None
        for index, band in enumerate(given):
            here = "%s.bands[%d]" % (path, index)
            for name in ("fixed", "widen_by_second_income"):
                if name in band:
                    raise core.Refused("%s.%s" % (here, name), "does not go with formula")
            if "formula" not in band:
                raise core.Refused(here + ".formula", "either every band has a formula or none")
        if self.slab:
            raise core.Refused(path + ".method", "a tariff given by formulas is neither marginal nor slab")
        out = [formula.Expression(band["formula"], "%s.bands[%d].formula" % (path, index)) for index, band in enumerate(given)]
        for expression, (start, _, _, _, _) in zip(out, self.bands):
            expression.value({"x": start})  # a name that is not there is refused before anything is computed
        return out

    def charge(self, calculation, unit, scale, exact, split, prior, losses, trace, taxed, less, parts=None):
        """What the levy comes to for one unit, its base divided into so many parts under `split`."""
        heads = (parts or calculation.parts or Decimal(len(unit))) if split else ONE
        capped = None
        if split and parts is None and self.parts_limit is not None and heads > Decimal(self.parts_limit["parts"]):
            fewer = Decimal(self.parts_limit["parts"])
            capped = self.charge(calculation, unit, scale, exact, split, prior, None if losses is None else dict(losses), None, taxed, less, fewer)
            steps = (heads - fewer) / Decimal(self.parts_limit["per"])
            capped = capped["gross"] + capped["less"] - steps * Decimal(self.parts_limit["amount"]) * scale
        total = sum((a for person in unit for a in person["incomes"].values()), ZERO)
        own = sum((a for person in unit for kind, a in person["incomes"].items()
                   if (kind in self.incomes if self.incomes is not None else kind not in self.under)), ZERO)
        under = sum((a for person in unit for kind, a in person["incomes"].items() if kind in self.under), ZERO)
        if taxed is not None:
            own = taxed
        key = (self.id, tuple(person["id"] for person in unit))
        line = {"people": key[1], "income": own, "deductions": [], "base": ZERO, "loss": ZERO, "brought": ZERO, "nil_rate": ZERO,
                "bands": [], "gross": ZERO, "credits": [], "amount": ZERO, "exempt": False, "untaxed": ZERO, "less": ZERO, "parts_limited": False}

        common = calculation.deductions if self.use_deductions else []
        reliefs = [(rule, relief(rule, unit, scale, total, own, exact)) for rule in common + self.deductions]
        brought = losses.get(key, ZERO) if losses is not None else ZERO
        below, left = max(ZERO, under), own
        for at, (rule, amount) in enumerate(reliefs):
            first = min(amount, below) if at < len(common) else ZERO  # the levy's own deductions leave what lies under it
            second = min(amount - first, max(ZERO, left))
            below, left = below - first, left - second
            if amount:
                line["deductions"].append({"id": rule["id"], "amount": first + second})
        if prior:
            line["deductions"].append({"id": "earlier levies", "amount": prior})
            left -= prior
        if left < 0:
            line["loss"] = -left
            left = ZERO
        use = min(brought, left)
        line["brought"], left = use, left - use
        if losses is not None:
            losses[key] = brought - use + line["loss"]
        if self.base_rounding and not exact:
            left = core.round_to(left, Decimal(self.base_rounding["to"]), self.base_rounding.get("mode", "down"))
        line["base"] = left

        nil = min(left, self.nil_rate * scale * heads)
        low, high = (below + nil) / heads, (below + left) / heads
        incomes = sorted((sum(person["incomes"].values(), ZERO) for person in unit), reverse=True)
        second = max(ZERO, incomes[1]) if len(incomes) > 1 and not split else ZERO
        scaled = [(start * scale, None if end is None else end * scale, rate, fixed * scale, widen * scale)
                  for start, end, rate, fixed, widen in self.bands]
        scaled = widened(scaled, second)
        if trace is not None:
            self.trace_bands(trace, scaled, low, high, own, scale, reliefs, total)
        outside = (self.above is not None and total <= self.above * scale) or (self.until is not None and total > self.until * scale)
        if outside or self.exempt is not None and own <= self.exempt * scale:
            line["exempt"] = True
        elif left > 0:
            line["nil_rate"] = nil
            money = calculation.money(exact, "band")
            line["untaxed"] = self.beyond(scaled, high) * heads
            if self.tariffs:
                line["bands"].append(self.by_formula(scaled, high, scale, heads, exact))
            for start, end, rate, fixed, _ in scaled if not self.tariffs else []:
                part = max(ZERO, (high if end is None else min(high, end)) - max(low, start))
                reached = high > start and (low <= start or self.slab)
                if self.slab:
                    part = high - low if high > start and (end is None or high <= end) else ZERO
                    reached = part > 0
                amount = money((part * rate + (fixed if reached else ZERO)) * heads)
                line["bands"].append({"from": start, "up_to": end, "rate": rate, "base": part * heads, "amount": amount})
            gross = sum((band["amount"] for band in line["bands"]), ZERO) + self.flat * scale * heads
            if self.excess is not None:
                over = max(ZERO, left / heads - Decimal(self.excess["over"]) * scale) * heads
                gross = min(gross, over * Decimal(self.excess["rate"]))
            if self.minimum is not None:
                gross = max(gross, self.minimum * scale * heads)
            if self.maximum is not None:
                if trace is not None:
                    trace.append(("%s reaches its maximum" % self.id, gross, self.maximum * scale * heads))
                gross = min(gross, self.maximum * scale * heads)
            line["gross"] = gross
        if self.maximum is not None and trace is not None and not line["bands"]:
            trace.append(("%s reaches its maximum" % self.id, ZERO, self.maximum * scale * heads))
        money = calculation.money(exact, "levy")
        if self.rounding is not None and not exact:
            money = lambda amount: self.rounding(amount / heads) * heads
        line["gross"] = money(line["gross"])
        if capped is not None and capped > line["gross"]:
            line["gross"], line["parts_limited"] = money(capped), True
        if less:
            line["less"] = min(less, line["gross"])
            line["gross"] -= line["less"]
        line["credits"], due = spend(self.credits, line["gross"], unit, scale, total, own, exact, money)
        if self.credits and trace is not None:
            trace.append(("%s: credits are used up" % self.id, line["gross"] - limit_of(line["credits"]), ZERO))
        line["amount"] = money(due)
        return line

    def beyond(self, scaled, high):
        """How much of the base lies above the last band that was given."""
        if self.closed is None or not scaled:
            return ZERO
        return max(ZERO, high - scaled[-1][0])

    def by_formula(self, scaled, base, scale, heads, exact):
        """The band in which the base ends, with the whole amount of its formula."""
        at = next(at for at, (_, end, _, _, _) in enumerate(scaled) if end is None or base <= end)
        start, end = scaled[at][:2]
        amount = self.tariffs[at].value({"x": base / scale}) * scale if at < len(self.tariffs) else None
        if amount is None:
            raise core.Refused("%s.bands[%d]" % (self.path, at - 1), "the base %s lies above the last band, %s, and no formula says what is due" % (
                core.plain(base, 2), core.plain(start, 2)))
        if amount < 0:
            raise core.Refused("%s.bands[%d].formula" % (self.path, at), "it gives %s at %s; a levy is never below 0" % (core.plain(amount, 2), core.plain(base, 2)))
        return {"from": start, "up_to": end, "rate": None, "base": base * heads, "amount": amount * heads}

    def trace_bands(self, trace, scaled, low, high, own, scale, reliefs, total):
        trace.append(("%s: allowances are used up" % self.id, high - low, ZERO))
        for start, end, _, _, _ in scaled:
            if end is not None:
                trace.append(("%s: band up to %s" % (self.id, core.plain(end, 2)), high, end))
        if self.exempt is not None:
            trace.append(("%s: exempt up to %s" % (self.id, core.plain(self.exempt * scale, 2)), own, self.exempt * scale))
        for rule in [rule for rule, _ in reliefs] + self.credits:
            if rule["taper"]:
                taper = rule["taper"]
                measured = own if taper.get("on") == "own" else total
                start = Decimal(taper["from"]) * scale
                trace.append(("%s begins to fall" % rule["id"], measured, start))
                by = Decimal(taper["reduce_by"])
                if by:
                    fall = max(ZERO, rule["amount"] - Decimal(taper.get("to", "0"))) * scale
                    trace.append(("%s has fallen" % rule["id"], measured, start + fall * Decimal(taper.get("per", "1")) / by))

    @staticmethod
    def unit_out(line):
        bands = [{name: core.shown(value) for name, value in band.items()} for band in line["bands"]]
        return {"persons": list(line["people"]), "income": line["income"],
                "deductions": [dict(entry, amount=core.shown(entry["amount"])) for entry in line["deductions"]],
                "base": core.shown(line["base"]), "loss": core.shown(line["loss"]), "losses_used": core.shown(line["brought"]), "exempt": line["exempt"],
                "nil_rate": core.shown(line["nil_rate"]), "bands": bands, "untaxed": core.shown(line["untaxed"]),
                "less_levies": line["less"], "gross": line["gross"],
                "credits": [credit_out(credit) for credit in line["credits"]], "amount": line["amount"]}


def number(spec, name):
    return Decimal(spec[name]) if name in spec else None


class Share:
    """A part of a year, such as 1/12. An amount times it is exact where that can be: a twelfth of 12,000 is 1,000."""

    def __init__(self, fraction):
        self.fraction = Fraction(fraction)

    def __add__(self, other):
        return Share(self.fraction + other.fraction)

    def __rmul__(self, amount):
        return amount * self.fraction.numerator / self.fraction.denominator

    def __rtruediv__(self, amount):
        return amount * self.fraction.denominator / self.fraction.numerator


WHOLE = Share(1)


def allowance(spec, path):
    """A deduction or credit, its amount already times its rate."""
    taper = spec.get("taper")
    if taper and Decimal(taper.get("per", "1")) == 0:
        raise core.Refused(path + ".taper.per", "a step of 0 cannot be counted")
    return {"id": spec["id"], "path": path, "source": spec.get("source"), "persons": spec.get("persons"),
            "amount": Decimal(spec["amount"]) * Decimal(spec.get("rate", "1")), "taper": taper,
            "per_person": spec.get("per_person", False), "refundable": spec.get("refundable", False)}


def relief(rule, unit, scale, total, own, exact):
    """The amount of a deduction or credit for one unit, after its taper."""
    entitled = [person for person in unit if rule["persons"] is None or person["id"] in rule["persons"]]
    heads = len(entitled) if rule["per_person"] else min(1, len(entitled))
    amount = rule["amount"] * scale * heads
    taper = rule["taper"]
    if not taper or not amount:
        return amount
    above = (own if taper.get("on") == "own" else total) - Decimal(taper["from"]) * scale
    if above <= 0:
        return amount
    steps = above / Decimal(taper.get("per", "1"))
    partial = taper.get("partial", "exact")
    if partial != "exact" and not exact:
        steps = core.round_to(steps, ONE, {"down": "floor", "up": "ceiling"}[partial])
    return max(min(amount, Decimal(taper.get("to", "0")) * scale * heads), amount - steps * Decimal(taper["reduce_by"]) * heads)


def spend(credits, due, unit, scale, total, own, exact, money):
    """Sets credits against what is due, in order; gives what each did and what is left to pay."""
    lines = []
    for credit in credits:
        amount = money(relief(credit, unit, scale, total, own, exact))
        used = amount if credit["refundable"] else max(ZERO, min(amount, due))
        due -= used
        if amount:
            lines.append({"id": credit["id"], "amount": amount, "used": used, "refundable": credit["refundable"]})
    return lines, due


def limit_of(lines):
    return sum((line["amount"] for line in lines if not line["refundable"]), ZERO)


def credit_out(line):
    return {"id": line["id"], "amount": line["amount"], "used": line["used"], "unused": line["amount"] - line["used"]}


def share_of(charged, unit, path):
    """What earlier units that lie within this unit were charged."""
    names = {person["id"] for person in unit}
    out = ZERO
    for people, amount in charged:
        if set(people) <= names:
            out += amount
        elif set(people) & names:
            raise core.Refused(path, "a levy on people together cannot count for one of them alone")
    return out


def bands(specs, levy):
    """(start, end, rate, fixed, widening) of each band, refused when they overlap, leave a gap or run backwards."""
    out, start = [], ZERO
    for index, spec in enumerate(specs):
        path = "%s.bands[%d]" % (levy, index)
        given, end = number(spec, "from"), number(spec, "up_to")
        if given is not None and given < start:
            raise core.Refused(path + ".from", "%s is below %s, where the band before ends: the bands overlap" % (
                core.plain(given), core.plain(start)))
        if given is not None and given > start:
            raise core.Refused(path + ".from", "%s is above %s, where the band before ends: there is a gap" % (
                core.plain(given), core.plain(start)))
        if end is None and index < len(specs) - 1:
            raise core.Refused(path + ".up_to", "only the last band may have no end")
        if end is not None and end <= start:
            raise core.Refused(path + ".up_to", "%s is not above %s, where the band starts" % (core.plain(end), core.plain(start)))
        if ("rate" in spec) == ("formula" in spec):
            raise core.Refused(path + ".rate", "exactly one of rate and formula is needed")
        out.append((start, end, number(spec, "rate"), number(spec, "fixed") or ZERO, number(spec, "widen_by_second_income") or ZERO))
        start = end
    if out and out[-1][1] is not None:
        out.append((out[-1][1], None, ZERO, ZERO, ZERO))  # nothing is charged above the last end
    return out


def widened(scaled, second):
    """Bands with their ends moved up by what the second income allows; later bands move along."""
    out, moved = [], ZERO
    for start, end, rate, fixed, widen in scaled:
        begin = start + moved
        moved += min(widen, second)
        out.append((begin, None if end is None else end + moved, rate, fixed, widen))
    return out


def periods(p):
    given = [name for name in ("income", "incomes", "persons", "periods") if name in p]
    if len(given) != 1:
        raise core.Refused("parameters", "exactly one of income, incomes, persons or periods is needed, not %s" % (
            " and ".join(given) or "none"))
    if "periods" not in p:
        return [{"id": "period", "fraction": None, "persons": persons(p, "parameters")}]
    core.unique(p["periods"], "periods")
    out = []
    for index, period in enumerate(p["periods"]):
        fraction = Share(period["fraction"]) if "fraction" in period else None
        if fraction is not None and not fraction.fraction:
            raise core.Refused("periods[%d].fraction" % index, "a period of no length")
        out.append({"id": period["id"], "fraction": fraction, "persons": persons(period, "periods[%d]" % index)})
    if len({period["fraction"] is None for period in out}) > 1:
        raise core.Refused("periods", "either every period has a fraction or none")
    return out


def persons(holder, path):
    given = [name for name in ("income", "incomes", "persons") if name in holder]
    if len(given) != 1:
        raise core.Refused(path, "exactly one of income, incomes or persons is needed, not %s" % (" and ".join(given) or "none"))
    if "persons" not in holder:
        return [{"id": "person", "incomes": incomes(holder, path)}]
    core.unique(holder["persons"], path + ".persons")
    out = []
    for index, person in enumerate(holder["persons"]):
        here = "%s.persons[%d]" % (path, index)
        if ("income" in person) == ("incomes" in person):
            raise core.Refused(here, "exactly one of income or incomes is needed")
        out.append({"id": person["id"], "incomes": incomes(person, here)})
    return out


def incomes(holder, path):
    if "income" in holder:
        return {"income": Decimal(holder["income"])}
    out = {}
    for item in holder["incomes"]:
        out[item["kind"]] = out.get(item["kind"], ZERO) + Decimal(item["amount"])
    return out
