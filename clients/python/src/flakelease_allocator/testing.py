"""A fake for the tests of programs: nodes in memory, behind the clients as they are.

    ids = FakeAllocator()
    ids.next()                       # the same IDs in every run
    ids.fake.refuse("CLOCK_SKEW")    # all requests, until ids.fake.serve()
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

from . import ids
from ._aio import AsyncAllocator
from ._core import Response, Send
from ._sync import Allocator


class FakeNode:
    """Issues IDs from a fixed time on, a millisecond apart for each request, or refuses."""

    def __init__(self, start: datetime | int = 1_767_225_600_000) -> None:
        self.last = ids.first_of(start)
        self.requests: list[str] = []  # method and path of each
        self.refusal: dict[str, Any] | None = None

    def refuse(self, reason: str, retry_after: float | None = None, status: int = 503) -> None:
        """Refuses from now on. A client with one node repeats the request until its timeout."""
        self.refusal = {"status": status, "reason": reason, "detail": "the fake refuses"}
        if retry_after:
            self.refusal["retry_after_ms"] = int(retry_after * 1000)

    def serve(self) -> None:
        """Serves from now on."""
        self.refusal = None

    def answer(self, send: Send) -> Response:
        self.requests.append(f"{send.call.method} {send.call.path}")
        if self.refusal:
            return Response(self.refusal["status"], json.dumps(self.refusal).encode())
        url = urlsplit(send.call.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        if url.path == "/v1/watermark":
            mark = {"unix_ms": ids.unix_ms_of(self.last), "int": str(self.last + 32), "flake": ids.to_flake(self.last),
                    "ulid": self._ulid(self.last + 32), "lag_ms": 0, "held": False, "blocked_by": []}
            return Response(200, json.dumps(mark).encode())
        if url.path != "/v1/ids":
            return Response(501, b'{"reason":"INVALID_FORMAT","detail":"the fake issues IDs alone"}')
        first = max(self.last, ids.to_int(query.get("after", "0"))) // 32 * 32 + 32
        issued = [first + 32 * i for i in range(int(query.get("count", "1")))]
        self.last = (issued[-1] >> 20) + 1 << 20
        texts = [self._ulid(n) if query.get("as") == "ulid" else str(n) for n in issued]
        return Response(200, json.dumps({"ids": texts, "node": "fake", "sid": 0}).encode())

    @staticmethod
    def _ulid(number: int) -> str:
        milliseconds, low = ids.unix_ms_of(number), number & (1 << 20) - 1
        return ids._encode(milliseconds << 80 | 7 << 76 | low >> 8 << 64 | 2 << 62 | (low & 0xFF) << 54, 26)


class FakeAllocator(Allocator):
    """An Allocator whose node is `fake`. It has the arguments of an Allocator, but for nodes."""

    def __init__(self, fake: FakeNode | None = None, **options: Any) -> None:
        self.fake = fake or FakeNode()
        super().__init__(["http://fake"], **options)

    def _send(self, send: Send) -> Response | Exception:
        self._begin(send)
        with self._lock:
            return self.fake.answer(send)


class FakeAsyncAllocator(AsyncAllocator):
    """An AsyncAllocator whose node is `fake`. It has the arguments of an AsyncAllocator, but for nodes."""

    def __init__(self, fake: FakeNode | None = None, **options: Any) -> None:
        self.fake = fake or FakeNode()
        super().__init__(["http://fake"], **options)

    async def _send(self, send: Send) -> Response | Exception:
        self._begin(send)
        return self.fake.answer(send)
