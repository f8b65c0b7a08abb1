"""The official MCP client for Python, version 1. Arguments: transport, target, data directory."""
import asyncio
import base64
import sys
from contextlib import asynccontextmanager

from mcp import ClientSession, StdioServerParameters, types
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamablehttp_client
from suite_parts import COUNT, PLOT, connection


def transport_of(*where):
    return connection(*where, stdio=stdio_client, http=streamablehttp_client, sse=sse_client, parameters=StdioServerParameters)


@asynccontextmanager
async def connect(*where):
    async with transport_of(*where) as (read, write, *_), ClientSession(read, write) as session:
        await session.initialize()
        yield session


async def main(*where):
    async with connect(*where) as session:
        tools = (await session.list_tools()).tools
        assert tools[0].name == "run_code", tools
        assert tools[0].outputSchema and tools[0].annotations.openWorldHint is False

        async def run(code, **options):
            return await session.call_tool("run_code", {"code": code, "language": "python"}, **options)

        first = await run("x = 40")
        assert not first.isError and first.structuredContent["state"] == "fresh", first
        second = await run("x + 2")
        assert second.structuredContent["output"] == "42", second
        assert second.structuredContent["state"] == "kept", second

        plot = await run(PLOT)
        images = [block for block in plot.content if block.type == "image"]
        assert len(images) == 1 and images[0].mimeType == "image/png", plot.content
        assert base64.b64decode(images[0].data).startswith(b"\x89PNG")

        failed = await run("1 / 0")
        assert not failed.isError and failed.structuredContent["error"]["name"] == "ZeroDivisionError", failed
        refused = await session.call_tool("run_code", {"code": "1", "language": "cobol"})
        assert refused.isError and "argument `language`" in refused.content[0].text, refused

        seen = []

        async def progress(done, total, message):
            seen.append(done)

        slow = await run(COUNT, progress_callback=progress)
        assert slow.structuredContent["stdout"] == "0\n1\n2\n", slow
        assert seen and seen == sorted(set(seen)), seen

        # Cancel an endless loop the way this version lets its users: by sending the notification.
        started = asyncio.Event()

        async def is_running(done, total, message):
            if "endless" in message:
                started.set()

        task = asyncio.create_task(run("print('endless')\nwhile True: pass", progress_callback=is_running))
        await started.wait()
        cancelled = types.CancelledNotificationParams(requestId=session._request_id - 1)
        await session.send_notification(types.ClientNotification(
            types.CancelledNotification(method="notifications/cancelled", params=cancelled)))
        after = await run("x")
        assert after.structuredContent["output"] == "40", after
        task.cancel()
    print("ok")


asyncio.run(main(*sys.argv[1:]))
