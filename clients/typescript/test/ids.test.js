'use strict'

const test = require('node:test')
const assert = require('node:assert/strict')
const { readFileSync, readdirSync } = require('node:fs')
const { join } = require('node:path')
const { parse, convert, timeOf, sidOf, firstOf, AllocatorError } = require('../index.js')

// What package flake of Go is tested with.
const testdata = join(__dirname, '../../../testdata')
const vectors = JSON.parse(readFileSync(join(testdata, 'vectors/vectors.json')))
const isInvalid = e => e instanceof AllocatorError && e.kind === 'invalid' && e.message !== ''

test('flakes', () => {
  for (const [layout, list] of [['standalone', vectors.flake_standalone], ['scalable', vectors.flake_scalable]]) {
    for (const v of list) {
      assert.deepEqual(parse(v.base32), { form: 'flake', int: BigInt(v.int), flake: v.base32 })
      assert.deepEqual(parse(v.base32.toLowerCase()), parse(v.base32))
      if (v.int.length !== 13) assert.deepEqual(parse(v.int), { form: 'int', int: BigInt(v.int), flake: v.base32 })
      assert.deepEqual(parse(BigInt(v.int)), { form: 'int', int: BigInt(v.int), flake: v.base32 })
      assert.equal(convert(v.base32, 'int'), BigInt(v.int))
      assert.equal(timeOf(v.base32, layout).toISOString(), v.time)
      assert.equal(sidOf(v.base32, layout), v.sid ?? 0)
      assert.equal(firstOf(v.unix_ms, 'int', layout), BigInt(v.ts_ms) << 20n)
    }
  }
})

test('ULIDs and UUIDs', () => {
  for (const v of vectors.ulid) {
    assert.deepEqual(parse(v.ulid), { form: 'ulid', ulid: v.ulid, uuid: v.uuid })
    assert.deepEqual(parse(v.uuid.toUpperCase()), { form: 'uuid', ulid: v.ulid, uuid: v.uuid })
    assert.equal(convert(v.ulid, 'uuid'), v.uuid)
    assert.equal(timeOf(v.ulid).getTime(), v.unix_ms)
  }
  for (const v of vectors.uuid_v7) {
    assert.equal(convert(v.uuid, 'ulid'), v.ulid)
    assert.equal(timeOf(v.uuid).getTime(), v.unix_ms)
  }
  // One ID of docs/reference/ids.md in all its forms.
  assert.equal(convert('01M7WXJ6MTE21AH8MP5FJ0GE7N', 'flake'), '02MVRE9MT10N2')
  assert.equal(convert('01a1f9d9-1a9a-7082-a8a2-962be40838f5', 'int'), 95552449898644130n)
  assert.equal(sidOf('01a1f9d9-1a9a-7082-a8a2-962be40838f5'), 2)
})

test('texts that are no IDs', () => {
  for (const { input } of [...vectors.flake_invalid_strings, ...vectors.ulid_invalid_strings, ...vectors.flake_invalid_ints]) {
    // Integers have any number of digits, so that a flake or ULID of the wrong length may be one.
    if (/^[0-9]+$/.test(input) && BigInt(input) < 2n ** 63n) continue
    assert.throws(() => parse(input), isInvalid, input)
  }
  for (const bad of [-1n, 2n ** 63n, 2 ** 53, 1.5, -1, NaN, null, undefined, {}, [], true, '', ' 1', '1 ', '-1', '0x1', '1e3', '１',
    '01a1f9d9-1a9a-7082-a8a2-962be40838fg', '01a1f9d91-a9a-7082-a8a2-962be40838f5']) {
    assert.throws(() => parse(bad), isInvalid, String(bad))
  }
  assert.throws(() => parse(95552449898644130), /numbers keep 53 bits/)
  assert.throws(() => convert(1n, 'uuid'), /has random bits too/)
  assert.throws(() => convert(1n, 'hex'), /use one of int, flake, ulid, uuid/)
  assert.throws(() => timeOf('f47ac10b-58cc-4372-a567-0e02b2c3d479'), /is no UUIDv7/)
  assert.throws(() => convert('017f22e2-79b0-7cc3-98c4-dc0c0c07398f', 'int'), isInvalid) // before the epoch
})

test('layouts of other systems', () => {
  for (const name of readdirSync(join(testdata, 'layouts')).filter(name => name.endsWith('.json'))) {
    const { layout, bits, ids } = JSON.parse(readFileSync(join(testdata, 'layouts', name)))
    const written = `${bits.time}/${bits.sid}/${bits.sequence},unit=${bits.unit_ms}ms,epoch=${bits.epoch_unix_ms}`
    let tried = 0
    for (const v of ids ?? []) {
      const id = BigInt(v.id ?? v.int)
      if (id >= 2n ** 63n || v.out_of_range) continue
      assert.equal(sidOf(id, layout), v.sid, `${name}: ${id}`)
      assert.equal(timeOf(id, layout).getTime(), v.unix_ms, `${name}: ${id}`)
      if (bits.order === 'time-sid-seq' && bits.time + bits.sid + bits.sequence <= 63) {
        assert.equal(timeOf(id, written).getTime(), v.unix_ms)
      }
      tried++
    }
    assert.ok(tried > 0, name)
  }
  const fleet = '43/10/10,order=time-seq-sid,unit=1ms,epoch=2024-01-01'
  assert.equal(sidOf(95552449898644130n, fleet), sidOf(95552449898644130n, 'fleet'))
  assert.equal(firstOf(Date.UTC(2025, 0, 1), 'int', 'scalable,epoch=2025-01-01'), 0n)
  for (const bad of ['frobnicate', '1/2', '43/10/20', '41/10/12,unit=2h', '41/10/12,color=red', 'fleet,unit=1ms', 'fleet,epoch=soon', 7, 'x'.repeat(300)]) {
    assert.throws(() => timeOf(1n, bad), isInvalid, String(bad))
  }
  assert.throws(() => timeOf(2n ** 62n, 'js53'), /IDs? of another layout/)
})

test('bounds of a time', () => {
  for (const time of [new Date('2026-11-20T16:45:17.338Z'), Date.UTC(2030, 1, 1)]) {
    for (const layout of ['scalable', 'fleet', 'twitter', 'sonyflake']) {
      const int = firstOf(time, 'int', layout)
      assert.equal(timeOf(int, layout).getTime() <= Number(time), true)
      assert.equal(convert(firstOf(time, 'uuid', layout), 'int', layout), int)
      assert.equal(convert(firstOf(time, 'flake', layout), 'int'), int)
      if (layout !== 'sonyflake') assert.ok(timeOf(int - 1n, layout) < Number(time))
    }
  }
  for (const bad of ['2026-01-01', NaN, new Date(NaN), 0, Date.UTC(2023, 0, 1), Date.UTC(2400, 0, 1)]) assert.throws(() => firstOf(bad), isInvalid, String(bad))
})
