"""Shares the memory of tensors between the main rank and the helpers of its host.

The main rank moves the storage of a weight into a file in memory, once. The optimizer then writes where the
helpers read, in whatever way it writes. Helpers map the file privately: what they write stays theirs.

The files have no name and no place in a file system, so they need no room in ``/dev/shm``, which has 64 MB in
a container by default; a helper opens them as ``/proc/<pid>/fd/<number>``.
"""

import ctypes
import mmap
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import finalize

import torch
from torch import Tensor

_NAME = "samestep"
_LINK = f"/memfd:{_NAME}"
"""The begin of the link to a file in memory."""
_LINE = 64
"""Bytes to which storages are aligned: a cache line."""


@dataclass(frozen=True, slots=True)
class MemoryFile:
    """A file in the memory of a process of this host."""

    process: int
    descriptor: int
    size: int
    number: int
    """Unique among the files of the process: descriptors are used again."""

    def opened(self, *, shared: bool = True) -> mmap.mmap:
        """Return the memory; what is written there reaches the file only if it is `shared`.

        Raises:
            OSError: this process may not open the file, or not map so much.
        """
        path = Path(f"/proc/{self.process}/fd/{self.descriptor}")
        if not os.readlink(path).startswith(_LINK):  # noqa: PTH115 - no path
            raise FileNotFoundError(f"{path} is another file")
        with path.open("r+b") as file:
            flags = mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE
            return mmap.mmap(file.fileno(), self.size, flags=flags)

    def close(self) -> None:
        """Close the file, if the script has not closed it; its memory ends with the last view."""
        with suppress(OSError):
            os.close(self.descriptor)


_numbers = iter(range(1, 1 << 62))


def memory_file(size: int) -> MemoryFile:
    """Return a new file of this process, all of whose memory is allocated.

    Raises:
        OSError: the memory does not suffice.
    """
    descriptor = os.memfd_create(_NAME, os.MFD_CLOEXEC)
    try:
        os.posix_fallocate(descriptor, 0, max(size, 1))
    except OSError:
        os.close(descriptor)
        raise
    return MemoryFile(os.getpid(), descriptor, max(size, 1), next(_numbers))


def mapped_file(size: int) -> tuple[MemoryFile, mmap.mmap]:
    """Return a new file of this process, and its memory.

    Raises:
        OSError: the memory does not suffice, or this process has too many files; then there is no new one.
    """
    file = memory_file(size)
    try:
        return file, file.opened()
    except OSError:
        file.close()
        raise


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a tensor in memory: its storage's bytes, and its place in the storage, in elements."""

    begin: int
    nbytes: int
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def of(self, memory: mmap.mmap) -> Tensor:
        """Return the tensor; its storage has only its own bytes."""
        if not self.nbytes:
            return torch.empty(self.shape, dtype=self.dtype, device="cpu")
        held = torch.frombuffer(memory, dtype=torch.uint8, count=self.nbytes, offset=self.begin)
        with torch.inference_mode(mode=False):
            return torch.empty(0, dtype=self.dtype, device="cpu").set_(
                held.untyped_storage(), self.offset, self.shape, self.stride
            )


def memory_of(tensor: Tensor) -> tuple[Any, ...]:
    """Return where a tensor is in memory, and how: ``p.data = p.data.t()`` leaves the address as it is."""
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


@dataclass(frozen=True, slots=True)
class _Moved:
    """The place of a storage in a file."""

    file: MemoryFile
    begin: int


