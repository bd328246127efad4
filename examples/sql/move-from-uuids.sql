-- Way 2 of docs/how-to/move-from-uuids.md in MySQL and MariaDB. TestSQLFiles runs it in MariaDB
-- and compares what it prints with the last lines.

SET time_zone = '+00:00'; -- created_at is UTC
CREATE TABLE orders (id CHAR(36) PRIMARY KEY, created_at DATETIME(3) NOT NULL, note TEXT);
CREATE TABLE items (order_id CHAR(36) NOT NULL, sku TEXT, CONSTRAINT items_order FOREIGN KEY (order_id) REFERENCES orders (id));
INSERT INTO orders VALUES
  ('f47ac10b-58cc-4372-a567-0e02b2c3d479', '2019-03-01 09:30:00.250', 'first'),
  ('9c5b94b1-35ad-49bb-b118-8e8fc24abf80', '2026-11-18 10:00:00', 'second'),
  ('0b8f6a62-6c1f-4a53-9d0e-5b6a1c7f3e21', '2026-11-18 10:00:00', 'in the same millisecond');
INSERT INTO items VALUES ('f47ac10b-58cc-4372-a567-0e02b2c3d479', 'apples'), ('9c5b94b1-35ad-49bb-b118-8e8fc24abf80', 'pears');

-- 2: add the columns
ALTER TABLE orders ADD COLUMN new_id BIGINT, ADD UNIQUE KEY orders_new_id (new_id);
ALTER TABLE items ADD COLUMN new_order_id BIGINT, ADD KEY items_new_order_id (new_order_id);

-- 3: fill a range of old rows
UPDATE orders JOIN (
  SELECT id AS old, ms, ROW_NUMBER() OVER (PARTITION BY ms ORDER BY id) - 1 AS n
  FROM (SELECT id, CAST(FLOOR(UNIX_TIMESTAMP(created_at) * 1000) AS SIGNED) AS ms FROM orders
        WHERE created_at >= '2019-01-01' AND created_at < '2027-01-01' AND new_id IS NULL) AS unfilled
) AS numbered ON id = old
SET new_id = ((ms - 1420070400000) << 20) | (n << 5) | 31;
UPDATE items JOIN orders ON id = order_id SET new_order_id = new_id WHERE new_order_id IS NULL;

-- 4: check
SELECT new_id, note FROM orders ORDER BY new_id;

-- 5: change the primary key
ALTER TABLE items DROP FOREIGN KEY items_order;
ALTER TABLE orders DROP PRIMARY KEY, MODIFY new_id BIGINT NOT NULL, ADD PRIMARY KEY (new_id), DROP KEY orders_new_id, ADD UNIQUE KEY (id);
ALTER TABLE items MODIFY new_order_id BIGINT NOT NULL, ADD FOREIGN KEY (new_order_id) REFERENCES orders (new_id);
SELECT note, sku FROM orders JOIN items ON new_order_id = new_id ORDER BY new_id;

-- prints:
-- 137743250489344031	first
-- 393137985945600031	in the same millisecond
-- 393137985945600063	second
-- first	apples
-- second	pears
