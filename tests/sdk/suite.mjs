// Every call that the official JavaScript clients make to a code interpreter sandbox, against a local host.
//
// Started by the Rust tests in the folder where the clients are installed, with E2B_API_URL, E2B_SANDBOX_URL and
// E2B_API_KEY set. Arguments pick checks by name. Says which of the clients' calls each check has made, and which no check
// has: `docs/e2b-compatibility.md` has to say the same.

import assert from 'node:assert/strict'
import { AsyncLocalStorage } from 'node:async_hooks'
import { createRequire } from 'node:module'

const require = createRequire(process.cwd() + '/')
const { Sandbox } = require('@e2b/code-interpreter')
const e2b = require('e2b')

const checks = []
const check = (name, run) => checks.push({ name, run })
/** For those that would disturb others. */
const checkAlone = (name, run) => checks.push({ name, run, alone: true })

// --- which calls are made

const made = {} // call -> checks
const running = new AsyncLocalStorage() // the check that runs

/** Notes calls of what callers find in a class; the clients' own helpers are marked as internal or not typed at all. */
function note(owner, title, names) {
  for (const name of names) {
    const call = `${title}.${name}`
    if (call in made) continue
    made[call] = new Set()
    const holder = [owner, Object.getPrototypeOf(owner), Object.getPrototypeOf(Object.getPrototypeOf(owner) ?? {})].find(
      (candidate) => candidate && Object.hasOwn(candidate, name)
    )
    const original = holder[name]
    owner[name] = function (...args) {
      if (running.getStore() && new Error().stack.split('\n')[2]?.includes('suite.mjs')) made[call].add(running.getStore())
      const result = original.apply(this, args)
      const look = (value) => (HANDLES.includes(value?.constructor?.name) && noteClass(value.constructor), value)
      return typeof result?.then === 'function' ? result.then(look) : look(result)
    }
  }
}

const HANDLES = ['CommandHandle', 'WatchHandle', 'SandboxPaginator', 'SnapshotPaginator']
const INTERNAL = ['constructor', 'resolveApiOpts', 'fileUrl', 'jupyterUrl', 'getJupyterRequestUrl', 'includeDiagnostics',
  'handleRequestError', 'createSandbox', 'forkSandbox', 'connectSandbox', 'resolveOpts', 'boundOpts', 'getFullInfo',
  'default', 'checkHealth', 'handleRpcError', 'start', 'handleEvents', 'iterateEvents', 'runGit', 'runShell', 'getRemoteUrl',
  'resolveRemoteName', 'flushDecoders', 'updatePagination', 'withRemoteCredentials', 'hasUpstream']

function functions(owner) {
  const names = new Set()
  for (let at = owner; at && at !== Object.prototype && at !== Function.prototype; at = Object.getPrototypeOf(at)) {
    for (const name of Object.getOwnPropertyNames(at)) {
      const { value } = Object.getOwnPropertyDescriptor(at, name)
      if (typeof value === 'function' && !INTERNAL.includes(name) && !name.startsWith('_')) names.add(name)
    }
  }
  return [...names]
}

function noteClass(kind) {
  note(kind.prototype, kind.name, functions(kind.prototype))
}

/** The exact class matters to callers, so a subclass does not count. */
async function rejects(kind, promise, ...words) {
  let value
  try {
    value = await promise
  } catch (error) {
    assert.equal(error.constructor.name, kind, `${error.constructor.name}: ${error.message}`)
    for (const word of words) assert.ok(error.message.includes(word), `${word} is not in ${error.message}`)
    return error
  }
  assert.fail(`${kind} was not thrown, but ${JSON.stringify(value)} came`)
}

async function withSandbox(options, run) {
  const sandbox = await Sandbox.create(options)
  try {
    for (const part of PARTS) noteClass(sandbox[part].constructor)
    await run(sandbox)
  } finally {
    await sandbox.kill()
  }
}

note(Sandbox.prototype, 'Sandbox', functions(Sandbox.prototype))
{
  // What both a class and its instances have is one call.
  const known = functions(Sandbox.prototype)
  note(Sandbox, 'Sandbox', functions(Sandbox).filter((name) => !known.includes(name)))
}
const PARTS = ['files', 'commands', 'pty', 'git']

