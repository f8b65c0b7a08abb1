"""fastmcp's client with a loop of one's own: https://gofastmcp.com/clients/client"""
import json

from fastmcp import Client
from fastmcp.client.transports import SSETransport, StdioTransport, StreamableHttpTransport
from openai import AsyncOpenAI


async def talk(where, url):
    transport = {
        "stdio": lambda: StdioTransport(command=where["command"], args=where["args"], env=where["env"]),
        "http": lambda: StreamableHttpTransport(where["url"]),
        "sse": lambda: SSETransport(where["url"]),
    }[where["transport"]]()
    openai = AsyncOpenAI(base_url=url, api_key="none")
    messages = [{"role": "user", "content": "Compute."}]
    async with Client(transport) as client:
        tools = [
            {"type": "function", "function": {"name": tool.name, "parameters": tool.model_dump(by_alias=True)["inputSchema"]}}
            for tool in await client.list_tools()
        ]
        while True:
            said = (await openai.chat.completions.create(model="scripted", messages=messages, tools=tools)).choices[0].message
            messages.append(said.model_dump(exclude_none=True))
            if not said.tool_calls:
                return
            for call in said.tool_calls:
                result = await client.call_tool(call.function.name, json.loads(call.function.arguments), raise_on_error=False)
                content = []
                for block in result.content:
                    if block.type == "text":
                        content.append({"type": "text", "text": block.text})
                    if block.type == "image":
                        content.append({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{block.data}"}})
                messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
