"""What is wrong with what came of a call, in words."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from samestep.testing.cases import Case, reduced, tolerance


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What came of a call on one rank.

    Args:
        tensor: what the function was given, after it.
        returned: what it returned.
        sent: bytes that the rank sent to others.
        lacks_mean: whether the function left a mean to a Gloo that has none.
    """

    tensor: Tensor
    returned: Any
    sent: int
    lacks_mean: bool = False


Judge = Callable[[Case, Sequence[Seen]], Iterator[str]]


def all_reduced(case: Case, seen: Sequence[Seen]) -> Iterator[str]:
    """Yield what is wrong with an all-reduce."""
    results = [_result(each) for each in seen]
    exact, wrong = reduced(case.inputs, case.op), False
    for rank, result in enumerate(results):
        for problem in _near(f"rank {rank}", result, exact, case, own=case.inputs[rank]):
            wrong = True
            yield problem
    if wrong:  # whose bits say nothing more
        return
    others = [rank for rank, result in enumerate(results) if not _same_bits(result, results[0])]
    if others:
        yield (
            f"ranks {others} have other bits than rank 0: each makes the result in an order of its own. Let "
            "one rank make each part of it, and send copies."
        )


def reduced_to_root(case: Case, seen: Sequence[Seen]) -> Iterator[str]:
    """Yield what is wrong with a reduce."""
    exact = reduced(case.inputs, case.op)
    who, result = f"rank {case.root}, the root,", _result(seen[case.root])
    yield from _near(who, result, exact, case, own=case.inputs[case.root])
    yield from _unchanged(case, seen, [rank for rank in range(len(seen)) if rank != case.root])


def broadcast(case: Case, seen: Sequence[Seen]) -> Iterator[str]:
    """Yield what is wrong with a broadcast."""
    for rank, each in enumerate(seen):
        yield from _equal(f"rank {rank}", _result(each), case.inputs[case.root], case.inputs[rank])


def gathered(case: Case, seen: Sequence[Seen]) -> Iterator[str]:
    """Yield what is wrong with a gather."""
    yield from _all_rows(f"rank {case.root}, the root,", seen[case.root], case)
    yield from _unchanged(case, seen, range(len(seen)))


def all_gathered(case: Case, seen: Sequence[Seen]) -> Iterator[str]:
    """Yield what is wrong with an all-gather."""
    for rank, each in enumerate(seen):
        yield from _all_rows(f"rank {rank}", each, case)
    yield from _unchanged(case, seen, range(len(seen)))


def scattered(case: Case, seen: Sequence[Seen]) -> Iterator[str]:
    """Yield what is wrong with a scatter."""
    for rank, each in enumerate(seen):
        yield from _equal(
            f"rank {rank}", _row(each, rank), case.inputs[case.root][rank], case.inputs[rank][rank]
        )


def reduce_scattered(case: Case, seen: Sequence[Seen]) -> Iterator[str]:
    """Yield what is wrong with a reduce-scatter."""
    for rank, each in enumerate(seen):
        rows = Case(inputs=tuple(one[rank] for one in case.inputs), op=case.op)
        exact = reduced(rows.inputs, rows.op)
        yield from _near(f"rank {rank}", _row(each, rank), exact, rows, own=rows.inputs[rank])


def _result(seen: Seen) -> Tensor:
    return seen.returned if isinstance(seen.returned, Tensor) else seen.tensor


def _row(seen: Seen, rank: int) -> Tensor:
    return seen.returned if isinstance(seen.returned, Tensor) else seen.tensor[rank]


def _all_rows(who: str, seen: Seen, case: Case) -> Iterator[str]:
    if not isinstance(seen.returned, Tensor | list | tuple):
        yield f"{who} returned {type(seen.returned).__name__}, not the tensors of all ranks."
    elif len(seen.returned) != len(case.inputs):
        yield f"{who} returned {len(seen.returned)} tensors, not one for each of {len(case.inputs)} ranks."
    else:
        for source, (got, exact) in enumerate(zip(seen.returned, case.inputs, strict=True)):
            yield from _equal(f"{who} in place of rank {source}'s tensor", got, exact, None)


def _unchanged(case: Case, seen: Sequence[Seen], ranks: Sequence[int]) -> Iterator[str]:
    for rank in ranks:
        if not _same_bits(seen[rank].tensor, case.inputs[rank]):
            yield (
                f"rank {rank} has its own tensor changed, which nobody asked for: "
                f"{_at(seen[rank].tensor, case.inputs[rank], 'where it had')}. Work on a copy there."
            )


def _equal(who: str, got: Tensor, exact: Tensor, own: Tensor | None) -> Iterator[str]:
    if got.shape != exact.shape or got.dtype != exact.dtype:
        yield f"{who} has {_form(got)}, not {_form(exact)}."
    elif not _same_bits(got, exact):
        yield f"{who} has {_hint(got, own)}{_at(got, exact, 'not')}."


def _near(who: str, got: Tensor, exact: Tensor, case: Case, *, own: Tensor) -> Iterator[str]:
    dtype = case.inputs[0].dtype
    if got.shape != exact.shape or got.dtype != dtype:
        yield f"{who} has {_form(got)}, not {_form(exact.to(dtype))}."
        return
    off = (got.to(exact.dtype) - exact).abs()
    if bool((off <= tolerance(case.inputs, case.op)).all()):
        return
    size = len(case.inputs)
    hint = _hint(got, own)
    if case.op == "mean" and torch.allclose(got.double(), exact.double() * size, rtol=1e-2):
        hint = "the sum, not divided: "
    if case.op == "sum" and size > 1 and torch.allclose(got.double() * size, exact.double(), rtol=1e-2):
        hint = "the mean: "
    if (case.strided or case.transposed) and not hint:
        hint = "what memory that is taken for contiguous gives: "
    yield f"{who} has {hint}{_at(got, exact, 'where float64 gives')}."


def _hint(got: Tensor, own: Tensor | None) -> str:
    if not got.any():
        return "only zeros: "
    return "what it came with: " if own is not None and _same_bits(got, own) else ""


def _same_bits(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(_as_bytes(one), _as_bytes(other))


def _as_bytes(tensor: Tensor) -> Tensor:
    flat = tensor.detach().contiguous()
    return flat.as_strided((flat.numel(),), (1,)).view(torch.uint8)  # one element may have any stride


def _at(got: Tensor, exact: Tensor, words: str) -> str:
    """Return the two values that differ most."""
    if got.shape != exact.shape or not got.numel():
        return f"{_form(got)}, {words} {_form(exact)}"
    ours, theirs = (each.detach().reshape(-1).double() for each in (got, exact))
    worst = int((ours - theirs).abs().argmax())
    return f"{ours[worst]:.9g} at {worst}, {words} {theirs[worst]:.9g}"


def _form(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
