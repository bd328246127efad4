'use strict'

// Reads and converts IDs without a node. Nothing here issues an ID.

const { invalid, show } = require('./errors.js')

const ALPHABET = '0123456789ABCDEFGHJKMNPQRSTVWXYZ'
const MAX_INT = (1n << 63n) - 1n
const FLAKE = /^[0-7][0-9A-HJKMNP-TV-Z]{12}$/i
const ULID = /^[0-7][0-9A-HJKMNP-TV-Z]{25}$/i
const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i
const FORMS = ['int', 'flake', 'ulid', 'uuid']

const VALUES = new Map([...ALPHABET].flatMap((c, i) => [[c, BigInt(i)], [c.toLowerCase(), BigInt(i)]]))

function decode (text) {
  let v = 0n
  for (const c of text) v = v << 5n | VALUES.get(c)
  return v
}

// Thirty bits at a time: numbers are faster than bigints.
function encode (v, length) {
  let text = ''
  for (let left = length; left > 0; left -= 6, v >>= 30n) {
    let part = ''
    for (let n = Number(v & 0x3FFFFFFFn), i = Math.min(left, 6); i > 0; i--, n >>= 5) part = ALPHABET[n & 31] + part
    text = part + text
  }
  return text
}

function uuidText (v) {
  return v.toString(16).padStart(32, '0').replace(/^(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-')
}

/** Says whether IDs of a form have 128 bits. */
const isWide = form => form === 'ulid' || form === 'uuid'

function checkForm (form) {
  if (!FORMS.includes(form)) throw invalid(`form is ${show(form)}: use one of ${FORMS.join(', ')}`)
  return form
}

/** Writes the value of an ID in a form of the same width. */
function format (value, form) {
  switch (form) {
    case 'int': return value
    case 'flake': return encode(value, 13)
    case 'ulid': return encode(value, 26)
    default: return uuidText(value)
  }
}

/** Returns the form and the value of an ID, as the HTTP API tells forms apart: by the length of the text. */
function read (id, name = 'the ID') {
  if (typeof id === 'number') {
    if (!Number.isSafeInteger(id) || id < 0) {
      throw invalid(`${name} is the number ${id}: numbers keep 53 bits, and an ID has more; give a bigint or a string`)
    }
    return { form: 'int', value: BigInt(id) }
  }
  if (typeof id === 'bigint') {
    if (id < 0n || id > MAX_INT) throw invalid(`${name} is ${id}: an ID is within 0 and 2^63-1`)
    return { form: 'int', value: id }
  }
  if (typeof id !== 'string') throw invalid(`${name} is ${show(id)}: give a bigint or a string`)
  const form = { 13: 'flake', 26: 'ulid', 36: 'uuid' }[id.length]
  if (form === 'flake' && FLAKE.test(id)) return { form, value: decode(id) }
  if (form === 'ulid' && ULID.test(id)) return { form, value: decode(id) }
  if (form === 'uuid' && UUID.test(id)) return { form, value: BigInt('0x' + id.replaceAll('-', '')) }
  if (form !== undefined) {
    throw invalid(`${name} is ${show(id)}: ${id.length} characters are a ${form}, ` + (form === 'uuid'
      ? 'which has hexadecimal digits, in groups of 8, 4, 4, 4 and 12'
      : `whose first one is 0 to 7, and the others are of ${ALPHABET}`))
  }
  if (/^[0-9]+$/.test(id) && id.length < 100) {
    const value = BigInt(id)
    if (value > MAX_INT) throw invalid(`${name} is ${show(id)}: an ID is within 0 and 2^63-1`)
    return { form: 'int', value }
  }
  throw invalid(`${name} is ${show(id)}: a flake has 13 characters, a ULID 26, a UUID 36, and an integer only digits`)
}

// name: bits of time, sid and sequence; milliseconds of a unit; epoch; whether the sid is above the sequence
const DEFAULT_EPOCH = 1704067200000
const LAYOUTS = new Map(Object.entries({
  scalable: [43, 5, 15, 1, DEFAULT_EPOCH, false],
  standalone: [43, 0, 20, 1, DEFAULT_EPOCH, false],
  fleet: [43, 10, 10, 1, DEFAULT_EPOCH, false],
  twitter: [41, 10, 12, 1, 1288834974657, true],
  discord: [41, 10, 12, 1, 1420070400000, true],
  instagram: [40, 13, 10, 1, 1314220021721, true],
  sonyflake: [39, 16, 8, 10, 1409529600000, false],
  leaf: [41, 10, 12, 1, 1288834974657, true],
  baidu: [28, 22, 13, 1000, 1463673600000, true],
  js53: [41, 5, 7, 1, DEFAULT_EPOCH, true]
}).map(([name, [time, sid, seq, unit, epoch, sidFirst]]) => [name, { time, sid, seq, unit, epoch, sidFirst }]))

/** Returns the layout written in text, such as fleet, or 41/10/12,order=time-sid-seq,unit=1ms,epoch=2020-01-01. */
function layoutOf (text = 'scalable') {
  const known = LAYOUTS.get(text)
  if (known) return known
  const bad = why => invalid(`layout is ${show(text)}: ${why}`)
  if (typeof text !== 'string' || text.length > 200) {
    throw bad(`use one of ${[...LAYOUTS.keys()].join(', ')}, or bits such as 41/10/12`)
  }
  const [first, ...settings] = text.split(',')
  let layout = LAYOUTS.get(first)
  const named = layout !== undefined
  let bits
  if (!named) {
    bits = /^(\d{1,2})\/(\d{1,2})\/(\d{1,2})$/.exec(first)?.slice(1).map(Number)
    if (!bits) {
      throw bad(`it is none of ${[...LAYOUTS.keys()].join(', ')}, and not three numbers of bits such as 41/10/12`)
    }
    layout = { time: bits[0], sid: bits[1], seq: bits[2], unit: 1, epoch: DEFAULT_EPOCH, sidFirst: true }
  }
  layout = { ...layout }
  for (const setting of settings) {
    const [key, value = ''] = setting.split('=')
    const unit = /^(\d{1,6})(ms|s|m)$/.exec(value)
    if (key === 'epoch') {
      layout.epoch = /^-?\d+$/.test(value) ? Number(value) : Date.parse(value)
      if (!Number.isSafeInteger(layout.epoch)) throw bad(`${show(value)} is no date, no time and no Unix milliseconds`)
    } else if (named) {
      throw bad('of a layout with a name only epoch= can be set')
    } else if (key === 'order' && value === 'time-seq-sid') {
      Object.assign(layout, { sidFirst: false, seq: bits[1], sid: bits[2] })
    } else if (key === 'unit' && unit) {
      layout.unit = Number(unit[1]) * { ms: 1, s: 1000, m: 60000 }[unit[2]]
    } else if (!(key === 'order' && value === 'time-sid-seq') && key !== 'steps' && key !== 'start') {
      throw bad(`${show(setting)} is no setting of a layout`)
    }
  }
  const { time, sid, seq, unit } = layout
  if (time < 1 || seq < 1 || seq > 24 || sid > 22 || time + sid + seq > 63 || unit < 1 || unit > 60000) {
    throw bad('an ID has 63 bits: at least 1 of time, at most 22 of sid, 1 to 24 of sequence')
  }
  return layout
}

const lowBits = layout => BigInt(layout.sid + layout.seq)

/** Returns where the low bits of a flake lie in its wide ID: how many are below rand_a, and how many bits follow. */
function split (layout) {
  const field = BigInt(Math.max(layout.sid + layout.seq, 12))
  return { behind: field - 12n, random: 74n - field }
}

function checkVersion (value) {
  if ((value >> 76n & 15n) !== 7n || (value >> 62n & 3n) !== 2n) {
    throw invalid(`${uuidText(value)} is no UUIDv7, so it has no time and holds no flake`)
  }
}

/** Returns the flake of a wide ID, which holds it above its random bits. */
function narrow (value, layout) {
  checkVersion(value)
  const { behind, random } = split(layout)
  const low = (value >> 64n & 0xFFFn) << behind | (value & (1n << 62n) - 1n) >> random
  const ms = Number(value >> 80n)
  const first = minimum(ms, layout)
  if (unixMs(first, layout) !== ms || low >> lowBits(layout) !== 0n) {
    throw invalid(`${uuidText(value)} holds no flake of this layout`)
  }
  return first | low
}

/** Returns the smallest wide ID of a flake. */
function widen (value, layout) {
  const { behind, random } = split(layout)
  const low = value & (1n << lowBits(layout)) - 1n
  return BigInt(unixMs(value, layout)) << 80n | 7n << 76n | (low >> behind) << 64n |
    2n << 62n | (low & (1n << behind) - 1n) << random
}

function minimum (ms, layout) {
  const units = Math.floor((ms - layout.epoch) / layout.unit)
  if (!(units >= 0 && units < 2 ** layout.time)) {
    throw invalid(`the time ${ms} (Unix ms) is outside of the layout's, which begins at ${layout.epoch}`)
  }
  return BigInt(units) << lowBits(layout)
}

function unixMs (value, layout) {
  const units = value >> lowBits(layout)
  if (units >> BigInt(layout.time) !== 0n) {
    throw invalid(`${value} has more bits than the layout: is it an ID of another layout?`)
  }
  return Number(units) * layout.unit + layout.epoch
}

/** Returns an ID in all forms that its text has. */
function parse (id) {
  const { form, value } = read(id)
  return isWide(form)
    ? { form, ulid: format(value, 'ulid'), uuid: format(value, 'uuid') }
    : { form, int: value, flake: format(value, 'flake') }
}

/** Writes an ID in another form. A UUID or ULID gives its flake; a flake gives none of them, which have random bits. */
function convert (id, form, layout) {
  checkForm(form)
  const from = read(id)
  if (isWide(from.form) === isWide(form)) return format(from.value, form)
  if (isWide(form)) {
    throw invalid(`${show(id)} has 64 bits: the ${form} of the same ID has random bits too, so draw the ID as ${form}`)
  }
  return format(narrow(from.value, layoutOf(layout)), form)
}

/** Returns the time of an ID, as a Date. */
function timeOf (id, layout) {
  const { form, value } = read(id)
  if (form === 'uuid') checkVersion(value)
  return new Date(isWide(form) ? Number(value >> 80n) : unixMs(value, layoutOf(layout)))
}

/** Returns the sid of an ID: the number of the node or worker that made it. */
function sidOf (id, layout) {
  const l = layoutOf(layout)
  let { form, value } = read(id)
  if (isWide(form)) value = narrow(value, l)
  unixMs(value, l)
  return Number(value >> BigInt(l.sidFirst ? l.seq : 0) & (1n << BigInt(l.sid)) - 1n)
}

/** Returns the smallest ID of a time: a bound for a range of IDs. */
function firstOf (time, form = 'int', layout) {
  checkForm(form)
  const ms = time instanceof Date ? time.getTime() : time
  if (!Number.isSafeInteger(ms)) throw invalid(`the time is ${show(time)}: give a Date or Unix milliseconds`)
  const l = layoutOf(layout)
  const first = minimum(ms, l)
  return format(isWide(form) ? widen(first, l) : first, form)
}

module.exports = {
  parse, convert, timeOf, sidOf, firstOf, read, format, isWide, widen, checkForm, layoutOf, FORMS, MAX_INT
}
