'use strict'

/**
 * What a call of this package fails with. `kind` is for programs:
 *
 * - invalid: an argument or an option is wrong; found before any request
 * - refused: a node answered that it issued nothing; `reason` says why
 * - unavailable: no node answered
 * - timeout: the time of the call ended first
 * - canceled: its AbortSignal was aborted; `cause` is the signal's reason
 * - protocol: an answer is none that a node gives; its IDs are not used
 * - empty: nextNow has no ID to give
 * - closed: the client was closed
 * - lost: the worker number is not this program's any more
 */
class AllocatorError extends Error {
  constructor (kind, message, { cause, reason, retryAfterMs, metadata, node } = {}) {
    super(message, cause === undefined ? undefined : { cause })
    this.name = { canceled: 'AbortError', timeout: 'TimeoutError' }[kind] ?? 'AllocatorError'
    this.kind = kind
    if (reason !== undefined) this.reason = reason
    if (retryAfterMs !== undefined) this.retryAfterMs = retryAfterMs
    if (metadata !== undefined) this.metadata = metadata
    if (node !== undefined) this.node = node
  }
}

const invalid = message => new AllocatorError('invalid', message)

/** Shows a value in a message, cut short. */
function show (value) {
  const text = typeof value === 'string' ? JSON.stringify(value)
    : typeof value === 'bigint' ? `${value}n` : Array.isArray(value) ? 'an array' : typeof value === 'object' && value !== null ? 'an object' : String(value)
  return text.length > 80 ? text.slice(0, 77) + '...' : text
}

module.exports = { AllocatorError, invalid, show }
