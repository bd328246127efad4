// Prints IDs of flake-idgen: allocator worker run -- node ids.mjs 10
import { openSync, readSync } from 'node:fs'
import FlakeId from 'flake-idgen'

const epoch = 1288834974657 // Twitter's
const { ALLOCATOR_DATACENTER_ID, ALLOCATOR_WORKER_ID, ALLOCATOR_WORKER_FILE } = process.env
if (!ALLOCATOR_WORKER_FILE) throw new Error('start this with: allocator worker run -- node ids.mjs')

const file = openSync(ALLOCATOR_WORKER_FILE)
const field = at => {
  const bytes = Buffer.alloc(8)
  readSync(file, bytes, 0, 8, at)
  return bytes.readBigInt64LE()
}
const notBefore = field(24)
const notAfter = () => field(32)

const generator = new FlakeId({ datacenter: Number(ALLOCATOR_DATACENTER_ID), worker: Number(ALLOCATOR_WORKER_ID), epoch })

function next () {
  const id = generator.next().readBigUInt64BE()
  const ms = (id >> 22n) + BigInt(epoch)
  // After the ID was made: only then does it show that nobody else can have it.
  if (ms < notBefore || ms >= notAfter()) throw new Error(`the worker number is not ours at ${ms}`)
  return id
}

for (let i = 0; i < Number(process.argv[2] ?? 10); i++) console.log(String(next()))
