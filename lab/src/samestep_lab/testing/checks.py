"""Checks user-defined collectives: one function for each kind raises `Nonconforming` with the problems.

The function under test is called on every rank. The names of its parameters select its arguments::

    def all_reduce(tensor, world): ...                    ranks are threads, and World is samestep's
    def all_reduce(tensor, rank, world_size, op): ...     ranks are processes, with torch.distributed and Gloo
    def all_reduce(tensor): ...                           as well

The other names are `src` or `source`, and `dst` or `to`. `op` is the name of an operation if the function
takes a World or the default of `op` is a name; else it is a ``torch.distributed.ReduceOp``. The function
returns its result, or writes it to `tensor`.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from samestep.base.errors import UsageError
from samestep.hooks.registry import Hook, attached, wrapping
from samestep.ranks.world.operation import OPS, Op
from samestep.ranks.world.protocol import RelayedWorld, Work, World
from samestep_lab.testing import judge
from samestep_lab.testing.calls import Call, bind
from samestep_lab.testing.cases import Case, cases
from samestep_lab.testing.judge import Fault, Judge, Problem, Result
from samestep_lab.testing.ranks import Outcome, on_processes, on_threads


class CountingWorld(RelayedWorld):
    """A world that counts the messages of its rank by `send` and `exchange`."""

    def __init__(self, inner: World) -> None:
        super().__init__(inner)
        self.sent = 0
        """Bytes."""
        self.messages = 0

    def send(self, tensor: Tensor, dst: int) -> None:
        """See `World.send`."""
        self.count(tensor)
        super().send(tensor, dst)

    def exchange(
        self, send: Tensor | None, receive: Tensor | None, *, dst: int | None = None, src: int | None = None
    ) -> Work:
        """See `World.exchange`."""
        if send is not None:
            self.count(send)
        return super().exchange(send, receive, dst=dst, src=src)

    def count(self, tensor: Tensor) -> None:
        """Count a tensor that is sent."""
        self.sent += tensor.nbytes
        self.messages += 1


class Nonconforming(AssertionError):  # noqa: N818 - names what the function is
    """A function is not the collective it was checked as; the message lists tensors and problems.

    Args:
        message: for people.
        codes: of all problems, as `samestep_lab.testing.judge.CODES` has them, in the order of the calls.
    """

    __module__ = "samestep_lab.testing"  # a traceback shows the name under which a script imports it

    def __init__(self, message: str, codes: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.codes = tuple(codes)


COUNTED_SEND = Hook(
    "torch.distributed:ProcessGroup", "send", "conformance checks", "the bytes that a rank sends are counted"
)


@contextmanager
def counted_sends() -> Iterator[list[int]]:
    """Collect the bytes of every point-to-point send of ``torch.distributed`` within a block.

    Raises:
        ValueError: there is no rank that a send is to; Gloo would wait for it.
    """
    sent: list[int] = []

    def send(original: Any, group: Any, tensors: list[Tensor], dst: int, *args: Any) -> Any:
        if not 0 <= dst < group.size():
            raise ValueError(f"send to rank {dst}, but the ranks are 0 to {group.size() - 1}")
        sent.append(sum(tensor.nbytes for tensor in tensors))
        return original(group, tensors, dst, *args)

    with attached(COUNTED_SEND, wrapping(send)):
        yield sent


DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64)
SIZES_OF_THREADS = (1, 2, 3, 4, 5, 8)
SIZES_OF_PROCESSES = (1, 2, 3, 4)
_HEADERS = 4096
"""Bytes that a rank may send in addition to tensors."""
_NO_MEAN = "Cannot use ReduceOp.AVG with Gloo"
"""Error of Gloo in older versions of torch, on every rank and before any byte moves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Raises if a function is not the collective of this name."""

    name: str  # of the collective
    judge: Judge  # yields the problems of a call
    # maximum volume that all ranks together send, in sizes of the tensor, by number of ranks
    sends: Callable[[int], float]
    reduces: bool = False  # whether the collective takes an operation
    rooted: bool = False  # whether it takes a rank that others send to, or receive from
    rows: bool = False  # whether its tensor has one row per rank

    def __call__(
        self,
        fn: Callable[..., object],
        world_sizes: Sequence[int] | None = None,
        *,
        ops: Sequence[Op] | None = None,
        processes: bool | None = None,
        any_layout: bool = False,
        sends: Callable[[int], float] | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        """Call `fn` on all ranks with many tensors, and check the results.

        Args:
            fn: the function; the names of its parameters select its arguments.
            world_sizes: numbers of ranks; by default 1 to 5 and 8 threads, or 1 to 4 processes.
            ops: operations; by default those that `fn` declares by ``op: Literal["sum", "mean"]``, all if it
                takes an operation and declares none, else the sum. By default, a mean that `fn` leaves to a
                Gloo without one is skipped with a warning.
            processes: whether ranks are processes; by default if `fn` takes no World.
            any_layout: whether tensors that are not contiguous are tested too.
            sends: maximum volume that one rank sends, in sizes of the tensor, by number of ranks; by default
                only the volume of all ranks together is checked.
            timeout_s: maximum time of a call, in seconds.

        Raises:
            Nonconforming: the function has problems.
            UsageError: `fn` has unknown parameters, or another argument is invalid.
        """
        faults = self.faults(
            fn,
            world_sizes,
            ops=ops,
            processes=processes,
            any_layout=any_layout,
            sends=sends,
            timeout_s=timeout_s,
        )
        if faults:
            lines = [fault.text + f" ({fault.count - 1} more)" * (fault.count > 1) for fault in faults]
            raise Nonconforming(
                "\n  ".join([f"{bind(fn).name} is no {self.name}:", *lines]), [fault.code for fault in faults]
            )

    def faults(
        self,
        fn: Callable[..., object],
        world_sizes: Sequence[int] | None = None,
        *,
        ops: Sequence[Op] | None = None,
        processes: bool | None = None,
        any_layout: bool = False,
        sends: Callable[[int], float] | None = None,
        timeout_s: float = 10.0,
    ) -> list[Fault]:
        """Return the faults of `fn`, the gravest first; the arguments are those of a call of the check.

        Larger worlds are not tested after a deadlock.
        """
        call = bind(fn)
        if processes is None:
            processes = not call.takes("world")
        if world_sizes is None:
            world_sizes = SIZES_OF_PROCESSES if processes else SIZES_OF_THREADS
        may_lack_mean, has_mean = ops is None, True
        if ops is None:
            ops = call.ops if self.reduces and call.takes("op") else ("sum",)
        sizes, ops = _sizes(world_sizes), _ops(ops)
        problems: list[tuple[int, str, Problem]] = []
        for size in sizes:
            tested = list(
                cases(
                    size,
                    ops=ops,
                    dtypes=DTYPES,
                    roots=range(size) if self.rooted and call.takes("root") else (0,),
                    rows=self.rows,
                    any_layout=any_layout,
                )
            )
            tasks = [partial(_called, call, case, may_lack_mean=may_lack_mean) for case in tested]
            if processes:
                all_outcomes = on_processes(tasks, size, timeout_s=timeout_s)
            else:
                all_outcomes = _until_stuck(on_threads(task, size, timeout_s=timeout_s) for task in tasks)
            problems += [
                (size, case.describe(reduces=self.reduces, rooted=self.rooted), problem)
                for case, outcomes in zip(tested, all_outcomes, strict=False)
                for problem in self._problems(case, outcomes, sends)
            ]
            values = [outcome.value for outcomes in all_outcomes for outcome in outcomes]
            has_mean = has_mean and not any(value.lacks_mean for value in values if value is not None)
            if any(outcome.stuck for outcome in all_outcomes[-1]):
                break
        if not has_mean:
            warnings.warn(
                f"mean is not tested: {call.name} passes it to Gloo, which in this torch has none.",
                stacklevel=3,
            )
        return judge.faults(sorted(problems, key=itemgetter(0)))

    def _problems(
        self, case: Case, outcomes: Sequence[Outcome], sends: Callable[[int], float] | None
    ) -> list[Problem]:
        stuck = [f"rank {rank} {outcome.stuck}" for rank, outcome in enumerate(outcomes) if outcome.stuck]
        failed = [f"rank {rank}: {outcome.error}" for rank, outcome in enumerate(outcomes) if outcome.error]
        if failed:
            return [Problem("error", _cause(failed))]
        if stuck:
            ended = len(stuck) < len(outcomes)
            text = "ranks wait for ranks that have ended" if ended else "the ranks wait for each other"
            return [Problem("deadlock", f"{text}: {'; '.join(stuck)}.")]
        results = [outcome.value for outcome in outcomes]
        if any(each.lacks_mean for each in results):
            return []
        problems = list(self.judge(case, results))
        if case.counted:
            problems += self._too_much(case, [each.sent for each in results], sends)
        return problems

    def _too_much(
        self, case: Case, sent: Sequence[int], sends: Callable[[int], float] | None
    ) -> Iterator[Problem]:
        size, nbytes = len(sent), case.inputs[0].nbytes
        busiest, total = max(sent) / nbytes, sum(sent) / nbytes
        if sends is not None and max(sent) > sends(size) * nbytes + _HEADERS:
            rank = sent.index(max(sent))
            text = f"rank {rank} sends {busiest:.2f} times the tensor; {sends(size):.2f} is enough."
            yield Problem("too-much-sent", text)
        most = self.sends(size)
        if sends is None and sum(sent) > most * nbytes + _HEADERS * size:
            text = (
                f"the ranks send {total:.1f} times the tensor in all, and one rank {busiest:.1f} times; "
                f"{most:.1f} in all is enough. Send parts instead of whole tensors, or allow more per rank: "
                "sends=lambda ranks: ..."
            )
            yield Problem("too-much-sent", text)


def _two_but_one(size: int) -> float:
    return 2 * (size - 1)


def _binomial_gather(size: int) -> float:
    return max(size - 1, size * (size - 1).bit_length() / 2)


check_all_reduce = Check(name="all_reduce", judge=judge.all_reduced, sends=_two_but_one, reduces=True)
"""Each rank has the reduction of all tensors, with equal bits."""

check_reduce = Check(
    name="reduce", judge=judge.reduced_to_root, sends=_two_but_one, reduces=True, rooted=True
)
"""The root has the reduction of all tensors; the other ranks' tensors are unchanged."""

