"""An agent of the OpenAI Agents SDK. Arguments: transport, target, data directory."""
import asyncio
import json
import re
import sys

from agents import Agent, Model, ModelResponse, Runner, Usage, set_tracing_disabled
from agents.mcp import MCPServerSse, MCPServerStdio, MCPServerStreamableHttp
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText


def server_of(transport, target, data):
    patience = {"client_session_timeout_seconds": 120}
    match transport:
        case "stdio":
            params = {"command": target, "args": ["serve"], "env": {"PATHBOX_DATA_DIR": data}}
            return MCPServerStdio(params=params, **patience)
        case "http":
            return MCPServerStreamableHttp(params={"url": f"{target}/mcp"}, **patience)
        case "sse":
            return MCPServerSse(params={"url": f"{target}/sse"}, **patience)


class Scripted(Model):
    """Sets a variable and asks for it. Like every model it sees the text of results alone, and does what that says."""

    async def get_response(self, system_instructions, input, model_settings, tools, *more, **options):
        assert "run_code" in [tool.name for tool in tools], tools
        said = [json.dumps(item["output"]) for item in input if item.get("type") == "function_call_output"]
        calls = [{"code": "x = 40"}, {"code": "x + 2"}]
        if len(said) == len(calls):
            text = ResponseOutputText(type="output_text", text=said[-1], annotations=[])
            return self.say(ResponseOutputMessage(
                id="answer", type="message", role="assistant", status="completed", content=[text]))
        arguments = {"language": "python", **calls[len(said)]}
        if handle := re.search(r"pass context ([\w.-]+)", said[0]) if said else None:
            arguments["context"] = handle[1]
        return self.say(ResponseFunctionToolCall(
            type="function_call", name="run_code", call_id=f"call-{len(said)}", arguments=json.dumps(arguments)))

    def say(self, item):
        return ModelResponse(output=[item], usage=Usage(), response_id=None)

    async def stream_response(self, *all, **options):
        raise NotImplementedError("this suite does not stream")


async def main(*where):
    set_tracing_disabled(True)
    async with server_of(*where) as server:
        agent = Agent(name="Calculator", model=Scripted(), mcp_servers=[server])
        done = await Runner.run(agent, "What is 40 + 2?")
    assert "42" in done.final_output and "state kept" in done.final_output, done.final_output
    print("ok")


asyncio.run(main(*sys.argv[1:]))
