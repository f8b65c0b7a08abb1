"""What both versions of the official Python client share: what they run, and how they connect."""
from pathlib import Path

PLOT = Path(__file__).with_name("plot.py").read_text()
COUNT = "import time\nfor n in range(3): print(n, flush=True); time.sleep(0.6)"


def connection(transport, target, data, *, stdio, http, sse, parameters):
    """A connection as the command line says, made of the client's own transports."""
    match transport:
        case "stdio":
            return stdio(parameters(command=target, args=["serve"], env={"PATHBOX_DATA_DIR": data}))
        case "http":
            return http(f"{target}/mcp")
        case "sse":
            return sse(f"{target}/sse")
