"""Rules against facts. A rule passes only when it was shown to hold; what is not known is said to be unknown."""
core = use("core")
conditions = use("conditions")

STATUSES = ("pass", "fail", "unknown", "not_applicable")
SEVERITIES = ("critical", "high", "medium", "low")
FULL_DETAIL = 1000  # rules that are explained when there are more; failures and unknowns first


def run(p):
    core.unique(p["rules"], "rules")
    facts = conditions.Facts(dict(p["facts"]), p.get("as_of"))
    computed = conditions.computed(p, facts)
    rules, sources = [], []
    for index, spec in enumerate(p["rules"]):
        path = "rules[%d]" % index
        applies = conditions.parse(spec["applies_when"], path + ".applies_when") if "applies_when" in spec else None
        requires = conditions.parse(spec["requires"], path + ".requires")
        rule = judge(spec, applies, requires, facts)
        facts.results[spec["id"]] = (rule["status"], rule["missing"], STATUSES)
        rules.append(rule)
        sources += [spec.get("source")] + (applies.sources() if applies else []) + requires.sources()
    notes = ["A rule passes only when the facts show it; a missing fact makes it unknown."]
    if len(rules) > FULL_DETAIL:
        by_need = sorted(rules, key=lambda rule: rule["status"] not in ("fail", "unknown"))
        for rule in by_need[FULL_DETAIL:]:
            rule.update(checks=[], reasons=[], nearest=[], alternatives=[])
        notes.append("Of %d rules %d are explained, failures and unknowns first." % (len(rules), FULL_DETAIL))
    counts = {status: sum(1 for rule in rules if rule["status"] == status) for status in STATUSES}
    failed = {level: sum(1 for rule in rules if rule["status"] == "fail" and rule["severity"] == level) for level in SEVERITIES}
    overall = next((status for status in ("fail", "unknown", "pass") if counts[status]), "not_applicable")
    missing = list(dict.fromkeys(name for rule in rules if rule["status"] == "unknown" for name in rule["missing"]))
    notes += conditions.mistaken((name for rule in rules for name in rule["missing"]), p["facts"])
    output = {"overall": overall, "counts": counts, "failed_by_severity": failed, "missing": missing, "computed": computed, "rules": rules}
    measures = {name: core.Decimal(count) for name, count in (
        ("passed", counts["pass"]), ("failed", counts["fail"]), ("unknown", counts["unknown"]),
        ("not_applicable", counts["not_applicable"]))}
    return core.Result(
        output, lambda: tables(output), lambda: sentences(output),
        "Comparisons of numbers are exact; nothing is rounded.",
        [spec["source"] for spec in p.get("formulas", []) if spec.get("source")] + [source for source in sources if source], notes, measures)


def judge(spec, applies, requires, facts):
    scope = applies.ask(facts) if applies else None
    out = {"id": spec["id"], "title": spec.get("title"), "severity": spec.get("severity", "medium"),
           "source": spec.get("source"), "status": None, "reasons": [], "missing": [], "nearest": [], "alternatives": [], "remedy": None, "checks": []}
    if scope is not None and scope.truth is False:
        out["status"] = "not_applicable"
        out["reasons"] = ["does not apply: " + conditions.describe(leaf) for leaf in scope.leaves][:5]
        out["checks"] = scope.leaves
        return out
    answer = requires.ask(facts)
    out["checks"] = (scope.leaves if scope else []) + answer.leaves
    unsettled = scope is not None and scope.truth is None
    if unsettled or answer.truth is None:
        out["status"] = "unknown"
        out["missing"] = (scope.missing() if unsettled else []) + (answer.missing() if answer.truth is None else [])
        if unsettled:
            state = {True: "it would pass", False: "it would fail", None: "and what it asks is not known either"}[answer.truth]
            out["reasons"].append("whether it applies is not known; if it does, " + state)
        open_leaves = [leaf for leaf in out["checks"] if leaf["truth"] is None]
        out["reasons"] += [conditions.describe(leaf) for leaf in open_leaves][:5]
    else:
        out["status"] = "pass" if answer.truth else "fail"
        out["reasons"] = [conditions.describe(leaf) for leaf in answer.leaves][:5]
    if answer.truth is not True:
        way = requires.way(facts)
        out["nearest"] = way if way is not None else []
        out["alternatives"] = [other for other in requires.ways(facts) if other != out["nearest"]]
    if out["status"] == "fail":
        out["remedy"] = spec.get("remedy")
    return out


def tables(output):
    rows = [[rule["id"], rule["title"], rule["status"].replace("_", " "), rule["severity"], rule["reasons"],
             conditions.ways_text([rule["nearest"]] + rule["alternatives"]), rule["remedy"], rule["source"]] for rule in output["rules"]]
    return conditions.computed_table(output["computed"]) + [
        core.Table("Overall: %s" % output["overall"].replace("_", " "), ["status", "#rules"],
                   [[status.replace("_", " "), count] for status, count in output["counts"].items()]),
        core.Table("Rules", ["rule", "title", "status", "severity", "why", "ways to pass, nearest first", "remedy", "source"], rows),
    ]


def sentences(output):
    counts = output["counts"]
    said = ["Overall: %s. Of %s: %d passed, %d failed, %d unknown, %d not applicable." % (
        output["overall"].replace("_", " "), core.count(len(output["rules"]), "rule"), counts["pass"], counts["fail"],
        counts["unknown"], counts["not_applicable"])]
    for rule in [rule for rule in output["rules"] if rule["status"] in ("fail", "unknown")][:50]:
        name = core.clip(rule["id"]) + (" (%s)" % core.clip(rule["title"], 120) if rule["title"] else "")
        line = "%s %s; severity %s: %s." % (name, {"fail": "fails", "unknown": "is unknown"}[rule["status"]],
                                            rule["severity"], "; ".join(rule["reasons"]))
        ways = conditions.ways_text([rule["nearest"]] + rule["alternatives"])
        if ways:
            line += " Nearest way to pass: %s." % ways
        if rule["remedy"]:
            line += " Remedy: %s." % core.clip(rule["remedy"], 300).rstrip(".")
        if rule["source"]:
            line += " (%s)" % core.clip(rule["source"], 200)
        said.append(line)
    said += conditions.computed_text(output["computed"])
    if output["missing"]:
        said.append("Missing facts: %s." % ", ".join(core.clip(name) for name in output["missing"][:50]))
    return said
