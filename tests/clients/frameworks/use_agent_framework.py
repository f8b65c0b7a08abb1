"""Microsoft Agent Framework: https://learn.microsoft.com/agent-framework/"""
from agent_framework import MCPStdioTool, MCPStreamableHTTPTool
from agent_framework.openai import OpenAIChatCompletionClient


async def talk(where, url):
    if where["transport"] == "sse":
        raise NotImplementedError("the framework has no client for it")
    if where["transport"] == "stdio":
        tool = MCPStdioTool(name="pathbox", command=where["command"], args=where["args"], env=where["env"])
    else:
        tool = MCPStreamableHTTPTool(name="pathbox", url=where["url"])
    client = OpenAIChatCompletionClient(model="scripted", api_key="none", base_url=url)
    async with tool:
        await client.as_agent(name="a", tools=tool).run("Compute.")
