"""pydantic-ai: https://ai.pydantic.dev/mcp/client/"""
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


async def talk(where, url):
    from pydantic_ai import mcp
    if hasattr(mcp, "MCPToolset"):
        if where["transport"] == "stdio":
            from fastmcp.client.transports import StdioTransport
            server = mcp.MCPToolset(StdioTransport(command=where["command"], args=where["args"], env=where["env"]))
        else:
            server = mcp.MCPToolset(where["url"])
    else:
        server = {
            "stdio": lambda: mcp.MCPServerStdio(where["command"], args=where["args"], env=where["env"]),
            "http": lambda: mcp.MCPServerStreamableHTTP(where["url"]),
            "sse": lambda: mcp.MCPServerSSE(where["url"]),
        }[where["transport"]]()
    model = OpenAIChatModel("scripted", provider=OpenAIProvider(base_url=url, api_key="none"))
    agent = Agent(model, toolsets=[server])
    async with agent:
        await agent.run("Compute.")
