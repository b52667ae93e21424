"""Does a collective do what it is named after? One function for each; they raise if it does not, and say why.

A function under test is called on every rank, and tells by the names of its parameters what it wants::

    def all_reduce(tensor, world): ...                    ranks are threads, and World is samestep's
    def all_reduce(tensor, rank, world_size, op): ...     ranks are processes, with torch.distributed and Gloo
    def all_reduce(tensor): ...                           so too

The other names are `src` or `source`, and `dst` or `to`. `op` is the name of an operation for who takes a
World, or has a name as its default; else a ``torch.distributed.ReduceOp``. A result is returned, or takes the
place of `tensor`.
"""

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from samestep.base.errors import UsageError
from samestep.testing import judge
from samestep.testing.calls import Call, understood
from samestep.testing.cases import Case, cases
from samestep.testing.counting import CountingWorld, counted_sends
from samestep.testing.judge import Judge, Seen
from samestep.testing.ranks import Outcome, on_processes, on_threads
from samestep.world.operation import OPS, Op
from samestep.world.world import World

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64)
SIZES_OF_THREADS = (1, 2, 3, 4, 5, 8)
SIZES_OF_PROCESSES = (1, 2, 3, 4)
_HEADERS = 4096
"""Bytes that a rank may send besides tensors."""
_TOLD = 5
"""How many problems are told at once."""
_NO_MEAN = "Cannot use ReduceOp.AVG with Gloo"
"""What Gloo says in older versions of torch, on every rank and before anything moves."""


