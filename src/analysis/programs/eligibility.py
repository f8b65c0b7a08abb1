"""Several schemes against one set of facts: who gets in, what is missing, and how close it is."""
core = use("core")
conditions = use("conditions")


def run(p):
    core.unique(p["schemes"], "schemes")
    facts = conditions.Facts(p["facts"], p.get("as_of"))
    schemes, sources, gaps = [], [], {}
    for index, spec in enumerate(p["schemes"]):
        path = "schemes[%d].criteria" % index
        core.unique(spec["criteria"], path)
        parsed = [conditions.parse(c["requires"], "%s[%d].requires" % (path, i)) for i, c in enumerate(spec["criteria"])]
        sources += [spec.get("source")]
        for criterion, condition in zip(spec["criteria"], parsed):
            sources += [criterion.get("source")] + condition.sources()
        scheme = judge(spec, parsed, facts)
        schemes.append(scheme)
        if scheme["status"] == "unknown":
            for name in scheme["missing"]:
                gaps.setdefault(name, []).append(scheme["id"])
    missing = [{"fact": name, "would_decide": ids} for name, ids in
               sorted(gaps.items(), key=lambda item: (-len(item[1]), item[0]))]
    of = lambda status: [scheme["id"] for scheme in schemes if scheme["status"] == status]
    output = {"eligible": of("eligible"), "not_eligible": of("not_eligible"), "unknown": of("unknown"),
              "schemes": schemes, "missing": missing}
    measures = {status: core.Decimal(len(of(status))) for status in ("eligible", "not_eligible", "unknown")}
    return core.Result(
        output, lambda: tables(output), lambda: sentences(output),
        "Comparisons of numbers are exact; closeness is a share rounded half up to 4 places.",
        [source for source in sources if source],
        ["A scheme is eligible only when every criterion was shown to hold.",
         "The changes named are the fewest; each is taken by itself."], measures)


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
    overview = [[s["id"], s["title"], s["status"].replace("_", " "), s["met"], s["unmet"], s["unknown"],
                 core.percent(s["closeness"]), [conditions.change_text(c) for c in s["changes_needed"]], s["source"]]
                for s in output["schemes"]]
    detail = [[s["id"], c["id"], c["status"], c["reasons"], c["source"]] for s in output["schemes"] for c in s["criteria"]]
    return [
        core.Table("Schemes", ["scheme", "title", "status", "#met", "#unmet", "#unknown", "#closeness", "what would change it", "source"], overview),
        core.Table("Criteria", ["scheme", "criterion", "status", "why", "source"], detail),
    ]


def sentences(output):
    said = ["Eligible for %d of %d schemes; not for %d; unknown for %d." % (
        len(output["eligible"]), len(output["schemes"]), len(output["not_eligible"]), len(output["unknown"]))]
    for s in output["schemes"][:50]:
        line = "%s: %s (%d of %d criteria met)." % (core.clip(s["title"] or s["id"]), s["status"].replace("_", " "), s["met"], len(s["criteria"]))
        if s["changes_needed"]:
            line += " It would take: %s." % "; ".join(conditions.change_text(change) for change in s["changes_needed"][:10])
        said.append(line)
    if output["missing"]:
        said.append("Missing facts: %s." % ", ".join(core.clip(gap["fact"]) for gap in output["missing"][:50]))
    return said
