import knex from 'knex'
import { ids, json, uuids } from './ids.mjs'

// A query builder has no defaults, and its calls are awaited: so next and nextMany do.
const db = knex({ client: 'pg', connection: {} }) // the variables of PostgreSQL say where
const items = ['tea', 'cup']
const keys = await ids.nextMany(items.length)
await db('orders').insert(items.map((item, i) => ({ id: keys[i], item })))
await db('events').insert({ id: await uuids.next(), item: 'sold' })
console.log(json([...await db('orders').select(), ...await db('events').select()])) // pg reads a bigint as a string
await db.destroy()
