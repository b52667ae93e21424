"""Carries messages from the main rank to the helpers of its host: a header, and tensors beside it.

The main rank writes a message into a memory file, and signals the helpers; it writes the next one when all
have read it. A helper sleeps until the next message comes, which may take hours, and ends with the main rank.
"""

import mmap
import struct
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from samestep.autopilot.helpers.mirrors import MirrorError
from samestep.autopilot.helpers.pickling import pickled, scripts_modules_by_value, unpickled
from samestep.autopilot.helpers.shared_storage import MemoryFile, Place, mapped_file
from samestep.autopilot.state.reachable_state import PLAIN
from samestep.ranks.collectives.semaphores import SIZE, Process, Semaphores

T = TypeVar("T")
_LINE = 64
"""Bytes to which tensors are aligned: a cache line."""
_SHORT_S = 0.002
"""Seconds up to which a helper polls for the next message if its last wait there was as short: a guess, less
than the time for which semaphores poll."""
_LEAST = 1 << 20
"""Bytes of the smallest file: a guess, so that few calls need a larger one."""


@dataclass(frozen=True, slots=True)
class RowsOfTensor:
    """The rows of a tensor: `every` positions along `dim` for each sample."""

    dim: int
    every: int = 1

    def of(self, samples: range) -> tuple[int, int, int]:
        """Return the dimension, the first and the number of the rows of consecutive samples."""
        return self.dim, samples.start * self.every, len(samples) * self.every


@dataclass(frozen=True, slots=True)
class Rows:
    """The tensors of a message of which each helper reads the rows of its samples only."""

    of_tensors: Mapping[int, RowsOfTensor]
    """By the id of each of these tensors."""
    shares: Sequence[range]
    """The samples of each rank."""

    def of_helpers(self, tensor: Tensor) -> tuple[int, int, int] | None:
        """Return the dimension, the first and the number of the rows that helpers read; None for all."""
        rows = self.of_tensors.get(id(tensor))
        return None if rows is None else rows.of(range(self.shares[1].start, self.shares[-1].stop))


def form_of(value: Any, tensors: list[Tensor]) -> Any:
    """Return what values have in common with others of the same form; collect their tensors.

    None if they hold objects whose contents are unknown.
    """
    if type(value) in (Tensor, nn.Parameter) and value.layout is torch.strided:
        tensors.append(value)
        return value.device, value.dtype, tuple(value.shape), value.stride(), value.requires_grad
    if type(value) in PLAIN or isinstance(value, Enum):  # an object of a derived class may have attributes
        return type(value), value or repr(value)  # -0.0 equals 0.0
    if type(value) in (tuple, list, dict):
        parts = value.items() if type(value) is dict else enumerate(value)
        forms = [(key, form_of(part, tensors)) for key, part in parts]
        return None if any(form is None for _, form in forms) else (type(value), *forms)
    return None


class Line(Protocol):
    """The main rank's side of the connections to its helpers."""

    def send(self, message: Any, *, key: Hashable = None, rows: Rows | None = None) -> None:
        """Send a message to all helpers, which keep it under a key, if there is one.

        Raises:
            Exception: a value cannot be pickled; then nothing has been sent.
            OSError: the memory does not suffice; then nothing has been sent.
            PeerLost: a helper is lost.
        """

    def repeat(self, key: Hashable, tensors: Sequence[Tensor], call: int, released: Sequence[int]) -> bool:
        """Send a message again, with other tensors in its place; return False if it is not known."""

    def collect(self) -> str:
        """Wait until all helpers have answered the last message; return the error of one, or nothing.

        Raises:
            PeerLost: a helper has died, or does not answer in time.
        """


class LineOfHelper(Protocol):
    """A helper's side of the connection to the main rank."""

    def receive(self) -> Any:
        """Return the next message; its tensors are valid until the next one.

        Raises:
            PeerLost: the main rank has died.
        """

    def answer(self, error: str = "") -> None:
        """Answer that the last message was carried out, or why it was not."""

    def close(self) -> None:
        """Leave the team, after its end."""


