"""Both clients and workers with real nodes, whose URLs are in NODES, and how long calls take."""

import asyncio
import os
import re
import threading
import time
import timeit
import tracemalloc
import unittest
import uuid
from pathlib import Path
from types import SimpleNamespace

import support  # noqa: F401
from flakelease_allocator import Allocator, AsyncAllocator, Empty, NotPermitted, ids
from flakelease_allocator.worker import Worker

NODES = os.environ.get("NODES", "").split(",")


@unittest.skipIf(NODES == [""], "NODES names no nodes")
class Real(unittest.TestCase):
    def test_distinct(self):
        drawn, client = [], Allocator(NODES, prefetch=64)
        lock = threading.Lock()

        def draw(i):
            mine = []
            for n in range(50):
                mine += client.next_many(n + 1) if i % 2 else [client.next()]
            self.assertEqual(mine, sorted(mine), "a call gave an ID below one of an earlier call")
            with lock:
                drawn.extend(mine)

        threads = [threading.Thread(target=draw, args=(i,)) for i in range(16)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()

        async def tasks():
            async with AsyncAllocator(NODES[::-1]) as other:
                for _ in range(5):
                    drawn.extend(await asyncio.gather(*(other.next() for _ in range(64))))

        asyncio.run(tasks())
        self.assertEqual(len(drawn), 8 * 50 + 8 * 51 * 25 + 320)
        self.assertEqual(len(set(drawn)), len(drawn))
        client.close()

    def test_forms(self):
        with Allocator(NODES) as client:
            drawn = [client.next(f) for _ in range(5) for f in ("int", "uuid", "flake", "ulid")]
            numbers = list(map(ids.to_int, drawn))
            self.assertEqual(numbers, sorted(set(numbers)), "forms have one order")
            self.assertEqual((drawn[1].version, len(drawn[2]), len(drawn[3])), (7, 13, 26))
            self.assertLess(abs(ids.time_of(drawn[1]).timestamp() - time.time()), 60)
            for after in drawn[:4]:
                self.assertGreater(ids.to_int(client.next(after=after)), ids.to_int(after))
            mark = client.wait_for(drawn[-1], timeout=60)
            self.assertTrue(mark.complete(drawn[-1]) and mark.complete(numbers[-1]))
            self.assertGreaterEqual(client.watermark().unix_ms, mark.unix_ms)

    def test_readme(self):
        program, = re.findall(r"```python\n(.*?)```", (Path(__file__).parent.parent / "README.md").read_text(), re.S)
        program, places = re.subn(r"\[\"http://.*?\]", repr(NODES), program)
        program, limits = re.subn(r"timeout=[0-9.]+", "timeout=60", program)
        self.assertEqual((places, limits), (1, 1))
        with Allocator(NODES) as other:
            names = {"order": SimpleNamespace(id=other.next())}
            exec(program, names)
            with names["ids"] as client:
                self.assertGreater(client.next(), names["order"].id)

    def test_workers(self):
        with Allocator(NODES) as client, Worker(client, "a", watermark=True) as one, Worker(client) as two:
            self.assertNotEqual(one.number, two.number)
            now = int(time.time() * 1000)
            for worker in one, two:
                worker.permit(now)
                worker._keep.due = 0.0
                worker._wake.set()
                while worker._keep.due == 0.0:  # until it is extended, or that failed
                    time.sleep(0.01)
                self.assertIsNone(worker.last_error)
                worker.permit(now)
            one._raise_floor(now + 5)
            with self.assertRaisesRegex(NotPermitted, "BEHIND"):
                one.permit(now + 4)
            with self.assertRaisesRegex(NotPermitted, "EXPIRED"):
                two.permit(two._not_after)
            if (pid := os.fork()) == 0:
                try:
                    two.permit(now)
                except NotPermitted as e:
                    os._exit(0 if e.reason == "FORKED" else 1)
                finally:
                    os._exit(1)
            self.assertEqual(os.waitpid(pid, 0)[1], 0)
        with self.assertRaisesRegex(NotPermitted, "CLOSED"):
            two.permit(now)

    def test_speed(self):
        async def best(call, count):
            found = []
            for _ in range(5):
                begun = time.perf_counter()
                for _ in range(count):
                    await call()
                found.append(time.perf_counter() - begun)
            return min(found)

        async def run():
            async with AsyncAllocator(NODES) as client:
                async def caller():
                    for _ in range(20):
                        await client.next()

                await client.next()
                return (await best(client.next, 200) / 200,
                        await best(lambda: asyncio.gather(*(caller() for _ in range(64))), 1) / (64 * 20))

        alone, together = asyncio.run(run())
        print(f"asyncio: an ID in {alone * 1e6:.0f} us alone, in {together * 1e6:.1f} us with 64 callers")
        self.assertGreater(alone, 5 * together)
        tracemalloc.start()
        with Allocator(NODES, prefetch=1000, prefetch_max_age=60.0) as client:
            client.next()
            held, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()

            def draw():
                try:
                    client.next_now()
                except Empty:
                    client.next()

            found = [min(timeit.repeat(call, number=400, repeat=20)) / 400 for call in (draw, uuid.uuid4)]
        print("next_now in {:.2f} us, uuid.uuid4() in {:.2f} us".format(*(s * 1e6 for s in found)),
              f"; a client has {held} bytes")
        self.assertLess(found[0], 2 * found[1])
        self.assertLess(held, 2_000_000)


if __name__ == "__main__":
    unittest.main()
