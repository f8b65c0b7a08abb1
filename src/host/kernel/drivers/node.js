// The JavaScript driver, for Node.js 18 and later, without packages.
//
// Frames and marks are those of python.py. Cells run through V8's own REPL mode (`Runtime.evaluate` with
// `replMode`) by an inspector session inside this process: top-level `await` and declaring a name again work as in a
// browser's console, with the source as the user wrote it. Nothing here protects anybody; the jail does.
//
// Two surprises. Output is written with blocking calls: Node's own streams would keep megabytes in memory when
// the reader is slow, and print them cells later. And a cell is over when its work is: as at the end of a script, what it
// has begun (timers, requests, promises that wait for them) is awaited; only what lasts by its nature goes on between cells.
'use strict';
const fs = require('fs'), inspector = require('inspector'), Module = require('module'), net = require('net');
const path = require('path'), url = require('url'), util = require('util'), vm = require('vm');

const Events = require('events'), Immediate = setImmediate(() => {}).constructor;
const Timer = (() => { const timer = setTimeout(() => {}); clearTimeout(timer); return timer.constructor; })();

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
    if (cell?.exit !== undefined) return true; // the program has ended
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

// How much of a value is shown: all of it while that is not too much, else as many levels as fit.
const NODES_MAX = 20000, LIST_MAX = 1000;

function extent(value) {
  if (value instanceof Events) return {}; // what it holds is Node.js's business
  if (value instanceof Timer || value instanceof Immediate) return { depth: 0 };
  const seen = new Set();
  let level = [value], depth = 0, nodes = 0;
  for (; level.length; depth += 1) {
    const below = [];
    for (const one of level) {
      if (one === null || typeof one !== 'object' || seen.has(one) || util.types.isProxy(one)) continue;
      seen.add(one);
      const add = (child) => { nodes += typeof child === 'string' ? 1 + (child.length >> 5) : 1; below.push(child); };
      if (ArrayBuffer.isView(one)) nodes += one.length ?? one.byteLength;
      else if (one instanceof Map) for (const [key, held] of one) { add(key); add(held); if (nodes > NODES_MAX) break; }
      else if (one instanceof Set) for (const held of one) { add(held); if (nodes > NODES_MAX) break; }
      else {
        if (Array.isArray(one) && one.length > NODES_MAX) nodes += one.length;
        else for (const key of Object.keys(one)) { add(Object.getOwnPropertyDescriptor(one, key)?.value); if (nodes > NODES_MAX) break; }
      }
      if (nodes > NODES_MAX) return { depth: Math.max(2, depth - 1), maxArrayLength: LIST_MAX, maxStringLength: 100000 };
    }
    level = below;
  }
  return { depth: Infinity, maxArrayLength: Infinity, maxStringLength: Infinity };
}

function textOf(value) {
  if (typeof value === 'string') return inspect(value, { breakLength: Infinity, maxStringLength: Infinity });
  const text = inspect(value, extent(value));
  return text.length <= 1 << 20 ? text : inspect(value);
}

// Whether JSON holds exactly this: nothing that it would drop, round or turn into something else.
function isExact(value, depth = 0) {
  switch (typeof value) {
    case 'boolean': return true;
    case 'number': return Number.isFinite(value) && !Object.is(value, -0);
    case 'string': return value.isWellFormed ? value.isWellFormed() : wellFormed(value) === value;
    case 'object': break;
    default: return false;
  }
  if (value === null) return true;
  if (depth > 100 || util.types.isProxy(value) || value.toJSON !== undefined) return false;
  const keys = Reflect.ownKeys(value), proto = Object.getPrototypeOf(value);
  if (Array.isArray(value)) {
    if (proto !== Array.prototype || keys.length !== value.length + 1) return false;
    for (const item of value) if (!isExact(item, depth + 1)) return false;
    return true;
  }
  if (proto !== Object.prototype && proto !== null) return false;
  return keys.every((key) => {
    const held = Object.getOwnPropertyDescriptor(value, key);
    return typeof key === 'string' && held.enumerable && 'value' in held && isExact(key) && isExact(held.value, depth + 1);
  });
}

