// Tools of other servers, as functions.
//
//   import { github } from "tools";
//   const commits = await github.list_commits({ repo: "octo/hello" });
//
// `Object.keys(github)` lists its tools, `String(github.list_commits)` says what one takes, `await search("what you need")`
// finds tools. A tool whose name is no identifier is `github["its-name"]`. A failed call throws `ToolError`.
'use strict';
const fs = require('fs'), net = require('net'), path = require('path'), { spawnSync } = require('child_process');
const PIECE = 3900, FLAGS = fs.constants.O_RDWR | fs.constants.O_NONBLOCK;

class ToolError extends Error {
  constructor(message, tool, kind = 'tool') {
    super(message);
    Object.assign(this, { name: 'ToolError', tool, kind });
  }
}

const GONE = 'the way to the tools is gone; run the code again';
const BROKE = 'the way to the tools broke while the call was under way; the call may have had effects: look before you call again';
let link = null;

// The pipes of this process to one relay.
class Link {
  constructor(home) {
    this.home = home;
    this.name = `n${process.pid}-${require('crypto').randomBytes(6).toString('hex')}`;
    this.pending = new Map();
    this.count = 0;
    this.rest = '';
    this.queue = Promise.resolve();
    try {
      this.relay = Number(fs.readFileSync(path.join(home, 'pid'), 'utf8'));
      const pipe = path.join(home, `c-${this.name}`);
      if (spawnSync('mkfifo', ['-m', '600', pipe]).status !== 0) throw new Error('mkfifo');
      this.out = fs.openSync(path.join(home, 'calls'), FLAGS);
      this.into = new net.Socket({ fd: fs.openSync(pipe, FLAGS), readable: true, writable: false });
    } catch {
      throw new ToolError(GONE, undefined, 'gone');
    }
    this.into.setEncoding('latin1');
    this.into.on('data', (text) => this.take(text));
    this.into.on('error', () => this.fail());
    this.into.unref();
  }

  fail() {
    for (const { reject, tool } of this.pending.values()) reject(new ToolError(BROKE, tool, 'gone'));
    this.pending.clear();
    if (link === this) link = null;
    this.rested();
  }

  rested() {
    if (this.pending.size) return;
    this.into.unref();
    clearInterval(this.watch);
    this.watch = null;
  }

  take(text) {
    const lines = (this.rest + text).split('\n');
    this.rest = lines.pop();
    for (const line of lines) {
      const at = line.indexOf(' '), call = Number(line.slice(0, at)), waiting = this.pending.get(call);
      if (!waiting) continue;
      waiting.parts.push(line.slice(at + 2));
      if (line[at + 1] !== '.') continue;
      this.pending.delete(call);
      this.rested();
      try { waiting.resolve(read(JSON.parse(waiting.parts.join('')), waiting.tool)); } catch (error) { waiting.reject(error); }
    }
  }

  // A line goes whole or not at all, so lines of several programs do not mix.
  async write(line) {
    for (;;) {
      try { fs.writeSync(this.out, line); return; } catch (error) { if (error.code !== 'EAGAIN') throw error; }
      await new Promise((resume) => setTimeout(resume, 1));
      this.check();
    }
  }

  check() {
    try { process.kill(this.relay, 0); fs.statSync(path.join(this.home, 'calls')); } catch {
      this.fail();
      throw new ToolError(GONE, undefined, 'gone');
    }
  }

  ask(secret, message, signal) {
    const call = ++this.count;
    const text = JSON.stringify(message).replace(/[\u0080-\uffff]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, '0')}`);
    const answer = new Promise((resolve, reject) => {
      this.pending.set(call, { resolve, reject, parts: [], tool: message.tool });
    });
    this.into.ref();
    this.watch ??= setInterval(() => { try { this.check(); } catch {} }, 1000);
    this.queue = this.queue.then(async () => {
      for (let at = 0; at < text.length; at += PIECE) {
        const mark = at + PIECE >= text.length ? '.' : '+';
        await this.write(`${secret} ${this.name} ${call} ${mark}${text.slice(at, at + PIECE)}\n`);
      }
    }).catch(() => {});
    if (signal) {
      const stop = () => {
        const waiting = this.pending.get(call);
        if (!waiting) return;
        this.pending.delete(call);
        this.rested();
        this.queue = this.queue.then(() => this.write(`${secret} ${this.name} ${call} x\n`)).catch(() => {});
        waiting.reject(signal.reason ?? new Error('aborted'));
      };
      if (signal.aborted) stop(); else signal.addEventListener('abort', stop, { once: true });
    }
    return answer;
  }
}

function read(answer, tool) {
  if (!answer.ok) throw new ToolError(answer.message ?? 'the call failed', tool, answer.kind);
  if (!('text' in answer)) return answer.value;
  if (/^[[{]/.test(answer.text)) try { return JSON.parse(answer.text); } catch {}
  return answer.text;
}

async function ask(message, options) {
  const [home, secret, version] = (process.env.PATHBOX_TOOLS ?? '').split('|');
  if (!version) throw new ToolError('no run with tools is under way; write `import ... from "tools"` in the code of the call that needs them', message.tool, 'refused');
  if (!link || link.home !== home) link = new Link(home);
  return link.ask(secret, message, options?.signal);
}

const define = (object, name, value, enumerable = true) =>
  Object.defineProperty(object, name, { value, enumerable, configurable: true, writable: false });

function makeTool(server, tool) {
  const name = `${server}.${tool.name}`;
  const call = (args = {}, options = undefined) => ask({ tool: name, arguments: args }, options);
  define(call, 'name', tool.identifier, false);
  define(call, 'doc', `${tool.typescript}\n\n${tool.doc}`, false);
  define(call, 'toString', () => call.doc, false);
  define(call, Symbol.for('nodejs.util.inspect.custom'), () => call.doc, false);
  return call;
}

const servers = Object.create(null);
let loaded = null;

function begin() {
  const version = (process.env.PATHBOX_TOOLS ?? '').split('|')[2];
  if (version === loaded) return;
  const catalog = JSON.parse(fs.readFileSync(path.join(__dirname, 'catalog.json'), 'utf8'));
  for (const entry of catalog.servers) {
    const server = servers[entry.module] ??= Object.create(null);
    for (const name of Object.getOwnPropertyNames(server)) delete server[name];
    for (const tool of entry.tools) {
      const made = makeTool(entry.server, tool);
      define(server, tool.identifier, made);
      if (tool.name !== tool.identifier) define(server, tool.name, made, false);
    }
  }
  loaded = version;
}

begin();
exports.ToolError = ToolError;
exports.servers = servers;
exports.begin = begin;
exports.search = (query, limit = 5) => ask({ search: query, limit });
exports.call = (tool, args = {}, options = undefined) => ask({ tool, arguments: args }, options);
