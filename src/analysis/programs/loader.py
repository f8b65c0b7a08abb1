"""Builds the programs' modules out of text and runs one request.

The modules live in a dictionary of this call and never in `sys.modules`, so nothing of a context is replaced and
nothing of a context replaces them.
"""
import json
import types


def analyse(sources, request):
    texts = json.loads(sources.decode("utf-8"))
    modules = {}

    def use(name):
        if name not in modules:
            module = modules[name] = types.ModuleType("pathbox_" + name)
            module.use = use
            exec(compile(texts[name], "<pathbox %s>" % name, "exec"), module.__dict__)
        return modules[name]

    return use("main").main(request)
