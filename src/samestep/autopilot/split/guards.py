"""Collects the guards of a call, the flags, numbers and texts that it may depend on, and finds its hooks.

The result of an equivalence check is valid for equal guards only: a model that gets the number of its epoch
may compute something else in the next one. A hook would get a slice instead of the whole batch.
"""

import hashlib
import sys
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from itertools import chain, islice
from math import copysign
from operator import is_
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary, ref

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import disable_saved_tensors_hooks
from torch.nn.modules import module as torch_modules
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.loss import _Loss
from torch.nn.modules.rnn import RNNBase
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize
from torch.nn.utils.rnn import PackedSequence
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from samestep.autopilot.split.call_arguments import CallArguments
from samestep.autopilot.state.reachable_state import (
    DEEPEST,
    LISTS,
    MODULE_ATTRIBUTES,
    MOST_KEYS,
    PLAIN,
    is_record,
    is_setting,
    marks_of,
    modules_of,
    reached,
    walked,
)
from samestep.autopilot.state.saved_state import is_count, version_of
from samestep.hooks import module_parts
from samestep.hooks.object_graph import Key, stored_in, walk
from samestep.hooks.raw_containers import base_of, elements, is_mapping, items, length
from samestep.hooks.tensor_tree import leaves, parts_beside_tensors, text

Attributes: TypeAlias = Mapping[Key, Any]
"""Values by the index of their module among the called module's submodules, and by their name."""

_BATCHES = "num_batches_tracked"
"""The counter of batch norm, on which no forward branches; as a guard it would be new in each call."""
_DRAWING: tuple[tuple[type[nn.Module], str], ...] = (
    (_DropoutNd, "p"),
    (nn.MultiheadAttention, "dropout"),
    (RNNBase, "dropout"),
)
"""Layers of torch whose calls depend on a number, and the attribute that holds it."""
_DIMS_OF_MATRIX = 2
_COLLECTORS = {"transformers.utils.output_capturing": "_active_collector"}
"""Modules of libraries whose hooks collect outputs of layers, and the variable for those of the call."""
_OF_EACH_SAMPLE = {("transformers.modeling_utils", "make_inputs_require_grads")}
"""Hooks of libraries that do the same for each sample; this one gives activation checkpoints gradients."""
MOST_OBJECTS = 4096  # that each call compares, some milliseconds: a guess
_COMPARED_BY_VALUE = (
    np.generic,
    bytes,
    complex,
    range,
    Fraction,
    Decimal,
    torch.dtype,
    torch.device,
    torch.memory_format,
    np.dtype,
    PurePath,
)
"""Classes of other values that do not change in place, and that a forward may compare."""
_ATOMS = (*PLAIN, *_COMPARED_BY_VALUE, FunctionType, MethodType, BuiltinFunctionType, type, Enum)
"""Classes of values that are guards themselves, not by their parts."""
_CHANGING = (Iterator, bytearray, array, memoryview, torch.UntypedStorage)
"""Classes of arguments that a call may use up or write to; a file and a text buffer are iterators, too."""
_MOST_ELEMENTS, _MOST_OF_LIST = 1 << 16, 16
"""Elements of arrays whose digest, and of lists whose values are guards: guesses, as each call compares
them."""


def plain_arguments(arguments: CallArguments) -> tuple[Any, ...]:
    """Return what a forward may branch on in a call's arguments, beside the form and samples of tensors.

    It may ask for the class of each part, such as an empty list, which stands for no value. A tensor of one
    number has no samples.
    """
    named = [*enumerate(arguments.args), *arguments.kwargs.items()]
    return tuple(
        (key, type(value), _guard_of(value))
        for name, argument in named
        for (_, key), value in islice(walked(str(name), argument), MOST_OBJECTS)
    )


def _guard_of(value: Any) -> Any:
    """Return a number, a text, or another value with a hash that stands for this one; None if parts do."""
    if isinstance(value, (*PLAIN, np.generic)):
        guard = _with_sign(value.item() if isinstance(value, np.generic) else value)
    elif isinstance(value, _COMPARED_BY_VALUE):
        guard = value
    elif isinstance(value, _ATOMS):
        guard = _identity(value)
    elif isinstance(value, slice):  # it has no hash in each Python
        guard = tuple(map(_guard_of, (value.start, value.stop, value.step)))
    elif isinstance(value, Tensor):
        guard = _with_sign(value.item()) if _is_constant(value) else None
    elif isinstance(value, np.ndarray):
        numbers = _few_numbers(value)
        guard = value.dtype, _digest_of(value) if numbers is None else numbers
    else:
        guard = _digest_of_numbers(value)
    return guard


