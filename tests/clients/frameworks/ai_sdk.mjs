// Vercel's AI SDK as its documentation writes it. Arguments: where the server is (JSON), the model's address.
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'

const resolve = createRequire(process.cwd() + '/').resolve
const load = (name) => import(pathToFileURL(resolve(name)))
const { createMCPClient, experimental_createMCPClient } = await load('@ai-sdk/mcp')
const { generateText, stepCountIs, isStepCount } = await load('ai')
const { createOpenAICompatible } = await load('@ai-sdk/openai-compatible')

const [where, baseURL] = [JSON.parse(process.argv[2]), process.argv[3]]
let transport = { type: where.transport, url: where.url }
if (where.transport === 'stdio') {
  const { StdioClientTransport } = await load('@modelcontextprotocol/sdk/client/stdio.js')
  transport = new StdioClientTransport({ command: where.command, args: where.args, env: where.env })
}
const client = await (createMCPClient ?? experimental_createMCPClient)({ transport })
try {
  const model = createOpenAICompatible({ name: 'scripted', baseURL, apiKey: 'none' })('scripted')
  const stopWhen = (stepCountIs ?? isStepCount)(6)
  await generateText({ model, tools: await client.tools(), stopWhen, prompt: 'Compute.' })
} finally {
  await client.close()
}
