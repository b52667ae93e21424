"""Metrics of torchmetrics over a data set that is shared out: each sample counts once.

What the metrics keep is put together here, through the world. torchmetrics would do it by itself, but waits
for ever where a rank has had no sample, and knows of no ranks other than those of a process group.
"""

import importlib
import inspect
import json
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from samestep.base.errors import UsageError
from samestep.world.solo import SoloWorld
from samestep.world.world import World

if TYPE_CHECKING:
    from torchmetrics import Metric

State: TypeAlias = dict[str, Any]
"""What a metric has kept of the samples it saw: by name a tensor, or a list that grows by the batch."""


class TorchMetrics:
    """Metrics of torchmetrics, evaluated beside accuracy and loss.

    They see the probabilities of the classes, (samples, classes), and the right answers, (samples,). They do
    not see the model's scores: torchmetrics takes a batch for probabilities if all of it lies in 0 .. 1, and
    whether scores do would depend on how the samples are shared out.

    Args:
        metrics: by the name under which each is reported.
    """

    def __init__(self, metrics: "Mapping[str, Metric]") -> None:
        self._metrics = dict(metrics)
        self._samples = 0
        for metric in self._metrics.values():
            for part in _parts(metric):
                part.distributed_available_fn = _never  # it would talk to other ranks on its own

    def reset(self) -> None:
        """See `Metrics.reset`."""
        self._samples = 0
        for metric in self._metrics.values():
            metric.reset()

    def update(self, scores: Tensor, labels: Tensor) -> None:
        """See `Metrics.update`."""
        self._samples += len(labels)
        with torch.autocast(scores.device.type, enabled=False):
            probabilities = scores.softmax(1)
            for metric in self._metrics.values():
                if metric.device != scores.device:
                    metric.to(scores.device)
                metric.update(probabilities, labels)

    def compute(self, world: World) -> dict[str, float]:
        """See `Metrics.compute`; the samples are forgotten.

        Raises:
            UsageError: a metric gives neither a number nor a row of numbers.
        """
        mine = {
            name: [_taken(part) for part in _parts(metric)] if self._samples else None
            for name, metric in self._metrics.items()
        }
        ranks = world.all_gather_objects((self._samples, mine))
        # One rank computes, so that all report the same bits.
        figures = world.on_main(lambda: self._figures([rank for rank in ranks if rank[0]]))
        self.reset()
        return figures

    def _figures(self, ranks: list[tuple[int, Any]]) -> dict[str, float]:
        """Return the figures over what `ranks` have kept, each with its number of samples."""
        figures = {}
        weights = [samples for samples, _ in ranks]
        for name, metric in self._metrics.items():
            states = [kept[name] for _, kept in ranks]
            for part, *of_part in zip(_parts(metric), *states, strict=True):
                _put(part, of_part, weights)
            figures.update(_numbers(name, metric.compute()))
        return figures


def metrics_of(asked: Sequence[str], *, classes: int) -> TorchMetrics | None:
    """Return the metrics asked for, tried out on a few samples; None for none.

    Args:
        asked: names of classes of ``torchmetrics.classification``, with parameters or without:
            ``F1Score``, ``F1Score:average=macro,top_k=2``.
        classes: how many the data set has.

    Raises:
        UsageError: as `check_metrics`, or one gives no number.
    """
    if not asked:
        return None
    metrics = {text: _made(text, classes) for text in asked}
    for text, metric in metrics.items():
        _try_out(text, metric, classes)
    return TorchMetrics(metrics)


def check_metrics(asked: Sequence[str], *, classes: int) -> None:
    """Refuse what `metrics_of` cannot make, before work starts and without computing anything.

    Raises:
        UsageError: torchmetrics is missing, has no such metric, or the metric refuses the parameters.
    """
    for text in asked:
        _made(text, classes)


def _made(text: str, classes: int) -> "Metric":
    """Return the metric asked for by `text`, for so many classes."""
    if find_spec("torchmetrics") is None:
        raise UsageError(
            f"--metric {text} needs torchmetrics, which is not installed: pip install 'samestep[metrics]'."
        )
    name, _, rest = text.partition(":")
    kind, accepted = _found(name)
    given = {"num_classes": classes, **({"task": "multiclass"} if "task" in accepted else {})}
    parameters = dict(_parameter(text, item) for item in rest.split(",")) if rest else {}
    for taken in sorted(parameters.keys() & given):
        raise UsageError(f"--metric {text}: {taken} follows from the data set; leave it out.")
    try:
        return kind(**given, **parameters)
    except (TypeError, ValueError) as error:
        others = ", ".join(one for one in accepted if one not in (*given, "num_labels", "kwargs"))
        raise UsageError(f"--metric {text}: {str(error).rstrip('.')}. Its parameters are {others}.") from None


