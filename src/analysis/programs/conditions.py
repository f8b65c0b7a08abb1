"""Conditions over facts in three-valued logic: true, false, and unknown (`None`) when a fact is missing.

Unknown is never rounded to either side: `false and unknown` is false, `true and unknown` is unknown. A fact that is
there but of another kind than the comparison needs (text where a number is compared) is unknown too, with the reason.
"""
import datetime
from decimal import Decimal

core = use("core")
formula = use("formula")

NUMERIC = {"lt": "below", "le": "at most", "gt": "above", "ge": "at least"}
DATED = {"before": "before", "after": "after", "on_or_before": "on or before", "on_or_after": "on or after"}
OPPOSITE = {"eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "in": "not_in", "not_in": "in",
            "before": "on_or_after", "on_or_after": "before", "after": "on_or_before", "on_or_before": "after",
            "is_true": "is_false", "is_false": "is_true"}
LISTS = ("in", "not_in", "contains_all", "contains_any")
NO_VALUE = ("is_true", "is_false", "known")
SINCE = {"age_at_least": "age at least %s", "age_at_most": "age at most %s",
         "days_since_at_least": "at least %s days ago", "days_since_at_most": "at most %s days ago"}
MISSING = object()
MOST_WAYS = 5
MOST_COUNTED = 20


def parse(spec, path):
    """A condition, refused when it is none or ambiguous."""
    kinds = [name for name in ("all", "any", "not", "at_least", "result", "fact") if name in spec]
    if len(kinds) != 1:
        raise core.Refused(path, "a condition has exactly one of all, any, not, at_least, result or fact, not %s; for instance %s" % (
            " and ".join(kinds) or "none", '{"fact": "age", "op": "ge", "value": 18}'))
    kind = kinds[0]
    belongs = {"all": {"all"}, "any": {"any"}, "not": {"not"}, "at_least": {"at_least", "of"}, "result": {"result", "status"}}.get(
        kind, {"fact", "op", "value", "value_fact", "at", "measure", "field", "where"})
    stray = sorted(set(spec) - belongs - {"title", "source"})
    if stray:
        raise core.Refused("%s.%s" % (path, stray[0]), "does not go with %s" % kind)
    labels = {"title": spec.get("title"), "source": spec.get("source")}
    if kind == "not":
        return Not(parse(spec["not"], path + ".not"), labels)
    if kind == "fact":
        return Leaf(spec, path, labels)
    if kind == "result":
        return Earlier(spec, path, labels)
    name = "of" if kind == "at_least" else kind
    if name not in spec:
        raise core.Refused(path + ".of", "at_least needs the list `of`")
    parts = [parse(part, "%s.%s[%d]" % (path, name, i)) for i, part in enumerate(spec[name])]
    need = {"all": len(parts), "any": 1}.get(kind, spec.get("at_least"))
    if need > len(parts):
        raise core.Refused(path + ".at_least", "%d can never hold among %d" % (need, len(parts)))
    return Several(kind, need, parts, labels)


class Facts:
    """Facts by name; a name may be a path through objects and lists. `results` holds the status of each rule or scheme
    that was judged so far."""

    def __init__(self, facts, as_of, outer=None):
        self.facts = facts
        self.as_of = core.date_of(as_of) if as_of else None
        self.outer = outer
        self.results = {} if outer is None else outer.results
        self.lacking = {} if outer is None else outer.lacking  # computed facts that are unknown, with the facts they lack

    def get(self, name):
        value = descend(self.facts, name)
        if value is MISSING and self.outer is not None:
            return self.outer.get(name)
        return value


def descend(value, name):
    if isinstance(value, dict):
        if name in value:
            return MISSING if value[name] is None else value[name]
        parts = name.split(".")
        for cut in range(len(parts) - 1, 0, -1):
            head = ".".join(parts[:cut])
            if head in value:
                return descend(value[head], ".".join(parts[cut:]))
    if isinstance(value, list):
        head, _, rest = name.partition(".")
        if head.isdigit() and len(head) < 7 and int(head) < len(value):
            found = value[int(head)]
            return descend(found, rest) if rest else (MISSING if found is None else found)
    return MISSING


