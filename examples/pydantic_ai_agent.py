"""A pydantic-ai agent that computes in a sandbox.

    pip install "pydantic-ai-slim[mcp,openai]"
    OPENAI_API_KEY=... python pydantic_ai_agent.py
"""
import asyncio

from fastmcp.client.transports import StdioTransport
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset


async def main():
    agent = Agent("openai-chat:gpt-5", toolsets=[MCPToolset(StdioTransport(command="pathbox", args=["serve"]))])
    async with agent:
        done = await agent.run("What is the 40th Fibonacci number? Compute it.")
        print(done.output)


asyncio.run(main())
