"""Vercel's AI SDK, in its own process: https://ai-sdk.dev/docs/ai-sdk-core/mcp-tools"""
import json
import os
import subprocess
from pathlib import Path


def talk(where, url):
    node, folder = os.environ["PATHBOX_TEST_NODE"], os.environ["PATHBOX_TEST_AI_SDK"]
    script = Path(__file__).with_name("ai_sdk.mjs")
    subprocess.run([node, script, json.dumps(where), url], cwd=folder, check=True, timeout=240)
