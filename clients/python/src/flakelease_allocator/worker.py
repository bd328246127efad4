"""A worker number that no other program has, for a generator outside of the nodes, such as a Snowflake library."""

from __future__ import annotations

import os
import random
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from ._core import Call, Node, Response, document, positive
from ._sync import Allocator
from .errors import AllocatorError, InvalidArgument, ProtocolError, Refused, Unavailable

Grant = Mapping[str, Any]  # a Worker of the API
LEAP = 1.0  # The wall clock is set forward by this at least to count.


class NotPermitted(AllocatorError):
    """An ID must not be used. reason: NOT_YET, BEHIND, EXPIRED (a later ID may be used), LOST, CLOSED, FORKED."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


class Keep:
    """Decides when a worker is extended and what answers mean. Times are of the monotonic clock, in seconds."""

    def __init__(self, grant: Grant, sent: float) -> None:
        self.id, self.handle, self.not_before = grant["id"], grant["handle"], grant["not_before_unix_ms"]
        self.not_after = self.floor = 0
        self.answered(grant, sent)

    def answered(self, grant: Grant, sent: float) -> None:
        """Takes the answer of a call that began at sent. After an error nothing of it is used."""
        if (grant["id"], grant["handle"], grant["not_before_unix_ms"]) != (self.id, self.handle, self.not_before):
            raise ProtocolError(f"a node answered for worker {grant['id']!r:.40} instead of {self.id}")
        if grant["not_after_unix_ms"] < self.not_after:
            raise ProtocolError(f"the end of worker {self.id} went back to {grant['not_after_unix_ms']}")
        self.not_after, self.floor = grant["not_after_unix_ms"], max(self.floor, grant.get("floor_unix_ms", 0))
        self.ahead = grant["now_unix_ms"] - sent * 1000  # what the node's clock read at time 0
        # By the node's clock alone, since this machine's may be wrong, and early: the answer took some time.
        every = max(0.1, (grant["extend_at_unix_ms"] - grant["now_unix_ms"]) / 1000)
        self.due, self.timeout, self.fails, self.began = sent + every, max(0.5, every / 4), 0, sent

    def failed(self, now: float, jitter: float) -> None:
        """Notes that a call failed. Workers that failed together do not repeat it together."""
        self.due = now + self.pause() * (0.5 + jitter / 2)
        self.fails += 1

    def pause(self) -> float:
        return float(min(0.1 * 2.0 ** min(self.fails, 10), 2.0))

    def wanted(self) -> None:
        """Notes that an ID was refused since the interval had ended."""
        self.due = min(self.due, self.began + max(1.0, self.pause() if self.fails else 0))

    def passed(self, now: float, wall_ms: float) -> int:
        """Returns a time below which no ID needs to be used any more: a second ago by the clock that is behind."""
        return int(min(wall_ms, self.ahead + now * 1000)) - 1000


def is_lost(error: Exception) -> bool:
    return isinstance(error, Refused) and error.reason in ("UNKNOWN_WORKER", "HISTORY_REWOUND")


def _grant(node: Node, response: Response) -> Grant:
    grant = document(node, response)
    numbers = ("worker", "term", "not_before_unix_ms", "not_after_unix_ms", "extend_at_unix_ms", "now_unix_ms")
    if not all(isinstance(grant.get(name), int) for name in numbers) \
            or not all(isinstance(grant.get(name), str) and grant[name] for name in ("id", "handle")):
        raise ProtocolError(f"{node.url} answered with no worker")
    return grant


class Worker:
    """Holds a worker number, and keeps it extended in a thread until it is closed.

        with Allocator(nodes) as ids, Worker(ids, "orders") as worker:
            id = generator(worker.number).generate()
            worker.permit(time_of(id))   # of the ID's own time; raises NotPermitted: do not use the ID

    Make the ID first, then ask permit, and only then use the ID. One worker is for one generator. A forked child needs
    its own.
    """

    def __init__(self, ids: Allocator, name: str = "", *, unit: int = 1, watermark: bool = False,
                 timeout: float = 90.0) -> None:
        """Acquires a number, and waits until its interval has begun by this machine's clock.

        unit: milliseconds of the generator's unit of time. watermark: the space's watermark covers this worker; permit
        then refuses IDs older than a second.
        """
        name = name or f"{socket.gethostname()[:50]}-{os.getpid()}"
        if not isinstance(name, str) or not 1 <= len(name.encode()) <= 64:
            raise InvalidArgument(f"name {name!r:.80}: use 1 to 64 bytes")
        if isinstance(unit, bool) or not isinstance(unit, int) or not 1 <= unit <= 60_000:
            raise InvalidArgument(f"unit is {unit!r:.40}: give whole milliseconds up to a minute")
        self._ids, self.name, self._unit, self._tells = ids, name, unit, watermark
        self._clock = ids._clock
        self._seen = self._ahead()
        self._lock = threading.Lock()  # guards what permit reads
        self._wake = threading.Event()
        self._end, self.cause = "", ""  # LOST or CLOSED, and why
        self.last_error: Exception | None = None  # why the last call to extend failed
        self._pid, self._closing = os.getpid(), False
        deadline = self._clock.mono() + positive("timeout", timeout)
        self._keep, grant = self._acquire(deadline)
        self.id: str = grant["id"]
        self.number: int = grant["worker"]
        self._not_after: int = self._keep.not_after
        self._used: int = self._keep.not_before
        self._floor: int = max(self._keep.not_before, self._keep.floor)
        self._thread = threading.Thread(target=self._run, name=f"allocator-worker-{self.id}", daemon=True)
        self._thread.start()
        while (wait := self._keep.not_before + unit - 1 - self._clock.now().wall * 1000) > 0:
            if self._clock.mono() + wait / 1000 > deadline:
                self.close()
                raise NotPermitted("NOT_YET", f"worker {self.id} begins in {wait / 1000:.1f} s: all were used lately")
            time.sleep(min(wait / 1000, 1.0))

    def _call(self, method: str, path: str, read: Callable[[Node, Response], Any], timeout: float,
              body: Mapping[str, Any] | None = None) -> Any:
        headers = {"Worker-Handle": self._keep.handle} if hasattr(self, "_keep") else {}
        now = self._clock.mono()
        flow = self._ids._pool.ask(now, Call(method, path, read, body, headers), now + timeout, True)
        return self._ids._run(flow)[1]

    def _acquire(self, deadline: float) -> tuple[Keep, Grant]:
        """Calls with one secret until a worker is acquired, so that one whose answer was lost is found again."""
        secret, asked, fails = secrets.token_hex(16), 0, 0
        while True:
            now = self._clock.now()
            sent, left = now.mono, deadline - now.mono
            asked += 1
            body = {"name": self.name, "secret": secret, "tells_floor": self._tells,
                    "clock_unix_ms": int(now.wall * 1000)}
            try:
                grant = self._call("POST", "/v1/workers", _grant, max(min(left, self._ids._timeout), 0.001), body)
                return Keep(grant, sent), grant
            except Refused as e:
                if asked > 1 and e.reason == "INVALID_FORMAT":  # It was extended since: this one ends by itself.
                    secret, asked = secrets.token_hex(16), 0
                elif e.reason == "WORKERS_OFF" or e.final and not (e.reason == "WORKER_QUOTA" and e.retry_after):
                    raise
                error: AllocatorError = e
            except (Unavailable, ProtocolError) as e:
                error = e
            pause = min(0.1 * 2 ** min(fails, 10), 2.0)
            if self._clock.mono() + pause >= deadline:
                raise error
            time.sleep(pause)
            fails += 1

    def _run(self) -> None:
        keep = self._keep
        while not self._closing:
            self._wake.wait(max(keep.due - self._clock.mono(), 0))
            self._wake.clear()
            if self._closing or self._clock.mono() < keep.due:
                continue
            if not self._look():
                return
            now = self._clock.now()
            sent, body = now.mono, {"not_after_unix_ms": keep.not_after}
            keep.began = sent
            if self._tells:  # What is told has to hold from the moment it is sent.
                body["floor_unix_ms"] = self._raise_floor(keep.passed(sent, now.wall * 1000) - self._unit)
            try:
                keep.answered(self._call("POST", f"/v1/workers/{self.id}:extend", _grant, keep.timeout, body), sent)
                self._raise_floor(keep.floor)
                with self._lock:
                    self._not_after, self.last_error = 0 if self._end else keep.not_after, None
            except Exception as e:
                self.last_error = e
                keep.failed(self._clock.mono(), random.random())
                if is_lost(e):
                    self._lose(str(e))
                    return

    def _lose(self, why: str) -> None:
        with self._lock:
            if not self._end:
                self._not_after, self._end, self.cause = 0, "LOST", f"{why}: open another one"

    def _look(self) -> bool:
        """Compares the clocks, and loses the worker where this may be a copy of a machine that was saved.

        The other copy has the number too. A wall clock that is set forward is all that shows it.
        """
        ahead = self._ahead()
        leap, self._seen = ahead - self._seen, ahead
        if leap >= LEAP:
            self._lose(f"the wall clock was set forward by {leap:.1f} s: it was wrong, or this machine was suspended, "
                       "or is a copy of one that was saved")
        return leap < LEAP

    def _ahead(self) -> float:
        """Returns by how much the wall clock is ahead. A pause between two reads shows too little: it reads twice."""
        a, b = self._clock.now(), self._clock.now()
        return max(a.wall - a.mono, b.wall - b.mono)

    def _raise_floor(self, floor: int) -> int:
        with self._lock:
            self._floor = max(self._floor, floor)
            return self._floor

    def permit(self, unix_ms: int) -> None:
        """Returns if an ID may be used whose own time is unix_ms, at the start of its unit; else raises NotPermitted.

        It does not wait.
        """
        if os.getpid() != self._pid:  # Before the lock, which a thread of the parent may hold forever here.
            raise NotPermitted("FORKED", f"worker {self.id} is the parent's: open one in each process")
        self._look()
        with self._lock:
            if self._floor <= unix_ms <= self._not_after - self._unit:
                self._used = max(self._used, unix_ms + self._unit)
                return
            if self._end:
                raise NotPermitted(self._end, self.cause)
        if unix_ms < self._keep.not_before:
            raise NotPermitted("NOT_YET", "the time is before the worker's interval: check this machine's clock")
        if unix_ms < self._floor:
            raise NotPermitted("BEHIND", "the watermark has passed the time: make another ID")
        self._keep.wanted()
        self._wake.set()
        why = self.last_error or "is the clock ahead?"
        raise NotPermitted("EXPIRED", f"the time is after the worker's interval: {why}")

    @property
    def lost(self) -> bool:
        """Says that the worker is not held any more and never will be: open another one.

        Nodes do not know it any more, or the wall clock was set forward by a second: this memory may be a copy.
        """
        return self._end == "LOST"

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives the number back: no ID of this worker is used that permit did not allow."""
        if os.getpid() != self._pid:
            return
        self._look()  # The other copy goes on with the number.
        with self._lock:
            done, self._closing = self._closing, True
            was, self._not_after = self._end, 0
            self._end, self.cause = self._end or "CLOSED", self.cause or "the worker was closed"
        self._wake.set()
        if done:
            return
        self._thread.join()
        if was != "LOST":
            try:
                self._call("DELETE", f"/v1/workers/{self.id}?used_until_unix_ms={self._used}", document, 5.0)
            except Refused as e:
                if e.reason != "UNKNOWN_WORKER":  # An earlier attempt did it.
                    raise
