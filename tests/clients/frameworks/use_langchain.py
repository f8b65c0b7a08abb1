"""LangChain with its adapters' `get_tools()`: https://docs.langchain.com/oss/python/langchain/mcp"""
from langchain.agents import create_agent
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_openai import ChatOpenAI


async def talk(where, url):
    connection = {
        "stdio": lambda: {"transport": "stdio", "command": where["command"], "args": where["args"], "env": where["env"]},
        "http": lambda: {"transport": "streamable_http", "url": where["url"]},
        "sse": lambda: {"transport": "sse", "url": where["url"]},
    }[where["transport"]]()
    tools = await MultiServerMCPClient({"pathbox": connection}).get_tools()
    model = ChatOpenAI(model="scripted", base_url=url, api_key="none", use_responses_api=False)
    await create_agent(model, tools).ainvoke({"messages": [{"role": "user", "content": "Compute."}]})
