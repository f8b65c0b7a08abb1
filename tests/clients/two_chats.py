"""A host that runs one server for all of its chats, as desktop hosts do, with the official client. Each chat must find
its own variables and nobody else's, by whatever it is told apart. Arguments: transport, target, data directory."""
import asyncio
import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


async def main(_transport, target, data):
    server = StdioServerParameters(command=target, args=["serve"], env={"PATHBOX_DATA_DIR": data})
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        await session.initialize()

        async def branch():
            branched = await session.call_tool("manage_context", {"action": "branch"})
            return {"context": branched.structuredContent["context"]}

        async def chat(name, arguments, meta):
            for turn in range(1, 5):
                code = f"seen = globals().get('seen', '') + '{name}'\nprint(seen, end='')"
                called = {"code": code, "language": "python", **arguments}
                result = (await session.call_tool("run_code", called, meta=meta)).structuredContent
                assert result["stdout"] == name * turn, (name, result)
                assert result["state"] == ("fresh" if turn == 1 else "kept"), (name, result)

        await asyncio.gather(
            chat("a", {}, {"dev.pathbox/conversationId": "chat-a"}),
            chat("b", {}, {"conversationId": "chat-b"}),
            chat("c", await branch(), None),
            chat("d", await branch(), None),
            chat("e", {}, None),
        )
    print("ok")


asyncio.run(main(*sys.argv[1:]))
