"""Checks the results of collectives against float64 arithmetic, block by block to save memory."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from zlib import crc32

import torch
from torch import Tensor

from samestep.base.errors import WorldError
from samestep.ranks.world.protocol import World
from samestep.studies.bench.cases import Algorithm, Collective, Part

PERIOD = 99_991
"""The period of the input numbers: a prime, so that neighboring chunks differ."""


class Numbers:
    """The inputs of all ranks, which every rank can compute."""

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._twice = [_drawn(rank, dtype).repeat(2) for rank in range(size)]

    def fill(self, tensor: Tensor, rank: int) -> None:
        """Overwrite `tensor` with the numbers of `rank`."""
        flat = tensor.view(-1)
        for at in range(0, flat.numel(), PERIOD):
            part = flat[at : at + PERIOD]
            part.copy_(self._twice[rank][: part.numel()])

    def problem(self, found: Tensor, part: Part) -> str:
        """Return in words how `found` differs from the expected tensor; empty where it does not."""
        flat = found.reshape(-1)
        for at in range(0, flat.numel(), PERIOD):
            block = flat[at : at + PERIOD].cpu()
            begin = (part.start + at) % PERIOD
            terms = [self._twice[rank][begin : begin + block.numel()].double() for rank in part.ranks]
            exact = torch.stack(terms).sum(0)
            # Each addition rounds, the last one to the type itself. NaN compares as wrong.
            allowed = torch.stack(terms).abs().sum(0) * self._rounding(len(terms))
            off = ~((block.double() - exact).abs() <= allowed)
            if off.any():
                first = int(off.nonzero()[0])
                return (
                    f"element {at + first} is {float(block[first]):.9g}, not {float(exact[first]):.9g}"
                    f" ({int(off.sum()):,} of {block.numel():,} around it are wrong)"
                )
        return ""

    def _rounding(self, terms: int) -> float:
        is_exact = terms == 1 or not self.dtype.is_floating_point
        return 0.0 if is_exact else terms * torch.finfo(self.dtype).eps


def check(
    world: World,
    collective: Collective,
    algorithm: Algorithm,
    given: Tensor,
    numbers: Numbers,
    *,
    around: AbstractContextManager[object] | None = None,
) -> str:
    """Call a collective once; return the first rank's problem on all ranks, empty where there is none.

    All ranks call this. The input tensor holds zeros afterwards. The call is made in the context `around`,
    until all ranks have finished it.

    Raises:
        WorldError: the ranks could not communicate.
    """
    rank, size = world.place.rank, world.place.size
    root = size - 1
    row = given.numel() // (size if collective.given == "rows" else 1)
    numbers.fill(given, rank)
    found, problem, bits = None, "", 0
    with around or nullcontext():
        try:
            found = collective.call(algorithm, world, given, root)
        except WorldError:
            raise
        except Exception as error:  # noqa: BLE001 - any error is a fault of the algorithm
            problem = f"{type(error).__name__}: {error}"
        world.barrier()
    if found is not None:
        problem = _first_problem(found, collective.expects(rank, size, root, row), numbers)
        bits = _bits(found) if collective.alike else 0
    given.zero_()
    of_ranks = world.all_gather_objects((problem, bits))
    for other, (its_problem, _) in enumerate(of_ranks):
        if its_problem:
            return f"on rank {other}, {its_problem}"
    if len({its_bits for _, its_bits in of_ranks}) > 1:
        return "the ranks end with different bits"
    return ""


def _first_problem(found: Sequence[Tensor], parts: Sequence[Part], numbers: Numbers) -> str:
    if len(found) != len(parts):
        return f"{len(found)} tensors came, not {len(parts)}"
    return next(filter(None, map(numbers.problem, found, parts)), "")


def _bits(tensors: Sequence[Tensor]) -> int:
    digest = 0
    for tensor in tensors:
        as_bytes = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
        digest = crc32(as_bytes.numpy().data, digest)
    return digest


def _drawn(rank: int, dtype: torch.dtype) -> Tensor:
    seeded = torch.Generator().manual_seed(rank)
    if dtype.is_floating_point:
        return (2 * torch.rand(PERIOD, generator=seeded) - 1).to(dtype)
    return torch.randint(-50, 50, (PERIOD,), generator=seeded).to(dtype)
