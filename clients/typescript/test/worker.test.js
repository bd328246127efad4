'use strict'

const test = require('node:test')
const assert = require('node:assert/strict')
const { Worker } = require('../index.js')
const { startNode, refusal } = require('./node.js')

const START = 1_800_000_000_000

/** Starts a node that knows one worker, whose clock the test moves. */
async function startBroker (t) {
  const broker = { now: START, ahead: 0, window: 60_000, acquired: 0, used: undefined }
  broker.node = await startNode(t, ({ method, path, headers, body, query }, reply) => {
    const fields = body === '' ? {} : JSON.parse(body)
    if (path === '/v1/workers') {
      broker.acquired++
      broker.worker = { id: `17-${broker.acquired}`, worker: 17, term: broker.acquired, name: fields.name, handle: fields.secret, not_before_unix_ms: broker.now + broker.ahead }
      broker.asked = fields
    } else if (headers['worker-handle'] !== broker.worker.handle) {
      return reply(404, refusal('UNKNOWN_WORKER', { status: 404 })) ?? true
    } else if (method === 'DELETE') {
      broker.used = query.used_until_unix_ms
      return reply(200, { reusable_from_unix_ms: 1 }) ?? true
    }
    reply(method === 'POST' && path === '/v1/workers' ? 201 : 200, {
      ...broker.worker, not_after_unix_ms: Math.max(broker.now, broker.worker.not_before_unix_ms) + broker.window,
      extend_at_unix_ms: broker.now + 20_000, now_unix_ms: broker.now
    })
    return true
  })
  broker.open = options => Worker.open({ nodes: [broker.node.url], clock: { now: () => broker.now, wall: () => broker.now }, ...options })
  return broker
}

const fails = (kind, reason) => e => e.kind === kind && e.reason === reason && e.message !== ''
const until = async condition => { while (!condition()) await new Promise(setImmediate) }

test('what permit and close say', async t => {
  const broker = await startBroker(t)
  const worker = await broker.open({ name: 'orders' })
  assert.deepEqual([worker.number, worker.id, worker.interval, broker.asked.name],
    [17, '17-1', { notBefore: START, notAfter: START + 60_000 }, 'orders'])
  for (const bad of [undefined, 1.5, '1', 1n, NaN]) assert.throws(() => worker.permit(bad), fails('invalid'))
  await worker.close()
  assert.equal(worker.interval.notAfter, 0)
})

test('a clock that is set forward between two reads is noticed', async t => {
  const broker = await startBroker(t)
  for (let old = 0; old < 3; old++) {
    let reads = -Infinity
    const worker = await broker.open({ clock: { now: () => broker.now, wall: () => broker.now + (reads++ < old ? 0 : 3_600_000) } })
    reads = 0
    try { worker.permit(START) } catch {}
    assert.throws(() => worker.permit(START), fails('lost'))
    await worker.close()
  }
})

test('release says until when the number was used', async t => {
  const broker = await startBroker(t)
  await (await broker.open()).release(START + 5)
  assert.equal(broker.used, String(START + 5))
  await (await broker.open()).release()
  assert.equal(broker.used, undefined)
  await assert.rejects(async () => (await broker.open()).release('now'), fails('invalid'))
})

test('an interval that has not begun is waited for', async t => {
  const broker = await startBroker(t)
  broker.ahead = 50
  const opening = broker.open()
  await until(() => broker.acquired === 1)
  broker.now += 50
  ;(await opening).permit(START + 50)
  broker.ahead = 60_000
  await assert.rejects(broker.open({ openTimeoutMs: 50_000 }), fails('refused', 'NOT_YET'))
  assert.equal(broker.used, String(START + 60_050), 'the number was given back')
})

test('wrong options', async t => {
  const broker = await startBroker(t)
  for (const options of [{ name: '' }, { name: 'x'.repeat(65) }, { unitMs: 0 }, { unitMs: 1.5 }, { openTimeoutMs: -1 }, { nodes: [] }, { nmae: 'x' }, { prefetch: 4 }]) {
    await assert.rejects(broker.open(options), fails('invalid'))
  }
  assert.throws(() => new Worker(), fails('invalid'))
})
