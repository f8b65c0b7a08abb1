// What both versions of the official JavaScript client do: ways to connect, and what is held against every result.

import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'

export const PATIENCE = { timeout: 120_000 }
const PLOT = readFileSync(new URL('plot.py', import.meta.url), 'utf8')
const COUNT = 'import time\nfor n in range(3): print(n, flush=True); time.sleep(0.6)'

export const [transport, target, data] = process.argv.slice(2)

// A connection as the command line says, made of the client's own transports.
export function connection({ Stdio, Http, Sse }) {
  const ways = {
    stdio: () => new Stdio({ command: target, args: ['serve'], env: { PATHBOX_DATA_DIR: data } }),
    http: () => new Http(new URL(`${target}/mcp`)),
    sse: () => new Sse(new URL(`${target}/sse`)),
  }
  return ways[transport]()
}

// A picture, a program that fails, an argument that does not fit, progress.
export async function checkResults(client, run) {
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
}

// An endless loop ends when it is cancelled, and `x` is still 40.
export async function checkCancelling(run) {
  const stop = new AbortController()
  const onprogress = ({ message }) => message.includes('endless') && stop.abort('enough')
  const endless = run("print('endless')\nwhile True: pass", { signal: stop.signal, onprogress })
  await assert.rejects(endless, /enough/)
  assert.equal((await run('x')).structuredContent.output, '40')
}
