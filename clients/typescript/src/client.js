'use strict'

// A client: it shares requests between calls, and holds IDs ahead for callers that cannot wait.

const { AllocatorError, invalid, show } = require('./errors.js')
const { Nodes, CLOCK, OPTIONS, checkKeys, milliseconds, sleep, protocol, gaveUp } = require('./nodes.js')
const { read, format, isWide, checkForm, MAX_INT } = require('./ids.js')

const MAX_COUNT = 1_000_000 // of one call
const MAX_REQUEST = 10_000 // of one request, unless nodes say less
const POLL_MS = 5000 // for which a node is asked to wait for the watermark
const WARM_MS = 60_000 // for which IDs are held ahead after the last call that took one
const LEAP_MS = 10 // by which two clocks, which are not read at once, differ without one having been set

/** Calls that wait for IDs of one width, and the IDs of that width that are held. */
class Queue {
  waiters = new Set()
  held = [] // blocks of IDs that callers will take
  flight // the request under way
  constructor (wide, after) {
    this.wide = wide
    this.form = wide ? 'uuid' : 'int' // in which requests ask for IDs; those of one width are one in several forms
    this.after = after // undefined: above all that the client was given
  }
}

class Allocator {
  #nodes
  #o
  #queues = [new Queue(false), new Queue(true)]
  #running = false // requests for them are sent, one at a time
  #limit = MAX_REQUEST // the greatest count of a request
  #latest // the queue that callers were given IDs of last: those of the two widths do not compare
  #wanted = -Infinity // when a held ID was last asked for
  #warmth // the timer that fetches IDs before those held are too old
  #mark // the highest watermark
  #calls = new Set() // promises of calls under way
  #closed = false