def plain_attributes(module: nn.Module) -> Attributes:
    """Return the flags, numbers and texts that a module's forward may depend on.

    They are the attributes of user-defined modules, the globals that their functions refer to, the dropout
    probabilities, the training mode of each module, and the number of parameters that require gradients.
    So are the numbers in short tensors and in buffers of one floating-point number.
    """
    reach = Reach.of(module)
    return {**reach.plain, **reach.of_tensors}


@dataclass(frozen=True, slots=True)
class Reach:
    """The values that the forward of a module can reach, found in one walk."""

    values: Sequence[tuple[Key, Any]]
    plain: Attributes
    """The flags, numbers and texts, without those in tensors."""
    of_tensors: Attributes
    """The numbers in short tensors, and in buffers of one floating-point number."""
    settings: "tuple[_Settings, ...]"
    """The settings of each of torch's layers."""
    is_whole: bool
    """Whether these are all of them: the walk ends at `MOST_OBJECTS`."""

    @classmethod
    def of(cls, module: nn.Module) -> "Reach":
        """Return what a module reaches now."""
        values, is_whole = _all_reached(module)
        plain, of_tensors = _plain_in(values)
        _add_layers(module, plain, of_tensors)
        settings = _layer_settings.setdefault(module, _LayerSettings()).now(module)
        plain[0, "settings of all"] = hash(tuple(of_layer.kinds for of_layer in settings))
        return cls(values, plain, of_tensors, settings, is_whole)


def _all_reached(module: nn.Module) -> tuple[list[tuple[Key, Any]], bool]:
    """Return what a module reaches, however deep, and whether that is all."""
    values: list[tuple[Key, Any]] = []
    objects = 0
    for key, value in reached(module):
        objects += not isinstance(value, PLAIN)
        if objects > MOST_OBJECTS:
            return values, False
        values.append((key, value))
    return values, True


@dataclass(frozen=True, slots=True)
class _Settings:
    """The settings of one of torch's layers, such as a dimension or a momentum."""

    values: Mapping[str, Any]
    kinds: int = field(compare=False)
    """A number that changes with them, but for fractions such as a momentum that is no zero."""

    @classmethod
    def of(cls, attributes: Mapping[str, Any]) -> "_Settings":
        """Return the flags, numbers, texts and tuples of these among the attributes of a layer."""
        values = {
            name: value
            for name, value in attributes.items()
            if name not in MODULE_ATTRIBUTES and is_setting(value)
        }
        kinds = tuple(
            (name, value != 0 if isinstance(value, float) else value) for name, value in values.items()
        )
        return cls(values, hash(kinds))


class _LayerSettings:
    """The settings of torch's layers in a module when they were last read.

    Numbers do not change in place, so a layer without other attributes is compared by the identity of its
    settings. No other attribute is kept, since it may refer to the module, which ends with the script's last
    reference to it.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[ref[nn.Module], int, _Settings]] = {}
        """Of each layer the settings, and the number of attributes if there are no others."""

    def now(self, module: nn.Module) -> tuple[_Settings, ...]:
        """Return the settings of each layer."""
        return tuple(self._of(place, layer) for place, layer in enumerate(_layers_of(module)))

    def _of(self, place: int, layer: nn.Module) -> _Settings:
        now, known = vars(layer), self._known.get(place)
        if known is not None and known[0]() is layer and known[1] == len(now):
            values = known[2].values
            if all(map(is_, map(now.get, values), values.values())):
                return known[2]
        settings = _Settings.of(now)
        count = len(now.keys() & MODULE_ATTRIBUTES) + len(settings.values)
        self._known[place] = ref(layer), count, settings
        return settings


_layer_settings: WeakKeyDictionary[nn.Module, _LayerSettings] = WeakKeyDictionary()


def _layers_of(module: nn.Module) -> list[nn.Module]:
    """Return the parts of a module that are torch's layers."""
    return [part for part in modules_of(module) if type(part).__module__.startswith("torch.")]


def restore_settings(module: nn.Module, reach: Reach) -> None:
    """Give torch's layers in a module the settings that they had when a module reached these values."""
    for layer, settings in zip(_layers_of(module), reach.settings, strict=True):
        vars(layer).update(settings.values)


