"""Events and constraints in time.

Each constraint is a pair of rising functions on dates: the earliest that `to` may be given `from`, or the latest. So
the possible dates of undated events are found by moving bounds until nothing changes, in calendar and in working days
alike; bounds that cross, or move on without end, mean that the constraints cannot hold together.
"""
import bisect
import datetime
import itertools

core = use("core")

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
MIN, MAX = datetime.date.min.toordinal(), datetime.date.max.toordinal()
EDGE = 150 * 366  # a bound this near the calendar's ends is no bound but their echo
ROUNDS = 400  # beyond the number of events; bounds that still move after that count as endless
WORK = 200000  # comparisons after which the search for a smaller conflict ends
TOO_MUCH = 1500000  # comparisons after which the whole question is given back
SUBSETS = 4000  # how many subsets are tried in search of one smaller than the first that was found
NEEDS = {
    "deadline": ("event", "date"), "not_before": ("event", "date"), "min_gap": ("from", "to", "amount"),
    "max_gap": ("from", "to", "amount"), "order": ("events",), "working_day": ("event",), "look_back": ("of", "at", "amount"),
}
LIMITS = {"max_days": ("at most", "day"), "min_days": ("at least", "day"), "max_count": ("at most", "event"), "min_count": ("at least", "event")}
MAY = {"min_gap": ("unit", "roll"), "max_gap": ("unit", "roll"), "order": ("strict",), "look_back": ("unit",) + tuple(LIMITS)}


def run(p):
    return Timeline(p).result()


class Calendar:
    """Days, months and working days as rising functions on day numbers; outside years 1 to 9999 they stop."""

    def __init__(self, p, month_end=None):
        self.off = set(DAYS.index(day) for day in p.get("weekend", ["sat", "sun"]))
        self.holidays = set(core.date_of(day).toordinal() for day in p.get("holidays", []))
        self.lost = sorted(day for day in self.holidays if (day - 1) % 7 not in self.off)
        self.keep = p.get("month_end", month_end) == "keep"

    def works(self, day):
        return (day - 1) % 7 not in self.off and day not in self.holidays

    def count(self, day):
        """Working days from the first day of all up to and including this one."""
        weeks, rest = divmod(day, 7)
        full = weeks * (7 - len(self.off)) + sum(1 for weekday in range(rest) if weekday not in self.off)
        return full - bisect.bisect_right(self.lost, day)

    def roll(self, day, way):
        if way == "none" or self.works(day):
            return day
        return self.add(day, 1 if way == "next" else -1, "working_days")

    def add(self, day, amount, unit):
        """The day so far after (before, if negative) the given one."""
        if unit in ("days", "weeks"):
            return min(MAX, max(MIN, day + amount * (7 if unit == "weeks" else 1)))
        if unit in ("months", "years"):
            return self.add_months(day, amount * (12 if unit == "years" else 1))
        guess = day + amount * 7 // (7 - len(self.off))
        if amount > 0:
            target = self.count(day) + amount
            return first(lambda other: self.count(other) >= target, day, MAX - 1, guess)
        if amount < 0:
            target = self.count(day - 1) + amount
            return last(lambda other: self.count(other - 1) <= target, MIN + 1, day, guess)
        return day

    def add_months(self, day, months):
        date = datetime.date.fromordinal(day)
        count = date.year * 12 + date.month - 1 + months
        year, month = divmod(count, 12)
        if not 1 <= year <= 9999:
            return MAX if months > 0 else MIN
        last = core.last_day(year, month + 1)
        if self.keep and date.day == core.last_day(date.year, date.month):
            return datetime.date(year, month + 1, last).toordinal()
        return datetime.date(year, month + 1, min(date.day, last)).toordinal()

    def working_between(self, start, end):
        """Working days after `start` up to and including `end`; negative when they are the other way round."""
        return self.count(end) - self.count(start)