class Answer:
    """Truth of a condition, its leaves in order, and what is missing."""

    def __init__(self, truth, leaves, labels):
        self.truth = truth
        self.leaves = leaves
        self.labels = labels

    def missing(self):
        return list(dict.fromkeys(name for leaf in self.leaves for name in leaf["missing"]))


class Not:
    def __init__(self, inner, labels):
        self.inner = inner
        self.labels = labels

    def leaves(self):
        return self.inner.leaves()

    def sources(self):
        return [self.labels["source"]] + self.inner.sources()

    def ask(self, facts):
        inner = self.inner.ask(facts)
        return Answer(None if inner.truth is None else not inner.truth, inner.leaves, self.labels)

    def way(self, facts, wanted=True):
        return self.inner.way(facts, not wanted)

    def ways(self, facts):
        way = self.way(facts)
        return [] if way is None else [way]


class Earlier:
    """The status of an earlier rule or scheme; one that is unknown leaves the condition unknown."""

    def __init__(self, spec, path, labels):
        self.name, self.status, self.path, self.labels = spec["result"], spec.get("status"), path, labels

    def leaves(self):
        return 1

    def sources(self):
        return [self.labels["source"]]

    def ask(self, facts):
        if self.name not in facts.results:
            raise core.unknown(self.path + ".result", "earlier result", self.name, facts.results)
        actual, missing, known = facts.results[self.name]
        wanted = self.status or known[0]
        if wanted not in known:
            raise core.unknown(self.path + ".status", "status", wanted, known)
        truth = actual == wanted if wanted == "unknown" or actual != "unknown" else None
        leaf = {"fact": self.name, "op": "result", "expected": wanted, "actual": actual, "truth": truth,
                "missing": missing if truth is None else [], "reason": None,
                "title": self.labels["title"], "source": self.labels["source"]}
        return Answer(truth, [leaf], self.labels)

    def way(self, facts, wanted=True):
        answer = self.ask(facts)
        if answer.truth is wanted:
            return []
        leaf = answer.leaves[0]
        return [{"fact": leaf["fact"], "now": leaf["actual"], "needed": ("" if wanted else "not ") + leaf["expected"].replace("_", " "),
                 "missing": leaf["missing"], "short_by": None, "over_by": None}]

    def ways(self, facts):
        return [self.way(facts)]


class Several:
    """`all`, `any` and `at_least` are one thing: so many of them have to hold."""

    def __init__(self, kind, need, parts, labels):
        self.kind = kind
        self.need = need
        self.parts = parts
        self.labels = labels

    def leaves(self):
        return sum(part.leaves() for part in self.parts)

    def sources(self):
        return [self.labels["source"]] + [source for part in self.parts for source in part.sources()]

    def ask(self, facts):
        answers = [part.ask(facts) for part in self.parts]
        true = sum(1 for answer in answers if answer.truth is True)
        unknown = sum(1 for answer in answers if answer.truth is None)
        truth = True if true >= self.need else None if true + unknown >= self.need else False
        return Answer(truth, [leaf for answer in answers for leaf in answer.leaves], self.labels)

    def way(self, facts, wanted=True):
        """The fewest changes that make it hold (or not hold); none when it already does; `None` when it cannot be."""
        need = self.need if wanted else len(self.parts) - self.need + 1
        ways = [way for way in (part.way(facts, wanted) for part in self.parts) if way is not None]
        if len(ways) < need:
            return None
        best = sorted(range(len(ways)), key=lambda at: (len(ways[at]), at))[:need]
        return [change for at in sorted(best) for change in ways[at]]

    def ways(self, facts):
        """Each way to make it hold, the fewest changes first: the parts of an `any` are alternatives."""
        if self.kind != "any":
            way = self.way(facts)
            return [] if way is None else [way]
        found = [way for part in self.parts for way in part.ways(facts)]
        return sorted(found, key=len)[:MOST_WAYS]