def _plain_in(values: Sequence[tuple[Key, Any]]) -> tuple[dict[Key, Any], dict[Key, Any]]:
    """Return the flags, numbers and texts in values, and apart those in tensors."""
    plain: dict[Key, Any] = {}
    of_tensors: dict[Key, Any] = {}
    for key, value in values:
        if isinstance(value, _ATOMS):
            plain[key] = _guard_of(value)
        elif isinstance(value, Tensor):
            if _is_short(value):
                of_tensors[key] = tuple(value.flatten().tolist())
        else:
            plain.update(_of_container(key, value))
    return plain, of_tensors


def _of_container(key: Key, value: Any) -> Attributes:
    """Return the numbers in a container or an array; of many, a text that changes with them."""
    if (parts := _few_numbers(value)) is not None:
        return {key: parts}
    if isinstance(value, np.ndarray):
        return {} if (digest := _digest_of(value)) is None else {key: digest}
    if base_of(value) is None or length(value) <= MOST_KEYS:
        return {}
    place, name = key
    return {(place, f"{name}.<length>"): length(value), (place, f"{name}.<items>"): _digest_of_items(value)}


def _add_layers(module: nn.Module, plain: dict[Key, Any], of_tensors: dict[Key, Any]) -> None:
    """Add the classes and modes of a module's layers, and the flags and numbers of torch's layers."""
    training, kinds, trainable, moved = 0, 0, 0, 0
    of_kinds: dict[type, tuple[int, list[str]]] = {}
    for place, part in enumerate(modules_of(module)):
        kind = type(part)
        if kind not in of_kinds:
            drawing = [name for layer, name in _DRAWING if issubclass(kind, layer)]
            of_kinds[kind] = module_parts.methods_of(kind).number, drawing
        code, drawing = of_kinds[kind]
        training = training << 1 | part.training
        # The classes of the layers and the code of their forward: a script may replace both. Torch's hooks
        # compute weights before the forward, as after `prune`: a weight is then a tensor that a call assigns.
        hooks = part._forward_pre_hooks  # noqa: SLF001
        kinds = hash(
            (kinds, id(kind), code, *map(type, hooks.values())) if hooks else (kinds, id(kind), code)
        )
        for name in drawing:
            plain[place, name] = getattr(part, name)
        for name, buffer in part._buffers.items():  # noqa: SLF001 - faster than named_buffers
            if buffer is not None and name != _BATCHES and _is_number(buffer):
                of_kind = plain if _is_flag(buffer) else of_tensors
                of_kind[place, name] = buffer.item()
        for name, tensor in chain(part._parameters.items(), part._buffers.items()):  # noqa: SLF001
            if tensor is not None and (marks := marks_of(tensor)):
                atoms = ((mark, value) for mark, value in marks.items() if isinstance(value, _ATOMS))
                plain.update(((place, f"{name}.{mark}"), _guard_of(value)) for mark, value in atoms)
        for parameter in part._parameters.values():  # noqa: SLF001
            if parameter is not None:
                trainable += parameter.requires_grad
                moved += parameter.dim() > _DIMS_OF_MATRIX and not parameter.is_contiguous()
    plain[0, "training of all"] = training
    plain[0, "layers of all"] = kinds
    plain[0, "requires_grad of all"] = trainable
    plain[0, "channels last of all"] = moved  # an output has the layout of the weights


def _with_sign(value: Any) -> Any:
    """Return a flag, number or text; a text for -0.0, which equals 0.0 and has another sign."""
    return str(value) if type(value) is float and value == 0 and copysign(1, value) < 0 else value


def _identity(value: Any) -> int:
    """Return the id of a function's code, or of another value itself, such as an enum member."""
    function = getattr(value, "__func__", value)
    return id(getattr(function, "__code__", function))


def _few_numbers(value: Any) -> tuple[Any, ...] | None:
    """Return the flags, numbers and texts in a short list, set, array or storage; None for others."""
    if isinstance(value, np.ndarray):
        return (
            tuple(value.flatten().tolist()) if value.size <= _MOST_OF_LIST and value.dtype != object else None
        )
    base = base_of(value)
    if base in (*LISTS, set):
        values = tuple(elements(value)) if length(value) <= _MOST_OF_LIST else None
    elif isinstance(value, (bytearray, array, torch.UntypedStorage)):
        values = tuple(value) if len(value) <= _MOST_OF_LIST else None
    else:
        return None
    if values is None or not all(isinstance(part, PLAIN) for part in values):
        return None
    return tuple(sorted(values, key=repr)) if base is set else values


