"""Haystack: https://docs.haystack.deepset.ai/docs/mcptoolset"""
from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.utils import Secret
from haystack_integrations.tools.mcp import MCPToolset, SSEServerInfo, StdioServerInfo, StreamableHttpServerInfo


def talk(where, url):
    server = {
        "stdio": lambda: StdioServerInfo(command=where["command"], args=where["args"], env=where["env"]),
        "http": lambda: StreamableHttpServerInfo(url=where["url"]),
        "sse": lambda: SSEServerInfo(url=where["url"]),
    }[where["transport"]]()
    tools = MCPToolset(server, connection_timeout=60, invocation_timeout=120)
    model = OpenAIChatGenerator(model="scripted", api_key=Secret.from_token("none"), api_base_url=url)
    agent = Agent(chat_generator=model, tools=tools)
    agent.warm_up()
    agent.run(messages=[ChatMessage.from_user("Compute.")])
