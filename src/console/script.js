// The console's script: gets the state as it changes and draws it. Text from the server becomes text nodes and never markup.
"use strict";
const $ = (id) => document.getElementById(id);
const root = document.documentElement;
let key = sessionStorage.getItem("key") || "";
let state = null;
let sure = "";       // the button that was pressed once
let branching = "";  // the path whose branch is being named
let sessions = 0;    // the stream that counts

function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name === "class") node.className = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child != null && child !== false));
  return node;
}
const say = (text) => { $("said").textContent = text; };
const headers = () => (key ? { authorization: "Bearer " + key } : {});

function age(since) {
  let seconds = Math.max(0, Math.round((Date.now() - Date.parse(since)) / 1000));
  for (const [size, name] of [[86400, "d"], [3600, "h"], [60, "min"]]) if (seconds >= size) return Math.floor(seconds / size) + " " + name;
  return seconds + " s";
}
const duration = (ms) => ms == null ? "–" : ms < 1000 ? ms + " ms" : ms < 60000 ? (ms / 1000).toFixed(1) + " s" : Math.round(ms / 60000) + " min";
const count = (number, what) => number + " " + what + (number === 1 ? "" : "s");
const place = (at) => JSON.stringify([at.tenant, at.owner, at.conversation, at.path]);
const tone = { completed: "good", running: "good", ready: "good", active: "", queued: "warn", creating: "warn", timed_out: "warn", cancelled: "warn", interrupted: "bad", died: "bad", failed: "bad", paused: "warn", aborting: "warn", aborted: "bad" };
const pill = (text, kind) => el("span", { class: "pill " + (kind ?? tone[text] ?? "") }, text.replace("_", " "));

async function act(what, body, done) {
  try {
    const reply = await fetch("console/" + what, { method: "POST", headers: { ...headers(), "content-type": "application/json" }, body: JSON.stringify(body) });
    const answer = await reply.json().catch(() => ({}));
    say(reply.ok ? done : answer.error?.message || "That was refused: " + reply.status);
  } catch { say("The server does not answer."); }
}

// A button that wants to be pressed twice, for what cannot be taken back.
function twice(id, label, question, name, go) {
  const armed = sure === id;
  return el("button", { type: "button", "data-key": id, class: armed ? "sure" : "", "aria-label": (armed ? question : label) + " " + name,
    onclick: () => {
      if (sure === id) { sure = ""; go(); } else { sure = id; say(question + " Press again to confirm."); setTimeout(() => { if (sure === id) { sure = ""; draw(); } }, 5000); }
      draw();
    } }, armed ? question : label);
}

// Branches stand below the path that they come from.
function inOrder(items) {
  const below = new Map(items.map((item) => [item.at.path, []]));
  const tops = [];
  for (const item of items) (item.at.parent && below.get(item.at.parent) || tops).push(item);
  const out = [];
  const walk = (list, depth) => list.forEach((item) => { out.push({ ...item, depth }); walk(below.get(item.at.path), depth + 1); });
  walk(tops.sort((a, b) => a.at.path < b.at.path ? -1 : 1), 0);
  return out;
}

function pathItem({ at, context, depth }, runs) {
  const id = place(at);
  const running = runs.find((run) => run.lives && place(run) === id && run.status === "running");
  const { tenant, owner, conversation, path } = at;
  const closed = at.status && at.status !== "active" && !context;
  const acts = el("span", { class: "acts" },
    !closed && el("button", { type: "button", "data-key": "branch" + id, "aria-expanded": String(branching === id), "aria-label": "Branch from path " + path,
      onclick: () => { branching = branching === id ? "" : id; draw(); $("branch")?.focus(); } }, "Branch"),
    context && twice("end" + id, "End", "End it?", "the context of path " + path, () => act("end", { tenant, owner, conversation, path }, "The context has ended.")));
  const naming = branching === id && el("form", { class: "branching", onsubmit: (event) => {
      event.preventDefault();
      const branch = $("branch").value.trim();
      branching = "";
      act("branch", { tenant, owner, conversation, path, branch }, "Path " + branch + " was registered.");
      draw();
    } },
    el("label", { class: "hidden", for: "branch" }, "Name of the new path"),
    el("input", { id: "branch", "data-key": "branch-name", placeholder: "new-path", required: true, maxlength: "128", pattern: "[A-Za-z0-9_.:@\\-]+" }),
    el("button", {}, "Create"));
  const about = context ? `${count(context.executions, "run")} · used ${age(context.lastUsedAt)} ago`
    : at.status === "merged" && at.mergedInto ? "into " + at.mergedInto : at.parent ? "from " + at.parent : "no sandbox";
  return el("li", { class: (running ? "run " : "") + (depth ? "d" + Math.min(depth, 3) : "") }, el("span", { class: "name" }, path),
    pill(running ? "running" : context ? context.status : at.status || "active", context ? undefined : ""), el("span", { class: "age" }, about), acts, naming);
}

