"""What both clients decide, without sockets and with a clock that the tests set."""

import json
import os
import ssl
import sys
import unittest

from support import FakeClock
from flakelease_allocator import (CallTimeout, Closed, Empty, InvalidArgument, ProtocolError, Refused, Unavailable, ids)
from flakelease_allocator._core import (MAX_BODY, Block, Call, Client, Held, Pool, Reader, Response, Send, document,
                                        encode, issued, parse_nodes)
from flakelease_allocator.testing import FakeAllocator, FakeNode


def refusal(reason, status=503, **more):
    return Response(status, json.dumps({"reason": reason, "detail": "d", **more}).encode())


class Flow:
    """Carries a flow out: script has what each node answers, one after the other; the last stays."""

    def __init__(self, script, attempt=2.0):
        self.script = {url: list(answers) for url, answers in script.items()}
        self.pool = Pool(parse_nodes(script), attempt)
        self.now, self.asked, self.waited = 0.0, [], 0.0

    def call(self, timeout=10.0, own=False, far=False):
        call = Call("POST", "/v1/ids", lambda node, response: document(node, response), far=far)
        flow = self.pool.ask(self.now, call, self.now + timeout, own)
        try:
            action = next(flow)
            while True:
                outcome = None
                if isinstance(action, Send):
                    self.asked.append(action.node.url[-1])
                    answers = self.script[action.node.url]
                    outcome = answers.pop(0) if len(answers) > 1 else answers[0]
                    self.now += action.timeout if isinstance(outcome, TimeoutError) else 0.001
                else:
                    self.now, self.waited = self.now + action, self.waited + action
                action = flow.send((self.now, outcome))
        except StopIteration as e:
            return e.value[1]


OK = Response(200, b'{"ids":["1"]}')
A, B = "http://a:1", "http://b:2"
SKEW = refusal("CLOCK_SKEW", retry_after_ms=3000)


