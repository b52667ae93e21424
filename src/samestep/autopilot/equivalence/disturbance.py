"""Disturbs the weights and samples of an equivalence check, which runs in double precision.

Results that agree on one batch with fresh weights may agree by chance: a head that starts at zero hides the
layers before it, slices with equally many labels have equal means, a gate of 1e-5 is below rounding. So a
call is checked on disturbed weights, on samples that differ between slices, in slices of unequal size, and in
double precision, which makes small differences visible. All ranks apply the same disturbance: its numbers
come from a generator that is seeded here, and the script's random streams do not change.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from samestep.autopilot.equivalence.positions import CheckedPositions, InputUses
from samestep.autopilot.equivalence.weight_access import disturbing
from samestep.autopilot.split.call_arguments import (
    CallArguments,
    Dims,
    depth_of_list,
    input_of,
    is_split,
    selected,
)
from samestep.autopilot.state.reachable_state import globals_of, modules_of
from samestep.hooks import declarations, module_parts
from samestep.hooks.object_graph import Key
from samestep.hooks.registry import attached, instead
from samestep.hooks.tensor_tree import Path

aten = torch.ops.aten
_LOWER = (torch.float32, torch.float16, torch.bfloat16)
_CYCLE = math.lcm(*range(1, 11))
"""A number that 1 to 10 divide: a branch that a model takes every n-th call, n up to 10, is taken here."""
_LATE = 400 * _CYCLE  # about a million, by which a schedule of calls has ended
COUNTERS = (_LATE - 1, _LATE)
"""The values that call counters are set to in checks: large, just before a multiple of `_CYCLE` and at it."""
_IGNORED = (-100, -1)
"""Labels that losses ignore: torch's default, and another usual one."""
SCALES = (100.0, 0.01)
"""The factors by which samples are multiplied in further checks: guesses, at which a clamp of values has an
effect."""
_MISSING = (float("nan"), 0.0)
"""Values of ignored elements: a missing measurement, and padding."""
_OF_WEIGHTS, _OF_BUFFERS = 0.3, 0.1
"""The noise of weights and buffers relative to their size, and that of buffers which may be zero.

Like all numbers below, it is a guess: large enough that slices do not agree by chance, and small enough that
models can be called.
"""
_LEAST_FACTOR, _FACTORS, _SHIFT = 0.5, 0.4, 0.05
"""Inputs are multiplied by 0.5 to 0.9, and increased by at most 0.05 of the largest: they stay in their
range."""
_MOST_NUMBERS = 16
"""Elements of a tensor of numbers that are those of no sample, such as weights of losses: a guess."""
_OTHER_SAMPLES = 0.3
"""The part of the elements of indices that are those of another sample."""
_FLIPPED, _EMPTIED, _PADDED = 0.15, 0.2, 0.1
"""The parts of booleans and of labels that change, of a mask that become 0, of integers that become the
smallest."""
_MOST_LABELS = 16
"""The most values of an input of floating-point numbers that are taken for labels; two always are."""
_OTHER_ROWS, _IN_OTHER_ROWS = 0.5, 0.3
"""The parts that change where all rows of a table are equal: of rows of one element, and of longer rows."""
_LOWERED, _LOWERED_IN_VECTOR = 0.3, 0.6
"""The parts of integers that become lower; more of a vector, which has only one for each sample."""
_INPUT_SEEDS = 1000  # the first seed of inputs, above those of weights
_MADE_OF_NUMBERS = (aten.lift_fresh, aten.scalar_tensor)


@dataclass(frozen=True, slots=True)
class Disturbance:
    """The changes that a check makes to weights and samples; a model may fail under some of them.

    Args:
        size: the number of ranks.
        samples: the number of samples in the checked batch; None for as many as in the call.
        inputs: whether input values are changed; otherwise samples are only selected again.
        indices: whether indices get values that no sample has at this place; such a value may be out of
            range, so the next disturbance has those of other samples only.
        buffers: whether floating-point buffers are changed too, and tables of equal rows that the module has.
        gradients: whether gradients are compared.
        double: whether everything is computed in double precision.
        seed: the seed of the selected samples and of the changed values.
        lopsided: whether each slice repeats a single sample.
        counters: the value that the model's call counters are set to, one of `COUNTERS`; None leaves them.
        empties: the path of an input, as `input_of` returns it, and the value that its last samples are
            filled with, such as an ignored label; the loss may then ignore these samples. None for the
            smallest value of any sample at each place, which is padding among indices.
        scale: the factor of floating-point samples: a value that one batch clamps, another does not.
        skipped_draws: the random numbers that are skipped before the call, which then draws others.
    """

    size: int
    samples: int | None = None
    inputs: bool = True
    indices: bool = True
    buffers: bool = True
    gradients: bool = True
    double: bool = True
    seed: int = 1
    lopsided: bool = False
    counters: int | None = None
    empties: tuple[Path, float | None] | None = None
    scale: float = 1.0
    skipped_draws: int = 0


