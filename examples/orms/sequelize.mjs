import { DataTypes, Sequelize } from 'sequelize'
import { ids, json, ready, uuids } from './ids.mjs'

const { PGHOST: host, PGUSER: username, PGDATABASE: database } = process.env
const db = new Sequelize({ dialect: 'postgres', host, username, database, logging: false, define: { timestamps: false } })
const item = DataTypes.TEXT
const Order = db.define('orders', { id: { type: DataTypes.BIGINT, primaryKey: true, defaultValue: () => String(ids.nextNow()) }, item })
const Event = db.define('events', { id: { type: DataTypes.UUID, primaryKey: true, defaultValue: () => uuids.nextNow() }, item })
await ready()
await Order.bulkCreate([{ item: 'tea' }, { item: 'cup' }])
await Event.create({ item: 'sold' })
console.log(json([...await Order.findAll(), ...await Event.findAll()]))
await db.close()