function forms(value) {
  const data = {};
  try {
    data['text/plain'] = clip(textOf(value));
  } catch (error) {
    data['text/plain'] = `<inspect failed: ${error?.message}>`;
  }
  try {
    const shown = /^(['"]).*\1$/s.test(data['text/plain']) && data['text/plain'].slice(1, -1) === value;
    if ((typeof value === 'string' || (typeof value === 'object' && value !== null)) && !shown && isExact(value)
      && (typeof value !== 'string' || value.length < TEXT_MAX / 6)) data['application/json'] = value;
  } catch {} // a form less
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
  json: (value) => { if (cell) result({ 'text/plain': clip(textOf(value)), ...(isExact(value) && { 'application/json': value }) }, false); },
  png: (data) => { if (cell) result({ 'image/png': typeof data === 'string' ? data : Buffer.from(data).toString('base64') }, false); },
});

// ---------------------------------------------------------------- what a cell finds

globalThis.require = Module.createRequire(path.join(process.cwd(), 'cell.js'));
globalThis.module = { exports: {} };
globalThis.exports = globalThis.module.exports;
const hidden = (name, value) => Object.defineProperty(globalThis, name, { value, configurable: true, writable: true });
hidden('display', display);

const home = () => path.join(process.cwd(), 'cell.js');
hidden('__pathbox_meta', undefined);
Object.defineProperty(globalThis, '__pathbox_meta', {
  configurable: true,
  get: () => ({
    url: url.pathToFileURL(path.resolve(cellName(count))).href, filename: path.resolve(cellName(count)), dirname: process.cwd(),
    main: true, resolve: (name) => locate(String(name)),
  }),
});

// `import()` has no referrer in code that came through the inspector, so cells call this instead. Relative paths start
// at the working directory, packages are those that `require` finds.
hidden('__pathbox_import', async (name, options) => {
  let target = String(name);
  try {
    target = locate(target);
    if (process.env.NODE_PATH) hook();
  } catch (error) {
    // A package that has something for `import` only.
    if (!hook()) throw error;
  }
  if (target.startsWith('file:')) {
    const file = url.fileURLToPath(target);
    if (TYPED.test(file)) target = await typed(file);
    else target += changed(file);
  }
  return options === undefined ? import(target) : import(target, options);
});

function locate(name) {
  if (/^\.{0,2}\//.test(name)) return url.pathToFileURL(withEnding(path.resolve(name))).href;
  if (/^[a-z]+:/.test(name) || Module.builtinModules.includes(name)) return name;
  return url.pathToFileURL(Module.createRequire(home()).resolve(name)).href;
}

// A module that was written anew since it was imported is another one; Node.js would give the old one.
const imported = new Map();
function changed(file) {
  let time = 0;
  try { time = fs.statSync(file).mtimeMs; } catch {}
  if (!imported.has(file) || file.includes('/node_modules/')) imported.set(file, time);
  return imported.get(file) === time ? '' : `?changed=${time}`;
}

// ---------------------------------------------------------------- modules with types, and what JSX and decorators become

const TYPED = /\.(?:[mc]?ts|[tj]sx)$/;

// The file that an import without the right ending means, as TypeScript resolves it.
function withEnding(file) {
  const isFile = (name) => { try { return fs.statSync(name).isFile(); } catch { return false; } };
  const names = [file, ...['.ts', '.tsx', '.mts', '.js', '.mjs', '.jsx', '/index.ts', '/index.js'].map((end) => file + end)];
  if (/\.[mc]?jsx?$/.test(file)) names.push(file.replace(/\.([mc]?)js(x?)$/, '.$1ts$2'));
  return names.find(isFile) ?? file;
}

let asked = 0, answers = new Map(), loader = null;

// The host takes types away: the file and all that it imports, before Node.js reads the first of them.
async function typed(file, seen = new Map()) {
  if (seen.has(file)) return seen.get(file);
  seen.set(file, '');
  const source = fs.readFileSync(file, 'utf8');
  const answer = await new Promise((done) => {
    asked += 1;
    answers.set(asked, done);
    socket.ref();
    send('source', { value: source, name: path.basename(file), n: asked });
  });
  if (answer.Err) {
    const { message, line } = answer.Err;
    throw new SyntaxError(`${message} (${file}:${line})`);
  }
  // A file is another one when it or what it imports has changed.
  const version = require('crypto').createHash('sha1').update(source);
  for (const name of answer.Ok.imports ?? []) {
    if (!/^\.{1,2}\//.test(name)) continue;
    const next = withEnding(path.resolve(path.dirname(file), name));
    if (TYPED.test(next)) version.update(await typed(next, seen));
  }
  const made = { url: `${url.pathToFileURL(file).href}?v=${version.digest('hex').slice(0, 12)}`, code: answer.Ok.code };
  seen.set(file, made.url);
  if (!hook()) throw new Error('importing TypeScript files needs Node.js 20.6 or later');
  loader.postMessage([file, made]);
  return made.url;
}

// Makes `import` find what the host made of a file, and packages where `require` finds them. False where Node.js cannot.
function hook() {
  if (loader) return true;
  if (!Module.register) return false;
  const { port1, port2 } = new MessageChannel();
  loader = port1;
  loader.unref();
  const dirs = (process.env.NODE_PATH ?? '').split(path.delimiter).filter(Boolean);
  const roots = [home(), ...dirs.map((dir) => path.join(path.dirname(dir), 'x.js'))].map((file) => url.pathToFileURL(file).href);
  Module.register(`data:text/javascript,${encodeURIComponent(LOADER)}`, { data: { port: port2, roots }, transferList: [port2] });
  return true;
}

const LOADER = `import { receiveMessageOnPort } from 'node:worker_threads';
import { fileURLToPath } from 'node:url';
import fs from 'node:fs';
let port, roots = [];
const known = new Map();
const read = () => { for (let m; (m = receiveMessageOnPort(port)); ) known.set(m.message[0], m.message[1]); };
const withEnding = ${withEnding};
export function initialize(data) { ({ port, roots } = data); }
export async function resolve(name, context, next) {
  read();
  if (/^\\.{1,2}\\//.test(name) && context.parentURL?.startsWith('file:')) {
    const file = withEnding(fileURLToPath(new URL(name, context.parentURL)));
    if (known.has(file)) return { url: known.get(file).url, format: 'module', shortCircuit: true };
  }
  try {
    return await next(name, context);
  } catch (error) {
    if (/^(?:[./]|[a-z]+:)/.test(name)) throw error;
    for (const parentURL of roots) {
      try { return await next(name, { ...context, parentURL }); } catch {}
    }
    throw error;
  }
}
export async function load(url, context, next) {
  read();
  if (url.startsWith('file:')) {
    const made = known.get(fileURLToPath(url.split('?')[0]));
    if (made && url.includes('?v=')) return { format: 'module', source: made.code, shortCircuit: true };
  }
  return next(url, context);
}
`;

// What `<a b={1}>c</a>` becomes: React's elements where it is installed, else plain objects that say the same.
let react;
const jsxOf = () => {
  if (react === undefined) {
    try { react = Module.createRequire(home())('react'); } catch { react = null; }
  }
  return react;
};
hidden('__pathbox_jsx', (type, props, ...children) => {
  const made = jsxOf();
  if (made) return made.createElement(type === fragment ? made.Fragment : type, props, ...children);
  return { type: type === fragment ? '' : type, props: { ...props, ...(children.length && { children: children.length === 1 ? children[0] : children }) } };
});
const fragment = Symbol.for('pathbox.fragment');
hidden('__pathbox_fragment', fragment);

// Decorators are compiled in TypeScript's older form. One that is written for the standard form, with a context as its
// second parameter, is called in that.
const isStandard = (decorator) => {
  const head = /^(?:async\s+)?(?:function\b)?[^(]*\(([^)]*)\)|^\(?([^)=]*)\)?\s*=>/.exec(Function.prototype.toString.call(decorator));
  const second = (head?.[1] ?? head?.[2] ?? '').split(',')[1]?.trim() ?? '';
  return /^_?(?:context|ctx)\b|^\{.*\b(?:name|kind|addInitializer)\b/.test(second);
};
function decorate(decorators, target, key, description) {
  const isClass = key === undefined;
  const own = isClass ? target : description === null ? Object.getOwnPropertyDescriptor(target, key) : description;
  let made = own;
  for (const decorator of [...decorators].reverse()) {
    if (isStandard(decorator)) {
      const kind = isClass ? 'class' : !own ? 'field' : own.get ? 'getter' : own.set ? 'setter' : 'method';
      const later = [];
      const context = { kind, name: isClass ? target.name : key, static: typeof target === 'function' && !isClass, private: false,
        access: { get: (of) => of[key], has: (of) => key in of }, addInitializer: (run) => later.push(run), metadata: {} };
      const part = { getter: 'get', setter: 'set', method: 'value' }[kind];
      const given = isClass ? made : part && made[part];
      const changed = decorator(given, context);
      if (changed !== undefined) made = isClass ? changed : part ? { ...made, [part]: changed } : made;
      for (const run of later) run.call(isClass ? made : target);
    } else {
      const changed = isClass ? decorator(made) : decorator(target, key, made);
      if (changed !== undefined && (isClass || made !== undefined)) made = changed;
    }
  }
  if (!isClass && made) Object.defineProperty(target, key, made);
  return made;
}
hidden('babelHelpers', {
  decorate, decorateParam: (index, decorator) => (target, key) => decorator(target, key, index),
  decorateMetadata: (key, value) => Reflect.metadata ? Reflect.metadata(key, value) : () => {},
  defineProperty: (target, key, value) => Object.defineProperty(target, key, { value, enumerable: true, configurable: true, writable: true }) && target,
});

// ---------------------------------------------------------------- how a program ends

class ExitError extends Error {
  constructor(code) {
    super(`process.exit(${code ?? ''}) was called; the context and its variables live on`);
    this.name = 'ExitError';
  }
}
process.exit = (code) => {
  const mine = cell;
  if (mine) {
    mine.exit ??= code ?? process.exitCode ?? 0;
    setImmediate(() => mine.finish());
  }
  throw new ExitError(code);
};
process.reallyExit = process.exit;
process.abort = () => process.kill(process.pid, 'SIGABRT');

// An error that nothing catches ends a program; here it ends the cell, once its own code has come to its end.
const late = (what, error) => {
  if (cell && cell.exit !== undefined) return cell.finish();
  if (error instanceof ExitError) return;
  if (!cell) return void process.stderr.write(`${what} ${inspect(error)}\n`);
  cell.failure ??= describe(error, null, cell.source);
  if (cell.settled) cell.finish();
};
process.on('uncaughtException', (error) => late('Uncaught', error));
process.on('unhandledRejection', (error) => late('Unhandled rejection', error));

// ---------------------------------------------------------------- work that goes on

const note = (text) => writeAll(2, Buffer.from(`note: ${text}\n`));

const intervals = new Set();
for (const holder of [globalThis, require('timers')]) {
  const make = holder.setInterval;
  holder.setInterval = Object.assign(function setInterval(...given) {
    const timer = make.apply(this, given);
    intervals.add(timer);
    return timer;
  }, make);
}

// Ways to wait for something that has no end of its own, in words.
const LASTING = { TCPServerWrap: 'server', PipeServerWrap: 'server', UDPWrap: 'socket', FSEventWrap: 'watcher',
  StatWatcher: 'watcher', MessagePort: 'worker', SignalWrap: 'signal handler' };
const INTERVAL_WAIT = 5000, CONNECTION_WAIT = 1000;
let spokenOf = {}, own = null; // resources that are the driver's: the two outputs

// What keeps Node.js from ending: how much of it is work that will be done, and what only lasts.
function pending(since) {
  for (const timer of intervals) if (timer._destroyed) intervals.delete(timer);
  const names = process.getActiveResourcesInfo(), ours = [...own], age = Date.now() - since, lasting = {};
  const hasServer = names.includes('TCPServerWrap') || names.includes('PipeServerWrap');
  let ticking = age > INTERVAL_WAIT ? [...intervals].filter((timer) => timer.hasRef()).length : 0, work = 0;
  const last = (what) => { lasting[what] = (lasting[what] ?? 0) + 1; };
  for (const name of names) {
    if (ours.includes(name)) ours.splice(ours.indexOf(name), 1);
    else if (LASTING[name]) last(LASTING[name]);
    else if (name === 'Timeout' && ticking > 0) { ticking -= 1; last('interval'); }
    else if (name === 'TCPSocketWrap' && hasServer && age > CONNECTION_WAIT) last('connection');
    else work += 1;
  }
  return { work, lasting };
}

// Waits for the end of a cell's work.
function drain(mine) {
  const since = Date.now();
  const check = () => {
    if (cell !== mine) return;
    const { work, lasting } = pending(since);
    if (work > 0) return void setTimeout(check, 10).unref();
    const left = Object.entries(lasting).filter(([what, many]) => what !== 'connection' && many > (spokenOf[what] ?? 0));
    spokenOf = lasting;
    if (left.length) {
      note(`still running after this cell: ${left.map(([what, many]) => (many === 1 ? `1 ${what}` : `${many} ${what}s`)).join(', ')}`);
    }
    mine.finish();
  };
  setImmediate(check);
}

// Node.js would end now: nothing that was begun is left.
process.on('beforeExit', () => {
  const mine = cell;
  if (!mine) return void socket.ref();
  if (mine.value) mine.value();
  else if (!mine.settled) {
    mine.finish(mine.failure ?? { name: 'Error', value: 'the cell awaits a promise that nothing is left to settle', traceback: '' });
  } else mine.finish();
});

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
    functionDeclaration: 'function (take) { "use strict"; take(this); }', // a symbol stays one
    arguments: [{ objectId: takeId }],
  }, () => { const value = taken; taken = undefined; then(value); });
}

