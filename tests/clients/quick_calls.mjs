// Both versions of the official JavaScript client: many quick calls and replays that ask for progress, and some runs that
// last. A notification that is read together with its result is an error of an unknown token in these clients.
// Arguments: transport, target, data directory.

import assert from 'node:assert/strict'
import { createRequire } from 'node:module'

import { PATIENCE, connection } from './checks.mjs'

const require = createRequire(process.cwd() + '/')
const one = {
  Client: require('@modelcontextprotocol/sdk/client/index.js').Client,
  Sse: require('@modelcontextprotocol/sdk/client/sse.js').SSEClientTransport,
  Stdio: require('@modelcontextprotocol/sdk/client/stdio.js').StdioClientTransport,
  Http: require('@modelcontextprotocol/sdk/client/streamableHttp.js').StreamableHTTPClientTransport,
  call: (client, params, options) => client.callTool(params, undefined, options),
}
const second = require('@modelcontextprotocol/client')
const two = {
  Client: second.Client,
  Sse: second.SSEClientTransport,
  Stdio: require('@modelcontextprotocol/client/stdio').StdioClientTransport,
  Http: second.StreamableHTTPClientTransport,
  call: (client, params, options) => client.callTool(params, options),
}

for (const [sdk, fresh, replays] of [[one, 300, 500], [two, 100, 100]]) {
  const client = new sdk.Client({ name: 'quick', version: '1' })
  const faults = []
  client.onerror = (error) => faults.push(error.message)
  await client.connect(connection(sdk))
  let heard = 0
  const onprogress = () => heard++
  const run = async (code, key) => {
    const params = { name: 'run_code', arguments: { code, language: 'python', idempotency_key: key } }
    const result = await sdk.call(client, params, { ...PATIENCE, onprogress })
    assert.ok(result.structuredContent?.success, JSON.stringify(result))
    return result.structuredContent
  }
  const salt = `${sdk === one}-${process.pid}`
  for (let n = 0; n < fresh; n++) assert.equal((await run(`${n} + 1`)).output, `${n + 1}`)
  await run("'kept'", salt)
  for (let n = 0; n < replays; n += 4) {
    const same = await Promise.all([1, 2, 3, 4].map(() => run("'kept'", salt)))
    assert.ok(same.every(({ replayed }) => replayed))
  }
  // These end at about the time of a notification, before and after it.
  const quick = heard
  for (let n = 0; n < 12; n++) await run(`import time; time.sleep(${0.25 + n * 0.03})`)
  assert.ok(heard > quick, 'a run that lasts is reported')
  assert.deepEqual(faults, [])
  await client.close()
}
console.log('ok')
process.exit(0)
