"""A scripted model that speaks the chat-completions API, as the frameworks' own model classes do, and what it was shown.

It calls `run_code` four times: sets a variable, asks for it, draws a plot, fails. Whatever a framework sends back as the
result of a call is what a real model would see.
"""
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PLOT = Path(__file__).parent.with_name("plot.py").read_text()
CALLS = ["x = 40", "x + 2", PLOT, "1 / 0"]


class Model:
    def __init__(self):
        self.requests = []
        model = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                model.requests.append(body)
                self.answer(body.get("stream", False), model.next(body))

            def answer(self, streams, message):
                finish = "tool_calls" if message.get("tool_calls") else "stop"
                common = {"id": "c", "created": 1, "model": "scripted"}
                if streams:
                    for index, call in enumerate(message.get("tool_calls", [])):
                        call["index"] = index
                    chunks = [
                        {**common, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": message, "finish_reason": None}]},
                        {**common, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]},
                    ]
                    data = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
                    kind = "text/event-stream"
                else:
                    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
                    choice = {"index": 0, "message": message, "finish_reason": finish}
                    data = json.dumps({**common, "object": "chat.completion", "choices": [choice], "usage": usage})
                    kind = "application/json"
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data.encode())))
                self.end_headers()
                self.wfile.write(data.encode())

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"

    def next(self, body):
        done = len(self.results(body))
        tools = [tool["function"] for tool in body.get("tools", []) if tool["function"]["name"].endswith("run_code")]
        if done >= len(CALLS) or not tools:
            return {"role": "assistant", "content": "done"}
        name, schema = tools[0]["name"], tools[0].get("parameters", {})
        # Some frameworks demand every property; a model then sends what says nothing.
        neutral = {"string": "", "integer": 60_000, "number": 60_000, "boolean": False, "array": [], "object": {}}
        demanded = {
            key: neutral.get(schema["properties"][key].get("type"))
            for key in schema.get("required", [])
            if key in schema.get("properties", {})
        }
        arguments = json.dumps({**demanded, "code": CALLS[done], "language": "python"})
        call = {"id": f"call_{done}", "type": "function", "function": {"name": name, "arguments": arguments}}
        return {"role": "assistant", "content": None, "tool_calls": [call]}

    @staticmethod
    def results(body):
        """The texts of the results of calls, in order, with what pictures came beside them."""
        found = [message for message in body["messages"] if message["role"] in ("tool", "tool-response")]
        if found:
            return found
        # Some frameworks write results as what the user says.
        marks = ("Observation", "Call id: call_")
        return [m for m in body["messages"] if m["role"] == "user" and any(mark in json.dumps(m) for mark in marks)]

    def report(self):
        """What the model saw of each call: whether the state was kept, the picture came, the error had its name."""
        if not self.requests:
            return {"state": False, "picture": False, "error": False}
        last = max(self.requests, key=lambda body: len(self.results(body)))
        results = [json.dumps(result["content"]) for result in self.results(last)]
        everything = json.dumps(last["messages"])
        has_picture = '"image_url"' in everything or "data:image/png;base64" in everything or '"input_image"' in everything
        return {
            "state": len(results) > 1 and "42" in results[1] and "NameError" not in results[1],
            "picture": has_picture,
            "error": len(results) > 3 and "ZeroDivisionError" in results[3],
        }
