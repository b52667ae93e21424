"""Computes torchmetrics metrics over a data set that is split across ranks, counting each sample once.

The states of the metrics are gathered here, through the world. torchmetrics' own synchronization waits for
ever if a rank has had no sample, and needs a process group.
"""

import importlib
import inspect
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from samestep.base.documents import parse_json
from samestep.base.errors import UsageError
from samestep.ranks.world.protocol import World
from samestep.ranks.world.solo import SoloWorld

if TYPE_CHECKING:
    from torchmetrics import Metric

_CPU = torch.device("cpu")
State: TypeAlias = dict[str, Any]
"""The state of a metric: by name a tensor, or a list with one item per batch."""


class TorchMetrics:
    """Metrics of torchmetrics, evaluated beside accuracy and loss.

    They receive class probabilities, (samples, classes), and labels, (samples,), not the model's scores:
    torchmetrics takes a batch for probabilities if all its values are in 0 .. 1, which for scores depends on
    how the samples are split.
    """

    def __init__(self, metrics: "Mapping[str, Metric]") -> None:
        self._metrics = dict(metrics)
        self._samples = 0
        for metric in self._metrics.values():
            for part in _parts(metric):
                part.distributed_available_fn = _never  # no communication of its own

    def reset(self) -> None:
        """Forget all samples."""
        self._samples = 0
        for metric in self._metrics.values():
            metric.reset()

    def update(self, scores: Tensor, labels: Tensor) -> None:
        """Add this rank's scores of a batch, (local, classes), and its labels, (local,)."""
        self._samples += len(labels)
        with torch.autocast(scores.device.type, enabled=False):
            probabilities = scores.softmax(1)
            for metric in self._metrics.values():
                if metric.device != scores.device:
                    metric.to(scores.device)
                metric.update(probabilities, labels)

    def compute(self, world: World) -> dict[str, float]:
        """Return each metric over the samples of all ranks, and reset it; called by all ranks.

        Raises:
            UsageError: a metric returns neither a number nor a row of numbers.
        """
        states = {
            name: [_state_of(part) for part in _parts(metric)] if self._samples else None
            for name, metric in self._metrics.items()
        }
        ranks = world.all_gather_objects((self._samples, states))
        # Rank 0 computes for all, so that all ranks report the same bits.
        figures = world.on_main(lambda: self._figures([rank for rank in ranks if rank[0]]))
        self.reset()
        return figures

    def _figures(self, ranks: list[tuple[int, Any]]) -> dict[str, float]:
        """Return the metrics over the states of `ranks`, each given with its number of samples."""
        figures = {}
        weights = [samples for samples, _ in ranks]
        for name, metric in self._metrics.items():
            states = [kept[name] for _, kept in ranks]
            for part, *of_part in zip(_parts(metric), *states, strict=True):
                _merge_states(part, of_part, weights)
            figures.update(_numbers(name, metric.compute()))
        return figures


def metrics_of(asked: Sequence[str], *, classes: int) -> TorchMetrics | None:
    """Return the requested metrics, tested on a few samples; None if there are none.

    Args:
        asked: names of classes of ``torchmetrics.classification``, with or without parameters:
            ``F1Score``, ``F1Score:average=macro,top_k=2``.
        classes: number of classes of the data set.

    Raises:
        UsageError: see `check_metrics`; or a metric returns no number.
    """
    if not asked:
        return None
    metrics = {text: _build(text, classes) for text in asked}
    for text, metric in metrics.items():
        _check_output(text, metric, classes)
    return TorchMetrics(metrics)


def check_metrics(asked: Sequence[str], *, classes: int) -> None:
    """Refuse metrics that `metrics_of` cannot construct, without computing anything.

    Raises:
        UsageError: torchmetrics is missing, has no such metric, or the metric refuses the parameters.
    """
    for text in asked:
        _build(text, classes)


def _build(text: str, classes: int) -> "Metric":
    """Construct the metric that `text` names, for `classes` classes."""
    if find_spec("torchmetrics") is None:
        raise UsageError(
            f"--metric {text} needs torchmetrics, which is not installed: pip install 'samestep[metrics]'."
        )
    name, _, rest = text.partition(":")
    kind, accepted = _metric_class(name)
    fixed = {"num_classes": classes, **({"task": "multiclass"} if "task" in accepted else {})}
    parameters = dict(_parameter(text, item) for item in rest.split(",")) if rest else {}
    for taken in sorted(parameters.keys() & fixed):
        raise UsageError(f"--metric {text}: {taken} is set from the data set; omit it.")
    try:
        return kind(**fixed, **parameters)
    except (TypeError, ValueError) as error:
        names = ", ".join(
            parameter for parameter in accepted if parameter not in (*fixed, "num_labels", "kwargs")
        )
        raise UsageError(f"--metric {text}: {str(error).rstrip('.')}. Its parameters are {names}.") from None


