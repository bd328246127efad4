'use strict'

// The nodes of a client: a request goes to one after the other until one serves it.

const { AllocatorError, invalid, show } = require('./errors.js')
const { endpointOf, transport, readText, tokenIn } = require('./http.js')

// Times that a node is asked last after it refused or failed.
const REFUSED_MS = 1000 // where a refusal has no delay
const MAX_REFUSED_MS = 5000
const FAILED_MS = [20, 1000] // doubled from the first to the last
const SILENT_MS = [1000, 15_000]

// Reasons that no other node and no later time changes.
const FINAL = new Set(['INVALID_COUNT', 'INVALID_FORMAT', 'INVALID_ID', 'UNAUTHENTICATED', 'PERMISSION_DENIED',
  'UNKNOWN_WORKER', 'WORKER_QUOTA', 'CALLER_CLOCK'])

/** What is noted of a node that serves. */
const SERVES = { until: 0, refused: undefined, fails: 0 }

/** Gives a client answers that come from no node, for fakes. */
const TRANSPORT = Symbol('transport')

/** Reads the clocks of this machine in milliseconds: a monotonic one, and Unix time. */
const CLOCK = { now: () => performance.now(), wall: () => Date.now() }

// Those of Nodes in index.d.ts.
const OPTIONS = ['nodes', 'timeoutMs', 'attemptTimeoutMs', 'token', 'tokenFile', 'plaintextToken', 'caFile', 'tls']
const LOCAL = ['localhost', '127.0.0.1', '::1']

function milliseconds (options, name, standard) {
  const ms = options[name] ?? standard
  if (!Number.isFinite(ms) || ms < 1 || ms > 2 ** 31 - 1) {
    throw invalid(`${name} is ${show(ms)}: give milliseconds, at least 1`)
  }
  return ms
}

function checkKeys (options, known, what) {
  if (typeof options !== 'object' || options === null || Array.isArray(options)) {
    throw invalid(`${what} are ${show(options)}: give an object`)
  }
  for (const key of Object.keys(options)) {
    if (!known.includes(key)) throw invalid(`${show(key)} is none of the ${what}: there are ${known.join(', ')}`)
  }
}

/** Waits, without keeping the process alive: calls do so by their own timers. */
const sleep = (ms, signal) => new Promise(resolve => {
  const done = () => { clearTimeout(timer); signal.removeEventListener('abort', done); resolve() }
  const timer = setTimeout(done, ms)
  timer.unref()
  if (signal.aborted) done()
  else signal.addEventListener('abort', done)
})

/** The nodes that a client or a worker asks. Nodes that refused or failed are asked later, or last. */
class Nodes {
  #nodes
  #timeoutMs // of an attempt
  #now // the monotonic clock, in milliseconds
  #token
  #transport
  #space // of the first answer that names one
  #first = 0 // the node to ask first: the last one that served

  constructor (options) {
    const { nodes, token, tokenFile, plaintextToken, caFile, tls, clock = CLOCK } = options
    if (!Array.isArray(nodes)) {
      throw invalid(`nodes is ${show(nodes)}: give an array of URLs, such as ['http://127.0.0.1:8080']`)
    }
    if (nodes.length === 0) throw invalid("nodes is empty: give the URLs of nodes, such as ['http://127.0.0.1:8080']")
    this.#nodes = nodes.map((url, index) => ({ ...endpointOf(url, `nodes[${index}]`), ...SERVES, index }))
    this.#timeoutMs = milliseconds(options, 'attemptTimeoutMs', 2000)
    this.#now = () => clock.now()
    if (token !== undefined && tokenFile !== undefined) throw invalid('token and tokenFile: set one of them')
    const isText = typeof token === 'string' && /^[\x21-\x7e]+$/.test(token)
    if (token !== undefined && typeof token !== 'function' && !isText) {
      throw invalid('token is no token: give a string without spaces, or a function that returns one')
    }
    const open = this.#nodes.find(node => !node.secure && !LOCAL.includes(node.options.host))
    if ((token ?? tokenFile) !== undefined && open && !plaintextToken) {
      throw invalid(`${open.url} has no TLS, so that others could read the token: write https://, or set ` +
        'plaintextToken if the network encrypts')
    }
    this.#token = tokenFile !== undefined ? tokenIn(tokenFile) : isText ? () => token : token
    const ca = caFile && readText(caFile, 'caFile')
    if (ca !== undefined && !ca.includes('BEGIN CERTIFICATE')) {
      throw invalid(`caFile: ${caFile} has no certificate: give a PEM file`)
    }
    try {
      this.#transport = options[TRANSPORT] ?? transport({ ...tls, ...(ca && { ca }) })
    } catch (e) {
      throw invalid(`${caFile === undefined ? 'tls' : 'caFile'}: ${e.message}`)
    }
  }

