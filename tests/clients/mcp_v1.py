"""The official MCP client, version 1, against `pathbox serve` over stdio. Arguments: the binary, a data directory."""
import asyncio
import base64
import sys
import time

from mcp import ClientSession, StdioServerParameters
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


async def main(binary, data):
    server = StdioServerParameters(command=binary, args=["serve"], env={"PATHBOX_DATA_DIR": data})
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        tools = (await session.list_tools()).tools
        assert tools[0].name == "run_code", tools
        assert tools[0].outputSchema and tools[0].annotations.openWorldHint is False

        async def run(code, **more):
            return await session.call_tool("run_code", {"code": code, "language": "python", **more})

        first = await run("x = 40")
        assert not first.isError and first.structuredContent["state"] == "fresh", first
        second = await run("x + 2")
        assert second.structuredContent["output"] == "42", second
        assert second.structuredContent["state"] == "kept", second

        plot = await run(PLOT)
        images = [block for block in plot.content if block.type == "image"]
        assert len(images) == 1 and images[0].mimeType == "image/png", plot.content
        assert base64.b64decode(images[0].data).startswith(b"\x89PNG")

        seen = []

        async def progress(done, total, message):
            seen.append(done)

        slow = await session.call_tool(
            "run_code", {"code": "import time\nfor n in range(3): print(n, flush=True); time.sleep(0.6)", "language": "python"},
            progress_callback=progress)
        assert slow.structuredContent["stdout"] == "0\n1\n2\n", slow
        assert seen and seen == sorted(set(seen)), seen

        # Cancel an endless loop the way this version lets its users: by sending the notification.
        task = asyncio.create_task(run("while True: pass"))
        await asyncio.sleep(0.5)
        request_id = session._request_id - 1
        from mcp import types
        await session.send_notification(types.ClientNotification(types.CancelledNotification(
            method="notifications/cancelled",
            params=types.CancelledNotificationParams(requestId=request_id))))
        after = await run("x")
        assert after.structuredContent["output"] == "40", after
        task.cancel()
        print("ok")


asyncio.run(main(*sys.argv[1:]))
