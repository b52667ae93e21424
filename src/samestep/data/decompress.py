"""Decompresses gzip and xz up to an expected size and no further: some kilobytes can become gigabytes."""

import gzip
import io
import lzma
import zlib
from collections.abc import Callable

_XZ_MEMORY = 256 << 20
"""Bytes that a decoder of xz may take; ``xz -9`` asks for 65 MiB, and a file can ask for 4 GiB."""


class TooLarge(ValueError):  # noqa: N818 - reads as what was found
    """There is more inside than expected."""


class Damaged(ValueError):  # noqa: N818 - reads as what was found
    """It is cut short, or not what it begins like."""


def decompressed(data: bytes, *, most: int) -> bytes:
    """Return what `data` holds: decompressed if it begins like gzip or xz, else as it is.

    Args:
        data: of a file, whole.
        most: bytes that there may be inside.

    Raises:
        TooLarge: there are more.
        Damaged: they cannot be decompressed.
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
    """Return at most so many bytes of one stream, or of several that follow each other."""
    content = b""
    while data and len(content) < most:
        decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)
        content += decoder.decompress(data, most - len(content))
        if len(content) < most and not decoder.eof:
            raise EOFError("it ends before the end of its stream")
        data = decoder.unused_data
    return content


_DECODERS: dict[bytes, Callable[[bytes, int], bytes]] = {b"\x1f\x8b": _gzip, b"\xfd7zXZ\x00": _xz}
