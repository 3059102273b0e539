"""Compute the checksums of the next chapter's bytes in a thread, while this chapter's are being used.

    checksum = Checksum(content)
    checksum.begin()            # in a thread; meanwhile something else is done
    checksum.result()

A run larger than memory is read at the disk's speed only if the disk never waits for a product or a product for the
disk. To compute a checksum is to read all bytes once, and other threads work meanwhile: when a scan comes to a
chapter its pages are there, and known to be intact. Merely to ask the system for pages (MADV_WILLNEED) is half as
quick as to touch them in order, which it notices, and then fetches larger and larger pieces ahead.
"""

from contextlib import suppress
from threading import Thread

from dualform.store.checksum import crc32

MIN_BYTES = 1 << 20  # bytes: to begin a thread takes as long as to read a tenth of this


class Checksum:
    """The CRC-32 of some bytes: computed when asked for, or before that once `begin` was called."""

    def __init__(self, content: memoryview) -> None:
        self._content = content
        self._checksum: int | None = None
        self._thread: Thread | None = None

    def begin(self) -> None:
        """Start a thread that the program waits for before it ends, since it reads from a memory map."""
        thread = Thread(target=self._compute, name="dualform-reader")
        with suppress(RuntimeError):  # no more threads, or the interpreter is shutting down
            thread.start()
            self._thread = thread

    def result(self) -> int:
        if self._thread is not None:
            self._thread.join()
        # Not begun, or in a process that was forked since: the thread stayed behind.
        return self._compute() if self._checksum is None else self._checksum

    def _compute(self) -> int:
        self._checksum = crc32(self._content)
        return self._checksum