def is_plain(tensor: Tensor) -> bool:
    """Return whether a tensor is carried beside a message; others are pickled with it."""
    is_dense = type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided
    return is_dense and not tensor.is_quantized


@dataclass(frozen=True, slots=True)
class InMessage:
    """A tensor in the memory file of a message."""

    place: Place
    requires_grad: bool


class _MessageFile:
    """The memory file of the main rank into which it writes its messages; it grows with them."""

    def __init__(self) -> None:
        self._open(_LEAST)

    def _open(self, size: int) -> None:
        self.file, self._memory = mapped_file(size)
        with torch.inference_mode(mode=False):  # it is also written to outside of inference mode
            self._bytes = torch.frombuffer(self._memory, dtype=torch.uint8)

    def put(self, value: Any) -> tuple[int, int, list[tuple[Place, Tensor]]]:
        """Write a message; return the bounds of its header, and the tensors before it with their places."""
        tensors: list[tuple[Place, Tensor]] = []
        end = 0

        def reference(tensor: Tensor) -> Any:
            nonlocal end
            if not is_plain(tensor) or tensor.device.type != "cpu":
                return None  # pickled as it is
            place, end = _placed(tensor, end)
            tensors.append((place, tensor))
            return InMessage(place, tensor.requires_grad)

        header = bytearray(pickled(value, reference))
        if end + len(header) > self.file.size:
            before = self.file
            self._open(2 * (end + len(header)))  # if that fails, the smaller file is still in use
            before.close()
        with torch.no_grad(), torch.inference_mode(mode=False):
            for place, tensor in tensors:
                place.of(self._memory).copy_(tensor.detach())
            self._bytes[end : end + len(header)] = torch.frombuffer(header, dtype=torch.uint8)
        return end, end + len(header), tensors

    def put_again(self, parts: "Sequence[_Part]", tensors: Sequence[Tensor]) -> None:
        """Overwrite what helpers read of the tensors of a message."""
        with torch.no_grad(), torch.inference_mode(mode=False):
            for part, tensor in zip(parts, tensors, strict=True):
                part.memory.copy_(tensor if part.rows is None else tensor.narrow(*part.rows))

    def parts(self, tensors: Sequence[tuple[Place, Tensor]], rows: Rows | None) -> "list[_Part]":
        """Return the parts of tensors at some places that helpers read."""
        parts: list[_Part] = []
        for place, tensor in tensors:
            memory, of_helpers = place.of(self._memory), None if rows is None else rows.of_helpers(tensor)
            parts.append(_Part(memory if of_helpers is None else memory.narrow(*of_helpers), of_helpers))
        return parts


