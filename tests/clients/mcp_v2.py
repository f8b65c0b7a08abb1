"""The official MCP client, version 2, against `pathbox serve` over stdio in both protocol eras. Arguments: the
binary, a data directory."""
import asyncio
import base64
import sys

from mcp import StdioServerParameters
from mcp.client import Client
from mcp.client.stdio import stdio_client

PLOT = """
import struct, zlib
class Plot:
    def _repr_png_(self):
        def chunk(kind, data):
            return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        return (b"\\x89PNG\\r\\n\\x1a\\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 2, 2, 8, 2, 0, 0, 0))
                + chunk(b"IDAT", zlib.compress((b"\\0" + b"\\xff\\0\\0" * 2) * 2)) + chunk(b"IEND", b""))
Plot()
"""


async def talk(binary, data, mode):
    server = StdioServerParameters(command=binary, args=["serve"], env={"PATHBOX_DATA_DIR": data})
    async with Client(stdio_client(server), mode=mode) as client:
        tools = (await client.list_tools()).tools
        assert tools[0].name == "run_code", tools

        async def run(code, **options):
            return await client.call_tool("run_code", {"code": code, "language": "python"}, **options)

        first = await run("x = 40")
        assert not first.is_error and first.structured_content["state"] == "fresh", first
        second = await run("x + 2")
        assert second.structured_content["output"] == "42", second
        plot = await run(PLOT)
        images = [block for block in plot.content if block.type == "image"]
        assert len(images) == 1 and base64.b64decode(images[0].data).startswith(b"\x89PNG")
        # A client-side time-out cancels the call; the state is kept.
        try:
            await run("while True: pass", read_timeout_seconds=1)
        except Exception as error:
            assert "tim" in str(error).lower(), error
        else:
            raise AssertionError("the endless loop ended")
        after = await run("x")
        assert after.structured_content["output"] == "40", after


async def main(binary, data):
    for mode in ("legacy", "auto"):
        await talk(binary, data, mode)
        print("ok", mode)


asyncio.run(main(*sys.argv[1:]))
