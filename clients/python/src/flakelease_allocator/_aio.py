"""The client for asyncio."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import nullcontext
from typing import Any, Literal, cast, overload

from . import ids
from ._core import FORMS, Client, Flow, Form, Node, Reader, Response, Send, T, Watermark, gave_up
from .errors import Closed, ProtocolError, Unavailable

_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]

# A child keeps what belongs to its parent's loop: a writer that is collected takes its connection out of the epoll
# that both share, and the parent would not see an answer any more.
_of_parents: list[object] = []


class AsyncAllocator(Client):
    """Gets IDs from an allocator cluster. One for the whole program: tasks share it, and its requests."""

    def _reset(self) -> None:
        self._lock = nullcontext()
        self._loop: asyncio.AbstractEventLoop | None = None  # what follows belongs to it
        self._changed = asyncio.Event()  # A node may be asked that was not, or the client was closed.
        # Calls without a request, of 63 and 128 bits, and when their time is over.
        self._waiting: list[list[tuple[asyncio.Future[int], float]]] = [[], []]
        self._server: asyncio.Task[None] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._idle: dict[str, list[_Connection]] = {}

    def _forked(self) -> None:
        _of_parents.append((self._loop, self._server, self._keeper, self._idle))
        super()._forked()

    async def __aenter__(self) -> AsyncAllocator:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the client. Later calls raise Closed; requests under way finish."""
        self._closed = True
        self._changed.set()
        open, self._idle = self._idle, {}
        tasks = [self._keeper] if self._keeper and self._loop is asyncio.get_running_loop() else []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for _, writer in (c for list in open.values() for c in list):
            writer.transport.abort()

    @overload
    async def next(self, form: Literal["int"] = "int", *, after: ids.AnyID | None = None,
                   timeout: float | None = None) -> int: ...
    @overload
    async def next(self, form: Literal["flake", "ulid"], *, after: ids.AnyID | None = None,
                   timeout: float | None = None) -> str: ...
    @overload
    async def next(self, form: Literal["uuid"], *, after: ids.AnyID | None = None,
                   timeout: float | None = None) -> uuid.UUID: ...

    async def next(self, form: Form = "int", *, after: ids.AnyID | None = None, timeout: float | None = None) -> Any:
        """Returns one ID. Calls that wait at the same time share a request."""
        wide, limit = self._check(form, 1, timeout)
        own = timeout is not None
        if after is not None:
            return FORMS[form]((await self._run(self._draw(1, wide, after, limit, own)))[0])
        number = self._hold(wide) if self._held else None
        return FORMS[form](await self._share(wide, limit, own) if number is None else number)

    @overload
    async def next_many(self, count: int, form: Literal["int"] = "int", *, after: ids.AnyID | None = None,
                        timeout: float | None = None) -> list[int]: ...
    @overload
    async def next_many(self, count: int, form: Literal["flake", "ulid"], *, after: ids.AnyID | None = None,
                        timeout: float | None = None) -> list[str]: ...
    @overload
    async def next_many(self, count: int, form: Literal["uuid"], *, after: ids.AnyID | None = None,
                        timeout: float | None = None) -> list[uuid.UUID]: ...

    async def next_many(self, count: int, form: Form = "int", *, after: ids.AnyID | None = None,
                        timeout: float | None = None) -> list[Any]:
        """Returns IDs in rising order, by one request for each 10,000."""
        wide, limit = self._check(form, count, timeout)
        return list(map(FORMS[form], await self._run(self._draw(count, wide, after, limit, timeout is not None))))

    async def watermark(self, *, timeout: float | None = None) -> Watermark:
        """Returns which IDs can still appear in the space. It never goes back from call to call."""
        return await self._run(self._watermark(timeout))

    async def wait_for(self, id: ids.AnyID, *, timeout: float | None = None) -> Watermark:
        """Returns the watermark once no ID at or below this one can appear any more."""
        return await self._run(self._watermark(timeout, id))

    # -- requests

    def _here(self) -> asyncio.AbstractEventLoop:
        """Returns the running loop. What belongs to another one is left to that."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._reset()
            self._loop = loop
        return loop

    async def _share(self, wide: bool, limit: float, own: bool) -> int:
        loop = self._here()
        future: asyncio.Future[int] = loop.create_future()
        self._waiting[wide].append((future, loop.time() + limit))
        if self._server is None:
            self._server = loop.create_task(self._serve())
        try:
            # The end of the request, which comes at about the same time, says why.
            async with asyncio.timeout(limit + 0.1):
                return await future
        except (TimeoutError, Unavailable) as e:
            if isinstance(e, Unavailable) and not own:
                raise
            raise gave_up(e if isinstance(e, Unavailable) else self._pool.cause, limit, own) from None

    async def _serve(self) -> None:
        """Sends one request after the other, each for all calls that wait then."""
        try:
            while any(self._waiting):
                for wide in (False, True):
                    waiters = {f: end for f, end in self._waiting[wide] if not f.done()}
                    self._waiting[wide] = []
                    if waiters:
                        await self._serve_batch(wide, list(waiters), max(waiters.values()))
        finally:
            self._server = None

    async def _serve_batch(self, wide: bool, waiters: list[asyncio.Future[int]], end: float) -> None:
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._run(self._draw(len(waiters), wide, None, end - loop.time(), False)))
        left = len(waiters)

        def gone(_: object) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                task.cancel()

        for waiter in waiters:
            waiter.add_done_callback(gone)
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
            for waiter in waiters:
                waiter.cancel()
            raise
        for place, waiter in enumerate(waiters):
            if waiter.done():
                continue
            if task.cancelled():
                waiter.cancel()
            elif error := task.exception():
                waiter.set_exception(error)
            else:
                waiter.set_result(task.result()[place])
        if not task.cancelled():
            task.exception()  # It is nobody's if all have gone.

    async def _run(self, flow: Flow[T]) -> T:
        """Carries out what a flow asks for, and returns what it returns."""
        self._here()
        try:
            action, outcome = next(flow), None
            while True:
                if isinstance(action, Send):
                    outcome = await self._send(action)
                    self._changed.set()
                    self._changed = asyncio.Event()
                else:
                    outcome = None
                    await _within(self._changed, action)
                if self._closed and not isinstance(outcome, Response):
                    raise Closed("the client was closed during the call")
                action = flow.send((self._clock.mono(), outcome))
        except StopIteration as e:
            return cast(T, e.value)
        finally:
            flow.close()

    async def _send(self, send: Send) -> Response | Exception:
        request, reader, connection = self._begin(send), Reader(), None
        try:
            async with asyncio.timeout(send.timeout):
                connection = await self._connect(send.node)
                connection[1].write(request)
                while not reader.feed(await connection[0].read(1 << 16)):
                    pass
        except BaseException as e:
            if connection:
                connection[1].transport.abort()
            if isinstance(e, (OSError, ProtocolError)):
                return e
            raise
        idle = self._idle.setdefault(send.node.url, [])
        if reader.reusable and not self._closed and len(idle) < 8:
            idle.append(connection)
        else:
            connection[1].transport.abort()
        assert reader.response
        return reader.response

    async def _connect(self, node: Node) -> _Connection:
        idle = self._idle.get(node.url, [])
        while idle:
            connection = idle.pop()
            if not connection[0].at_eof() and not connection[1].is_closing():
                return connection
            connection[1].transport.abort()  # The node has closed it.
        if node.scheme == "unix":
            return await asyncio.open_unix_connection(node.host)
        return await asyncio.open_connection(node.host, node.port, ssl=self._tls if node.scheme == "https" else None)

    # -- held IDs

    def _hold(self, wide: bool) -> int | None:
        number = self._take(wide)
        if self._short() or self._keeper is None and self._held:
            try:
                loop = self._here()
            except RuntimeError:  # No loop runs: there is nobody to draw the next ones.
                return number
            self._wake.set()
            if (self._keeper is None or self._keeper.done()) and not self._closed:
                self._keeper = loop.create_task(self._keep())
        return number

    async def _keep(self) -> None:
        """Draws the next block when the present one is half used or half old."""
        held = self._held
        assert held
        while not self._closed:
            self._wake.clear()
            if rest := held.rest(self._clock.now()):
                await _within(self._wake, rest)
                continue
            try:
                await self._run(self._refill())
            except Closed:
                return
            except Exception as e:  # such as an error of the token file
                held.cause = e
            if held.cause:
                await asyncio.sleep(1.0)


async def _within(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
