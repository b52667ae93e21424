"""Restricts the sources from which a listening TCP socket accepts connections, by a filter in the kernel.

Any user may attach such a filter to a socket. The kernel drops a packet that the filter rejects, and the
other end's kernel sends it again after a second. Existing connections keep the filter they were created with.
"""

import ctypes
import os
import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from samestep.base.machine.kernel_files import text_of

_SO_ATTACH_FILTER = 26
_INSTRUCTION = struct.Struct("=HBBI")
_LOAD_HALF, _LOAD_WORD, _JUMP_EQUAL, _RETURN = 0x28, 0x20, 0x15, 0x06
_NETWORK_HEADER = 0xFFF00000
_END_OF_SOURCE = {socket.AF_INET: 12, socket.AF_INET6: 20}
"""Offset of the last four bytes of a packet's source address."""
_WHOLE, _NOTHING = 0xFFFFFFFF, 0
_SYN_SENT = "02"
_LIBRARY = ctypes.CDLL(None)


@dataclass(frozen=True, slots=True, order=True)
class Source:
    """Source of a connection."""

    host: bytes  # the last four bytes of its address
    port: int  # its port


def admit(listener: socket.socket, sources: Iterable[Source]) -> None:
    """Make a listening socket accept connections from these sources only; with none, from no source.

    Raises:
        OSError: the kernel has no such filters.
    """
    program = b""
    at = _NETWORK_HEADER + _END_OF_SOURCE[socket.AddressFamily(listener.family)]
    for source in sorted(set(sources)):
        (host,) = struct.unpack("!I", source.host)
        program += _INSTRUCTION.pack(_LOAD_HALF, 0, 0, 0)  # the port, with which the TCP header begins
        program += _INSTRUCTION.pack(_JUMP_EQUAL, 0, 3, source.port)
        program += _INSTRUCTION.pack(_LOAD_WORD, 0, 0, at)
        program += _INSTRUCTION.pack(_JUMP_EQUAL, 0, 1, host)
        program += _INSTRUCTION.pack(_RETURN, 0, 0, _WHOLE)
    program += _INSTRUCTION.pack(_RETURN, 0, 0, _NOTHING)
    buffer = ctypes.create_string_buffer(program, len(program))
    described = struct.pack("HP", len(program) // _INSTRUCTION.size, ctypes.addressof(buffer))
    listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, described)


def own_listeners() -> Iterator[socket.socket]:
    """Yield duplicates of this process's listening TCP sockets; the caller closes them."""
    for entry in Path("/proc/self/fd").iterdir():
        file = int(entry.name)
        if not _listens(file):
            continue
        with suppress(OSError):  # it has been closed
            found = socket.socket(fileno=os.dup(file))
            if found.family in _END_OF_SOURCE:
                yield found
            else:
                found.close()


def own_attempts() -> set[Source]:
    """Return the sources of this process's unanswered connection attempts."""
    own = _own_sockets()
    found = set()
    for table in ("tcp", "tcp6"):
        for line in text_of(Path(f"/proc/self/net/{table}")).splitlines()[1:]:
            fields = line.split()
            if fields[3] == _SYN_SENT and f"socket:[{fields[9]}]" in own:
                host, _, port = fields[1].partition(":")
                found.add(Source(struct.pack("=I", int(host[-8:], 16)), int(port, 16)))
    return found


def _own_sockets() -> dict[str, int]:
    """Return the descriptors of this process's sockets, by their names."""
    found = {}
    for file in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            target = str(file.readlink())
            if target.startswith("socket:"):
                found[target] = int(file.name)
    return found


def _listens(file: int) -> bool:
    # Not by a socket object: with a default timeout, making one changes how the file blocks. Any other file
    # has no such option, and to ask for it is several times as fast as to read what the file is.
    value, size = ctypes.c_int(0), ctypes.c_uint(ctypes.sizeof(ctypes.c_int))
    got = _LIBRARY.getsockopt(
        file, socket.SOL_SOCKET, socket.SO_ACCEPTCONN, ctypes.byref(value), ctypes.byref(size)
    )
    return got == 0 and bool(value.value)
