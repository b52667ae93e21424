"""Notes samplers with a `set_epoch` that the script does not call, so that each epoch has one order."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch.optim.optimizer import Optimizer
from torch.utils.data import DistributedSampler

from samestep.hooks import declarations
from samestep.hooks.registry import Hook, Make, wrapping
from samestep.ranks.hang.script_position import current_place
from samestep.verify.observers.check import Check, in_words
from samestep.verify.trace import Note, Place

_KEPT = 64  # indices of an epoch that are compared
_LEAST = 4  # indices that are equal in two epochs by chance only rarely


@dataclass(slots=True, eq=False)
class _Pass:
    """One pass over a loader."""

    sampler: str  # the class of its sampler
    place: Place | None  # the line that begins it
    indices: list[Any] = field(default_factory=list)  # its first indices
    is_trained: bool = False  # whether an optimizer has stepped in it


class SamplerEpochs(Check):
    """Compares the order of the epochs of each loader whose sampler has a `set_epoch`.

    `DistributedSampler` is none of them: its epochs are compared between the runs.
    """

    def __init__(self) -> None:
        self._passes: dict[int, list[_Pass]] = {}
        """The passes over each loader, by the id of what gives its indices; `_kept` keeps that alive."""
        self._kept: list[Any] = []
        self._last: _Pass | None = None

    def hooks(self) -> Mapping[Hook, Make]:
        """See `Check.hooks`."""
        return {
            declarations.EPOCH_BEGIN: wrapping(self._begin),
            declarations.BATCH_INDICES: wrapping(self._next_indices),
        }

    def _begin(self, original: Callable[[Any], Any], loader: Any) -> Any:
        source = loader._index_sampler  # noqa: SLF001 - what the loader's iterator reads
        sampler = _with_epochs(source)
        if sampler is not None:
            self._kept.append(source)
            passes = self._passes.setdefault(id(source), [])
            passes.append(_Pass(type(sampler).__name__, current_place()))
        return original(loader)

    def _next_indices(self, original: Callable[[Any], Any], iterator: Any) -> Any:
        indices = original(iterator)
        passes = self._passes.get(id(iterator._index_sampler))  # noqa: SLF001
        if passes:
            self._last = passes[-1]
            new = indices if isinstance(indices, list) else [indices]
            self._last.indices += new[: _KEPT - len(self._last.indices)]
        return indices

    def before_step(self, optimizer: Optimizer) -> None:
        """See `Check.before_step`."""
        del optimizer
        if self._last is not None:
            self._last.is_trained = True

    def notes(self) -> Iterator[Note]:
        """See `Check.notes`."""
        for passes in self._passes.values():
            trained = [one for one in passes if one.is_trained]
            if any(_have_one_order(trained[0], one) for one in trained[1:]):
                first = trained[0]
                yield Note(
                    "same-order-in-epochs",
                    f"The loop{in_words(first.place)} reads its samples in the same order in each epoch: "
                    f"{first.sampler} has a set_epoch, which is not called. Call set_epoch(epoch) before.",
                    first.place,
                )


def _with_epochs(source: Any) -> Any:
    """Return the sampler of a loader that has a `set_epoch`, of its own or in a batch sampler; else None."""
    inner = getattr(source, "sampler", None)
    for sampler in (source, inner):
        if callable(getattr(sampler, "set_epoch", None)) and not isinstance(sampler, DistributedSampler):
            return sampler
    return None


def _have_one_order(first: _Pass, second: _Pass) -> bool:
    """Return whether two epochs begin with the same indices, which are not simply in ascending order."""
    count = min(len(first.indices), len(second.indices))
    begin = first.indices[:count]
    try:
        is_sorted = begin == sorted(begin)
    except TypeError:  # keys of samples that have no order
        is_sorted = False
    return count >= _LEAST and begin == second.indices[:count] and not is_sorted
