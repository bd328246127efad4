import { DataSource, EntitySchema, EventSubscriber } from 'typeorm'
import { ids, json, ready, uuids } from './ids.mjs'

const { PGHOST: host, PGUSER: username, PGDATABASE: database } = process.env
const item = { type: String }
const orders = new EntitySchema({ name: 'orders', columns: { id: { type: 'bigint', primary: true }, item } })
const events = new EntitySchema({ name: 'events', columns: { id: { type: 'uuid', primary: true }, item } })

const keys = { orders: () => String(ids.nextNow()), events: () => uuids.nextNow() } // a bigint is read as a string

/** Gives rows the keys that they lack, also those of insert. In TypeScript write @EventSubscriber() above it. */
class Keys {
  beforeInsert ({ entity, metadata }) { entity.id ??= keys[metadata.name]() }
}
EventSubscriber()(Keys)

const db = new DataSource({ type: 'postgres', host, username, database, entities: [orders, events], subscribers: [Keys] })
await db.initialize()
await ready()
await db.getRepository(orders).save([{ item: 'tea' }, { item: 'cup' }])
await db.getRepository(events).insert({ item: 'sold' })
console.log(json([...await db.getRepository(orders).find(), ...await db.getRepository(events).find()]))
await db.destroy()
