"""IDs from an allocator cluster: unique, sorted by time.

    from flakelease_allocator import Allocator

    with Allocator(["http://127.0.0.1:8080"]) as ids:
        ids.next()            # an int
        ids.next("uuid")      # a uuid.UUID

AsyncAllocator is the same for asyncio, Worker leases a worker number for a Snowflake library, module `ids` reads and
converts IDs without a node, and module `testing` has a fake.
"""

from ._aio import AsyncAllocator
from ._core import Form, Watermark
from ._sync import Allocator
from .errors import (AllocatorError, CallTimeout, Closed, Empty, InvalidArgument, ProtocolError, Refused, Unavailable)
from .ids import (LAYOUTS, SCALABLE, AnyID, Layout, first_of, parse, sid_of, time_of, to_flake, to_int, to_ulid,
                  to_uuid, unix_ms_of)
from .worker import NotPermitted, Worker

__all__ = [
    "LAYOUTS", "SCALABLE", "Allocator", "AllocatorError", "AnyID", "AsyncAllocator", "CallTimeout", "Closed", "Empty",
    "Form", "InvalidArgument", "Layout", "NotPermitted", "ProtocolError", "Refused", "Unavailable", "Watermark",
    "Worker", "first_of", "parse", "sid_of", "time_of", "to_flake", "to_int", "to_ulid", "to_uuid", "unix_ms_of",
]
