"""Implements a world whose ranks are threads of one process: for tests, teaching and notebooks.

Messages pass through mailboxes that belong to one world. Every wait has a deadline, a rank that fails wakes
all the others, and ranks that wait for each other in a circle fail at once.
"""

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from samestep.base.errors import OutOfStep, PeerLost
from samestep.base.place import Place
from samestep.base.polling import holds_within
from samestep.ranks.hang.detection import find_circle
from samestep.ranks.world.operation import COMBINE, Op, check_operation, check_root, finish, headroom
from samestep.ranks.world.process_group import entered
from samestep.ranks.world.protocol import CompletedWork, DeferredWork, DerivedWorld, Work


@dataclass(slots=True)
class _Entry:
    message: object
    taken: bool = False


@dataclass(frozen=True, slots=True)
class _Wait:
    """Wait of a rank: the peer, a description, and a function that returns whether it is over."""

    peer: int
    text: str
    over: Callable[[], bool]


class Hub:
    """Mailboxes between the ranks of one world.

    A rank that waits for another one for `timeout_s` seconds fails.
    """

    def __init__(self, size: int, *, timeout_s: float) -> None:
        self.size = size
        self.timeout_s = timeout_s
        self._boxes: dict[tuple[int, int, str], deque[_Entry]] = defaultdict(deque)
        self._changed = threading.Condition()
        self._waits: dict[int, _Wait] = {}
        self._ended: set[int] = set()
        self._failed: dict[int, BaseException] = {}

    def put(self, source: int, to: int, kind: str, message: object) -> None:
        """Put a message into a mailbox; never blocks."""
        with self._changed:
            self._boxes[source, to, kind].append(_Entry(message))
            self._changed.notify_all()

    def hand_over(self, source: int, to: int, kind: str, message: object) -> None:
        """Put a message into a mailbox, and return once the receiver has taken it.

        Raises:
            PeerLost: `to` failed or ended, or did not take it within the deadline.
            OutOfStep: ranks wait for each other.
        """
        entry = _Entry(message)
        with self._changed:
            self._boxes[source, to, kind].append(entry)
            self._changed.notify_all()
            text = f"rank {source} sends to rank {to} ({kind})"
            self._wait(source, _Wait(to, text, lambda: entry.taken), silent="takes nothing")

    def take(self, source: int, to: int, kind: str) -> Any:
        """Return the oldest message of this kind from `source` to `to`.

        Raises:
            PeerLost: `source` failed or ended, or sent nothing within the deadline.
            OutOfStep: ranks wait for each other.
        """
        with self._changed:
            box = self._boxes[source, to, kind]
            text = f"rank {to} receives from rank {source} ({kind})"
            self._wait(to, _Wait(source, text, lambda: bool(box)), silent="sends nothing")
            entry = box.popleft()
            entry.taken = True
            self._changed.notify_all()
            return entry.message

    def end(self, rank: int) -> None:
        """Wake every waiting rank and mark `rank` as ended."""
        with self._changed:
            self._ended.add(rank)
            self._changed.notify_all()

    def fail(self, rank: int, error: BaseException) -> None:
        """Wake every waiting rank and mark `rank` as failed."""
        with self._changed:
            self._failed.setdefault(rank, error)
            self._changed.notify_all()

    def first_failure(self) -> tuple[int, BaseException] | None:
        """Return the rank that failed first, and its error."""
        return next(iter(self._failed.items()), None)

    def _wait(self, rank: int, wait: _Wait, *, silent: str) -> None:
        deadline = time.monotonic() + self.timeout_s
        self._waits[rank] = wait
        try:
            while not wait.over():
                self._refuse_in_vain(rank, wait, silent)
                left = deadline - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    raise PeerLost(f"{wait.text}, which {silent} for {self.timeout_s:g} s.")
        finally:
            del self._waits[rank]

    def _refuse_in_vain(self, rank: int, wait: _Wait, silent: str) -> None:
        if self._failed:
            failed, error = next(iter(self._failed.items()))
            raise PeerLost(f"rank {rank} waited for rank {wait.peer}, but rank {failed} failed: {error!r}")
        if wait.peer in self._ended:
            raise PeerLost(f"{wait.text}, which {silent}: it has ended.")
        waits = self._waits
        circle = find_circle(rank, {waiting: wait.peer for waiting, wait in waits.items() if not wait.over()})
        if circle:
            raise OutOfStep(
                f"the ranks wait for each other: {', '.join(waits[waiting].text for waiting in circle)}. "
                "World.exchange sends and receives at once."
            )