def _digest_of(array: Any) -> str | None:
    """Return a text that changes with the numbers of an array; None for a large one, or one of objects."""
    if array.size > _MOST_ELEMENTS or array.dtype == object:
        return None
    return hashlib.blake2b(array.tobytes(), digest_size=8).hexdigest()


def _digest_of_items(container: Any) -> str:
    """Return a text that changes with the items of a container, which are too many to follow them."""
    parts = [*chain.from_iterable(items(container))] if is_mapping(container) else elements(container)
    if not all(map(PLAIN.__contains__, map(type, parts))):  # a vocabulary has none but these
        parts = [part if type(part) in PLAIN else id(part) for part in parts]
    return str(hash(frozenset(parts) if base_of(container) in (set, frozenset) else tuple(parts)))


def _digest_of_numbers(value: Any) -> str | None:
    """Return a text that changes with the numbers and texts of a long container; None for all others."""
    if base_of(value) is None or length(value) <= MOST_KEYS:
        return None
    parts = (part for _, part in items(value)) if is_mapping(value) else elements(value)
    return _digest_of_items(value) if all(isinstance(part, PLAIN) for part in parts) else None


def _is_short(tensor: Tensor) -> bool:
    """Return whether a tensor has few numbers, none of them trained.

    Those of a device are read too, although the host waits for it: a forward that branches on them waits
    itself, and torch does not record a write through ``tensor.data``.
    """
    is_dense = tensor.layout == torch.strided and tensor.device.type != "meta"
    return is_dense and not tensor.requires_grad and tensor.numel() <= _MOST_OF_LIST


def _is_number(tensor: Tensor) -> bool:
    """Return whether a tensor is one number, which is read as in `_is_short`."""
    return not is_lazy(tensor) and tensor.numel() == 1 and tensor.device.type != "meta"


def _is_constant(tensor: Tensor) -> bool:
    """Return whether a tensor is one number that is not trained."""
    return tensor.layout == torch.strided and _is_number(tensor) and not tensor.requires_grad


def _is_flag(tensor: Tensor) -> bool:
    """Return whether a tensor is one integer or boolean."""
    return _is_number(tensor) and not tensor.is_floating_point() and not tensor.is_complex()


def python_state(module: nn.Module, reach: Reach | None = None) -> Attributes:
    """Return the state beside tensors that a call may change: `plain_attributes`, ends of lists, arrays.

    `reach` is what the module reaches now, if it is known.
    """
    reach = Reach.of(module) if reach is None else reach
    return {**reach.plain, **state_of(reach.values)}


def state_of(values: Iterable[tuple[Key, Any]]) -> dict[Key, Any]:
    """Return what is compared of values that are not plain: ends of lists, lengths, arrays, identities."""
    state: dict[Key, Any] = {}
    for key, value in values:
        base = base_of(value)
        if base in LISTS:
            state[key] = (length(value), _end_of(value))
        elif isinstance(value, Tensor) and key[0] < 0:  # a global: it is not gathered
            state[key] = ("tensor", id(value))
        elif base is set or is_mapping(value):
            state[key] = (length(value), None)
        elif isinstance(value, np.ndarray) and (digest := _digest_of(value)) is not None:
            state[key] = digest
        elif _is_opaque(value):
            state[key] = Identity(value)
    return state


class Identity:
    """An object that equals only itself, and nothing once it has ended: no other one gets its address.

    The reference is weak where that is possible, since an object may refer to the module. A weight that has a
    weak one cannot be swapped with another.
    """

    __slots__ = ("_reference", "_value")

    def __init__(self, value: Any) -> None:
        self._value, self._reference = value, None
        if not isinstance(value, nn.Parameter):
            with suppress(TypeError):
                self._value, self._reference = None, ref(value)

    def is_of(self, value: Any) -> bool:
        """Return whether this is the identity of a value."""
        if self._reference is None:
            return self._value is value
        return value is not None and self._reference() is value

    def __eq__(self, value: object) -> bool:
        if not isinstance(value, Identity):
            return False
        if value._reference is None:
            return self.is_of(value._value)
        referred = value._reference()
        return referred is not None and self.is_of(referred)

    __hash__ = None  # type: ignore[assignment]


def _is_opaque(value: Any) -> bool:
    """Return whether a value may hold results of a call, and its parts are not compared themselves."""
    if isinstance(value, PackedSequence):
        return True
    if isinstance(value, FunctionType):
        return value.__closure__ is not None
    compared = (
        *PLAIN,
        *LISTS,
        dict,
        set,
        tuple,
        Tensor,
        np.ndarray,
        np.generic,
        Enum,
        nn.Module,
        type,
        ModuleType,
    )
    return not isinstance(value, (*compared, MethodType)) and not is_record(value)


