"""What both clients decide, without I/O: which node is asked next, what an answer means, which IDs are held.

Times are arguments, in seconds of the monotonic clock. The clients guard what is here with one lock, and carry out what
a flow asks for. The rules are those of the Go SDK (client/doc.go, client/internal/balance).
"""

from __future__ import annotations

import json
import os
import ssl
import stat
import time
import uuid
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar, overload
from urllib.parse import urlsplit

from . import ids
from .errors import AllocatorError, CallTimeout, Closed, Empty, InvalidArgument, ProtocolError, Refused, Unavailable

Form = Literal["int", "flake", "ulid", "uuid"]
FORMS: dict[str, Callable[[int], Any]] = {
    "int": lambda n: n,
    "flake": ids.to_flake,
    "ulid": lambda n: ids._encode(n, 26),
    "uuid": lambda n: uuid.UUID(int=n),
}
MAX_COUNT = 10_000  # IDs of a request
MAX_BODY = 1 << 20  # The largest answer is 390 kB.
WAIT = 5.0  # A node is asked to wait this long at a time for a watermark.
# Every node would refuse a request for these reasons, at any time.
FINAL = {"INVALID_COUNT", "INVALID_FORMAT", "INVALID_ID", "UNAUTHENTICATED", "PERMISSION_DENIED", "UNKNOWN_WORKER",
         "WORKER_QUOTA", "CALLER_CLOCK"}


def is_wide(form: object) -> bool:
    """Reports whether a form has 128 bits."""
    if not isinstance(form, str) or form not in FORMS:
        raise InvalidArgument(f"form is {form!r:.40}: use one of {', '.join(FORMS)}")
    return form in ("ulid", "uuid")


