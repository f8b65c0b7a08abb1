// The official MCP client for JavaScript, version 2, in both protocol eras. Arguments: transport, target, data directory.
//
// Started in the folder where the client is installed.

import assert from 'node:assert/strict'
import { createRequire } from 'node:module'

import { PATIENCE, checkCancelling, checkResults, connection } from './checks.mjs'

const require = createRequire(process.cwd() + '/')
const { Client, SSEClientTransport, StreamableHTTPClientTransport } = require('@modelcontextprotocol/client')
const { StdioClientTransport } = require('@modelcontextprotocol/client/stdio')

const transports = { Stdio: StdioClientTransport, Http: StreamableHTTPClientTransport, Sse: SSEClientTransport }

async function talk(mode) {
  const client = new Client({ name: 'suite', version: '2' }, { versionNegotiation: { mode } })
  await client.connect(connection(transports))
  const { tools } = await client.listTools()
  assert.equal(tools[0].name, 'run_code')

  const run = (code, options = {}) =>
    client.callTool({ name: 'run_code', arguments: { code, language: 'python' } }, { ...PATIENCE, ...options })

  const first = await run('x = 40')
  assert.equal(first.structuredContent.state, 'fresh')
  assert.equal((await run('x + 2')).structuredContent.output, '42')

  await checkResults(client, run)
  await checkCancelling(run)
  await client.close()
}

for (const mode of ['legacy', 'auto']) await talk(mode)
console.log('ok')
process.exit(0)