class Leaf:
    def __init__(self, spec, path, labels):
        self.spec = spec
        self.path = path
        self.labels = labels
        self.fact = spec["fact"]
        self.op = spec.get("op")
        if self.op is None:
            raise core.Refused(path + ".op", "how is the fact compared?")
        self.where = parse(spec["where"], path + ".where") if "where" in spec else None
        self.measure = spec.get("measure")
        self.counted = []
        if self.measure is None and (self.where is not None or "field" in spec):
            raise core.Refused(path + ".measure", "where and field need a measure")
        if self.measure in ("sum", "min", "max") and "field" not in spec and self.where is not None:
            raise core.Refused(path + ".field", "%s over objects needs the field" % self.measure)
        has = ("value" in spec) + ("value_fact" in spec)
        if self.op in NO_VALUE and has:
            raise core.Refused(path + ".value", "%s takes no value" % self.op)
        if self.op not in NO_VALUE and has != 1:
            raise core.Refused(path + ".value", "exactly one of value and value_fact is needed")
        if "value" in spec:
            self.check_value(spec["value"])
        if "at" in spec and self.op not in SINCE:
            raise core.Refused(path + ".at", "only an age, or days since, is taken at a date")

    def check_value(self, value):
        path = self.path + ".value"
        if self.op in SINCE:
            if as_number(value) is None:
                raise core.Refused(path, "%s needs a number" % self.op)
        elif self.op in NUMERIC:
            if core.quantity(value) is None:
                raise core.Refused(path, "%s needs a number" % self.op)
        elif self.op in DATED:
            if as_date(value) is None:
                raise core.Refused(path, "%s needs a date like 2024-02-29" % self.op)
        elif self.op in LISTS:
            if not isinstance(value, list):
                raise core.Refused(path, "%s needs a list" % self.op)
        elif self.op == "between":
            ends = value if isinstance(value, list) and len(value) == 2 else None
            pair = ends and ([core.quantity(v) for v in ends] if None not in [core.quantity(v) for v in ends] else [as_date(v) for v in ends])
            if not pair or None in pair or isinstance(pair[0], tuple) and pair[0][1] != pair[1][1]:
                raise core.Refused(path, "between needs [low, high], both dates, or both numbers of one unit")
            if pair[0] > pair[1]:
                raise core.Refused(path, "the low end is above the high end")

    def leaves(self):
        return 1

    def sources(self):
        return [self.labels["source"]] + (self.where.sources() if self.where else [])

    # truth

    def ask(self, facts):
        actual, missing, reason = self.actual(facts)
        expected = self.expected(facts, missing)
        truth = None
        if self.op == "known":
            truth, missing = actual is not MISSING, []
        elif not missing and reason is None:
            truth, reason = self.compare(actual, expected, facts, missing)
        leaf = {
            "fact": self.name(), "op": self.op, "expected": None if expected is MISSING else formula.shorten(expected) if isinstance(expected, Decimal) else expected,
            "actual": None if actual is MISSING else shown(actual), "truth": truth, "missing": missing,
            "reason": reason, "title": self.labels["title"], "source": self.labels["source"],
        }
        leaf.update(self.besides(actual, facts))
        return Answer(truth, [leaf], self.labels)

    def besides(self, actual, facts):
        """What a reader asks next: the age or the days that came out, and which items were counted."""
        if self.op in SINCE:
            since = self.since(actual, facts)
            return {} if since is None else {self.since_name(): since}
        if self.measure == "count" and self.where is not None and self.counted:
            return {"counted": self.counted[:MOST_COUNTED] + (["…"] if len(self.counted) > MOST_COUNTED else [])}
        return {}

    def name(self):
        if not self.measure:
            return self.fact
        field = ".%s" % self.spec["field"] if "field" in self.spec else ""
        return "%s of %s%s" % (self.measure, self.fact, field)

    def actual(self, facts):
        """The value that is compared, the facts that are missing for it, and why it cannot be used."""
        value = facts.get(self.fact)
        if value is MISSING:
            return MISSING, facts.lacking.get(self.fact, [self.fact]), None
        if not self.measure:
            return value, [], None
        if not isinstance(value, list):
            return value, [], "%s is not a list" % core.clip(self.fact)
        taken, units = [], {}
        self.counted = []
        for index, item in enumerate(value):
            place = "%s[%d]" % (self.fact, index)
            if self.where is not None:
                if not isinstance(item, dict):
                    return MISSING, [], "%s is not an object" % place
                chosen = self.where.ask(Facts(item, None, facts)) if facts.as_of is None else self.where.ask(
                    Facts(item, facts.as_of.isoformat(), facts))
                if chosen.truth is None:
                    return MISSING, ["%s.%s" % (place, name) for name in chosen.missing()] or [place], None
                if not chosen.truth:
                    continue
                self.counted.append(item_name(item, index))
            if self.measure == "count" and "field" not in self.spec:
                taken.append(item)
                continue
            found = descend(item, self.spec["field"]) if "field" in self.spec else item
            if found is MISSING or found is None:
                return MISSING, ["%s.%s" % (place, self.spec.get("field", ""))], None
            number, unit = core.quantity(found) or (None, None)
            if self.measure != "count" and number is None:
                return MISSING, [], "%s holds no number" % place
            units[unit] = place
            taken.append(number)
        if self.measure == "count":
            return Decimal(len(taken)), [], None
        if len(units) > 1:
            return MISSING, [], "%s are in different units (%s)" % (" and ".join(list(units.values())[:2]), ", ".join(unit or "none" for unit in units))
        if not taken and self.measure != "sum":
            return MISSING, [], "the %s of an empty list" % self.measure
        found = sum(taken, core.ZERO) if self.measure == "sum" else (min if self.measure == "min" else max)(taken)
        unit = next(iter(units), None)
        return found if unit is None else "%s %s" % (core.plain(found), unit), [], None

    def expected(self, facts, missing):
        if "value_fact" in self.spec:
            value = facts.get(self.spec["value_fact"])
            if value is MISSING:
                missing.append(self.spec["value_fact"])
            return value
        return self.spec.get("value", MISSING)

    def compare(self, actual, expected, facts, missing):
        op = self.op
        if op in NUMERIC:
            left, right = core.quantity(actual), core.quantity(expected)
            if left is None or right is None:
                return None, "%s is not a number" % core.clip(self.name() if left is None else self.spec.get("value_fact", "value"))
            if left[1] != right[1]:
                return None, self.unlike(left[1], right[1])
            left, right = left[0], right[0]
            return {"lt": left < right, "le": left <= right, "gt": left > right, "ge": left >= right}[op], None
        if op in DATED:
            left, right = as_date(actual), as_date(expected)
            if left is None or right is None:
                return None, "%s is not a date" % core.clip(self.name() if left is None else self.spec.get("value_fact", "value"))
            left, right = moments(actual, expected)
            if left is None:
                return None, self.unplaced()
            return {"before": left < right, "after": left > right, "on_or_before": left <= right, "on_or_after": left >= right}[op], None
        if op in ("eq", "ne"):
            left, right = core.quantity(actual), core.quantity(expected)
            if left and right and left[1] != right[1] and None in (left[1], right[1]):
                return None, self.unlike(left[1], right[1])
            same = left == right if left and right else equal(actual, expected)
            return (same if op == "eq" else not same), None
        if op == "between":
            if not isinstance(expected, list) or len(expected) != 2:
                return None, "%s is not [low, high]" % core.clip(self.spec.get("value_fact", "value"))
            for kind in (core.quantity, as_date):
                low, high, here = kind(expected[0]), kind(expected[1]), kind(actual)
                if None not in (low, high, here):
                    if kind is core.quantity and not low[1] == high[1] == here[1]:
                        return None, self.unlike(here[1], low[1] if low[1] != here[1] else high[1])
                    if kind is core.quantity:
                        return low <= here <= high, None
                    pairs = moments(expected[0], actual), moments(actual, expected[1])
                    if (None, None) in pairs:
                        return None, self.unplaced()
                    return all(first <= second for first, second in pairs), None
            return None, "%s cannot be compared with these ends" % core.clip(self.name())
        if op in ("in", "not_in"):
            if not isinstance(expected, list):
                return None, "%s is not a list" % core.clip(self.spec.get("value_fact", "value"))
            inside = any(equal(actual, item) for item in expected)
            return (inside if op == "in" else not inside), None
        if op.startswith("contains"):
            if isinstance(actual, str) and op == "contains" and isinstance(expected, str):
                return expected in actual, None
            if not isinstance(actual, list):
                return None, "%s is not a list" % core.clip(self.name())
            wanted = [expected] if op == "contains" else expected
            if not isinstance(wanted, list):
                return None, "%s is not a list" % core.clip(self.spec.get("value_fact", "value"))
            hits = [any(equal(item, want) for item in actual) for want in wanted]
            return (any(hits) if op == "contains_any" else all(hits)), None
        if op in ("is_true", "is_false"):
            if not isinstance(actual, bool):
                return None, "%s is neither true nor false" % core.clip(self.name())
            return actual is (op == "is_true"), None
        return self.compare_age(actual, expected, facts, missing)

    def compare_age(self, actual, expected, facts, missing):
        born, limit = as_date(actual), as_number(expected)
        if born is None:
            return None, "%s is not a date%s" % (core.clip(self.name()), " of birth" if self.op.startswith("age_") else "")
        if limit is None:
            return None, "%s is not a number" % core.clip(self.spec.get("value_fact", "value"))
        day, name = self.day(facts)
        if day is None:
            missing.append(name)
            return None, None
        if day < born:
            return None, "%s lies after the date at which it is taken" % core.clip(self.name())
        since = self.since(actual, facts)
        return (since >= limit if self.op.endswith("_at_least") else since <= limit), None

    def since_name(self):
        return "age" if self.op.startswith("age_") else "days_since"

    def since(self, actual, facts):
        """Whole years, or days, from the fact's date to the day at which they are taken."""
        born, (day, _) = as_date(actual), self.day(facts)
        if born is None or day is None or day < born:
            return None
        return age_at(born, day) if self.op.startswith("age_") else (day - born).days

    def unlike(self, left, right):
        """Two units are never compared; a rate is needed first."""
        other = core.clip(self.spec.get("value_fact", "the value"))
        say = lambda unit: "in %s" % unit if unit else "without a unit"
        return "%s is %s and %s is %s; give both in one unit" % (core.clip(self.name()), say(left), other, say(right))

    def unplaced(self):
        return "%s is compared with a time, and only one of the two has an offset from UTC" % core.clip(self.name())

    def day(self, facts):
        """The date of an age, or the name of what is missing for it."""
        if "at" not in self.spec:
            return facts.as_of, "as_of"
        day = as_date(self.spec["at"])
        if day is None:
            found = facts.get(self.spec["at"])
            day = None if found is MISSING else as_date(found)
        return day, self.spec["at"]

    # the nearest way

    def ways(self, facts):
        return [self.way(facts)]

    def way(self, facts, wanted=True):
        answer = self.ask(facts)
        leaf = answer.leaves[0]
        if answer.truth is wanted:
            return []
        op = self.op if wanted else OPPOSITE.get(self.op)
        need = self.phrase(op, leaf["expected"]) if op else "not " + self.phrase(self.op, leaf["expected"])
        change = {"fact": leaf["fact"], "now": leaf["actual"], "needed": need, "missing": leaf["missing"], "short_by": None, "over_by": None}
        if answer.truth is not None and op in NUMERIC and not isinstance(leaf["actual"], bool):
            now, then = core.quantity(leaf["actual"]), core.quantity(leaf["expected"])
            if now is not None and then is not None and now[1] == then[1] and now[0] != then[0]:
                short = core.plain(core.shown(abs(then[0] - now[0])))
                change["short_by" if now[0] <= then[0] and op in ("gt", "ge") else "over_by"] = short if now[1] is None else "%s %s" % (short, now[1])
        limit = as_number(leaf["expected"]) if self.op in SINCE else None
        if answer.truth is not None and limit is not None and wanted:
            since = leaf[self.since_name()]
            unit = "year" if self.op.startswith("age_") else "day"
            change["short_by" if since < limit else "over_by"] = "%s %s" % (core.plain(abs(limit - since)), unit if abs(limit - since) == 1 else unit + "s")
        if answer.truth is not None and op in DATED:
            now, then = as_date(leaf["actual"]), as_date(leaf["expected"])
            if now and then:
                late, strictly = op in ("before", "on_or_before"), op in ("before", "after")
                now, then = moments(leaf["actual"], leaf["expected"])
                unit, step = ("minute", datetime.timedelta(minutes=1)) if isinstance(now, datetime.datetime) else ("day", datetime.timedelta(1))
                steps = abs(then - now) // step + 1 if strictly else -(-abs(then - now) // step)
                change["over_by" if late else "short_by"] = core.count(steps, unit)
        if answer.truth is False and wanted and self.op == "age_at_least":
            reached = birthday(as_date(leaf["actual"]), as_number(leaf["expected"]))
            if reached:
                change["needed"] += ", reached on %s" % reached.isoformat()
        return [change]

    def phrase(self, op, expected):
        if expected is None:
            expected = self.spec.get("value_fact", "")
        return phrase(op, expected)


