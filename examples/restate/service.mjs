// A workflow of Restate whose steps are programs in Pathbox.
//
// Each step has an idempotency key of its own, made of the workflow's id and the step's name. Restate repeats a step whose end it has
// not seen, for example because this process was killed in the middle; Pathbox then gives the result of the run that it knows
// by that key, or waits for it, and runs nothing twice.
import * as restate from "@restatedev/restate-sdk";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const pathbox = process.env.PATHBOX_URL ?? "http://127.0.0.1:8000/mcp";

async function runCode(conversation, step, code) {
  const client = new Client({ name: "restate-example", version: "1" });
  await client.connect(new StreamableHTTPClientTransport(new URL(pathbox)));
  try {
    const result = await client.callTool({
      name: "run_code",
      arguments: { language: "python", code, idempotency_key: `${conversation}/${step}` },
      _meta: { "dev.pathbox/conversationId": conversation },
    });
    const output = result.structuredContent;
    // A thrown error is tried again by Restate; a program that fails would fail again.
    if (result.isError && !output) throw new Error(JSON.stringify(result.content));
    if (!output.success) throw new restate.TerminalError(output.error?.message ?? "the program failed");
    return output.stdout.trim();
  } finally {
    await client.close();
  }
}

const report = restate.workflow({
  name: "report",
  handlers: {
    run: async (ctx, rows) => {
      const step = (name, code) => ctx.run(name, () => runCode(ctx.key, name, code));
      // The list in the sandbox shows how often each step ran.
      await step("load", `ran = ["load"]\nrows = ${JSON.stringify(rows)}\nprint(len(rows))`);
      await step("slow", `import time\nran.append("slow")\nprint("begun", flush=True)\ntime.sleep(6)\nprint("done")`);
      const total = await step("sum", `ran.append("sum")\nprint(sum(rows))`);
      const ran = await step("ran", `print(",".join(ran))`);
      return { total: Number(total), ran };
    },
  },
});

restate.serve({ services: [report], port: Number(process.env.PORT ?? 9080) });