def disturbances(size: int, total: int, *, is_large: bool = False) -> Sequence[Sequence[Disturbance]]:
    """Return the disturbances to try, in order, until the model runs under one.

    Those of a group have one number of samples and one precision, the strongest first: where the last fails,
    all do. The first groups have few samples, in slices of unequal size: with a large model, one slice of two
    samples.
    """
    few = size + 1 if is_large else 2 * size + 1
    uneven = total if total % size else None
    return (
        (
            Disturbance(size, few),
            Disturbance(size, few, indices=False),
            Disturbance(size, few, buffers=False),
            Disturbance(size, few, indices=False, buffers=False),
            Disturbance(size, few, inputs=False, buffers=False),
        ),
        (
            Disturbance(size, uneven, indices=False, buffers=False),
            Disturbance(size, uneven, inputs=False, buffers=False),
        ),
        (
            Disturbance(size, few, indices=False, buffers=False, double=False),
            Disturbance(size, few, inputs=False, buffers=False, double=False),
        ),
        (Disturbance(size, uneven, inputs=False, buffers=False, double=False),),
    )


class DisturbedWeights:
    """The disturbed weights of a module, which comparisons of one seed in a row share.

    To draw the noise of a large model takes longer than to compute few samples.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._drawn_for: tuple[int, bool] | None = None
        self._values: list[Tensor] = []
        self._generator = torch.Generator()

    @contextmanager
    def applied(self, how: Disturbance) -> Iterator[None]:
        """Disturb the parameters, and the buffers if `how.buffers` is set; restore them at exit."""
        # Other parameters, not other `data`: torch makes a new node for the gradients of a tensor whose type
        # changes, and gradients of calls before would no longer be found at it.
        parameters = [
            parameter for parameter in module_parts.parameters(self._module) if parameter.is_floating_point()
        ]
        buffers = [buffer for buffer in module_parts.buffers(self._module) if buffer.is_floating_point()]
        tables = [*_tables_in(self._module, how)] if how.buffers else []
        before = [(tensor, tensor.data) for tensor in (*buffers, *tables)]
        with disturbing(self._module), ExitStack() as stack:
            try:
                with torch.inference_mode(mode=False):
                    if self._drawn_for != (how.seed, how.double):
                        self._draw(parameters, how)
                    generator = self._generator.clone_state()
                    stack.enter_context(
                        _replaced(self._module, dict(zip(parameters, self._values, strict=True)))
                    )
                    for tensor in buffers:
                        values = tensor.data.double()
                        if how.buffers:
                            factors = 1 + _OF_WEIGHTS * _uniform(values, generator)
                            values = values * factors + _OF_BUFFERS * _uniform(values, generator)
                        tensor.data = values if how.double else values.to(tensor.dtype)
                    for tensor in tables:
                        tensor.data = _with_other_rows(tensor.data, generator)
                yield
            finally:
                for tensor, data in before:
                    tensor.data = data

    def forget(self) -> None:
        """Draw the weights again for the next comparison: a call may have written into them."""
        self._drawn_for, self._values = None, []

    def _draw(self, parameters: Sequence[Tensor], how: Disturbance) -> None:
        self.forget()  # the memory holds one set of them
        self._generator.manual_seed(how.seed)
        for tensor in parameters:
            values = tensor.data.double()
            values = values + _weight_noise(values, self._generator)
            self._values.append(values if how.double else values.to(tensor.dtype))
        self._drawn_for = how.seed, how.double


def copied_parameters(module: nn.Module) -> AbstractContextManager[None]:
    """Let a module have copies of its parameters in the block: all ranks may write into them at once."""
    return _replaced(
        module, {parameter: parameter.data.clone() for parameter in module_parts.parameters(module)}
    )


@contextmanager
def _replaced(module: nn.Module, values: Mapping[nn.Parameter, Tensor]) -> Iterator[None]:
    """Let a module and its submodules have other parameters in the block, with these values."""
    replacements = {id(parameter): _with_values(parameter, value) for parameter, value in values.items()}
    held = [(part, dict(part._parameters)) for part in module_parts.modules(module)]  # noqa: SLF001 - assigning registers anew
    recurrent = [(layer, layer._flat_weights) for layer, _ in held if isinstance(layer, nn.RNNBase)]  # noqa: SLF001
    # Autocast keeps weights in half precision by their tensors.
    torch.clear_autocast_cache()
    try:
        for part, parameters in held:
            new = {name: replacements.get(id(value), value) for name, value in parameters.items()}
            part._parameters.update(new)  # noqa: SLF001
        for part, _ in recurrent:
            part._flat_weights = [getattr(part, name, None) for name in part._flat_weights_names]  # noqa: SLF001
        yield
    finally:
        for part, parameters in held:
            part._parameters.update(parameters)  # noqa: SLF001
        for part, weights in recurrent:
            part._flat_weights = weights  # noqa: SLF001
        torch.clear_autocast_cache()


def _with_values(parameter: nn.Parameter, values: Tensor) -> nn.Parameter:
    """Return a parameter like this one with other values."""
    copy = torch.Tensor._make_subclass(type(parameter), values, parameter.requires_grad)  # noqa: SLF001
    vars(copy).update(vars(parameter))
    return copy


def disturbed_inputs(
    arguments: CallArguments, dims: Dims, total: int, how: Disturbance, uses: InputUses
) -> CallArguments:
    """Return a call with samples selected from `arguments`, and with other values if `how.inputs` is set.

    Integers that reach operations of other libraries get values of other samples at the same place only.
    """
    generator = torch.Generator().manual_seed(_INPUT_SEEDS + how.seed)
    count = total if how.samples is None else how.samples
    # The order is kept, since it may be by length; samples repeat, so that slices differ.
    if how.lopsided:
        groups = how.size * torch.arange(count, device="cpu") // count
        chosen = groups * (total // how.size)
    else:
        chosen = torch.randint(0, total, (count,), generator=generator, device="cpu").sort().values

    def change(path: Path, tensor: Tensor) -> Tensor:
        value = tensor.detach()
        if is_split(path, dims):
            value = (
                value.index_select(dims[path], chosen.to(tensor.device)) if path in dims else value.clone()
            )
            is_kept = path in uses.unchecked or (path in uses.indices and not how.indices)
            if how.inputs and not is_kept:
                value = _other_values(value, generator, tensor.detach())
            elif how.inputs and path in dims:
                value = _of_other_samples(value, dims[path], generator)
            if how.scale != 1 and value.is_floating_point():
                value = value * how.scale
            if how.empties is not None and how.empties[0] == input_of(path, dims):
                last, number = _last_samples(path, value, dims, count), how.empties[1]
                smallest = tensor.detach().amin(dims[path], keepdim=True)
                last.copy_(smallest) if number is None else last.fill_(number)
        elif how.inputs:
            value = _of_all_samples(value, total, generator)
        if how.double and value.is_floating_point():
            value = value.double()
        return value.clone().requires_grad_(tensor.requires_grad)

    return CallArguments(*selected(arguments.both, dims, chosen.tolist())).changed(change, dims)


def _last_samples(path: Path, value: Tensor, dims: Dims, count: int) -> Tensor:
    """Return the elements of the last half of `count` samples in the input at `path`."""
    depth = depth_of_list(path, dims)
    if depth is None:
        return value.narrow(dims[path], count - count // 2, count // 2)
    return value if int(path[depth]) >= count - count // 2 else value.flatten()[:0]


def set_counters(module: nn.Module, keys: Sequence[Key], tensors: Sequence[Tensor], number: int) -> None:
    """Set the call counters of a model to a number."""
    for tensor in tensors:
        tensor.fill_(number)
    modules = list(modules_of(module))
    for place, name in keys:
        if place >= 0 and name in vars(modules[place]):  # a buffer is among the tensors
            setattr(modules[place], name, number)
        elif place < 0:
            for names, known in globals_of(module):
                if known == name:
                    names[name] = number


@contextmanager
def parametrizations_computed() -> Iterator[None]:
    """Disable torch's cache of parametrized weights, which would keep disturbed weights."""
    with attached(declarations.PARAMETRIZATION_CACHE, instead(0)):
        yield