T = TypeVar("T")


class ThreadWorld(DerivedWorld):
    """One rank of a world whose ranks are threads.

    Collectives gather at rank 0, combine in rank order and copy the result back: slow, simple, and of
    equal bits on all ranks.
    """

    def __init__(self, place: Place, hub: Hub) -> None:
        self.place = place
        self.device = torch.device("cpu")
        self._hub = hub
        self._begun: deque[_AllReduce] = deque()

    @property
    def timeout_s(self) -> float:
        """See `World.timeout_s`."""
        return self._hub.timeout_s

    def send(self, tensor: Tensor, dst: int) -> None:
        """See `World.send`; waits until it is received, as Gloo does."""
        self._hub.hand_over(self.place.rank, dst, "tensor", tensor.detach().clone())

    def recv(self, tensor: Tensor, src: int) -> None:
        """See `World.recv`."""
        message = self._hub.take(src, self.place.rank, "tensor")
        self._same_form(tensor, message, src)
        _overwrite(tensor, message)

    def exchange(
        self, send: Tensor | None, receive: Tensor | None, *, dst: int | None = None, src: int | None = None
    ) -> Work:
        """See `World.exchange`; a message stays in the mailbox until it is waited for, in order."""
        if send is not None and dst is not None:
            self._hub.put(self.place.rank, dst, "tensor", send.detach().clone())
        if receive is None or src is None:
            return CompletedWork()
        return DeferredWork(partial(self.recv, receive, src))

    def all_reduce(self, tensor: Tensor, *, op: Op = "sum") -> None:
        """See `World.all_reduce`."""
        check_operation(op, tensor.dtype)
        room = headroom(op, tensor.dtype, self.place.size)
        tensors = self._exchange(tensor.detach() / room if room > 1 else tensor.detach().clone())
        total = tensors[0].clone()
        for rank, summand in enumerate(tensors[1:], start=1):
            self._same_form(total, summand, rank)
            total = COMBINE[op](total, summand)
        finish(total, op, self.place.size, room)
        _overwrite(tensor, total)

    def all_reduce_later(self, tensor: Tensor) -> Work:
        """See `World.all_reduce_later`; reads and writes `tensor` as late as possible."""
        self._begun.append(_AllReduce(self, tensor))
        return self._begun[-1]

    def finish_through(self, last: "_AllReduce") -> None:
        """Run the all-reduces that were begun, in their order, up to `last`."""
        while last in self._begun:
            begun = self._begun.popleft()
            self.all_reduce(begun.tensor)

    def broadcast(self, tensor: Tensor, src: int = 0) -> None:
        """See `World.broadcast`."""
        check_root(src, self.place.size)
        message = self._from(src, tensor.detach().clone())
        self._same_form(tensor, message, src)
        _overwrite(tensor, message)

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """See `World.all_gather`."""
        tensors: list[Tensor] = self._exchange(tensor.detach().clone())
        for rank, gathered in enumerate(tensors):
            self._same_form(tensor, gathered, rank)
        return [gathered.clone() for gathered in tensors]

    def barrier(self) -> None:
        """See `World.barrier`."""
        self._exchange(None)

    def broadcast_object(self, value: T, src: int = 0) -> T:
        """See `World.broadcast_object`; ranks share the object itself."""
        result: T = self._from(src, value)
        return result

    def all_gather_objects(self, value: T) -> list[T]:
        """See `World.all_gather_objects`; ranks share the objects themselves."""
        return list(self._exchange(value))

    def close(self) -> None:
        """Do nothing: this world has no open resources."""

    def _exchange(self, value: Any) -> list[Any]:
        """Return every rank's value, in rank order, by way of rank 0."""
        me, hub = self.place.rank, self._hub
        if me:
            hub.put(me, 0, "collective", value)
            values: list[Any] = hub.take(0, me, "collective")
            return values
        values = [value, *(hub.take(rank, 0, "collective") for rank in range(1, hub.size))]
        for rank in range(1, hub.size):
            hub.put(0, rank, "collective", values)
        return values

    def _from(self, src: int, value: Any) -> Any:
        """Return rank `src`'s value on every rank."""
        me, hub = self.place.rank, self._hub
        if me != src:
            return hub.take(src, me, "collective")
        for rank in range(hub.size):
            if rank != me:
                hub.put(me, rank, "collective", value)
        return value

    def _same_form(self, expected: Tensor, received: object, rank: int) -> None:
        """Refuse tensors that cannot belong to one collective."""
        form = (
            (tuple(received.shape), received.dtype)
            if isinstance(received, Tensor)
            else type(received).__name__
        )
        wanted = (tuple(expected.shape), expected.dtype)
        if form != wanted:
            raise OutOfStep(
                f"rank {self.place.rank} has a tensor of {wanted}, rank {rank} has {form}: "
                "the ranks are not in the same collective"
            )


