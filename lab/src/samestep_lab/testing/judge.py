"""Compares the results of a call on all ranks with the exact ones, and yields problems."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from samestep.base.units import counted
from samestep_lab.testing.cases import Case, reduced, tolerance

CODES: Mapping[str, str] = {
    "deadlock": "ranks wait for each other",
    "error": "a rank raised an error",
    "wrong-return": "the function did not return one tensor for each rank",
    "wrong-form": "the result has another shape or type",
    "only-zeros": "the result is zero",
    "own-input": "the result is the rank's own input",
    "sum-for-mean": "the result is the sum instead of the mean",
    "mean-for-sum": "the result is the mean instead of the sum",
    "wrong-values": "the result differs from the exact one",
    "input-changed": "the function changed a tensor that it must only read",
    "different-bits": "ranks have results of different bits",
    "too-much-sent": "ranks send more bytes than needed",
    "assumes-contiguous": "the result is wrong for tensors that are not contiguous",
}
"""Meaning of each code, the gravest first."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A difference between a function and its collective."""

    code: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """All problems of one code."""

    code: str  # one of `CODES`
    text: str  # of the first problem: the number of ranks, the call, and what is wrong
    ranks: int  # smallest number of ranks with such a problem
    count: int  # number of such problems


def faults(problems: Sequence[tuple[int, str, Problem]]) -> list[Fault]:
    """Return one fault for each code, the gravest first.

    Each problem has the number of ranks and the call in words; they are in order of the number of ranks.
    """
    by_code: dict[str, Fault] = {}
    for ranks, call, problem in problems:
        first = Fault(
            code=problem.code,
            text=f"on {counted(ranks, 'rank')}, {call}: {problem.text}",
            ranks=ranks,
            count=0,
        )
        earlier = by_code.get(problem.code, first)
        by_code[problem.code] = replace(earlier, count=earlier.count + 1)
    return [by_code[code] for code in CODES if code in by_code]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Result of a call on one rank."""

    tensor: Tensor  # the tensor passed to the function, after the call
    returned: Any  # the return value
    sent: int  # bytes that the rank sent
    lacks_mean: bool = False  # whether the function passed a mean to a Gloo that has none


Judge = Callable[[Case, Sequence[Result]], Iterator[Problem]]


def all_reduced(case: Case, results: Sequence[Result]) -> Iterator[Problem]:
    """Yield the problems of an all-reduce."""
    tensors, exact = [_tensor(result) for result in results], reduced(case.inputs, case.op)
    problems = [
        problem
        for rank, tensor in enumerate(tensors)
        for problem in _near(f"rank {rank}", tensor, exact, case, original=case.inputs[rank])
    ]
    yield from problems
    unequal = [rank for rank, tensor in enumerate(tensors) if not _same_bits(tensor, tensors[0])]
    if unequal and not problems:
        yield Problem(
            "different-bits",
            f"ranks {unequal} have other bits than rank 0: ranks sum in different orders. Compute each part "
            "of the result on one rank, and send copies.",
        )


def reduced_to_root(case: Case, results: Sequence[Result]) -> Iterator[Problem]:
    """Yield the problems of a reduce."""
    exact = reduced(case.inputs, case.op)
    where, tensor = f"rank {case.root}, the root,", _tensor(results[case.root])
    yield from _near(where, tensor, exact, case, original=case.inputs[case.root])
    yield from _unchanged(case, results, [rank for rank in range(len(results)) if rank != case.root])


def broadcast(case: Case, results: Sequence[Result]) -> Iterator[Problem]:
    """Yield the problems of a broadcast."""
    for rank, each in enumerate(results):
        original = case.inputs[rank]
        yield from _equal(f"rank {rank}", _tensor(each), case.inputs[case.root], original, case.inputs)


def gathered(case: Case, results: Sequence[Result]) -> Iterator[Problem]:
    """Yield the problems of a gather."""
    yield from _all_rows(f"rank {case.root}, the root,", results[case.root], case)
    yield from _unchanged(case, results, range(len(results)))


def all_gathered(case: Case, results: Sequence[Result]) -> Iterator[Problem]:
    """Yield the problems of an all-gather."""
    for rank, each in enumerate(results):
        yield from _all_rows(f"rank {rank}", each, case)
    yield from _unchanged(case, results, range(len(results)))


def scattered(case: Case, results: Sequence[Result]) -> Iterator[Problem]:
    """Yield the problems of a scatter."""
    for rank, each in enumerate(results):
        rows = case.inputs[case.root]
        yield from _equal(f"rank {rank}", _row(each, rank), rows[rank], case.inputs[rank][rank], ())


def reduce_scattered(case: Case, results: Sequence[Result]) -> Iterator[Problem]:
    """Yield the problems of a reduce-scatter."""
    for rank, each in enumerate(results):
        rows = Case(inputs=tuple(tensor[rank] for tensor in case.inputs), op=case.op)
        exact = reduced(rows.inputs, rows.op)
        yield from _near(f"rank {rank}", _row(each, rank), exact, rows, original=rows.inputs[rank])


def _tensor(result: Result) -> Tensor:
    return result.returned if isinstance(result.returned, Tensor) else result.tensor


def _row(result: Result, rank: int) -> Tensor:
    return result.returned if isinstance(result.returned, Tensor) else result.tensor[rank]


def _all_rows(where: str, result: Result, case: Case) -> Iterator[Problem]:
    returned = result.returned
    is_stacked = isinstance(returned, Tensor) and returned.dim() > 0
    rows = returned if is_stacked or isinstance(returned, list | tuple) else [returned]
    items = () if is_stacked else rows
    kinds = dict.fromkeys(type(item).__name__ for item in items if not isinstance(item, Tensor))
    if kinds:
        yield Problem("wrong-return", f"{where} returned {', '.join(kinds)}, not the tensors of all ranks.")
    elif len(rows) != len(case.inputs):
        text = f"{where} returned {counted(len(rows), 'tensor')} on {counted(len(case.inputs), 'rank')}."
        yield Problem("wrong-return", text)
    else:
        for source, (got, exact) in enumerate(zip(rows, case.inputs, strict=True)):
            yield from _equal(f"{where} for rank {source}'s tensor", got, exact, None, case.inputs)


def _unchanged(case: Case, results: Sequence[Result], ranks: Sequence[int]) -> Iterator[Problem]:
    for rank in ranks:
        tensor = results[rank].tensor
        if not _same_bits(tensor, case.inputs[rank]):
            at = _at(tensor, case.inputs[rank], "instead of")
            yield Problem(
                "input-changed", f"the tensor of rank {rank} has changed: {at}. Work on a copy there."
            )


def _equal(
    where: str, got: Tensor, exact: Tensor, original: Tensor | None, inputs: Sequence[Tensor]
) -> Iterator[Problem]:
    if got.shape != exact.shape or got.dtype != exact.dtype:
        yield Problem("wrong-form", f"{where} has {_form(got)}, not {_form(exact)}.")
    elif not _same_bits(got, exact):
        code = _code(got, original)
        owners = [rank for rank, tensor in enumerate(inputs) if _same_bits(got, tensor)]
        owner = f"the tensor of rank {owners[0]}: " if owners and code == "wrong-values" else ""
        yield Problem(code, f"{where} has {_PREFIX[code]}{owner}{_at(got, exact, 'not')}.")


def _near(where: str, got: Tensor, exact: Tensor, case: Case, *, original: Tensor) -> Iterator[Problem]:
    dtype = case.inputs[0].dtype
    if got.shape != exact.shape or got.dtype != dtype:
        yield Problem("wrong-form", f"{where} has {_form(got)}, not {_form(exact.to(dtype))}.")
        return
    error = (got.to(exact.dtype) - exact).abs()
    is_off = ~(error <= tolerance(case.inputs, case.op))  # also where the error is NaN
    if not bool(is_off.any()):
        return
    size = len(case.inputs)
    code = _code(got, original)
    if case.op == "mean" and torch.allclose(got.double(), exact.double() * size, rtol=1e-2):
        code = "sum-for-mean"
    if case.op == "sum" and size > 1 and torch.allclose(got.double() * size, exact.double(), rtol=1e-2):
        code = "mean-for-sum"
    if (case.strided or case.transposed) and code == "wrong-values":
        code = "assumes-contiguous"
    parts = _parts(got, case) if code == "wrong-values" else ""
    wrong = int(is_off.sum())
    some = f" (wrong: {wrong:,} of {is_off.numel():,} elements)" if wrong < is_off.numel() else ""
    yield Problem(code, f"{where} has {_PREFIX[code]}{_at(got, exact, 'where float64 gives')}{some}.{parts}")


def _parts(got: Tensor, case: Case) -> str:
    """Return how often the result counts each rank's tensor, if it is a sum of them; else an empty string."""
    tensors = torch.stack([tensor.reshape(-1).double() for tensor in case.inputs], dim=1)
    result = got.reshape(-1, 1).double()
    is_finite = bool(result.isfinite().all())  # else it is no sum, and least squares raises an error
    if case.op not in ("sum", "mean") or len(tensors) <= len(case.inputs) or not is_finite:
        return ""
    counts = torch.linalg.lstsq(tensors, result).solution
    if not torch.allclose(tensors @ counts, result, rtol=1e-2, atol=1e-2):
        return ""
    each = ", ".join(f"rank {rank}'s {float(count):.3g}" for rank, count in enumerate(counts))
    return f" It counts the tensors of the ranks this many times: {each}."