const sleep = (ms) => new Promise((done) => setTimeout(done, ms))

// --- control plane

check('a sandbox is created, described, extended and killed', async () => {
  const sandbox = await Sandbox.create({ timeoutMs: 120_000, metadata: { user: '42' }, envs: { A: '1' } })
  assert.equal(await sandbox.isRunning(), true)
  const info = await sandbox.getInfo()
  assert.equal(info.sandboxId, sandbox.sandboxId)
  assert.deepEqual(info.metadata, { user: '42' })
  assert.equal(info.state, 'running')
  await sandbox.setTimeout(60_000)
  const left = (await sandbox.getInfo()).endAt - Date.now()
  assert.ok(left > 50_000 && left <= 60_000, `${left}`)
  const [metrics] = await sandbox.getMetrics()
  assert.ok(metrics.memTotal > 0 && metrics.diskTotal > 0)
  const other = await Sandbox.connect(sandbox.sandboxId)
  assert.equal((await other.runCode('40 + 2')).text, '42')
  assert.equal(await sandbox.kill(), true)
  assert.equal(await sandbox.kill(), false)
  assert.equal(await sandbox.isRunning(), false)
  await rejects('SandboxNotFoundError', sandbox.getInfo())
  await rejects('SandboxNotFoundError', Sandbox.connect(sandbox.sandboxId))
})

check('sandboxes are listed by metadata and in pages', async () => {
  const tag = `t${process.hrtime.bigint()} &=%ü`
  const made = []
  for (let n = 0; n < 3; n++) made.push(await Sandbox.create({ metadata: { tag, n: `${n}` } }))
  try {
    const pages = Sandbox.list({ query: { metadata: { tag } }, limit: 2 })
    const seen = []
    while (pages.hasNext) seen.push((await pages.nextItems()).map((listed) => listed.sandboxId))
    assert.deepEqual(seen.map((page) => page.length), [2, 1])
    assert.deepEqual(seen.flat().sort(), made.map((sandbox) => sandbox.sandboxId).sort())
    assert.deepEqual(await Sandbox.list({ query: { metadata: { tag }, state: ['paused'] } }).nextItems(), [])
  } finally {
    await Promise.all(made.map((sandbox) => sandbox.kill()))
  }
})

check('a pause keeps everything and connect wakes', async () => {
  const sandbox = await Sandbox.create()
  await sandbox.runCode('x = "kept"')
  assert.equal(await sandbox.pause(), true)
  assert.equal(await sandbox.pause(), false)
  assert.equal(await sandbox.isRunning(), false)
  const again = await Sandbox.connect(sandbox.sandboxId)
  assert.equal((await again.runCode('x')).text, 'kept')
  await again.kill()
})

check('refusals have their class', async () => {
  await rejects('AuthenticationError', Sandbox.create({ apiKey: 'e2b_' + '1'.repeat(40) }))
  await rejects('SandboxError', Sandbox.create('no-such-template'), 'no-such-template')
  await withSandbox({}, async (sandbox) => {
    await rejects('SandboxError', sandbox.createSnapshot({ name: 'no/name' }), 'the name')
  })
})

check('a snapshot keeps files and no memory', async () => {
  const name = `n${process.hrtime.bigint()}`
  let first, second
  await withSandbox({ envs: { OF: 'first' } }, async (sandbox) => {
    await sandbox.files.write('kept', '1')
    await sandbox.runCode('kept = 1')
    first = await sandbox.createSnapshot()
    second = await Sandbox.createSnapshot(sandbox.sandboxId, { name })
    assert.deepEqual([first.names, second.names], [[], [name]])
    const pages = sandbox.listSnapshots({ limit: 1 })
    const ids = []
    while (pages.hasNext) ids.push(...(await pages.nextItems()).map((snapshot) => snapshot.snapshotId))
    assert.deepEqual(ids, [second.snapshotId, first.snapshotId])
  })
  for (const template of [first.snapshotId, name]) {
    const again = await Sandbox.create(template, { envs: { ADDED: 'second' } })
    assert.equal(await again.files.read('kept'), '1')
    assert.equal((await again.runCode('kept')).error.name, 'NameError')
    assert.equal((await again.commands.run('echo $OF $ADDED')).stdout, 'first second\n')
    await again.kill()
  }
  for (const snapshot of [first, second]) {
    assert.equal(await Sandbox.deleteSnapshot(snapshot.snapshotId), true)
    assert.equal(await Sandbox.deleteSnapshot(snapshot.snapshotId), false)
  }
})

