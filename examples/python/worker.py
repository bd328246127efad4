"""Takes jobs from a table and writes a row with an ID for each: python3 worker.py shop.db (Python 3.11 or later)"""

import os
import sqlite3
import sys
import time

from flakelease_allocator import Allocator, AllocatorError

ids = Allocator(os.environ.get("NODES", "http://127.0.0.1:8080").split(","),
                token_file=os.environ.get("TOKEN_FILE"), ca_file=os.environ.get("CA_FILE"))
db = sqlite3.connect(sys.argv[1])
db.executescript("""
    CREATE TABLE IF NOT EXISTS jobs (item TEXT);
    CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, item TEXT);
""")
print(f"working on {sys.argv[1]}", flush=True)
while True:
    jobs = db.execute("SELECT rowid, item FROM jobs ORDER BY rowid LIMIT 500").fetchall()
    if not jobs:
        time.sleep(0.2)
        continue
    try:
        drawn = ids.next_many(len(jobs))  # one request for all of them
    except AllocatorError as e:  # the jobs stay where they are
        print(f"no IDs: {e}", file=sys.stderr, flush=True)
        time.sleep(getattr(e, "retry_after", None) or 1)
        continue
    with db:  # one transaction: if it fails, these IDs are never used, which does no harm
        rows = [(i, item) for i, (_, item) in zip(drawn, jobs, strict=True)]
        db.executemany("INSERT INTO orders VALUES (?, ?)", rows)
        db.executemany("DELETE FROM jobs WHERE rowid = ?", [(row,) for row, _ in jobs])
