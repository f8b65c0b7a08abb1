"""OpenAI Agents SDK: https://openai.github.io/openai-agents-python/mcp/"""
from agents import Agent, OpenAIChatCompletionsModel, Runner, set_tracing_disabled
from agents.mcp import MCPServerSse, MCPServerStdio, MCPServerStreamableHttp
from openai import AsyncOpenAI


async def talk(where, url):
    set_tracing_disabled(True)
    patience = {"client_session_timeout_seconds": 120}
    server = {
        "stdio": lambda: MCPServerStdio(
            params={"command": where["command"], "args": where["args"], "env": where["env"]}, **patience),
        "http": lambda: MCPServerStreamableHttp(params={"url": where["url"]}, **patience),
        "sse": lambda: MCPServerSse(params={"url": where["url"]}, **patience),
    }[where["transport"]]()
    model = OpenAIChatCompletionsModel("scripted", AsyncOpenAI(base_url=url, api_key="none"))
    async with server:
        await Runner.run(Agent(name="a", model=model, mcp_servers=[server]), "Compute.")
