"""Both clients over sockets: threads, tasks, forks, stops, TLS, tokens. Nodes are in this process."""

import asyncio
import ctypes
import json
import os
import select
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from types import SimpleNamespace

from support import SOURCE, Case, Node, problem
from flakelease_allocator import (Allocator, AsyncAllocator, CallTimeout, Closed, Empty, InvalidArgument,
                                  ProtocolError, Refused, Unavailable)


class Both:
    """Lets a test run with either client: call(client.next, …) waits for a coroutine in one loop."""

    def __init__(self, kind):
        self.kind, self.loop = kind, asyncio.new_event_loop()

    def open(self, *args, **options):
        return self.kind(*args, **options)

    def call(self, function, *args, **kwargs):
        if self.kind is Allocator:
            return function(*args, **kwargs)
        return self.loop.run_until_complete(self._within_loop(function, args, kwargs))

    async def _within_loop(self, function, args, kwargs):
        result = function(*args, **kwargs)
        return await result if asyncio.iscoroutine(result) else result

    def many(self, client, count, **kwargs):
        """Returns what `count` calls of next return that are made at the same time."""
        if self.kind is AsyncAllocator:
            async def gather():
                return await asyncio.gather(*(client.next(**kwargs) for _ in range(count)), return_exceptions=True)
            return self.loop.run_until_complete(gather())
        found = []

        def call():
            try:
                found.append(client.next(**kwargs))
            except Exception as e:
                found.append(e)

        threads = [threading.Thread(target=call) for _ in range(count)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        return found


def both(method):
    def run(self):
        for kind in (Allocator, AsyncAllocator):
            with self.subTest(kind.__name__):
                b = Both(kind)
                try:
                    method(self, b)
                finally:
                    b.loop.run_until_complete(asyncio.sleep(0))
                    b.loop.close()
    return run


def gate(node):
    """Holds the answers of a node back, once its event is cleared."""
    opened, arrived, serve = threading.Event(), threading.Semaphore(0), node.do

    def do(request):
        arrived.release()
        opened.wait(30)
        return serve(request)

    node.do = do
    return opened, arrived


class Calls(Case):
    @both
    def test_shares_requests(self, b):
        node = Node(self)
        client = b.open([node.url])
        drawn = b.many(client, 64)
        self.assertEqual(len(set(drawn)), 64, drawn)
        self.assertLess(len(node.fake.requests), 64)
        if b.kind is AsyncAllocator:
            self.assertEqual(len(node.fake.requests), 1)
        self.assertGreater(b.call(client.next), max(drawn))
        self.assertEqual(len(b.call(client.next_many, 25_000)), 25_000)
        self.assertLessEqual(node.server.node.seen[-1]["Host"], node.url[7:])
        b.call(client.close)
        with self.assertRaises(Closed):
            b.call(client.next)

    @both
    def test_one_connection(self, b):
        node = Node(self)
        client = b.open([node.url])
        for _ in range(10):
            b.call(client.next)
        self.assertEqual(node.accepted, 1)
        b.call(client.close)

    @both
    def test_a_closed_connection(self, b):
        node = Node(self, lambda request: (*node.serve(request), ("Connection", "close")))
        client = b.open([node.url], timeout=2.0)
        for _ in range(3):
            b.call(client.next)
        b.call(client.close)

    @both
    def test_a_connection_that_ended(self, b):
        node = Node(self)
        node.hangs_up = True
        client = b.open([node.url])
        client._pool.failed = lambda *_: self.fail("it counts as a failure of the node")
        for _ in range(3):
            b.call(client.next)
            (connection,) = client._idle[node.url]
            if b.kind is Allocator:
                self.assertTrue(select.select([connection], [], [], 30)[0])
            else:
                self.assertEqual(b.call(connection[0].read, 1), b"")
        b.call(client.close)

    def test_a_caller_with_less_time(self):
        # In the batch of one who leaves, the others are served all the same.
        node = Node(self)
        opened, arrived = gate(node)
        client, found = Allocator([node.url]), []
        first = threading.Thread(target=client.next)
        first.start()
        arrived.acquire()
        leader = threading.Thread(target=lambda: found.append(self.assertRaises(Unavailable, client.next, timeout=9)))
        turn = client._turn

        def acquire(timeout):  # The leader's time is over once the other has joined it.
            while threading.current_thread() is leader and client._forming[0].count < 2:
                time.sleep(0.001)
            return threading.current_thread() is not leader and turn.acquire(timeout=timeout)

        client._turn = SimpleNamespace(acquire=acquire, release=turn.release)
        leader.start()
        while client._forming[0] is None:
            time.sleep(0.001)
        follower = threading.Thread(target=lambda: found.append(client.next()))
        follower.start()
        leader.join()
        opened.set()
        follower.join()
        first.join()
        self.assertEqual(len(found), 2, found)

    @both
    def test_timeout(self, b):
        node = Node(self)
        opened, _ = gate(node)
        self.addCleanup(opened.set)
        client = b.open([node.url], timeout=0.2, attempt_timeout=0.1)
        with self.assertRaises(Unavailable) as raised:
            b.call(client.next)
        self.assertNotIsInstance(raised.exception, CallTimeout)
        with self.assertRaises(CallTimeout):
            b.call(client.next, timeout=0.05)
        b.call(client.close)

    @both
    def test_refused(self, b):
        node = Node(self, lambda request: problem("CLOCK_SKEW", retry_after_ms=5000))
        client = b.open([node.url], timeout=4)
        found = b.many(client, 8)
        self.assertEqual({(e.reason, e.retry_after) for e in found}, {("CLOCK_SKEW", 5.0)}, found)
        with self.assertRaisesRegex(Refused, node.url):
            b.call(client.next, timeout=0.3)
        self.assertLessEqual(len(node.seen), 3, "it is not asked again before its delay is over")
        b.call(client.close)

    def test_cancel(self):
        async def cancel():
            node = Node(self)
            opened, arrived = gate(node)
            client = AsyncAllocator([node.url])
            task, other = asyncio.create_task(client.next()), asyncio.create_task(client.next())
            await asyncio.to_thread(arrived.acquire)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            opened.set()
            self.assertIsInstance(await other, int)
            opened.clear()
            task = asyncio.create_task(client.next())
            await asyncio.to_thread(arrived.acquire)
            task.cancel()  # All have gone: the request ends too.
            await asyncio.wait([task])
            while client._server:
                await asyncio.sleep(0)
            opened.set()
            self.assertIsInstance(await client.next(), int)
            await client.close()
        asyncio.run(cancel())

    def test_another_loop(self):
        client = AsyncAllocator([Node(self).url], prefetch=4)
        self.assertEqual(len({asyncio.run(client.next()) for _ in range(3)}), 3)

    @both
    def test_closed_while_paused(self, b):
        node = Node(self, lambda request: problem("STARTING", retry_after_ms=9000))
        client = b.open([node.url], timeout=60.0)
        if b.kind is Allocator:
            threading.Timer(0.2, client.close).start()
        else:
            b.loop.call_later(0.2, lambda: b.loop.create_task(client.close()))
        with self.assertRaises(Closed):
            b.call(client.next)

    @both
    def test_watermark(self, b):
        node = Node(self)
        client = b.open([node.url])
        first = b.call(client.next)
        self.assertTrue(b.call(client.wait_for, first).complete(first))
        mark = b.call(client.watermark)
        node.do = lambda request: (200, json.dumps({**mark.raw, "unix_ms": 5, "int": "7"}).encode())
        self.assertEqual(b.call(client.watermark), mark, "it does not go back")
        with self.assertRaisesRegex(CallTimeout, "held back by"):
            b.call(client.wait_for, 1 << 60, timeout=0.3)
        node.do = lambda request: (200, b'{"unix_ms":1}')
        with self.assertRaises(ProtocolError):
            b.call(client.watermark, timeout=0.5)
        b.call(client.close)


class Transport(Case):
    @both
    def test_unix_socket(self, b):
        with tempfile.TemporaryDirectory() as dir:
            node = Node(self, path=dir + "/http.sock")
            self.assertIsInstance(b.call(b.open([node.url]).next), int)
            self.assertEqual(node.seen[0]["Host"], "localhost")
            with self.assertRaisesRegex(Unavailable, "No such file"):
                b.call(b.open([f"unix://{dir}/none"], timeout=0.5).next)

    @both
    def test_tls_and_tokens(self, b):
        key, cert = self.file(""), self.file("")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                        "-subj", "/CN=x", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert],
                       check=True, capture_output=True)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(cert, key)
        node = Node(self, tls=tls)
        token = self.file("first\n")
        client = b.open([node.url], ca_file=cert, token_file=token)
        b.call(client.next)
        self.assertEqual(node.seen[-1]["Authorization"], "Bearer first")
        with open(token, "w") as f:
            f.write("another")
        b.call(client.next)
        self.assertEqual(node.seen[-1]["Authorization"], "Bearer another")
        os.unlink(token)  # It is being replaced.
        b.call(client.next)
        with open(token, "w") as f:
            f.write("x")
        os.chmod(token, 0o644)
        with self.assertRaisesRegex(InvalidArgument, "chmod"):
            b.call(client.next)
        b.call(client.close)
        with self.assertRaisesRegex(Unavailable, "certificate"):
            b.call(b.open([node.url], timeout=1).next)

    def test_bad_tokens(self):
        for text, mode, url, why in (("a", 0o644, "http://127.0.0.1", "can read it: chmod"),
                                     ("", 0o600, "http://127.0.0.1", "no token"),
                                     ("a\nb", 0o600, "http://127.0.0.1", "no token"),
                                     ("a", 0o600, "http://node", "no TLS")):
            with self.subTest(why), self.assertRaisesRegex(InvalidArgument, why):
                Allocator([url], token_file=self.file(text, mode))
        Allocator(["http://node"], token_file=self.file("a"), plaintext_token=True).close()

    @both
    def test_what_is_no_node(self, b):
        listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listener.close)

        def greet():
            while True:
                try:
                    listener.accept()[0].sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
                except OSError:
                    return

        threading.Thread(target=greet, daemon=True).start()
        for url, error in ((f"http://127.0.0.1:{listener.getsockname()[1]}", "is no HTTP|reset|pipe"),
                           (Node(self, lambda r: (404, b"<h1>Not Found")).url, "Not Found.*is this the URL"),
                           (Node(self, lambda r: (200, b"0" * (2 << 20))).url, "more than any of a node"),
                           (Node(self, lambda r: (400, b"Client sent an HTTP request to an HTTPS server.")).url,
                           "write https://")):
            with self.subTest(error):
                client = b.open([url], timeout=1)
                with self.assertRaisesRegex((ProtocolError, Unavailable), error):
                    b.call(client.next)
                b.call(client.close)


