"""An agent of the OpenAI Agents SDK that computes in a sandbox.

    pip install openai-agents
    OPENAI_API_KEY=... python openai_agents.py
"""
import asyncio

from agents import Agent, Runner, set_default_openai_api, set_tracing_disabled
from agents.mcp import MCPServerStdio


async def main():
    set_default_openai_api("chat_completions")
    set_tracing_disabled(True)
    # The SDK waits 5 seconds for a tool unless it hears otherwise.
    async with MCPServerStdio(params={"command": "pathbox", "args": ["serve"]}, client_session_timeout_seconds=600) as server:
        agent = Agent(name="Calculator", model="gpt-5", mcp_servers=[server])
        done = await Runner.run(agent, "What is the 40th Fibonacci number? Compute it.")
        print(done.final_output)


asyncio.run(main())