WORDS = dict(NUMERIC, **DATED)
WORDS.update({"eq": "equal to", "ne": "other than", "in": "one of", "not_in": "none of",
              "contains": "containing", "contains_all": "containing all of", "contains_any": "containing one of"})


def phrase(op, expected):
    """What a comparison asks for, in words."""
    if op in NO_VALUE:
        return {"is_true": "true", "is_false": "false", "known": "known"}[op]
    if op == "between" and isinstance(expected, list):
        return "from %s to %s" % (say(expected[0]), say(expected[1]))
    if op in SINCE:
        return SINCE[op] % say(expected)
    return "%s %s" % (WORDS.get(op, op), say(expected))


def describe(leaf):
    """One line about a comparison: fact, what it is, what was asked."""
    if leaf["op"] == "result":
        return "%s is %s" % (core.clip(leaf["fact"]), leaf["actual"].replace("_", " "))
    if leaf["op"] == "known":
        return "%s is %s" % (core.clip(leaf["fact"]), "known" if leaf["truth"] else "not known")
    if leaf["missing"]:
        return "%s: not known" % ", ".join(core.clip(name) for name in leaf["missing"])
    if leaf["reason"]:
        return core.clip(leaf["reason"], 200)
    besides = ""
    if "age" in leaf:
        besides = ", age %s" % leaf["age"]
    elif "days_since" in leaf:
        besides = ", %s before" % core.count(leaf["days_since"], "day")
    elif "counted" in leaf:
        besides = ": " + ", ".join(leaf["counted"])
    return "%s is %s%s (required: %s)" % (core.clip(leaf["fact"]), say(leaf["actual"]), besides, phrase(leaf["op"], leaf["expected"]))


