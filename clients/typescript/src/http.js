'use strict'

// Requests to nodes, over HTTP/1.1 with connections that are kept open.

const http = require('node:http')
const https = require('node:https')
const fs = require('node:fs')
const { createSecureContext } = require('node:tls')
const { AllocatorError, invalid, show } = require('./errors.js')

// Nodes close idle connections after a minute: this side does so first.
const IDLE_MS = 30_000
const EXAMPLE = 'http://127.0.0.1:8080'

/** Returns what a URL of a node says, checked. */
function endpointOf (url, name) {
  if (typeof url !== 'string') {
    throw invalid(`${name} is ${show(url)}: give the URL of a node, such as ${EXAMPLE}`)
  }
  const socket = /^unix:(?:\/\/)?(.*)$/s.exec(url)
  if (socket) {
    if (!socket[1].startsWith('/') || socket[1].length > 107) {
      throw invalid(`${name} is ${show(url)}: write unix:///path, with an absolute path of at most 107 characters`)
    }
    return { url, secure: false, prefix: '', options: { socketPath: socket[1], host: 'localhost' } }
  }
  let parsed
  try {
    parsed = new URL(url)
  } catch {
    throw invalid(`${name} is ${show(url)}, which is no URL: write http://host:port, as in ${EXAMPLE}`)
  }
  if (!['http:', 'https:'].includes(parsed.protocol) || !/^https?:\/\//i.test(url)) {
    throw invalid(`${name} is ${show(url)}: a URL begins with http://, https:// or unix://, as in ${EXAMPLE}`)
  }
  if (parsed.username || parsed.password) {
    throw invalid(`${name} has a user in its URL: give the token as token or tokenFile`)
  }
  if (parsed.search || parsed.hash) {
    throw invalid(`${name} is ${show(url)}: leave out all from ${parsed.search ? '?' : '#'} on`)
  }
  return {
    url: parsed.origin,
    secure: parsed.protocol === 'https:',
    prefix: parsed.pathname.replace(/\/+$/, ''),
    options: { host: parsed.hostname.replace(/^\[|\]$/g, ''), port: parsed.port || undefined }
  }
}

/** Returns what sends requests to nodes. tls are options of node:tls for https URLs. */
function transport (tls) {
  const settings = { keepAlive: true, maxFreeSockets: 16, timeout: IDLE_MS }
  if (Object.keys(tls).length > 0) {
    tls = { ...tls, secureContext: createSecureContext(tls) } // What is wrong is found now.
  }
  const agents = { http: new http.Agent(settings), https: new https.Agent({ ...settings, ...tls }) }

  /**
   * Sends a request and resolves to { status, space, retryAfterMs, text }. It rejects with an AllocatorError:
   * unavailable, with silent where no answer came in time, protocol for an answer that is too large, canceled by the
   * signal.
   */
  function send (node, { method, path, headers, body, timeoutMs, maxBytes, signal }) {
    return new Promise((resolve, reject) => {
      const length = body === undefined ? 0 : Buffer.byteLength(body)
      const request = (node.secure ? https : http).request({
        ...node.options, method, path: node.prefix + path, agent: node.secure ? agents.https : agents.http,
        headers: { accept: 'application/json', ...headers, 'content-length': length }
      })
      const end = (settle, value) => {
        clearTimeout(timer)
        signal.removeEventListener('abort', aborted)
        settle(value)
      }
      const fail = (kind, why, { cause, silent } = {}) => {
        const e = new AllocatorError(kind, `${node.url}: ${why}`, { node: node.url, cause })
        end(reject, Object.assign(e, { silent }))
        request.destroy()
      }
      const aborted = () => fail('canceled', 'the caller left')
      const late = () => fail('unavailable', `no answer within ${timeoutMs} ms`, { silent: true })
      const timer = setTimeout(late, timeoutMs)
      timer.unref() // The call has a timer of its own.
      signal.addEventListener('abort', aborted)
      request.on('socket', socket => socket.unref())
      request.on('error', e => fail('unavailable', explain(e), { cause: e }))
      request.on('response', response => {
        const parts = []
        let size = 0
        response.on('data', part => {
          if ((size += part.length) > maxBytes) return fail('protocol', `the answer has more than ${maxBytes} bytes`)
          parts.push(part)
        })
        response.on('error', e => fail('unavailable', explain(e), { cause: e }))
        response.on('end', () => end(resolve, {
          status: response.statusCode,
          space: response.headers['allocator-space'],
          retryAfterMs: 1000 * Number(response.headers['retry-after']) || undefined,
          text: Buffer.concat(parts).toString()
        }))
      })
      request.end(body)
    })
  }
  const close = () => Object.values(agents).forEach(agent => agent.destroy())
  return { send, close }
}

/** Says what an error of the network means. */
function explain (e) {
  switch (e.code) {
    case 'ECONNREFUSED': return 'nothing listens there'
    case 'ENOENT': return 'there is no such socket'
    case 'EACCES': return 'this user may not open the socket'
    case 'ECONNRESET': return 'the connection was closed before the answer came'
    case 'EPROTO': return 'it speaks no TLS: write http://'
    case 'UNABLE_TO_VERIFY_LEAF_SIGNATURE':
    case 'SELF_SIGNED_CERT_IN_CHAIN':
    case 'DEPTH_ZERO_SELF_SIGNED_CERT':
      return 'its certificate is not signed by an authority that is trusted: set caFile'
  }
  return e.message || e.code || String(e)
}

function readText (path, name) {
  try {
    return fs.readFileSync(path, 'utf8')
  } catch (e) {
    throw invalid(`${name}: ${e.message}`)
  }
}

/** Returns a function that returns the token in a file, which it reads again when the file changes. */
function tokenIn (path) {
  let token = ''
  let seen = ''
  const read = () => {
    const info = fs.statSync(path)
    const state = `${info.mtimeMs} ${info.size} ${info.ino} ${info.mode}`
    if (state === seen) return token
    if (process.platform !== 'win32' && info.mode & 0o004) {
      throw invalid(`tokenFile: others can read ${path}: chmod 600, or in Kubernetes defaultMode: 0400`)
    }
    const text = fs.readFileSync(path, 'utf8').trim()
    if (text === '') throw invalid(`tokenFile: ${path} is empty: write a token into it`)
    if (/[^\x21-\x7e]/.test(text)) {
      throw invalid(`tokenFile: ${path} has more than a token: write one line without spaces`)
    }
    seen = state
    return (token = text)
  }
  try {
    read()
  } catch (e) {
    throw e instanceof AllocatorError ? e : invalid(`tokenFile: ${e.message}`)
  }
  return () => {
    try {
      return read()
    } catch { // The file is being replaced: the last token counts.
      return token
    }
  }
}

module.exports = { endpointOf, transport, readText, tokenIn }
