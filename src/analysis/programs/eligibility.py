"""Several schemes against one set of facts: who gets in, what is missing, and how close it is."""
core = use("core")
conditions = use("conditions")


def run(p):
    core.unique(p["schemes"], "schemes")
    facts = conditions.Facts(dict(p["facts"]), p.get("as_of"))
    computed = conditions.computed(p, facts)
    schemes, sources, gaps = [], [], {}
    for index, spec in enumerate(p["schemes"]):
        path = "schemes[%d].criteria" % index
        for at, criterion in enumerate(spec["criteria"]):
            criterion.setdefault("id", criterion["requires"].get("fact", "criterion %d" % (at + 1)))
        core.unique(spec["criteria"], path)
        parsed = [conditions.parse(c["requires"], "%s[%d].requires" % (path, i)) for i, c in enumerate(spec["criteria"])]
        sources += [spec.get("source")]
        for criterion, condition in zip(spec["criteria"], parsed):
            sources += [criterion.get("source")] + condition.sources()
        scheme = judge(spec, parsed, facts)
        facts.results[spec["id"]] = (scheme["status"], scheme["missing"], ("eligible", "not_eligible", "unknown"))
        schemes.append(scheme)
        if scheme["status"] == "unknown":
            for name in scheme["missing"]:
                gaps.setdefault(name, []).append(scheme["id"])
    missing = [{"fact": name, "would_decide": ids} for name, ids in
               sorted(gaps.items(), key=lambda item: (-len(item[1]), item[0]))]
    of = lambda status: [scheme["id"] for scheme in schemes if scheme["status"] == status]
    output = {"eligible": of("eligible"), "not_eligible": of("not_eligible"), "unknown": of("unknown"),
              "schemes": schemes, "missing": missing, "computed": computed}
    measures = {status: core.Decimal(len(of(status))) for status in ("eligible", "not_eligible", "unknown")}
    return core.Result(
        output, lambda: tables(output), lambda: sentences(output),
        "Comparisons of numbers are exact; closeness is a share rounded half up to 4 places.",
        [spec["source"] for spec in p.get("formulas", []) if spec.get("source")] + [source for source in sources if source],
        ["A scheme is eligible only when every criterion was shown to hold.",
         "The changes named are the fewest; each is taken by itself."] +
        conditions.mistaken((gap["fact"] for gap in missing), p["facts"]), measures)


def judge(spec, parsed, facts):
    criteria = []
    for criterion, condition in zip(spec["criteria"], parsed):
        answer = condition.ask(facts)
        way = [] if answer.truth is True else condition.way(facts)
        criteria.append({
            "id": criterion["id"], "title": criterion.get("title"), "source": criterion.get("source"),
            "status": {True: "met", False: "unmet", None: "unknown"}[answer.truth],
            "reasons": [conditions.describe(leaf) for leaf in answer.leaves][:5],
            "missing": answer.missing() if answer.truth is None else [],
            "changes": way if way is not None else [], "possible": way is not None,
            "alternatives": [other for other in condition.ways(facts) if other != way] if answer.truth is not True else [],
        })
    states = [criterion["status"] for criterion in criteria]
    status = "not_eligible" if "unmet" in states else "unknown" if "unknown" in states else "eligible"
    return {
        "id": spec["id"], "title": spec.get("title"), "source": spec.get("source"), "benefit": spec.get("benefit"),
        "status": status, "met": states.count("met"), "unmet": states.count("unmet"), "unknown": states.count("unknown"),
        "closeness": core.divide(core.Decimal(states.count("met")), core.Decimal(len(states)), 4),
        "missing": list(dict.fromkeys(name for criterion in criteria for name in criterion["missing"])),
        "changes_needed": [dict(change, criterion=c["id"]) for c in criteria for change in c["changes"]],
        "criteria": criteria,
    }


def tables(output):
    overview = [[s["id"], s["title"], s["status"].replace("_", " "), s["benefit"], s["met"], s["unmet"], s["unknown"],
                 core.percent(s["closeness"]), [conditions.change_text(c) for c in s["changes_needed"]], s["source"]]
                for s in output["schemes"]]
    detail = [[s["id"], c["id"], c["title"], c["status"], c["reasons"], conditions.ways_text([c["changes"]] + c["alternatives"]), c["source"]]
              for s in output["schemes"] for c in s["criteria"]]
    return conditions.computed_table(output["computed"]) + [
        core.Table("Schemes", ["scheme", "title", "status", "benefit", "#met", "#unmet", "#unknown", "#closeness", "what would change it", "source"], overview),
        core.Table("Criteria", ["scheme", "criterion", "title", "status", "why", "ways to meet it, nearest first", "source"], detail),
    ]


def sentences(output):
    said = ["Eligible for %d of %s; not eligible for %d; unknown for %d." % (
        len(output["eligible"]), core.count(len(output["schemes"]), "scheme"), len(output["not_eligible"]), len(output["unknown"]))]
    for s in output["schemes"][:50]:
        line = "%s: %s (%d of %s met)." % (core.clip(s["title"] or s["id"]), s["status"].replace("_", " "), s["met"],
                                           core.count(len(s["criteria"]), "criterion", "criteria"))
        if s["benefit"]:
            line += " Benefit: %s." % core.clip(s["benefit"], 300).rstrip(".")
        for c in s["criteria"]:
            if c["status"] != "met":
                ways = conditions.ways_text([c["changes"]] + c["alternatives"])
                line += " %s is %s: %s%s." % (core.clip(c["title"] or c["id"]), c["status"], "; ".join(c["reasons"]),
                                              "; it would take %s" % ways if ways else "")
        said.append(line)
    said += conditions.computed_text(output["computed"])
    if output["missing"]:
        said.append("Missing facts: %s." % ", ".join(core.clip(gap["fact"]) for gap in output["missing"][:50]))
    return said
