#!/bin/sh
# Code through MCP over HTTP with curl alone. First: pathbox serve --http 127.0.0.1:8080
set -eu
url=${MCP_SERVER_URL:-http://127.0.0.1:8080}/mcp

call() {
  curl --silent --show-error --fail "$url" \
    -H 'Content-Type: application/json' -H 'Accept: application/json, text/event-stream' \
    -H 'MCP-Protocol-Version: 2025-11-25' ${SESSION:+-H "Mcp-Session-Id: $SESSION"} "$@"
}

SESSION=$(call -D - -o /dev/null -d '{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-11-25",
  "capabilities": {}, "clientInfo": {"name": "curl", "version": "1"}}}' | sed -n 's/^mcp-session-id: *\([^[:space:]]*\).*/\1/Ip')
call -d '{"jsonrpc": "2.0", "method": "notifications/initialized"}'
for code in 'x = 40' 'x + 2'; do
  call -d '{"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "run_code",
    "arguments": {"language": "python", "code": "'"$code"'"}}}' | sed -n 's/^data: *\({.*\)/\1/p'
done
