'use strict'

// With real nodes: NODES has the URLs of some of one space, divided by commas, WORKERS says that they have worker numbers.

const test = require('node:test')
const assert = require('node:assert/strict')
const { Allocator, Worker, convert, sidOf, timeOf } = require('../index.js')

const nodes = process.env.NODES?.split(',')
const skip = nodes ? false : 'NODES is not set: chaos/real/interop starts nodes'

test('IDs of real nodes', { skip }, async t => {
  const ids = new Allocator({ nodes, prefetch: 100, prefetchMaxAgeMs: 60_000, timeoutMs: 60_000 })
  t.after(() => ids.close())
  const seen = [...await Promise.all(Array.from({ length: 64 }, () => ids.next())), ...await ids.nextMany(25_000)]
  for (let i = 0; i < 1000; i++) {
    if (i % 50 === 0) await ids.fill()
    seen.push(ids.nextNow())
  }
  assert.equal(new Set(seen).size, 26_064)
  assert.ok(seen.every((id, i) => i === 0 || id > seen[i - 1]))
  const wide = await ids.next({ form: 'uuid', after: seen.at(-1) })
  assert.ok(convert(wide, 'int') > seen.at(-1))
  assert.ok(Math.abs(timeOf(wide) - Date.now()) < 60_000)
  const flake = await ids.next({ form: 'flake', after: wide })
  assert.ok(convert(flake, 'int') > convert(wide, 'int'))
  assert.ok(sidOf(flake) < 32)
  const ulid = await ids.next({ form: 'ulid' })
  assert.ok(convert(ulid, 'int') > convert(flake, 'int'))
  const mark = await ids.watermark()
  assert.ok(mark.unixMs > 0 && mark.int > 0n)
  const past = await ids.waitFor(ulid, { timeoutMs: 60_000 })
  assert.ok(past.uuid > convert(ulid, 'uuid') && past.unixMs >= mark.unixMs)
  await assert.rejects(ids.next({ after: (await ids.next()) + (1n << 50n), timeoutMs: 60_000 }), e => e.reason === 'AFTER_TOO_FAR', 'an ID of another space')
})

test('a worker of real nodes', { skip: skip || !process.env.WORKERS }, async () => {
  const worker = await Worker.open({ nodes, name: 'test' })
  worker.permit(Date.now())
  assert.throws(() => worker.permit(Date.now() + 3_600_000), e => e.reason === 'EXPIRED')
  const other = await Worker.open({ nodes, name: 'test' })
  assert.notEqual(other.number, worker.number)
  await Promise.all([worker.close(), other.close()])
})