class Failover(unittest.TestCase):
    def test_table(self):
        far, far_later = refusal("AFTER_TOO_FAR", 409), refusal("AFTER_TOO_FAR", 409, retry_after_ms=500)
        for name, script, error, asked, seconds in (
            ("served", {A: [OK], B: [OK]}, None, "1", 0),
            ("refused, then the other", {A: [SKEW], B: [OK]}, None, "12", 0),
            ("all refuse: repeated after the delay", {A: [SKEW, OK], B: [SKEW]}, None, "121", 3),
            ("a delay above the timeout", {A: [refusal("STARTING", retry_after_ms=60_000)]}, Refused, "11", 5),
            ("without a delay: each second", {A: [refusal("NEW"), OK]}, None, "11", 1),
            ("every node would refuse", {A: [refusal("INVALID_ID", 400)], B: [OK]}, Refused, "1", 0),
            ("a later version's reason, as 4xx", {A: [refusal("NEW", 422)], B: [OK]}, Refused, "1", 0),
            ("a later version's reason, as 5xx", {A: [refusal("NEW", 500)], B: [OK]}, None, "12", 0),
            ("a proxy's 401", {A: [Response(401, b"<p>")], B: [OK]}, Refused, "1", 0),
            ("refused connections", {A: [ConnectionRefusedError()], B: [OK]}, None, "12", 0),
            ("alone, repeated soon", {A: [ConnectionResetError(), OK]}, None, "11", 0.02),
            ("silent", {A: [TimeoutError()], B: [OK]}, None, "12", 2),
            ("no node", {A: [TimeoutError()]}, Unavailable, "111", 9),
            ("no JSON, then the other", {A: [Response(200, b"<p>")], B: [OK]}, None, "12", 0),
            ("no JSON", {A: [Response(200, b"<p>")]}, ProtocolError, None, 9),
            ("a bad gateway once", {A: [Response(502, b""), OK]}, None, "11", 0.02),
            ("http to TLS", {A: [Response(400, b"Client sent an HTTP request to an HTTPS server.")]}, ProtocolError,
            "1", 0),
            ("a redirect", {A: [Response(302, b"")], B: [Response(404, b"")]}, ProtocolError, "12", 0),
            ("our last ID is too far", {A: [far], B: [far]}, Refused, "12", 0),
            ("it is too far for now", {A: [far_later, OK], B: [far_later]}, None, "121", 0.5),
            ("a refusal says more than silence", {A: [SKEW], B: [ConnectionRefusedError()]}, Refused, None, 9),
        ):
            with self.subTest(name):
                f = Flow(script)
                try:
                    f.call()
                    found = None
                except Exception as e:
                    found = type(e)
                self.assertEqual(found, error)
                if asked is not None:
                    self.assertEqual("".join(f.asked), asked)
                self.assertLess(abs(f.now - seconds), 1.1 if seconds > 8 else 0.05, f.now)

    def test_the_last_attempt(self):
        # The end of the call cuts it short. What came before says why no node answered.
        untrusted = ssl.SSLCertVerificationError()
        untrusted.verify_message = "self-signed"
        with self.assertRaisesRegex(Unavailable, "self-signed: ca_file"):
            Flow({A: [untrusted, TimeoutError()]}).call(1.0)

    def test_remembers(self):
        f = Flow({A: [TimeoutError()], B: [OK]})
        f.call()
        f.call()
        f.now += 60
        f.call()
        self.assertEqual(f.asked, ["1", "2", "2", "2"], "a silent node is asked last, and the one that serves goes on")
        f = Flow({A: [SKEW], B: [SKEW, OK]})
        self.assertRaises(Refused, f.call, 1.0)
        f.pool.pick(3.1, {})  # another call tries the first that is over
        self.assertEqual(f.pool.pick(3.1, {})[0].url, B)
        self.assertIsNone(f.pool.pick(3.1, {})[0], "one call tries a node, and the others wait")

    def test_a_fork_at_any_time(self):
        # Another thread may fork between any two steps of a call: the child must find all nodes.
        f, seen = Flow({A: [SKEW], B: [OK]}), set()
        sys.setprofile(lambda *_: seen.add(len(f.pool.nodes)))
        try:
            f.call()
        finally:
            sys.setprofile(None)
        self.assertEqual(seen, {2})

    def test_far_is_of_the_call(self):
        f = Flow({A: [refusal("AFTER_TOO_FAR", 409), OK]})
        self.assertRaises(Refused, f.call, far=True)
        f.call()
        self.assertEqual(f.waited, 0, "another call is not held back")

    def test_own_deadline(self):
        f = Flow({A: [TimeoutError()]})
        self.assertRaises(CallTimeout, f.call, 0.5, True)
        self.assertEqual(f.pool.nodes[0].until, 0, "a short deadline says little about the node")
        for _ in range(5):
            self.assertRaises(CallTimeout, f.call, 0.5, True)
        self.assertGreater(f.pool.nodes[0].until, 0, "nobody was answered for the time of an attempt")
        self.assertIsInstance(CallTimeout(""), TimeoutError)

    def test_left(self):
        f = Flow({A: [SKEW]})
        self.assertRaises(Refused, f.call, 1.0)
        flow = f.pool.ask(4.0, Call("GET", "/", document), 9.0, False)
        self.assertIsInstance(next(flow), Send)
        flow.close()
        self.assertEqual(f.pool.nodes[0].trial, 0, "a caller that leaves ends its trial")


