'use strict'

// A worker number for a generator outside of the nodes, such as a Snowflake library.

const { randomBytes } = require('node:crypto')
const { hostname } = require('node:os')
const { setTimeout: sleep } = require('node:timers/promises')
const { AllocatorError, invalid, show } = require('./errors.js')
const { Nodes, CLOCK, OPTIONS, checkKeys, milliseconds, protocol, gaveUp } = require('./nodes.js')

const RETRY_MS = [100, 2000] // doubled from the first to the last
const LEAST_EVERY_MS = 100
const CALL_MS = 500 // A call to extend has at least so long.
const DEMAND_MS = 1000 // After a refused permit the next call is made so soon after the last one.
const RELEASE_MS = 5000
const LEAP_MS = 1000 // by which the wall clock is set forward at least to count

const opened = Symbol('opened')

/**
 * A worker number that this program holds, for an interval of time that is kept extended. permit says whether an ID
 * may be used: nobody else is ever granted the number for the time that it permits.
 */
class Worker {
  #nodes
  #id
  #handle
  #unit
  #began // the interval is [#began, #ends)
  #ends // 0: closed or lost, and never set again
  #used // the end of the last unit that was permitted
  #lost = new AbortController()
  #timer
  #wake
  #state = 'held'
  #last // when the last call to extend began
  #fails = 0
  #clock
  #ahead // by how much the wall clock is ahead of the monotonic one

