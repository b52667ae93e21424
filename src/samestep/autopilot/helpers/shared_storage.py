"""Shares the memory of tensors between the main rank and the helpers of its host.

The main rank moves the storage of a weight into a file in memory, once. The optimizer then writes where the
helpers read, in whatever way it writes. Helpers map the file privately: what they write stays theirs.

The files have no name and no place in a file system, so they need no room in ``/dev/shm``, which has 64 MB in
a container by default; a helper opens them as ``/proc/<pid>/fd/<number>``.
"""

import ctypes
import mmap
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import finalize

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class MemoryFile:
    """A file in the memory of a process of this host."""

    process: int
    descriptor: int
    size: int
    number: int
    """Unique among the files of the process: descriptors are used again."""

    @property
    def path(self) -> str:
        """The path under which processes of this host open it."""
        return f"/proc/{self.process}/fd/{self.descriptor}"

    def opened(self) -> mmap.mmap:
        """Return the memory as bytes that all processes share.

        Raises:
            OSError: this process may not open the file, or not map so much.
        """
        with Path(self.path).open("r+b") as file:
            return mmap.mmap(file.fileno(), self.size)

    def mapped(self, *, shared: bool) -> torch.UntypedStorage:
        """Return the memory; what is written there reaches the file only if it is `shared`.

        Raises:
            OSError: this process may not open the file, or not map so much.
        """
        try:
            mapped: Any = torch.UntypedStorage.from_file(self.path, shared, self.size)
        except RuntimeError as error:
            raise OSError(f"cannot map memory of process {self.process}: {error}") from error
        storage: torch.UntypedStorage = mapped
        return storage


_numbers = iter(range(1, 1 << 62))


def memory_file(size: int) -> MemoryFile:
    """Return a new file of this process, all of whose memory is allocated.

    Raises:
        OSError: the memory does not suffice.
    """
    descriptor = os.memfd_create("samestep", os.MFD_CLOEXEC)
    try:
        os.posix_fallocate(descriptor, 0, max(size, 1))
    except OSError:
        os.close(descriptor)
        raise
    return MemoryFile(os.getpid(), descriptor, max(size, 1), next(_numbers))


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a tensor in a memory file, in elements; and its type."""

    number: int
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def of(self, storage: torch.UntypedStorage) -> Tensor:
        """Return the tensor."""
        return torch.empty(0, dtype=self.dtype, device="cpu").set_(
            storage, self.offset, self.shape, self.stride
        )


class SharedWeights:
    """The storages of this process's weights that were moved into memory files."""

    def __init__(self) -> None:
        self._by_pointer: dict[int, MemoryFile] = {}
        os.register_at_fork(before=self._copy, after_in_parent=self._forget, after_in_child=self._separate)
        self._copies: list[tuple[int, bytes]] = []

    def place_of(self, tensor: Tensor) -> Place | None:
        """Return the place of a shared tensor; None if its storage is not shared."""
        file = self._by_pointer.get(tensor.untyped_storage().data_ptr())
        if file is None:
            return None
        return Place(
            file.number,
            tensor.dtype,
            int(tensor.storage_offset()),
            tuple(tensor.shape),
            tuple(tensor.stride()),
        )

    def file_of(self, tensor: Tensor) -> MemoryFile:
        """Return the file of a shared tensor."""
        return self._by_pointer[tensor.untyped_storage().data_ptr()]

    def share(self, tensors: Iterable[Tensor]) -> None:
        """Move the storages of these tensors of the host into memory files, as far as it can be done.

        A storage stays where it is if other tensors than these use it: they would be left behind. So does one
        for which there is no memory.
        """
        by_storage: dict[int, list[Tensor]] = {}
        for tensor in tensors:
            if tensor.device.type == "cpu" and tensor.layout is torch.strided and not tensor.is_quantized:
                by_storage.setdefault(tensor.untyped_storage().data_ptr(), []).append(tensor)
        for pointer, own in by_storage.items():
            if pointer and pointer not in self._by_pointer and _users(own[0]) == len(own):
                self._move(own)

    def _move(self, tensors: Sequence[Tensor]) -> None:
        before = tensors[0].untyped_storage()
        try:
            file = memory_file(before.nbytes())
            storage = file.mapped(shared=True)
        except OSError:
            return
        storage.copy_(before, non_blocking=False)
        with torch.no_grad():
            for tensor in tensors:
                moved = torch.empty(0, dtype=tensor.dtype, device="cpu").set_(
                    storage, tensor.storage_offset(), tensor.shape, tensor.stride()
                )
                tensor.data = moved
        pointer = storage.data_ptr()
        self._by_pointer[pointer] = file
        # The storage ends with its last tensor; its file, and the number under which helpers know it, too.
        finalize(storage, self._end, pointer)

    def _end(self, pointer: int) -> None:
        file = self._by_pointer.pop(pointer)
        if file.process == os.getpid():
            os.close(file.descriptor)

    def _copy(self) -> None:
        """Copy the weights before a fork: a child has those of this moment, not the parent's later ones."""
        self._copies = [
            (pointer, ctypes.string_at(pointer, file.size)) for pointer, file in self._by_pointer.items()
        ]

    def _forget(self) -> None:
        self._copies = []

    def _separate(self) -> None:
        """Replace the shared memory by memory of this process, at the same addresses."""
        for pointer, content in self._copies:
            _map_own_memory(pointer, len(content))
            ctypes.memmove(pointer, content, len(content))
        self._copies = []


def _map_own_memory(pointer: int, size: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (
        *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long),
    )
    fixed = 0x10  # MAP_FIXED of Linux
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | fixed
    if libc.mmap(pointer, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0) != pointer:
        raise OSError(ctypes.get_errno(), "a forked process cannot have memory of its own")


def _users(tensor: Tensor) -> int:
    """Return the number of tensors that use a tensor's storage."""
    storage = tensor.untyped_storage()
    count: int = torch._C._storage_Use_Count(storage._cdata)  # noqa: SLF001 - no public spelling
    return count - 1  # of `storage` itself
