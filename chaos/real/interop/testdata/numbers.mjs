// Draws IDs as JSON numbers from a node at the URL given, and reads them as JavaScript does.
import assert from 'node:assert/strict'

const base = process.argv[2]

async function post(query, body) {
  const res = await fetch(`${base}/v1/ids${query}`, {
    method: 'POST', body, headers: body && { 'Content-Type': 'application/json' },
  })
  const text = await res.text()
  assert.equal(res.status, 200, text)
  return text
}

let seen = 0
let last = 0

// check reads the text of an answer and holds every number in it against its digits.
function check(text, count) {
  const { ids } = JSON.parse(text)
  const digits = /^\{"ids":\[([0-9,]*)\]/.exec(text)[1].split(',')
  assert.equal(ids.length, count)
  assert.equal(digits.length, count)
  ids.forEach((id, i) => {
    assert.ok(Number.isSafeInteger(id), `${digits[i]} is read as ${id}`)
    assert.equal(String(id), digits[i])
    assert.equal(BigInt(id), BigInt(digits[i]))
    assert.ok(id > last, `${id} after ${last}`)
    last = id
  })
  seen += count
  return ids
}

check(await post('?as=number'), 1)
for (let i = 0; i < 50; i++) {
  check(await post('?as=number&count=128'), 128)
}
// The string form of the same ID, and the order by a number that JavaScript wrote.
for (let i = 0; i < 20; i++) {
  const [id] = check(await post('', JSON.stringify({ as: 'number', after: last })), 1)
  const parts = await (await fetch(`${base}/v1/ids/${id}`)).json()
  assert.equal(parts.int, String(id))
}
const { ids } = JSON.parse(await post('?as=int&count=128'))
for (const id of ids) {
  assert.equal(typeof id, 'string')
  assert.ok(Number.isSafeInteger(Number(id)) && String(Number(id)) === id && Number(id) > last, id)
  last = Number(id)
  seen++
}
console.log(`${seen} IDs: OK`)