def change_text(change):
    """One line about a change of the nearest way."""
    short = next((", %s by %s" % (word, change[word + "_by"]) for word in ("short", "over") if change[word + "_by"]), "")
    return "%s %s%s" % (core.clip(change["fact"]), core.clip(change["needed"], 120), short)


def ways_text(ways):
    """The ways to pass, as alternatives."""
    return " or ".join("; ".join(change_text(change) for change in way) for way in ways if way)


def item_name(item, index):
    """How an item of a list is called in a reason: by its own name, or by its place."""
    for field in ("id", "name", "title"):
        if isinstance(item.get(field), str):
            return core.clip(item[field])
    return "item %d" % (index + 1)


def computed(p, facts):
    """The call's formulas over the facts, in order: each becomes a fact. One whose facts are not all known is unknown itself."""
    out, exact = {}, {}
    for index, spec in enumerate(p.get("formulas", [])):
        path = "formulas[%d]" % index
        if facts.get(spec["id"]) is not MISSING:
            raise core.Refused(path + ".id", "%r is already a fact" % core.clip(spec["id"]))
        expression = formula.Expression(spec["expression"], path + ".expression")
        names, lacking = {}, []
        for name in expression.names():
            value = facts.get(name)
            if value is MISSING:
                lacking += facts.lacking.get(name, [name])
                continue
            number = exact.get(name) or formula.Quantity.read(value)
            if number is None:
                raise core.Refused(path + ".expression", "the fact %r is not a number" % core.clip(name))
            names[name] = number
        if lacking:
            facts.lacking[spec["id"]] = list(dict.fromkeys(lacking))
            out[spec["id"]] = None
            continue
        result = exact[spec["id"]] = expression.quantity(names)
        number = formula.shorten(result.decimal())
        facts.facts[spec["id"]] = result.decimal() if not result.unit else "%s %s" % (core.plain(number), result)
        out[spec["id"]] = number if not result.unit else facts.facts[spec["id"]]
    return out


