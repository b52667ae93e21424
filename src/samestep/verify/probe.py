"""Records the steps, samples, losses and parameters of a script, distributed or not.

The probe receives the events of the training loop: module calls, `backward`, optimizer steps, fetches of
samples. It changes nothing, unless `disturb` adds rounding noise to the gradients.
"""

import mmap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary, ref

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer
from torch.utils.data import get_worker_info
from torch.utils.data._utils.fetch import _BaseDatasetFetcher as Fetcher

from samestep.autopilot.split.slice_context import known_to_compilers
from samestep.hooks import declarations
from samestep.hooks.random_draws import RngState
from samestep.hooks.registry import attached_all, attached_to, wrapping
from samestep.hooks.tensor_tree import data_in, leaves
from samestep.hooks.training_events import Listener, parameters_of, subscribed
from samestep.ranks.world.process_group import adopt
from samestep.verify.model_parallel import Parts
from samestep.verify.observers.check import Observer, after, on_first_gradient, with_forked_workers
from samestep.verify.observers.loss_graphs import loss_divisors
from samestep.verify.rank_features import compresses, normalizes_alone
from samestep.verify.run_length import RunLength
from samestep.verify.script_settings import module_settings, optimizer_settings
from samestep.verify.tensor_summary import (
    BUCKETS,
    KEY_DECIMALS,
    has_values,
    is_half_epsilon,
    norm,
    own_generator,
    rounded_keys,
    row_keys,
    row_sums,
    sketch,
)
from samestep.verify.trace import Facts, OptimizerParameter, Step, Writer

Context: TypeAlias = Callable[[], AbstractContextManager[Any]]
ROUNDING = 16
"""Size of the disturbance, in units of the rounding of the gradient's root mean square: a guess."""
ROUNDING_OF_HALF = 2
"""The same for half types, where more noise is no rounding any more: 16 units of bfloat16 are 12 %."""
_MOST_RESULTS = 8
"""Numbers of a tensor that holds results, such as sums and counts: a guess; gradients and outputs have
more."""
_MOST_EXCHANGED = 16  # tensors of collectives that are recorded: a guess
_GIVEN = ("tensor", "input", "input_tensor", "input_list", "input_tensor_list")
"""Names of what a rank gives to a collective that gathers."""
_CPU = torch.device("cpu")
_DIGEST = 4  # bytes of a digest of a random state
_WRAPPERS = ("module", "_orig_mod")  # prefixes that wrappers add to the names of a model's parameters


@dataclass(slots=True, eq=False)
class _Order:
    """One order of indices that a `DistributedSampler` has shuffled."""

    epochs: set[int]  # epochs in which steps were made with the sampler
    epoch: int  # number that `set_epoch` has set
    begun: int  # index of the step in which the first index was read
    is_counted: bool = False  # whether a step was made in this epoch