check('a fork begins with the files', async () => {
  await withSandbox({}, async (sandbox) => {
    await sandbox.files.write('kept', '1')
    for (const fork of await sandbox.fork({ timeoutMs: 120_000, count: 2 })) {
      assert.equal(await fork.files.read('kept'), '1')
      await fork.kill()
    }
  })
})

check('calls on the class take an id', async () => {
  const sandbox = await Sandbox.create({ timeoutMs: 100_000 })
  const id = sandbox.sandboxId
  await Sandbox.setTimeout(id, 200_000)
  const info = await Sandbox.getInfo(id)
  assert.ok(info.endAt - info.startedAt > 150_000)
  assert.ok((await Sandbox.getMetrics(id))[0].cpuCount >= 1)
  await Sandbox.updateNetwork(id, { denyOut: ['0.0.0.0/0'] })
  assert.equal(await Sandbox.pause(id), true)
  assert.equal(await sandbox.betaPause(), false)
  assert.equal((await Sandbox.connect(id)).sandboxId, id)
  assert.equal((await (await sandbox.connect({ timeoutMs: 300_000 })).runCode('1')).text, '1')
  assert.ok(sandbox.getHost(8000).startsWith(`8000-${id}.`))
  assert.equal(await Sandbox.kill(id), true)
  assert.equal(await Sandbox.kill(id), false)
  await rejects('SandboxNotFoundError', Sandbox.getMetrics(id))
  await rejects('SandboxNotFoundError', Sandbox.pause(id))
  await rejects('SandboxNotFoundError', Sandbox.setTimeout(id, 1000))
})

check('what create is asked for is kept', async () => {
  const options = {
    lifecycle: { onTimeout: 'pause', autoResume: true },
    network: { allowPublicTraffic: false, allowOut: ['1.1.1.1'], denyOut: ['0.0.0.0/0'] },
  }
  await withSandbox(options, async (sandbox) => {
    assert.ok(sandbox.trafficAccessToken)
    const info = await sandbox.getInfo()
    assert.equal(info.lifecycle.onTimeout, 'pause')
    assert.deepEqual(info.network.allowOut, ['1.1.1.1'])
    assert.equal((await sandbox.runCode('40 + 2')).text, '42')
    assert.equal(await sandbox.pause(), true)
    assert.equal(await sandbox.files.exists('none'), false, 'a paused one wakes when it is spoken to')
    assert.equal((await sandbox.getInfo()).state, 'running')
    await sandbox.updateNetwork({ allowOut: ['9.9.9.9'], denyOut: ['0.0.0.0/0'] })
    assert.deepEqual((await sandbox.getInfo()).network.allowOut, ['9.9.9.9'])
    await rejects('SandboxError', sandbox.updateNetwork({ allowOut: ['a.test'] }), 'network')
  })
})

check('what is not here is an error of the clients', async () => {
  await withSandbox({}, async (sandbox) => {
    assert.ok(sandbox.getMcpUrl().endsWith('/mcp'))
    await rejects('AuthenticationError', sandbox.getMcpToken(), 'root')
  })
  await rejects('SandboxError', Sandbox.create({ mcp: { duckduckgo: {} } }), 'no MCP gateway')
  await rejects('SandboxError', Sandbox.create({ volumeMounts: { '/v': 'v' } }), 'volumeMounts')
})

checkAlone('one sandbox too many is a rate limit error', async () => {
  const made = []
  try {
    await rejects(
      'RateLimitError',
      (async () => {
        for (let n = 0; n < 40; n++) made.push(await Sandbox.create({ timeoutMs: 600_000 }))
      })(),
      'maximum number of concurrent'
    )
  } finally {
    await Promise.all(made.map((sandbox) => sandbox.kill()))
  }
})

