"""A LangChain agent that computes in a sandbox.

    pip install langchain langchain-openai langchain-mcp-adapters
    OPENAI_API_KEY=... python langchain_agent.py
"""
import asyncio

from langchain.agents import create_agent
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.tools import load_mcp_tools


async def main():
    client = MultiServerMCPClient({"pathbox": {"transport": "stdio", "command": "pathbox", "args": ["serve"]}})
    # One session for the whole conversation: without it the adapters start a server for every call.
    async with client.session("pathbox") as session:
        agent = create_agent("openai:gpt-5", await load_mcp_tools(session))
        done = await agent.ainvoke({"messages": [{"role": "user", "content": "What is the 40th Fibonacci number? Compute it."}]})
        print(done["messages"][-1].text)


asyncio.run(main())
