"""Drives this package for the suite at clients/conformance: a JSON object a line on stdin, and one a line on stdout.

It drives AsyncAllocator, or with the argument --sync Allocator, whose calls run in threads.
"""

import asyncio
import inspect
import json
import os
import sys
import threading
from datetime import datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))
import flakelease_allocator as fa  # noqa: E402
from flakelease_allocator._core import Clock, Moment  # noqa: E402

SYNC = "--sync" in sys.argv[1:]
OPTIONS = {"timeoutMs": "timeout", "attemptTimeoutMs": "attempt_timeout", "prefetchMaxAgeMs": "prefetch_max_age",
           "tokenFile": "token_file", "caFile": "ca_file", "prefetch": "prefetch", "prefetchForm": "prefetch_form",
           "plaintextToken": "plaintext_token", "after": "after"}
KINDS = {fa.InvalidArgument: "invalid", fa.Refused: "refused", fa.CallTimeout: "timeout", fa.Unavailable: "unavailable",
         fa.ProtocolError: "protocol", fa.Empty: "empty", fa.Closed: "closed"}


class LeapingClock(Clock):
    leapt = 0.0  # of the wall clock
    passed = 0.0  # of all clocks

    def mono(self) -> float:
        return super().mono() + self.passed

    def _moment(self, m: Moment) -> Moment:
        return Moment(m.mono + self.passed, m.boot + self.passed, m.wall + self.passed + self.leapt)

    def sent(self) -> Moment:
        return self._moment(super().sent())

    def now(self) -> Moment:
        return self._moment(super().now())


clients: dict[str, object] = {}
clocks: dict[str, LeapingClock] = {}
tasks: dict[object, "asyncio.Task[None]"] = {}


def options(op: dict) -> dict:
    found = {}
    for name, value in (op.get("options") or {}).items():
        if name in OPTIONS:
            found[OPTIONS[name]] = value / 1000 if name.endswith("Ms") and isinstance(value, (int, float)) else value
    return found


def limits(op: dict) -> dict:
    found = {"timeout": op["timeoutMs"] / 1000} if "timeoutMs" in op else {}
    return found | ({"after": op["after"]} if "after" in op else {})


async def call(function, *args, **kwargs):
    """Calls a method of either client."""
    if not SYNC or not inspect.ismethod(function):
        result = function(*args, **kwargs)
        return await result if inspect.isawaitable(result) else result
    future, loop = asyncio.get_running_loop().create_future(), asyncio.get_running_loop()

    def settle(method, value):
        if not future.done():
            method(value)

    def run() -> None:
        try:
            result = function(*args, **kwargs)
        except Exception as e:
            loop.call_soon_threadsafe(settle, future.set_exception, e)
        else:
            loop.call_soon_threadsafe(settle, future.set_result, result)

    threading.Thread(target=run, daemon=True).start()
    return await future


