import { drizzle } from 'drizzle-orm/node-postgres'
import { bigint, pgTable, text, uuid } from 'drizzle-orm/pg-core'
import pg from 'pg'
import { ids, json, ready, uuids } from './ids.mjs'

// mode: 'number' would round IDs.
const orders = pgTable('orders', { id: bigint({ mode: 'bigint' }).primaryKey().$defaultFn(() => ids.nextNow()), item: text() })
const events = pgTable('events', { id: uuid().primaryKey().$defaultFn(() => uuids.nextNow()), item: text() })

const pool = new pg.Pool()
const db = drizzle(pool)
await ready()
await db.insert(orders).values([{ item: 'tea' }, { item: 'cup' }])
await db.insert(events).values({ item: 'sold' })
console.log(json([...await db.select().from(orders), ...await db.select().from(events)]))
await pool.end()