def computed_text(computed):
    """A sentence with what the formulas came to."""
    if not computed:
        return []
    return ["Computed: %s." % ", ".join("%s %s" % (core.clip(name), "unknown" if value is None else say(value)) for name, value in computed.items())]


def computed_table(computed):
    return [core.Table("Computed facts", ["fact", "value"], [[name, value] for name, value in computed.items()])] if computed else []


def mistaken(missing, facts):
    """A note for each missing fact whose name is nearly that of one that was given."""
    notes = []
    for name in dict.fromkeys(missing):
        near = core.nearest(name, facts)
        if near is not None:
            notes.append("No fact is called %r; the nearest that was given is %r." % (core.clip(name), core.clip(near)))
    return notes


def say(value):
    if isinstance(value, list):
        most = ", ".join(say(item) for item in value[:10])
        return "[%s%s]" % (most, ", …" if len(value) > 10 else "")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        return core.plain(formula.shorten(value))
    if isinstance(value, dict):
        return "an object"
    return core.clip(value)


def shown(value):
    """A fact as a reason shows it: long lists and texts are cut."""
    if isinstance(value, list):
        return [shown(item) for item in value[:20]] + (["…"] if len(value) > 20 else [])
    if isinstance(value, str):
        return value if len(value) <= 200 else value[:199] + "…"
    if isinstance(value, dict):
        return "an object"
    return formula.shorten(value) if isinstance(value, Decimal) else value


