"""Strands Agents: https://strandsagents.com/latest/user-guide/concepts/tools/mcp-tools/"""
from mcp import StdioServerParameters, stdio_client
from mcp.client.sse import sse_client
from strands import Agent
from strands.models.openai import OpenAIModel
from strands.tools.mcp import MCPClient

try:
    from mcp.client.streamable_http import streamable_http_client as http_client
except ImportError:
    from mcp.client.streamable_http import streamablehttp_client as http_client


def talk(where, url):
    client = MCPClient({
        "stdio": lambda: stdio_client(StdioServerParameters(command=where["command"], args=where["args"], env=where["env"])),
        "http": lambda: http_client(where["url"]),
        "sse": lambda: sse_client(where["url"]),
    }[where["transport"]])
    model = OpenAIModel(client_args={"api_key": "none", "base_url": url}, model_id="scripted")
    with client:
        Agent(model=model, tools=client.list_tools_sync(), callback_handler=None)("Compute.")