class Timeline:
    def __init__(self, p):
        self.p = p
        self.calendar = Calendar(p)
        core.unique(p.get("calendars", []), "calendars")
        self.calendars = {spec["id"]: Calendar(spec, p.get("month_end")) for spec in p.get("calendars", [])}
        self.zone, self.zone_name = zone(p.get("timezone", "UTC"))
        self.notes = []
        specs = core.unique(p["events"], "events")
        self.events = {}
        for index, (name, spec) in enumerate(specs.items()):
            start, end = self.day(spec.get("date")), self.day(spec.get("end"))
            if end is not None and (start is None or end < start):
                raise core.Refused("events[%d].end" % index, "the end needs a date, and not one after it")
            self.events[name] = {"id": name, "title": spec.get("title"), "day": start, "end": end if end is not None else start}
        for at, spec in enumerate(p["constraints"]):
            spec.setdefault("id", "%s %d" % (spec["type"].replace("_", " "), at + 1))
        core.unique(p["constraints"], "constraints")
        self.constraints = []
        for index, spec in enumerate(p["constraints"]):
            check(spec, "constraints[%d]" % index, self.events)
            if "calendar" in spec and spec["calendar"] not in self.calendars:
                raise core.unknown("constraints[%d].calendar" % index, "calendar", spec["calendar"], self.calendars)
            self.constraints.append(dict(spec, path="constraints[%d]" % index))
        self.rules = {c["id"]: self.rules_of(c) for c in self.constraints}
        self.work = 0
        if sum(map(len, self.rules.values())) > 5000:
            raise core.Refused("constraints", "these come to more than 5000 comparisons of two events")

    def day(self, text):
        if text is None:
            return None
        if len(text) == 10:
            return core.date_of(text).toordinal()
        moment, offset = core.read_time(text)
        try:
            return moment.replace(tzinfo=datetime.timezone(offset)).astimezone(self.zone).date().toordinal()
        except OverflowError:
            raise core.Refused("events", "a time at the very edge of the calendar has no day in %s" % self.zone_name)

    def calendar_of(self, c):
        """The calendar that a constraint names, else the call's."""
        return self.calendars[c["calendar"]] if "calendar" in c else self.calendar

    # constraints as rules on bounds: (from, to, earliest or None, latest or None, lowest day of from)

    def rules_of(self, c):
        kind = c["type"]
        if kind == "deadline":
            day = core.date_of(c["date"]).toordinal()
            return [Rule(None, c["event"], None, lambda _: day)]
        if kind == "not_before":
            day = core.date_of(c["date"]).toordinal()
            return [Rule(None, c["event"], lambda _: day, None)]
        if kind in ("min_gap", "max_gap"):
            calendar = self.calendar_of(c)
            move = lambda day: calendar.roll(calendar.add(day, c["amount"], c.get("unit", "days")), c.get("roll", "none"))
            back = lambda day: calendar.add(day, -c["amount"], c.get("unit", "days"))
            pair = (move, None) if kind == "min_gap" else (None, move)
            return [Rule(c["from"], c["to"], pair[0], pair[1], back)]
        if kind == "order":
            step = 1 if c.get("strict", False) else 0
            return [Rule(a, b, lambda day: min(MAX, day + step), None) for a, b in zip(c["events"], c["events"][1:])]
        return []

    def bounds(self, names):
        """Earliest and latest day of each event under these constraints; `None` when they cannot hold together, and
        whether the search came to rest."""
        low = {name: event["day"] if event["day"] is not None else MIN for name, event in self.events.items()}
        high = {name: event["day"] if event["day"] is not None else MAX for name, event in self.events.items()}
        rules = [rule for name in names for rule in self.rules[name]]
        seen = {}
        working = [(c["event"], self.calendar_of(c)) for c in self.constraints if c["type"] == "working_day" and c["id"] in names]
        involved = {name for rule in rules for name in (rule.start, rule.to)}
        for _ in range(len(involved) + ROUNDS):
            moved = False
            for rule in rules:
                state = rule.state(low, high)
                if seen.get(rule) != state:
                    rule.tighten(low, high)
                    self.work += 1
                    if self.work > TOO_MUCH:
                        raise core.Refused("constraints", "these are too many, too closely tied, to be decided in one call")
                    seen[rule] = rule.state(low, high)
                    moved |= seen[rule] != state
            for name, calendar in working:
                first, last = calendar.roll(low[name], "next"), calendar.roll(high[name], "previous")
                moved |= first > low[name] or last < high[name]
                low[name], high[name] = max(low[name], first), min(high[name], last)
            if any(low[name] > high[name] for name in low):
                return None, True
            if not moved:
                return (low, high), True
        return None, False

    # answers

    def judge(self, c):
        """Status, slack and the dates of one constraint, from the given dates alone."""
        out = {"id": c["id"], "title": c.get("title"), "type": c["type"], "source": c.get("source"), "status": "unknown",
               "slack_days": None, "slack_working_days": None, "bound": None, "actual": None, "missing": [], "detail": ""}
        names = [c[key] for key in ("event", "from", "to", "at") if key in c] + c.get("events", []) + c.get("of", [])
        undated = list(dict.fromkeys(name for name in names if self.events[name]["day"] is None))
        if c["type"] in ("min_gap", "max_gap") and self.events[c["from"]]["day"] is not None:
            out["bound"] = date(self.rules[c["id"]][0].bound(self.events[c["from"]]["day"]))
        if "date" in c:
            out["bound"] = core.date_of(c["date"])
        if undated:
            out["missing"] = undated
            out["detail"] = "no date for %s" % ", ".join(core.clip(name) for name in undated)
            if c["type"] == "order":
                return self.judge_order(c, out)
            return out
        if c["type"] == "look_back":
            return self.look_back(c, out)
        if c["type"] == "order":
            return self.judge_order(c, out)
        if c["type"] == "working_day":
            day = self.events[c["event"]]["day"]
            out["actual"] = date(day)
            calendar = self.calendar_of(c)
            works = calendar.works(day)
            out["status"] = "holds" if works else "fails"
            out["detail"] = "%s is %sa working day" % (date(day), "" if works else "not ")
            if not works:
                out["bound"] = date(calendar.roll(day, "next"))
            return out
        rule = self.rules[c["id"]][0]
        day = self.events[rule.to]["day"]
        bound = rule.bound(self.events[rule.start]["day"] if rule.start else None)
        early = rule.earliest is not None
        slack = day - bound if early else bound - day
        out.update(bound=date(bound), actual=date(day), slack_days=slack, status="holds" if slack >= 0 else "fails")
        if c.get("unit") == "working_days":
            calendar = self.calendar_of(c)
            out["slack_working_days"] = calendar.working_between(bound, day) if early else calendar.working_between(day, bound)
        out["detail"] = "the %s allowed day is %s; %s is on %s, %s" % (
            "first" if early else "last", date(bound), core.clip(rule.to), date(day),
            "that very day" if slack == 0 else "%s %s" % (core.count(abs(slack), "day"), "later" if day > bound else "earlier"))
        return out

    def judge_order(self, c, out):
        step = 1 if c.get("strict", False) else 0
        known = [name for name in c["events"] if self.events[name]["day"] is not None]
        slacks = []
        for a, b in zip(known, known[1:]):
            apart = c["events"].index(b) - c["events"].index(a)
            slacks.append((self.events[b]["day"] - self.events[a]["day"] - step * apart, a, b))
        worst = min(slacks) if slacks else None
        if worst is not None and worst[0] < 0:
            out["status"] = "fails"
            out["detail"] = "%s (%s) does not come before %s (%s)" % (
                core.clip(worst[1]), date(self.events[worst[1]]["day"]), core.clip(worst[2]), date(self.events[worst[2]]["day"]))
        elif not out["missing"]:
            out["status"] = "holds"
            out["detail"] = "in order"
        if worst is not None:
            out["slack_days"] = worst[0]
        return out

    def look_back(self, c, out):
        """Days and events inside the window that ends with the last day of `at`, both ends included."""
        closes = self.events[c["at"]]["end"]
        opens = self.calendar_of(c).add(closes, -c["amount"], c.get("unit", "days")) + 1
        days, count = set(), 0
        for name in c["of"]:
            event = self.events[name]
            inside = range(max(opens, event["day"]), min(closes, event["end"]) + 1)
            days.update(inside)
            count += 1 if len(inside) else 0
        out["days"], out["count"], out["window"] = len(days), count, [date(opens), date(closes)]
        room = [(limit, (c[limit] - value) if limit.startswith("max") else (value - c[limit]))
                for limit, value in (("max_days", len(days)), ("min_days", len(days)), ("max_count", count), ("min_count", count))
                if limit in c]
        out["status"] = "holds" if all(left >= 0 for _, left in room) else "fails"
        out["room"] = dict(room)
        limits = ", ".join("%s %s" % (LIMITS[limit][0], core.count(c[limit], LIMITS[limit][1])) for limit, _ in room)
        out["detail"] = "%s and %s from %s to %s (%s)" % (core.count(len(days), "day"), core.count(count, "event"), date(opens), date(closes), limits)
        return out

    def conflict(self, names):
        """A smallest set of these constraints that cannot hold together, and whether it is surely smallest."""
        impossible = lambda some: self.bounds(some)[0] is None
        touched = {name: {end for rule in self.rules[name] for end in (rule.start, rule.to)} - {None} for name in names}
        for c in self.constraints:
            if c["type"] == "working_day" and c["id"] in touched:
                touched[c["id"]].add(c["event"])
        for size in (1, 2):
            for subset in itertools.combinations(names, size):
                if (size == 1 or touched[subset[0]] & touched[subset[1]]) and impossible(subset):
                    return list(subset), True
        rest, step = list(names), max(1, len(names) // 2)
        while True:  # leave out halves, quarters, … and at last single ones, as long as what is left is impossible
            at = 0
            while at < len(rest):
                if self.work > WORK:
                    return rest, False
                fewer = rest[:at] + rest[at + step:]
                if fewer and impossible(fewer):
                    rest = fewer
                else:
                    at += step
            if step == 1:
                break
            step = max(1, step // 2)
        tried = 0
        for size in range(3, len(rest)):
            for subset in itertools.combinations(names, size):
                tried += 1
                if tried > SUBSETS or self.work > WORK:
                    return rest, False
                if impossible(subset):
                    return list(subset), True
        return rest, True

    def result(self):
        judged = [self.judge(c) for c in self.constraints]
        failed = {out["id"] for out in judged if out["status"] == "fails"}
        open_names = [c["id"] for c in self.constraints if c["id"] not in failed and self.rules[c["id"]] or c["type"] == "working_day" and c["id"] not in failed]
        found, rested = self.bounds(open_names)
        conflict, surely = ([], True) if found is not None else self.conflict(open_names)
        bent = any(c.get("unit") in ("months", "years", "working_days") or c.get("roll") or c["type"] == "working_day"
                   for c in self.constraints)
        if not rested and bent:  # plain days that move for so long go round in a circle for ever
            self.notes.append("The search for possible dates did not come to rest; the constraints were taken to be in conflict.")
        if conflict and not surely:
            self.notes.append("The conflict cannot be made smaller by leaving one out, but a smaller one elsewhere was not ruled out.")
        as_of = core.date_of(self.p["as_of"]).toordinal() if "as_of" in self.p else None
        events = []
        for name, event in self.events.items():
            low = high = event["day"]
            if low is None and found is not None:
                low = found[0][name] if found[0][name] > MIN + EDGE else None
                high = found[1][name] if found[1][name] < MAX - EDGE else None
            events.append({
                "id": name, "title": event["title"], "date": date(event["day"]), "end": date(event["end"]),
                "earliest": date(low), "latest": date(high),
                "free_days": high - low if None not in (low, high) else None,
                "days_from_as_of": event["day"] - as_of if None not in (event["day"], as_of) else None,
                "working_day": self.calendar.works(event["day"]) if event["day"] is not None else None,
            })
        critical = []
        for out in judged:
            if out["bound"] is not None and out["type"] != "working_day":
                word = "last day" if out["type"] in ("deadline", "max_gap") else "first day"
                critical.append({"date": out["bound"], "what": "%s for %s" % (word, out["id"])})
            for end, word in zip(out.get("window", []), ("window opens for", "window closes for")):
                critical.append({"date": end, "what": "%s %s" % (word, out["id"])})
        for event in events:
            if event["date"] is None:
                for key in ("earliest", "latest"):
                    if event[key] is not None:
                        critical.append({"date": event[key], "what": "%s possible day of %s" % (key, event["id"])})
        critical.sort(key=lambda item: item["date"])
        if as_of is not None:
            for item in critical:
                item["days_from_as_of"] = item["date"].toordinal() - as_of
        counts = {status: sum(1 for out in judged if out["status"] == status) for status in ("holds", "fails", "unknown")}
        output = {
            "overall": "fails" if failed or conflict else "unknown" if counts["unknown"] else "holds",
            "counts": counts, "possible": found is not None and not failed, "timezone": self.zone_name, "events": events,
            "constraints": judged, "critical_dates": critical, "conflict": conflict,
        }
        slacks = [out["slack_days"] for out in judged if out["slack_days"] is not None]
        measures = {"holds": core.Decimal(counts["holds"]), "failed": core.Decimal(counts["fails"]),
                    "unknown": core.Decimal(counts["unknown"]),
                    "least_slack_days": core.Decimal(min(slacks)) if slacks else None}
        for event in events:
            if event["date"] is None:
                measures.update({"%s:%s" % (end, event["id"]): event[end] for end in ("earliest", "latest") if event[end] is not None})
        self.notes.append("Days are counted from the day after the event; both ends of a look-back window are included.")
        weekend = ", ".join(DAYS[day] for day in sorted(self.calendar.off)) or "none"
        return core.Result(
            output, lambda: tables(output), lambda: sentences(output),
            "Calendar days in %s; weekend %s, %d holidays; a month after a month end is %s." % (
                self.zone_name, weekend, len(self.calendar.holidays),
                "a month end" if self.calendar.keep else "the same day, or the last one"),
            [c["source"] for c in self.constraints if c.get("source")], self.notes, measures)


class Rule:
    """`to` is no earlier than `earliest(from)`, or no later than `latest(from)`; both rise with `from`, and `back` is
    about their inverse."""

    def __init__(self, start, to, earliest, latest, back=lambda day: day):
        self.back = back
        self.start = start
        self.to = to
        self.earliest = earliest
        self.latest = latest

    def bound(self, day):
        return (self.earliest or self.latest)(day)

    def state(self, low, high):
        return low[self.to], high[self.to], low.get(self.start), high.get(self.start)

    def tighten(self, low, high):
        """Moves the bounds of both events as far as this rule alone makes them move."""
        start, to = self.start, self.to
        if self.earliest is not None:
            low[to] = max(low[to], self.earliest(low.get(start)))
            if start is not None:
                guess = self.back(high[to])
                high[start] = last(lambda day: self.earliest(day) <= high[to], low[start], high[start], guess)
        else:
            high[to] = min(high[to], self.latest(high.get(start)))
            if start is not None:
                guess = self.back(low[to])
                low[start] = first(lambda day: self.latest(day) >= low[to], low[start], high[start], guess)


def first(holds, low, high, guess):
    """The first day from `low` for which it holds, one after `high` when there is none; it holds from some day on.

    Looks around the guess in growing steps, so that a good guess costs a few questions.
    """
    below, above, step = low - 1, high + 1, 1
    middle = min(high, max(low, guess))
    while above - below > 1:
        if holds(middle):
            above = middle
            middle = middle - step if middle - step > below else (below + above) // 2
        else:
            below = middle
            middle = middle + step if middle + step < above else (below + above) // 2
        step *= 2
    return above


def last(holds, low, high, guess):
    """The last day for which it holds, one before `low` when there is none; it holds up to some day."""
    return first(lambda day: not holds(day), low, high, guess) - 1


def check(c, path, events):
    """Refuses a constraint that lacks what its type needs, has what it does not, or names no event."""
    kind = c["type"]
    for name in NEEDS[kind]:
        if name not in c:
            raise core.Refused("%s.%s" % (path, name), "%s needs %s" % (kind, ", ".join(NEEDS[kind])))
    may = set(MAY.get(kind, ())) | {"calendar"}
    stray = sorted(set(c) - set(NEEDS[kind]) - may - {"id", "title", "source", "type"})
    if stray:
        raise core.Refused("%s.%s" % (path, stray[0]), "does not go with %s, which takes %s and may have %s" % (
            kind, ", ".join(NEEDS[kind]), ", ".join(sorted(may))))
    for key in ("event", "from", "to", "at"):
        if key in c and c[key] not in events:
            raise core.unknown("%s.%s" % (path, key), "event", c[key], events)
    for key in ("events", "of"):
        for at, name in enumerate(c.get(key, [])):
            if name not in events:
                raise core.unknown("%s.%s[%d]" % (path, key, at), "event", name, events)
        if len(set(c.get(key, []))) != len(c.get(key, [])):
            raise core.Refused("%s.%s" % (path, key), "an event stands twice")
    if kind in ("min_gap", "max_gap") and c["from"] == c["to"]:
        raise core.Refused(path + ".to", "a gap needs two events")
    if kind == "look_back":
        if not any(limit in c for limit in LIMITS):
            raise core.Refused(path, "look_back needs one of %s" % ", ".join(LIMITS))
        if c["amount"] == 0:
            raise core.Refused(path + ".amount", "a window of no length")
        if c.get("unit") == "working_days":
            raise core.Refused(path + ".unit", "a look-back window is counted in calendar units")


def zone(name):
    """A time zone by offset or, where this Python knows zones, by name."""
    if name.upper() in ("UTC", "Z"):
        return datetime.timezone.utc, "UTC"
    if len(name) == 6 and name[0] in "+-" and name[3] == ":" and name[1:3].isdigit() and name[4:].isdigit():
        hours, minutes = int(name[1:3]), int(name[4:])
        if hours < 24 and minutes < 60:
            delta = datetime.timedelta(hours=hours, minutes=minutes)
            return datetime.timezone(-delta if name[0] == "-" else delta), name
    try:
        import zoneinfo
        return zoneinfo.ZoneInfo(name), name
    except Exception:
        raise core.Refused("timezone", "%r is not known here; use UTC or an offset like +01:00" % core.clip(name))


def date(day):
    return None if day is None else datetime.date.fromordinal(min(MAX, max(MIN, day)))


def tables(output):
    out = [
        core.Table("Constraints: %s" % output["overall"], ["constraint", "title", "type", "status", "limit day", "actual", "#slack days", "detail", "source"], [
            [c["id"], c["title"], c["type"].replace("_", " "), c["status"], c["bound"], c["actual"], c["slack_days"], c["detail"], c["source"]]
            for c in output["constraints"]]),
        core.Table("Events", ["event", "date", "end", "earliest", "latest", "#free days"], [
            [e["title"] or e["id"], e["date"], e["end"], e["earliest"], e["latest"], e["free_days"]] for e in output["events"]]),
    ]
    if output["critical_dates"]:
        out.append(core.Table("Critical dates", ["date", "what"], [[c["date"], c["what"]] for c in output["critical_dates"]]))
    if output["conflict"]:
        out.append(core.Table("These cannot hold together", ["constraint"], [[name] for name in output["conflict"]]))
    return out


def sentences(output):
    counts = output["counts"]
    said = ["Of %s: %d satisfied, %d violated, %d unknown." % (
        core.count(len(output["constraints"]), "constraint"), counts["holds"], counts["fails"], counts["unknown"])]
    for c in output["constraints"][:100]:  # the day that a reader asks for comes first
        if c["bound"] is not None and c["type"] in ("deadline", "max_gap", "not_before", "min_gap"):
            said.append("%s day by %s: %s." % ("Last allowed" if c["type"] in ("deadline", "max_gap") else "First allowed", core.clip(c["title"] or c["id"]), c["bound"]))
    for c in output["constraints"][:100]:
        slack = "" if c["slack_days"] is None or c["slack_days"] < 0 else ", slack %s" % core.count(c["slack_days"], "day")
        if c["source"]:
            slack += " (%s)" % core.clip(c["source"], 200)
        said.append("%s %s: %s%s." % (core.clip(c["title"] or c["id"]), {"unknown": "is unknown"}.get(c["status"], c["status"]), core.clip(c["detail"], 200), slack))
    for e in output["events"]:
        if e["date"] is None and (e["earliest"] or e["latest"]):
            said.append("%s may be %s%s." % (core.clip(e["title"] or e["id"]),
                        "from %s " % e["earliest"] if e["earliest"] else "", "until %s" % e["latest"] if e["latest"] else "on"))
    if output["conflict"]:
        said.append("These cannot hold together: %s." % ", ".join(core.clip(name) for name in output["conflict"]))
    return said