def as_number(value):
    """A number, or text that is plainly one; a truth value is none."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, Decimal)):
        return Decimal(value)
    if isinstance(value, str) and 0 < len(value) <= 60:
        digits = value[1:] if value[0] == "-" else value
        whole, dot, fraction = digits.partition(".")
        if whole.isascii() and whole.isdigit() and (not dot or fraction.isascii() and fraction.isdigit()):
            return Decimal(value)
    return None


def as_date(value):
    """A date out of text whose order is certain, or the day that a time is written with."""
    if not isinstance(value, str) or not 8 <= len(value) <= 40:
        return None
    timed = core.read_time(value)
    return timed[0].date() if timed else core.read_date(value)


def moments(left, right):
    """Two days, or two times in UTC where they have offsets, to be compared; a time beside a day counts as its day. Nothing
    and nothing where one time has an offset and the other has none."""
    a, b = core.read_time(left), core.read_time(right)
    if a is None or b is None:
        return as_date(left), as_date(right)
    if (a[1] is None) != (b[1] is None):
        return None, None
    return tuple(written - (offset or datetime.timedelta(0)) for written, offset in (a, b))


def equal(left, right):
    """Same value; numbers by value whether written as number or text, `true` is not 1."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    a, b = as_number(left), as_number(right)
    if a is not None and b is not None:
        return a == b
    a, b = as_date(left), as_date(right)
    if None not in (a, b) and (":" in left) == (":" in right):  # two days or two times, however they are written
        a, b = moments(left, right)
        if a is not None:
            return a == b
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(equal(x, y) for x, y in zip(left, right))
    return type(left) is type(right) and left == right


def age_at(born, day):
    """Whole years; who is born on 29 February is a year older on 1 March of a common year."""
    return day.year - born.year - ((day.month, day.day) < (born.month, born.day))


def birthday(born, age):
    """The first day of that age."""
    if born is None or age is None or age != age.to_integral_value() or not 0 < born.year + age <= 9999:
        return None
    year = born.year + int(age)
    if (born.month, born.day) == (2, 29) and core.last_day(year, 2) == 28:
        return datetime.date(year, 3, 1)
    return datetime.date(year, born.month, born.day)
