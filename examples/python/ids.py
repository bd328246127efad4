"""Draws IDs from an allocator cluster, over HTTP. It needs nothing but Python 3.9 or later."""

import http.client
import json
import os
import ssl
import time
from urllib.parse import urlsplit


class Refused(Exception):
    """No ID was issued: reason says why, retry_after (seconds) when the same request can succeed."""

    def __init__(self, reason, detail, retry_after=None, final=False):
        super().__init__(f"{reason}: {detail}")
        self.reason, self.retry_after, self.final = reason, retry_after, final


class Allocator:
    """One for each thread: it keeps a connection to each node open. A forked child opens its own."""

    def __init__(self, nodes, token_file=None, ca_file=None, timeout=10.0, attempt_timeout=2.0):
        self.token_file, self.timeout, self.last = token_file, timeout, 0
        tls = ssl.create_default_context(cafile=ca_file)
        self.process, self.connections = os.getpid(), []
        for node in map(urlsplit, nodes):
            if node.scheme == "https":
                c = http.client.HTTPSConnection(node.netloc, timeout=attempt_timeout, context=tls)
            else:
                c = http.client.HTTPConnection(node.netloc, timeout=attempt_timeout)
            self.connections.append(c)

    def draw(self, count=1):
        """Returns 1 to 10,000 IDs in rising order, all greater than those it returned before."""
        if self.process != os.getpid():  # else parent and child read each other's answers
            self.process = os.getpid()
            for c in self.connections:
                c.close()  # the parent's connection stays open
        deadline = time.monotonic() + self.timeout
        while True:
            wait = float("inf")
            for c in list(self.connections):
                try:
                    ids = self._ask(c, count)
                    self.connections.sort(key=lambda other: other is not c)  # it is asked first from now on
                    self.last = ids[-1]
                    return ids
                except Refused as e:
                    if e.final:
                        raise  # no node would serve this request
                    failure, wait = e, min(wait, e.retry_after or 1)
                except (OSError, http.client.HTTPException) as e:
                    c.close()  # the next request opens it again
                    failure, wait = e, min(wait, 1)
                if time.monotonic() > deadline:
                    raise failure
            if time.monotonic() + wait >= deadline:
                raise failure
            time.sleep(wait)

    def _ask(self, c, count):
        headers = {"Accept": "application/json"}
        if self.token_file:
            with open(self.token_file) as f:
                headers["Authorization"] = "Bearer " + f.read().strip()
        c.request("POST", f"/v1/ids?as=int&count={count}&after={self.last}", headers=headers)
        answer = c.getresponse()
        body = answer.read()
        if answer.status == 200:
            ids = [int(text) for text in json.loads(body)["ids"]]
            if len(ids) != count:
                raise http.client.HTTPException(f"{len(ids)} IDs came where {count} were asked for")
            return ids
        try:
            problem = json.loads(body)
        except ValueError:
            problem = {}  # a proxy's answer has no reason
        # Another node or a later time helps against 409 (AFTER_TOO_FAR), 429 and 5xx.
        raise Refused(problem.get("reason", f"HTTP {answer.status}"), problem.get("detail", answer.reason),
                      retry_after=int(answer.getheader("Retry-After", 0)),
                      final=answer.status < 500 and answer.status not in (409, 429))