check_reduce_scatter = Check(
    name="reduce_scatter", judge=judge.reduce_scattered, sends=_two_but_one, reduces=True, rows=True
)
"""The tensor has one row per rank; rank r has, or returns, the reduction of all rows r."""

check_broadcast = Check(name="broadcast", judge=judge.broadcast, sends=_two_but_one, rooted=True)
"""Each rank has the bits of the root's tensor."""

check_scatter = Check(
    name="scatter", judge=judge.scattered, sends=lambda n: _binomial_gather(n) / n, rooted=True, rows=True
)
"""The tensor has one row per rank; rank r has, or returns, row r of the root's."""

check_gather = Check(name="gather", judge=judge.gathered, sends=_binomial_gather, rooted=True)
"""The root returns all tensors in rank order, as a list or stacked; the inputs are unchanged."""

check_all_gather = Check(name="all_gather", judge=judge.all_gathered, sends=lambda n: n * (n - 1))
"""Each rank returns all tensors in rank order, as a list or stacked; the inputs are unchanged."""


def _sizes(counts: object) -> list[int]:
    sizes = list(counts) if isinstance(counts, Iterable) else []
    if not sizes or not all(isinstance(size, int) and size >= 1 for size in sizes):
        raise UsageError(f"world_sizes is {counts!r}; give numbers of ranks, each 1 or more, such as [2, 4].")
    return sizes


