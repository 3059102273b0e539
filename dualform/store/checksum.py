"""Compute the CRC-32 of bytes, as `zlib.crc32` does, which is the checksum of everything that is stored.

    crc32(array.data)                       # of any buffer, uncopied; other threads work meanwhile
    crc32(second, crc32(first))             # of both, one after the other

Every byte of a run goes through here when it is written, and once when it is read. isal computes the same number
several times quicker; where there is none for a platform, zlib does it.
"""

try:
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

__all__ = ["crc32"]
