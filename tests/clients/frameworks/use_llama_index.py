"""LlamaIndex: https://docs.llamaindex.ai/en/stable/module_guides/mcp/llamaindex_mcp/"""
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai_like import OpenAILike
from llama_index.tools.mcp import BasicMCPClient, McpToolSpec


async def talk(where, url):
    if where["transport"] == "stdio":
        client = BasicMCPClient(where["command"], args=where["args"], env=where["env"])
    else:
        client = BasicMCPClient(where["url"])
    tools = await McpToolSpec(client=client).to_tool_list_async()
    llm = OpenAILike(model="scripted", api_base=url, api_key="none", is_chat_model=True, is_function_calling_model=True)
    await FunctionAgent(tools=tools, llm=llm, streaming=False).run("Compute.")
