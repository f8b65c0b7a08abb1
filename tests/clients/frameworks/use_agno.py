"""Agno: https://docs.agno.com/concepts/tools/mcp"""
from agno.agent import Agent
from agno.models.openai import OpenAILike
from agno.tools.mcp import MCPTools
from mcp import StdioServerParameters


async def talk(where, url):
    if where["transport"] == "stdio":
        parameters = StdioServerParameters(command=where["command"], args=where["args"], env=where["env"])
        tools = MCPTools(server_params=parameters, timeout_seconds=120)
    else:
        name = "streamable-http" if where["transport"] == "http" else "sse"
        tools = MCPTools(transport=name, url=where["url"], timeout_seconds=120)
    async with tools:
        await Agent(model=OpenAILike(id="scripted", base_url=url, api_key="none"), tools=[tools]).arun("Compute.")