def fork(client, count: int) -> list:
    """Forks, and returns what parent and child draw."""
    read, write = os.pipe()
    child = os.fork()
    drawn, loop = [], None if SYNC else asyncio.new_event_loop()
    if child == 0:
        try:
            for _ in range(count):
                drawn += draw(client, loop)
            os.write(write, json.dumps(drawn).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as f:
        text = f.read()
    os.waitpid(child, 0)
    return json.loads(text or "[]")


def draw(client, loop) -> list:
    found = []
    try:
        found.append(str(client.next_now()))
    except (fa.Empty, fa.InvalidArgument):
        pass
    number = client.next() if SYNC else loop.run_until_complete(client.next())
    return [*found, str(number)]


async def carry(op: dict) -> dict:
    name, client = op["op"], clients.get(op.get("client", ""))
    match name:
        case "open":
            clock = clocks[op["client"]] = LeapingClock()
            kind = fa.Allocator if SYNC else fa.AsyncAllocator
            clients[op["client"]] = kind(op.get("nodes"), _clock=clock, **options(op))
            return {}
        case "worker":
            clock = clocks[op["client"]] = LeapingClock()
            o = options(op)
            client = fa.Allocator(op["nodes"], _clock=clock, attempt_timeout=o.get("attempt_timeout", 2.0))
            worker = await asyncio.to_thread(fa.Worker, client, "conformance", unit=op.get("unitMs", 1),
                                             timeout=o.get("timeout", 90.0))
            clients[op["client"]] = worker
            return {"value": str(worker.number)}
        case "parse":
            return {"ids": [str(fa.to_int(op["text"]))]}
        case "timeOf":
            return {"value": fa.time_of(op["text"]).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"}
        case "sidOf":
            return {"value": str(fa.sid_of(op["text"]))}
        case "firstOf":
            return {"ids": [str(fa.first_of(datetime.fromisoformat(op["time"])))]}
        case "cancel":
            if SYNC or op["call"] not in tasks:
                raise NotImplementedError
            tasks[op["call"]].cancel()
            return {}
    if client is None:
        raise NotImplementedError
    form = op.get("form", "int")
    match name:
        case "next":
            return {"ids": [str(await call(client.next, form, **limits(op)))]}
        case "nextMany":
            return {"ids": list(map(str, await call(client.next_many, op["count"], form, **limits(op))))}
        case "concurrent":
            drawn = await asyncio.gather(*(call(client.next, form, **limits(op)) for _ in range(op["count"])))
            return {"ids": list(map(str, drawn))}
        case "lost":
            return {"value": str(client.lost).lower()}
        case "permit":
            client.permit(op["at"])
            return {}
        case "nextNow":
            return {"ids": [str(client.next_now(form))]}
        case "watermark":
            return {"watermark": str((await call(client.watermark, **limits(op))).id)}
        case "waitFor":
            above = op.pop("after")
            return {"watermark": str((await call(client.wait_for, above, **limits(op))).id)}
        case "number":
            return {"ids": [str(await call(client.next, after=float(2**53 + 2)))]}
        case "leap":
            clocks[op["client"]].leapt += op["wallMs"] / 1000
            return {}
        case "pause":
            clocks[op["client"]].passed += op["ms"] / 1000
            return {}
        case "fork" if isinstance(client, fa.Worker):
            if (child := os.fork()) == 0:
                try:
                    client.permit(op["at"])
                except fa.NotPermitted as e:
                    os._exit(e.reason == "FORKED")
                os._exit(0)
            if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
                raise fa.NotPermitted("FORKED", "in the child")
            return {}
        case "fork":
            drawn = fork(client, op["count"])
            for _ in range(op["count"]):
                try:
                    drawn.append(str(client.next_now()))
                except (fa.Empty, fa.InvalidArgument):
                    pass
                drawn.append(str(await call(client.next)))
            return {"ids": drawn}
        case "close":
            await (asyncio.to_thread(client.close) if isinstance(client, fa.Worker) else call(client.close))
            return {}
    raise NotImplementedError


async def answer(op: dict) -> None:
    try:
        result = await carry(op)
    except asyncio.CancelledError:
        result = {"error": {"kind": "canceled", "message": "the call was canceled"}}
    except NotImplementedError:
        result = {"error": {"kind": "unsupported", "message": f"there is no {op.get('op')}"}}
    except fa.NotPermitted as e:
        kind = {"LOST": "lost", "FORKED": "lost", "CLOSED": "closed"}.get(e.reason, "refused")
        result = {"error": {"kind": kind, "reason": e.reason if kind == "refused" else "", "message": str(e)}}
    except fa.AllocatorError as e:
        result = {"error": {"kind": KINDS[type(e)], "message": str(e)}}
        if isinstance(e, fa.Refused):
            result["error"]["reason"] = e.reason
            if e.retry_after:
                result["error"]["retryAfterMs"] = round(e.retry_after * 1000)
    except TypeError as e:
        result = {"error": {"kind": "invalid", "message": str(e)}}
    tasks.pop(op["id"], None)
    print(json.dumps({"id": op["id"], **result}), flush=True)


async def main() -> None:
    loop, lines = asyncio.get_running_loop(), asyncio.Queue()

    def read() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(lines.put_nowait, line)
        loop.call_soon_threadsafe(lines.put_nowait, None)

    threading.Thread(target=read, daemon=True).start()
    while (line := await lines.get()) is not None:
        if line.strip():
            op = json.loads(line)
            tasks[op["id"]] = asyncio.create_task(answer(op))
    await asyncio.gather(*tasks.values())


asyncio.run(main())