class Nonconforming(AssertionError):  # noqa: N818 - reads as what the function is
    """A collective does not do what it is named after; the message says with which tensors, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Raises if a function is not the collective of this name.

    Args:
        name: of the collective.
        judge: says what is wrong with a call.
        sends: how many tensors all ranks together send at most, by their number.
        reduces: whether it takes an operation.
        rooted: whether it takes a rank that others send to, or receive from.
        rows: whether its tensor has one row for each rank.
    """

    name: str
    judge: Judge
    sends: Callable[[int], float]
    reduces: bool = False
    rooted: bool = False
    rows: bool = False

    def __call__(
        self,
        fn: Callable[..., object],
        world_sizes: Sequence[int] | None = None,
        *,
        ops: Sequence[Op] | None = None,
        processes: bool | None = None,
        sends: Callable[[int], float] | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        """Call `fn` on all ranks, many times, and look at what comes of it.

        Args:
            fn: the function; its parameters are understood by their names.
            world_sizes: numbers of ranks; by default 1 to 5 and 8 threads, or 1 to 4 processes.
            ops: what to reduce with: by default all operations if `fn` takes one, else the sum. Where `fn`
                then leaves the mean to a Gloo that has none, a warning says so.
            processes: whether ranks are processes; by default where `fn` takes no World.
            sends: how many times the tensor the busiest rank may send, by the number of ranks; by default all
                together may send what the simple algorithms do.
            timeout_s: how long a call may take.

        Raises:
            Nonconforming: it is not what it is named after.
            UsageError: it has parameters that nothing is known for, or the others make no sense.
        """
        call = understood(fn)
        if processes is None:
            processes = not call.takes("world")
        if world_sizes is None:
            world_sizes = SIZES_OF_PROCESSES if processes else SIZES_OF_THREADS
        may_lack_mean, has_mean = ops is None, True
        if ops is None:
            ops = OPS if self.reduces and call.takes("op") else ("sum",)
        sizes, ops = _sizes(world_sizes), _ops(ops)
        for size in sizes:
            tried = list(
                cases(
                    size,
                    ops=ops,
                    dtypes=DTYPES,
                    roots=range(size) if self.rooted and call.takes("root") else (0,),
                    rows=self.rows,
                )
            )
            tasks = [partial(_seen, call, case, may_lack_mean=may_lack_mean) for case in tried]
            if processes:
                found = on_processes(tasks, size, timeout_s=timeout_s)
            else:
                found = [on_threads(task, size, timeout_s=timeout_s) for task in tasks]
            self._refuse(call, tried, found, sends)
            has_mean = has_mean and not any(one.value.lacks_mean for outcomes in found for one in outcomes)
        if not has_mean:
            warnings.warn(
                f"mean is not tried: {call.name} leaves it to Gloo, which in this torch has none.",
                stacklevel=2,
            )

    def _refuse(
        self,
        call: Call,
        tried: Sequence[Case],
        found: Sequence[Sequence[Outcome]],
        sends: Callable[[int], float] | None,
    ) -> None:
        problems = [
            f"{case.describe(reduces=self.reduces, rooted=self.rooted)}: {problem}"
            for case, outcomes in zip(tried, found, strict=False)
            for problem in self._problems(case, outcomes, sends)
        ]
        if problems:
            more = [f"... and {len(problems) - _TOLD} more"] * (len(problems) > _TOLD)
            lines = "\n  ".join([*problems[:_TOLD], *more])
            raise Nonconforming(f"{call.name} is no {self.name} on {len(found[0])} ranks:\n  {lines}")

    def _problems(
        self, case: Case, outcomes: Sequence[Outcome], sends: Callable[[int], float] | None
    ) -> list[str]:
        stuck = [f"rank {rank} {one.stuck}" for rank, one in enumerate(outcomes) if one.stuck]
        if stuck:
            return [f"the ranks wait for each other: {'; '.join(stuck)}."]
        failed = [f"rank {rank}: {one.error}" for rank, one in enumerate(outcomes) if one.error]
        if failed:
            return [_cause(failed)]
        seen = [outcome.value for outcome in outcomes]
        if any(each.lacks_mean for each in seen):
            return []
        told = list(self.judge(case, seen))
        return told + (self._too_much(case, [each.sent for each in seen], sends) if case.counted else [])

    def _too_much(self, case: Case, sent: Sequence[int], sends: Callable[[int], float] | None) -> list[str]:
        size, nbytes = len(sent), case.inputs[0].nbytes
        busiest, total = max(sent) / nbytes, sum(sent) / nbytes
        if sends is not None and max(sent) > sends(size) * nbytes + _HEADERS:
            rank = sent.index(max(sent))
            return [f"rank {rank} sends {busiest:.2f} times the tensor, more than {sends(size):.2f}."]
        most = self.sends(size)
        if sends is None and sum(sent) > most * nbytes + _HEADERS * size:
            told = (
                f"the ranks send {total:.1f} times the tensor in all, {busiest:.1f} times one of them, where "
                f"{most:.1f} in all is enough: do whole tensors go where parts would do? If it is meant so, "
                "say what a rank may send: sends=lambda ranks: ..."
            )
            return [told]
        return []


def _twice_but_one(size: int) -> float:
    return 2 * (size - 1)


def _up_a_tree(size: int) -> float:
    return max(size - 1, size * (size - 1).bit_length() / 2)


check_all_reduce = Check(name="all_reduce", judge=judge.all_reduced, sends=_twice_but_one, reduces=True)
"""Each rank has the reduction of all tensors, with equal bits."""

check_reduce = Check(
    name="reduce", judge=judge.reduced_to_root, sends=_twice_but_one, reduces=True, rooted=True
)
"""The root has the reduction of all tensors; those of the others stay as they are."""

check_reduce_scatter = Check(
    name="reduce_scatter", judge=judge.reduce_scattered, sends=_twice_but_one, reduces=True, rows=True
)
"""The tensor has a row for each rank; rank r has, or returns, the reduction of all rows r."""

check_broadcast = Check(name="broadcast", judge=judge.broadcast, sends=_twice_but_one, rooted=True)
"""Each rank has the bits of the root's tensor."""

check_scatter = Check(
    name="scatter", judge=judge.scattered, sends=lambda n: _up_a_tree(n) / n, rooted=True, rows=True
)
"""The tensor has a row for each rank; rank r has, or returns, row r of the root's."""

check_gather = Check(name="gather", judge=judge.gathered, sends=_up_a_tree, rooted=True)
"""The root returns all tensors in rank order, as a list or stacked; they stay as they are."""

check_all_gather = Check(name="all_gather", judge=judge.all_gathered, sends=lambda n: n * (n - 1))
"""Each rank returns all tensors in rank order, as a list or stacked; they stay as they are."""


def _sizes(given: object) -> list[int]:
    sizes = list(given) if isinstance(given, Iterable) else []
    if not sizes or not all(isinstance(size, int) and size >= 1 for size in sizes):
        raise UsageError(f"world_sizes={given!r}: give numbers of ranks, each 1 or more, such as [2, 4].")
    return sizes


def _ops(given: object) -> list[Op]:
    ops = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else []
    if not ops or not all(op in OPS for op in ops):
        raise UsageError(f"ops={given!r}: give a list of some of {', '.join(OPS)}, such as ['sum', 'mean'].")
    return ops


def _seen(call: Call, case: Case, world: World, *, may_lack_mean: bool) -> Seen:
    """Call the function on one rank."""
    tensor, counting = case.input(world.place.rank), CountingWorld(world)
    if call.takes("world"):
        returned = call(tensor, world=counting, root=case.root, op=case.op)
        return Seen(tensor=tensor, returned=returned, sent=counting.sent)
    try:
        with counted_sends() as sent:
            returned = call(tensor, world=world, root=case.root, op=case.op)
    except RuntimeError as error:
        if may_lack_mean and _NO_MEAN in str(error):
            return Seen(tensor=tensor, returned=None, sent=0, lacks_mean=True)
        raise
    return Seen(tensor=tensor, returned=returned, sent=sum(sent))


def _cause(failed: list[str]) -> str:
    """Return the first error that is not about another rank's."""
    return next((line for line in failed if "PeerLost" not in line and "onnection" not in line), failed[0])
