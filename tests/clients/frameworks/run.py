"""Runs one framework over one door as its documentation writes it, and prints what its model saw, as JSON.

Arguments: framework, transport (stdio, http, sse), target (the program, or the server's address), data directory.
"""
import asyncio
import importlib
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from model import Model  # noqa: E402

framework, transport, target, data = sys.argv[1:5]
model = Model()
module = importlib.import_module(f"use_{framework.replace('-', '_')}")
where = {
    "transport": transport,
    "command": target,
    "args": ["serve"],
    "env": {"PATHBOX_DATA_DIR": data},
    "url": f"{target}/mcp" if transport == "http" else f"{target}/sse",
}
problem = None
try:
    talk = module.talk(where, model.url)
    if asyncio.iscoroutine(talk):
        asyncio.run(asyncio.wait_for(talk, 240))
except BaseException as error:  # noqa: BLE001 - what a framework says when it fails is part of the report
    import traceback
    problem = "".join(traceback.format_exception(error))[-3000:]
print(json.dumps({**model.report(), "problem": problem}), flush=True)
import os  # noqa: E402
os._exit(0)
