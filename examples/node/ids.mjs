// Draws IDs from an allocator cluster, over HTTP. It needs nothing but Node 18 or later.
import { readFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'

/** No ID was issued: `reason` says why, `retryAfter` (seconds) when the same request can succeed. */
export class Refused extends Error {
  constructor (reason, detail, retryAfter) {
    super(`${reason}: ${detail}`)
    Object.assign(this, { reason, retryAfter })
  }
}

/** One for the whole program. fetch keeps its connections open. */
export class Allocator {
  #first = 0 // the node to ask first: the last one that served
  #last = 0n // the greatest ID so far

  constructor ({ nodes, tokenFile, timeout = 10_000, attemptTimeout = 2_000 }) {
    Object.assign(this, { nodes, tokenFile, timeout, attemptTimeout })
  }

  /**
   * Resolves to 1 to 10,000 IDs in rising order, as strings of digits: a number cannot hold them. All
   * of them are greater than those of calls that ended before.
   */
  async draw (count = 1) {
    const deadline = performance.now() + this.timeout
    for (;;) {
      let failure
      let wait = Infinity
      for (const node of this.nodes.map((_, i) => (this.#first + i) % this.nodes.length)) {
        try {
          const ids = await this.#ask(this.nodes[node], count, deadline)
          const last = BigInt(ids.at(-1))
          if (last > this.#last) this.#last = last
          this.#first = node
          return ids
        } catch (e) {
          if (e.final) throw e // no node would serve this request
          failure = e
          wait = Math.min(wait, 1000 * (e.retryAfter ?? 1))
        }
      }
      if (performance.now() + wait >= deadline) throw failure
      await sleep(wait)
    }
  }

  async #ask (node, count, deadline) {
    const headers = this.tokenFile ? { authorization: `Bearer ${readFileSync(this.tokenFile, 'utf8').trim()}` } : {}
    const left = Math.ceil(Math.min(this.attemptTimeout, deadline - performance.now()))
    const answer = await fetch(`${node}/v1/ids?as=int&count=${count}&after=${this.#last}`,
      { method: 'POST', headers, signal: AbortSignal.timeout(Math.max(left, 1)) })
    if (answer.ok) {
      const { ids } = await answer.json()
      if (ids.length !== count) throw new Error(`${ids.length} IDs came where ${count} were asked for`)
      return ids
    }
    const problem = await answer.json().catch(() => ({})) // a proxy's answer has no reason
    const refused = new Refused(problem.reason ?? `HTTP ${answer.status}`, problem.detail ?? answer.statusText,
      Number(answer.headers.get('retry-after')) || undefined)
    // Another node or a later time helps against 409 (AFTER_TOO_FAR), 429 and 5xx.
    refused.final = answer.status < 500 && ![409, 429].includes(answer.status)
    throw refused
  }
}
