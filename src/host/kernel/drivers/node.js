// The JavaScript driver, for Node.js 18 and later, without packages.
//
// Frames and marks are those of python.py. Cells run through V8's own REPL mode (`Runtime.evaluate` with
// `replMode`) by an inspector session inside this process: top-level `await` and declaring a name again work as in a
// browser's console, with the source as the user wrote it. Nothing here protects anybody; the jail does.
//
// Two surprises. Output is written with blocking calls: Node's own streams would keep megabytes in memory when
// the reader is slow, and print them cells later. And what a cell leaves running (timers, servers) goes on between cells.
'use strict';
const fs = require('fs'), inspector = require('inspector'), Module = require('module'), net = require('net');
const path = require('path'), url = require('url'), util = require('util'), vm = require('vm');

const CONTROL = 3, TEXT_MAX = 8 << 20;
const reallyExit = process.reallyExit.bind(process), stringify = JSON.stringify, inspect = util.inspect;
const writeSync = fs.writeSync, pause = new Int32Array(new SharedArrayBuffer(4));

// ---------------------------------------------------------------- frames and output

function writeAll(fd, bytes) {
  for (let at = 0; at < bytes.length; ) {
    try {
      at += writeSync(fd, bytes, at, Math.min(bytes.length - at, 65536));
    } catch (error) {
      if (error.code !== 'EAGAIN') throw error;
      Atomics.wait(pause, 0, 0, 1);
    }
  }
}

for (const [stream, fd] of [[process.stdout, 1], [process.stderr, 2]]) {
  const write = (chunk, encoding, callback) => {
    const bytes = typeof chunk === 'string'
      ? Buffer.from(chunk, typeof encoding === 'string' ? encoding : 'utf8')
      : Buffer.from(chunk.buffer, chunk.byteOffset, chunk.byteLength);
    writeAll(fd, bytes);
    const done = typeof encoding === 'function' ? encoding : callback;
    if (typeof done === 'function') queueMicrotask(done);
    return true;
  };
  Object.defineProperty(stream, 'write', { value: write, writable: true, configurable: true });
}

let hello = null, cell = null, count = 0;

// Half of a surrogate pair is no character and no JSON.
const wellFormed = (text) => (text.isWellFormed ? text.toWellFormed() : Buffer.from(text, 'utf8').toString('utf8'));

function send(kind, members) {
  let text = stringify({ ...members, t: kind, id: cell?.id, k: cell?.frame });
  if (hello && text.length > hello.frame_max / 3) {
    const size = Buffer.byteLength(text);
    if (size > hello.frame_max) {
      return send(kind, { main: members.main, data: { 'text/plain': `[${size} bytes left out]` } });
    }
  }
  const data = Buffer.from(text), head = Buffer.alloc(4);
  head.writeUInt32LE(data.length);
  if (cell) {
    const mark = Buffer.from(`\x1e${cell.id}:${cell.frame.toString(16).padStart(8, '0')}\x1e`);
    cell.frame += 1;
    for (const fd of [1, 2]) {
      try { writeAll(fd, mark); } catch {} // the cell closed it
    }
  }
  writeAll(CONTROL, Buffer.concat([head, data]));
}

// ---------------------------------------------------------------- what values look like

const clip = (text) => {
  text = wellFormed(text);
  return text.length <= TEXT_MAX ? text : `${text.slice(0, TEXT_MAX)}… [${text.length - TEXT_MAX} more characters]`;
};

const METHODS = [['toHTML', 'text/html'], ['_toHtml', 'text/html'], ['_toMime', null], ['toSVG', 'image/svg+xml'],
  ['_toSvg', 'image/svg+xml'], ['toPNG', 'image/png'], ['_toPng', 'image/png'], ['toMarkdown', 'text/markdown']];

function forms(value) {
  const data = {};
  try {
    data['text/plain'] = clip(inspect(value));
  } catch (error) {
    data['text/plain'] = `<inspect failed: ${error?.message}>`;
  }
  if (value === null || typeof value !== 'object') return data;
  const add = (mime, made) => {
    if (made instanceof Uint8Array) made = Buffer.from(made).toString('base64');
    if (made !== undefined && made !== null) data[mime] = typeof made === 'string' ? clip(made) : made;
  };
  for (const [name, mime] of METHODS) {
    try {
      if (typeof value[name] !== 'function') continue;
      if (mime) add(mime, value[name]());
      else for (const [key, made] of Object.entries(value[name]())) add(key, made);
    } catch {} // a form less
  }
  try {
    const show = value[Symbol.for('Jupyter.display')];
    if (typeof show === 'function') for (const [key, made] of Object.entries(show.call(value))) add(key, made);
  } catch {}
  return data;
}

function result(data, main) {
  cell.results += 1;
  if (cell.results > hello.results && !main) cell.dropped += 1;
  else send('result', { main, data });
}

