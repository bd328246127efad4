-- Moves a table "orders" with random UUIDs as keys, and "items" that refer to it, to sorted IDs in PostgreSQL, beside
-- running programs: docs/how-to/move-from-uuids.md says what happens between the steps. A test runs it.

-- Step 2: add the columns

CREATE TABLE orders (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), created_at timestamptz NOT NULL DEFAULT now(), note text);
CREATE TABLE items (order_id uuid NOT NULL REFERENCES orders, sku text);
INSERT INTO orders VALUES
  ('f47ac10b-58cc-4372-a567-0e02b2c3d479', '2019-03-01 09:30:00.25Z', 'first'),
  ('9c5b94b1-35ad-49bb-b118-8e8fc24abf80', '2026-11-18 10:00:00Z', 'second'),
  ('0b8f6a62-6c1f-4a53-9d0e-5b6a1c7f3e21', '2026-11-18 10:00:00Z', 'in the same millisecond');
INSERT INTO items VALUES ('f47ac10b-58cc-4372-a567-0e02b2c3d479', 'apples'), ('9c5b94b1-35ad-49bb-b118-8e8fc24abf80', 'pears');

ALTER TABLE orders ADD COLUMN new_id bigint;
ALTER TABLE items ADD COLUMN new_order_id bigint;
CREATE UNIQUE INDEX CONCURRENTLY orders_new_id ON orders (new_id);
CREATE UNIQUE INDEX CONCURRENTLY orders_uuid ON orders (id);

-- Step 2: write both

INSERT INTO orders (new_id, created_at, note) VALUES (393344678455699682, '2026-11-20 16:45:17.5Z', 'fourth');
INSERT INTO items SELECT id, 'plums', new_id FROM orders WHERE new_id = 393344678455699682;

-- Step 3: fill old rows; a batch is a range of whole seconds of created_at, those of items last. 1420070400000 is the
-- epoch in Unix milliseconds; rows of one millisecond are counted from 0 on; 31 is the sid.

UPDATE orders SET new_id = ((ms - 1420070400000) << 20) | (n << 5) | 31
FROM (
  SELECT id AS old, ms, row_number() OVER (PARTITION BY ms ORDER BY id) - 1 AS n
  FROM (SELECT id, floor(extract(epoch FROM created_at) * 1000)::bigint AS ms FROM orders
        WHERE created_at >= '2019-01-01Z' AND created_at < '2027-01-01Z' AND new_id IS NULL) AS unfilled
) AS numbered
WHERE id = old;

UPDATE items SET new_order_id = orders.new_id FROM orders WHERE orders.id = order_id AND new_order_id IS NULL;

-- Step 4: check

SELECT count(*) FROM orders WHERE new_id IS NULL;
SELECT count(*) FROM items JOIN orders ON id = order_id WHERE new_order_id IS DISTINCT FROM new_id;
SELECT new_id, note FROM orders ORDER BY new_id;

ALTER TABLE orders ADD CONSTRAINT new_id_set CHECK (new_id IS NOT NULL) NOT VALID;
ALTER TABLE items ADD CONSTRAINT new_order_id_set CHECK (new_order_id IS NOT NULL) NOT VALID;
ALTER TABLE orders VALIDATE CONSTRAINT new_id_set;
ALTER TABLE items VALIDATE CONSTRAINT new_order_id_set;
ALTER TABLE orders ALTER COLUMN new_id SET NOT NULL, DROP CONSTRAINT new_id_set;
ALTER TABLE items ALTER COLUMN new_order_id SET NOT NULL, DROP CONSTRAINT new_order_id_set;

-- Step 5: change the primary key

ALTER TABLE items ADD CONSTRAINT items_new_order_id_fkey FOREIGN KEY (new_order_id) REFERENCES orders (new_id) NOT VALID;
ALTER TABLE items VALIDATE CONSTRAINT items_new_order_id_fkey;

BEGIN;
SET LOCAL lock_timeout = '2s';
ALTER TABLE items DROP CONSTRAINT items_order_id_fkey;
ALTER TABLE orders ADD CONSTRAINT orders_uuid UNIQUE USING INDEX orders_uuid;
ALTER TABLE orders DROP CONSTRAINT orders_pkey;
ALTER TABLE orders ADD CONSTRAINT orders_pkey PRIMARY KEY USING INDEX orders_new_id;
COMMIT;

SELECT note, sku FROM orders JOIN items ON new_order_id = new_id ORDER BY new_id;

-- prints:
-- 0
-- 0
-- 137743250489344031|first
-- 393137985945600031|in the same millisecond
-- 393137985945600063|second
-- 393344678455699682|fourth
-- first|apples
-- second|pears
-- fourth|plums