def _ops(operations: object) -> list[Op]:
    ops = list(operations) if isinstance(operations, Iterable) and not isinstance(operations, str) else []
    if not ops or not all(op in OPS for op in ops):
        raise UsageError(f"ops is {operations!r}; give a list of some of {', '.join(OPS)}.")
    return ops


def _until_stuck(calls: Iterable[list[Outcome]]) -> list[list[Outcome]]:
    """Return the outcomes of the calls up to the first that does not end."""
    all_outcomes: list[list[Outcome]] = []
    for outcomes in calls:
        all_outcomes.append(outcomes)
        if any(outcome.stuck for outcome in outcomes):
            break
    return all_outcomes


def _called(call: Call, case: Case, world: World, *, may_lack_mean: bool) -> Result:
    """Call the function on one rank."""
    tensor, counting = case.input(world.place.rank), CountingWorld(world)
    if call.takes("world"):
        returned = call(tensor, world=counting, root=case.root, op=case.op)
        return Result(tensor=tensor, returned=returned, sent=counting.sent)
    try:
        with counted_sends() as sent:
            returned = call(tensor, world=world, root=case.root, op=case.op)
    except RuntimeError as error:
        if may_lack_mean and _NO_MEAN in str(error):
            return Result(tensor=tensor, returned=None, sent=0, lacks_mean=True)
        raise
    return Result(tensor=tensor, returned=returned, sent=sum(sent))


def _cause(failed: list[str]) -> str:
    """Return the first error that is not about a lost connection to another rank."""
    return next((line for line in failed if "PeerLost" not in line and "onnection" not in line), failed[0])
