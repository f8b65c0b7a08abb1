"""A router between a language model and Pathbox: one service credential, many tenants, one conversation per chat.

    pip install "mcp>=2"
    pathbox keys add --name router --any-tenant
    pathbox serve --http 127.0.0.1:8080 --set http.auth=required
    MCP_SERVER_KEY=... python router.py

What a router does: it hands the tools to its model as function definitions, adds to every call whose it is and a key that makes a retry safe,
passes on progress, and turns results into messages: text, pictures, errors. The model here is scripted; put yours in its place.
"""
import asyncio
import json
import os

import httpx2
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

URL = os.environ.get("MCP_SERVER_URL", "http://127.0.0.1:8080") + "/mcp"


def whose(chat):
    """Whose call it is. The application decides that, never the model."""
    return {"dev.pathbox/tenantId": chat["tenant"], "dev.pathbox/conversationId": chat["conversation"], "dev.pathbox/pathId": chat["path"]}


class Router:
    def __init__(self, client):
        self.client = client

    async def functions(self, chat):
        """The tenant's tools as a model's function definitions. Their schemas are JSON Schema already."""
        tools = (await self.client.list_tools(meta=whose(chat))).tools
        return [{"type": "function", "function": {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}}
                for tool in tools]

    async def call(self, chat, call, name, arguments):
        """One call of a chat: (what the model reads, the pictures for it and for the person). With the same id it runs once, however often it is sent."""
        async def progress(_done, _total, message):
            print(f"[{chat['tenant']}] {message}")

        meta = {**whose(chat), "dev.pathbox/idempotencyKey": f"{chat['conversation']}/{chat['path']}/{call}"}
        try:
            result = await self.client.call_tool(name, arguments, progress_callback=progress, meta=meta)
        except MCPError as error:
            # An unknown tool or a broken message: a fault of this program. A model can do nothing about the others, too.
            return f"The call failed: {error}", []
        # `isError` or not, the text says what happened and what to do next; a program's own failure is a result like any other.
        text = "\n".join(block.text for block in result.content if block.type == "text")
        return text, [block for block in result.content if block.type == "image"]

    async def chat(self, chat, model):
        """The loop: until the model answers in words, its calls are made and their results go back to it."""
        messages, functions = [{"role": "user", "content": chat["question"]}], await self.functions(chat)
        while True:
            message = await model(messages, functions)
            messages.append(message)
            if not message.get("tool_calls"):
                return messages
            pictures = []
            for call in message["tool_calls"]:
                name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
                text, shown = await self.call(chat, call["id"], name, arguments)
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
                pictures += shown
            # The chat-completions API takes no picture in a tool's message, so they follow as the user's.
            if pictures:
                urls = [f"data:{picture.mime_type};base64,{picture.data}" for picture in pictures]
                messages.append({"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}} for url in urls]})


class Scripted:
    """Stands in for a model: makes these calls one after the other and answers with the last result."""

    def __init__(self, *programs):
        self.programs = programs

    async def __call__(self, messages, functions):
        assert "run_code" in [function["function"]["name"] for function in functions]
        results = [message["content"] for message in messages if message["role"] == "tool"]
        if len(results) == len(self.programs):
            return {"role": "assistant", "content": results[-1]}
        arguments = json.dumps({"language": "python", "code": self.programs[len(results)]})
        return {"role": "assistant", "content": None, "tool_calls": [
            {"id": f"call-{len(results)}", "type": "function", "function": {"name": "run_code", "arguments": arguments}}]}


PLOT = open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "plot.py")).read()


async def main():
    headers = {"Authorization": f"Bearer {os.environ['MCP_SERVER_KEY']}"}
    # A run may take ten minutes, so the answer may.
    http = httpx2.AsyncClient(headers=headers, timeout=httpx2.Timeout(30, read=660))
    async with http, Client(streamable_http_client(URL, http_client=http)) as client:
        router = Router(client)
        # The same conversation id at two tenants: two sandboxes. And a branch of the first: a third.
        acme = {"tenant": "acme", "conversation": "chat-1", "path": "main", "question": "Add up the sales and show them."}
        other = {**acme, "tenant": "globex"}
        branch = {**acme, "path": "what-if"}
        first, second = await asyncio.gather(
            router.chat(acme, Scripted("sales = 40", PLOT, "import time; time.sleep(1); print(sales + 2)")),
            router.chat(other, Scripted("print(sales)")),
        )
        third = await router.chat(branch, Scripted("print(sales)"))
        for name, messages in [("acme", first), ("globex", second), ("acme, branch", third)]:
            pictures = sum(isinstance(message["content"], list) for message in messages)
            print(f"{name}: {len(messages)} messages, {pictures} with pictures\n{messages[-1]['content']}\n")
        # The application did not hear the answer and sends the call again: it does not run twice.
        add = {"language": "python", "code": "sales += 1; print(sales)"}
        for _ in range(2):
            text, _ = await router.call(acme, "call-9", "run_code", add)
            assert "41" in text, text
        assert "42" in first[-1]["content"] and any(isinstance(message["content"], list) for message in first), first
        assert "NameError" in second[-1]["content"] and "NameError" in third[-1]["content"], (second, third)


asyncio.run(main())