  /** Resolves to a worker once its interval has begun. */
  static async open (options = {}) {
    checkKeys(options, [...OPTIONS, 'name', 'unitMs', 'openTimeoutMs', 'clock'], 'options')
    const own = `${hostname().slice(0, 50)}-${process.pid}`
    const { name = own, unitMs = 1, openTimeoutMs, clock = CLOCK, ...rest } = options
    if (typeof name !== 'string' || name === '' || Buffer.byteLength(name) > 64) {
      throw invalid(`name is ${show(name)}: give 1 to 64 characters`)
    }
    if (!Number.isInteger(unitMs) || unitMs < 1 || unitMs > 60_000) {
      throw invalid(`unitMs is ${show(unitMs)}: give whole milliseconds, 1 to 60000`)
    }
    const within = milliseconds({ openTimeoutMs }, 'openTimeoutMs', 90_000)
    const nodes = new Nodes(rest)
    const worker = new Worker(opened, nodes, unitMs, clock)
    try {
      const deadline = performance.now() + within
      await worker.#acquire(name, deadline)
      await worker.#untilBegun(deadline)
    } catch (e) {
      await (worker.#handle ? worker.close().catch(() => {}) : nodes.close())
      throw e
    }
    return worker
  }

  constructor (key, nodes, unit, clock) {
    if (key !== opened) throw invalid('a worker is made by await Worker.open(options)')
    this.#nodes = nodes
    this.#unit = unit
    this.#clock = clock
    this.#ahead = this.#readAhead()
  }

  /** The worker number, a sid of the space. */
  get number () { return this.#id?.worker }
  /** The number and how often it was acquired, such as 17-4. It is no secret. */
  get id () { return this.#id?.id }
  /** An AbortSignal that is aborted when the worker is lost. */
  get lost () { return this.#lost.signal }
  /** The milliseconds [notBefore, notAfter) of the worker's IDs; notAfter is 0 once it is closed or lost. */
  get interval () { return { notBefore: this.#began, notAfter: this.#ends } }

  /**
   * Returns if an ID may be used whose own time is ms (Unix milliseconds, of the start of its unit). Ask after the ID
   * was made and before it is used. It throws an AllocatorError: lost, closed, or refused with the reason NOT_YET or
   * EXPIRED; then the ID must not be used.
   */
  permit (ms) {
    if (!Number.isSafeInteger(ms)) throw invalid(`the time is ${show(ms)}: give the ID's Unix milliseconds`)
    this.#look()
    if (this.#ends === 0) throw this.#over()
    if (ms < this.#began) {
      throw new AllocatorError('refused', `${ms} is before the worker's interval: check this machine's clock`,
        { reason: 'NOT_YET' })
    }
    if (ms > this.#ends - this.#unit) {
      this.#wake?.()
      throw new AllocatorError('refused', `${ms} is after the worker's interval: check that nodes can be reached, ` +
        "and this machine's clock", { reason: 'EXPIRED' })
    }
    this.#used = Math.max(this.#used, ms + this.#unit)
  }

  /** Loses the worker where this memory may be that of a machine that was saved and copied. */
  #look () {
    const ahead = this.#readAhead()
    const by = ahead - this.#ahead
    if (by >= LEAP_MS) {
      this.#lose(`the wall clock was set forward by ${Math.round(by)} ms: it was wrong, or this machine was ` +
        'suspended, or is a copy of one that was saved')
    }
    this.#ahead = ahead
  }

  /** Returns by how much the wall clock is ahead of the monotonic one. A pause between the two shows too little. */
  #readAhead () {
    const read = () => this.#clock.wall() - this.#clock.now()
    return Math.max(read(), read())
  }

  /** Gives the number back. The next worker with it begins after the last time that permit allowed. */
  close () { return this.#release(this.#used) }

  /** close for a generator that does not ask permit: no ID has the time usedUntil (Unix ms) or a later one. */
  release (usedUntil) {
    if (usedUntil !== undefined && !Number.isSafeInteger(usedUntil)) {
      throw invalid(`usedUntil is ${show(usedUntil)}: give Unix milliseconds`)
    }
    return this.#release(usedUntil)
  }

  async #acquire (name, deadline) {
    for (;;) {
      const secret = randomBytes(16).toString('hex')
      let requests = 0
      try {
        return this.#take(await this.#ask('POST', '/v1/workers', () => {
          requests++
          return { name, secret, clock_unix_ms: Math.trunc(this.#clock.wall()) }
        }, deadline, true), true)
      } catch (e) {
        if (e.reason === 'WORKER_QUOTA' && performance.now() + e.retryAfterMs < deadline) {
          await sleep(e.retryAfterMs) // Calls whose outcome a node does not know count until then.
        } else if (e.reason !== 'INVALID_FORMAT' || requests < 2) {
          throw e
        } // The worker of an answer that was lost may be in use by now: another secret acquires another.
      }
    }
  }

  /** Waits until a unit of the interval has begun, by this machine's clock. */
  async #untilBegun (deadline) {
    for (let left; (left = this.#began + this.#unit - 1 - this.#clock.wall()) > 0;) {
      if (this.#ends === 0) throw this.#over()
      if (performance.now() + left > deadline) {
        throw new AllocatorError('refused', `worker ${this.id} begins in ${left} ms: every number was used a short ` +
          'time ago', { reason: 'NOT_YET', retryAfterMs: left })
      }
      await sleep(Math.min(left, 1000)) // The clock may be set meanwhile.
    }
  }

  /** Takes the answer to a call. first: the one that acquired the worker. */
  #take (answer, first) {
    const { id, worker, handle, not_before_unix_ms: began, not_after_unix_ms: ends } = answer
    const { extend_at_unix_ms: next, now_unix_ms: now } = answer
    if (![began, ends, next, now, worker].every(Number.isSafeInteger) || began <= 0 || ends < began || !id || !handle) {
      throw protocol({ url: 'a node' }, 'the answer is no worker')
    }
    if (!first && (id !== this.#id.id || handle !== this.#handle || began !== this.#began || ends < this.#ends)) {
      throw protocol({ url: 'a node' }, `it answered for worker ${show(id)} instead of ${this.#id.id}`)
    }
    if (first) {
      this.#id = { id, worker }
      this.#handle = handle
      this.#began = this.#used = began
    }
    this.#ends = ends
    this.#fails = 0
    // By the node's clock alone: this machine's may be wrong.
    this.#schedule(Math.max(LEAST_EVERY_MS, next - now))
  }

  #schedule (ms) {
    clearTimeout(this.#timer)
    const due = () => {
      this.#wake = undefined
      this.#extend(Math.max(CALL_MS, ms / 4))
    }
    this.#timer = setTimeout(due, ms)
    this.#timer.unref()
    // After a suspend no timer has noticed it: a permit that is refused asks at once, but not each time.
    this.#wake = () => {
      if (performance.now() - this.#last < DEMAND_MS) return
      clearTimeout(this.#timer)
      due()
    }
    this.#last ??= performance.now()
  }

  async #extend (withinMs) {
    this.#last = performance.now()
    this.#look()
    if (this.#state !== 'held') return
    try {
      const answer = await this.#ask('POST', `/v1/workers/${this.#id.id}:extend`,
        () => ({ not_after_unix_ms: this.#ends }), this.#last + withinMs)
      if (this.#state === 'held') this.#take(answer, false)
    } catch (e) {
      if (this.#state !== 'held') return
      if (['UNKNOWN_WORKER', 'HISTORY_REWOUND'].includes(e.reason)) return this.#lose(e.message, e)
      const wait = Math.min(RETRY_MS[0] * 2 ** Math.min(this.#fails++, 10), RETRY_MS[1])
      this.#schedule(wait / 2 + wait / 2 * Math.random())
    }
  }

  #ask (method, path, body, deadline, alive = false) {
    const abort = new AbortController()
    return new Promise((resolve, reject) => {
      const timeoutMs = Math.max(1, deadline - performance.now())
      const call = { deadline, reject: e => { reject(e); abort.abort() } }
      const timer = setTimeout(() => call.reject(gaveUp(call, Math.round(timeoutMs))), timeoutMs)
      if (!alive) timer.unref()
      this.#nodes.ask({ calls: [call], abort }, () => ({
        method,
        path,
        headers: {
          ...(body && { 'content-type': 'application/json' }),
          ...(this.#handle && { 'worker-handle': this.#handle })
        },
        body: body && JSON.stringify(body()),
        maxBytes: 1 << 16,
        take: answer => answer
      })).then(resolve, reject).finally(() => clearTimeout(timer))
    })
  }

  #over () {
    if (this.#state !== 'lost') return new AllocatorError('closed', 'the worker is closed')
    return new AllocatorError('lost', `the worker is lost: ${this.#lost.signal.reason.message}; open another one`)
  }

  #lose (why, cause) {
    if (this.#state !== 'held') return
    this.#state = 'lost'
    this.#ends = 0
    clearTimeout(this.#timer)
    this.#lost.abort(new AllocatorError('lost', why, { cause }))
  }

  async #release (usedUntil) {
    this.#look() // The other copy goes on with the number.
    const held = this.#state === 'held'
    if (this.#state === 'closed') return
    this.#state = held ? 'closed' : this.#state
    this.#ends = 0
    clearTimeout(this.#timer)
    try {
      if (held) {
        const query = usedUntil === undefined ? '' : `?used_until_unix_ms=${usedUntil}`
        await this.#ask('DELETE', `/v1/workers/${this.#id.id}${query}`, undefined, performance.now() + RELEASE_MS, true)
      }
    } catch (e) {
      if (e.reason !== 'UNKNOWN_WORKER') throw e // An earlier attempt did it.
    } finally {
      this.#nodes.close()
    }
  }
}

module.exports = { Worker }