def emptying(arguments: CallArguments, dims: Dims, uses: InputUses) -> Iterator[tuple[Path, float | None]]:
    """Yield inputs that may select samples (masks, labels), each with a value that selects none."""
    inputs = {
        input_of(path, dims): (path, tensor) for path, tensor in arguments.tensors() if is_split(path, dims)
    }
    for place, (path, tensor) in inputs.items():
        if path in dims and path in uses.indices | uses.unchecked:
            yield place, None
        if path in uses.unchecked:
            continue
        if _is_mask(tensor):
            yield place, 0
        elif tensor.dtype == torch.int64:
            yield from ((place, label) for label in {*_IGNORED, *uses.ignored.get(path, ())})
        elif tensor.is_floating_point():
            yield from ((place, missing) for missing in _MISSING)


class DoublePrecision(CheckedPositions):  # type: ignore[no-untyped-call]
    """A context that creates tensors of lower precision in double precision instead, casts included."""

    precision = torch.float64

    def _run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if kwargs.get("dtype") in _LOWER:
            kwargs = {**kwargs, "dtype": torch.float64}
        result = super()._run(func, args, kwargs)
        # The dtype first: hardly any result is of lower precision here, and this runs for each operation.
        if not isinstance(result, Tensor) or result.dtype not in _LOWER:
            return result
        is_made = func.overloadpacket in _MADE_OF_NUMBERS or not any(
            isinstance(argument, Tensor) for argument in args
        )
        return result.double() if is_made else result


