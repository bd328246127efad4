'use strict'

// What the package promises of speed, as counts and as ratios of one run with a node: NODES has its URL.

const test = require('node:test')
const assert = require('node:assert/strict')
const { randomUUID } = require('node:crypto')
const { setFlagsFromString } = require('node:v8')
const { runInNewContext } = require('node:vm')
const { Allocator } = require('../index.js')
const { startNode } = require('./node.js')

const nodes = process.env.NODES?.split(',')
const skip = nodes ? false : 'NODES is not set: chaos/real/interop starts nodes'

/** Returns the shortest of several times that f took, divided by n, in nanoseconds: the least disturbed one. */
async function shortest (rounds, n, f, before = () => {}) {
  let best = Infinity
  for (let i = 0; i < rounds; i++) {
    await before()
    const began = performance.now()
    await f()
    best = Math.min(best, (performance.now() - began) * 1e6 / n)
  }
  return best
}

test('64 callers at once share requests', async t => {
  const node = await startNode(t)
  const ids = new Allocator({ nodes: [node.url] })
  t.after(() => ids.close())
  await Promise.all(Array.from({ length: 64 }, async () => { for (let i = 0; i < 20; i++) await ids.next() }))
  assert.ok(node.requests.length * 5 <= 64 * 20, `${node.requests.length} requests for 64 * 20 calls`)
})

test('64 callers get five times as many IDs as one', { skip }, async t => {
  const ids = new Allocator({ nodes, timeoutMs: 60_000 })
  t.after(() => ids.close())
  const caller = async n => { for (let i = 0; i < n; i++) await ids.next() }
  const alone = await shortest(5, 200, () => caller(200))
  const together = await shortest(5, 64 * 20, () => Promise.all(Array.from({ length: 64 }, () => caller(20))))
  t.diagnostic(`an ID in ${(alone / 1000).toFixed(0)} us alone, in ${(together / 1000).toFixed(1)} us with 64 callers`)
  assert.ok(alone >= 5 * together)
})

test('nextNow is about as fast as a random UUID', { skip }, async t => {
  const ids = new Allocator({ nodes, prefetch: 10_000, prefetchMaxAgeMs: 60_000, timeoutMs: 60_000 })
  t.after(() => ids.close())
  const n = 4000
  const repeat = f => () => { for (let i = 0; i < n; i++) f() }
  const held = await shortest(20, n, repeat(() => ids.nextNow()), async () => {
    await ids.nextMany(2) // What is fetched with them is held from now on.
  })
  const random = await shortest(20, n, repeat(randomUUID))
  t.diagnostic(`nextNow ${held.toFixed(0)} ns, crypto.randomUUID ${random.toFixed(0)} ns`)
  assert.ok(held <= 14 * random) // A microsecond, where a UUID takes 72 ns.
})

test('a client needs less than 2 MB', { skip }, async t => {
  const clients = []
  setFlagsFromString('--expose-gc')
  const gc = runInNewContext('gc')
  const used = () => { gc(); return process.memoryUsage().heapUsed + process.memoryUsage().external }
  const open = async n => {
    for (let i = 0; i < n; i++) {
      clients.push(new Allocator({ nodes, prefetch: 64, prefetchMaxAgeMs: 60_000 }))
      await clients.at(-1).fill()
    }
  }
  await open(1)
  const before = used()
  await open(10)
  const each = (used() - before) / 10
  t.diagnostic(`${(each / 1024).toFixed(0)} KiB for a client with its connection and 64 IDs`)
  await Promise.all(clients.map(ids => ids.close()))
  assert.ok(each < 2 << 20)
})
