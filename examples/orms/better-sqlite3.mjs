import Database from 'better-sqlite3'
import { ids, json, ready, uuids } from './ids.mjs'

const db = new Database(process.env.SQLITE ?? 'orders.db')
db.defaultSafeIntegers() // reads integers as bigints: numbers would round IDs
db.exec('CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, item TEXT); CREATE TABLE IF NOT EXISTS events (id TEXT PRIMARY KEY, item TEXT) WITHOUT ROWID')
await ready()
const insert = db.prepare('INSERT INTO orders VALUES (?, ?)')
for (const item of ['tea', 'cup']) insert.run(ids.nextNow(), item)
db.prepare('INSERT INTO events VALUES (?, ?)').run(uuids.nextNow(), 'sold')
console.log(json([...db.prepare('SELECT * FROM orders').all(), ...db.prepare('SELECT * FROM events').all()]))
