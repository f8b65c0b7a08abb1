// The official MCP client for JavaScript, version 1. Arguments: transport, target, data directory.
//
// Started in the folder where the client is installed.

import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'

const require = createRequire(process.cwd() + '/')
const { Client } = require('@modelcontextprotocol/sdk/client/index.js')
const { SSEClientTransport } = require('@modelcontextprotocol/sdk/client/sse.js')
const { StdioClientTransport } = require('@modelcontextprotocol/sdk/client/stdio.js')
const { StreamableHTTPClientTransport } = require('@modelcontextprotocol/sdk/client/streamableHttp.js')

const [transport, target, data] = process.argv.slice(2)
const PLOT = readFileSync(new URL('plot.py', import.meta.url), 'utf8')
const COUNT = 'import time\nfor n in range(3): print(n, flush=True); time.sleep(0.6)'
const PATIENCE = { timeout: 120_000 }

const transports = {
  stdio: () => new StdioClientTransport({ command: target, args: ['serve'], env: { PATHBOX_DATA_DIR: data } }),
  http: () => new StreamableHTTPClientTransport(new URL(`${target}/mcp`)),
  sse: () => new SSEClientTransport(new URL(`${target}/sse`)),
}

const client = new Client({ name: 'suite', version: '1' })
// A notification that comes too late is an error here, and some hosts close the connection over it.
const faults = []
client.onerror = (error) => faults.push(error.message)
// A schema that the validator does not understand is only warned about.
console.warn = console.error = (...words) => faults.push(words.join(' '))
await client.connect(transports[transport]())

const { tools } = await client.listTools()
assert.equal(tools[0].name, 'run_code')
const run = (code, options = {}) =>
  client.callTool({ name: 'run_code', arguments: { code, language: 'python' } }, undefined, { ...PATIENCE, ...options })

assert.equal((await run('x = 40')).structuredContent.state, 'fresh')
const second = await run('x + 2')
assert.deepEqual([second.structuredContent.output, second.structuredContent.state], ['42', 'kept'])

const images = (await run(PLOT)).content.filter((block) => block.type === 'image')
assert.equal(images.length, 1)
assert.equal(Buffer.from(images[0].data, 'base64').subarray(1, 4).toString(), 'PNG')

const failed = await run('1 / 0')
assert.ok(!failed.isError)
assert.equal(failed.structuredContent.error.name, 'ZeroDivisionError')
const refused = await client.callTool({ name: 'run_code', arguments: { code: '1', language: 'cobol' } })
assert.ok(refused.isError && refused.content[0].text.includes('argument `language`'), JSON.stringify(refused))
// Whatever has an output schema is held against it by this client.
for (const call of [
  { name: 'manage_context', arguments: { action: 'show' } },
  { name: 'get_execution', arguments: { execution_id: second.structuredContent.executionId } },
  { name: 'run_analysis', arguments: { analysis_type: 'custom', parameters: { code: '6 * 7' } } },
]) {
  const result = await client.callTool(call, undefined, PATIENCE)
  assert.ok(result.structuredContent, `${call.name}: ${JSON.stringify(result)}`)
}

const seen = []
const slow = await run(COUNT, { onprogress: ({ progress }) => seen.push(progress) })
assert.equal(slow.structuredContent.stdout, '0\n1\n2\n')
assert.ok(seen.length > 0 && seen.every((step, at) => at === 0 || step > seen[at - 1]), seen.join())

assert.deepEqual(faults, [])

const stop = new AbortController()
const onprogress = ({ message }) => message.includes('endless') && stop.abort('enough')
const endless = run("print('endless')\nwhile True: pass", { signal: stop.signal, onprogress })
await assert.rejects(endless, /enough/)
assert.equal((await run('x')).structuredContent.output, '40')

await client.close()
console.log('ok')
process.exit(0)