// --- code interpreter

check('code streams output, results and errors', async () => {
  await withSandbox({ envs: { A: 'sandbox' } }, async (sandbox) => {
    const heard = { out: [], err: [], results: [], errors: [] }
    const execution = await sandbox.runCode(
      "import sys\nprint('out ü\\u2028😀')\nprint('err', file=sys.stderr)\n{'a': 1}",
      {
        onStdout: (message) => heard.out.push(message),
        onStderr: (message) => heard.err.push(message),
        onResult: (result) => heard.results.push(result),
        onError: (error) => heard.errors.push(error),
      }
    )
    assert.equal(execution.logs.stdout.join(''), 'out ü\u2028😀\n')
    assert.equal(execution.logs.stderr.join(''), 'err\n')
    assert.equal(execution.text, "{'a': 1}")
    assert.deepEqual(execution.results[0].json, { a: 1 })
    assert.equal(heard.out.map((message) => message.line).join(''), 'out ü\u2028😀\n')
    assert.ok(heard.err[0].error)
    assert.equal(heard.results.length, 1)
    const failed = await sandbox.runCode('1/0', { onError: (error) => heard.errors.push(error) })
    assert.equal(failed.error.name, 'ZeroDivisionError')
    assert.ok(failed.error.traceback.includes('1/0'))
    assert.equal(heard.errors.length, 1)
    assert.equal((await sandbox.runCode("import os; os.environ['A']")).text, 'sandbox')
    assert.equal((await sandbox.runCode("os.environ['A']", { envs: { A: 'call' } })).text, 'call')
    assert.equal((await sandbox.runCode("os.environ['A']")).text, 'sandbox')
    assert.equal((await sandbox.runCode("print('é😀' * 200_000)")).logs.stdout.join('').length, 600_001)
  })
})

check('contexts are apart', async () => {
  await withSandbox({}, async (sandbox) => {
    const context = await sandbox.createCodeContext({ cwd: '/tmp' })
    await sandbox.runCode('x = 1')
    assert.equal((await sandbox.runCode('x', { context })).error.name, 'NameError')
    assert.equal((await sandbox.runCode('import os; os.getcwd()', { context })).text, '/tmp')
    assert.ok((await sandbox.listCodeContexts()).some((listed) => listed.id === context.id))
    await sandbox.restartCodeContext(context)
    await sandbox.removeCodeContext(context)
    await rejects('NotFoundError', sandbox.runCode('1', { context }))
  })
})

check('a time-out interrupts and keeps the state', async () => {
  await withSandbox({}, async (sandbox) => {
    await sandbox.runCode("x = 'kept'")
    await rejects('TimeoutError', sandbox.runCode('while True: pass', { timeoutMs: 1000 }))
    assert.equal((await sandbox.runCode('x', { timeoutMs: 10_000 })).text, 'kept')
  })
})

check('a dead interpreter says so', async () => {
  await withSandbox({}, async (sandbox) => {
    assert.equal((await sandbox.runCode('import os; os._exit(7)')).error.name, 'ContextRestarting')
    assert.equal((await sandbox.runCode('1 + 1')).text, '2')
  })
})

check('the other languages keep state too', async () => {
  await withSandbox({}, async (sandbox) => {
    for (const language of (process.env.PATHBOX_TEST_LANGUAGES ?? '').split(',').filter(Boolean)) {
      if (language === 'bash') {
        await sandbox.runCode('X=40', { language })
        const execution = await sandbox.runCode('echo $((X + 2))', { language })
        assert.equal(execution.logs.stdout.join(''), '42\n')
        continue
      }
      await sandbox.runCode(`const x${language === 'typescript' ? ': number' : ''} = 40`, { language })
      assert.equal((await sandbox.runCode('x + 2', { language })).text, '42')
    }
  })
})

