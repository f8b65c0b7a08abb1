// An operator at the console: signs in, watches a run, interrupts it, branches a path and ends a context; by mouse, by
// keyboard, on a phone, in the dark. Prints `ok`, and leaves pictures in the folder that it is given.
//
// node console.mjs <base URL> <admin key> <reader's key> <folder for pictures>
import { createRequire } from "node:module";
import { strict as assert } from "node:assert";

const require = createRequire(process.cwd() + "/");
const { chromium } = require("playwright-core");
const axe = require("axe-core");
const [base, admin, reader, pictures] = process.argv.slice(2);

const browser = await chromium.launch({
  executablePath: "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});

async function open(options) {
  const context = await browser.newContext({ reducedMotion: "reduce", ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(60_000);
  page.faults = [];
  page.on("pageerror", (error) => page.faults.push(String(error)));
  page.on("console", (message) => {
    // A refused key is an answer of 401 or 403, which a browser writes down as an error of the page.
    if (message.type() === "error" && !/status of 40[13]/.test(message.text())) page.faults.push(message.text());
  });
  await page.goto(base + "/console");
  return page;
}

async function signIn(page, key) {
  await page.getByLabel("API key").fill(key);
  await page.getByLabel("API key").press("Enter");
}

// In the page's own policy no script but its own may run; axe comes in through the debugger's protocol.
async function noSeriousFault(page, what) {
  await page.evaluate(axe.source);
  const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  const serious = violations.filter((fault) => ["serious", "critical"].includes(fault.impact));
  assert.deepEqual(serious.map((fault) => [fault.id, fault.nodes.map((node) => node.html)]), [], what);
  return violations.length;
}

const call = (name, args, path) => fetch(base + "/mcp", {
  method: "POST",
  headers: { authorization: "Bearer " + admin, "content-type": "application/json", accept: "application/json, text/event-stream",
    "mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": name },
  body: JSON.stringify({ jsonrpc: "2.0", id: 1, method: "tools/call", params: { name, arguments: args,
    _meta: { "io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {},
      "io.modelcontextprotocol/clientInfo": { name: "test", version: "0" },
      "dev.pathbox/conversationId": "quarterly-report", "dev.pathbox/pathId": path } } }),
}).then((reply) => reply.text());

const page = await open({ viewport: { width: 1360, height: 900 }, colorScheme: "light" });
// A key without the scope, then a good one.
await page.getByRole("heading", { name: "Sign in" }).waitFor();
await noSeriousFault(page, "the sign-in");
await page.screenshot({ path: pictures + "/sign-in.png" });
await signIn(page, reader);
await page.getByRole("alert").getByText("admin").waitFor();
await signIn(page, admin);
await page.getByText("live", { exact: true }).waitFor();

await call("run_code", { language: "python", code: "print('mary.murphy@example.ie')", purpose: "totals by region" }, "main");
const long = call("run_code", { language: "python", code: "import time\nfor n in range(100000):\n    print('step', n, 'of mary.murphy@example.ie', flush=True)\n    time.sleep(0.2)", purpose: "a long simulation", timeout_ms: 600000 }, "what-if");
const running = page.locator("#live .job");
await running.getByText("step 3").waitFor();
const tail = await running.locator("pre").innerText();
assert(!tail.includes("mary.murphy"), "the tail has been through the guard: " + tail);
await call("run_workflow", { purpose: "the monthly figures", tasks: [{ id: "a", type: "code_execution", code: "print(1)" }] }, "main");
const flow = page.locator("#workflows tr").filter({ hasText: "the monthly figures" });
await flow.getByText("completed").waitFor();
await page.locator("#findings").getByText("email", { exact: false }).first().waitFor();
await page.locator("#tree").getByText("quarterly-report").waitFor();
const faults = await noSeriousFault(page, "the board");
await page.screenshot({ path: pictures + "/board-light.png", fullPage: true });

// By keyboard: branch from a path, and name the new one.
const branch = page.getByRole("button", { name: "Branch from path main" });
await branch.focus();
await page.keyboard.press("Enter");
await page.keyboard.type("second-try");
await page.keyboard.press("Enter");
await page.locator("#tree").getByText("second-try").waitFor();
// A merged path says into which one, and offers no branch.
const merged = await fetch(base + "/v1/conversations/quarterly-report/paths/second-try/merge", { method: "POST",
  headers: { authorization: "Bearer " + admin, "content-type": "application/json" }, body: JSON.stringify({ target: "main" }) });
assert.equal(merged.status, 200, await merged.text());
const closed = page.locator("#tree li").filter({ hasText: "second-try" });
await closed.getByText("into main").waitFor();
assert.equal(await closed.getByRole("button").count(), 0, "a closed path has no buttons");
// Interrupting wants a second press.
await page.getByRole("button", { name: /^Interrupt the run/ }).click();
await page.getByRole("button", { name: /^Interrupt it\?/ }).click();
await page.locator("#live").getByText("Nothing runs.").waitFor();
await long;
await page.locator("#recent").getByText("cancelled").waitFor();
await page.getByRole("button", { name: "End the context of path what-if" }).click();
await page.getByRole("button", { name: /^End it\? the context of path what-if/ }).click();
await page.getByRole("button", { name: "End the context of path what-if" }).waitFor({ state: "detached" });
// A workflow that waits for a person: paused, resumed, and ended by two presses.
const waits = call("run_workflow", { purpose: "sends the invoices", tasks: [{ id: "a", type: "code_execution", code: "print(1)", approve: true }] }, "main");
const held = page.locator("#workflows tr").filter({ hasText: "sends the invoices" });
await held.getByRole("button", { name: /^Pause the workflow/ }).click();
await held.getByText("paused", { exact: true }).waitFor();
await page.screenshot({ path: pictures + "/board-workflow.png", fullPage: true });
await held.getByRole("button", { name: /^Resume the workflow/ }).click();
await held.getByRole("button", { name: /^Abort the workflow/ }).click();
await held.getByRole("button", { name: /^Abort it\? the workflow/ }).click();
await held.getByText("aborted", { exact: true }).waitFor();
assert.equal(await held.getByRole("button").count(), 0, "what is over has no buttons");
await waits;
assert.deepEqual(page.faults, []);

for (const [name, options] of [
  ["board-dark", { viewport: { width: 1360, height: 900 }, colorScheme: "dark" }],
  ["board-phone", { viewport: { width: 390, height: 844 }, isMobile: true, hasTouch: true, colorScheme: "light" }],
]) {
  const other = await open(options);
  await signIn(other, admin);
  await other.locator("#tree").getByText("quarterly-report").waitFor();
  await noSeriousFault(other, name);
  const overflow = await other.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  assert.equal(overflow, 0, name + " is wider than its window");
  await other.screenshot({ path: `${pictures}/${name}.png`, fullPage: true });
  assert.deepEqual(other.faults, []);
}
await page.getByRole("button", { name: "Sign out" }).click();
await page.getByRole("heading", { name: "Sign in" }).waitFor();
assert.equal(await page.evaluate(() => sessionStorage.getItem("key")), null);
console.error(`faults of any weight that axe names on the board: ${faults}`);
await browser.close();
console.log("ok");
