"""Records the module calls that lead to one step of a script, with inputs, outputs and their gradients."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from inspect import unwrap
from os import getpid
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from samestep.autopilot.script.call_account import calling_site, is_user_code
from samestep.base.folders import shown
from samestep.hooks import declarations
from samestep.hooks.registry import attached, named
from samestep.hooks.tensor_tree import data_in, leaves
from samestep.ranks.hang.script_position import place_of_code
from samestep.verify.probe import Probe, add_rounding, plain_name
from samestep.verify.tensor_summary import has_values, is_plain, own_generator, row_keys, sketch, summarize
from samestep.verify.trace import Call, Gradient, Role, Value, Writer

_WRAPPERS = (DistributedDataParallel, DataParallel)
"""Modules that only call the one inside, which is recorded instead."""
_NO_BATCH = -1


class ModuleRecorder:
    """Records the module calls of one step and of the previous one, whose outputs the step can still use.

    A module is recorded if it is in training mode or gradients are enabled, so that evaluations are not. The
    gradients are read in autograd's graph, so that the tensors that the script holds do not change.

    Args:
        writer: receives the record.
        probe: counts the steps and backwards.
        step: number of the step.
        with_parts: whether the modules inside of a called one are recorded too.
        disturb: whether the parameters of a module are disturbed by rounding before its first call.
    """

    def __init__(self, writer: Writer, probe: Probe, *, step: int, with_parts: bool, disturb: bool) -> None:
        self._writer, self._probe, self._step, self._with_parts = writer, probe, step, with_parts
        self._noise = own_generator(2) if disturb else None
        self._process = getpid()
        self._calls = 0
        self._running: list[Call] = []
        self._numbers: Counter[tuple[int, str]] = Counter()
        self._roots: dict[int, nn.Module] = {}
        """The top-level modules by their ids, in the order of first calls."""
        self._model: int | None = None
        self._names: dict[int, str] = {}  # names of the parts of the current top-level module
        self._samples = 0
        self._batch = _NO_BATCH
        self._tensors: dict[tuple[int, int], int] = {}
        """Number of each tensor, by the id of its node in the graph and its position among the results."""
        self._nodes: list[Any] = []  # the nodes, kept so that no other node gets the id of one

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Record for the duration of a block."""
        with attached(declarations.RECORDED_CALL, named(self._wrap)):
            yield

    def _wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not self._records(module):
                return original(module, *args, **kwargs)
            return self._recorded(original, module, args, kwargs)

        return call

    def _records(self, module: nn.Module) -> bool:
        step, _ = self._probe.position
        return (
            self._step - 1 <= step <= self._step
            and (module.training or torch.is_grad_enabled())
            and (self._with_parts or not self._running)
            and not isinstance(module, _WRAPPERS)
            and getpid() == self._process
        )

    def _recorded(
        self, original: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        call = self._begin(module, (*args, *kwargs.values()))
        self._record_values(call, "input", (args, kwargs))
        self._running.append(call)
        try:
            outputs = original(module, *args, **kwargs)
        finally:
            self._running.pop()
        self._record_values(call, "output", outputs)
        return outputs

    def _begin(self, module: nn.Module, inputs: Sequence[Any]) -> Call:
        """Write that a call has begun."""
        if not self._running:
            self._begin_root(module, inputs)
        parent = self._running[-1] if self._running else None
        root, name = self._root_and_name(module, parent)
        site = calling_site()
        called = shown(site.file), site.line
        call = Call(
            index=self._calls,
            parent=None if parent is None else parent.index,
            root=root,
            model=self._model,
            name=name,
            kind=type(module).__name__,
            number=self._numbers[root, name],
            place=_forward_of(module) or called,
            called=called,
            parameters=[] if parent else sketch(module.parameters()),
        )
        self._calls += 1
        self._numbers[root, name] += 1
        self._writer.write("call", call)
        return call

    def _begin_root(self, module: nn.Module, inputs: Sequence[Any]) -> None:
        """Number a top-level module, disturb it before its first call, and record its batch."""
        if id(module) not in self._roots:
            self._roots[id(module)] = module
            if self._noise is not None:
                with_values = filter(has_values, module.parameters())
                for parameter in filter(torch.is_floating_point, with_values):
                    add_rounding(parameter.data, self._noise, torch.finfo(parameter.dtype).eps)
        self._model = self._probe.model_of(module)
        self._names = {id(part): plain_name(name) for name, part in module.named_modules()}
        # A loss has no parameters, and its first argument without a gradient is a target.
        if next(module.parameters(), None) is not None:
            keys = [key for data in data_in(tuple(inputs)) for key in row_keys(data)]
            if keys:
                self._batch, self._samples = self._batch + 1, len(keys)
                self._writer.write("batch", keys)

    def _root_and_name(self, module: nn.Module, parent: Call | None) -> tuple[int, str]:
        """Return the number of the top-level module, and the qualified name in it."""
        if parent is None:
            return list(self._roots).index(id(module)), ""
        known = self._names.get(id(module))  # a module that is no part of its caller has no name in it
        return parent.root, f"{parent.name}.{type(module).__name__}" if known is None else known

    def _record_values(self, call: Call, role: Role, held: Any) -> None:
        for leaf, (_, tensor) in enumerate(leaves(held)):
            if is_plain(tensor):
                self._writer.write(
                    "value",
                    Value(
                        call=call.index,
                        role=role,
                        leaf=leaf,
                        tensor=self._followed(tensor),
                        batch=self._batch,
                        summary=summarize(tensor, self._samples),
                    ),
                )

    def _followed(self, tensor: Tensor) -> int | None:
        """Return the number of a tensor whose gradient is recorded; None for one without."""
        node = tensor.grad_fn
        if node is None:
            return None
        key = id(node), tensor.output_nr
        if key not in self._tensors:
            self._tensors[key] = len(self._tensors)
            self._nodes.append(node)
            # Not a hook of the tensor, which a call that samestep splits does not accept.
            on_gradient = partial(self._on_gradient, self._tensors[key], tensor.output_nr, self._samples)
            node.register_prehook(on_gradient)
        return self._tensors[key]

    def _on_gradient(
        self, tensor: int, position: int, samples: int, gradients: Sequence[Tensor | None]
    ) -> None:
        step, backward = self._probe.position
        gradient = gradients[position]
        if step == self._step and gradient is not None and is_plain(gradient):
            summary = summarize(gradient, samples)
            self._writer.write("gradient", Gradient(tensor=tensor, backward=backward, summary=summary))


def _forward_of(module: nn.Module) -> tuple[str, int] | None:
    """Return the line of the forward of a module's class; None if the class is of a library."""
    forward = getattr(type(module), "forward", None)  # none of a TorchScript module's class
    code = getattr(unwrap(forward), "__code__", None) if callable(forward) else None
    if code is None or not is_user_code(code.co_filename):
        return None
    return place_of_code(code)