  /** Closes the connections. */
  close () { this.#transport.close() }

  /**
   * Asks one node after the other until one serves, as long as one of flight.calls waits. requestTo returns the request
   * to a node, and its take reads the answer. own says that a refusal because of after is about this call alone.
   */
  async ask (flight, requestTo, { own = false, waitMs = 0 } = {}) {
    const { signal } = flight.abort
    let far // a refusal that waiting does not help against
    for (let round = 0; ; round++) {
      let wait = Infinity
      let retry = Infinity // wait, as refusals alone have it
      const began = this.#now()
      for (const node of this.#order(began)) {
        if (signal.aborted) throw canceled()
        try {
          const value = await this.#attempt(node, requestTo(node), waitMs, signal)
          Object.assign(node, SERVES)
          this.#first = node.index
          return value
        } catch (e) {
          if (!(e instanceof AllocatorError) || e.kind === 'canceled' || FINAL.has(e.reason) || e.final) throw e
          for (const call of flight.calls) call.failure = e
          if (e.kind !== 'refused') wait = Math.min(wait, FAILED_MS[0] * 2 ** Math.min(round, 10), FAILED_MS[1])
          if (e.reason === 'AFTER_TOO_FAR' && own) {
            if (e.retryAfterMs === undefined) far = e
            else retry = Math.min(retry, e.retryAfterMs)
          } else {
            this.#note(node, e)
          }
        }
      }
      const now = this.#now()
      for (const { refused, until } of this.#nodes) {
        if (!refused || until <= began) continue // It was asked now.
        for (const call of flight.calls) call.failure ??= refused
        if (refused.reason === 'AFTER_TOO_FAR' && refused.retryAfterMs === undefined) far = refused
        else retry = Math.min(retry, until - now)
      }
      if (far && retry === Infinity) throw far
      wait = Math.max(1, Math.min(wait, retry))
      for (const call of flight.calls) {
        if (call.deadline <= performance.now() + wait) call.reject(gaveUp(call))
      }
      await sleep(wait, signal)
      if (signal.aborted) throw canceled()
    }
  }

  /** Sends a node one request, and returns what its take makes of the answer. */
  async #attempt (node, { take, ...request }, waitMs, signal) {
    const token = await this.#token?.()
    const headers = { ...request.headers, ...(token && { authorization: `Bearer ${token}` }) }
    const timeoutMs = this.#timeoutMs + waitMs
    const answer = await this.#transport.send(node, { ...request, headers, timeoutMs, signal })
    const space = this.#space ?? answer.space
    if ((answer.space ?? space) !== space) { // Its IDs may be those of the first one, and it knows none of its workers.
      throw new AllocatorError('protocol', `${node.url} is of space ${answer.space}, and this client's IDs are of ` +
        `${space}: list nodes of one space`, { node: node.url })
    }
    if (answer.status >= 300) throw refusalOf(node, answer)
    const value = take(jsonOf(node, answer))
    this.#space = space
    return value
  }

  /** Returns the nodes to ask, in order: those that failed lately last, and without those that refuse. */
  #order (now) {
    const place = node => (node.index - this.#first + this.#nodes.length) % this.#nodes.length
    return this.#nodes.filter(node => !(node.refused && node.until > now)).sort((a, b) =>
      (a.until > now) - (b.until > now) || place(a) - place(b))
  }

  /** Notes that a node did not serve. */
  #note (node, e) {
    const now = this.#now()
    if (e.kind === 'refused') {
      Object.assign(node, { until: now + Math.min(e.retryAfterMs ?? REFUSED_MS, MAX_REFUSED_MS), refused: e, fails: 0 })
    } else {
      const [first, last] = e.silent ? SILENT_MS : FAILED_MS
      const until = now + Math.min(first * 2 ** Math.min(node.fails, 10), last)
      Object.assign(node, { until, refused: undefined, fails: node.fails + 1 })
    }
  }
}

const canceled = () => new AllocatorError('canceled', 'the caller left')

/** Returns the error of a call whose time is over. own says that its caller has set that time. */
function gaveUp ({ failure, own }, withinMs) {
  const kind = failure && failure.kind !== 'unavailable' ? failure.kind : own ? 'timeout' : 'unavailable'
  const within = withinMs === undefined ? '' : failure ? ` (given up after ${withinMs} ms)` : ` within ${withinMs} ms`
  return new AllocatorError(kind, (failure?.message ?? 'no answer') + within, failure)
}

function jsonOf (node, { text }) {
  try {
    const body = JSON.parse(text)
    if (typeof body === 'object' && body !== null) return body
  } catch {}
  throw protocol(node, `the answer is no JSON: ${show(text)}`)
}

const protocol = ({ url: node }, what) =>
  new AllocatorError('protocol', `${node}: ${what}; is it the URL of a node?`, { node })

/** Returns the error of an answer that is a refusal. */
function refusalOf (node, { status, text, retryAfterMs }) {
  let problem
  try {
    problem = JSON.parse(text)
  } catch {}
  if (typeof problem?.reason === 'string') {
    return new AllocatorError('refused', `${problem.reason}: ${problem.detail ?? problem.title}`, {
      reason: problem.reason,
      retryAfterMs: problem.retry_after_ms > 0 ? problem.retry_after_ms : retryAfterMs,
      metadata: problem.metadata ?? {},
      node: node.url
    })
  }
  // A proxy refuses, or it is no node at all.
  const reason = { 401: 'UNAUTHENTICATED', 403: 'PERMISSION_DENIED' }[status]
  const what = `${node.url}: HTTP ${status}: ${show(text.trim())}; is it the URL of a node?`
  if (reason) return new AllocatorError('refused', what, { reason, node: node.url })
  if (/HTTP request to an HTTPS server/.test(text)) {
    const e = new AllocatorError('protocol', `${node.url}: the node speaks TLS: write https://`, { node: node.url })
    return Object.assign(e, { final: true })
  }
  const final = status < 500 && ![408, 409, 425, 429].includes(status)
  return Object.assign(new AllocatorError('protocol', what, { node: node.url, retryAfterMs }), final && { final })
}

module.exports = { Nodes, TRANSPORT, CLOCK, OPTIONS, checkKeys, milliseconds, sleep, protocol, gaveUp }
