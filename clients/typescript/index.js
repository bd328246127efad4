'use strict'

const { Allocator } = require('./src/client.js')
const { Worker } = require('./src/worker.js')
const { AllocatorError } = require('./src/errors.js')
const { parse, convert, timeOf, sidOf, firstOf } = require('./src/ids.js')

module.exports = { Allocator, Worker, AllocatorError, parse, convert, timeOf, sidOf, firstOf }
