"""A LangChain agent with tools from LangChain's MCP adapters. Arguments: transport, target, data directory."""
import asyncio
import re
import sys
from pathlib import Path

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.tools import load_mcp_tools

PLOT = Path(__file__).with_name("plot.py").read_text()


def connection(transport, target, data):
    match transport:
        case "stdio":
            return {"transport": "stdio", "command": target, "args": ["serve"], "env": {"PATHBOX_DATA_DIR": data}}
        case "http":
            return {"transport": "streamable_http", "url": f"{target}/mcp"}
        case "sse":
            return {"transport": "sse", "url": f"{target}/sse"}


class Scripted(BaseChatModel):
    """Sets a variable and asks for it. Like every model it sees the text of results alone, and does what that says."""

    @property
    def _llm_type(self):
        return "scripted"

    def bind_tools(self, tools, **options):
        assert "run_code" in [tool.name for tool in tools], tools
        return self

    def _generate(self, messages, stop=None, run_manager=None, **options):
        said = [message.text for message in messages if isinstance(message, ToolMessage)]
        calls = [{"code": "x = 40"}, {"code": "x + 2"}]
        if len(said) == len(calls):
            return self.say(AIMessage(content=said[-1]))
        arguments = {"language": "python", **calls[len(said)]}
        if handle := re.search(r"pass context ([\w.-]+)", said[0]) if said else None:
            arguments["context"] = handle[1]
        call = {"name": "run_code", "args": arguments, "id": f"call-{len(said)}", "type": "tool_call"}
        return self.say(AIMessage(content="", tool_calls=[call]))

    def say(self, message):
        return ChatResult(generations=[ChatGeneration(message=message)])


async def talk(tools):
    agent = create_agent(Scripted(), tools)
    done = await agent.ainvoke({"messages": [{"role": "user", "content": "What is 40 + 2?"}]})
    results = [message for message in done["messages"] if isinstance(message, ToolMessage)]
    assert [message.status for message in results] == ["success"] * 2, results
    assert "42" in done["messages"][-1].text and "state kept" in done["messages"][-1].text, done["messages"][-1]

    # Providers refuse a conversation with a URL that is not on the web, and LangChain makes one out of every link.
    run_code = next(tool for tool in tools if tool.name == "run_code")
    for code, kinds in [(PLOT, {"text", "image"}), ("print('x' * 200_000)", {"text"})]:
        blocks = await run_code.ainvoke({"code": code, "language": "python"})
        assert {block["type"] for block in blocks} == kinds, blocks
        assert not any("url" in block for block in blocks), blocks


async def main(*where):
    client = MultiServerMCPClient({"pathbox": connection(*where)})
    async with client.session("pathbox") as session:
        await talk(await load_mcp_tools(session))
    # What is told first to everybody: a new session for every call. Over stdio that is a new server for every call.
    if where[0] != "stdio":
        await talk(await client.get_tools())
    print("ok")


asyncio.run(main(*sys.argv[1:]))