_PREFIX: Mapping[str, str] = {
    "wrong-values": "",
    "only-zeros": "only zeros: ",
    "own-input": "its own input: ",
    "sum-for-mean": "the sum, not divided: ",
    "mean-for-sum": "the mean: ",
    "assumes-contiguous": "the result for contiguous memory: ",
}


def _code(got: Tensor, original: Tensor | None) -> str:
    if not got.any():
        return "only-zeros"
    return "own-input" if original is not None and _same_bits(got, original) else "wrong-values"


def _same_bits(got: Tensor, reference: Tensor) -> bool:
    if got.shape != reference.shape or got.dtype != reference.dtype:
        return False
    return torch.equal(_as_bytes(got), _as_bytes(reference))


def _as_bytes(tensor: Tensor) -> Tensor:
    flat = tensor.detach().contiguous()
    return flat.as_strided((flat.numel(),), (1,)).view(torch.uint8)  # a single element can have any stride


def _at(got: Tensor, exact: Tensor, words: str) -> str:
    """Return the two values that differ most, in words."""
    if got.shape != exact.shape or not got.numel():
        return f"{_form(got)}, {words} {_form(exact)}"
    values, exact_values = (each.detach().reshape(-1).double() for each in (got, exact))
    worst = int((values - exact_values).abs().argmax())
    return f"{values[worst]:.9g} at {worst}, {words} {exact_values[worst]:.9g}"


def _form(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
