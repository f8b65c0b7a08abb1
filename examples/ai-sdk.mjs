// Vercel's AI SDK, with tools that compute in a sandbox.
//
//     npm install ai @ai-sdk/mcp @ai-sdk/openai-compatible @modelcontextprotocol/sdk
//     OPENAI_API_KEY=... node ai-sdk.mjs
import { createMCPClient } from '@ai-sdk/mcp'
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js'
import * as ai from 'ai'

const openai = createOpenAICompatible({
  name: 'openai',
  baseURL: process.env.OPENAI_BASE_URL ?? 'https://api.openai.com/v1',
  apiKey: process.env.OPENAI_API_KEY,
})
const client = await createMCPClient({
  transport: new StdioClientTransport({ command: 'pathbox', args: ['serve'], env: process.env }),
})
try {
  const { text } = await ai.generateText({
    model: openai('gpt-5'),
    tools: await client.tools(),
    stopWhen: (ai.isStepCount ?? ai.stepCountIs)(6),
    prompt: 'What is the 40th Fibonacci number? Compute it.',
  })
  console.log(text)
} finally {
  await client.close()
}