function drawTree() {
  const wanted = $("filter").value.toLowerCase();
  const all = new Map();
  for (const path of state.paths) all.set(place(path), { at: path });
  for (const context of state.contexts) all.set(place(context), { at: { ...all.get(place(context))?.at, ...context }, context });
  const tenants = new Map();
  for (const item of all.values()) {
    const { tenant, owner, conversation, path } = item.at;
    if (wanted && !(tenant + " " + owner + " " + conversation + " " + path).toLowerCase().includes(wanted)) continue;
    const chats = tenants.get(tenant) || tenants.set(tenant, new Map()).get(tenant);
    const chat = JSON.stringify([conversation, owner]);
    (chats.get(chat) || chats.set(chat, []).get(chat)).push(item);
  }
  const blocks = [...tenants].map(([tenant, chats]) => el("div", { class: "tenant" }, el("h3", {}, tenant, pill(count(chats.size, "conversation"), "")),
    [...chats].map(([chat, items]) => {
      const [conversation, owner] = JSON.parse(chat);
      return el("div", { class: "chat" }, el("p", {}, conversation, owner && el("small", {}, " of " + owner)),
        el("ul", { "aria-label": "Paths of " + conversation }, inOrder(items).map((item) => pathItem(item, state.runs))));
    })));
  fill("tree", blocks, wanted ? "Nothing matches." : "No context lives.");
}

function job(run) {
  const where = `${run.conversation} / ${run.path}`;
  return el("div", { class: "job" },
    el("div", { class: "top" }, pill(run.status), el("strong", {}, where), el("span", { class: "age" }, `${run.language} · ${run.tool} · ${age(run.startedAt || run.createdAt)}`),
      twice("stop" + run.id, "Interrupt", "Interrupt it?", "the run on " + where, () => act("interrupt", { tenant: run.tenant, execution: run.id }, "The run was asked to stop."))),
    run.purpose && el("p", {}, run.purpose),
    run.tail && el("pre", { tabindex: "0", "aria-label": "Latest output", "data-key": "tail" + run.id }, run.tail));
}

function table(headings, rows) {
  return el("table", {}, el("thead", {}, el("tr", {}, headings.map(([text, kind]) => el("th", { scope: "col", class: kind || "" }, text)))), el("tbody", {}, rows));
}
const recentRow = (run) => el("tr", {},
  el("td", {}, `${run.conversation} / ${run.path}`, run.purpose && el("span", { class: "purpose" }, run.purpose)),
  el("td", {}, run.language), el("td", {}, pill(run.status === "completed" && run.exitCode ? "exit " + run.exitCode : run.status, run.status === "completed" && run.exitCode ? "warn" : undefined)),
  el("td", { class: "num" }, duration(run.durationMs)),
  el("td", {}, Object.entries(run.findings || {}).map(([rule, count]) => rule + " " + count).join(", ") || "–"),
  el("td", { class: "num" }, age(run.createdAt)));

function steering(flow) {
  if (flow.finishedAt || flow.status === "aborting") return null;
  const where = `the workflow on ${flow.conversation} / ${flow.path}`;
  const send = (action, done) => act("workflow", { tenant: flow.tenant, workflow: flow.id, action }, done);
  const holds = flow.status === "paused" || flow.status === "pausing";
  const [label, action, done] = holds ? ["Resume", "resume", "The workflow goes on."] : ["Pause", "pause", "The workflow pauses once its running tasks end."];
  return el("span", { class: "acts" },
    el("button", { type: "button", "data-key": "hold" + flow.id, "aria-label": label + " " + where, onclick: () => send(action, done) }, label),
    twice("abort" + flow.id, "Abort", "Abort it?", where, () => send("abort", "The workflow was aborted.")));
}
const flowRow = (flow) => el("tr", {},
  el("td", {}, `${flow.conversation} / ${flow.path}`, flow.purpose && el("span", { class: "purpose" }, flow.purpose)),
  el("td", {}, pill(flow.status), !flow.finishedAt && !flow.isDriven && el("span", { class: "purpose" }, "waits for a server")),
  el("td", { class: "num" }, flow.events.toLocaleString()),
  el("td", { class: "num" }, flow.finishedAt ? duration(Date.parse(flow.finishedAt) - Date.parse(flow.createdAt)) : "–"),
  el("td", { class: "num" }, age(flow.createdAt)),
  el("td", {}, steering(flow)));

function fill(id, children, empty) {
  $(id).replaceChildren(...(children.length ? children : [el("p", { class: "empty" }, empty)]));
}