class SharedWeights:
    """The storages of this process's weights that were moved into memory files."""

    def __init__(self) -> None:
        self._moved: dict[int, _Moved] = {}
        """By the address of a storage."""
        self._mapped: dict[int, int] = {}
        """The size of each mapping, by its address."""
        self._copies: list[tuple[int, bytes]] = []
        os.register_at_fork(before=self._copy, after_in_parent=self._forget, after_in_child=self._separate)

    def place_of(self, tensor: Tensor) -> Place | None:
        """Return the place of a shared tensor; None if its storage is not shared."""
        storage = tensor.untyped_storage()
        moved = self._moved.get(storage.data_ptr())
        if moved is None:
            return None
        shape, stride = tuple(tensor.shape), tuple(tensor.stride())
        return Place(moved.begin, storage.nbytes(), tensor.dtype, int(tensor.storage_offset()), shape, stride)

    def file_of(self, tensor: Tensor) -> MemoryFile:
        """Return the file of a shared tensor."""
        return self._moved[tensor.untyped_storage().data_ptr()].file

    def number_of(self, tensor: Tensor) -> int:
        """Return the number of the file of a tensor; 0 if it is not shared."""
        moved = self._moved.get(tensor.untyped_storage().data_ptr())
        return 0 if moved is None else moved.file.number

    def share(self, tensors: Iterable[Tensor]) -> None:
        """Move the storages of these tensors of the host into a memory file, as far as it can be done.

        A storage stays where it is if other tensors than these use it, or NumPy or another process: they
        would be left behind. All stay if there is no memory.
        """
        by_storage: dict[int, list[Tensor]] = {}
        for tensor in tensors:
            if tensor.device.type == "cpu" and tensor.layout is torch.strided and not tensor.is_quantized:
                by_storage.setdefault(tensor.untyped_storage().data_ptr(), []).append(tensor)
        movable = [
            users
            for pointer, users in by_storage.items()
            if pointer and pointer not in self._moved and _is_movable(users)
        ]
        if movable:
            self._move(movable)

    def _move(self, storages: Sequence[Sequence[Tensor]]) -> None:
        begins, end = [], 0
        for users in storages:
            begins.append(end)
            end += -(-users[0].untyped_storage().nbytes() // _LINE) * _LINE
        try:
            file, memory = mapped_file(end)
        except OSError:
            return
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        pointers = []
        with torch.no_grad(), torch.inference_mode(mode=False):
            for begin, users in zip(begins, storages, strict=True):
                before = users[0].untyped_storage()
                for tensor in users:
                    shape, stride = tuple(tensor.shape), tuple(tensor.stride())
                    offset = int(tensor.storage_offset())
                    moved = Place(begin, before.nbytes(), tensor.dtype, offset, shape, stride).of(memory)
                    if tensor is users[0]:
                        moved.untyped_storage().copy_(before, non_blocking=False)
                    tensor.data = moved
                pointers.append(address + begin)
                self._moved[address + begin] = _Moved(file, begin)
        self._mapped[address] = file.size
        # The file ends with the last of its storages.
        finalize(memory, self._end, file, address, pointers)

    def _end(self, file: MemoryFile, address: int, pointers: Sequence[int]) -> None:
        for pointer in pointers:
            self._moved.pop(pointer, None)
        self._mapped.pop(address, None)
        if file.process == os.getpid():
            file.close()

    def _copy(self) -> None:
        """Copy the weights before a fork: a child has those of this moment, not the parent's later ones."""
        self._copies = [(address, ctypes.string_at(address, size)) for address, size in self._mapped.items()]

    def _forget(self) -> None:
        self._copies = []

    def _separate(self) -> None:
        """Replace the shared memory by memory of this process, at the same addresses."""
        for address, content in self._copies:
            _map_own_memory(address, len(content))
            ctypes.memmove(address, content, len(content))
        self._copies = []


def _is_movable(tensors: Sequence[Tensor]) -> bool:
    """Return whether only these tensors use their storage, and torch has allocated it."""
    storage = tensors[0].untyped_storage()
    if tensors[0].is_inference() or storage.is_shared() or not storage.resizable():
        return False
    if _references(tensors[0]) > _references(torch.empty(1, device="cpu")) + 1:  # `storage` itself is one
        return False
    count = getattr(torch._C, "_storage_Use_Count", None)  # noqa: SLF001 - no public spelling
    if count is None:  # a build of torch 2.6 without CUDA
        return False
    return bool(count(storage._cdata) - 1 == len(tensors))  # noqa: SLF001 - `storage` itself is one


def _references(tensor: Tensor) -> int:
    """Return the references to the Python object of a storage, which the script may have."""
    return sys.getrefcount(tensor.untyped_storage())


def _map_own_memory(address: int, size: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (
        *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long),
    )
    fixed = 0x10  # MAP_FIXED of Linux
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | fixed
    if libc.mmap(address, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0) != address:
        raise OSError(ctypes.get_errno(), "a forked process cannot have memory of its own")