class Probe(Listener):
    """Records the training of one rank of a script.

    Args:
        writer: receives the steps.
        rank: the rank.
        length: decides after which step the script is stopped.
        stop: stops the script.
        printed: returns the output so far.
        disturb: whether to add noise of the size of rounding errors to the gradients.
        within: returns a context for each top-level forward.
    """

    def __init__(
        self,
        writer: Writer,
        rank: int,
        *,
        length: RunLength,
        stop: Callable[[], None],
        printed: Callable[[], str],
        disturb: bool = False,
        within: Context = nullcontext,
    ) -> None:
        self.facts = Facts(rank=rank)
        self._writer, self._length, self._stop, self._printed = writer, length, stop, printed
        self._noise = own_generator(1) if disturb else None
        self._within = within
        self._in_forward = False  # whether a model was called for training, and its backward has not begun
        self._observers: Sequence[Observer] = ()
        self.changed_files: Sequence[str] = ()
        """Paths of the files and folders that the script has created or changed so far."""
        self.parts = Parts({})
        """The places of this rank's parameters in those of the reference."""
        self._step = Step(index=0)
        self._optimizers: list[Optimizer] = []  # the optimizers that have stepped
        self._made: list[Optimizer] = []
        self._before = 0  # number of backwards before the current optimizer step
        self._modules: dict[int, nn.Module] = {}
        self._has_begun = False
        self._calls_of_training = _CallsOfTraining(lambda model: self.model_of(model) is not None)
        self._eval_call: tuple[nn.Module, list[float], list[float]] | None = None
        """The module, sample keys and their sums of the current call in evaluation mode."""
        self._device = _CPU  # device of the last model called
        self._fetched: RngState | None = None
        """Random state after the last batch of a DataLoader, or a backward after it; None before."""
        self._epochs: WeakKeyDictionary[Any, set[int]] = WeakKeyDictionary()
        """Epochs that each sampler has shuffled for training."""
        self._reading: int | None = None  # what gives the indices of the loader that reads them now, by id
        self._orders: dict[int, dict[int, _Order]] = {}
        """The last order of each sampler that the pass over a loader has read, by the loader's
        `_index_sampler`; a loader with workers begins it twice."""
        self._passes: Counter[int] = Counter()
        """Whole passes over each loader, by the id of what gives its indices."""
        self._samplers: dict[int, Any] = {}
        """References to what gives these indices, by its id."""
        self._passes_before = 0
        """Those over the loader of the last batch, before this one."""
        self._fetches_drew = mmap.mmap(-1, 1 + _DIGEST)
        """A flag, and the random state of the first draw, shared with the loaders' forked workers."""

    @contextmanager
    def attached(self, observers: Sequence[Observer] = ()) -> Iterator[None]:
        """Record the script for the duration of a block, with the notes of these observers."""
        self._observers = observers
        with ExitStack() as stack:
            stack.enter_context(subscribed(self))
            stack.enter_context(known_to_compilers())
            for observer in observers:
                stack.enter_context(observer.attached())
            hooks = {
                declarations.NEW_OPTIMIZER: after(self._made.append),
                declarations.SHUFFLED: wrapping(self._shuffle),
                declarations.EPOCH_BEGIN: wrapping(self._begin_pass),
                declarations.DELIVERED_BATCH: wrapping(self._next_batch),
                declarations.JOINED: wrapping(self._join),
                declarations.COMMUNICATION_HOOK: wrapping(self._note_compression),
                **dict.fromkeys(declarations.NORM_CLIPS, wrapping(self._clip)),
                **dict.fromkeys(declarations.REDUCTIONS, wrapping(self._reduce)),
                **dict.fromkeys(declarations.GATHERS, wrapping(self._gather)),
            }
            stack.enter_context(attached_all(hooks))
            for kind in Fetcher.__subclasses__():
                stack.enter_context(attached_to(kind, declarations.PROBED_FETCH, wrapping(self._fetch)))
            yield

    @property
    def position(self) -> tuple[int, int]:
        """Number of the current step, and of the backward in it."""
        return self._step.index, self._step.backwards

    def model_of(self, module: nn.Module) -> int | None:
        """Return the number of the trained model that has the parameters of a module; None without one."""
        first = next(module.parameters(), None)
        models = enumerate(self._modules.values())
        return next(
            (k for k, model in models if any(parameter is first for parameter in model.parameters())), None
        )

    def end(self, ended: str, message: str = "") -> None:
        """Write how the script ended."""
        facts = self.facts
        facts.ended, facts.message = ended, message
        step = self._step
        facts.evaluated, facts.combined, facts.gathered = step.evaluated, step.combined, step.gathered
        facts.printed = self._printed()
        facts.augmented = self._fetches_drew[0] == 1
        facts.fetch_stream = int.from_bytes(self._fetches_drew[1:], "little")
        facts.frozen = self._calls_of_training.of_untrained_models()
        facts.written = self.written()
        facts.notes = [note for observer in self._observers for note in observer.notes()]
        self._note_group()
        self._writer.write("facts", facts)

    def note_dropout(self, name: str, rate: float) -> None:
        """Record that a function drops values at a rate in training."""
        rates = self.facts.dropouts.setdefault(name, [])
        if rate not in rates:
            rates.append(rate)

    def written(self) -> list[str]:
        """Return the paths of the files that the script has written and not removed, in this order."""
        return [path for path in dict.fromkeys(self.changed_files) if Path(path).is_file()]

    @contextmanager
    def call(self, module: nn.Module, inputs: Sequence[Any], *, is_training: bool) -> Iterator[None]:
        """See `Listener.call`."""
        keys, sums = self._sample_keys(inputs)
        if is_training:
            self._add_training_call(module, keys, sums)
        else:
            self._step.evaluated += keys
            self._calls_of_training.add(module, keys)
        self._eval_call = None if is_training else (module, keys, sums)
        self._device = next(module.parameters()).device
        before = RngState.now(self._device)
        with self._within():
            yield
        self._note_draws(before)

    def _sample_keys(self, inputs: Sequence[Any]) -> tuple[list[float], list[float]]:
        """Return the keys of the samples in a module's inputs, and the sum of each one's elements."""
        keys: list[float] = []
        sums: list[float] = []
        for data in filter(has_values, data_in(tuple(inputs))):
            keys += row_keys(data)
            sums += row_sums(data)
            device = data.device.type
            self._note_precision(
                torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else data.dtype
            )
        return keys, sums

    def _add_training_call(self, module: nn.Module, keys: Sequence[float], sums: Sequence[float]) -> None:
        if not self._has_begun:
            self._writer.write("begun", self._step.index)
            self._has_begun = True
        self._step.samples.extend(keys)
        self._step.sums.extend(sums)
        self._in_forward = True
        self._step.passes = self._passes_before
        if id(module) not in self._modules:
            self._modules[id(module)] = module
            untrained = (
                *module.buffers(),
                *(tensor for tensor in module.parameters() if not tensor.requires_grad),
            )
            self.facts.buffers += sketch(untrained)
            self.facts.modules |= module_settings(len(self._modules) - 1, module)
            self.facts.wrapped |= isinstance(module, DistributedDataParallel)
            self.facts.batch_norm |= any(map(normalizes_alone, module.modules()))

    def returned(self, outputs: Any) -> None:
        """See `Listener.returned`; a call in evaluation mode is a training call if a backward follows."""
        if self._eval_call is None:
            return
        (module, keys, sums), self._eval_call = self._eval_call, None

        def trained() -> None:
            self._step.evaluated = list((Counter(self._step.evaluated) - Counter(keys)).elements())
            self._add_training_call(module, keys, sums)

        on_first_gradient(outputs, trained)

    @contextmanager
    def backward(self, losses: Sequence[Tensor]) -> Iterator[None]:
        """See `Listener.backward`."""
        self._in_forward = False
        if self._fetched is not None:
            self._note_draws(self._fetched)
        self._step.divisors += loss_divisors(losses)
        yield
        if self._fetched is not None:  # a GAN draws noise between two backwards
            self._fetched = RngState.now(self._device)
        # Read after backward: only then the loss of a replicated script is that of the global batch.
        self._step.losses += [float(loss.detach().real) for loss in losses if loss.numel() == 1]
        self._step.backwards += 1
        if self._noise is not None:
            self._disturb(self._noise)
        if not self._made and self._modules:
            self._backward_as_step()

    @contextmanager
    def loading(self) -> Iterator[None]:
        """See `Listener.loading`."""
        yield
        self._fetched = RngState.now(self._device)

    def _backward_as_step(self) -> None:
        """Record a backward as a step, for a script that updates its parameters without an optimizer."""
        parameters = self._of_modules()
        self._record_gradients(parameters)
        self._step.before = self._step.after = self._sketch(parameters)
        self._finish_step()

    def _of_modules(self) -> list[Tensor]:
        return [parameter for module in self._modules.values() for parameter in module.parameters()]

    def _disturb(self, noise: torch.Generator) -> None:
        """Add noise of the size of rounding errors to all gradients."""
        parameters = self._of_modules() + [
            parameter for optimizer in self._made for parameter in parameters_of(optimizer)
        ]
        for parameter in {id(parameter): parameter for parameter in parameters}.values():
            if parameter.grad is not None:
                add_rounding(parameter.grad, noise, max(self.facts.epsilon, _epsilon(parameter.grad.dtype)))

    def before_step(self, optimizer: Optimizer) -> None:
        """See `Listener.before_step`."""
        if optimizer not in self._optimizers:
            self._optimizers.append(optimizer)
        self._step.optimizer = self._optimizers.index(optimizer)
        groups = [group for group in optimizer.param_groups if "lr" in group]
        self._step.learning_rates = [float(group["lr"] or 0.0) for group in groups]  # None: its own
        self._step.weight_decays = [float(group.get("weight_decay") or 0.0) for group in groups]
        self._before = self._step.backwards
        parameters = parameters_of(optimizer)
        self._record_gradients(parameters)
        self._step.before = self._sketch(parameters)

    def _clip(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Record the norm of gradients before they are clipped, because clipping hides their scale."""
        total = original(*args, **kwargs)
        if type(total) is Tensor:  # the number of a DTensor is that of one shard
            self._step.unclipped = float(total)
        return total

    def _reduce(self, original: Callable[..., Any], tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """Record the few numbers that the ranks combine in an evaluation."""
        self._note_exchange(tensor)
        work = original(tensor, *args, **kwargs)
        is_small = type(tensor) is Tensor and tensor.numel() <= _MOST_RESULTS and not tensor.is_complex()
        if is_small and work is None and self._step.evaluated:
            self._step.combined += tensor.detach().double().flatten().tolist()
        return work

    def _gather(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Record that the ranks exchange results in an evaluation."""
        self._step.gathered |= bool(self._step.evaluated)
        self._note_exchange(args[1:2] or [kwargs.get(name) for name in _GIVEN])
        return original(*args, **kwargs)

    def _note_exchange(self, inputs: Any) -> None:
        """Record what a forward of the first step gives to a collective: activations, no parameters."""
        if not self._in_forward or self._step.index or len(self.facts.exchanged) >= _MOST_EXCHANGED * BUCKETS:
            return
        addresses = {
            parameter.data_ptr() for parameter in self._of_modules() if type(parameter) is nn.Parameter
        }
        self.facts.exchanged += sketch(
            tensor
            for _, tensor in leaves(inputs)
            if type(tensor) is Tensor
            and tensor.numel() > _MOST_RESULTS
            and tensor.data_ptr() not in addresses
        )

    def _record_gradients(self, parameters: Sequence[Tensor]) -> None:
        for parameter in parameters:
            self._note_precision(parameter.dtype)
            self.facts.parameter_epsilon = max(self.facts.parameter_epsilon, _epsilon(parameter.dtype))
        gradients = [parameter.grad for parameter in parameters]
        places = self.parts.places(parameters, self._names)
        self._step.gradient_norm, self._step.gradient = norm(gradients), sketch(gradients, places)

    def _sketch(self, parameters: Sequence[Tensor]) -> list[float]:
        return sketch(parameters, self.parts.places(parameters, self._names))

    def _names(self) -> dict[int, str]:
        """Return the name of each parameter of a trained model, by id: index of the model and name in it."""
        return {
            id(parameter): f"{number}: {plain_name(name)}"
            for number, module in enumerate(self._modules.values())
            for name, parameter in module.named_parameters()
        }

    def after_step(self, optimizer: Optimizer) -> None:
        """See `Listener.after_step`."""
        parameters = parameters_of(optimizer)
        if self._step.backwards > self._before:  # a closure ran backward inside the step
            self._record_gradients(parameters)
        self._step.after = self._sketch(parameters)
        if self._has_initialized():
            return
        self._note_parameters(optimizer)
        self._finish_step()

    def _has_initialized(self) -> bool:
        """Return whether a step without a training call only made the optimizer's state, to load it."""
        step = self._step
        is_idle = not (step.samples or step.backwards or step.gradient_norm)
        return is_idle and step.before == step.after

    def _note_parameters(self, optimizer: Optimizer) -> None:
        """Record an optimizer's parameters after its first step, when the models are known."""
        lists, index = self.facts.parameters, self._optimizers.index(optimizer)
        if index < len(lists):
            return
        names, parts = self._names(), self.parts
        groups = enumerate(optimizer.param_groups)
        held = [
            OptimizerParameter(names.get(id(parameter), ""), parts.whole_of(parameter), k)
            for k, group in groups
            for parameter in group["params"]
        ]
        lists += [[]] * (index - len(lists)) + [held]
        self.facts.optimizers += [[]] * (index - len(self.facts.optimizers)) + [optimizer_settings(optimizer)]
        self.facts.parts |= parts.counts(names)
        self.facts.without_optimizer = self._without_optimizer(names)
        self.facts.same_batch = _ranks_of_same_batch(self._modules.values())

    def _without_optimizer(self, names: Mapping[int, str]) -> list[OptimizerParameter]:
        held = {id(parameter) for optimizer in self._made for parameter in parameters_of(optimizer)}
        return [
            OptimizerParameter(names[id(parameter)], tuple(parameter.shape), 0)
            for parameter in self._of_modules()
            if parameter.requires_grad and id(parameter) not in held
        ]

    def _finish_step(self) -> None:
        self._note_group()
        self._calls_of_training.remove_from(self._step)
        self._step.printed = len(self._printed())
        self._writer.write("step", self._step)
        done = self._step
        self._step = Step(index=done.index + 1)
        self._has_begun = False
        if self._length.is_reached(done, optimizers=len(self._optimizers)):
            self.end("steps")
            self._stop()

    def _join(self, original: Callable[..., Any], context: Any, *error: Any) -> Any:
        """Record a step of the other ranks whenever this rank, which has no batch left, joins in one."""
        last = context._join_hooks[-1]  # noqa: SLF001
        shadow, model = last.main_hook, getattr(last, "ddp", None)

        def main_hook() -> None:
            index = self._step.index
            shadow()
            averages = model is None or model.require_forward_param_sync  # else others only accumulate
            if averages and self._step.index == index:  # no optimizer has stepped here
                self._writer.write("begun", index)
                self._step = Step(index=index, joined=True)
                self._finish_step()

        last.main_hook = main_hook
        return original(context, *error)

    def _note_compression(
        self, original: Callable[..., Any], model: Any, state: Any, hook: Callable[..., Any]
    ) -> None:
        if compresses(hook):
            self.facts.compressed = hook.__name__
        original(model, state, hook)

    def _shuffle(self, original: Callable[..., Any], sampler: Any) -> Any:
        indices = original(sampler)
        return self._followed(indices, sampler) if sampler.shuffle else indices

    def _followed(self, indices: Iterable[int], sampler: Any) -> Iterator[int]:
        """Yield the indices of an epoch, and count the epoch once a step was made in it.

        Reading only the first batch, or evaluating, may repeat an order. A batch sampler or the workers of a
        loader may read all indices before the first step; then the next batch of that loader counts.
        """
        epochs = self._epochs.setdefault(sampler, set())
        order = _Order(epochs, sampler.epoch, self._step.index)
        if self._reading is not None:
            self._orders.setdefault(self._reading, {})[id(sampler)] = order
        for index in (*indices, None):
            self._count_epoch(order)
            if index is not None:
                yield index

    def _count_epoch(self, order: _Order) -> None:
        if not order.is_counted and self._step.index > order.begun:
            self.facts.repeated_epochs += order.epoch in order.epochs
            order.epochs.add(order.epoch)
            order.is_counted = True

    def _begin_pass(self, original: Callable[[Any], Any], loader: Any) -> Any:
        source = id(loader._index_sampler)  # noqa: SLF001 - as in `_next_batch`
        self._orders[source] = {}
        with self._reads(source):
            return with_forked_workers(original, loader)

    @contextmanager
    def _reads(self, source: int) -> Iterator[None]:
        """Record for the duration of a block that a loader may read indices from a source."""
        before, self._reading = self._reading, source
        try:
            yield
        finally:
            self._reading = before

    def _next_batch(self, original: Callable[[Any], Any], iterator: Any) -> Any:
        sampler = iterator._index_sampler  # noqa: SLF001 - the same in all passes over a loader
        loader = id(sampler)
        if loader not in self._samplers:
            self._passes.pop(loader, None)  # of a loader that is gone, whose id is used again
            self._samplers[loader] = _reference(sampler, partial(self._samplers.pop, loader, None))
        for order in self._orders.get(loader, {}).values():
            self._count_epoch(order)
        try:
            with self._reads(loader):
                batch = original(iterator)
        except StopIteration:
            self._passes[loader] += 1
            raise
        self._passes_before = self._passes[loader]
        return batch

    def _fetch(self, original: Callable[..., Any], fetcher: Any, indices: Any) -> Any:
        before = RngState.now()
        fetched = original(fetcher, indices)
        now = RngState.now()
        if not before.same(now):
            self._fetches_drew[0] = 1
            worker = get_worker_info()  # each worker of a loader has a seed of its own
            if not any(self._fetches_drew[1:]) and (worker is None or worker.id == 0):
                self._fetches_drew[1:] = before.digest_of_changed(now).to_bytes(_DIGEST, "little")
        return fetched

    def _note_draws(self, before: RngState) -> None:
        after = RngState.now(before.device[0] if before.device else _CPU)
        if self._step.stream or before.same(after):
            return
        self._step.stream = before.digest_of_changed(after)
        if not self.facts.drew:
            self.facts.drew, self.facts.stream = True, self._step.stream

    def _note_precision(self, dtype: torch.dtype) -> None:
        self.facts.epsilon = max(self.facts.epsilon, _epsilon(dtype))

    def _note_group(self) -> None:
        if dist.is_available() and dist.is_initialized():
            self.facts.group_size = max(self.facts.group_size, adopt().place.size)


def _reference(value: Any, at_end: Callable[[], Any]) -> Any:
    """Return a reference to an object that calls `at_end` when it is gone; the object if it can have none."""
    try:
        return ref(value, lambda _: at_end())
    except TypeError:  # a list of indices
        return value


def plain_name(name: str) -> str:
    """Return the name of a part of a model without the prefixes that wrappers add."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def _epsilon(dtype: torch.dtype) -> float:
    """Return the machine epsilon of a dtype; 0 for integers."""
    return torch.finfo(dtype).eps if dtype.is_floating_point or dtype.is_complex else 0.0


def add_rounding(tensor: Tensor, noise: torch.Generator, epsilon: float) -> None:
    """Add noise of the size of rounding errors at this machine epsilon."""
    rounding = epsilon * (ROUNDING_OF_HALF if is_half_epsilon(epsilon) else ROUNDING)
    if tensor.is_sparse:
        tensor = tensor._values()  # noqa: SLF001 - itself, and also where indices repeat
    elif hasattr(tensor, "to_local"):  # a DTensor of one worker, with the storage of its local tensor
        tensor = tensor.to_local()
    size = tensor.detach().abs().double().pow(2).mean().sqrt() * rounding
    dtype = torch.complex128 if tensor.is_complex() else torch.float64
    drawn = torch.randn(tensor.shape, generator=noise, dtype=dtype, device="cpu")
    tensor.add_((drawn * size.cpu()).to(tensor))


class _CallsOfTraining:
    """Separates the calls without gradients of one rank that are no evaluations.

    In a rollout, a model in training mode is called on samples that it is trained on afterwards and was not
    trained on before; or it is called before every step, as where it chooses an action. A teacher and a
    target network are never trained, and called before every step in any mode.

    Args:
        is_trained: returns whether a model has parameters of one that was trained so far.
    """

    def __init__(self, is_trained: Callable[[nn.Module], bool]) -> None:
        self._is_trained = is_trained
        self._at_first: dict[ref[nn.Module], list[float]] = {}
        """Sketches of the parameters of models at their first call, if they were not trained before."""
        self._trained_on: set[float] = set()  # keys of the samples of earlier steps
        self._since_step: dict[tuple[nn.Module, bool], list[float]] = {}
        """Keys of the samples since the last step, by model and if it was in training mode."""
        self._always: set[int] | None = None
        """Ids of the models with such calls before every step so far; None before the first step."""

    def add(self, model: nn.Module, keys: Sequence[float]) -> None:
        """Add the samples of a call without gradients."""
        self._since_step.setdefault((model, model.training), []).extend(keys)
        if ref(model) not in self._at_first and not self._is_trained(model):
            self._at_first[ref(model)] = sketch(model.parameters())

    def of_untrained_models(self) -> list[float]:
        """Return sketches of the parameters of all models that are never trained, at their first call."""
        sketches: list[float] = []
        for weak, numbers in self._at_first.items():
            model = weak()
            if model is None or not self._is_trained(model):  # trained ones are kept alive
                sketches += numbers
        return sketches

    def remove_from(self, step: Step) -> None:
        """Remove these calls from the evaluations before a step that has all samples since the last one."""
        calls, self._since_step = self._since_step, {}
        trained = {id(model) for model, _ in calls if self._is_trained(model)}
        of_training = [
            (id(model), keys)
            for (model, is_training), keys in calls.items()
            if is_training or id(model) not in trained
        ]
        called = {model for model, _ in of_training}
        self._always = called if self._always is None else self._always & called
        removed = rounded_keys(key for model, keys in of_training if model in self._always for key in keys)
        played = rounded_keys(key for (_, is_training), keys in calls.items() if is_training for key in keys)
        used = rounded_keys(step.samples)
        is_new = 2 * len(played - self._trained_on) > len(played)
        if is_new and used and 2 * len(used & played) >= len(used):
            step.has_rollout, removed = True, removed | played
        step.has_rollout |= bool(self._always & trained)
        step.evaluated = [key for key in step.evaluated if round(key, KEY_DECIMALS) not in removed]
        self._trained_on |= used


def _ranks_of_same_batch(models: Iterable[nn.Module]) -> list[int]:
    """Return this rank and the others that get the same batches; empty without tensor parallelism.

    A mesh dimension of a `DTensor` parameter is one of tensor parallelism, unless `fully_shard` shards the
    parameter along it: the ranks of such a dimension get batches of their own.
    """
    for model in models:
        of_data = _data_dimensions(model)
        for parameter in model.parameters():
            mesh = getattr(parameter, "device_mesh", None)
            first = of_data.get(id(parameter), 0)
            if mesh is not None and first < mesh.ndim and mesh.get_coordinate() is not None:
                here = (*mesh.get_coordinate()[:first], *[slice(None)] * (mesh.ndim - first))
                ranks: list[int] = mesh.mesh[here].flatten().tolist()
                return sorted(ranks)
    return []


def _data_dimensions(model: nn.Module) -> dict[int, int]:
    """Return the number of leading mesh dimensions over which `fully_shard` shards each parameter, by id."""
    return {
        id(sharded.sharded_param): sharded.mesh_info.mesh.ndim
        for module in model.modules()
        for sharded in _sharded_parameters(module)
    }


def _sharded_parameters(module: Any) -> Iterator[Any]:
    state = module._get_fsdp_state() if hasattr(module, "_get_fsdp_state") else None  # noqa: SLF001
    group = getattr(state, "_fsdp_param_group", None)
    yield from () if group is None else group.fsdp_params
