"""Decompresses gzip and xz up to an expected size, because some kilobytes can expand to gigabytes."""

import gzip
import io
import lzma
import zlib
from collections.abc import Callable

_XZ_MEMORY = 256 << 20
"""Memory limit of the xz decoder in bytes; ``xz -9`` needs 65 MiB, and a file can request 4 GiB."""


class TooLarge(ValueError):  # noqa: N818 - names the fault
    """The decompressed content is larger than expected."""


class Damaged(ValueError):  # noqa: N818 - names the fault
    """The compressed data is truncated or invalid."""


def decompressed(data: bytes, *, most: int) -> bytes:
    """Return `data`, decompressed if it starts with the magic bytes of gzip or xz.

    Args:
        data: the contents of a file.
        most: maximum decompressed bytes.

    Raises:
        TooLarge: it has more.
        Damaged: it cannot be decompressed.
    """
    decode = next((decode for magic, decode in _DECODERS.items() if data.startswith(magic)), _plain)
    try:
        content = decode(data, most + 1)
    except (EOFError, OSError, zlib.error, lzma.LZMAError, MemoryError) as error:
        raise Damaged(str(error)) from None
    if len(content) > most:
        raise TooLarge
    return content


def _plain(data: bytes, most: int) -> bytes:  # noqa: ARG001 - one of the decoders
    return data


def _gzip(data: bytes, most: int) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
        return file.read(most)


def _xz(data: bytes, most: int) -> bytes:
    """Return at most `most` bytes of one or more concatenated streams."""
    content = b""
    while data and len(content) < most:
        decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)
        content += decoder.decompress(data, most - len(content))
        if len(content) < most and not decoder.eof:
            raise EOFError("it ends before the end of its stream")
        data = decoder.unused_data
    return content


_DECODERS: dict[bytes, Callable[[bytes, int], bytes]] = {b"\x1f\x8b": _gzip, b"\xfd7zXZ\x00": _xz}