class Answers(unittest.TestCase):
    def test_bad(self):
        node = parse_nodes([A])[0]
        for name, body, why in (
            ("fewer", b'{"ids":["1"]}', "1 IDs came where 2 were asked for"),
            ("more", b'{"ids":["1","2","3"]}', "3 IDs"),
            ("none", b"{}", "no IDs"), ("no JSON", b"<html>", "without JSON"),
            ("numbers", b'{"ids":[1,2]}', "another form, such as 1:"),
            ("not rising", b'{"ids":["2","2"]}', "rise"), ("below", b'{"ids":["1","2"]}', "rise"),
            ("another form", b'{"ids":["02MVRE9MT10N2","02MVRE9MT10N3"]}', "another form"),
            ("64 bits", b'{"ids":["5","9223372036854775808"]}', "63 bits"), ("a list", b"[]", "without JSON"),
        ):
            with self.subTest(name), self.assertRaisesRegex(ProtocolError, why):
                issued(node, Response(200, body), 2, False, 1)

    def read(self, *pieces):
        reader = Reader()
        for piece in pieces:
            if reader.feed(piece):
                return reader.response.status, reader.response.body, reader.reusable
        return None

    def test_http(self):
        head = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"
        chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1;x\r\n}\r\n0\r\n\r\n"
        for whole, want in ((head + b"{}", (200, b"{}", True)), (chunked, (200, b"{}", True)),
                            (b"HTTP/1.1 100 Continue\r\n\r\n" + head + b"{}", (200, b"{}", True)),
                            (head[:-2] + b"Connection: close\r\n\r\n{}", (200, b"{}", False)),
                            (head + b"{}HTTP/1.1 200 OK", (200, b"{}", False))):
            self.assertEqual(self.read(whole), want)
            for cut in range(1, len(whole) - 15):
                self.assertIn(self.read(whole[:cut], whole[cut:]), (want, want[:2] + (True,)))
        self.assertEqual(self.read(b"HTTP/1.0 502 X\r\n\r\nabc", b""), (502, b"abc", False))
        for bad, error in ((b"", ConnectionResetError), (b"SSH-2.0\r\n", ProtocolError),
                           (head + b"{", ConnectionResetError),
                           (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n", ProtocolError),
                           (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20000, ProtocolError),
                           (b"\x15\x03\x01\x00\x02", ProtocolError),
                           (chunked[:47] + b"zz\r\n", ProtocolError), (head + b"x" * (MAX_BODY + 9), ProtocolError),
                           (chunked[:-4], ConnectionResetError)):
            with self.subTest(bad[:60]), self.assertRaises(error):
                self.read(bad, b"")

    def test_request(self):
        send = Send(parse_nodes(["http://[::1]:80"])[0], Call("POST", "/x", document, {"a": 1}), 1)
        text = encode(send, "secret").decode()
        self.assertIn("Host: [::1]:80\r\n", text)
        self.assertIn("Authorization: Bearer secret\r\n", text)
        self.assertTrue(text.endswith('\r\n\r\n{"a": 1}'))


class HeldIDs(unittest.TestCase):
    def setUp(self):
        self.clock = FakeClock()
        self.held = Held(4, 1.0)
        self.held.block = Block([10, 20, 30, 40], self.clock.sent())

    def give(self, pid=None):
        return self.held.may_give(self.held.block, self.clock.now(), pid or os.getpid())

    def test_rules_for_copies(self):
        for name, step, given in (("now", {}, True), ("young", {"mono": 0.9}, True), ("old", {"mono": 1.0}, False),
                                  ("stopped for a minute", {"mono": 60}, False),
                                  ("suspended", {"boot": 1.0, "wall": 0}, False),
                                  ("a copy resumed later: the wall clock leaps", {"wall": 3600}, False),
                                  ("a leap below the age", {"wall": 0.5}, False),
                                  ("slewed", {"mono": 0.5, "wall": 0.505}, True),
                                  ("set back", {"wall": -3600}, True)):
            with self.subTest(name):
                self.setUp()
                self.clock.go(**step)
                self.assertEqual(self.give(), given)
                self.assertEqual(bool(self.held.block.ids), given, "what may not be given is dropped")
        self.setUp()
        self.assertFalse(self.give(pid=1), "another process")

    def test_refill(self):
        now = self.clock.now
        self.assertFalse(self.held.wants(now()))
        self.held.block.ids.pop(), self.held.block.ids.pop()
        self.assertTrue(self.held.wants(now()), "half of it is used")
        self.held.put(Block([50, 60], self.clock.sent()), 0)
        self.assertFalse(self.held.wants(now()))
        self.clock.go(0.6)
        self.assertTrue(self.held.wants(now()), "it is half old")
        self.held.block.ids.clear()
        self.assertTrue(self.held.settle(now()))
        self.assertEqual(self.held.block.top, 60)

    def test_idle(self):
        self.held.wanted = self.clock.mono()
        self.assertEqual(self.held.rest(self.clock.now()), 0.5)
        self.clock.go(59)
        self.assertEqual(self.held.rest(self.clock.now()), 0)
        self.clock.go(1)
        self.assertGreater(self.held.rest(self.clock.now()), 0, "nobody has called for a minute")

    def test_order(self):
        self.held.returned(35, Block([36, 37], self.clock.sent()))
        self.assertEqual(self.held.block.ids, [], "they are below what a call has returned, and 36 is below 40")
        self.held.put(Block([34], self.clock.sent()), self.held.drops)
        self.assertEqual(self.held.spare.ids, [])
        self.held.put(Block([50], self.clock.sent()), self.held.drops - 1)
        self.assertEqual(self.held.spare.ids, [], "it was asked for before they were dropped")


class Clients(unittest.TestCase):
    def test_arguments(self):
        good = {"nodes": [A]}
        for change, why in (
            ({"nodes": []}, "empty"), ({"nodes": A}, "give a list"), ({"nodes": None}, "give a list"),
            ({"nodes": [None]}, "no text"),
            ({"nodes": ["127.0.0.1:8080"]}, "write http://"), ({"nodes": [""]}, "no URL"),
            ({"nodes": ["http://"]}, "no URL"),
            ({"nodes": ["http://a:99999"]}, "no URL"), ({"nodes": ["http://a/b"]}, "more than a host"),
            ({"nodes": ["ftp://a"]}, "no URL"),
            ({"nodes": ["http://u:p@a"]}, "more than a host"), ({"nodes": ["http://a b"]}, "space"),
            ({"nodes": ["unix://a"]}, "path"),
            ({"nodes": ["unix:///" + "a" * 108]}, "107"), ({"timeout": 0}, "above 0"),
            ({"attempt_timeout": "1"}, "seconds"),
            ({"timeout": float("nan")}, "above 0"), ({"prefetch": -1}, "prefetch"), ({"prefetch": 10_000}, "9999"),
            ({"prefetch_form": "x"}, "use one of"), ({"prefetch": 1, "prefetch_max_age": 0}, "above 0"),
            ({"ca_file": "/no"}, "PEM"),
            ({"token_file": "/no"}, "No such file"), ({"after": 1.5}, "float"), ({"after": -1}, "not within"),
        ):
            with self.subTest(change), self.assertRaisesRegex(InvalidArgument, why):
                FakeClient(**{**good, **change})
        with self.assertRaisesRegex(TypeError, "no_such_option"):
            FakeClient([A], no_such_option=1)
        client = FakeAllocator()
        for call, why in ((lambda: client.next("hex"), "use one of"), (lambda: client.next(["int"]), "use one of"),
                          (lambda: client.next_many(0), "at least 1"), (lambda: client.next_many(True), "at least 1"),
                          (lambda: client.next_many(1.5), "at least 1"), (lambda: client.next(after=2.0**53 + 2), "float"),
                          (lambda: client.next(after="x"), "no ID"), (lambda: client.next(timeout=-1), "above 0"),
                          (lambda: client.next_now(), "prefetch"), (lambda: client.wait_for(0.5), "float")):
            with self.assertRaisesRegex(InvalidArgument, why):
                call()
        self.assertEqual(client.fake.requests, [], "found before any request")

    def test_order_of_two_kinds(self):
        client = FakeAllocator()
        drawn = [client.next("uuid" if i % 3 else "int") for i in range(9)]
        self.assertEqual(sorted(drawn, key=ids.to_int), drawn)
        # Two kinds that were drawn at the same time, and nodes of which one is behind.
        for narrow, wide in ((5 << 40, 3 << 40), (3 << 40, 5 << 40)):
            client = FakeAllocator()
            client._last = [narrow, ids.parse(FakeNode._ulid(wide))]
            client.fake.last = 0
            number = client.next()
            self.assertGreater(number, 5 << 40)
            self.assertGreater(ids.to_int(client.next("ulid")), number)
        self.assertGreater(FakeAllocator(after=7 << 50).next(), 7 << 50)

    def test_closed(self):
        with FakeAllocator() as client:
            client.next()
        for call in (client.next, client.watermark, lambda: client.next_many(2)):
            self.assertRaises(Closed, call)

    def test_limit_of_a_node(self):
        client = FakeAllocator()
        whole = client.fake.answer
        client.fake.answer = lambda send: whole(send) if int(send.call.path.split("count=")[1].split("&")[0]) <= 100 \
            else refusal("INVALID_COUNT", 400, metadata={"limit": "100"})
        drawn = client.next_many(250)
        self.assertEqual((len(drawn), len(set(drawn)), sorted(drawn)), (250, 250, drawn))

    def test_held(self):
        clock = FakeClock()
        client = FakeAllocator(prefetch=8, _clock=clock)
        client._keep = lambda: None  # no thread: the test draws
        with self.assertRaisesRegex(Empty, "next()"):
            client.next_now()
        self.assertEqual(client.fake.requests, [])
        drawn = [client.next(), *(client.next_now() for _ in range(8))]
        self.assertEqual((drawn, len(client.fake.requests)), (sorted(set(drawn)), 1))
        self.assertRaises(Empty, client.next_now)
        client._run(client._refill())
        many = client.next_many(3)
        self.assertLess(max(drawn), min(many))
        self.assertLess(max(many), client.next_now(), "what was held before is not given after a greater ID")
        self.assertRaises(InvalidArgument, client.next_now, "uuid")
        client.next("uuid")
        self.assertRaises(Empty, client.next_now)
        client.fake.refuse("UNAUTHENTICATED", status=401)
        client._run(client._refill())
        with self.assertRaises(Empty) as raised:
            client.next_now()
        self.assertEqual(raised.exception.__cause__.reason, "UNAUTHENTICATED")

    def test_idle(self):
        clock = FakeClock()
        client = FakeAllocator(prefetch=8, _clock=clock)
        client._keep = lambda: None
        client.next()
        client._run(client._refill())
        client._wake.clear()
        clock.go(61)
        self.assertGreater(client._held.rest(clock.now()), 0)
        self.assertRaises(Empty, client.next_now)
        self.assertEqual((client._wake.is_set(), client._held.rest(clock.now())), (True, 0), "a call wakes it")

    def test_held_when_another_kind_was_given(self):
        client = FakeAllocator(prefetch=8)
        client._keep = lambda: None
        flow = client._draw(1, False, None, 9.0, False)
        send = next(flow)
        client._begin(send)
        answer = client.fake.answer(send)
        client.next("uuid")  # while the answer is on its way
        self.assertRaises(StopIteration, flow.send, (client._clock.mono(), answer))
        self.assertRaises(Empty, client.next_now)

    def test_uuids_held(self):
        client = FakeAllocator(prefetch=8, prefetch_form="uuid")
        self.assertLess(client.next("uuid").hex, client.next_now("uuid").hex)

    def test_fake(self):
        self.assertEqual([FakeAllocator().next("flake") for _ in range(2)], ["01TT8HD000010"] * 2)
        client = FakeAllocator(timeout=0.1)
        client.fake.refuse("CLOCK_SKEW", retry_after=2)
        with self.assertRaises(Refused) as raised:
            client.next()
        self.assertEqual((raised.exception.reason, raised.exception.retry_after), ("CLOCK_SKEW", 2.0))
        client.fake.serve()
        client._pool.nodes[0].until = 0
        mark = client.wait_for(client.next())
        self.assertTrue(mark.complete(5) and not mark.complete(mark.id))


class FakeClient(Client):
    def _reset(self):
        pass


if __name__ == "__main__":
    unittest.main()