// Stacks end with the cell: what called it is the driver's.
Object.defineProperty(Error, 'prepareStackTrace', { configurable: true, writable: true, value: (error, frames) => {
  const files = frames.map((frame) => frame.getScriptNameOrSourceURL());
  const inside = files.findLastIndex((file) => /^cell-\d+\.[jt]s$/.test(file));
  const ours = files.findIndex((file, at) => at > inside && (file === 'pathbox.js' || file === 'node:inspector'));
  let head = '<error>';
  try { head = Error.prototype.toString.call(error); } catch {} // a getter of the cell's
  return [head, ...(ours < 0 ? frames : frames.slice(0, ours)).map((frame) => `    at ${frame}`)].join('\n');
} });

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
      stack = value instanceof Error ? inspect(value) : String(value.stack); // with its cause, its parts and its own fields
    } else {
      message = typeof value === 'string' ? value : inspect(value);
      stack = `Uncaught ${inspect(value)}`;
    }
  } catch (error) {
    message = '<no description>';
  }
  stack = stack.split('\n').filter((line) => !/^ +at .*\(?node:internal\//.test(line)).join('\n');
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
  const mine = cell = {
    id: request.id, frame: 0, results: 0, dropped: 0, finish: null, lines: request.lines, source: request.source ?? request.code,
    settled: false, failure: null, exit: undefined, value: null,
  };
  const saved = {};
  send('begin', {});
  Object.assign(process.env, request.base_env);
  for (const key of Object.keys(request.env)) {
    saved[key] = process.env[key];
    process.env[key] = request.env[key];
  }
  socket.unref(); // so that Node.js tells when nothing but it is left
  own ??= process.getActiveResourcesInfo();
  mine.finish = (error) => {
    if (cell !== mine) return;
    for (const key of Object.keys(saved)) {
      if (saved[key] === undefined) delete process.env[key];
      else process.env[key] = saved[key];
    }
    const failure = error ?? (mine.exit === undefined ? mine.failure : null);
    if (failure) send('error', failure);
    const status = failure ? 0 : mine.exit ?? process.exitCode ?? 0;
    process.exitCode = undefined;
    send('done', { dropped: mine.dropped, ...(Number(status) !== 0 && { value: String(status) }) });
    cell = null;
    socket.ref();
    soon();
  };
  const shown = (value) => {
    if (cell !== mine) return;
    mine.value = null;
    mine.settled = true;
    if (value !== undefined) {
      hidden('_', value);
      result(forms(value), true);
    }
    if (mine.failure || mine.exit !== undefined) mine.finish();
    else drain(mine);
  };
  const failed = (value, details) => {
    if (cell !== mine) return;
    if (mine.exit !== undefined) mine.finish();
    else mine.finish(describe(value, details, mine.source));
  };
  const settled = (broken, answer) => {
    if (cell !== mine) return;
    if (broken) return mine.finish({ name: 'DriverError', value: String(broken.message), traceback: '' });
    const details = answer.exceptionDetails;
    if (details) return unwrap(details.exception ?? { value: details.text }, (value) => failed(value, details));
    if (answer.result.type === 'undefined') return shown(undefined);
    unwrap(answer.result, (value) => {
      if (!util.types.isPromise(value)) return shown(value);
      mine.value = () => shown(value); // a promise that nothing is left to settle is shown as it is
      Promise.prototype.then.call(value, shown, (error) => failed(error, null));
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
    const message = buffered[0].subarray(4, 4 + length).toString();
    buffered = [buffered[0].subarray(4 + length)];
    bufferedLength -= 4 + length;
    if (message.startsWith('{"re":')) { // an answer to `typed`
      const { re, made } = JSON.parse(message), done = answers.get(re);
      answers.delete(re);
      if (cell && answers.size === 0) socket.unref();
      done?.(made);
      continue;
    }
    waiting.push(message);
    soon();
  }
});
socket.on('end', () => reallyExit(0));
socket.on('error', () => reallyExit(0));

// A signal that was meant for the cell before, and came after its end, is heard first: it takes a turn of the event loop.
function soon() {
  setImmediate(() => setImmediate(next));
}

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