def _placed(tensor: Tensor, end: int) -> tuple[Place, int]:
    """Return the place of a tensor behind the bytes that are taken, and the bytes then taken."""
    begin = -(-end // _LINE) * _LINE
    size = tensor.element_size()
    like = torch.empty_like(tensor, device="meta")  # dense, with the tensor's order of dimensions
    nbytes = like.numel() * size
    return Place(begin, nbytes, tensor.dtype, 0, tuple(like.shape), tuple(like.stride())), begin + nbytes


_WORDS = struct.Struct("=8q")
"""The present message: the descriptor, size and number of its file; the bounds of its header; the slot under
which it is kept, or that of an earlier message that it repeats; the number of its call; the number of calls
that it releases."""
MOST_RELEASED = 32
"""Calls that a repeated message releases at most: a guess, as the two numbers below."""
_RELEASED = struct.Struct(f"={MOST_RELEASED}q")
_ANSWER = 1024
"""Bytes for the answer of each helper, the message of an error, which is cut there."""
_SLOTS = 256
"""Messages that are kept to be repeated."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A tensor of a message, or its rows that helpers read."""

    memory: Tensor
    rows: tuple[int, int, int] | None
    """The dimension, the first and the number of its rows; None for all of it."""


@dataclass(frozen=True, slots=True)
class _Repeatable:
    """A message that helpers have kept: repeated, it has other tensors and another number."""

    file: int
    parts: Sequence[_Part]


class KeptMessages(Generic[T]):
    """The last messages that can be repeated: the main rank's record of what its helpers have kept.

    Args:
        slots: the number of messages; a newer one takes the slot of the oldest.
    """

    def __init__(self, slots: int) -> None:
        self._slots, self._count = slots, -1
        self._by_key: dict[Hashable, tuple[int, T]] = {}
        self._keys: dict[int, Hashable] = {}

    def keep(self, key: Hashable, record: T) -> int:
        """Keep the record of a message under its key; return the slot in which helpers keep the message."""
        slot = self._count = (self._count + 1) % self._slots
        self._by_key.pop(self._keys.get(slot), None)
        self._keys[slot] = key
        self._by_key[key] = slot, record
        return slot

    def find(self, key: Hashable) -> tuple[int, T] | None:
        """Return the slot and the record of a message; None if it is not kept."""
        return self._by_key.get(key)


class _Line:
    """The semaphores and the shared bytes that both sides have."""

    def __init__(self, memory: mmap.mmap, processes: Sequence[Process], *, rank: int) -> None:
        size = len(processes)
        begin = SIZE * size * size
        self._memory, self._words = memory, begin
        self._releases = begin + _WORDS.size
        self._answers = self._releases + _RELEASED.size
        self._semaphores = Semaphores(memory, processes, rank=rank, may_spin=True, timeout_s=float("inf"))
        self._rank, self._helpers, self._processes = rank, range(1, size), processes


def bytes_of_line(size: int) -> int:
    """Return the bytes of shared memory that the messages of `size` ranks need."""
    return SIZE * size * size + _WORDS.size + _RELEASED.size + _ANSWER * size


class MainLine(_Line):
    """The main rank's side."""

    def __init__(self, memory: mmap.mmap, processes: Sequence[Process], *, timeout_s: float) -> None:
        super().__init__(memory, processes, rank=0)
        self._timeout_s = timeout_s
        self._file = _MessageFile()
        self._kept: KeptMessages[_Repeatable] = KeptMessages(_SLOTS)

    def close(self) -> None:
        """Close the file of messages."""
        self._file.file.close()

    def send(self, message: Any, *, key: Hashable = None, rows: Rows | None = None) -> None:
        """See `Line.send`; all helpers read the memory in which all rows are, or in repeated ones theirs."""
        begin, end, tensors = self._file.put(message)
        file, slot = self._file.file, -1
        if key is not None:
            slot = self._kept.keep(key, _Repeatable(file.number, self._file.parts(tensors, rows)))
        self._signal(file.descriptor, file.size, file.number, begin, end, slot, 0, 0)

    def repeat(self, key: Hashable, tensors: Sequence[Tensor], call: int, released: Sequence[int]) -> bool:
        """See `Line.repeat`."""
        kept = self._kept.find(key)
        if kept is None or kept[1].file != self._file.file.number or len(released) > MOST_RELEASED:
            return False
        slot, known = kept
        self._file.put_again(known.parts, tensors)
        if released:
            padded = [*released, *[0] * (MOST_RELEASED - len(released))]
            _RELEASED.pack_into(self._memory, self._releases, *padded)
        self._signal(0, 0, known.file, 0, 0, slot, call, len(released))
        return True

    def _signal(self, *words: int) -> None:
        _WORDS.pack_into(self._memory, self._words, *words)
        for rank in self._helpers:
            self._semaphores.signal(rank)

    def collect(self) -> str:
        """See `Line.collect`."""
        error = ""
        for rank in self._helpers:
            self._semaphores.await_signal(rank, timeout_s=self._timeout_s)
            begin = self._answers + _ANSWER * rank
            if self._memory[begin]:
                error = self._memory[begin : begin + _ANSWER].rstrip(bytes(1)).decode(errors="replace")
        return error


class HelperLine(_Line):
    """A helper's side."""

    def __init__(self, memory: mmap.mmap, processes: Sequence[Process], *, rank: int) -> None:
        super().__init__(memory, processes, rank=rank)
        self._files: dict[int, mmap.mmap] = {}
        self._kept: dict[int, Any] = {}
        self._last: type = type(None)
        """The type of the last message."""
        self._are_slow: set[type] = set()
        """The types of messages after which the last wait was a long one, such as that for the next batch."""

    def receive(self) -> Any:
        """See `LineOfHelper.receive`; the tensors are views of the memory file."""
        self._wait()
        message = self._read()
        self._last = type(message)
        return message

    def _wait(self) -> None:
        """Wait for the next message; a wait that will be long takes no time of a core from others."""
        began = time.monotonic()
        self._semaphores.await_signal(0, polls=self._last not in self._are_slow)
        if time.monotonic() - began < _SHORT_S:
            self._are_slow.discard(self._last)
        else:
            self._are_slow.add(self._last)

    def _read(self) -> Any:
        words = _WORDS.unpack_from(self._memory, self._words)
        descriptor, size, number, begin, end, slot, call, released = words
        if not end:
            of_calls = _RELEASED.unpack_from(self._memory, self._releases)[:released] if released else ()
            return replace(self._kept[slot], call=call, released=of_calls)
        if number not in self._files:
            self._files.clear()
            file = MemoryFile(self._processes[0][0], descriptor, size, number)
            self._files[number] = file.opened()
        memory = self._files[number]
        header = memory[begin:end]

        def tensor_of(reference: InMessage) -> Tensor:
            return reference.place.of(memory).requires_grad_(reference.requires_grad)

        message = unpickled(header, tensor_of)
        if slot >= 0:
            self._kept[slot] = message
        return message

    def answer(self, error: str = "") -> None:
        """See `LineOfHelper.answer`."""
        begin, text = self._answers + _ANSWER * self._rank, error.encode()[:_ANSWER]
        self._memory[begin : begin + _ANSWER] = text.ljust(_ANSWER, bytes(1))
        self._semaphores.signal(0)

    def close(self) -> None:
        """See `LineOfHelper.close`; the memory ends with the processes."""


@dataclass(frozen=True, slots=True)
class SentArguments:
    """Arguments with objects of unknown contents, pickled apart from their message, so that it can be read.

    Some objects can be pickled, but not made again: an exception or a tuple whose class requires other
    arguments than it stores. A helper then reports this error, and the main rank computes the call.
    """

    content: bytes
    tensors: list[Tensor]
    """Their tensors, which are sent like those of other messages."""


def sent(arguments: Any) -> Any:
    """Return the arguments of a call as a message holds them: as they are if all their parts are known.

    Raises:
        MirrorError: an object cannot be pickled.
    """
    if form_of(arguments, []) is not None:
        return arguments
    places: dict[int, int] = {}
    tensors: list[Tensor] = []

    def refer(tensor: Tensor) -> int:
        if id(tensor) not in places:
            places[id(tensor)] = len(tensors)
            tensors.append(tensor)
        return places[id(tensor)]

    try:
        with scripts_modules_by_value():
            return SentArguments(pickled(arguments, refer), tensors)
    except Exception as error:  # noqa: BLE001 - of any object of the script
        raise MirrorError(f"its arguments cannot be sent to helpers ({type(error).__name__})") from None


def received(arguments: Any) -> Any:
    """Return the arguments of a call from those of its message.

    Raises:
        Exception: an object cannot be made again.
    """
    if isinstance(arguments, SentArguments):
        return unpickled(arguments.content, arguments.tensors.__getitem__)
    return arguments