check('every language streams, fails, stops and keeps', async () => {
  const languages = {
    python: ['x = 40', "print('out')", 'x + 2', "raise TypeError('bad')", 'while True: pass', 'import os; os.getcwd()'],
    javascript: ['const x = 40', "console.log('out')", 'x + 2', "throw new TypeError('bad')", 'for (;;) {}', 'process.cwd()'],
    typescript: ['const x: number = 40', "console.log('out' as string)", 'x + 2', "throw new TypeError('bad')", 'for (;;) {}',
      'process.cwd()'],
    bash: ['x=40', 'echo out', 'echo $((x + 2))', '(exit 3)', 'while :; do :; done', 'pwd'],
  }
  const wanted = ['python', ...(process.env.PATHBOX_TEST_LANGUAGES ?? '').split(',').filter(Boolean)]
  await withSandbox({}, async (sandbox) => {
    for (const language of wanted) {
      const [keep, say, value, fail, spin, where] = languages[language]
      const heard = { out: '', results: [], errors: [] }
      const onError = (error) => heard.errors.push(error)
      await sandbox.runCode(keep, { language })
      const onStdout = (message) => (heard.out += message.line)
      const told = await sandbox.runCode(say, { language, onStdout, onError })
      assert.deepEqual([heard.out, heard.errors.length, told.error], ['out\n', 0, undefined], language)
      await rejects('TimeoutError', sandbox.runCode(spin, { language, timeoutMs: 1000 }))
      const onResult = (result) => heard.results.push(result.text)
      const kept = await sandbox.runCode(value, { language, onResult, timeoutMs: 60_000 })
      if (language === 'bash') assert.equal(kept.logs.stdout.join(''), '42\n')
      else assert.deepEqual([kept.text, heard.results], ['42', ['42']], language)
      const failed = await sandbox.runCode(fail, { language, onError })
      const said = language === 'bash' ? ['', '3'] : ['TypeError', 'bad']
      assert.deepEqual([failed.error.name, failed.error.value, heard.errors.length], [...said, 1], language)
      const context = await sandbox.createCodeContext({ language, cwd: '/tmp' })
      assert.deepEqual([context.language, context.cwd], [language, '/tmp'])
      const there = await sandbox.runCode(where, { context })
      assert.equal(there.text ?? there.logs.stdout.join('').trim(), '/tmp', language)
    }
    await rejects('SandboxError', sandbox.runCode('1', { language: 'cobol' }))
    await rejects('SandboxError', sandbox.createCodeContext({ language: 'cobol' }))
  })
})

check('a sandbox killed during a run is told apart', async () => {
  const sandbox = await Sandbox.create()
  const running = rejects('TimeoutError', sandbox.runCode('import time; time.sleep(30)'))
  await sleep(500)
  await sandbox.kill()
  await running
})

check('contexts run side by side', async () => {
  await withSandbox({}, async (sandbox) => {
    const contexts = [await sandbox.createCodeContext(), await sandbox.createCodeContext()]
    const meet = (mine, theirs) =>
      `import os, time\nopen('/tmp/${mine}', 'w')\nwhile not os.path.exists('/tmp/${theirs}'): time.sleep(0.01)\n'met'`
    const both = [sandbox.runCode(meet('a', 'b'), { context: contexts[0] }),
      sandbox.runCode(meet('b', 'a'), { context: contexts[1] })]
    assert.deepEqual((await Promise.all(both)).map((execution) => execution.text), ['met', 'met'])
  })
})

// --- files

