// An HTTP service that gives its orders IDs:
//   curl -d '["tea","cup"]' http://127.0.0.1:3000/orders
import { createServer } from 'node:http'
import { Allocator } from '../../clients/typescript/index.mjs' // in your program: '@flakelease/allocator'

const { NODES = 'http://127.0.0.1:8080', TOKEN_FILE, CA_FILE, HOST = '127.0.0.1', PORT = '3000' } = process.env
const allocator = new Allocator({ nodes: NODES.split(','), tokenFile: TOKEN_FILE, caFile: CA_FILE })

async function read (request, limit = 65536) {
  let text = ''
  for await (const part of request.setEncoding('utf8')) {
    if ((text += part).length > limit) throw new SyntaxError('the body is too long')
  }
  return JSON.parse(text)
}

const server = createServer(async (request, response) => {
  const reply = (status, body, headers = {}) => {
    response.writeHead(status, { 'content-type': 'application/json', ...headers }).end(JSON.stringify(body) + '\n')
  }
  if (request.method !== 'POST' || request.url !== '/orders') return reply(404, { error: 'not found' })
  try {
    const items = await read(request)
    if (!Array.isArray(items) || items.length < 1 || items.length > 1000) throw new SyntaxError('the body is not a list of 1 to 1000 items')
    const ids = await allocator.nextMany(items.length) // one request, however many orders there are
    reply(201, items.map((item, i) => ({ id: String(ids[i]), item }))) // a real service stores them first
  } catch (e) {
    if (e instanceof SyntaxError) return reply(400, { error: e.message })
    console.error('no IDs:', e)
    reply(503, { error: 'no IDs', reason: e.reason }, { 'retry-after': Math.ceil((e.retryAfterMs ?? 1000) / 1000) })
  }
})
server.listen(Number(PORT), HOST, () => console.log(`listening on http://${HOST}:${server.address().port}`))
process.on('SIGTERM', () => server.close())