def _found(name: str) -> "tuple[type[Metric], Mapping[str, inspect.Parameter]]":
    """Return the class called `name` of those that tell several classes apart, and what it takes."""
    try:
        module = importlib.import_module("torchmetrics.classification")
    except (ImportError, RuntimeError) as error:  # RuntimeError: from a torchvision built for another torch
        raise UsageError(f"--metric {name}: torchmetrics cannot be imported here: {error}") from None
    kinds = {each: inspect.signature(getattr(module, each)).parameters for each in module.__all__}
    if "num_classes" not in kinds.get(name, ()):
        general = ", ".join(
            each for each, accepted in kinds.items() if {"task", "num_classes"} <= set(accepted)
        )
        raise UsageError(
            f"--metric {name}: torchmetrics has no metric of that name for several classes. "
            f"Use one of {general}."
        )
    return getattr(module, name), kinds[name]


def _parameter(text: str, item: str) -> tuple[str, Any]:
    """Return name and value of ``average=macro`` or ``top_k=2``: JSON where it is, else text."""
    name, equals, value = item.partition("=")
    if not equals:
        raise UsageError(f"--metric {text}: {item!r} is no parameter such as average=macro.")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _try_out(text: str, metric: "Metric", classes: int) -> None:
    """Show that a metric takes what an evaluation gives, and gives what it can report."""
    trial = TorchMetrics({text: metric})
    try:
        trial.update(torch.eye(classes), torch.arange(classes))
        trial.compute(SoloWorld())
    except UsageError:
        raise
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"--metric {text}: {error}") from None


def _parts(metric: "Metric") -> "list[Metric]":
    """Return a metric and those it is made of, in an order that all ranks share."""
    from torchmetrics import Metric

    return [part for part in metric.modules() if isinstance(part, Metric)]


def _taken(part: "Metric") -> State:
    """Return what a metric has kept, ready to travel."""
    return {
        name: [_on_cpu(item) for item in kept] if isinstance(kept, list) else _on_cpu(kept)
        for name, kept in part.metric_state.items()
    }


def _put(part: "Metric", states: list[State], weights: list[int]) -> None:
    """Let a metric have seen what the ranks have seen that kept `states`."""
    for name, reduce in part._reductions.items():  # noqa: SLF001 - nothing else says what a state means
        kept = [state[name] for state in states]
        if isinstance(kept[0], list):
            whole: Any = [_on(part.device, item) for items in kept for item in items]
        else:
            whole = _on(part.device, kept[0] if len(kept) == 1 else _reduced(reduce, kept, weights))
        setattr(part, name, whole)


def _reduced(reduce: Any, kept: list[Tensor], weights: list[int]) -> Tensor:
    """Return one state for those of several ranks; `reduce` is what torchmetrics does with them, stacked."""
    from torchmetrics.utilities import dim_zero_mean

    stacked = torch.stack(kept)
    if reduce is dim_zero_mean:  # which knows of no weights, but a sample is to count the same on any rank
        shares = torch.tensor(weights, dtype=torch.float64) / sum(weights)
        reduced: Tensor = torch.tensordot(shares, stacked.double(), dims=1).to(stacked.dtype)
    else:
        reduced = stacked if reduce is None else reduce(stacked)  # with None the metric itself goes on
    return reduced


def _numbers(name: str, value: Any) -> dict[str, float]:
    """Return what a metric gave as numbers with names: one, one for each of a row, or those of a mapping."""
    if isinstance(value, Mapping):
        return {key: number for k, v in value.items() for key, number in _numbers(f"{name}/{k}", v).items()}
    if isinstance(value, Tensor) and value.numel() == 1:
        return {name: float(value)}
    if isinstance(value, Tensor) and value.dim() == 1:
        return {f"{name}[{k}]": number for k, number in enumerate(value.tolist())}
    form = f"a table of {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
    raise UsageError(f"the metric {name} gives {form}: only a number, or one per class, can be reported.")


def _on_cpu(item: Any) -> Any:
    return _on(torch.device("cpu"), item)


def _on(device: torch.device, item: Any) -> Any:
    return item.to(device) if isinstance(item, Tensor) else item


def _never() -> bool:
    return False