def _end_of(values: Any) -> Any:
    """Return the last element of a list or a deque; the ids of all elements for a deque of tensors."""
    is_deque = base_of(values) is deque
    known = elements(values) if is_deque else list.__getitem__(values, slice(-1, None))
    if not known:
        return None
    if is_deque and any(isinstance(element, Tensor) for element in known):
        return tuple(map(id, known))
    return known[-1] if isinstance(known[-1], PLAIN) else None


def read_in_backward(module: nn.Module) -> Attributes:
    """Return the state that code of the script may read in a backward: flags, numbers, writes to buffers."""
    reach = Reach.of(module)
    state = {**reach.plain, **reach.of_tensors}
    for place, part in enumerate(modules_of(module)):
        for name, buffer in part._buffers.items():  # noqa: SLF001 - faster than named_buffers
            if buffer is not None and name != _BATCHES:
                state[place, f"{name}.<writes>"] = id(buffer), version_of(buffer)
    return state


def counters(before: Attributes, after: Attributes) -> list[Key]:
    """Return the places of numbers that a call has changed by an integer."""
    return [
        key
        for key, value in changed(before, after).items()
        if type(value) in (int, float) and "." not in key[1] and _is_counted(before.get(key), value)
    ]


def _is_counted(before: Any, after: Any) -> bool:
    return type(before) is type(after) and is_count(before, after)


def changed(before: Attributes, after: Attributes) -> Attributes:
    """Return the attributes that are new or have another value."""
    return {key: value for key, value in after.items() if key not in before or not _same(before[key], value)}


def kept_of_slice(whole: Attributes, part: Attributes, total: int) -> str | None:
    """Return the name of an attribute that may depend on the slice, if there is any."""
    for key in {**whole, **part}:
        before = whole.get(key)
        number = before[1] if isinstance(before, tuple) else before
        if key not in whole or key not in part or not _same(before, part[key]) or _is_share(number, total):
            return key[1] if key[0] >= 0 else f"global {key[1]}"
    return None


def returned_of_slice(whole: Any, part: Any, total: int) -> str | None:
    """Return the place of a value beside tensors in the outputs that may depend on the slice, if any."""
    values, values_of_part = dict(parts_beside_tensors(whole)), dict(parts_beside_tensors(part))
    for path in {**values, **values_of_part}:
        if (
            path not in values
            or path not in values_of_part
            or _may_depend(values[path], values_of_part[path], total)
        ):
            return text(path)
    return None


def _may_depend(whole: Any, part: Any, total: int) -> bool:
    if isinstance(whole, (int, float)) and not isinstance(whole, bool):
        return whole == 0 or part != whole or _is_share(whole, total)
    if isinstance(whole, (*PLAIN, bytes, torch.dtype, torch.device, MethodType)):
        return not _same(whole, part)
    return whole is not part  # an array, a function or an object may hold values of the slice


def _is_share(value: Any, total: int) -> bool:
    """Return whether a number may be a fraction of the samples, equal in slices by chance, as an accuracy."""
    return isinstance(value, float) and (value * total).is_integer()


def observer() -> str | None:
    """Return which hook or mode of the script would get slices of any split call; None for neither."""
    hooks_of_all = (
        torch_modules._global_forward_hooks,  # noqa: SLF001 - no public spelling
        torch_modules._global_forward_pre_hooks,  # noqa: SLF001
        torch_modules._global_backward_hooks,  # noqa: SLF001
        torch_modules._global_backward_pre_hooks,  # noqa: SLF001
    )
    if any(hooks_of_all):
        return "a hook on all modules would get slices"
    if not torch._C._autograd._saved_tensors_hooks_is_enabled():  # type: ignore[attr-defined]  # noqa: SLF001
        return "hooks on saved tensors are disabled, and a split call needs one"
    if parametrize._cache_enabled and torch.is_grad_enabled():  # noqa: SLF001 - no public spelling
        return "parametrize.cached() keeps computed weights for further calls, with the graph of one"
    if _has_hooks_on_saved_tensors():
        return "a hook on saved tensors would get slices"
    modes: list[object] = [
        *_get_current_dispatch_mode_stack(),
        *_get_current_function_mode_stack(),  # type: ignore[no-untyped-call]
    ]
    for mode in modes:  # torch selects a default device by `DeviceContext`
        if not isinstance(mode, DeviceContext) and not type(mode).__module__.startswith("samestep."):
            return f"{type(mode).__name__} is active, and would get slices"
    return None


