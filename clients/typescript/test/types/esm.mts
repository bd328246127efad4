// Compiled by tsc under strict, as a program with ES modules: what does not compile has a comment that expects it.
import { Allocator, AllocatorError, Worker, convert, firstOf, parse, sidOf, timeOf, type Watermark } from '@flakelease/allocator'
import { FakeAllocator } from '@flakelease/allocator/testing'

const ids = new Allocator({ nodes: ['http://127.0.0.1:8080'], prefetch: 64, tokenFile: '/run/token' })
export const a: bigint = await ids.next()
export const b: string = await ids.next({ form: 'uuid', after: a, signal: AbortSignal.timeout(100) })
export const c: bigint[] = await ids.nextMany(10)
export const d: bigint = ids.nextNow()
export const e: Watermark = await ids.waitFor(b)
const texts = new Allocator({ nodes: [], form: 'uuid' })
export const f: string = await texts.next()
export const g: bigint = await texts.next({ form: 'int' })
export const h: string = convert(b, 'flake')
export const i: bigint = firstOf(new Date())
export const j: Date = timeOf(a, 'fleet')
export const k: number = sidOf(b)
const parts = parse(b)
export const l: string = parts.form === 'ulid' || parts.form === 'uuid' ? parts.uuid : parts.flake
export const fake: Allocator = new FakeAllocator()
const worker = await Worker.open({ nodes: ['http://127.0.0.1:8080'], name: 'orders' })
worker.permit(Date.now())
try {
  await ids.next()
} catch (error) {
  if (error instanceof AllocatorError && error.kind === 'refused') console.log(error.reason?.length)
}
// @ts-expect-error an int is a bigint
export const m: number = await ids.next()
// @ts-expect-error there is no such form
await ids.next({ form: 'hex' })
// @ts-expect-error nodes are an array
export const n = new Allocator({ nodes: 'http://127.0.0.1:8080' })
// @ts-expect-error there is no such option
export const o = new Allocator({ nodes: [], node: 1 })
// @ts-expect-error a worker is opened
export const p = new Worker()
