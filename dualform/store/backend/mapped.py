"""Map files into memory without keeping them open: a run may have more shards than a process may open files.

A map keeps a file's bytes as they were, even if the file is deleted since. Python's `mmap` keeps a descriptor of the
file as well, before Python 3.13; where the C library can be asked, it maps without one.
"""

import ctypes
import mmap
import os
import sys
import weakref

import numpy as np

from dualform.atomic_file import Bytes

if sys.platform != "win32":
    _libc = ctypes.CDLL(None, use_errno=True)
    _libc.mmap.argtypes = (
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
    )  # fmt: skip
    _libc.mmap.restype = ctypes.c_void_p
    _libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    _FAILED = ctypes.c_void_p(-1).value

    class _Pages:
        """Pages of this process's own: writing to them changes no file. Unmapped when nobody refers to them."""

        def __init__(self, handle: int, size: int) -> None:
            address = _libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE, handle, 0)
            if address == _FAILED:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code))
            self.__array_interface__ = {"version": 3, "shape": (size,), "typestr": "|u1", "data": (address, False)}
            # not at exit: a thread may still be reading then, and the system unmaps them anyway
            weakref.finalize(self, _libc.munmap, address, size).atexit = False

    def mapped(handle: int, size: int) -> Bytes:
        """Return the bytes of an open file, which may be closed then: (size,)."""
        return np.asarray(_Pages(handle, size))
else:

    def mapped(handle: int, size: int) -> Bytes:
        """Return the bytes of an open file, which may be closed then: (size,)."""
        return np.frombuffer(mmap.mmap(handle, size, access=mmap.ACCESS_COPY), dtype=np.uint8)
