"""Prints IDs of Twitter's layout: allocator worker run -- python3 ids.py 10"""

import mmap
import os
import struct
import sys
import time

EPOCH = 1288834974657  # Twitter's


class NotOurs(Exception):
    """The worker number is not this program's at the time of an ID."""


class Worker:
    """The interval of the worker, as the agent keeps it."""

    def __init__(self, path):
        with open(path, "rb") as f:
            self.memory = mmap.mmap(f.fileno(), 64, prot=mmap.PROT_READ)
        magic, self.number, _, self.not_before = struct.unpack_from("<8sqqq", self.memory)
        if magic != b"ALLOCWK1":
            raise ValueError(f"{path} is not the file of a worker")

    def permit(self, ms):
        """Raises NotOurs unless an ID of this millisecond may be used."""
        (not_after,) = struct.unpack_from("<q", self.memory, 32)
        if not self.not_before <= ms < not_after:
            raise NotOurs(f"the worker number is not ours at {ms}")


class Generator:
    """Makes IDs of 41 bits of milliseconds, 10 of worker and 12 of sequence."""

    def __init__(self, worker):
        self.worker, self.last, self.sequence = worker, 0, 0

    def next(self):
        ms = max(time.time_ns() // 1_000_000, self.last)
        if ms == self.last:
            self.sequence += 1
            if self.sequence == 4096:
                while ms <= self.last:
                    ms = time.time_ns() // 1_000_000
        if ms > self.last:
            self.last, self.sequence = ms, 0
        # After the time was chosen for good: only then does it show that nobody else
        # can have the ID.
        self.worker.permit(ms)
        return (ms - EPOCH) << 22 | self.worker.number << 12 | self.sequence


if __name__ == "__main__":
    if "ALLOCATOR_WORKER_FILE" not in os.environ:
        sys.exit("start this with: allocator worker run -- python3 ids.py")
    generator = Generator(Worker(os.environ["ALLOCATOR_WORKER_FILE"]))
    for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 10):
        print(generator.next())
