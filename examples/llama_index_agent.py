"""A LlamaIndex agent that computes in a sandbox.

    pip install llama-index-core llama-index-tools-mcp llama-index-llms-openai-like
    pathbox serve --http 127.0.0.1:8080
    OPENAI_API_KEY=... python llama_index_agent.py
"""
import asyncio
import os

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai_like import OpenAILike
from llama_index.tools.mcp import BasicMCPClient, McpToolSpec


async def main():
    model = OpenAILike(
        model="gpt-5",
        api_base=os.environ.get("OPENAI_BASE_URL", "https://api.openai.com/v1"),
        api_key=os.environ["OPENAI_API_KEY"],
        is_chat_model=True,
        is_function_calling_model=True,
    )
    # Over stdio this client starts a server for each call, which knows nothing of the call before.
    client = BasicMCPClient(os.environ.get("MCP_SERVER_URL", "http://127.0.0.1:8080") + "/mcp", timeout=600)
    agent = FunctionAgent(tools=await McpToolSpec(client=client).to_tool_list_async(), llm=model, streaming=False)
    print(await agent.run("What is the 40th Fibonacci number? Compute it."))


asyncio.run(main())