def positive(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e9:
        raise InvalidArgument(f"{name} is {value!r:.40}: give a number of seconds above 0")
    return float(value)


# ---- clocks

class Moment(NamedTuple):
    """What three clocks read: the monotonic one, the one that goes on in suspend, and the wall clock."""

    mono: float
    boot: float
    wall: float


_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock:
    """Reads the clocks. Tests give another."""

    def mono(self) -> float:
        return time.monotonic()

    def sent(self) -> Moment:
        # The monotonic clock is read first here and last in `now`: a thread that is stopped between two reads
        # makes a leap look smaller, and never shows one that was none.
        return Moment(time.monotonic(), time.clock_gettime(_BOOT), time.time())

    def now(self) -> Moment:
        wall, boot = time.time(), time.clock_gettime(_BOOT)
        return Moment(time.monotonic(), boot, wall)


# ---- held IDs

WARM = 60.0  # Blocks are drawn ahead for this long after the last call for an ID.
LEAP = 0.010  # The wall clock is set forward by this at least to count.


class Block:
    """IDs of one request, the lowest at the end of the list."""

    __slots__ = ("ids", "sent", "low", "top")

    def __init__(self, numbers: list[int], sent: Moment) -> None:
        self.ids, self.sent, self.low = numbers[::-1], sent, len(numbers) // 2
        self.top = numbers[-1] if numbers else 0


class Held:
    """IDs that were drawn before they are asked for, of one form.

    1. An ID is taken first, and whether it may be given is decided afterwards, by clocks that are read in between.
    2. An ID is given within max_age of its request by the clock that goes on in suspend, with no leap of the wall
       clock, only in the process that drew it, and only if it is greater than all that were given before.
    """

    def __init__(self, size: int, max_age: float) -> None:
        self.least = self.size = size
        self.max_age, self.pid = max_age, os.getpid()
        self.block = self.spare = Block([], Moment(0, 0, 0))
        self.floor = 0  # A call returned this one.
        self.wanted = 0.0  # when the last call for an ID was
        self.woken = False  # The next block was asked for.
        self.drops = self.others = 0  # how often it was dropped, and calls returned IDs of the other width
        self.cause: Exception | None = None  # why the last request for more failed

    def old(self, block: Block, now: Moment, share: float = 1.0) -> bool:
        """Reports whether a share of max_age has passed, or the clocks show that the memory may be a copy."""
        boot, mono, wall = now.boot - block.sent.boot, now.mono - block.sent.mono, now.wall - block.sent.wall
        return boot >= self.max_age * share or wall - mono > LEAP + mono / 1000

    def may_give(self, block: Block, now: Moment, pid: int) -> bool:
        if pid == self.pid and not self.old(block, now):
            return True
        block.ids.clear()
        return False

    def settle(self, now: Moment) -> bool:
        """Goes on with the spare once the block is used up or old. Reports whether there is an ID to take."""
        if self.spare.ids and (not self.block.ids or self.old(self.block, now)):
            if self.block.ids:  # Nobody wanted them.
                self.size = max(self.least, self.size // 2)
            elif self.spare.sent.mono - self.block.sent.mono < self.max_age / 10:
                self.size = min(2 * self.size, MAX_COUNT)
            self.block, self.spare = self.spare, Block([], self.spare.sent)
        return bool(self.block.ids)

    def wants(self, now: Moment) -> bool:
        """Reports whether it is time to draw the next block."""
        low = len(self.block.ids) <= self.block.low or self.old(self.block, now, 0.5)
        return low and (not self.spare.ids or self.old(self.spare, now, 0.5))

    def rest(self, now: Moment) -> float:
        """Returns how long to wait before the next block is drawn if nobody takes IDs until then; 0: draw it now."""
        if now.mono - self.wanted >= WARM:
            return WARM  # A call ends the wait.
        if self.wants(now):
            return 0
        return max(max(self.block.sent.mono, self.spare.sent.mono) + self.max_age / 2 - now.mono, 0.001)

    def returned(self, last: int, rest: Block) -> None:
        """Notes that a call returned IDs up to last, and that rest was drawn with them."""
        self.floor = max(self.floor, last)
        fits = rest.ids and rest.ids[-1] > max(self.floor, self.block.top)
        if fits or self.block.ids and self.block.ids[-1] < self.floor:
            self.drop()
            self.block = rest if fits else self.block

    def put(self, block: Block, drops: int) -> None:
        """Takes the block that was asked for when drops was as it says."""
        if drops == self.drops and block.ids[-1] > max(self.floor, self.block.top):
            self.spare = block

    def drop(self) -> None:
        self.block = self.spare = Block([], Moment(0, 0, 0))
        self.drops += 1


# ---- nodes

@dataclass
class Node:
    url: str
    scheme: str
    host: str  # of a Unix socket its path
    port: int
    authority: str
    until: float = 0  # It is not asked before; 0: it has served since.
    trial: float = 0  # The trial under way times out then.
    unanswered: float = 0  # Callers' own deadlines pass since then.
    fails: int = 0


def parse_nodes(nodes: object) -> list[Node]:
    example = "such as ['http://127.0.0.1:8080']"
    if isinstance(nodes, (str, bytes)) or not isinstance(nodes, Iterable):
        raise InvalidArgument(f"nodes is {nodes!r:.60}: give a list of URLs, {example}")
    found = [_parse_node(n) for n in nodes]
    if not found:
        raise InvalidArgument(f"nodes is empty: name at least one node, {example}")
    return found


def _parse_node(url: object) -> Node:
    def wrong(why: str) -> InvalidArgument:
        return InvalidArgument(f"node {url!r:.80} {why}: write http://host:port, https://host:port or unix:///path")

    if not isinstance(url, str):
        raise wrong("is no text")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as e:
        raise wrong(f"is no URL ({e})") from None
    if any(c <= " " or c == "\x7f" for c in url):
        raise wrong("has a space or a control character")
    if parts.scheme == "unix":
        if parts.netloc or not parts.path.startswith("/") or len(os.fsencode(parts.path)) > 107:
            raise wrong("is no absolute path of a socket of at most 107 bytes")
        return Node(url, "unix", parts.path, 0, "localhost")
    if parts.scheme not in ("http", "https") or not host:
        raise wrong("is no URL of a node")
    if parts.path not in ("", "/") or parts.query or parts.fragment or "@" in parts.netloc:
        raise wrong("has more than a host and a port")
    return Node(url, parts.scheme, host, port or (443 if parts.scheme == "https" else 80), parts.netloc)


class Response(NamedTuple):
    status: int
    body: bytes
    space: str = ""  # which space the node is of; "": it does not say


@dataclass
class Call:
    """A request that any node may serve, and what reads its answer."""

    method: str
    path: str
    read: Callable[[Node, Response], Any]
    body: Mapping[str, Any] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    hold: float = 0  # A node may wait this long before it answers.
    far: bool = False  # AFTER_TOO_FAR is about this call alone.
    sent: Moment = Moment(0, 0, 0)  # when it was sent last


class Send(NamedTuple):
    """Send the call to the node, and resume the flow with the time and a Response or the error."""

    node: Node
    call: Call
    timeout: float


# A flow yields what to do next, a Send or the seconds to wait, and is resumed with the time and how it ended.
T = TypeVar("T")
Flow = Generator[Send | float, tuple[float, Any], T]


class Pool:
    """Decides which node is asked next. One that refuses or fails is paused, and then tried by one call."""

    def __init__(self, nodes: list[Node], attempt: float) -> None:
        self.nodes, self.attempt = nodes, attempt
        self.cause: Exception | None = None  # why the last attempt failed, until one succeeds
        self.space = ""  # of the first answer that names one

    def pick(self, now: float, skip: Mapping[str, float]) -> tuple[Node | None, float]:
        wait = float("inf")
        for node in self.nodes:
            left = max(node.until, node.trial) if node.until else 0
            left = max(left, skip.get(node.url, 0)) - now
            if left <= 0:
                if node.until:
                    node.trial = now + self.attempt
                return node, 0
            wait = min(wait, left)
        return None, wait

    def served(self, node: Node) -> None:
        node.until = node.trial = node.unanswered = node.fails = 0
        self.cause = None
        if self.nodes[0] is not node:  # It is asked first from now on. A sort would empty the list while it runs.
            self.nodes = [node, *(other for other in self.nodes if other is not node)]

    def failed(self, node: Node, now: float, error: Exception, full: bool) -> None:
        """Pauses a node. full: the attempt had the time of an attempt, and not what was left of a call."""
        node.trial = 0
        silent = isinstance(error, TimeoutError)
        if isinstance(error, Refused):
            node.until, node.fails, node.unanswered = now + min(error.retry_after or 1.0, 5.0), 0, 0
        elif silent and not full and now - (node.unanswered or now) <= self.attempt:
            node.unanswered = node.unanswered or now  # It counts once nobody was answered for the time of an attempt.
        elif node.until <= now:
            first, last = (1.0, 15.0) if silent else (0.020, 1.0)
            node.until, node.unanswered = now + min(first * 2 ** min(node.fails, 10), last), 0
            node.fails += 1

    def ask(self, now: float, call: Call, deadline: float, own: bool) -> Flow[tuple[float, Any]]:
        """Asks one node after the other until one serves, the time is over, or none ever would.

        It returns the time and what call.read returned. own: the caller has set the deadline for this call.
        """
        began, failure = now, None
        skip: dict[str, float] = {}  # nodes that are not asked by this call before a time
        hopeless: set[str] = set()  # nodes that would always answer so
        while True:
            node, wait = self.pick(now, skip)
            if node is None:
                if now + wait >= deadline:
                    raise gave_up(failure or self.cause, deadline - began, own)
                now, _ = yield wait
                continue
            limit = min(self.attempt + call.hold, deadline - now)
            if limit <= 0:
                node.trial = 0
                raise gave_up(failure or self.cause, deadline - began, own)
            error: Exception
            cut = False  # The end of the call came first, so that the error says less than what came before.
            try:
                now, answer = yield Send(node, call, limit)
                if isinstance(answer, Exception):
                    raise answer
                # Another space may issue the same IDs, and knows no worker of this one.
                if answer.space and self.space and answer.space != self.space:
                    raise ProtocolError(f"{node.url} is of space {answer.space}, and this client's IDs are of "
                                        f"{self.space}: list nodes of one space")
                result = call.read(node, answer)
                self.space = self.space or answer.space
                self.served(node)
                return now, result
            except Refused as e:
                if e.final:  # Every node would refuse so.
                    node.trial = 0
                    raise
                if e.reason == "AFTER_TOO_FAR" and call.far:
                    node.trial, skip[node.url] = 0, now + (e.retry_after or 1.0)
                else:
                    self.failed(node, now, e, True)
                error, permanent = e, e.reason == "AFTER_TOO_FAR" and not e.retry_after
            except (OSError, ProtocolError) as e:
                cut = isinstance(e, TimeoutError) and limit < self.attempt
                self.failed(node, now, e, limit >= self.attempt)
                permanent = isinstance(e, ProtocolError) and e.permanent
                error = e if isinstance(e, ProtocolError) else Unavailable(f"{node.url}: {explain(e)}")
            except BaseException:  # The caller has gone, or its token; which says nothing of the node.
                node.trial = 0
                raise
            if failure is None or not cut and tells(error) >= tells(failure):
                failure = self.cause = error
            (hopeless.add if permanent else hopeless.discard)(node.url)
            if len(hopeless) == len(self.nodes):
                raise failure or error


def explain(e: OSError) -> str:
    """Says what an error of the network means."""
    if isinstance(e, ssl.SSLCertVerificationError):
        return f"{e.verify_message}: ca_file must name the authority of its certificate"
    if isinstance(e, ssl.SSLError) and e.reason == "WRONG_VERSION_NUMBER":
        return "it speaks no TLS: write http://"
    return str(e) or type(e).__name__


def tells(e: Exception | None) -> int:
    """Ranks errors: what a node said tells more than that another, or the same in less time, said nothing."""
    return 2 if isinstance(e, Refused) else int(isinstance(e, ProtocolError))


def gave_up(failure: Exception | None, timeout: float, own: bool) -> Exception:
    if isinstance(failure, (Refused, ProtocolError)):
        return failure
    kind = CallTimeout if own else Unavailable
    return kind(f"no node answered within {timeout:.3g} s: {failure or 'all are paused'}")


# ---- requests and answers

def encode(send: Send, token: str) -> bytes:
    """Returns the bytes of a request."""
    call, content = send.call, b""
    headers = {"Host": send.node.authority, "Accept": "application/json", **call.headers}
    if call.body is not None:
        content = json.dumps(call.body).encode()
        headers["Content-Type"] = "application/json"
    if call.method == "POST":
        headers["Content-Length"] = str(len(content))
    if token:
        headers["Authorization"] = f"Bearer {token}"
    lines = [f"{call.method} {call.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + content


class Reader:
    """Reads one answer of HTTP/1.1 from the bytes that `feed` gets.

    Python's http.client reads from blocking sockets alone, and asyncio has no client for HTTP.
    """

    def __init__(self) -> None:
        self.data = bytearray()
        self.response: Response | None = None
        self.reusable = False

    def feed(self, data: bytes) -> bool:
        """Reports whether the answer is complete. No bytes are the end of the connection."""
        self.data += data
        code, head = 100, b""
        while code < 200:  # After an interim answer another one follows.
            end = self.data.find(b"\r\n\r\n")
            if len(self.data) > MAX_BODY or end < 0 and len(self.data) > 1 << 16:
                raise ProtocolError("the answer is larger than any of a node")
            if not b"HTTP/1.".startswith(self.data[:7]):
                raise self.wrong()
            if end < 0:
                return self.more(data, "before the answer")
            head, rest = bytes(self.data[:end]), bytes(self.data[end + 4:])
            if not head[9:12].isdigit():
                raise self.wrong()
            if (code := int(head[9:12])) < 200:
                del self.data[:end + 4]
        lines = head.decode("latin-1").split("\r\n")
        parts = (line.partition(":") for line in lines[1:])
        headers = {name.strip().lower(): value.strip() for name, _, value in parts}
        body: bytes | None = None
        used, size = 0, headers.get("content-length", "")
        if "chunked" in headers.get("transfer-encoding", ""):
            body, used = self.chunks(rest)
        elif not size:  # The answer goes up to the end of the connection.
            body = None if data else rest
        elif not (size.isascii() and size.isdigit()) or len(size) > 9 or int(size) > MAX_BODY:
            raise ProtocolError(f"the answer has {size[:20]} bytes, more than any of a node")
        elif len(rest) >= int(size):
            body, used = rest[:int(size)], int(size)
        if body is None:
            return self.more(data, "in the middle of the answer")
        closes = head[:8] != b"HTTP/1.1" or headers.get("connection", "").lower() == "close"
        self.reusable = not closes and used == len(rest)
        self.response = Response(code, body, headers.get("allocator-space", ""))
        return True

    @staticmethod
    def more(data: bytes, where: str) -> bool:
        if not data:
            raise ConnectionResetError(f"the connection ended {where}")
        return False

    def chunks(self, rest: bytes) -> tuple[bytes | None, int]:
        """Returns the body and how many bytes it has with its chunks; None if it goes on."""
        body, at = b"", 0
        while (end := rest.find(b"\r\n", at)) >= 0:
            try:
                size = int(rest[at:end].partition(b";")[0], 16)
            except ValueError:
                raise self.wrong() from None
            if not 0 <= size <= MAX_BODY:
                raise self.wrong()
            at = end + 2 + size + 2
            if len(rest) < at:
                break
            if size == 0:
                return body, at
            body += rest[end + 2:at - 2]
        return None, 0

    def wrong(self) -> ProtocolError:
        return ProtocolError(f"the answer is no HTTP, but {bytes(self.data[:100])!r}: is this the URL of a node?")


def document(node: Node, response: Response) -> dict[str, Any]:
    """Returns the JSON of an answer, and raises what a refusal says."""
    try:
        answer = json.loads(response.body)
    except (ValueError, RecursionError):
        answer = None
    if isinstance(answer, dict) and 200 <= response.status < 300:
        return answer
    if isinstance(answer, dict) and isinstance(answer.get("reason"), str) and response.status >= 400:
        reason, retry, metadata = answer["reason"], answer.get("retry_after_ms"), answer.get("metadata")
        final = reason in FINAL or 400 <= response.status < 500 and response.status not in (408, 409, 429)
        if isinstance(retry, bool) or not isinstance(retry, (int, float)) or retry <= 0:
            retry = None
        raise Refused(reason, str(answer.get("detail", "")), retry / 1000 if retry else None, node.url,
                      metadata if isinstance(metadata, dict) else None, final)
    if response.status in (401, 403):  # a proxy's, which knows no reasons
        raise Refused("UNAUTHENTICATED" if response.status == 401 else "PERMISSION_DENIED",
                      f"HTTP {response.status}", None, node.url, final=True)
    text = response.body[:100].decode("utf-8", "replace").strip()
    hint = "write https:// in its URL" if "HTTPS server" in text else "is this the URL of a node?"
    wrong = ProtocolError(f"{node.url} answered HTTP {response.status} without JSON of a node, {text!r}: {hint}")
    wrong.permanent = 300 <= response.status < 500 and response.status not in (408, 429)
    raise wrong


def issued(node: Node, response: Response, count: int, wide: bool, floor: int) -> list[int]:
    """Returns the IDs of an answer, all above floor, once all is as it must be."""
    texts = document(node, response).get("ids")

    def wrong(what: str) -> ProtocolError:
        return ProtocolError(f"{node.url} {what}: are all nodes of one space, and of compatible versions?")

    if not isinstance(texts, list) or len(texts) != count:
        found = f"{len(texts)} IDs came" if isinstance(texts, list) else "no IDs came"
        raise wrong(f"answered otherwise than asked: {found} where {count} were asked for")
    try:
        if wide:
            numbers = [ids._decode(text, 26, 128) for text in texts]
        else:
            if not all(text.isdigit() and text.isascii() and (text[0] != "0" or text == "0") for text in texts):
                raise ValueError
            numbers = list(map(int, texts))
    except (InvalidArgument, AttributeError, TypeError, ValueError):
        raise wrong(f"answered with IDs of another form, such as {texts[0]!r:.40}") from None
    if numbers[-1] > ids.MAX_ID and not wide:
        raise wrong("answered with an ID of more than 63 bits")
    if any(a >= b for a, b in zip([floor, *numbers], numbers)):
        raise wrong("answered with IDs that do not rise")
    return numbers


@dataclass(frozen=True)
class Watermark:
    """Which IDs can still appear in a space: none below `id`. Times are Unix milliseconds."""

    unix_ms: int
    id: int
    flake: str
    lag_ms: int
    held: bool  # It lags so far that an operator should look.
    blocked_by: tuple[str, ...] = ()  # what holds it back, the first cause most
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def complete(self, id: ids.AnyID) -> bool:
        """Reports whether no ID at or below this one can appear any more."""
        return ids.parse(id) < (ids.parse(str(self.raw.get("ulid", ""))) if ids.is_wide(id) else self.id)

    @classmethod
    def read(cls, node: Node, response: Response) -> Watermark:
        a = document(node, response)
        try:
            return cls(int(a["unix_ms"]), int(a["int"]), str(a["flake"]), int(a["lag_ms"]), bool(a["held"]),
                       tuple(str(b["text"]) for b in a["blocked_by"]), a)
        except (KeyError, TypeError, ValueError) as e:
            raise ProtocolError(f"{node.url} answered with no watermark: {e!r}") from None


# ---- settings and state

class Token:
    """The token in a file, which is read again when it changes."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path, self.stamp, self.token = path, (0, 0), ""
        self.get()

    def get(self) -> str:
        try:
            info = os.stat(self.path)
            if info.st_mode & stat.S_IROTH:
                raise InvalidArgument(f"token_file {self.path}: every user of this machine can read it: chmod o-r")
            if (stamp := (info.st_mtime_ns, info.st_size)) != self.stamp:
                with open(self.path, encoding="ascii") as f:
                    token = f.read().strip()
                if token and token.isprintable():
                    self.token, self.stamp = token, stamp
        except (OSError, TypeError, UnicodeError) as e:  # It may be replaced at this moment.
            if not self.token:
                raise InvalidArgument(f"token_file {self.path}: {e}") from None
        if not self.token:
            raise InvalidArgument(f"token_file {self.path} holds no token: write one into it")
        return self.token


class Client:
    """What both clients have in common. Its methods neither wait nor do I/O, but for reading the token."""

    _lock: AbstractContextManager[Any]

    def __init__(self, nodes: Iterable[str], *, timeout: float = 10.0, attempt_timeout: float = 2.0,
                 token_file: str | os.PathLike[str] | None = None, ca_file: str | os.PathLike[str] | None = None,
                 plaintext_token: bool = False, prefetch: int = 0, prefetch_form: Form = "int",
                 prefetch_max_age: float = 1.0, after: ids.AnyID = 0, _clock: Clock | None = None) -> None:
        """Checks the arguments, and sends nothing before the first call. All times are in seconds.

        nodes             URLs: http://host:port, https://host:port, or unix:///path of an agent. They are asked in this
                          order; the one that served last is asked first.
        timeout           A call fails after this time without an answer that it can use.
        attempt_timeout   Another node is asked after this time.
        token_file        has the bearer token, and is read again when it changes
        ca_file           has the authority that signed the certificates of the nodes, as PEM
        plaintext_token   allows a token without TLS, for networks that encrypt
        prefetch          holds at least this many IDs of prefetch_form ready, from the first call on. It costs a
                          request each half of prefetch_max_age, until a minute after the last call.
        prefetch_max_age  is how old an ID may be when it is given.
        after             Every ID is greater than this one: the order of an earlier client goes on.
        """
        self._pool = Pool(parse_nodes(nodes), positive("attempt_timeout", attempt_timeout))
        self._timeout = positive("timeout", timeout)
        self._token = Token(token_file) if token_file is not None else None
        local = ("localhost", "127.0.0.1", "::1")
        if self._token and not plaintext_token:
            for node in self._pool.nodes:
                if node.scheme == "http" and node.host not in local:
                    raise InvalidArgument(f"token_file: {node.url} has no TLS, so that others could read the token: "
                                          "write https://, or set plaintext_token if the network encrypts")
        self._tls: ssl.SSLContext | None = None
        if ca_file is not None or any(n.scheme == "https" for n in self._pool.nodes):
            try:
                self._tls = ssl.create_default_context(cafile=ca_file)
            except (OSError, TypeError) as e:
                raise InvalidArgument(f"ca_file {ca_file}: {e}: name the PEM file of the authority") from None
        if isinstance(prefetch, bool) or not isinstance(prefetch, int) or not 0 <= prefetch <= MAX_COUNT - 1:
            raise InvalidArgument(f"prefetch is {prefetch!r:.40}: hold 1 to {MAX_COUNT - 1} IDs, or 0 for none")
        self._held_wide = is_wide(prefetch_form)
        self._held = Held(prefetch, positive("prefetch_max_age", prefetch_max_age)) if prefetch else None
        self._clock = _clock or Clock()
        self._limit = MAX_COUNT  # IDs of a request; a node may allow fewer
        self._last = [0, 0]  # the greatest IDs drawn, of 63 and of 128 bits; 0: the other is greater
        self._mark: Watermark | None = None
        self._closed, self._pid = False, os.getpid()
        self._last[ids.is_wide(after)] = ids.parse(after)
        self._reset()
        _clients.add(self)

    def _reset(self) -> None:
        """Begins without connections, calls and tasks."""
        raise NotImplementedError

    def _begin(self, send: Send) -> bytes:
        """Returns the bytes of a request, and notes that it is sent now."""
        token = self._token.get() if self._token else ""
        send.call.sent = self._clock.sent()
        return encode(send, token)

    def _check(self, form: object, count: object = 1, timeout: float | None = None) -> tuple[bool, float]:
        """Checks the arguments of a call, and returns whether it asks for wide IDs and how long it may take."""
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise InvalidArgument(f"count is {count!r:.40}: give a whole number, at least 1")
        wide = is_wide(form)
        if self._closed:
            raise Closed("the client was closed: make a new one")
        if os.getpid() != self._pid:
            self._forked()
        return wide, self._timeout if timeout is None else positive("timeout", timeout)

    # -- IDs

    @overload
    def next_now(self, form: Literal["int"] = "int") -> int: ...
    @overload
    def next_now(self, form: Literal["flake", "ulid"]) -> str: ...
    @overload
    def next_now(self, form: Literal["uuid"]) -> uuid.UUID: ...

    def next_now(self, form: Form = "int") -> Any:
        """Returns a held ID, which was drawn at most prefetch_max_age ago, or raises Empty. It never waits."""
        number = self._hold(form in ("ulid", "uuid"))
        if number is None:
            raise self._empty(self._check(form)[0])
        return number if form == "int" else FORMS[form](number)

    def _hold(self, wide: bool) -> int | None:
        """Returns a held ID, or None if none may be given, and has the next block drawn when it is time."""
        raise NotImplementedError

    def _draw(self, count: int, wide: bool, after: ids.AnyID | None, timeout: float, own: bool) -> Flow[list[int]]:
        """Draws IDs of one kind, above all that this client drew before, and above after."""
        now, numbers, call = self._clock.mono(), list[int](), None
        deadline = now + timeout
        held = self._held if self._held and wide == self._held_wide else None
        extra, others = (held.size, held.others) if held else (0, 0)
        while len(numbers) < count:
            size = min(count - len(numbers) + extra, self._limit)
            try:
                now, got, call = yield from self._draw_once(now, size, wide, after, deadline, own)
            except Refused as e:
                limit = str(e.metadata.get("limit", ""))
                if e.reason != "INVALID_COUNT" or not limit.isdigit() or not 0 < int(limit) < size:
                    raise
                self._limit = int(limit)
                continue
            numbers += got
            after = None
        if held:
            rest = numbers[count:] if held.others == others else []  # else it may be below what was returned meanwhile
            held.returned(numbers[count - 1], Block(rest, call.sent if call else Moment(0, 0, 0)))
        elif self._held:  # What is held is older than what this call returns.
            self._held.others += 1
            self._held.drop()
        return numbers[:count]

    def _refill(self) -> Flow[None]:
        """Draws the next block to hold."""
        held, now = self._held, self._clock.mono()
        assert held
        drops = held.drops
        try:
            size = min(held.size, self._limit)
            _, got, call = yield from self._draw_once(now, size, self._held_wide, None, now + self._timeout, False)
            held.put(Block(got, call.sent), drops)
            held.cause = None
        except AllocatorError as e:
            held.cause = e
        finally:
            held.woken = False

    def _draw_once(self, now: float, count: int, wide: bool, after: ids.AnyID | None, deadline: float,
                   own: bool) -> Flow[tuple[float, list[int], Call]]:
        bounds = list(self._last)
        if after is not None:
            bounds[ids.is_wide(after)] = max(bounds[ids.is_wide(after)], ids.parse(after))
        # A request has one bound. If there are two, of two kinds, then that of the other kind is sent, and if the
        # answer is not above the one of its own kind, that one is sent after all: it is above the first answer.
        for kind in (int(not wide), int(wide)):
            if kind != wide and not bounds[kind]:
                continue
            bound = FORMS["ulid" if kind else "int"](bounds[kind])
            floor = bounds[wide] if kind == wide else -1
            call = Call("POST", f"/v1/ids?as={'ulid' if wide else 'int'}&count={count}"
                        + (f"&after={bound}" if bounds[kind] else ""),
                        lambda node, response: issued(node, response, count, wide, floor), far=after is not None)
            now, got = yield from self._pool.ask(now, call, deadline, own)
            if got[0] > bounds[wide]:
                break
        if self._last[not wide] <= bounds[not wide]:
            self._last[not wide] = 0
        self._last[wide] = max(self._last[wide], got[-1])
        return now, got, call

    def _take(self, wide: bool) -> int | None:
        """Returns a held ID, or None if none may be given."""
        held = self._held
        if held is None or wide != self._held_wide:
            return None
        while True:
            block = held.block
            try:
                number = block.ids.pop()
            except IndexError:
                number = None
            now = self._clock.now()
            held.wanted = now.mono
            if number is None:
                with self._lock:
                    if not held.settle(now):
                        return None
            elif held.may_give(block, now, os.getpid()):
                return number

    def _short(self) -> bool:
        """Reports whether the next block is to be asked for, once."""
        held = self._held
        if not held or held.woken or len(held.block.ids) > held.block.low or held.spare.ids:
            return False
        held.woken = True
        return True

    def _empty(self, wide: bool) -> Exception:
        if self._held is None:
            return InvalidArgument("next_now needs prefetch: set prefetch to the number of IDs to hold, such as 64")
        if wide != self._held_wide:
            return InvalidArgument("next_now gives IDs of the kind of prefetch_form alone")
        error = Empty("no ID is held that may be given: draw the first by next(), and retry after other work; "
                      "prefetch or prefetch_max_age may be too small")
        error.__cause__ = self._held.cause or self._pool.cause
        return error

    def _forked(self) -> None:
        """Is called in a child: what is held, and what is open, is the parent's."""
        self._pid = os.getpid()
        if self._held:
            self._held.drop()
            self._held.pid, self._held.woken = self._pid, False
        self._reset()

    # -- the watermark

    def _watermark(self, own: float | None, above: ids.AnyID | None = None) -> Flow[Watermark]:
        """Returns the watermark; with above once it is above that ID. own: the caller's timeout, if there is one."""
        if above is not None:
            ids.parse(above)
        return self._marks(self._check("int", 1, own)[1], own is not None, above)

    def _marks(self, timeout: float, own: bool, above: ids.AnyID | None) -> Flow[Watermark]:
        now = self._clock.mono()
        deadline = now + timeout
        while True:
            path, hold = "/v1/watermark", 0.0
            if above is not None:
                if self._mark and self._mark.complete(above):
                    return self._mark
                if (hold := min(WAIT, (deadline - now) / 2)) < 0.05 and self._mark:
                    if deadline > now:
                        now, _ = yield deadline - now
                        continue
                    raise gave_up(Unavailable(f"the watermark is {self._mark.id}, not above {above}, held back by: "
                                              f"{', '.join(self._mark.blocked_by) or 'nothing'}"), timeout, own)
                number = ids.parse(above)
                path += f"?after={FORMS['ulid' if ids.is_wide(above) else 'int'](number)}&wait={int(hold * 1000)}ms"
            mark: Watermark
            now, mark = yield from self._pool.ask(now, Call("GET", path, Watermark.read, hold=hold), deadline, own)
            if self._mark is None or mark.unix_ms >= self._mark.unix_ms:
                self._mark = mark
            if above is None:
                return self._mark


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def _forked() -> None:
    for client in list(_clients):
        client._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