const display = Object.assign((value) => { if (cell) result(forms(value), false); }, {
  html: (text) => { if (cell) result({ 'text/html': clip(String(text)) }, false); },
  markdown: (text) => { if (cell) result({ 'text/markdown': clip(String(text)) }, false); },
  svg: (text) => { if (cell) result({ 'image/svg+xml': clip(String(text)) }, false); },
  json: (value) => { if (cell) result({ 'application/json': value }, false); },
  png: (data) => { if (cell) result({ 'image/png': typeof data === 'string' ? data : Buffer.from(data).toString('base64') }, false); },
});

// ---------------------------------------------------------------- what a cell finds

globalThis.require = Module.createRequire(path.join(process.cwd(), 'cell.js'));
globalThis.module = { exports: {} };
globalThis.exports = globalThis.module.exports;
const hidden = (name, value) => Object.defineProperty(globalThis, name, { value, configurable: true, writable: true });
hidden('display', display);

// `import()` has no referrer in code that came through the inspector, so cells call this instead. Relative paths start
// at the working directory, packages are those that `require` finds.
hidden('__pathbox_import', async (name, options) => {
  name = String(name);
  let target = name;
  if (/^\.{0,2}\//.test(name)) target = url.pathToFileURL(path.resolve(name)).href;
  else if (!/^[a-z]+:/.test(name) && !Module.builtinModules.includes(name)) {
    target = url.pathToFileURL(Module.createRequire(path.join(process.cwd(), 'cell.js')).resolve(name)).href;
  }
  return options === undefined ? import(target) : import(target, options);
});

class ExitError extends Error {
  constructor(code) {
    super(`process.exit(${code ?? ''}) was called; the context and its variables live on`);
    this.name = 'ExitError';
  }
}
process.exit = (code) => { throw new ExitError(code); };
process.reallyExit = process.exit;
process.abort = () => process.kill(process.pid, 'SIGABRT');

const late = (what, error) => {
  if (error instanceof ExitError) return;
  process.stderr.write(`${what} ${inspect(error)}\n`);
};
process.on('uncaughtException', (error) => late('Uncaught', error));
process.on('unhandledRejection', (error) => late('Unhandled rejection', error));

// ---------------------------------------------------------------- running a cell

const session = new inspector.Session();
session.connect();

// The inspector gives a handle of an object; a function that it calls on the object gives the object.
let taken, takeId = null, go = null;
Object.defineProperty(globalThis, Symbol.for('pathbox.take'), { value: (value) => { taken = value; } });
// What `runInThisContext` calls, since only what it runs can be broken off by SIGINT.
Object.defineProperty(globalThis, Symbol.for('pathbox.go'), { value: () => go() });

function unwrap(remote, then) {
  if (!remote.objectId) {
    return then(remote.unserializableValue !== undefined ? (0, eval)(remote.unserializableValue) : remote.value);
  }
  taken = undefined;
  session.post('Runtime.callFunctionOn', {
    objectId: remote.objectId,
    functionDeclaration: 'function (take) { take(this); }',
    arguments: [{ objectId: takeId }],
  }, () => { const value = taken; taken = undefined; then(value); });
}

// Where the user's source has a place that the code that ran has.
function place(line) {
  const mapped = cell?.lines?.length ? cell.lines[Math.min(line, cell.lines.length) - 1] : line;
  return mapped ?? line;
}

function describe(value, details, source) {
  let name = 'Error', message = '', stack = '';
  try {
    if (value !== null && typeof value === 'object' && (value instanceof Error || typeof value.stack === 'string')) {
      name = String(value.name || value.constructor?.name || 'Error');
      message = String(value.message);
      stack = String(value.stack);
    } else {
      message = typeof value === 'string' ? value : inspect(value);
      stack = `Uncaught ${inspect(value)}`;
    }
  } catch (error) {
    message = '<no description>';
  }
  // What is below the cell is ours.
  const lines = stack.split('\n');
  const ours = lines.findIndex((line) => /\((?:pathbox\.js|node:inspector|evalmachine)|at (?:pathbox\.js|evalmachine)/.test(line));
  stack = (ours > 0 ? lines.slice(0, ours) : lines).join('\n');
  const file = cellName(count);
  const mapped = cell?.lines?.length > 0;
  const found = new RegExp(`${file}:(\\d+):(\\d+)`).exec(stack);
  const at = found ? [+found[1], +found[2]]
    : name === 'SyntaxError' && details ? [details.lineNumber + 1, details.columnNumber + 1] : null;
  if (mapped) stack = stack.replaceAll(new RegExp(`${file}:(\\d+):\\d+`, 'g'), (_, line) => `${file}:${place(+line)}`);
  const line = at && source.split('\n')[place(at[0]) - 1];
  if (typeof line === 'string') {
    const caret = mapped ? '' : `${' '.repeat(Math.min(at[1] - 1, line.length))}^\n`;
    stack = `${file}:${place(at[0])}\n${line.slice(0, 1000)}\n${caret}\n${stack}`;
  }
  let text = message;
  try { text = `${value?.code} ${value?.signal} ${message}`; } catch {} // a getter of the cell's
  const stop = /\b(ENOSPC|EDQUOT|EFBIG|SIGXFSZ)\b/.test(text) ? 'disk_full'
    : /spawn.*EAGAIN|ERR_WORKER_INIT_FAILED/.test(text) ? 'too_many_processes'
    : /Array buffer allocation failed|ERR_WORKER_OUT_OF_MEMORY/.test(text) ? 'oom' : null;
  return { name: clip(name), value: clip(message), traceback: clip(stack), stop };
}

const cellName = (number) => `cell-${number}.${cell?.lines?.length ? 'ts' : 'js'}`;

const INTERRUPTED = { name: 'KeyboardInterrupt', value: 'the execution was interrupted', traceback: '' };

function run(request) {
  count = request.n;
  const mine = cell = { id: request.id, frame: 0, results: 0, dropped: 0, finish: null, lines: request.lines };
  const saved = {};
  send('begin', {});
  Object.assign(process.env, request.base_env);
  for (const key of Object.keys(request.env)) {
    saved[key] = process.env[key];
    process.env[key] = request.env[key];
  }
  mine.finish = (error) => {
    if (cell !== mine) return;
    for (const key of Object.keys(saved)) {
      if (saved[key] === undefined) delete process.env[key];
      else process.env[key] = saved[key];
    }
    if (error) send('error', error);
    send('done', { dropped: mine.dropped });
    cell = null;
    setImmediate(next);
  };
  const settled = (failed, answer) => {
    if (cell !== mine) return;
    if (failed) return mine.finish({ name: 'DriverError', value: String(failed.message), traceback: '' });
    const details = answer.exceptionDetails;
    if (details) {
      return unwrap(details.exception ?? { value: details.text }, (value) => {
        if (mine === cell) mine.finish(describe(value, details, request.source ?? request.code));
      });
    }
    if (answer.result.type === 'undefined') return mine.finish();
    unwrap(answer.result, (value) => {
      if (mine !== cell) return;
      hidden('_', value);
      result(forms(value), true);
      mine.finish();
    });
  };
  go = () => session.post('Runtime.evaluate', {
    expression: `${request.code}\n//# sourceURL=${cellName(count)}`,
    replMode: true, awaitPromise: true, allowUnsafeEvalBlockedByCSP: true,
  }, settled);
  guarded(() => vm.runInThisContext('globalThis[Symbol.for("pathbox.go")]()', { breakOnSigint: true, filename: 'evalmachine' }), mine);
}

// Runs something that SIGINT may break off.
function guarded(step, mine) {
  try {
    step();
  } catch (error) {
    if (error?.code === 'ERR_SCRIPT_EXECUTION_INTERRUPTED') mine.finish(INTERRUPTED);
    else mine.finish(describe(error, null, ''));
  }
}

// When nothing runs but the cell awaits.
process.on('SIGINT', () => { if (cell) cell.finish(INTERRUPTED); });

// ---------------------------------------------------------------- the control socket

const socket = new net.Socket({ fd: CONTROL, readable: true, writable: false });
const waiting = [];
let buffered = [], bufferedLength = 0;

socket.on('data', (data) => {
  buffered.push(data);
  bufferedLength += data.length;
  for (;;) {
    if (bufferedLength < 4) return;
    if (buffered.length > 1 && (buffered[0].length < 4 || bufferedLength >= 4 + buffered[0].readUInt32LE(0))) {
      buffered = [Buffer.concat(buffered)];
    }
    const length = buffered[0].readUInt32LE(0);
    if (bufferedLength < 4 + length) return;
    waiting.push(buffered[0].subarray(4, 4 + length).toString());
    buffered = [buffered[0].subarray(4 + length)];
    bufferedLength -= 4 + length;
    setImmediate(next);
  }
});
socket.on('end', () => reallyExit(0));
socket.on('error', () => reallyExit(0));

function next() {
  if (cell || waiting.length === 0) return;
  const request = JSON.parse(waiting.shift());
  if (hello) return run(request);
  hello = request;
  try { process.chdir(hello.cwd); } catch {} // one that does not exist is no reason to refuse
  globalThis.require = Module.createRequire(path.join(process.cwd(), 'cell.js'));
  // The first cell shall not pay for what every cell needs.
  session.post('Runtime.evaluate', { expression: 'globalThis[Symbol.for("pathbox.take")]' },
    (error, answer) => {
      takeId = answer.result.objectId;
      session.post('Runtime.evaluate', { expression: '({ a: 1 })', replMode: true, awaitPromise: true }, (failed, warm) => {
        unwrap(warm.result, (value) => { forms(value); send('ready', { version: process.versions.node }); });
      });
    });
  try { vm.runInThisContext('0', { breakOnSigint: true }); } catch {}
}
