'use strict'

// A node for tests: what it answers is up to the test.

const http = require('node:http')
const { format } = require('../src/ids.js')

/** Starts a node. act is called with each request, and answers it or returns undefined to have it served. */
async function startNode (t, act = () => {}, listen = [0, '127.0.0.1']) {
  const node = { requests: [], connections: 0, next: 66226382438400000n, wide: 1700000000000n }
  const server = http.createServer(async (req, res) => {
    const url = new URL(req.url, 'http://node')
    const parts = []
    for await (const part of req) parts.push(part)
    const request = { url, path: url.pathname, query: Object.fromEntries(url.searchParams), method: req.method, headers: req.headers, body: Buffer.concat(parts).toString() }
    node.requests.push(request)
    const reply = (status, body, headers = {}) => {
      res.writeHead(status, { 'content-type': 'application/json', ...headers }).end(typeof body === 'string' ? body : JSON.stringify(body))
    }
    const done = await act(request, reply, res)
    if (done !== undefined || res.writableEnded || res.destroyed) return
    reply(200, { ids: idsOf(node, request.query), node: 'node-1', sid: 0 })
  })
  server.on('connection', () => node.connections++)
  await new Promise(resolve => server.listen(...listen, resolve))
  node.url = typeof listen[0] === 'string' ? `unix://${listen[0]}` : `http://127.0.0.1:${server.address().port}`
  node.stop = () => new Promise(resolve => { server.close(resolve); server.closeAllConnections() })
  t.after(node.stop)
  return node
}

function idsOf (node, { count = '1', as = 'flake', after }) {
  if (after !== undefined && /^[0-9]{1,19}$/.test(after) && BigInt(after) > node.next) node.next = BigInt(after)
  return Array.from({ length: Number(count) }, () => {
    node.next += 32n
    return as === 'int' ? String(node.next) : format(as === 'flake' ? node.next : node.wide++ << 80n | 7n << 76n | 2n << 62n, as)
  })
}

const refusal = (reason, more) => ({ type: 'about:blank', title: reason, status: 503, detail: 'as the test says', reason, ...more })

module.exports = { startNode, refusal }