  constructor (options) {
    checkKeys(options, [...OPTIONS, 'form', 'prefetch', 'prefetchMaxAgeMs', 'clock'], 'options')
    const { form = 'int', prefetch = 0, clock = CLOCK } = options
    const size = prefetch === true ? 64 : prefetch === false ? 0 : prefetch
    if (!Number.isInteger(size) || size < 0 || size > MAX_REQUEST) {
      throw invalid(`prefetch is ${show(prefetch)}: give a whole number, 0 to ${MAX_REQUEST}`)
    }
    this.#o = {
      form: checkForm(form),
      prefetch: size,
      timeoutMs: milliseconds(options, 'timeoutMs', 10_000),
      maxAgeMs: milliseconds(options, 'prefetchMaxAgeMs', 1000),
      clock
    }
    this.#nodes = new Nodes({ ...options, clock })
  }

  /** Resolves to one ID, above all whose calls ended before. Calls that wait share a request. */
  async next (options = {}) {
    return (await this.#draw(1, options))[0]
  }

  /** Resolves to count IDs in rising order, by one request for each 10,000. */
  async nextMany (count, options = {}) {
    if (!Number.isInteger(count) || count < 1 || count > MAX_COUNT) {
      throw invalid(`count is ${show(count)}: give a whole number, 1 to ${MAX_COUNT}`)
    }
    return this.#draw(count, options)
  }

  /** Returns an ID that was fetched before, at once. It throws an AllocatorError of kind empty where there is none. */
  nextNow (form = this.#o.form) {
    this.#checkPrefetch('nextNow')
    const id = this.#take(this.#queues[+isWide(checkForm(form))])
    if (id === undefined) {
      throw new AllocatorError('empty', 'no ID is held: it was the first call, or IDs are used faster than they ' +
        'come, or those held were too old; await fill() before, or set a larger prefetch')
    }
    return inForm(id, form)
  }

  /** Resolves when IDs are held for nextNow: at once if some are. */
  async fill (options = {}) {
    this.#checkPrefetch('fill')
    this.#wanted = this.#o.clock.now()
    const queue = this.#queues[+isWide(checkForm(options.form ?? this.#o.form))]
    if (!this.#fresh(queue)) await this.#wait(queue, 0, options)
  }

  #checkPrefetch (method) {
    if (this.#closed) throw closed()
    if (this.#o.prefetch === 0) {
      throw invalid(`${method} needs the option prefetch: set how many IDs are held, such as 64`)
    }
  }

  /** Resolves to the watermark: no ID below it is issued any more. It never falls. */
  watermark (options = {}) {
    return this.#markAbove(undefined, options)
  }

  /** Resolves to the watermark once it is above an ID: no ID at or below that can appear any more. */
  async waitFor (id, options = {}) {
    const { form, value } = read(id)
    if (form === 'int' || form === 'flake') {
      return this.#markAbove({ text: String(value), isBelow: mark => value < mark.int }, options)
    }
    const text = format(value, 'uuid')
    return this.#markAbove({ text, isBelow: mark => mark.uuid !== undefined && text < mark.uuid }, options)
  }

  /** Lets calls that are under way finish, then closes the connections. Later calls fail with kind closed. */
  async close () {
    this.#closed = true
    clearTimeout(this.#warmth)
    for (const queue of this.#queues) {
      queue.held = []
      for (const w of queue.waiters) if (w.background) w.reject(closed())
    }
    await Promise.allSettled(this.#calls)
    this.#nodes.close()
  }

  async #draw (count, options) {
    checkKeys(options, ['form', 'after', 'timeoutMs', 'signal'], 'options of a call')
    const form = checkForm(options.form ?? this.#o.form)
    const queue = this.#queues[+isWide(form)]
    const after = options.after === undefined ? undefined : read(options.after, 'after')
    // What is below an ID that this client was given is below all that come anyway.
    if (after && !(isWide(after.form) === queue.wide && format(after.value, queue.form) <= queue.given)) {
      return this.#wait(new Queue(queue.wide, after), count, { ...options, form })
    }
    const may = count === 1 && this.#o.prefetch > 0 && !this.#closed && !options.signal?.aborted
    const id = may ? this.#take(queue) : undefined
    return id === undefined ? this.#wait(queue, count, { ...options, form }) : [inForm(id, form)]
  }

  /** Resolves to count IDs of a queue's requests; with 0 when IDs are held. */
  #wait (queue, count, options, background = false) {
    checkKeys(options, ['form', 'after', 'timeoutMs', 'signal'], 'options of a call')
    const waiter = { count, ids: [], background, form: options.form }
    const ended = this.#call(options, waiter, () => {
      queue.waiters.delete(waiter)
      const { flight } = queue
      if (flight && flight.parts.every(([w]) => !queue.waiters.has(w))) flight.abort.abort()
    })
    if (waiter.ended) return ended
    queue.waiters.add(waiter)
    if (queue.after !== undefined) {
      this.#serve(queue)
    } else if (!this.#running) { // Calls of one turn of the event loop share the request.
      this.#running = true
      queueMicrotask(() => this.#run())
    }
    return ended
  }

  /**
   * Begins a call: sets resolve and reject of call, which end it. Its time and its signal end it too. leave is called
   * after any end.
   */
  #call (options, call, leave = () => {}) {
    const timeoutMs = milliseconds(options, 'timeoutMs', this.#o.timeoutMs)
    const { signal } = options
    if (signal !== undefined && typeof signal?.addEventListener !== 'function') {
      throw invalid(`signal is ${show(signal)}: give an AbortSignal`)
    }
    call.deadline = performance.now() + timeoutMs
    call.own = options.timeoutMs !== undefined
    const promise = new Promise((resolve, reject) => {
      const end = settle => value => {
        if (call.ended) return
        call.ended = true
        clearTimeout(call.timer)
        signal?.removeEventListener('abort', aborted)
        settle(value)
        leave()
      }
      call.resolve = end(resolve)
      call.reject = end(reject)
      const aborted = () => {
        call.reject(new AllocatorError('canceled', 'the call was canceled', { cause: signal.reason }))
      }
      if (this.#closed) return call.reject(closed())
      if (signal?.aborted) return aborted()
      signal?.addEventListener('abort', aborted)
      call.timer = setTimeout(() => call.reject(gaveUp(call, timeoutMs)), timeoutMs)
      if (call.background) call.timer.unref()
    })
    this.#calls.add(promise)
    const over = () => { this.#calls.delete(promise) }
    promise.then(over, over)
    return promise
  }

  /** Serves calls, by one request at a time: so each request sends what all before it brought. */
  async #run () {
    while (this.#queues.some(queue => queue.waiters.size > 0)) {
      for (const queue of this.#queues) await this.#serve(queue)
    }
    this.#running = false
  }

  /** Serves the calls that wait in a queue, or part of them, by one request. */
  async #serve (queue) {
    const holds = this.#o.prefetch > 0 && queue.after === undefined
    if (holds) {
      for (const w of queue.waiters) {
        if (w.count === 0 && !w.background && this.#fresh(queue)) w.resolve()
        const id = w.count === 1 ? this.#take(queue) : undefined
        if (id !== undefined) w.resolve([inForm(id, w.form)])
      }
    }
    const parts = []
    let total = 0
    for (const w of queue.waiters) {
      const n = Math.min(w.count - w.ids.length, this.#limit - total)
      if (n > 0 || w.count === 0) parts.push([w, n])
      total += n
    }
    if (parts.length === 0) return
    // IDs that come now are above those held, which are of no use once callers have the new ones.
    const spare = holds ? Math.min(this.#o.prefetch, this.#limit - total) : 0
    const other = this.#queues[+!queue.wide]
    const { given } = other
    const flight = queue.flight = { parts, calls: parts.map(([w]) => w), abort: new AbortController() }
    try {
      const sent = this.#instant()
      const ids = await this.#request(queue, total + spare, flight)
      let at = 0
      for (const [w, n] of parts) {
        if (w.ended || n === 0) continue
        for (const end = at + n; at < end;) w.ids.push(inForm(ids[at++], w.form))
        this.#give(queue, ids[at - 1])
      }
      // What came while an ID of the other width was given may be below it.
      const kept = spare > 0 && other.given === given
      if (kept && !this.#closed) this.#hold(queue, ids.slice(at), sent)
      for (const [w] of parts) if (w.count > 0 ? w.ids.length === w.count : kept || w.background) w.resolve(w.ids)
    } catch (e) {
      const limit = Number(e.metadata?.limit)
      if (e.reason === 'INVALID_COUNT' && limit >= 1 && limit < total + spare) {
        this.#limit = Math.min(this.#limit, limit) // The next request asks for no more.
      } else {
        for (const [w] of parts) w.reject(e)
      }
    }
    queue.flight = undefined
    if (queue.after !== undefined && queue.waiters.size > 0) return this.#serve(queue)
  }

  /** Resolves to n IDs of one node, checked. */
  async #request (queue, n, flight) {
    return this.#nodes.ask(flight, node => {
      const own = this.#queues[+queue.wide]
      const floor = queue.after ?? own.top
      const after = queue.after ? format(queue.after.value, queue.after.form) : (this.#latest ?? own).top
      return {
        method: 'POST',
        path: `/v1/ids?as=${queue.form}&count=${n}${after === undefined ? '' : `&after=${after}`}`,
        maxBytes: 1000 + 48 * n,
        take: body => {
          const ids = idsOf(node, body, n, queue, floor)
          if (!(own.top >= ids[n - 1])) own.top = ids[n - 1]
          return ids
        }
      }
    }, { own: queue.after !== undefined })
  }

  /** Returns the two clocks: where they do not go on together, this memory is a copy. */
  #instant () {
    const { now, wall } = this.#o.clock
    const at = now()
    return { at, ahead: wall() - at }
  }

  /** Says whether an ID is held that may be given, and drops those that may not. */
  #fresh (queue) {
    for (let block; (block = queue.held[0]) !== undefined; queue.held.shift()) {
      const { at, ahead } = this.#instant()
      const isLeap = ahead => Math.abs(ahead - block.sent.ahead) > LEAP_MS
      // Read twice before it counts: the process may have been paused between the two clocks.
      if (at - block.sent.at >= this.#o.maxAgeMs || (isLeap(ahead) && isLeap(this.#instant().ahead))) continue
      while (block.at < block.ids.length && block.ids[block.at] <= queue.given) block.at++
      if (block.at < block.ids.length) return true
    }
    return false
  }

  /** Returns an ID that is held, or undefined, and has more fetched before all are used up. */
  #take (queue) {
    this.#wanted = this.#o.clock.now()
    if (!this.#fresh(queue)) return void this.#refill(queue)
    const block = queue.held[0]
    const id = block.ids[block.at++]
    this.#give(queue, id)
    if (queue.held.length === 1 && block.at * 2 >= block.ids.length) this.#refill(queue)
    return id
  }

  #hold (queue, ids, sent) {
    this.#fresh(queue) // drops what is of no use any more
    queue.held.push({ ids, at: 0, sent })
    clearTimeout(this.#warmth)
    this.#warmth = setTimeout(() => {
      if (this.#o.clock.now() - this.#wanted < WARM_MS) this.#refill(queue)
    }, this.#o.maxAgeMs / 2)
    this.#warmth.unref()
  }

  /** Fetches IDs in the background, unless that is under way. */
  #refill (queue) {
    if (this.#closed || queue.flight || queue.waiters.size > 0) return
    this.#wait(queue, 0, {}, true).catch(() => {}) // The next call tries again.
  }

  /** Notes that callers have an ID. What is held of the other width may be below it. */
  #give (queue, id) {
    const own = this.#queues[+queue.wide]
    if (queue === own || this.#latest === undefined) this.#latest = own
    this.#queues[+!queue.wide].held = []
    if (!(own.given >= id)) own.given = id
  }

  async #markAbove (target, options) {
    checkKeys(options, ['timeoutMs', 'signal'], 'options of a call')
    const call = {}
    const flight = { calls: [call], abort: new AbortController() }
    const promise = this.#call(options, call, () => flight.abort.abort())
    this.#mark1(flight, target).then(call.resolve, call.reject)
    return promise
  }

  async #mark1 (flight, target) {
    const [call] = flight.calls
    while (!call.ended) {
      if (target && this.#mark && target.isBelow(this.#mark)) return this.#mark
      // A node that is asked to wait for longer than the call has seems not to answer.
      const waitMs = target ? Math.floor(Math.min(POLL_MS, (call.deadline - performance.now()) / 2)) : 0
      const query = waitMs > 0 ? `?after=${target.text}&wait=${waitMs}ms` : ''
      const mark = await this.#nodes.ask(flight, node => ({
        method: 'GET', path: `/v1/watermark${query}`, maxBytes: 1 << 20, take: body => markOf(node, body)
      }), { waitMs })
      if (!this.#mark || mark.unixMs >= this.#mark.unixMs) this.#mark = mark
      if (!target) return this.#mark
      if (!target.isBelow(this.#mark)) {
        const why = mark.blockedBy[0] ? `: ${mark.blockedBy[0].text}` : ''
        call.failure = new AllocatorError('timeout',
          `the watermark is at ${this.#mark.int}, and not above ${target.text}${why}`)
        if (waitMs === 0) await sleep(POLL_MS, flight.abort.signal)
      }
    }
  }
}

const closed = () => new AllocatorError('closed', 'the client is closed')
/** Writes an ID of the form int or uuid in a form of the same width. */
const inForm = (id, form) => form === 'int' || form === 'uuid' || form === undefined ? id : format(read(id).value, form)

const TEXTS = { int: /^(0|[1-9][0-9]{0,18})$/, uuid: /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/ }

/** Returns the IDs of an answer: n of the queue's form, which rise, above after. */
function idsOf (node, body, n, { form, wide }, after) {
  const { ids } = body
  if (!Array.isArray(ids)) throw protocol(node, 'the answer has no ids')
  if (ids.length !== n) throw protocol(node, `${ids.length} IDs came where ${n} were asked for`)
  let last = after?.form === undefined ? after : isWide(after.form) === wide ? format(after.value, form) : undefined
  return ids.map(text => {
    if (typeof text !== 'string' || !TEXTS[form].test(text)) {
      throw protocol(node, `${show(text)} is not of the form ${form}`)
    }
    const id = wide ? text : BigInt(text)
    if (id > MAX_INT) throw protocol(node, `${text} is above 2^63-1`)
    if (id <= last) throw protocol(node, `ID ${id} is not above ${last}`)
    return (last = id)
  })
}

function markOf (node, body) {
  if (!Number.isSafeInteger(body.unix_ms) || typeof body.int !== 'string' || !TEXTS.int.test(body.int)) {
    throw protocol(node, 'the answer is no watermark')
  }
  const on = body.conditional
  return {
    unixMs: body.unix_ms,
    time: new Date(body.unix_ms),
    int: BigInt(body.int),
    flake: body.flake,
    ulid: body.ulid,
    uuid: body.uuid,
    lagMs: body.lag_ms,
    held: body.held,
    conditional: on && { node: on.node, sid: on.sid, untilUnixMs: on.until_unix_ms },
    blockedBy: (body.blocked_by ?? []).map(({ since_unix_ms: sinceUnixMs, ...by }) => ({ ...by, sinceUnixMs })),
    notCovered: body.not_covered ?? []
  }
}

module.exports = { Allocator }
