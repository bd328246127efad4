import { PrismaPg } from '@prisma/adapter-pg'
import { PrismaClient } from '@prisma/client' // from schema.prisma, by: npx prisma generate
import { ids, json, ready, uuids } from './ids.mjs'

const keys = { Order: ids, Event: uuids }
const keyed = (model, row) => ({ id: keys[model].nextNow(), ...row })
const one = ({ model, args, query }) => query({ ...args, data: keyed(model, args.data) })
const many = ({ model, args, query }) => query({ ...args, data: [args.data].flat().map(row => keyed(model, row)) })
const upsert = ({ model, args, query }) => query({ ...args, create: keyed(model, args.create) })

// Rows that are created inside of others, such as order.create({ data: { lines: { create } } }), pass by an extension.
const db = new PrismaClient({ adapter: new PrismaPg({}) }) // the variables of PostgreSQL say where
  .$extends({ query: { $allModels: { create: one, createMany: many, createManyAndReturn: many, upsert } } })
await ready()
await db.order.createMany({ data: [{ item: 'tea' }, { item: 'cup' }] })
await db.event.create({ data: { item: 'sold' } })
console.log(json([...await db.order.findMany(), ...await db.event.findMany()]))
await db.$disconnect()