def _has_hooks_on_saved_tensors() -> bool:
    try:
        with disable_saved_tensors_hooks("samestep looks for them"):
            return False
    except RuntimeError:  # torch disables none that are in use
        return True


def _tensors_of(module: nn.Module) -> Iterator[Tensor | None]:
    """Yield the parameters and buffers of a module; each call does this, and torch's iterators take long."""
    for part in modules_of(module):
        yield from part._parameters.values()  # noqa: SLF001
        yield from part._buffers.values()  # noqa: SLF001


def recognized(module: nn.Module, reach: Reach, arguments: CallArguments) -> str | None:
    """Return by what a forward may recognize a tensor that it is given, and not its slice; None for nothing.

    The slice of a tensor is another object, without the attributes that the script has given the tensor.
    """
    tensors = [tensor for _, tensor in leaves(arguments.both)]
    if any(map(marks_of, tensors)):
        return "it is given a tensor with attributes, which a slice has not"
    identities = set(map(id, tensors))
    held = chain((value for _, value in reach.values), _tensors_of(module))
    if any(id(value) in identities for value in held):
        return "it is given a tensor that it holds, and may ask whether it is the same"
    return None


def unfollowed(arguments: CallArguments) -> str | None:
    """Return what a call is given that cannot be followed on helpers, which get a copy; None for nothing.

    They are weights of a module, of the object of a method, or of a function, which get no gradients and no
    new statistics from a copy; and what a call uses up or changes, and a check could not restore.
    """
    for _, part in parts_beside_tensors(arguments.both):
        if isinstance(part, (*_COMPARED_BY_VALUE, *PLAIN, PackedSequence, type)):
            continue
        root = [((0, ""), part)]
        inside = walked("", part) if callable(part) else walk(root, stored_in, depth=DEEPEST)
        constants = _constants_of(part)
        for _, value in islice(inside, MOST_OBJECTS):
            if isinstance(value, Tensor) and id(value) not in constants:
                return "it is given a module, a function or an object that has tensors of its own"
            if isinstance(value, _CHANGING):
                return f"it is given an object ({type(value).__name__}) that it may change, and not rewind"
    return None


def _constants_of(part: Any) -> set[int]:
    """Return the ids of the weights of classes of one of torch's losses, which no call changes."""
    if type(part).__module__ != _Loss.__module__:
        return set()
    buffers = vars(part).get("_buffers", {}).values()
    return {id(buffer) for buffer in buffers if buffer is not None and not buffer.requires_grad}


def hooked_module(module: nn.Module) -> str | None:
    """Return the name of a module that has a hook of the script, which would get slices; None without one."""
    for part in modules_of(module):
        before = [hook for hook in part._forward_pre_hooks.values() if not _is_torchs(hook)]  # noqa: SLF001
        after = [hook for hook in part._forward_hooks.values() if not _suits_slices(hook)]  # noqa: SLF001
        if before or after or part._backward_hooks or part._backward_pre_hooks:  # noqa: SLF001
            names = (name for name, named in module_parts.named_modules(module) if named is part)
            return next(names) or "it"
    return None


def _is_torchs(hook: Any) -> bool:
    """Return whether a hook is defined by torch, as that of weight norm."""
    owner = getattr(hook, "__module__", None) or type(hook).__module__
    return owner.startswith("torch.")


def _suits_slices(hook: Any) -> bool:
    """Return whether a hook of a library does nothing that would differ for slices.

    One that collects outputs does nothing but within a forward of its library; that of a slice begins
    later, and returns what the hook collects.
    """
    owner = getattr(hook, "__module__", None) or ""
    if (owner, getattr(hook, "__name__", "")) in _OF_EACH_SAMPLE:
        return True
    collecting = getattr(sys.modules.get(owner), _COLLECTORS.get(owner, ""), None)
    return collecting is not None and not collecting.get()


def _same(first: Any, second: Any) -> bool:
    return bool(type(first) is type(second) and (first == second or repr(first) == repr(second) == "nan"))


def without(attributes: Attributes, keys: Iterable[Key]) -> tuple[Any, ...]:
    """Return all attributes but some with the classes of their values, as a key for a dict: 1 equals True."""
    excluded = set(keys)
    return tuple((key, _kind(value), value) for key, value in attributes.items() if key not in excluded)


def _kind(value: Any) -> Any:
    return tuple(map(type, value)) if type(value) is tuple else type(value)
