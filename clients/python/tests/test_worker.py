"""Workers, with a node that grants intervals as the test says."""

import json
import os
import signal
import time
import unittest

from support import Case, Node, problem
from flakelease_allocator import Allocator, InvalidArgument, NotPermitted, ProtocolError, Refused
from flakelease_allocator.worker import Keep, Worker


def grant(**more):
    return {"id": "17-4", "worker": 17, "term": 4, "name": "a", "not_before_unix_ms": 1000, "not_after_unix_ms": 61_000,
            "extend_at_unix_ms": 21_000, "now_unix_ms": 1000, "handle": "h", **more}


class Keeps(unittest.TestCase):
    def test_answers(self):
        keep = Keep(grant(), 5.0)
        self.assertEqual((keep.due, keep.timeout), (25.0, 5.0))
        for wrong in ({"id": "17-5"}, {"handle": "i"}, {"not_before_unix_ms": 1001}, {"not_after_unix_ms": 60_999}):
            with self.subTest(wrong), self.assertRaises(ProtocolError):
                keep.answered(grant(**{"not_after_unix_ms": 99_000, **wrong}), 9.0)
            self.assertEqual((keep.not_after, keep.due), (61_000, 25.0), "nothing of it is used")
        keep.answered(grant(not_after_unix_ms=70_000, now_unix_ms=21_000, floor_unix_ms=7), 25.0)
        self.assertEqual((keep.not_after, keep.due, keep.floor), (70_000, 25.1, 7),
                         "calls that succeed are 100 ms apart")

    def test_failures(self):
        keep, waits = Keep(grant(), 0.0), []
        for _ in range(7):
            keep.failed(100.0, 1.0)
            waits.append(round(keep.due - 100, 3))
        self.assertEqual(waits, [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0])
        keep.answered(grant(), 0.0)
        keep.wanted()
        self.assertEqual(keep.due, 1.0, "a refused ID asks for an extension, once a second")
        self.assertEqual(keep.passed(10.0, 99_000), 10_000, "a second ago by the clock that is behind: the node's")
        self.assertEqual(keep.passed(10.0, 5000), 4000)


class Workers(Case):
    def test_permit(self):
        now, asked = int(time.time() * 1000), []
        granted = grant(not_before_unix_ms=now - 1000, not_after_unix_ms=now + 60_000, now_unix_ms=now,
                        extend_at_unix_ms=now + 20_000)

        def serve(request):
            asked.append((request.method, request.path, request.body))
            if lost and "extend" in request.path:
                return problem("UNKNOWN_WORKER", 404)
            return 200, json.dumps(granted).encode()

        lost = []
        node = Node(self, serve)
        worker = Worker(Allocator([node.url], timeout=2.0), unit=10)
        worker.permit(now)
        worker.permit(now + 59_990)
        for wrong, reason in ((now - 1001, "NOT_YET"), (now + 59_991, "EXPIRED")):
            with self.assertRaises(NotPermitted) as raised:
                worker.permit(wrong)
            self.assertEqual(raised.exception.reason, reason)
        worker._lock.acquire()  # as another thread may, which the child does not have
        if (pid := os.fork()) == 0:
            signal.alarm(60)
            try:
                worker.permit(now)
            except NotPermitted as e:
                worker.close()
                os._exit(0 if e.reason == "FORKED" else 1)
            os._exit(1)
        worker._lock.release()
        self.assertEqual(os.waitpid(pid, 0)[1], 0, "two processes may use one number")
        worker.close()
        self.assertEqual(asked[-1][:2], ("DELETE", f"/v1/workers/17-4?used_until_unix_ms={now + 60_000}"))
        self.assertEqual(node.seen[-1]["Worker-Handle"], "h")
        with self.assertRaisesRegex(NotPermitted, "CLOSED"):
            worker.permit(now)
        lost.append(True)
        worker = Worker(Allocator([node.url]))
        worker._keep.due = 0.0
        worker._wake.set()
        worker._thread.join()
        self.assertTrue(worker.lost)
        with self.assertRaisesRegex(NotPermitted, "LOST.*UNKNOWN_WORKER.*open another"):
            worker.permit(now)
        worker.close()
        self.assertIn("extend", asked[-1][1], "what is lost is not given back")

    def test_floor(self):
        # A call tells a floor and fails: the node may have noted it, so that no ID below it may be used.
        now, told = int(time.time() * 1000), []
        granted = grant(not_before_unix_ms=now - 9000, not_after_unix_ms=now + 60_000, now_unix_ms=now,
                        extend_at_unix_ms=now + 20_000)

        def serve(request):
            if "extend" not in request.path:
                return 200, json.dumps(granted).encode()
            told.append(json.loads(request.body)["floor_unix_ms"])
            return problem("UNKNOWN_WORKER", 404)

        worker = Worker(Allocator([Node(self, serve).url]), watermark=True)
        worker.permit(now - 9000)
        worker._keep.due = 0.0
        worker._wake.set()
        worker._thread.join()
        self.assertEqual(worker._floor, told[0])
        self.assertGreater(told[0], now - 9000)

    def test_not_granted(self):
        client = Allocator(["http://127.0.0.1:1"])
        for options in ({"name": "x" * 65}, {"name": 5}, {"unit": 0}, {"unit": 1.5}, {"timeout": 0}):
            with self.subTest(options), self.assertRaises(InvalidArgument):
                Worker(client, **options)
        for answer, error in ((problem("PERMISSION_DENIED", 403), Refused), (problem("NO_WORKER"), Refused),
                              ((200, b'{"id":"17-4"}'), ProtocolError)):
            node = Node(self, lambda request: answer)
            with self.subTest(answer), self.assertRaises(error):
                Worker(Allocator([node.url], timeout=0.2), timeout=0.5)


if __name__ == "__main__":
    unittest.main()
