// The same objects as require gives: an error is an instance of one class, however it was imported.
import allocator from './index.js'

export const { Allocator, Worker, AllocatorError, parse, convert, timeOf, sidOf, firstOf } = allocator
