"""`tools` on the command line of the sandbox: tools call server.tool '{"argument": 1}'."""
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import tools

USAGE = """usage: tools call SERVER.TOOL ['{"argument": "value"}']   (or `-` to read the arguments from standard input)
       tools ls [SERVER]
       tools help SERVER.TOOL
       tools search WORDS..."""


def find(name):
    server, _, tool = name.partition(".")
    return getattr(tools, server)[tool]


def main(words):
    if words[:1] == ["call"] and len(words) in (2, 3):
        text = words[2] if len(words) == 3 else "{}"
        arguments = json.loads(sys.stdin.read() if text == "-" else text)
        value = tools.call(words[1], arguments)
        print(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
    elif words[:1] == ["ls"]:
        for name in words[1:] or [name for name in dir(tools) if name not in ("ToolError", "call", "search")]:
            print(getattr(tools, name))
    elif words[:1] == ["help"] and len(words) == 2:
        print(find(words[1]).__doc__)
    elif words[:1] == ["search"] and len(words) > 1:
        for found in tools.search(" ".join(words[1:])):
            print(found["signature"] + "\n    " + found["description"].split("\n")[0])
    else:
        print(USAGE, file=sys.stderr)
        return 2
    return 0


try:
    status = main(sys.argv[1:])
except (tools.ToolError, AttributeError, KeyError, ValueError) as error:
    print("tools: %s" % error, file=sys.stderr)
    status = 1
sys.exit(status)
