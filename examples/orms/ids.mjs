// What the programs beside this one use: a client for each width of IDs, which holds some for defaults that cannot wait.
import { Allocator } from '@flakelease/allocator'

const nodes = (process.env.NODES ?? 'http://127.0.0.1:8080').split(',')
export const ids = new Allocator({ nodes, prefetch: 64 })
export const uuids = new Allocator({ nodes, prefetch: 64, form: 'uuid' })

/** Await it before work, such as in a middleware: at once if IDs are held. */
export const ready = () => Promise.all([ids.fill(), uuids.fill()])

/** JSON has IDs as strings, which no reader rounds. */
export const json = value => JSON.stringify(value, (_, v) => typeof v === 'bigint' ? String(v) : v)
