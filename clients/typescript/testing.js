'use strict'

module.exports = require('./src/testing.js')
