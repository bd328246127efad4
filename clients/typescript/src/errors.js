'use strict'

/** What a call of this package fails with. index.d.ts says what each kind means. */
class AllocatorError extends Error {
  constructor (kind, message, { cause, reason, retryAfterMs, metadata, node } = {}) {
    super(message, cause === undefined ? undefined : { cause })
    this.name = { canceled: 'AbortError', timeout: 'TimeoutError' }[kind] ?? 'AllocatorError'
    this.kind = kind
    for (const [key, value] of Object.entries({ reason, retryAfterMs, metadata, node })) {
      if (value !== undefined) this[key] = value
    }
  }
}

const invalid = message => new AllocatorError('invalid', message)

/** Shows a value in a message, cut short. */
function show (value) {
  const text = typeof value === 'string' ? JSON.stringify(value)
    : typeof value === 'bigint' ? `${value}n` : Array.isArray(value) ? 'an array'
      : typeof value === 'object' && value !== null ? 'an object' : String(value)
  return text.length > 80 ? text.slice(0, 77) + '...' : text
}

module.exports = { AllocatorError, invalid, show }
