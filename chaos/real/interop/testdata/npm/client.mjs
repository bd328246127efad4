// Sends commands with one client: node client.mjs ioredis|redis PORT TOKEN|-
// It prints OK, or fails with what was not as it should be.
import assert from 'node:assert/strict'

const [, , library, port, token] = process.argv
const password = token === '-' ? undefined : token
const flake = /^[0-7][0-9A-HJKMNP-TV-Z]{12}$/

// Both clients behind one face: call(...words), pipeline(list of words), close().
async function connect (password) {
  if (library === 'ioredis') {
    const { Redis } = await import('ioredis')
    const c = new Redis({ port: Number(port), password, lazyConnect: true, retryStrategy: () => 50, maxRetriesPerRequest: 20 })
    const errors = [] // a refused token is an event, and the connection just ends
    c.on('error', e => errors.push(e))
    await c.connect().catch(e => { throw errors[0] ?? e })
    return {
      call: (...w) => c.call(...w),
      hget: (k, f) => c.hget(k, f),
      pipeline: async list => (await c.pipeline(list.map(w => ['call', ...w])).exec()).map(([e, v]) => e ?? v),
      multi: () => c.multi().call('ID.NEXT').exec(),
      drop: () => c.stream.destroy(),
      close: () => c.disconnect()
    }
  }
  const { createClient } = await import('redis')
  const c = createClient({ url: `redis://127.0.0.1:${port}`, password, socket: { reconnectStrategy: () => 50 } })
  c.on('error', () => {})
  await c.connect()
  return {
    call: (...w) => c.sendCommand(w),
    hget: (k, f) => c.hGet(k, f),
    pipeline: list => Promise.all(list.map(w => c.sendCommand(w).catch(e => e))),
    multi: () => c.multi().addCommand(['ID.NEXT']).exec(),
    drop: () => c.sendCommand(['QUIT']).catch(() => {}),
    close: () => c.destroy()
  }
}

const c = await connect(password)
let last = ''
const rising = id => {
  assert.equal(typeof id, 'string')
  assert.match(id, flake)
  assert.ok(id > last, `${id} after ${last}`)
  last = id
}
rising(await c.call('ID.NEXT'))
rising(await c.hget('id', 'next'))
const three = await c.call('ID.NEXT', 'COUNT', '3')
assert.equal(three.length, 3)
three.forEach(rising)

// An integer above 2^53 arrives with all its digits.
const number = await c.call('ID.NEXT', 'FORMAT', 'int')
assert.equal(typeof number, 'string')
assert.equal(String(BigInt(number)), number)
assert.ok(BigInt(number) > BigInt(Number.MAX_SAFE_INTEGER))

const many = await c.pipeline(Array.from({ length: 200 }, () => ['ID.NEXT']))
assert.equal(many.length, 200)
many.forEach(rising)

await assert.rejects(c.call('ID.NEXT', 'COUNT', '0'), /INVALID_COUNT/)
await assert.rejects(c.call('INCR', 'k'), /INCR is not supported/)
await assert.rejects(c.multi(), /(MULTI|EXEC) is not supported|aborted/i)
assert.equal(await c.call('PING'), 'PONG')

// After the connection is gone, the next call is answered on another.
await c.drop()
for (let i = 0; ; i++) {
  try {
    rising(await c.call('ID.NEXT'))
    break
  } catch (e) {
    if (i === 100) throw e
    await new Promise(resolve => setTimeout(resolve, 50))
  }
}

if (password) {
  await assert.rejects(async () => {
    const wrong = await Promise.race([
      connect('wrong'),
      new Promise((resolve, reject) => setTimeout(() => reject(new Error('WRONGPASS: no connection')), 3000))
    ])
    await wrong.call('ID.NEXT')
  }, /WRONGPASS|NOAUTH/)
}
c.close()
console.log('OK')
process.exit(0)