def _weight_noise(values: Tensor, generator: torch.Generator) -> Tensor:
    """Return noise of the scale of the weights; if they are almost zero, of the usual initial scale."""
    if not values.numel():
        return values
    finite = values[values.isfinite()]  # a constant may be -inf
    root_mean_square = float(finite.square().sum() / values.numel()) ** 0.5
    inputs = 1.0 if values.dim() < 2 else values.numel() / max(values.shape[0], 1)
    noise = torch.randn(values.shape, generator=generator, dtype=torch.float64, device="cpu").to(
        values.device
    )
    return noise.mul_(_OF_WEIGHTS * max(root_mean_square, inputs**-0.5))


def _other_values(value: Tensor, generator: torch.Generator, batch: Tensor) -> Tensor:
    """Return changed values of the same kind and about the same range as those of the batch of the call."""
    if not value.numel() or value.is_complex():
        return value
    if value.dtype == torch.bool:
        return value ^ (_uniform(value, generator) < _FLIPPED)
    if value.dim() > 1 and _is_mask(batch):
        return value * (_uniform(value, generator) > _EMPTIED).to(value.dtype)
    if value.is_floating_point():
        if (labels := _labels_in(batch)) is not None:
            return _other_labels(value, labels, generator)
        return _moved(value, generator)
    return _other_integers(value, generator)


def _moved(value: Tensor, generator: torch.Generator) -> Tensor:
    """Return other floating-point numbers in about the same range; those that are not finite stay."""
    finite = torch.isfinite(value)
    largest = float(value[finite].abs().max()) if bool(finite.any()) else 0.0
    scale = _LEAST_FACTOR + _FACTORS * _uniform(value, generator)
    moved = value.double() * scale + _SHIFT * (largest or 1.0) * _uniform(value, generator)
    return torch.where(finite, moved.to(value.dtype), value)


def _labels_in(batch: Tensor) -> Tensor | None:
    """Return the values of a batch in order if they are few, as of labels, which `==` may select."""
    if len(batch.flatten()[: _MOST_LABELS**2].unique()) > _MOST_LABELS:  # type: ignore[no-untyped-call]
        return None
    labels: Tensor = batch.detach().double().unique()  # type: ignore[no-untyped-call]
    most = max(2, min(_MOST_LABELS, batch.numel() ** 0.5))
    return labels if 1 < len(labels) <= most else None


def _other_labels(value: Tensor, labels: Tensor, generator: torch.Generator) -> Tensor:
    """Return a tensor of labels, some of which are others of them."""
    steps = torch.randint(1, len(labels), value.shape, generator=generator, device="cpu").to(value.device)
    places = (torch.searchsorted(labels, value.double().contiguous()) + steps) % len(labels)
    return torch.where(_uniform(value, generator) < _FLIPPED, labels[places].to(value.dtype), value)


def _other_numbers(value: Tensor, generator: torch.Generator) -> Tensor:
    """Return other numbers in the same order, such as times; none is 0, as weights are in the first steps."""
    factor, shift = torch.rand(2, generator=generator, dtype=torch.float64, device="cpu").tolist()
    finite = torch.isfinite(value)
    largest = float(value[finite].abs().max()) if bool(finite.any()) else 0.0
    moved: Tensor = value.double() * (_LEAST_FACTOR + _FACTORS * factor) + _SHIFT * (largest or 1.0) * (
        1 + shift
    )
    return moved.to(value.dtype)


