"""Semantic Kernel: https://learn.microsoft.com/semantic-kernel/concepts/plugins/adding-mcp-plugins"""
from openai import AsyncOpenAI
from semantic_kernel.agents import ChatCompletionAgent
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion
from semantic_kernel.connectors.mcp import MCPSsePlugin, MCPStdioPlugin, MCPStreamableHttpPlugin


async def talk(where, url):
    plugin = {
        "stdio": lambda: MCPStdioPlugin(name="pathbox", command=where["command"], args=where["args"], env=where["env"]),
        "http": lambda: MCPStreamableHttpPlugin(name="pathbox", url=where["url"]),
        "sse": lambda: MCPSsePlugin(name="pathbox", url=where["url"]),
    }[where["transport"]]()
    model = OpenAIChatCompletion(ai_model_id="scripted", async_client=AsyncOpenAI(base_url=url, api_key="none"))
    async with plugin:
        agent = ChatCompletionAgent(service=model, name="a", plugins=[plugin])
        await agent.get_response(messages="Compute.")
