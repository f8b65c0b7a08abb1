// The inspector's command line, strict about what it is shown. Arguments: transport, target, data directory.
//
// Started in the folder where the inspector is installed. Each method is a process and a session of its own.

import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { promisify } from 'node:util'

const [transport, target, data] = process.argv.slice(2)
const servers = {
  stdio: ['-e', `PATHBOX_DATA_DIR=${data}`, '--transport', 'stdio', target, 'serve'],
  http: [`${target}/mcp`, '--transport', 'http'],
  sse: [`${target}/sse`, '--transport', 'sse'],
}
const eras = { stdio: ['legacy', 'modern'], http: ['legacy', 'modern'], sse: ['legacy'] }

/** Fails when the inspector's exit code says that it found a fault. */
async function inspect(era, method, ...options) {
  const all = ['node_modules/.bin/inspector', '--cli', ...servers[transport], '--protocol-era', era, '--method', method]
  const { stdout } = await promisify(execFile)(process.execPath, [...all, ...options], { maxBuffer: 1 << 26 })
  return JSON.parse(stdout)
}

for (const era of eras[transport]) {
  const { tools } = await inspect(era, 'tools/list', '--strict')
  assert.equal(tools[0].name, 'run_code')
  const call = ['--tool-name', 'run_code', '--tool-arg', 'language=python', 'code="6 * 7"']
  const { structuredContent } = await inspect(era, 'tools/call', ...call)
  assert.equal(structuredContent.output, '42')
  const { prompts } = await inspect(era, 'prompts/list')
  assert.ok(prompts.some((prompt) => prompt.name === 'run_code'))
  assert.ok(Array.isArray((await inspect(era, 'resources/list')).resources))
}
console.log('ok')
