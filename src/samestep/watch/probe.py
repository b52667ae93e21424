"""Counts what a script does: its steps, samples and losses, whether it knows of other workers or not.

The probe hangs on what every training loop passes: calls of modules, `backward`, optimizer steps, fetches
of samples. It looks, and changes nothing (unless it is told to disturb gradients by their rounding).
"""

import mmap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer
from torch.utils.data import DistributedSampler
from torch.utils.data._utils.fetch import _BaseDatasetFetcher as Fetcher
from torch.utils.hooks import RemovableHandle

from samestep.replicas.batch_norm import uses_batch_statistics
from samestep.watch.drawn import Drawn
from samestep.watch.events import Listener, heard_by, parameters_of, redirected
from samestep.watch.inputs import data_in
from samestep.watch.sketch import norm, row_keys, sketch
from samestep.watch.trace import Facts, Held, Step, Writer
from samestep.watch.tree import leaves
from samestep.world.process_group import adopt

Within: TypeAlias = Callable[[], AbstractContextManager[Any]]
ROUNDING = 16
"""How many times the rounding of a gradient's size a disturbed one is off."""
ROUNDING_OF_HALF = 2
"""And of types whose unit in the last place is larger than `_HALF`: more would be no rounding any more."""
_HALF = 1e-4
_CPU = torch.device("cpu")
_WRAPPERS = ("module", "_orig_mod")
"""Names that wrappers put before those of a model's parameters."""