check('files go up and come down in every form', async () => {
  await withSandbox({}, async (sandbox) => {
    const { files } = sandbox
    const bytes = new Uint8Array(300_000).map((_, n) => n * 7)
    const forms = {
      multipart: (path) => files.write(path, bytes.buffer),
      octets: (path) => files.write(path, bytes.buffer, { useOctetStream: true }),
      zipped: (path) => files.write(path, bytes.buffer, { gzip: true }),
      blob: (path) => files.write(path, new Blob([bytes])),
      stream: (path) => files.write(path, new Blob([bytes]).stream()),
      user: (path) => files.write(path, bytes.buffer, { user: 'user' }),
    }
    for (const [name, write] of Object.entries(forms)) {
      assert.equal((await write(`up/${name}`)).path, `/home/user/up/${name}`)
      assert.deepEqual(await files.read(`up/${name}`, { format: 'bytes' }), bytes, name)
    }
    assert.equal((await files.read('up/octets', { format: 'blob' })).size, bytes.length)
    let read = 0
    for await (const piece of await files.read('up/octets', { format: 'stream' })) read += piece.length
    assert.equal(read, bytes.length)
    await files.writeFiles([{ path: 'm/1', data: 'one' }, { path: 'm/2', data: 'two' }])
    assert.equal(await files.read('m/2'), 'two')
    await files.makeDir('m/d/e')
    assert.ok((await files.list('m', { depth: 2 })).some((entry) => entry.path === '/home/user/m/d/e'))
    await rejects('InvalidArgumentError', files.write('x', 'x', { metadata: { origin: 'test' } }), 'metadata')
    await rejects('AuthenticationError', files.write('x', 'x', { user: 'root' }), 'root')
    await rejects('FileNotFoundError', files.rename('none', 'other'))
    await rejects('FileNotFoundError', files.list('none'))
    await rejects('FileNotFoundError', files.watchDir('none', () => {}))
  })
})

check('files are written, read and described', async () => {
  await withSandbox({}, async (sandbox) => {
    const info = await sandbox.files.write('dir/a b ü.txt', 'héllo')
    assert.equal(info.path, '/home/user/dir/a b ü.txt')
    assert.equal(await sandbox.files.read('dir/a b ü.txt'), 'héllo')
    const bytes = new Uint8Array(300_000).map((_, n) => n * 7)
    await sandbox.files.write('/tmp/bin', bytes.buffer)
    assert.deepEqual(await sandbox.files.read('/tmp/bin', { format: 'bytes' }), bytes)
    const written = await sandbox.files.write([
      { path: 'm/1', data: 'one' },
      { path: 'm/2', data: 'two' },
    ])
    assert.deepEqual(written.map((entry) => entry.path), ['/home/user/m/1', '/home/user/m/2'])
    assert.equal(await sandbox.files.exists('m/1'), true)
    assert.equal(await sandbox.files.exists('m/3'), false)
    const entry = await sandbox.files.getInfo('m/1')
    assert.equal(Number(entry.size), 3)
    assert.equal(entry.type, 'file')
    assert.equal(await sandbox.files.makeDir('m/d'), true)
    assert.equal(await sandbox.files.makeDir('m/d'), false)
    assert.deepEqual((await sandbox.files.list('m')).map((entry) => entry.name).sort(), ['1', '2', 'd'])
    assert.equal((await sandbox.files.rename('m/1', 'moved')).path, '/home/user/moved')
    await sandbox.files.remove('m')
    assert.equal(await sandbox.files.exists('m'), false)
    await rejects('FileNotFoundError', sandbox.files.read('none'))
    await rejects('FileNotFoundError', sandbox.files.getInfo('none'))
    await rejects('InvalidArgumentError', sandbox.files.read('/tmp'))
    await rejects('NotEnoughSpaceError', sandbox.files.write('/tmp/full', new ArrayBuffer(80 << 20)))
  })
})

check('addresses for files work without headers', async () => {
  await withSandbox({}, async (sandbox) => {
    await sandbox.files.write('a.txt', 'by address')
    const address = await sandbox.downloadUrl('a.txt', { useSignatureExpiration: 60_000 })
    assert.equal(await (await fetch(address)).text(), 'by address')
    const form = new FormData()
    form.append('file', new Blob(['new']), 'x')
    const posted = await fetch(await sandbox.uploadUrl('up.txt'), { method: 'POST', body: form })
    assert.equal(posted.status, 200)
    assert.equal(await sandbox.files.read('up.txt'), 'new')
  })
})

check('changes to files are seen', async () => {
  await withSandbox({}, async (sandbox) => {
    await sandbox.files.makeDir('w')
    const seen = []
    const watch = await sandbox.files.watchDir('w', (event) => seen.push(`${event.type} ${event.name}`))
    await sandbox.files.write('w/new', 'x')
    for (let n = 0; n < 100 && !seen.includes('create new'); n++) await sleep(50)
    assert.ok(seen.includes('create new'), seen.join())
    await watch.stop()
  })
})

