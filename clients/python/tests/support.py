"""Nodes on sockets of this process, and clocks that tests set."""

import http.server
import json
import os
import socket
import socketserver
import sys
import tempfile
import threading
import unittest
import warnings
from pathlib import Path
from types import SimpleNamespace

SOURCE = Path(__file__).parent.parent / "src"
sys.path.insert(0, str(SOURCE))
from flakelease_allocator._core import Clock, Moment, Send  # noqa: E402
from flakelease_allocator.testing import FakeNode  # noqa: E402


class FakeClock(Clock):
    """All clocks at 1000 s, until a test sets them."""

    def __init__(self):
        self.at = Moment(1000.0, 1000.0, 1e9)

    def mono(self):
        return self.at.mono

    def sent(self):
        return self.at

    now = sent

    def go(self, mono=0.0, boot=None, wall=None):
        self.at = Moment(self.at.mono + mono, self.at.boot + (mono if boot is None else boot),
                         self.at.wall + (mono if wall is None else wall))


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def setup(self):
        self.disable_nagle_algorithm = self.request.family != socket.AF_UNIX
        super().setup()

    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        node = self.server.node
        node.seen.append(self.headers)
        with node.lock:
            status, text, *more = node.do(SimpleNamespace(method=self.command, path=self.path, body=body))
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        for name, value in more:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text)
        self.close_connection = self.close_connection or node.hangs_up

    do_POST = do_GET = do_DELETE = answer

    def address_string(self):
        return ""

    def log_message(self, *_):
        pass


class _Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads, request_queue_size = True, 128

    def handle_error(self, *_):  # A client may leave.
        pass


class Node:
    """A node at url, which answers as `do` does: with a status, the body and headers, for a request."""

    def __init__(self, test, do=None, path=None, tls=None):
        self.fake, self.lock, self.seen = FakeNode(), threading.Lock(), []
        self.do = do or self.serve
        self.hangs_up = False  # It closes connections without a word.
        self.accepted = 0
        if path:
            self.server = type("Unix", (_Server,), {"address_family": 1,
                                                    "server_bind": socketserver.TCPServer.server_bind})(
                path, _Handler, bind_and_activate=False)
            self.server.server_name, self.server.server_port = "unix", 0
            self.server.server_bind()
            self.server.server_activate()
            self.url = f"unix://{path}"
        else:
            self.server = _Server(("127.0.0.1", 0), _Handler)
            self.url = f"http{'s' if tls else ''}://127.0.0.1:{self.server.server_port}"
        if tls:
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
        self.server.node, accept = self, self.server.get_request

        def get_request():
            self.accepted += 1
            return accept()

        self.server.get_request = get_request
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()
        test.addCleanup(self.stop)

    def serve(self, request):
        send = Send(None, SimpleNamespace(method=request.method, path=request.path), 0)
        response = self.fake.answer(send)
        return response.status, response.body

    def stop(self):
        self.server.shutdown()
        self.server.server_close()


def problem(reason, status=503, **more):
    return status, json.dumps({"reason": reason, "detail": "so it is", **more}).encode()


class Case(unittest.TestCase):
    def setUp(self):
        warnings.simplefilter("ignore", ResourceWarning)  # of clients that a test leaves open, and of forked ones

    def file(self, text, mode=0o600):
        handle, path = tempfile.mkstemp()
        self.addCleanup(os.unlink, path)
        os.write(handle, text.encode())
        os.close(handle)
        os.chmod(path, mode)
        return path
