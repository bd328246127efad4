"""What calls raise. A message says what failed, why, and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class AllocatorError(Exception):
    """The base of all. No ID was given to the caller."""


class InvalidArgument(AllocatorError, ValueError):
    """An argument is wrong, which was found before any request."""


class Refused(AllocatorError):
    """A node answered that it issues none, and why."""

    def __init__(self, reason: str, detail: str, retry_after: float | None = None, node: str = "",
                 metadata: Mapping[str, Any] | None = None, final: bool = False) -> None:
        """retry_after is in seconds, None where waiting does not help; final: every node would refuse so."""
        super().__init__(f"{node} refused: {reason}: {detail}")
        self.reason, self.detail, self.retry_after, self.node = reason, detail, retry_after, node
        self.metadata, self.final = dict(metadata or {}), final


class Unavailable(AllocatorError):
    """No node answered in time."""


class CallTimeout(Unavailable, TimeoutError):
    """The timeout that the caller gave to this call has passed."""


class ProtocolError(AllocatorError):
    """An answer is not one of an allocator. Nothing of it was used."""

    permanent = False  # The same node would give the same answer again.


class Empty(AllocatorError):
    """next_now holds no ID that may be given. More are on their way; __cause__ is why the last request failed."""


class Closed(AllocatorError):
    """The client was closed before the call."""
