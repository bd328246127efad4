'use strict'

// What clients/conformance has no words for: it holds this client to the rules that all languages share.

const test = require('node:test')
const assert = require('node:assert/strict')
const fs = require('node:fs')
const { join } = require('node:path')
const { tmpdir } = require('node:os')
const { execFile, execFileSync, spawn } = require('node:child_process')
const { createInterface } = require('node:readline')
const { setTimeout: sleep } = require('node:timers/promises')
const { promisify } = require('node:util')
const { setFlagsFromString } = require('node:v8')
const { runInNewContext } = require('node:vm')
const { Allocator, AllocatorError } = require('../index.js')
const { FakeAllocator } = require('../testing.js')
const { startNode, refusal } = require('./node.js')

const kind = (kind, pattern = /./) => e => {
  assert.ok(e instanceof AllocatorError, e.stack)
  assert.equal(e.kind, kind, e.stack)
  assert.match(e.message, pattern)
  return true
}

/** Returns a client that is closed after the test. */
function client (t, node, options) {
  const ids = new Allocator({ nodes: [].concat(node).map(n => n.url ?? n), ...options })
  t.after(() => ids.close())
  return ids
}

const distinct = ids => new Set(ids).size

test('options are checked at once', () => {
  const node = 'http://127.0.0.1:8080'
  for (const [options, pattern] of [
    [undefined, /give an object/],
    [{}, /nodes is undefined: give an array of URLs/],
    [{ nodes: node }, /give an array of URLs/],
    [{ nodes: [] }, /nodes is empty: give the URLs of nodes/],
    [{ nodes: [''] }, /nodes\[0\] is "", which is no URL/],
    [{ nodes: [node, '127.0.0.1:8080'] }, /nodes\[1\] is "127.0.0.1:8080", which is no URL: write http:\/\//],
    [{ nodes: ['localhost:8080'] }, /a URL begins with http:\/\/, https:\/\/ or unix:\/\//],
    [{ nodes: ['ftp://127.0.0.1'] }, /a URL begins with http/],
    [{ nodes: ['http:127.0.0.1'] }, /a URL begins with http/],
    [{ nodes: ['unix://agent.sock'] }, /write unix:\/\/\/path, with an absolute path/],
    [{ nodes: ['unix:///' + 'x'.repeat(120)] }, /at most 107 characters/],
    [{ nodes: ['http://me:secret@127.0.0.1'] }, /has a user in its URL: give the token as token or tokenFile/],
    [{ nodes: ['http://127.0.0.1/?a=1'] }, /leave out all from \? on/],
    [{ nodes: ['http://a:99999'] }, /"http:\/\/a:99999", which is no URL: write http:\/\/host:port/],
    [{ nodes: [7] }, /nodes\[0\] is 7: give the URL of a node/],
    [{ nodes: [node], timeout: 5 }, /"timeout" is none of the options: there are nodes, timeoutMs, .*, clock$/],
    [{ nodes: [node], timeoutMs: '5s' }, /timeoutMs is "5s": give milliseconds, at least 1/],
    [{ nodes: [node], attemptTimeoutMs: -1 }, /attemptTimeoutMs is -1/],
    [{ nodes: [node], timeoutMs: Infinity }, /timeoutMs is Infinity/],
    [{ nodes: [node], form: 'hex' }, /form is "hex": use one of int, flake, ulid, uuid/],
    [{ nodes: [node], prefetch: -1 }, /prefetch is -1: give a whole number, 0 to 10000/],
    [{ nodes: [node], prefetch: 1e6 }, /prefetch is 1000000/],
    [{ nodes: [node], token: 'a b' }, /token is no token/],
    [{ nodes: [node], token: 'a', tokenFile: 'b' }, /set one of them/],
    [{ nodes: [node, 'http://a'], token: 'a' }, /http:\/\/a has no TLS, so that others could read the token: .* plaintextToken/],
    [{ nodes: [node], tokenFile: '/none' }, /tokenFile: ENOENT/],
    [{ nodes: [node], caFile: '/none' }, /caFile: ENOENT/],
    [{ nodes: [node], caFile: __filename.replace('client.test', 'node') }, /node.js has no certificate: give a PEM file/],
    [{ nodes: [node], tls: { cert: 'x' } }, /tls: /]
  ]) assert.throws(() => new Allocator(options), kind('invalid', pattern))
})

test('arguments are checked before any request', async t => {
  const node = await startNode(t)
  const ids = client(t, node)
  for (const [call, pattern] of [
    [() => ids.nextMany(0), /count is 0: give a whole number/],
    [() => ids.nextMany(1.5), /count is 1.5/],
    [() => ids.nextMany('3'), /count is "3"/],
    [() => ids.nextMany(1e7), /1 to 1000000/],
    [() => ids.next({ form: 'number' }), /form is "number"/],
    [() => ids.next({ after: 2 ** 60 }), /after is the number .*: numbers keep 53 bits/],
    [() => ids.next({ after: 'x' }), /after is "x": a flake has 13 characters/],
    [() => ids.next({ aftre: 1n }), /"aftre" is none of the options of a call/],
    [() => ids.next({ timeoutMs: 0 }), /timeoutMs is 0/],
    [() => ids.next({ signal: 1 }), /signal is 1: give an AbortSignal/],
    [() => ids.next(7), /options of a call are 7/],
    [() => ids.waitFor(-1n), /an ID is within 0 and 2\^63-1/],
    [() => ids.fill(), /fill needs the option prefetch/],
    [async () => ids.nextNow(), /nextNow needs the option prefetch/]
  ]) await assert.rejects(call, kind('invalid', pattern))
  assert.equal(node.requests.length, 0)
})

test('a token file that others can read is refused, and a new token is read', async t => {
  const file = join(fs.mkdtempSync(join(tmpdir(), 'token-')), 'token')
  t.after(() => fs.rmSync(file, { force: true }))
  fs.writeFileSync(file, 'one\n', { mode: 0o644 })
  fs.chmodSync(file, 0o644)
  assert.throws(() => new Allocator({ nodes: ['http://127.0.0.1'], tokenFile: file }), kind('invalid', /others can read .*: chmod 600/))
  fs.chmodSync(file, 0o600)
  const node = await startNode(t)
  const ids = client(t, node, { tokenFile: file })
  await ids.next()
  fs.writeFileSync(file + '.new', 'two-two\n', { mode: 0o600 })
  fs.renameSync(file + '.new', file)
  await ids.next()
  fs.rmSync(file) // The last token counts while the file is away.
  await ids.next()
  assert.deepEqual(node.requests.map(r => r.headers.authorization), ['Bearer one', 'Bearer two-two', 'Bearer two-two'])
  fs.writeFileSync(file, ' \n', { mode: 0o600 })
  assert.throws(() => new Allocator({ nodes: ['http://127.0.0.1'], tokenFile: file }), kind('invalid', /is empty: write a token into it/))
  const asked = client(t, node, { token: async () => 'three' })
  await asked.next()
  assert.equal(node.requests.at(-1).headers.authorization, 'Bearer three')
})

test('calls of one turn share a request, and calls during it the next one', async t => {
  let release
  const node = await startNode(t, () => node.requests.length === 1 ? new Promise(resolve => { release = resolve }) : undefined)
  const ids = client(t, node)
  const first = Promise.all(Array.from({ length: 500 }, () => ids.next()))
  while (!release) await new Promise(setImmediate)
  const second = Promise.all([ids.next({ form: 'flake' }), ids.nextMany(20), ids.next()])
  release()
  assert.equal(distinct(await first), 500)
  const [flake, many, last] = await second
  assert.match(flake, /^[0-9A-Z]{13}$/)
  assert.equal(many.length, 20)
  assert.ok(last > many.at(-1))
  assert.deepEqual(node.requests.map(r => r.query.count), ['500', '22'])
  assert.equal(node.connections, 1)
  assert.equal(node.requests[1].query.after, String((await first).at(-1)), 'the order of calls')
})

test('nodes that allow fewer IDs at once', async t => {
  const node = await startNode(t, ({ query }, reply) => {
    if (Number(query.count) > 128) {
      return reply(400, refusal('INVALID_COUNT', { metadata: { count: query.count, limit: '128' } })) ?? true
    }
  })
  const ids = client(t, node)
  const got = await ids.nextMany(300)
  assert.equal(distinct(got), 300)
  assert.ok(got.every((id, i) => i === 0 || id > got[i - 1]))
  assert.deepEqual(node.requests.map(r => r.query.count), ['300', '128', '128', '44'])
})

test('IDs of both widths rise in one order', async t => {
  const node = await startNode(t)
  const ids = client(t, node, { prefetch: 10 })
  const a = await ids.next()
  const b = await ids.next({ form: 'uuid' })
  await ids.next()
  assert.deepEqual(node.requests.map(r => r.query.after?.length), [undefined, 17, 36])
  assert.ok(BigInt(node.requests[1].query.after) >= a)
  assert.ok(node.requests[2].query.after >= b)
  assert.throws(() => ids.nextNow('ulid'), kind('empty'), 'what was held of the other width may be below')
})

test('nextNow gives what was fetched before, and never waits', async t => {
  const now = { mono: 0, leap: 0 }
  const clock = { now: () => now.mono, wall: () => 1e12 + now.mono + now.leap }
  const node = await startNode(t)
  const ids = client(t, node, { prefetch: 8, clock })
  await new Promise(setImmediate)
  assert.equal(node.requests.length, 0, 'nothing is fetched before a call')
  assert.throws(() => ids.nextNow(), kind('empty', /await fill\(\) before/))
  await ids.fill()
  await ids.fill()
  assert.equal(node.requests.length, 1)
  const seen = []
  const take = n => { while (n-- > 0) seen.push(ids.nextNow()) }
  take(4) // half: the rest is fetched in the background
  while (node.requests.length < 2) await new Promise(setImmediate)
  seen.push(await ids.next())
  take(3)
  await ids.fill()
  take(4)
  assert.equal(distinct(seen), 12)
  assert.ok(seen.every((id, i) => i === 0 || id > seen[i - 1]))

  const dropped = async (what, change) => {
    await ids.fill()
    ids.nextNow()
    change()
    const issued = node.next
    assert.throws(() => ids.nextNow(), kind('empty'), what)
    await ids.fill()
    assert.ok(ids.nextNow() > issued, `${what}: what was held is not given`)
  }
  await dropped('older than a second', () => { now.mono += 1000 })
  await dropped('resumed from a snapshot after an hour', () => { now.leap += 3_600_000 })
  await dropped('the clock was set back', () => { now.leap -= 50 })
  await dropped('resumed from a snapshot after 20 ms', () => { now.leap += 20 })
  await ids.fill()
  await ids.next({ after: ids.nextNow() + (1n << 30n) })
  assert.throws(() => ids.nextNow(), kind('empty'), 'what was held is below')
  await ids.fill()
  now.mono += 990
  now.leap += 9
  ids.nextNow() // Clocks that are not read at once are no leap.
})

test('fill waits for IDs that a request with many others leaves', async () => {
  const ids = new FakeAllocator({ prefetch: 4 })
  await Promise.all([ids.nextMany(10_000), ids.fill()])
  assert.equal(typeof ids.nextNow(), 'bigint')
})

test('IDs that came while one of the other width was given are not held', async t => {
  let release
  const node = await startNode(t, () => node.requests.length === 3 ? new Promise(resolve => { release = resolve }) : undefined)
  const ids = client(t, node, { prefetch: 4 })
  await ids.next()
  await ids.fill({ form: 'uuid' })
  const filled = ids.nextMany(2)
  while (!release) await new Promise(setImmediate)
  ids.nextNow('uuid')
  release()
  await filled
  assert.throws(() => ids.nextNow(), kind('empty'), 'they may be below')
  await ids.fill()
  assert.equal(node.requests.at(-1).query.after.length, 17)
  ids.nextNow()
})

test('IDs that are below those of callers are not kept', async () => {
  setFlagsFromString('--expose-gc')
  const gc = runInNewContext('gc')
  const used = () => { gc(); return process.memoryUsage().heapUsed }
  const ids = new FakeAllocator({ prefetch: 9_000 })
  await ids.nextMany(2)
  const before = used()
  for (let i = 0; i < 40; i++) await ids.nextMany(2)
  assert.ok(used() - before < 4 << 20)
})

test('held IDs are renewed before they are too old, while they are used', async t => {
  const node = await startNode(t)
  const ids = client(t, node, { prefetch: 8, prefetchMaxAgeMs: 100, clock: { now: () => 0, wall: () => 0 } })
  await ids.fill()
  while (node.requests.length < 3) await new Promise(setImmediate)
  assert.equal(typeof ids.nextNow(), 'bigint')
})

test('a node that is away, refuses or is none', async t => {
  const good = await startNode(t)
  const skewed = await startNode(t, (_, reply) => reply(503, refusal('CLOCK_SKEW', { retry_after_ms: 60_000 }), { 'retry-after': '60' }) ?? true)
  const page = await startNode(t, (_, reply) => reply(200, '<html>') ?? true)
  const ids = client(t, ['http://127.0.0.1:1', skewed, page, good])
  for (let i = 0; i < 5; i++) await ids.next()
  assert.deepEqual([skewed, page, good].map(node => node.requests.length), [1, 1, 5], 'the one that served goes on')
  await Promise.all([
    assert.rejects(client(t, page, { timeoutMs: 2000 }).next(), kind('protocol', /the answer is no JSON: "<html>"; is it the URL of a node/)),
    assert.rejects(client(t, 'http://127.0.0.1:1', { timeoutMs: 2000 }).next(), kind('unavailable', /127.0.0.1:1: nothing listens there/)),
    assert.rejects(client(t, 'unix:///none.sock', { timeoutMs: 2000 }).next(), kind('unavailable', /there is no such socket/))
  ])
  const refused = client(t, skewed, { timeoutMs: 4000, clock: { now: () => 0, wall: () => 0 } })
  await assert.rejects(refused.next(), e => kind('refused', /^CLOCK_SKEW: as the test says/)(e) && e.reason === 'CLOCK_SKEW' && e.retryAfterMs === 60_000 && e.node === skewed.url)
  const asked = skewed.requests.length
  await assert.rejects(refused.next(), kind('refused'))
  assert.equal(skewed.requests.length, asked, 'a delay is waited for, and longer than the call has')
  const plain = await startNode(t, (_, reply) => reply(400, 'Client sent an HTTP request to an HTTPS server.\n') ?? true)
  await assert.rejects(client(t, plain).next(), kind('protocol', /the node speaks TLS: write https:\/\//))
  const other = await startNode(t, (_, reply) => reply(404, 'no such page') ?? true)
  await assert.rejects(client(t, other).next(), kind('protocol', /HTTP 404: "no such page"; is it the URL of a node/))
})

test('a refusal whose delay ends while a client looks for a node', async t => {
  const now = { ms: 0, step: 0 }
  const node = await startNode(t, (_, reply) => {
    if (node.requests.length > 1) return
    now.step = 40 // From here on each read of the clock is 40 ms later.
    return reply(503, refusal('CLOCK_SKEW', { retry_after_ms: 100 })) ?? true
  })
  const ids = client(t, node, { clock: { now: () => (now.ms += now.step), wall: () => 0 } })
  assert.equal(typeof await ids.next(), 'bigint')
  assert.equal(node.requests.length, 2)
})

test('a call that is canceled leaves the others alone', async t => {
  const release = []
  const node = await startNode(t, () => new Promise(resolve => release.push(resolve)))
  const ids = client(t, node)
  const abort = new AbortController()
  const why = new Error('the user left')
  const canceled = assert.rejects(ids.next({ signal: abort.signal }), e => kind('canceled')(e) && e.name === 'AbortError' && e.cause === why)
  const kept = ids.next()
  while (release.length === 0) await new Promise(setImmediate)
  abort.abort(why)
  await canceled
  release[0]()
  await kept
  await assert.rejects(ids.next({ signal: abort.signal }), kind('canceled'))
  assert.equal(node.requests.length, 1)
  await assert.rejects(ids.next({ timeoutMs: 50 }), e => kind('timeout', /no answer within 50 ms/)(e) && e.name === 'TimeoutError')
})

test('close lets calls finish, and later ones fail', async t => {
  const node = await startNode(t)
  const ids = client(t, node, { prefetch: 4 })
  const running = ids.nextMany(3)
  const closing = ids.close()
  assert.equal((await running).length, 3)
  await closing
  for (const call of [() => ids.next(), () => ids.nextMany(2), () => ids.watermark(), () => ids.waitFor(1n), async () => ids.nextNow(), () => ids.fill()]) {
    await assert.rejects(call, kind('closed', /the client is closed/))
  }
  await ids.close()
})

test('the socket of an agent, and the prefix of a proxy', async t => {
  const path = join(fs.mkdtempSync(join(tmpdir(), 'agent-')), 'http.sock')
  const agent = await startNode(t, () => {}, [path])
  await client(t, agent).next()
  assert.equal(agent.requests[0].headers.host, 'localhost')
  const node = await startNode(t)
  await client(t, node.url + '/ids/').next()
  assert.equal(node.requests[0].path, '/ids/v1/ids')
})

/** Runs a program in a process of its own, and resolves to what it printed. */
async function runProgram (t, program) {
  const dir = fs.mkdtempSync(join(tmpdir(), 'program-'))
  t.after(() => fs.rmSync(dir, { recursive: true }))
  const path = join(dir, 'program.js')
  fs.writeFileSync(path, program)
  return (await promisify(execFile)(process.execPath, [path], { timeout: 300_000 })).stdout
}

test('nothing keeps a program alive, and a call that waits does', async t => {
  const node = await startNode(t, () => node.requests.length > 1 ? new Promise(() => {}) : undefined) // What is fetched ahead hangs.
  const out = await runProgram(t, `
    const { Allocator } = require(${JSON.stringify(join(__dirname, '..'))})
    const ids = new Allocator({ nodes: [${JSON.stringify(node.url)}], prefetch: 2, timeoutMs: 1e9, attemptTimeoutMs: 1e9 })
    ids.fill().then(() => { ids.nextNow(); console.log('done') })
  `)
  assert.equal(out, 'done\n')
})

test('require and import give the same classes', () => {
  const out = execFileSync(process.execPath, ['--input-type=module', '-e', `
    import { createRequire } from 'node:module'
    import * as imported from '${join(__dirname, '../index.mjs')}'
    const required = createRequire('${__filename}')('../index.js')
    console.log(Object.keys(required).every(name => imported[name] === required[name]) && Object.keys(imported).length === Object.keys(required).length)`])
  assert.equal(String(out), 'true\n')
})

test('index.d.ts and testing.d.ts declare what there is', () => {
  for (const [types, module] of [['index.d.ts', require('../index.js')], ['testing.d.ts', require('../testing.js')]]) {
    const text = fs.readFileSync(join(__dirname, '..', types), 'utf8')
    const names = [...text.matchAll(/^export (?:class|function) (\w+)/gm)].map(m => m[1])
    assert.deepEqual(names.sort(), Object.keys(module).sort())
    for (const [, name, body] of text.matchAll(/^export class (\w+).*\n([^]*?)^}/gm)) {
      if (name === 'AllocatorError') continue // Its fields are those of objects.
      const members = [...body.matchAll(/^  (?:private |static |readonly )?(\w+)[^\n]*/gm)].map(m => m[1])
      const { prototype, length, name: own, ...statics } = Object.getOwnPropertyDescriptors(module[name])
      assert.deepEqual(members.sort(), [...Object.keys(statics), ...Object.getOwnPropertyNames(module[name].prototype)].sort(), name)
    }
  }
})

test('workers of node:cluster give no ID twice', async t => {
  const node = await startNode(t)
  const out = await runProgram(t, `
    const cluster = require('node:cluster')
    const { Allocator } = require(${JSON.stringify(join(__dirname, '..'))})
    const ids = new Allocator({ nodes: [${JSON.stringify(node.url)}], prefetch: 64, prefetchMaxAgeMs: 60_000, timeoutMs: 60_000 })
    ids.fill().then(async () => { // The first process holds IDs before it starts others.
      if (cluster.isPrimary) for (let i = 0; i < 3; i++) cluster.fork()
      const got = []
      while (got.length < 200) await ids.fill().then(() => got.push(ids.nextNow(), ids.nextNow()))
      console.log(got.join('\\n'))
      if (cluster.isWorker) cluster.worker.disconnect()
    })
  `)
  const got = out.trim().split('\n')
  assert.equal(got.length, 800)
  assert.equal(distinct(got), 800)
})

test('a process that was stopped gives none of the IDs it held', { skip: process.platform !== 'linux' }, async t => {
  let serves = true
  const node = await startNode(t, (_, reply) => serves ? undefined : reply(503, refusal('STARTING')))
  const program = spawn(process.execPath, ['-e', `
    const { Allocator } = require(${JSON.stringify(join(__dirname, '..'))})
    const ids = new Allocator({ nodes: [${JSON.stringify(node.url)}], prefetch: 64, prefetchMaxAgeMs: 1000, timeoutMs: 60_000 })
    const take = () => { try { return ids.nextNow() && 'held' } catch (e) { return e.kind } }
    const begin = async () => { do await ids.fill(); while (take() !== 'held') }
    begin().then(() => console.log('held'))
    process.stdin.on('data', () => console.log(take()))
  `])
  t.after(() => program.kill('SIGKILL'))
  const lines = createInterface({ input: program.stdout })[Symbol.asyncIterator]()
  assert.equal((await lines.next()).value, 'held')
  program.kill('SIGSTOP')
  while (!/\) T /.test(fs.readFileSync(`/proc/${program.pid}/stat`))) await sleep(1)
  serves = false
  await sleep(1100)
  program.kill('SIGCONT')
  program.stdin.write('again\n')
  assert.equal((await lines.next()).value, 'empty')
})

test('the fake makes the same IDs in every run', async () => {
  const runs = await Promise.all([1, 2].map(async () => {
    const ids = new FakeAllocator({ prefetch: 4 })
    const got = [await ids.next(), ...await ids.nextMany(3), ids.nextNow(), await ids.next({ form: 'uuid' }), await ids.next({ after: 70000000000000000n })]
    ids.refuse('CLOCK_SKEW', { retryAfterMs: 60_000 })
    await assert.rejects(ids.nextMany(9, { timeoutMs: 500 }), e => kind('refused')(e) && e.reason === 'CLOCK_SKEW')
    ids.serve()
    got.push((await ids.waitFor(got[0])).int > got[0], ids.requests)
    await ids.close()
    return got
  }))
  assert.deepEqual(runs[0], runs[1])
  assert.equal(distinct(runs[0]), runs[0].length)
  const ids = new FakeAllocator()
  ids.refuse('DRAINING')
  await assert.rejects(ids.next({ timeoutMs: 900 }), kind('refused'))
  ids.serve()
  assert.equal(typeof await ids.next(), 'bigint')
})
