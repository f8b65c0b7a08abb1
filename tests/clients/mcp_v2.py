"""The official MCP client for Python, version 2, in both protocol eras. Arguments: transport, target, data directory."""
import asyncio
import base64
import sys

from mcp import StdioServerParameters
from mcp.client import Client
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from suite_parts import COUNT, PLOT, connection


def transport_of(*where):
    return connection(*where, stdio=stdio_client, http=streamable_http_client, sse=sse_client, parameters=StdioServerParameters)


async def talk(mode, *where):
    async with Client(transport_of(*where), mode=mode) as client:
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

        failed = await run("1 / 0")
        assert not failed.is_error and failed.structured_content["error"]["name"] == "ZeroDivisionError", failed
        refused = await client.call_tool("run_code", {"code": "1", "language": "cobol"})
        assert refused.is_error and "argument `language`" in refused.content[0].text, refused

        seen = []

        async def progress(done, total, message):
            seen.append(done)

        slow = await run(COUNT, progress_callback=progress)
        assert slow.structured_content["stdout"] == "0\n1\n2\n", slow
        assert seen and seen == sorted(set(seen)), seen

        # A client-side time-out cancels the call; the state is kept.
        try:
            await run("while True: pass", read_timeout_seconds=1)
        except Exception as error:
            assert "tim" in str(error).lower(), error
        else:
            raise AssertionError("the endless loop ended")
        after = await run("x")
        assert after.structured_content["output"] == "40", after


async def main(*where):
    for mode in ("legacy", "auto"):
        await talk(mode, *where)
    print("ok")


asyncio.run(main(*sys.argv[1:]))
