"""A data scientist: a template with pandas, a CSV in, a chart and a spreadsheet out. Argument: the program.

    python3 tests/journeys/data_scientist.py target/debug/pathbox

pandas, matplotlib and openpyxl come from the package index, or from a directory of wheels as a second argument (scripts/test has one).
"""
import base64
import io
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

program = Path(sys.argv[1]).resolve()
CSV = "month,region,eur\nJan,north,1210\nJan,south,640\nFeb,north,1480\nFeb,south,700\nMar,north,1390\nMar,south,910\n"
CHART = """import pandas as pd, matplotlib.pyplot as plt
sales = pd.read_csv("sales.csv")
table = sales.pivot_table(index="month", columns="region", values="eur", aggfunc="sum").loc[["Jan", "Feb", "Mar"]]
table.plot.bar(); plt.title("Sales, EUR"); plt.show()
table"""
SHEET = """table.to_excel("sales.xlsx")
import openpyxl
openpyxl.load_workbook("sales.xlsx").active["B2"].value"""

with tempfile.TemporaryDirectory() as home:
    env = {"PATH": os.environ["PATH"], "HOME": home}
    if sys.argv[2:]:
        env |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(Path(sys.argv[2]).resolve())}
    done = subprocess.run([program, "templates", "add", "data-science", "--pip", "pandas,matplotlib,openpyxl"], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done
    settings = Path(home, "pathbox.toml")
    settings.write_text('[e2b]\ntemplate = "data-science"\n')
    server = subprocess.Popen([program, "serve", "--config", settings], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    number = 0

    def request(method, params):
        global number
        number += 1
        server.stdin.write(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}) + "\n")
        server.stdin.flush()
        while (answer := json.loads(server.stdout.readline())).get("id") != number:
            pass
        return answer["result"]

    def tool(name, **arguments):
        return request("tools/call", {"name": name, "arguments": arguments})

    request("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "journey", "version": "0"}})
    server.stdin.write(json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}) + "\n")
    put = tool("files", action="put", path="sales.csv", text=CSV)
    assert not put.get("isError"), put
    chart = tool("run_code", language="python", code=CHART, timeout_ms=600_000)
    pictures = [block for block in chart["content"] if block["type"] == "image"]
    assert len(pictures) == 1 and base64.b64decode(pictures[0]["data"]).startswith(b"\x89PNG"), chart
    assert "1480" in json.dumps(chart["structuredContent"]), chart
    sheet = tool("run_code", language="python", code=SHEET, timeout_ms=600_000)
    assert sheet["structuredContent"]["output"] == "1210" and sheet["structuredContent"]["state"] == "kept", sheet
    out = tool("files", action="get", path="sales.xlsx")
    link = next(block for block in out["content"] if block["type"] == "resource_link")
    blob = request("resources/read", {"uri": link["uri"]})["contents"][0]["blob"]
    assert "xl/workbook.xml" in zipfile.ZipFile(io.BytesIO(base64.b64decode(blob))).namelist()
    server.stdin.close()
    assert server.wait(timeout=120) == 0
print("data scientist: ok")
