// The official MCP client for JavaScript, version 1. Arguments: transport, target, data directory.
//
// Started in the folder where the client is installed.

import assert from 'node:assert/strict'
import { createRequire } from 'node:module'

import { PATIENCE, checkCancelling, checkResults, connection } from './checks.mjs'

const require = createRequire(process.cwd() + '/')
const { Client } = require('@modelcontextprotocol/sdk/client/index.js')
const { SSEClientTransport } = require('@modelcontextprotocol/sdk/client/sse.js')
const { StdioClientTransport } = require('@modelcontextprotocol/sdk/client/stdio.js')
const { StreamableHTTPClientTransport } = require('@modelcontextprotocol/sdk/client/streamableHttp.js')

const client = new Client({ name: 'suite', version: '1' })
// A notification that comes too late is an error here, and some hosts close the connection over it.
const faults = []
client.onerror = (error) => faults.push(error.message)
// A schema that the validator does not understand is only warned about.
console.warn = console.error = (...words) => faults.push(words.join(' '))
const transports = { Stdio: StdioClientTransport, Http: StreamableHTTPClientTransport, Sse: SSEClientTransport }
await client.connect(connection(transports))

const { tools } = await client.listTools()
assert.equal(tools[0].name, 'run_code')
const run = (code, options = {}) =>
  client.callTool({ name: 'run_code', arguments: { code, language: 'python' } }, undefined, { ...PATIENCE, ...options })

assert.equal((await run('x = 40')).structuredContent.state, 'fresh')
const second = await run('x + 2')
assert.deepEqual([second.structuredContent.output, second.structuredContent.state], ['42', 'kept'])

await checkResults(client, run)
// Whatever has an output schema is held against it by this client.
for (const call of [
  { name: 'manage_context', arguments: { action: 'show' } },
  { name: 'get_execution', arguments: { execution_id: second.structuredContent.executionId } },
  { name: 'run_analysis', arguments: { analysis_type: 'custom', parameters: { code: '6 * 7' } } },
]) {
  const result = await client.callTool(call, undefined, PATIENCE)
  assert.ok(result.structuredContent, `${call.name}: ${JSON.stringify(result)}`)
}

assert.deepEqual(faults, [])

await checkCancelling(run)
await client.close()
console.log('ok')
process.exit(0)
