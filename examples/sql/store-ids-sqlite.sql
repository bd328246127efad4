-- The types and queries of docs/how-to/store-ids.md in SQLite. A test runs them.

-- INTEGER PRIMARY KEY is the row ID of SQLite itself, so the table needs no second index.
CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT);
INSERT INTO orders VALUES (95552449887521538, 'Friday'), (95552449898644130, 'Friday too'), (95600000000000002, 'Saturday');
SELECT note FROM orders WHERE id >= 95489202585600000 AND id < 95579799552000000 ORDER BY id;

CREATE TABLE events (id BLOB PRIMARY KEY, note TEXT) WITHOUT ROWID;
INSERT INTO events VALUES (x'01a1f9d91a9a7082a8a2962be40838f5', 'Friday');
SELECT note FROM events WHERE id >= x'01a1f640bc0070008000000000000000' AND id < x'01a1fb67180070008000000000000000';

-- prints:
-- Friday
-- Friday too
-- Friday
