"""smolagents: https://huggingface.co/docs/smolagents/tutorials/tools#all-mcp-tools"""
from mcp import StdioServerParameters
from smolagents import MCPClient, OpenAIServerModel, ToolCallingAgent


def talk(where, url):
    parameters = {
        "stdio": lambda: StdioServerParameters(command=where["command"], args=where["args"], env=where["env"]),
        "http": lambda: {"url": where["url"], "transport": "streamable-http"},
        "sse": lambda: {"url": where["url"], "transport": "sse"},
    }[where["transport"]]()
    with MCPClient(parameters) as tools:
        model = OpenAIServerModel(model_id="scripted", api_base=url, api_key="none")
        ToolCallingAgent(tools=tools, model=model, max_steps=6).run("Compute.")
