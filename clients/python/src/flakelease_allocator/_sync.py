"""The client for threads."""

from __future__ import annotations

import select
import socket
import threading
import time
import uuid
from typing import Any, Literal, cast, overload

from . import ids
from ._core import FORMS, MAX_COUNT, Client, Flow, Form, Node, Reader, Response, Send, T, Watermark, gave_up
from .errors import AllocatorError, Closed, ProtocolError, Refused


class _Batch:
    """Calls that share one request."""

    def __init__(self) -> None:
        self.count = 0
        self.numbers: list[int] = []
        self.error: AllocatorError | None = None
        self.again = False  # The one who sent it has gone: the others begin anew.
        self.done = threading.Event()


class Allocator(Client):
    """Gets IDs from an allocator cluster. One for the whole program: threads share it, and its requests."""

    def _reset(self) -> None:
        for connection in (c for list in getattr(self, "_idle", {}).values() for c in list):
            connection.close()  # The parent's stays open.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)  # A node may be asked that was not, or the client was closed.
        self._turn = threading.Lock()  # held while a batch is under way
        self._forming: list[_Batch | None] = [None, None]  # the batches that calls join, of 63 and 128 bits
        self._idle: dict[str, list[socket.socket]] = {}
        self._wake = threading.Event()
        self._keeper: threading.Thread | None = None

    def __enter__(self) -> Allocator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the client. Later calls raise Closed; requests under way finish."""
        with self._changed:
            self._closed = True
            open, self._idle = self._idle, {}
            self._changed.notify_all()
        self._wake.set()
        for connection in (c for list in open.values() for c in list):
            connection.close()

    @overload
    def next(self, form: Literal["int"] = "int", *, after: ids.AnyID | None = None,
             timeout: float | None = None) -> int: ...
    @overload
    def next(self, form: Literal["flake", "ulid"], *, after: ids.AnyID | None = None,
             timeout: float | None = None) -> str: ...
    @overload
    def next(self, form: Literal["uuid"], *, after: ids.AnyID | None = None,
             timeout: float | None = None) -> uuid.UUID: ...

    def next(self, form: Form = "int", *, after: ids.AnyID | None = None, timeout: float | None = None) -> Any:
        """Returns one ID. Calls that wait at the same time share a request."""
        wide, limit = self._check(form, 1, timeout)
        own = timeout is not None
        if after is not None:
            return FORMS[form](self._run(self._draw(1, wide, after, limit, own))[0])
        number = self._hold(wide) if self._held else None
        return FORMS[form](self._share(wide, limit, own) if number is None else number)

    @overload
    def next_many(self, count: int, form: Literal["int"] = "int", *, after: ids.AnyID | None = None,
                  timeout: float | None = None) -> list[int]: ...
    @overload
    def next_many(self, count: int, form: Literal["flake", "ulid"], *, after: ids.AnyID | None = None,
                  timeout: float | None = None) -> list[str]: ...
    @overload
    def next_many(self, count: int, form: Literal["uuid"], *, after: ids.AnyID | None = None,
                  timeout: float | None = None) -> list[uuid.UUID]: ...

    def next_many(self, count: int, form: Form = "int", *, after: ids.AnyID | None = None,
                  timeout: float | None = None) -> list[Any]:
        """Returns IDs in rising order, by one request for each 10,000."""
        wide, limit = self._check(form, count, timeout)
        return list(map(FORMS[form], self._run(self._draw(count, wide, after, limit, timeout is not None))))

    def watermark(self, *, timeout: float | None = None) -> Watermark:
        """Returns which IDs can still appear in the space. It never goes back from call to call."""
        return self._run(self._watermark(timeout))

    def wait_for(self, id: ids.AnyID, *, timeout: float | None = None) -> Watermark:
        """Returns the watermark once no ID at or below this one can appear any more."""
        return self._run(self._watermark(timeout, id))

    # -- requests

    def _share(self, wide: bool, limit: float, own: bool) -> int:
        """Joins the batch that forms. The call that begins one sends it when the one before was answered."""
        deadline = time.monotonic() + limit
        while True:
            with self._lock:
                batch = self._forming[wide]
                leads = batch is None or batch.count >= MAX_COUNT
                if batch is None or leads:
                    batch = self._forming[wide] = _Batch()
                place, batch.count = batch.count, batch.count + 1
            left = max(deadline - time.monotonic(), 0)
            if leads:
                self._lead(batch, wide, left, own)
            elif not batch.done.wait(left):
                raise gave_up(self._pool.cause, limit, own)
            if batch.error:
                raise batch.error.with_traceback(None)
            if not batch.again:
                return batch.numbers[place]

    def _lead(self, batch: _Batch, wide: bool, left: float, own: bool) -> None:
        began, turn = time.monotonic(), False
        try:
            turn = self._turn.acquire(timeout=left)
            with self._lock:
                if self._forming[wide] is batch:
                    self._forming[wide] = None
            if not turn:
                raise gave_up(self._pool.cause, left, own)
            left -= time.monotonic() - began
            batch.numbers = self._run(self._draw(batch.count, wide, None, max(left, 0), own))
        except AllocatorError as e:
            if own and not (isinstance(e, Refused) and e.final):
                raise  # The others have more time.
            batch.error = e
        finally:
            batch.again = not batch.numbers and not batch.error
            if turn:
                self._turn.release()
            batch.done.set()

    def _run(self, flow: Flow[T]) -> T:
        """Carries out what a flow asks for, and returns what it returns."""
        try:
            with self._lock:
                action = next(flow)
            while True:
                outcome = self._send(action) if isinstance(action, Send) else None
                with self._changed:
                    if isinstance(action, Send):
                        self._changed.notify_all()
                    elif not self._closed:
                        self._changed.wait(action)
                    if self._closed and not isinstance(outcome, Response):
                        raise Closed("the client was closed during the call")
                    action = flow.send((self._clock.mono(), outcome))
        except StopIteration as e:
            return cast(T, e.value)
        finally:
            flow.close()

    def _send(self, send: Send) -> Response | Exception:
        end, connection = time.monotonic() + send.timeout, None
        request, reader = self._begin(send), Reader()
        try:
            connection = self._connect(send.node, end)
            _remaining(connection, end)
            connection.sendall(request)
            while not reader.feed(_remaining(connection, end).recv(1 << 16)):
                pass
        except BaseException as e:
            if connection:
                connection.close()
            if isinstance(e, (OSError, ProtocolError)):
                return e
            raise
        with self._lock:
            idle = self._idle.setdefault(send.node.url, [])
            if reader.reusable and not self._closed and len(idle) < 8:
                idle.append(connection)
                connection = None
        if connection:
            connection.close()
        assert reader.response
        return reader.response

    def _connect(self, node: Node, end: float) -> socket.socket:
        while True:
            with self._lock:
                idle = self._idle.get(node.url)
                connection = idle.pop() if idle else None
            if connection is None:
                break
            if not _readable(connection):
                return connection
            connection.close()  # The node has closed it.
        left = max(end - time.monotonic(), 0.001)
        if node.scheme == "unix":
            connection = socket.socket(socket.AF_UNIX)
            try:
                _remaining(connection, end).connect(node.host)
            except BaseException:
                connection.close()
                raise
            return connection
        connection = socket.create_connection((node.host, node.port), left)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if node.scheme == "https":
            assert self._tls
            _remaining(connection, end)
            return self._tls.wrap_socket(connection, server_hostname=node.host)
        return connection

    # -- held IDs

    def _hold(self, wide: bool) -> int | None:
        number = self._take(wide)
        if self._short() or self._keeper is None and self._held:
            self._wake.set()
            if self._keeper is None and not self._closed:
                with self._lock:
                    if self._keeper is None:
                        self._keeper = threading.Thread(target=self._keep, name="allocator-prefetch", daemon=True)
                        self._keeper.start()
        return number

    def _keep(self) -> None:
        """Draws the next block when the present one is half used or half old."""
        held = self._held
        assert held
        while not self._closed:
            self._wake.clear()
            with self._lock:
                rest = held.rest(self._clock.now())
            if rest:
                self._wake.wait(rest)
                continue
            try:
                self._run(self._refill())
            except Closed:
                return
            except Exception as e:  # such as an error of the token file
                held.cause = e
            if held.cause:
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, 1.0)


def _remaining(connection: socket.socket, end: float) -> socket.socket:
    connection.settimeout(max(end - time.monotonic(), 0.001))
    return connection


def _readable(connection: socket.socket) -> bool:
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        return bool(poll.poll(0))
    return bool(select.select([connection], [], [], 0)[0])