def _of_all_samples(value: Tensor, total: int, generator: torch.Generator) -> Tensor:
    """Return an input that is not split, with other values if it may be a table or has few numbers."""
    if _has_equal_rows(value, total):
        return _with_other_rows(value, generator)
    if _has_equal_steps(value, total):
        steps = _with_other_rows(value.diff(), generator)
        return torch.cat([value[:1], value[:1] + steps.cumsum(0)])
    is_few = value.is_floating_point() and 0 < value.numel() <= _MOST_NUMBERS
    return _other_numbers(value, generator) if is_few else value


def _tables_in(module: nn.Module, how: Disturbance) -> Iterator[Tensor]:
    """Yield the tensors of a module, beside parameters and floating-point buffers, that have equal rows."""
    buffers = [buffer for buffer in module_parts.buffers(module) if not buffer.is_floating_point()]
    attributes = [value for part in modules_of(module) for value in [*vars(part).values()]]
    for tensor in (*buffers, *attributes):
        is_plain = isinstance(tensor, Tensor) and not (tensor.requires_grad or tensor.is_inference())
        if is_plain and _has_equal_rows(tensor, how.samples or how.size):
            yield tensor


def _has_equal_rows(table: Tensor, count: int) -> bool:
    """Return whether a tensor has at least `count` rows and all are equal.

    A forward may take a row for each sample. While they are equal, each slice can take the first ones.
    """
    if table.layout != torch.strided or table.is_complex() or table.dim() == 0 or not table.numel():
        return False
    return table.size(0) >= max(2, count) and bool((table[:1] == table).all())


def _has_equal_steps(numbers: Tensor, count: int) -> bool:
    """Return whether a vector of integers has equal steps: those between offsets are sizes of samples."""
    if numbers.dim() != 1 or numbers.is_floating_point() or numbers.dtype == torch.bool:
        return False
    return not numbers.is_complex() and _has_equal_rows(numbers.diff(), count)


def _with_other_rows(table: Tensor, generator: torch.Generator) -> Tensor:
    """Return a table of equal rows with rows that differ, and values in the range of before.

    A longer row keeps its first element: a mask that excludes all gives NaN, which hides differences.
    """
    is_long = table[0].numel() > 1
    changes = _uniform(table, generator) < (_IN_OTHER_ROWS if is_long else _OTHER_ROWS)
    if is_long:
        changes.flatten(1)[:, 0] = False
    if table.dtype == torch.bool:
        return table ^ changes
    if table.is_floating_point():
        return torch.where(changes, _moved(table, generator), table)
    lower = torch.where(table > 1, _lower(table, generator), 0)
    return torch.where(changes & (table > 0), lower, table)


def _of_other_samples(value: Tensor, dim: int, generator: torch.Generator) -> Tensor:
    """Return a tensor in which some elements are those of other samples at the same place."""
    samples = torch.randint(0, value.size(dim), value.shape, generator=generator, device="cpu").to(
        value.device
    )
    is_other = _uniform(value, generator) < _OTHER_SAMPLES
    return torch.where(is_other, value.gather(dim, samples), value)


def _is_mask(value: Tensor) -> bool:
    """Return whether a tensor may be a mask: it holds only zeros and ones, and is no vector of labels."""
    if value.dtype == torch.bool:
        return True
    is_label = value.dim() == 1 and not value.is_floating_point()
    return not is_label and not value.is_complex() and bool(((value == 0) | (value == 1)).all())


def _other_integers(value: Tensor, generator: torch.Generator) -> Tensor:
    """Return integers of which some are nearer to 1: still valid, and in descending order as before."""
    lower = _lower(value, generator)
    share = _LOWERED_IN_VECTOR if value.dim() == 1 else _LOWERED
    integers = torch.where((_uniform(value, generator) < share) & (value > 1), lower, value)
    if value.dim() == 1 and len(value) > 1 and bool((value[1:] <= value[:-1]).all()):
        return integers.sort(descending=True).values
    if value.dim() > 1:  # padding and ignored labels are usually the smallest value
        return torch.where(_uniform(value, generator) < _PADDED, value.min(), integers)
    return integers


def _lower(value: Tensor, generator: torch.Generator) -> Tensor:
    """Return an integer from 1 up to below each that is more than 1."""
    return 1 + (_uniform(value, generator) * (value - 1).clamp(min=1)).to(value.dtype)


def _uniform(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.rand(like.shape, generator=generator, dtype=torch.float64, device="cpu").to(like.device)
