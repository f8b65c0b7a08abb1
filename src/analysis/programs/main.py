"""One request in, one report out, whatever happens in between.

A report says `done`, `refused` (the parameters contradict themselves; the message names the place) or `failed` (a
fault of ours). Only an interrupt gets through as an exception, because the platform has to see it.
"""
import json

core = use("core")


class Report:
    """The cell's value: plain text for a person at a prompt, the report for Pathbox."""

    def __init__(self, request, report, picture=None):
        self._format = request["result_format"]
        self._kind = request["analysis_type"]
        self._report = report
        self._picture = picture

    def __repr__(self):
        return "<pathbox analysis %s: %s>" % (self._kind, self._report["status"])

    def _repr_mimebundle_(self, include=None, exclude=None):
        bundle = {"text/plain": repr(self), self._format: self._report}
        if self._picture is not None:
            bundle["image/png"] = self._picture
        return bundle


def main(raw):
    request = json.loads(raw.decode("utf-8"), parse_float=core.Decimal)
    try:
        with core.arithmetic():
            return Report(request, *answer(request))
    except core.Refused as refused:
        report = {"status": "refused", "path": refused.path, "message": refused.message}
    except (MemoryError, RecursionError) as error:
        report = {"status": "refused", "path": "parameters", "message": "too much for one call (%s)" % type(error).__name__}
    except Exception as error:  # a fault of these programs: named, without a traceback of the platform
        where = error.__traceback__
        while where is not None and where.tb_next is not None:
            where = where.tb_next
        line = "%s:%s" % (where.tb_frame.f_code.co_name, where.tb_lineno) if where else "?"
        report = {"status": "failed", "message": "%s in %s" % (type(error).__name__, line)}
    return Report(request, report)


def answer(request):
    kind, parameters = request["analysis_type"], request["parameters"]
    program = use(kind)
    for example in request.get("examples", []):
        prove(program, kind, example)
    result = program.run(parameters)
    result.notes = request.get("notes", []) + result.notes
    output = core.to_json(result.output)
    texts = {
        "json": lambda: "",  # Pathbox writes it out of the output
        "table": lambda: "\n\n".join(core.markdown(table) for table in result.tables()),
        "summary": lambda: "\n".join(result.sentences()),
    }
    text = texts[request["output_format"]]()
    if request["output_format"] != "json":
        tail = ["Source: " + core.flat(source) for source in result.sources]
        tail += ["Note: " + core.flat(note) for note in result.notes]
        tail += [result.arithmetic, request["disclaimer"]]
        text = text + "\n\n" + "\n".join(tail)
    report = {
        "status": "done",
        "analysis_type": kind,
        "output_format": request["output_format"],
        "output": output,
        "text": core.whole(text),
        "sources": result.sources,
        "arithmetic": result.arithmetic,
        "notes": result.notes,
        "disclaimer": request["disclaimer"],
    }
    if "pack" in request:
        report["pack"] = request["pack"]
    if len(json.dumps(report, ensure_ascii=False).encode("utf-8", "replace")) > request["max_bytes"]:
        raise core.Refused("parameters", "the result is larger than %d MiB; ask for fewer columns, groups, rows or cases" % (request["max_bytes"] >> 20))
    return report, result.picture


def prove(program, kind, example):
    """A worked example of a rule pack has to come out as its source has it; otherwise the pack answers nothing."""
    parameters = example["parameters"]
    if kind == "tax_calculation":
        parameters = dict(parameters, thresholds=False)
    try:
        output = core.to_json(program.run(parameters).output)
    except core.Refused as refused:
        raise core.Refused("pack", "its example %r is refused (%s: %s), so the pack is not used" % (example["id"], refused.path, refused.message))
    for pointer, wanted in example["expect"].items():
        found = at_pointer(output, pointer)
        if found != core.to_json(wanted):
            raise core.Refused("pack", "its example %r (%s) has %r at %s where the rules give %r, so the pack is not used" % (
                core.clip(example["id"]), core.clip(example["source"], 200), wanted, core.clip(pointer), found))


def at_pointer(value, pointer):
    """What stands at a JSON pointer, or nothing."""
    for step in pointer.split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        else:
            return None
    return value
