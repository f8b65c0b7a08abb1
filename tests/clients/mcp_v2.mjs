// The official MCP client for JavaScript, version 2, in both protocol eras. Arguments: transport, target, data directory.
//
// Started in the folder where the client is installed.

import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'

const require = createRequire(process.cwd() + '/')
const { Client, SSEClientTransport, StreamableHTTPClientTransport } = require('@modelcontextprotocol/client')
const { StdioClientTransport } = require('@modelcontextprotocol/client/stdio')

const [transport, target, data] = process.argv.slice(2)
const PLOT = readFileSync(new URL('plot.py', import.meta.url), 'utf8')
const COUNT = 'import time\nfor n in range(3): print(n, flush=True); time.sleep(0.6)'
const PATIENCE = { timeout: 120_000 }

const transports = {
  stdio: () => new StdioClientTransport({ command: target, args: ['serve'], env: { PATHBOX_DATA_DIR: data } }),
  http: () => new StreamableHTTPClientTransport(new URL(`${target}/mcp`)),
  sse: () => new SSEClientTransport(new URL(`${target}/sse`)),
}

async function talk(mode) {
  const client = new Client({ name: 'suite', version: '2' }, { versionNegotiation: { mode } })
  await client.connect(transports[transport]())
  const { tools } = await client.listTools()
  assert.equal(tools[0].name, 'run_code')

  // The newer revision has no sessions over HTTP: there the state hangs on the handle that the first result gives.
  const mine = {}
  const run = (code, options = {}) =>
    client.callTool({ name: 'run_code', arguments: { code, language: 'python', ...mine } }, { ...PATIENCE, ...options })

  const first = await run('x = 40')
  assert.equal(first.structuredContent.state, 'fresh')
  if (mode === 'auto' && transport === 'http') mine.context = first.structuredContent.context
  assert.equal((await run('x + 2')).structuredContent.output, '42')

  const images = (await run(PLOT)).content.filter((block) => block.type === 'image')
  assert.equal(images.length, 1)
  assert.equal(Buffer.from(images[0].data, 'base64').subarray(1, 4).toString(), 'PNG')

  const failed = await run('1 / 0')
  assert.ok(!failed.isError)
  assert.equal(failed.structuredContent.error.name, 'ZeroDivisionError')
  const refused = await client.callTool({ name: 'run_code', arguments: { code: '1', language: 'cobol' } })
  assert.ok(refused.isError && refused.content[0].text.includes('argument `language`'), JSON.stringify(refused))

  const seen = []
  const slow = await run(COUNT, { onprogress: ({ progress }) => seen.push(progress) })
  assert.equal(slow.structuredContent.stdout, '0\n1\n2\n')
  assert.ok(seen.length > 0 && seen.every((step, at) => at === 0 || step > seen[at - 1]), seen.join())

  const stop = new AbortController()
  const onprogress = ({ message }) => message.includes('endless') && stop.abort('enough')
  const endless = run("print('endless')\nwhile True: pass", { signal: stop.signal, onprogress })
  await assert.rejects(endless, /enough/)
  assert.equal((await run('x')).structuredContent.output, '40')
  await client.close()
}

for (const mode of ['legacy', 'auto']) await talk(mode)
console.log('ok')
process.exit(0)
