// Reads an ID through one library, as it is and with its option, and changes the row with what came:
// node columns.mjs LIBRARY PG-SOCKET-DIRECTORY MARIADB-SOCKET
// Prints "as it is | with the option": exact and its type, no row, another row or ID, or an error.
const [, , library, host, socketPath] = process.argv
const id = '95734197552188193' // The table has 95734197552188192 and 95734197552188224 too.
const postgres = { host, user: 'test', database: 'postgres' }
const maria = { socketPath, user: 'root', database: 'ids' }
const mariaExact = { ...maria, supportBigNumbers: true, bigNumberStrings: true }

const find = "SELECT id FROM orders WHERE note = 'this'"
const mark = "UPDATE orders SET note = 'changed' WHERE id = "
const marked = "SELECT CAST(id AS CHAR(20)) AS id FROM orders WHERE note = 'changed'"
const values = `VALUES (95734197552188192, 'neighbor'), (${id}, 'this'), (95734197552188224, 'neighbor')`
const fill = `DELETE FROM orders; INSERT INTO orders ${values}`
const reset = `UPDATE orders SET note = CASE id WHEN ${id} THEN 'this' ELSE 'neighbor' END`

// Each library gives two ways, without and with its option, and what ends them. A way reads the ID, writes a row
// by an ID, and runs SQL that returns rows.
const libraries = {
  async pg () {
    const c = await client()
    const way = { read: async () => (await c.query(find)).rows[0].id, write: v => c.query(mark + '$1', [v]), sql: c.sql }
    return [way, way, () => c.end()]
  },
  async mysql2 () {
    const { createConnection } = await import('mysql2/promise')
    const connections = await Promise.all([createConnection(maria), createConnection(mariaExact)])
    const ways = connections.map(c => ({
      read: async () => (await c.query(find))[0][0].id,
      write: v => c.query(mark + '?', [v]),
      sql: async text => (await c.query(text))[0]
    }))
    return [...ways, () => connections.forEach(c => c.end())]
  },
  async knex () {
    const { default: knex } = await import('knex')
    const connections = [maria, mariaExact].map(connection => knex({ client: 'mysql2', connection }))
    const ways = connections.map(db => ({
      read: async () => (await db('orders').where({ note: 'this' }).first('id')).id,
      write: v => db('orders').where({ id: v }).update({ note: 'changed' }),
      sql: async text => (await db.raw(text))[0]
    }))
    return [...ways, () => connections.forEach(db => db.destroy())]
  },
  async 'better-sqlite3' () {
    const { default: Database } = await import('better-sqlite3')
    return sqlite(new Database(':memory:'), s => s.safeIntegers())
  },
  async 'node:sqlite' () {
    const { DatabaseSync } = await import('node:sqlite')
    return sqlite(new DatabaseSync(':memory:'), s => { s.setReadBigInts(true); return s })
  },
  "Drizzle's": () => libraries.Drizzle(true),
  async Drizzle (insert) {
    const { drizzle } = await import('drizzle-orm/node-postgres')
    const { bigint, pgTable, text } = await import('drizzle-orm/pg-core')
    const { eq } = await import('drizzle-orm')
    const c = await client()
    const db = drizzle(c)
    const ways = ['number', 'bigint'].map(mode => {
      const orders = pgTable('orders', { id: bigint({ mode }).primaryKey(), note: text() })
      const change = {
        read: async () => (await db.select().from(orders).where(eq(orders.note, 'this')))[0].id,
        write: v => db.update(orders).set({ note: 'changed' }).where(eq(orders.id, v)),
        sql: c.sql
      }
      // insert adds an ID that the program was given, in place of all rows.
      return !insert ? change : {
        read: async () => { await c.sql('DELETE FROM orders'); return mode === 'number' ? Number(id) : BigInt(id) },
        write: v => db.insert(orders).values({ id: v, note: 'changed' }),
        sql: c.sql,
        other: 'another ID'
      }
    })
    return [...ways, async () => { await c.sql(fill); await c.end() }]
  },
  async TypeORM () {
    const { DataSource, EntitySchema } = await import('typeorm')
    const entity = new EntitySchema({ name: 'orders', columns: { id: { type: 'bigint', primary: true }, note: { type: 'text' } } })
    const db = await new DataSource({ type: 'postgres', ...postgres, username: 'test', entities: [entity] }).initialize()
    const orders = db.getRepository(entity)
    const way = {
      read: async () => (await orders.findOneByOrFail({ note: 'this' })).id,
      write: v => orders.update({ id: v }, { note: 'changed' }),
      sql: text => db.query(text)
    }
    return [way, way, () => db.destroy()]
  },
  async Prisma () {
    const { PrismaPg } = await import('@prisma/adapter-pg')
    const { PrismaClient } = await import('@prisma/client') // from schema.prisma
    const db = new PrismaClient({ adapter: new PrismaPg(postgres) })
    const way = {
      read: async () => (await db.orders.findFirst({ where: { note: 'this' } })).id,
      write: v => db.orders.update({ where: { id: v }, data: { note: 'changed' } }),
      sql: text => db.$queryRawUnsafe(text)
    }
    return [way, way, () => db.$disconnect()]
  }
}

async function client () {
  const { default: { Client } } = await import('pg')
  const c = new Client(postgres)
  await c.connect()
  return Object.assign(c, { sql: async text => (await c.query(text)).rows })
}

function sqlite (db, exact) {
  db.exec(`CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT);
    INSERT INTO orders ${values}`)
  const ways = [s => s, exact].map(set => ({
    read: async () => set(db.prepare(find)).get().id,
    write: async v => db.prepare(mark + '?').run(v),
    sql: async text => text === marked ? db.prepare(text).all() : db.exec(text)
  }))
  return [...ways, () => db.close()]
}

async function outcome ({ read, write, sql, other = 'another row' }) {
  try {
    const came = await read()
    await write(came)
    const rows = (await sql(marked)).map(row => row.id.trim())
    await sql(reset)
    if (rows.length === 0) return 'no row'
    return rows.join() === id ? `exact, a ${{ string: 'string', bigint: 'BigInt' }[typeof came]}` : other
  } catch (e) {
    return 'an error'
  }
}

const [plain, set, end] = await libraries[library]()
console.log(`${await outcome(plain)} | ${await outcome(set)}`)
await end()
