'use strict'

/** What a call of this package fails with. index.d.ts says what each kind means. */
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