class Copies(Case):
    """The rules for who holds IDs and is copied: forked, stopped, resumed from a snapshot."""

    @both
    def test_fork(self, b):
        node = Node(self)
        client = b.open([node.url], prefetch=64, prefetch_max_age=60.0)
        drawn = [b.call(client.next), b.call(client.next_now)]
        children = []
        for _ in range(4):
            read, write = os.pipe()
            if (pid := os.fork()) == 0:
                code = 1
                try:
                    found = []
                    b.loop = asyncio.new_event_loop()
                    try:
                        found.append(client.next_now())
                    except Empty:
                        pass
                    for _ in range(20):
                        found += [b.call(client.next), *b.call(client.next_many, 5)]
                    os.write(write, json.dumps(found).encode())
                    code = 0
                finally:
                    os._exit(code)
            os.close(write)
            children.append((pid, read))
        for _ in range(30):
            drawn.append(b.call(client.next))
        for pid, read in children:
            with os.fdopen(read) as f:
                drawn += json.load(f)
            self.assertEqual(os.waitpid(pid, 0)[1], 0)
        self.assertEqual(len(set(drawn)), len(drawn), "an ID came twice")
        self.assertGreaterEqual(len(drawn), 2 + 30 + 4 * 120)
        b.call(client.close)

    @both
    def test_a_child_opens_connections(self, b):
        node = Node(self)
        client = b.open([node.url])
        b.call(client.next)
        # The second fork is one of C, which calls nothing of this package in the child.
        for children, fork in enumerate((os.fork, ctypes.PyDLL(None).fork), 1):
            if (pid := fork()) == 0:
                b.loop = asyncio.new_event_loop()
                try:
                    b.call(client.next)
                finally:
                    os._exit(0)
            self.assertEqual(os.waitpid(pid, 0)[1], 0)
            b.call(client.next)
            self.assertEqual(node.accepted, 1 + children,
                             "parent and child have connections of their own, and keep them")
        b.call(client.close)

    def test_a_fork_in_the_middle_of_a_call(self):
        client = Allocator([Node(self).url], prefetch=64)
        with client._lock:  # as another thread has it, which is not in the child
            if (pid := os.fork()) == 0:
                signal.alarm(60)
                try:
                    client.next_now()
                except Empty:
                    client.close()
                    os._exit(0)
                finally:
                    os._exit(1)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        client.close()

    def test_stopped(self):
        # The process is stopped for longer than the maximum age, and the node does not answer any more.
        node = Node(self)
        program = subprocess.Popen([sys.executable, "-B", "-c", """if True:
            import sys
            sys.path.insert(0, sys.argv[1])
            from flakelease_allocator import Allocator, Empty
            ids = Allocator([sys.argv[2]], prefetch=64, prefetch_max_age=1.0)
            def take():
                try:
                    return ids.next_now() and "held"
                except Empty:
                    return "empty"
            while ids.next() and take() != "held":
                pass
            print("held", flush=True)
            for _ in sys.stdin:
                print(take(), flush=True)
        """, str(SOURCE), node.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self.addCleanup(program.communicate)
        self.assertEqual(program.stdout.readline(), "held\n")
        program.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, program.pid, os.WSTOPPED)
        node.do = lambda request: problem("STARTING")
        time.sleep(1.1)
        program.send_signal(signal.SIGCONT)
        program.stdin.write("again\n")
        self.assertEqual(program.stdout.readline(), "empty\n")

    @both
    def test_nothing_before_the_first_call(self, b):
        node = Node(self)
        client = b.open([node.url], prefetch=64)
        time.sleep(0.05)
        self.assertEqual(node.seen, [])
        with self.assertRaises(Empty):
            b.call(client.next_now)
        deadline = time.monotonic() + 30
        while True:
            try:
                b.call(client.next_now)
                break
            except Empty:
                self.assertLess(time.monotonic(), deadline)
                b.call(asyncio.sleep if b.kind is AsyncAllocator else time.sleep, 0.01)
        b.call(client.close)

    def test_nothing_keeps_the_process_alive(self):
        node = Node(self)
        done = subprocess.run([sys.executable, "-B", "-W", "error", "-c", """if True:
            import asyncio, sys
            sys.path.insert(0, sys.argv[1])
            from flakelease_allocator import Allocator, AsyncAllocator
            ids = Allocator([sys.argv[2]], prefetch=64)
            print(ids.next_now.__name__, ids.next())
            async def main():
                print(await AsyncAllocator([sys.argv[2]], prefetch=64).next())
            asyncio.run(main())
        """, str(SOURCE), node.url], timeout=60, capture_output=True, text=True)
        self.assertEqual((done.returncode, len(done.stdout.split())), (0, 3), done.stderr)


if __name__ == "__main__":
    unittest.main()