class Probe(Listener):
    """Sees what one rank of a script does.

    Args:
        writer: takes it down.
        rank: whose it is.
        limit: after how many steps of each optimizer the script is stopped.
        stop: stops it.
        printed: returns what has been printed.
        disturb: whether gradients are changed as much as rounding may, to see what comes of it.
        within: what outermost calls of modules are made within.
    """

    def __init__(
        self,
        writer: Writer,
        rank: int,
        *,
        limit: int,
        stop: Callable[[], None],
        printed: Callable[[], str],
        disturb: bool = False,
        within: Within = nullcontext,
    ) -> None:
        self.facts = Facts(rank=rank)
        self._writer, self._limit, self._stop, self._printed = writer, limit, stop, printed
        self._noise = torch.Generator().manual_seed(1) if disturb else None
        self._within = within
        self._step = Step(index=0)
        self._optimizers: list[Optimizer] = []
        """Those that have stepped."""
        self._made: list[Optimizer] = []
        self._before = 0
        """Backwards before the step that is being made."""
        self._modules: dict[int, nn.Module] = {}
        self._has_begun = False
        self._in_doubt: tuple[nn.Module, list[float]] | None = None
        """The call in evaluation mode that is being made, and the keys of its samples."""
        self._device = _CPU
        """Of the last model called."""
        self._fetched: Drawn | None = None
        """Where the generators stood once the last batch was fetched; None from a backward on."""
        self._epochs: dict[int, set[int]] = {}
        """That each sampler has shuffled for training."""
        self._fetches_drew = mmap.mmap(-1, 1)
        """Shared with the loaders' workers, which are forked."""

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Within, the script is seen."""
        with ExitStack() as stack:
            stack.enter_context(heard_by(self))
            stack.enter_context(redirected(Optimizer, "__init__", self._make))
            stack.enter_context(redirected(DistributedSampler, "__iter__", self._shuffle))
            for kind in Fetcher.__subclasses__():
                stack.enter_context(redirected(kind, "fetch", self._fetch))
            yield

    def end(self, ended: str, message: str = "") -> None:
        """Write down how the script ended."""
        facts = self.facts
        facts.ended, facts.message = ended, message
        facts.evaluated, facts.printed = self._step.evaluated, self._printed()
        facts.augmented = self._fetches_drew[0] == 1
        self._note_group()
        self._writer.end(facts)

    @contextmanager
    def call(self, module: nn.Module, given: Sequence[Any], *, is_training: bool) -> Iterator[None]:
        """See `Listener.call`."""
        keys = self._look_at(given)
        if is_training:
            self._learn_from(module, keys)
        else:
            self._step.evaluated += keys
        self._in_doubt = None if is_training else (module, keys)
        self._device = next(module.parameters()).device
        before = Drawn.now(self._device)
        with self._within():
            yield
        self._note_draws(before)

    def _look_at(self, given: Sequence[Any]) -> list[float]:
        """Return the keys of the samples that a module is given."""
        keys: list[float] = []
        for data in data_in(tuple(given)):
            keys += row_keys(data)
            device = data.device.type
            self._note_precision(
                torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else data.dtype
            )
        return keys

    def _learn_from(self, module: nn.Module, keys: Sequence[float]) -> None:
        """Take a call down as one of training."""
        if not self._has_begun:
            self._writer.begin(self._step.index)
            self._has_begun = True
        self._step.samples.extend(keys)
        if id(module) not in self._modules:
            self._modules[id(module)] = module
            self.facts.wrapped |= isinstance(module, DistributedDataParallel)
            self.facts.batch_norm |= any(
                isinstance(one, BatchNorm) and uses_batch_statistics(one) for one in module.modules()
            )

    def returned(self, outputs: Any) -> None:
        """See `Listener.returned`: a call in evaluation mode is one of training once it is differentiated."""
        if self._in_doubt is None:
            return
        (module, keys), self._in_doubt = self._in_doubt, None
        hooks: list[RemovableHandle] = []

        def differentiated(_: Tensor) -> None:
            while hooks:
                hooks.pop().remove()
            self._step.evaluated = list((Counter(self._step.evaluated) - Counter(keys)).elements())
            self._learn_from(module, keys)

        for _, one in leaves(outputs):
            if one.requires_grad:
                hooks.append(one.register_hook(differentiated))  # type: ignore[no-untyped-call]

    @contextmanager
    def backward(self, losses: Sequence[Tensor]) -> Iterator[None]:
        """See `Listener.backward`."""
        if self._fetched is not None:
            self._note_draws(self._fetched)
        yield
        self._fetched = None
        # Read now: with a steered script the loss is the global one only once it has been differentiated.
        self._step.losses += [float(one.detach()) for one in losses if one.numel() == 1]
        self._step.backwards += 1
        if self._noise is not None:
            self._disturb(self._noise)
        if not self._made and self._modules:
            self._backward_as_step()

    @contextmanager
    def loading(self) -> Iterator[None]:
        """See `Listener.loading`."""
        yield
        self._fetched = Drawn.now(self._device)

    def _backward_as_step(self) -> None:
        """Take a backward for the step of a script that updates its parameters itself."""
        parameters = self._of_modules()
        self._take_down(parameters)
        self._step.before = self._step.after = sketch(parameters)
        self._finish_step()

    def _of_modules(self) -> list[Tensor]:
        return [one for module in self._modules.values() for one in module.parameters()]

    def _disturb(self, noise: torch.Generator) -> None:
        """Change all gradients by as much as rounding may."""
        found = self._of_modules() + [one for optimizer in self._made for one in parameters_of(optimizer)]
        for parameter in {id(one): one for one in found}.values():
            if parameter.grad is not None:
                _disturb(parameter.grad, noise, max(self.facts.epsilon, _epsilon(parameter.grad.dtype)))

    def _make(self, original: Callable[..., Any], optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
        original(optimizer, *args, **kwargs)
        self._made.append(optimizer)

    def before_step(self, optimizer: Optimizer) -> None:
        """See `Listener.before_step`."""
        if optimizer not in self._optimizers:
            self._optimizers.append(optimizer)
        self._step.optimizer = self._optimizers.index(optimizer)
        self._step.learning_rates = [float(group["lr"]) for group in optimizer.param_groups if "lr" in group]
        self._before = self._step.backwards
        parameters = parameters_of(optimizer)
        self._take_down(parameters)
        self._step.before = sketch(parameters)

    def _take_down(self, parameters: Sequence[Tensor]) -> None:
        for parameter in parameters:
            self._note_precision(parameter.dtype)
            self.facts.parameter_epsilon = max(self.facts.parameter_epsilon, _epsilon(parameter.dtype))
        gradients = [parameter.grad for parameter in parameters]
        self._step.gradient_norm, self._step.gradient = norm(gradients), sketch(gradients)

    def after_step(self, optimizer: Optimizer) -> None:
        """See `Listener.after_step`."""
        parameters = parameters_of(optimizer)
        if self._step.backwards > self._before:  # by a closure, within the step
            self._take_down(parameters)
        self._step.after = sketch(parameters)
        self._note_parameters(optimizer)
        self._finish_step()

    def _note_parameters(self, optimizer: Optimizer) -> None:
        """Note what an optimizer holds, once the models of its first step are known."""
        lists, index = self.facts.parameters, self._optimizers.index(optimizer)
        if index < len(lists):
            return
        names = {
            id(parameter): f"{number}: {'.'.join(part for part in name.split('.') if part not in _WRAPPERS)}"
            for number, module in enumerate(self._modules.values())
            for name, parameter in module.named_parameters()
        }
        groups = enumerate(optimizer.param_groups)
        held = [
            Held(names.get(id(one), ""), tuple(one.shape), k)
            for k, group in groups
            for one in group["params"]
        ]
        lists += [[]] * (index - len(lists)) + [held]

    def _finish_step(self) -> None:
        self._note_group()
        self._step.printed = len(self._printed())
        self._writer.step(self._step)
        self._step = Step(index=self._step.index + 1)
        self._has_begun = False
        if self._step.index >= self._limit * max(1, len(self._optimizers)):
            self.end("steps")
            self._stop()

    def _shuffle(self, original: Callable[..., Any], sampler: Any) -> Any:
        indices = original(sampler)
        return self._followed(indices, sampler) if sampler.shuffle else indices

    def _followed(self, indices: Iterable[int], sampler: Any) -> Iterator[int]:
        """Yield the indices of an epoch, which counts as one only once a step was made meanwhile.

        A look at the first batch and an evaluation may well repeat an order.
        """
        epoch, begun, is_new = sampler.epoch, self._step.index, True
        known = self._epochs.setdefault(id(sampler), set())
        for index in (*indices, None):
            if is_new and self._step.index > begun:
                self.facts.repeated_epochs += epoch in known
                known.add(epoch)
                is_new = False
            if index is not None:
                yield index

    def _fetch(self, original: Callable[..., Any], fetcher: Any, indices: Any) -> Any:
        before = Drawn.now()
        fetched = original(fetcher, indices)
        if not before.same(Drawn.now()):
            self._fetches_drew[0] = 1
        return fetched

    def _note_draws(self, before: Drawn) -> None:
        after = Drawn.now(before.device[0] if before.device else _CPU)
        if not (self.facts.drew or before.same(after)):
            self.facts.drew, self.facts.stream = True, before.digest_of_moved(after)

    def _note_precision(self, dtype: torch.dtype) -> None:
        self.facts.epsilon = max(self.facts.epsilon, _epsilon(dtype))

    def _note_group(self) -> None:
        if dist.is_available() and dist.is_initialized():
            self.facts.met = max(self.facts.met, adopt().place.size)


def _epsilon(dtype: torch.dtype) -> float:
    """Return the unit in the last place of a type; none of whole numbers."""
    return torch.finfo(dtype).eps if dtype.is_floating_point or dtype.is_complex else 0.0


def _disturb(gradient: Tensor, noise: torch.Generator, epsilon: float) -> None:
    """Add what rounding in a type with this unit in the last place may."""
    rounding = epsilon * (ROUNDING_OF_HALF if epsilon > _HALF else ROUNDING)
    if gradient.is_sparse:
        gradient = gradient._values()  # noqa: SLF001 - itself, and also where indices repeat
    size = gradient.detach().double().pow(2).mean().sqrt() * rounding
    drawn = torch.randn(gradient.shape, generator=noise, dtype=torch.float64)
    gradient.add_((drawn * size.cpu()).to(gradient))
