// The same for a program with CommonJS.
import allocator = require('@flakelease/allocator')
import testing = require('@flakelease/allocator/testing')

const ids: allocator.Allocator = new testing.FakeAllocator()
export const a: Promise<bigint> = ids.next()
export const b = (e: unknown): boolean => e instanceof allocator.AllocatorError && e.kind === 'closed'
// @ts-expect-error an int is a bigint
export const c: Promise<string> = ids.next()