// --- commands

check('commands run and tell how they ended', async () => {
  await withSandbox({ envs: { A: '1' } }, async (sandbox) => {
    const out = []
    const result = await sandbox.commands.run('echo $A ü; echo oops >&2', { onStdout: (text) => out.push(text) })
    assert.deepEqual([result.stdout, result.stderr, result.exitCode, out.join('')], ['1 ü\n', 'oops\n', 0, '1 ü\n'])
    const failed = await rejects('CommandExitError', sandbox.commands.run('echo half; exit 3'))
    assert.deepEqual([failed.exitCode, failed.stdout], [3, 'half\n'])
    assert.equal((await sandbox.commands.run('pwd', { cwd: '/tmp', user: 'user' })).stdout, '/tmp\n')
    await rejects('AuthenticationError', sandbox.commands.run('id', { user: 'root' }), 'root')
    await rejects('InvalidArgumentError', sandbox.commands.run('true', { cwd: '/none' }))
    await rejects('TimeoutError', sandbox.commands.run('sleep 30', { timeoutMs: 1000 }))
    const big = await sandbox.commands.run("head -c 3000000 /dev/zero | tr '\\0' x")
    assert.equal(big.stdout.length, 3_000_000)
  })
})

check('background commands are connected, spoken to and killed', async () => {
  await withSandbox({}, async (sandbox) => {
    const command = 'while read line; do echo got $line; done; echo bye'
    const handle = await sandbox.commands.run(command, { background: true, stdin: true, timeoutMs: 0 })
    assert.ok((await sandbox.commands.list()).some((process) => process.pid === handle.pid))
    await handle.disconnect()
    const again = await sandbox.commands.connect(handle.pid, { timeoutMs: 0 })
    await sandbox.commands.sendStdin(handle.pid, 'one\n')
    await sandbox.commands.closeStdin(handle.pid)
    assert.equal((await again.wait()).stdout, 'got one\nbye\n')
    const sleeping = await sandbox.commands.run('sleep 1000', { background: true, timeoutMs: 0 })
    assert.equal(await sandbox.commands.kill(sleeping.pid), true)
    await rejects('CommandExitError', sleeping.wait())
    assert.equal(await sandbox.commands.kill(sleeping.pid), false)
    await rejects('NotFoundError', sandbox.commands.connect(99_999))
  })
})

check('input streams and output is heard piece by piece', async () => {
  await withSandbox({}, async (sandbox) => {
    const { commands } = sandbox
    const heard = { out: '', err: '' }
    const counting = await commands.run('sha256sum | cut -c 1-12; echo end >&2', {
      background: true, stdin: true, timeoutMs: 0,
      onStdout: (text) => (heard.out += text), onStderr: (text) => (heard.err += text),
    })
    for (let n = 0; n < 40; n++) await counting.sendStdin(new Uint8Array(10_000).fill(n))
    await counting.closeStdin()
    assert.equal((await counting.wait()).stdout, 'bee4a6e01518\n')
    assert.deepEqual(heard, { out: 'bee4a6e01518\n', err: 'end\n' })
    const cat = await commands.run('cat', { background: true, stdin: true, timeoutMs: 0 })
    await cat.sendStdin('x')
    assert.equal(await cat.kill(), true)
    await rejects('CommandExitError', cat.wait())
    await rejects('NotFoundError', commands.sendStdin(99_999, 'x'))
    await rejects('NotFoundError', commands.closeStdin(99_999))
  })
})

