import testing from './testing.js'

export const { FakeAllocator } = testing
