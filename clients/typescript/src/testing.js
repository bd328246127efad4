'use strict'

// A client without nodes, for the tests of programs.

const { AllocatorError } = require('./errors.js')
const { Allocator } = require('./client.js')
const { TRANSPORT } = require('./nodes.js')
const { FORMS, read, format, firstOf, layoutOf, convert, isWide, widen } = require('./ids.js')

const START = Date.UTC(2026, 0, 1)

/**
 * A client that makes the same IDs in every run: its clock begins at 2026-01-01 and moves with each ID and with
 * advance. All else is the real client's: it checks arguments, shares requests and holds IDs.
 */
class FakeAllocator extends Allocator {
  #state

  constructor (options = {}) {
    const state = { ms: START, next: 0n, requests: 0, refusal: undefined, sid: 7n }
    super({
      nodes: ['http://fake'],
      clock: { now: () => state.ms, wall: () => state.ms },
      ...options,
      [TRANSPORT]: { send: (_, request) => answer(state, request), close () {} }
    })
    this.#state = state
  }

  /** Has requests refused, for a reason such as CLOCK_SKEW, until serve. */
  refuse (reason, { retryAfterMs, status = 503 } = {}) {
    this.#state.refusal = { status, body: { reason, detail: 'refused by the test', retry_after_ms: retryAfterMs } }
  }

  /** Has requests served again. The clock moves on by 5 s, so that no delay of a refusal is waited for. */
  serve () {
    this.#state.refusal = undefined
    this.advance(5000)
  }

  /** Moves the clock. */
  advance (ms) { this.#state.ms += ms }

  /** How many requests there were. */
  get requests () { return this.#state.requests }
}

async function answer (state, { path, signal }) {
  await null // A node does not answer at once.
  if (signal?.aborted) throw new AllocatorError('canceled', 'the caller left')
  state.requests++
  const url = new URL(path, 'http://fake')
  const reply = (body, status = 200) => ({ status, text: JSON.stringify(body) })
  if (state.refusal) return reply(state.refusal.body, state.refusal.status)
  const asked = url.searchParams.get('after')
  let after = 0n
  try {
    if (asked !== null) after = read(convert(asked, 'int')).value
  } catch {
    return reply({ reason: 'INVALID_ID', detail: `${asked} cannot be of this space` }, 400)
  }
  if (url.pathname === '/v1/watermark') {
    if (after > 0n && asked !== null) state.ms = Math.max(state.ms, Number(after >> 20n) + layoutOf().epoch + 1)
    const forms = Object.fromEntries(FORMS.map(form => [form, String(firstOf(state.ms, form))]))
    return reply({ unix_ms: state.ms, ...forms, lag_ms: 0, held: false })
  }
  const form = url.searchParams.get('as')
  const ids = []
  for (let n = Number(url.searchParams.get('count')); n > 0; n--) {
    const first = firstOf(++state.ms) | state.sid
    const above = state.next > after ? state.next : after
    state.next = first > above ? first : above + 32n
    // As nodes do, with zeros where they have random bits.
    ids.push(String(format(isWide(form) ? widen(state.next, layoutOf()) : state.next, form)))
  }
  return reply({ ids, node: 'fake', sid: Number(state.sid) })
}

module.exports = { FakeAllocator }
