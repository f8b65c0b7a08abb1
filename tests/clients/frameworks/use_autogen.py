"""AutoGen: https://microsoft.github.io/autogen/stable/reference/python/autogen_ext.tools.mcp.html"""
from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient
from autogen_ext.tools.mcp import McpWorkbench, SseServerParams, StdioServerParams, StreamableHttpServerParams


async def talk(where, url):
    parameters = {
        "stdio": lambda: StdioServerParams(command=where["command"], args=where["args"], env=where["env"], read_timeout_seconds=120),
        "http": lambda: StreamableHttpServerParams(url=where["url"]),
        "sse": lambda: SseServerParams(url=where["url"]),
    }[where["transport"]]()
    info = {"vision": True, "function_calling": True, "json_output": False, "family": "unknown", "structured_output": False}
    model = OpenAIChatCompletionClient(model="scripted", base_url=url, api_key="none", model_info=info)
    async with McpWorkbench(parameters) as workbench:
        await AssistantAgent("a", model_client=model, workbench=workbench, max_tool_iterations=6).run(task="Compute.")