function draw() {
  if (!state) return;
  const focused = document.activeElement?.dataset?.key;
  const typed = $("branch")?.value;
  const scrolled = [...document.querySelectorAll("pre[data-key]")]
    .map((pre) => [pre.dataset.key, pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 20 ? Infinity : pre.scrollTop]);
  const live = state.runs.filter((run) => run.lives);
  const cost = state.cost.lines.reduce((sum, line) => sum + Number(line.cost), 0);
  const total = (name) => state.cost.lines.reduce((sum, line) => sum + line[name], 0);
  $("version").textContent = state.version;
  $("checks").replaceChildren(...state.checks.map((check) => el("li", {}, pill(check.name + ": " + check.state, check.ok ? "good" : "bad"))));
  const numbers = [["Live contexts", state.contexts.length], ["Running now", live.length], ["Runs this month", total("executions").toLocaleString()],
    ["Sandbox time this month", total("sandboxMs") < 36e5 ? duration(total("sandboxMs")) : (total("sandboxMs") / 36e5).toFixed(1) + " h"], ["Cost this month", cost.toFixed(2) + " " + state.cost.currency]];
  $("numbers").replaceChildren(...numbers.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, String(value)))));
  drawTree();
  fill("live", live.map(job), "Nothing runs.");
  $("flows").hidden = !state.workflows.length;
  const flows = [...state.workflows].sort((a, b) => !!a.finishedAt - !!b.finishedAt).slice(0, 12).map(flowRow);
  fill("workflows", [table([["Where"], ["State"], ["Events", "num"], ["Took", "num"], ["Ago", "num"], ["Actions"]], flows)], "");
  const recent = state.runs.filter((run) => !run.lives).slice(0, 12).map(recentRow);
  fill("recent", recent.length ? [table([["Where"], ["Language"], ["End"], ["Took", "num"], ["Findings"], ["Ago", "num"]], recent)] : [], "No run yet.");
  const lines = [...state.cost.lines].sort((a, b) => b.sandboxMs - a.sandboxMs).map((line) => el("tr", {}, el("td", {}, line.tenant), el("td", { class: "num" }, line.executions.toLocaleString()),
    el("td", { class: "num" }, Math.ceil(line.sandboxMs / 1000).toLocaleString()), el("td", { class: "num" }, Number(line.cost).toFixed(4))));
  fill("cost", lines.length ? [table([["Tenant"], ["Runs", "num"], ["Sandbox seconds", "num"], [state.cost.currency, "num"]], lines)] : [], "Nothing was used.");
  const found = Object.entries(state.findings).sort((a, b) => b[1] - a[1]).slice(0, 8);
  const most = Math.max(1, ...found.map(([, count]) => count));
  fill("findings", found.length ? [el("ul", { class: "bars" }, found.map(([rule, count]) => el("li", {}, el("span", {}, rule), el("span", {}, String(count)),
    el("meter", { value: count, max: most, "aria-label": rule }))))] : [], "None in the latest runs.");
  fill("drift", state.tools.length ? [el("ul", {}, state.tools.map((tool) => el("li", {}, pill(tool.what, tool.blocked ? "bad" : "warn"), ` ${tool.server}.${tool.tool} for ${tool.tenant}`)))] : [], "None.");
  if (typed != null && $("branch")) $("branch").value = typed;
  // A tail that was read up to its end stays at its end.
  for (const pre of document.querySelectorAll("pre[data-key]")) {
    const top = scrolled.find(([id]) => id === pre.dataset.key)?.[1] ?? Infinity;
    pre.scrollTop = Math.min(top, pre.scrollHeight);
  }
  if (focused) document.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}

function show(signedIn) {
  $("signin").hidden = signedIn;
  $("board").hidden = !signedIn;
  $("signout").hidden = !key || !signedIn;
  if (!signedIn) $("key").focus();
}
function linked(text, kind) { const link = $("link"); if (link.textContent !== text) { link.textContent = text; link.className = "pill " + kind; } }

// One stream after the other: each ends after a minute, so that the key is looked at again.
async function follow() {
  const mine = ++sessions;
  while (mine === sessions) {
    try {
      const reply = await fetch("console/live", { headers: headers() });
      if (reply.status === 401 || reply.status === 403) {
        const answer = await reply.json().catch(() => ({}));
        $("refused").textContent = key ? answer.error?.message || "This key is not good." : "";
        sessionStorage.removeItem("key");
        key = "";
        linked("signed out", "");
        return show(false);
      }
      if (!reply.ok) throw new Error(String(reply.status));
      if (key) sessionStorage.setItem("key", key);
      const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let held = ""; ;) {
        const { value, done } = await reader.read();
        if (done || mine !== sessions) break;
        held += value;
        const events = held.split("\n\n");
        held = events.pop();
        for (const event of events) {
          const data = event.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart()).join("\n");
          if (!data) continue;
          state = JSON.parse(data);
          if ($("board").hidden) show(true);
          linked("live", "good");
          draw();
        }
      }
    } catch {
      if (mine !== sessions) return;
      linked("no connection", "bad");
      await new Promise((resolve) => setTimeout(resolve, 2000));
    }
  }
}

$("signin").addEventListener("submit", (event) => { event.preventDefault(); key = $("key").value.trim(); $("key").value = ""; $("refused").textContent = ""; follow(); });
$("signout").addEventListener("click", () => { sessions++; key = ""; state = null; sessionStorage.removeItem("key"); linked("signed out", ""); show(false); });
$("filter").addEventListener("input", draw);
$("theme").addEventListener("click", () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("theme", root.dataset.theme);
});
if (localStorage.getItem("theme")) root.dataset.theme = localStorage.getItem("theme");
setInterval(() => { if (state && !document.hidden) draw(); }, 5000);
follow();