def _metric_class(name: str) -> "tuple[type[Metric], Mapping[str, inspect.Parameter]]":
    """Return the multi-class metric called `name`, and its parameters."""
    try:
        module = importlib.import_module("torchmetrics.classification")
    except (ImportError, RuntimeError) as error:  # RuntimeError: from a torchvision built for another torch
        raise UsageError(f"--metric {name}: torchmetrics cannot be imported here: {error}") from None
    kinds = {
        class_name: inspect.signature(getattr(module, class_name)).parameters for class_name in module.__all__
    }
    if "num_classes" not in kinds.get(name, ()):
        general = ", ".join(
            class_name for class_name, accepted in kinds.items() if {"task", "num_classes"} <= set(accepted)
        )
        raise UsageError(
            f"--metric {name}: torchmetrics has no multi-class metric of that name. Use one of {general}."
        )
    return getattr(module, name), kinds[name]


def _parameter(text: str, item: str) -> tuple[str, Any]:
    """Return name and value of ``average=macro`` or ``top_k=2``; a value that is no JSON is text."""
    name, equals, value = item.partition("=")
    if not equals:
        raise UsageError(f"--metric {text}: {item!r} is no parameter; write it as average=macro.")
    try:
        return name, parse_json(value)
    except ValueError:
        return name, value


def _check_output(text: str, metric: "Metric", classes: int) -> None:
    """Check that a metric accepts probabilities and labels, and returns numbers."""
    trial = TorchMetrics({text: metric})
    try:
        trial.update(torch.eye(classes, device="cpu"), torch.arange(classes, device="cpu"))
        trial.compute(SoloWorld())
    except UsageError:
        raise
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"--metric {text}: {error}") from None


def _parts(metric: "Metric") -> "list[Metric]":
    """Return a metric and the metrics inside it, in the same order on all ranks."""
    from torchmetrics import Metric

    return [part for part in metric.modules() if isinstance(part, Metric)]


def _state_of(part: "Metric") -> State:
    """Return the state of a metric, on the CPU."""
    return {
        name: [_on(_CPU, item) for item in kept] if isinstance(kept, list) else _on(_CPU, kept)
        for name, kept in part.metric_state.items()
    }


def _merge_states(part: "Metric", states: list[State], weights: list[int]) -> None:
    """Set the state of a metric to the merged `states` of several ranks."""
    for name, reduce in part._reductions.items():  # noqa: SLF001 - no public attribute has the reductions
        kept = [state[name] for state in states]
        if isinstance(kept[0], list):
            merged: Any = [_on(part.device, item) for items in kept for item in items]
        else:
            merged = _on(part.device, kept[0] if len(kept) == 1 else _reduced(reduce, kept, weights))
        setattr(part, name, merged)


def _reduced(reduce: Any, kept: list[Tensor], weights: list[int]) -> Tensor:
    """Return one state for those of several ranks; `reduce` is torchmetrics' reduction of the stack."""
    from torchmetrics.utilities import dim_zero_mean

    stacked = torch.stack(kept)
    if reduce is dim_zero_mean:  # unweighted, but a sample must count the same on any rank
        shares = torch.tensor(weights, dtype=torch.float64, device="cpu") / sum(weights)
        reduced: Tensor = torch.tensordot(shares, stacked.double(), dims=1).to(stacked.dtype)
    else:
        reduced = stacked if reduce is None else reduce(stacked)  # with None the metric takes the stack
    return reduced


def _numbers(name: str, value: Any) -> dict[str, float]:
    """Return a metric's value as named numbers: one, one per element of a row, or those of a mapping."""
    if isinstance(value, Mapping):
        return {key: number for k, v in value.items() for key, number in _numbers(f"{name}/{k}", v).items()}
    if isinstance(value, Tensor) and value.numel() == 1:
        return {name: float(value)}
    if isinstance(value, Tensor) and value.dim() == 1:
        return {f"{name}[{k}]": number for k, number in enumerate(value.tolist())}
    form = f"a table of {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
    raise UsageError(f"the metric {name} returns {form}; only a number, or one per class, can be reported.")


def _on(device: torch.device, item: Any) -> Any:
    return item.to(device) if isinstance(item, Tensor) else item


def _never() -> bool:
    return False