class _AllReduce:
    """All-reduce that has begun.

    Its tensor does not change before `wait` is called. A real back end runs at any moment in between;
    the latest moment reveals a buffer that was changed too early.
    """

    def __init__(self, world: ThreadWorld, tensor: Tensor) -> None:
        self.tensor = tensor
        self._world = world

    def wait(self) -> None:
        """See `Work.wait`."""
        self._world.finish_through(self)


def _overwrite(tensor: Tensor, value: Tensor) -> None:
    with torch.no_grad():
        tensor.copy_(value)


def thread_places(size: int, *, nodes: int = 1) -> list[Place]:
    """Return the places of `size` ranks on `nodes` nodes, in blocks; earlier nodes get the larger blocks."""
    sizes = [size // nodes + (node < size % nodes) for node in range(nodes)]
    return [
        Place(
            rank=sum(sizes[:node]) + local,
            size=size,
            local_rank=local,
            local_size=sizes[node],
            node=node,
            nodes=nodes,
            launcher="threads",
        )
        for node in range(nodes)
        for local in range(sizes[node])
    ]


_ENDS_S = 1.0
"""Seconds in which a thread that has been joined leaves the system, also on a busy machine."""


def _is_in_system(thread: threading.Thread) -> bool:
    """Return whether Linux still runs a thread.

    A thread can be joined before torch has freed what it keeps for it. That needs the interpreter's lock, and
    aborts the process if the interpreter ends meanwhile ("terminate called without an active exception").
    """
    return Path(f"/proc/self/task/{thread.native_id}").exists()


def run_ranks(
    fn: Callable[..., T], size: int, *args: Any, nodes: int = 1, timeout_s: float = 30.0
) -> list[T]:
    """Run ``fn(world, *args)`` on `size` threads; return their results in rank order.

    Args:
        fn: called once on each rank, with that rank's `World` first.
        size: number of ranks.
        args: arguments of `fn` after the world, the same on every rank.
        nodes: number of nodes in the places, which exist only there.
        timeout_s: seconds that one rank waits for another.

    Raises:
        BaseException: the error of the rank that failed first, with its rank in a ``__notes__`` entry.
    """
    hub = Hub(size, timeout_s=timeout_s)
    results: list[Any] = [None] * size

    def rank_main(place: Place) -> None:
        world = ThreadWorld(place, hub)
        try:
            with entered(world):
                results[place.rank] = fn(world, *args)
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            hub.fail(place.rank, error)
        else:
            hub.end(place.rank)

    threads = [
        threading.Thread(target=rank_main, args=(place,), name=f"rank {place.rank}", daemon=True)
        for place in thread_places(size, nodes=nodes)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    holds_within(lambda: not any(map(_is_in_system, threads)), _ENDS_S, least_s=0.0002)
    failure = hub.first_failure()
    if failure is not None:
        rank, error = failure
        if hasattr(error, "add_note"):  # Python 3.11
            error.add_note(f"raised on rank {rank} of {size}")
        raise error
    return results