check('repositories are kept by git', async () => {
  await withSandbox({}, async (sandbox) => {
    const { git, files, commands } = sandbox
    if ((await commands.run('command -v git || true')).stdout === '') return
    await git.configureUser('A User', 'user@example.test')
    await git.init('repo', { initialBranch: 'main' })
    await files.write('repo/a.txt', 'one')
    await git.add('repo')
    await git.commit('repo', 'first')
    assert.equal((await git.status('repo')).isClean, true)
    await git.createBranch('repo', 'topic')
    await git.checkoutBranch('repo', 'main')
    assert.deepEqual((await git.branches('repo')).branches.sort(), ['main', 'topic'])
    await git.deleteBranch('repo', 'topic')
    await git.setConfig('core.abbrev', '12', { scope: 'local', path: 'repo' })
    assert.equal(await git.getConfig('core.abbrev', { scope: 'local', path: 'repo' }), '12')
    await git.remoteAdd('repo', 'origin', '/home/user/origin.git')
    assert.equal(await git.remoteGet('repo', 'origin'), '/home/user/origin.git')
    await commands.run('git init --bare -b main origin.git')
    await git.push('repo', { remote: 'origin', branch: 'main' })
    await git.clone('/home/user/origin.git', { path: 'clone' })
    await git.pull('clone', { remote: 'origin', branch: 'main' })
    assert.equal(await files.read('clone/a.txt'), 'one')
    await files.write('repo/a.txt', 'two')
    await git.restore('repo', { paths: ['a.txt'] })
    assert.equal(await files.read('repo/a.txt'), 'one')
    await git.reset('repo', { mode: 'hard' })
    await git.dangerouslyAuthenticate({ username: 'name', password: 'password', host: 'example.test' })
  })
})

check('a terminal can be typed into', async () => {
  await withSandbox({}, async (sandbox) => {
    let screen = ''
    const onData = (bytes) => (screen += Buffer.from(bytes).toString())
    const terminal = await sandbox.pty.create({ cols: 77, rows: 11, onData, timeoutMs: 30_000 })
    await sandbox.pty.resize(terminal.pid, { cols: 99, rows: 22 })
    await sandbox.pty.sendInput(terminal.pid, new TextEncoder().encode('stty size; exit 4\n'))
    assert.equal((await rejects('CommandExitError', terminal.wait())).exitCode, 4)
    assert.ok(screen.includes('22 99'), screen)

    screen = ''
    const options = { cols: 77, rows: 11, onData: () => {}, timeoutMs: 0, cwd: '/tmp', envs: { A: 'b' } }
    const other = await sandbox.pty.create(options)
    const again = await sandbox.pty.connect(other.pid, { onData, timeoutMs: 30_000 })
    await sandbox.pty.sendInput(other.pid, new TextEncoder().encode('echo $PWD-$A-$TERM; exit\n'))
    await again.wait()
    assert.ok(screen.includes('/tmp-b-xterm-256color'), screen)
    const last = await sandbox.pty.create({ cols: 77, rows: 11, onData, timeoutMs: 0 })
    assert.equal(await sandbox.pty.kill(last.pid), true)
    await rejects('CommandExitError', last.wait())
    assert.equal(await sandbox.pty.kill(last.pid), false)
  })
})

check('a dead sandbox is told apart at every call', async () => {
  const sandbox = await Sandbox.create()
  await sandbox.kill()
  for (const call of [
    () => sandbox.commands.run('true'),
    () => sandbox.files.read('x'),
    () => sandbox.files.list('/'),
    () => sandbox.runCode('1'),
  ]) {
    const error = await call().then(() => assert.fail('it worked'), (error) => error)
    assert.ok(error instanceof e2b.TimeoutError || error instanceof e2b.SandboxNotFoundError, `${call}: ${error}`)
  }
})

const failed = []
async function attempt({ name, run }) {
  const started = Date.now()
  try {
    await running.run(name, run)
    console.log(`ok ${name} ${(Date.now() - started) / 1000} s`)
  } catch (error) {
    failed.push(name)
    console.log(`FAILED ${name}\n${error.stack}`)
  }
}
const words = process.argv.slice(2)
const picked = checks.filter(({ name }) => words.length === 0 || words.some((word) => name.includes(word)))
const together = picked.filter(({ alone }) => !alone).values()
// An iterator that four share gives each check to one of them.
await Promise.all(Array.from({ length: 4 }, async () => { for (const next of together) await attempt(next) }))
for (const next of picked.filter(({ alone }) => alone)) await attempt(next)
for (const call of Object.keys(made).sort()) console.log(['call', call, ...made[call]].join('\t'))
if (failed.length) console.log(`failed: ${failed.join(', ')}`)
process.exit(failed.length ? 1 : 0)
