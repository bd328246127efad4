// Drives this client for the suite in clients/conformance: a call a line on standard input, an answer a line on
// standard output.
import { createInterface } from 'node:readline'
import { Allocator, AllocatorError, Worker, parse, convert, timeOf, sidOf, firstOf } from '../index.mjs'

const clients = new Map()
const running = new Map() // AbortControllers, by the number of the call

class Clock { // both clocks of a client, as the suite moves them
  wallMs = 0
  pausedMs = 0
  now = () => performance.now() + this.pausedMs
  wall = () => Date.now() + this.pausedMs + this.wallMs
}

const ops = {
  open ({ client, nodes, options: { prefetchForm: form = 'int', ...options } = {} }) {
    const clock = new Clock()
    clients.set(client, { ids: new Allocator({ nodes, form, ...options, clock }), clock })
  },
  async worker ({ client, nodes, unitMs, options: { timeoutMs: openTimeoutMs, ...options } }) {
    const clock = new Clock()
    const ids = await Worker.open({ nodes, name: 'conformance', unitMs, openTimeoutMs, ...options, clock })
    clients.set(client, { ids, clock })
    return { value: ids.number }
  },
  lost: (call, worker) => ({ value: worker.lost.aborted }),
  permit: ({ at }, worker) => worker.permit(at),
  next: async (call, ids, options) => ({ ids: [await ids.next(options)] }),
  nextMany: async (call, ids, options) => ({ ids: await ids.nextMany(call.count, options) }),
  concurrent: async ({ count }, ids) => ({ ids: await Promise.all(Array.from({ length: count }, () => ids.next())) }),
  nextNow: (call, ids, { form }) => ({ ids: [ids.nextNow(form)] }),
  fill: (call, ids, options) => ids.fill(options),
  watermark: async (call, ids, options) => ({ watermark: (await ids.watermark(options)).int }),
  waitFor: async (call, ids, { after, ...options }) => ({ watermark: (await ids.waitFor(after, options)).int }),
  number: async (call, ids) => ({ ids: [await ids.next({ after: 2 ** 60 })] }),
  cancel: ({ call }) => running.get(call)?.abort(),
  leap: ({ client, wallMs }) => { clients.get(client).clock.wallMs += wallMs },
  pause: ({ client, ms }) => { clients.get(client).clock.pausedMs += ms },
  close: (call, ids) => ids.close(),
  parse: ({ text }) => ({ ids: [parse(text).int ?? convert(text, 'int')] }),
  timeOf: ({ text }) => ({ value: timeOf(text).toISOString() }),
  sidOf: ({ text }) => ({ value: sidOf(text) }),
  firstOf: ({ time }) => ({ ids: [firstOf(new Date(time))] })
}

async function answer (call) {
  if (!Object.hasOwn(ops, call.op)) throw new AllocatorError('unsupported', `there is no op ${call.op}`)
  const { form, after, timeoutMs, client } = call
  const abort = new AbortController()
  const options = Object.fromEntries(Object.entries({ form, after, timeoutMs, signal: abort.signal }).filter(([, v]) => v !== undefined))
  running.set(call.id, abort)
  try {
    return await ops[call.op](call, clients.get(client)?.ids, options)
  } finally {
    running.delete(call.id)
  }
}

const print = object => process.stdout.write(JSON.stringify(object, (_, v) => typeof v === 'bigint' || (_ === 'value') ? String(v) : v) + '\n')

createInterface({ input: process.stdin }).on('line', line => {
  const call = JSON.parse(line)
  answer(call).then(out => print({ id: call.id, ...out }), e => {
    const { kind = `none: ${e.stack}`, reason, message, retryAfterMs } = e
    print({ id: call.id, error: { kind, reason, message, retryAfterMs } })
  })
})
