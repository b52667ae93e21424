"""Keeps a mirror of each module of the script on the helpers, which compute slices of its calls.

A mirror is sent once, and again whenever the module has changed in another way than in its tensors::

    parameters, other tensors with gradients     in shared memory: the helpers see what the optimizer writes
    other tensors, such as buffers               with each call before which they were written to
    everything else                              the module again

`MirrorState` is what is compared for this; a module with state that cannot be compared stays unsplit. Classes
and functions of the script travel by value, so helpers run no code of the script but that of calls.
"""

import hashlib
import mmap
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from operator import is_
from types import FunctionType, MethodType, ModuleType
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from samestep.autopilot.helpers.pickling import (
    classes_of,
    files_of_script,
    pickled_module,
    scripts_modules_by_value,
    unpickled,
)
from samestep.autopilot.helpers.shared_storage import MemoryFile, Place, SharedWeights, memory_of
from samestep.autopilot.script.call_account import is_users_code
from samestep.autopilot.split.guards import MOST_OBJECTS, Attributes, Identity, Reach, python_state
from samestep.autopilot.state import saved_state
from samestep.autopilot.state.reachable_state import (
    CACHED,
    CALLABLE,
    DEEPEST,
    MOST_KEYS,
    PLAIN,
    called_by,
    forget_classes,
    functions_of,
    is_compiled,
    is_record,
    known_files,
    marks_of,
    modules_of,
    names_in_code,
    scripts_classes,
)
from samestep.autopilot.state.saved_state import carried_by, comparable_state, is_generator, version_of
from samestep.base import env
from samestep.base.errors import Error
from samestep.base.units import one_line
from samestep.hooks import module_parts
from samestep.hooks.object_graph import Key
from samestep.hooks.raw_containers import base_of, elements, is_mapping, items, length, stored_fields
from samestep.hooks.tensor_tree import leaves

_COMPARED = (Tensor, type, ModuleType, FunctionType, MethodType)
"""Values that are compared in other ways, or are sent by their names."""


class MirrorError(Error):
    """A module can have no mirror; the message has the reason."""


@dataclass(frozen=True, slots=True)
class MirrorState:
    """The state that mirrors of a module must have, beside values of tensors."""

    values: Attributes
    """All of it that can be compared."""
    objects: Sequence[Any]
    """The submodules and tensors of the module, and the objects that its forward can reach."""

    @classmethod
    def now(cls, module: nn.Module, reach: Reach | None = None) -> "MirrorState":
        """Return the present state; `reach` is as in `python_state`.

        Raises:
            MirrorError: some of it cannot be compared.
        """
        reach = Reach.of(module) if reach is None else reach
        values = dict(python_state(module, reach))
        values[0, "settings of all"] = reach.settings
        values.pop((0, "training of all"), None)  # goes with each call
        objects: list[Any] = []
        for place, part in enumerate(modules_of(module)):
            objects.append(part)
            for tensors in (part._parameters, part._buffers):  # noqa: SLF001 - faster than `parameters`
                if not tensors:
                    continue
                objects += tensors.values()
                for name, tensor in tensors.items():
                    if tensors is part._buffers:  # noqa: SLF001 - their numbers go with each call
                        values.pop((place, name), None)
                    if tensor is not None and marks_of(tensor):
                        values[place, f"{name}.__dict__"] = tuple(fields_of_tensor(tensor).items())
                        _refuse_unsent(module, tensor)
        objects += _objects_in(reach)
        for key, value in reach.values:
            _add_reached(key, value, values)
        stored = saved_state.named_in_libraries(module, reach.values)
        values.update((key, value) for key, value in stored if isinstance(value, PLAIN))
        for name, function in called_by(module):
            values[-2, name] = _code(function)
        return cls(values, objects)


def _objects_in(reach: Reach) -> list[Any]:
    """Return the objects that a module reaches.

    Raises:
        MirrorError: there are too many to compare them in each call.
    """
    if not reach.is_whole:
        raise MirrorError(f"it reaches more than {MOST_OBJECTS} objects, which may change")
    return [value for _, value in reach.values if not isinstance(value, PLAIN)]


def _add_reached(key: Key, value: Any, values: dict[Key, Any]) -> None:
    """Add the state of a generator, container or array that a module reaches, or a deep value.

    Raises:
        MirrorError: the walk has ended at it, or it cannot be compared.
    """
    if key[1].count(".") >= DEEPEST:
        raise MirrorError(f"it reads values that are nested deeper than {DEEPEST}")
    if isinstance(value, PLAIN):
        values[key] = value
    elif is_generator(value):
        values[key] = comparable_state(value)
    elif base_of(value) is not None and length(value) > MOST_KEYS:
        values[key] = _compared_elements(value)
    elif isinstance(value, CACHED):  # its results are sent
        values[key] = value.cache_info().misses
    elif isinstance(value, type):
        values[key] = _methods(value)
    elif isinstance(value, np.ndarray):
        values[key] = _digest(value)
    elif isinstance(value, (array, bytearray)):
        values[key] = hashlib.blake2b(value, digest_size=16).hexdigest()
    elif not isinstance(value, _COMPARED) and not is_record(value):
        values.update(_settings_of_object(key, value))


def _methods(kind: type) -> tuple[int, ...]:
    """Return a value that changes with a method of a user-defined class."""
    members = (member for owner in scripts_classes(kind) for member in [*vars(owner).values()])
    return tuple(id(member) for member in members if isinstance(member, CALLABLE))


def _settings_of_object(key: Key, value: Any) -> Iterator[tuple[Key, Any]]:
    """Yield the flags, numbers and texts of an object of a library, or of a module in a list or a dict."""
    for place, part in enumerate(modules_of(value) if isinstance(value, nn.Module) else [value]):
        for name, setting in [*(stored_fields(part) or {}).items()]:
            if isinstance(setting, PLAIN):
                yield (key[0], f"{key[1]}.{place}.{name}"), setting


def fields_of_tensor(tensor: Tensor) -> dict[str, Any]:
    """Return the flags, numbers and texts that a script has set as attributes of a tensor."""
    return {name: value for name, value in marks_of(tensor).items() if isinstance(value, PLAIN)}


def _refuse_unsent(module: nn.Module, tensor: Tensor) -> None:
    """Raise if a call may read an attribute of a tensor that is not sent with it, such as a mask.

    Raises:
        MirrorError: the code of the module names such an attribute.
    """
    unsent = marks_of(tensor).keys() - fields_of_tensor(tensor).keys()
    named = unsent and unsent & names_in_code(module)
    if named:
        raise MirrorError(f"it may read {min(named)} of a weight, which is not sent to helpers")


def _compared_elements(values: Any) -> Any:
    """Return the elements of a container that has too many to follow them, as what is compared.

    Raises:
        MirrorError: they have parts of their own, which may change.
    """
    parts = [part for pair in items(values) for part in pair] if is_mapping(values) else [*elements(values)]
    kinds = {type(part): part for part in parts}
    may_change = (isinstance(part, (np.ndarray, Tensor)) or is_record(part) for part in kinds.values())
    if any(may_change) or any(base_of(part) is not None for part in kinds.values()):
        kind = type(values).__name__
        raise MirrorError(f"it reads a {kind} with more than {MOST_KEYS} parts, which may change")
    if all(kind in PLAIN for kind in kinds):
        return frozenset(kinds), parts
    return [Identity(part) for part in parts]


def _digest(values: Any) -> str:
    if values.dtype == object:
        raise MirrorError("it reads an array of objects, which may change")
    return hashlib.blake2b(np.ascontiguousarray(values).tobytes(), digest_size=16).hexdigest()


def _code(function: Any) -> Any:
    """Return a value that changes with the code of a function, or with its attributes."""
    if isinstance(function, MethodType):
        function = function.__func__
    if not isinstance(function, FunctionType):
        return id(function)
    fields = tuple((name, value) for name, value in vars(function).items() if isinstance(value, PLAIN))
    return id(function.__code__), fields


def replaced_functions(module: nn.Module) -> str:
    """Return the name of a library's function that the script has replaced; helpers have the original."""
    for name, function in called_by(module):
        owner, _, attribute = name.partition(".")
        if attribute and isinstance(function, FunctionType):
            home = function.__module__
            is_users = is_users_code(function.__code__, function.__globals__)
            if is_users and home and home.rpartition(".")[2] != owner and home in ("__main__", "__mp_main__"):
                return name
    return ""


_LARGE = 1 << 16
"""Bytes from which a tensor without gradients is shared, unless calls write to it: a guess.

It is not shared before a check has shown that they do not. Ranks that write at once would read what others
have written; and what a helper writes to is its own copy of a page, in which it no longer sees the weights.
"""


@dataclass(frozen=True, slots=True)
class SharedTensor:
    """A tensor of a mirror that is in shared memory."""

    file: MemoryFile
    place: Place


@dataclass(frozen=True, slots=True)
class TensorState:
    """A tensor of a mirror; `value` is the tensor itself, or its place in shared memory."""

    value: Tensor | SharedTensor
    is_parameter: bool
    requires_grad: bool
    fields: Mapping[str, Any]
    """The attributes that the script has set."""
    earlier: int | None
    """The place in the earlier mirror of a tensor that is no weight: the graphs of its calls may read it."""


@dataclass(frozen=True, slots=True)
class MirrorMessage:
    """A module, and its tensors."""

    number: int
    module: bytes
    tensors: Sequence[TensorState]
    environment: Mapping[str, str]
    files: Mapping[str, str]
    """The files of the script's modules, by name."""
    replaces: int | None
    """The number of the earlier mirror, which is no longer used."""


Kind: TypeAlias = tuple[str, torch.dtype]
"""The type of a device and of numbers."""


class Groups:
    """Tensors by their kind; the bytes of those of one kind are carried together."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._by_kind: dict[Kind, list[tuple[Tensor, torch.Size]]] = {}
        """Each tensor, and the shape that it had at first."""
        for tensor in tensors:
            self._by_kind.setdefault(_kind(tensor), []).append((tensor, tensor.shape))

    def have_their_forms(self) -> bool:
        """Return whether all tensors have the kinds and shapes that they had at first."""
        return all(
            _kind(tensor) == kind and tensor.shape == shape
            for kind, tensors in self._by_kind.items()
            for tensor, shape in tensors
        )

    def flat(self) -> dict[Kind, Tensor]:
        """Return the bytes of the tensors of each kind, one tensor after another."""
        return {
            kind: torch.cat([_bytes(tensor) for tensor, _ in tensors])
            for kind, tensors in self._by_kind.items()
        }

    def set(self, values: Mapping[Kind, Tensor]) -> None:
        """Overwrite the tensors of some kinds by the bytes of `flat`, in their first shapes."""
        with torch.no_grad():
            for kind, flat in values.items():
                _, dtype = kind
                tensors = self._by_kind[kind]
                parts = torch.split(flat, [shape.numel() * dtype.itemsize for _, shape in tensors])
                for (tensor, shape), part in zip(tensors, parts, strict=True):
                    value = part.view(dtype).view(shape)
                    if _kind(tensor) == kind and tensor.shape == shape:
                        tensor.data.copy_(value)
                    else:
                        tensor.data = value.clone()


def _form(tensor: Tensor) -> tuple[Any, ...]:
    return _kind(tensor), tensor.shape, tensor.stride(), tensor.requires_grad


def _kind(tensor: Tensor) -> Kind:
    return tensor.device.type, tensor.dtype


def _bytes(tensor: Tensor) -> Tensor:
    dense = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return dense.reshape(-1).view(torch.uint8)


@dataclass(eq=False, slots=True)
class MirroredModule:
    """The mirrors of one module, from the view of the main rank."""

    number: int
    tensors: list[Tensor]
    is_shared: list[bool]
    weights_in_files: SharedWeights | None
    """The memory of the tensors that are shared."""
    versions: list[Any] = field(default_factory=list)
    """The place in memory and the version of each tensor that is shared, after the last call."""
    uncounted: frozenset[int] = frozenset()
    """The ids of the tensors whose writes are those of batch norm, which the ranks agree about."""
    unshared: Groups = field(init=False)
    """The tensors that are not shared."""
    buffers: Groups = field(init=False)
    """Those of them that are no weights."""
    values: dict[Kind, Tensor] = field(default_factory=dict)
    """Their bytes after the last call."""
    writes: list[int | None] = field(default_factory=list)
    """Their versions when a call last began."""
    is_written: set[int] = field(default_factory=set)
    """The shared tensors that a call has written to."""
    large: frozenset[int] = frozenset()
    """The ids of the large tensors that are shared in a mirror for calls that do not write to them."""
    shares_large: bool = False
    objects: list[Identity] = field(default_factory=list)
    """The submodules, tensors and objects that the module reaches."""
    requires_grad: list[bool] = field(default_factory=list)
    """The flag of each tensor when the mirror was sent."""
    classes: WeakKeyDictionary[type, str] = field(default_factory=WeakKeyDictionary)
    """The classes of the script that the mirror has; see `classes_of`."""
    values_beside: Attributes = field(default_factory=dict)
    """The state of the module beside tensors, after the last call."""
    assigned: list[tuple[Tensor, int | None, Tensor | None]] = field(default_factory=list)
    """The tensors that the last call has assigned to attributes, which all ranks have, with their versions,
    and with their values if they are small: writes through ``data`` leave a version as it is."""

    def __post_init__(self) -> None:
        both = zip(self.tensors, self.is_shared, strict=True)
        unshared = [tensor for tensor, is_shared in both if not is_shared]
        buffers = [tensor for tensor in unshared if not tensor.requires_grad]
        self.unshared = Groups(unshared)
        self.buffers = self.unshared if len(buffers) == len(unshared) else Groups(buffers)

    def record(self, state: MirrorState, assigned: Any = None) -> None:
        """Record that the mirror now is as the module, in this state and with what a call has assigned."""
        self.assigned = [
            (tensor, version_of(tensor), tensor.detach().clone() if _is_compared(tensor) else None)
            for _, tensor in leaves(assigned)
        ]
        self.objects = [Identity(value) for value in state.objects]
        self.values_beside = state.values
        self.record_values()

    def record_values(self) -> None:
        """Record that the tensors of the mirror are as those of the module."""
        self.versions = [
            self._version(tensor) if is_shared else None
            for tensor, is_shared in zip(self.tensors, self.is_shared, strict=True)
        ]
        self.values = self.unshared.flat()

    def serves(self, state: MirrorState, *, rewrites: bool | None) -> bool:
        """Return whether a call can use it, with the module in this state; `rewrites` as in `mirrored`."""
        return (not self.large or self.shares_large == (rewrites is False)) and self.is_as(state)

    def is_as(self, state: MirrorState) -> bool:
        """Return whether the module, in this state, differs from its mirror at most in values of tensors."""
        if self.is_written or not self.unshared.have_their_forms():
            return False
        for tensor, version in zip(self.tensors, self.versions, strict=True):
            if version is not None and version[0] != self._place(tensor):
                return False
        if [tensor.requires_grad for tensor in self.tensors] != self.requires_grad:
            return False
        for tensor, of_call, value in self.assigned:
            if version_of(tensor) != of_call or (value is not None and not torch.equal(tensor, value)):
                return False
        return (
            len(state.objects) == len(self.objects)
            and all(map(Identity.is_of, self.objects, state.objects))
            and state.values == self.values_beside
            # 1 equals True
            and all(map(is_, map(type, state.values.values()), map(type, self.values_beside.values())))
        )

    def note_written(self) -> None:
        """Note the shared tensors that the last call has written to: helpers do not see what it wrote."""
        for place, (tensor, version) in enumerate(zip(self.tensors, self.versions, strict=True)):
            if version is not None and not tensor.requires_grad and version != self._version(tensor):
                self.is_written.add(place)

    def begin_call(self) -> None:
        """Note how often the tensors that are not shared have been written to."""
        self.writes = self._writes()

    def is_rewritten(self) -> bool:
        """Return whether the call has written to one of them, beside those of batch norm."""
        return self.writes != self._writes()

    def _writes(self) -> list[int | None]:
        both = zip(self.tensors, self.is_shared, strict=True)
        return [
            version_of(tensor)
            for tensor, is_shared in both
            if not is_shared and id(tensor) not in self.uncounted
        ]

    def written(self) -> dict[Kind, Tensor]:
        """Return the bytes of the tensors of each kind that are not shared, if any of them has changed.

        Their versions do not show it: batch norm and writes through ``data`` leave them as they are. On a
        device a comparison would wait for it, so in training all count as changed.
        """
        changed = {
            kind: flat
            for kind, flat in self.unshared.flat().items()
            if (kind[0] != "cpu" and torch.is_grad_enabled()) or not torch.equal(flat, self.values[kind])
        }
        self.values.update(changed)
        return changed

    def places_of_buffers(self) -> dict[int, int]:
        """Return the places of the tensors that are neither shared nor weights, by their ids."""
        unshared = (place for place, is_shared in enumerate(self.is_shared) if not is_shared)
        return {id(self.tensors[place]): place for place in unshared if not is_weight(self.tensors[place])}

    def values_of_buffers(self) -> dict[Kind, Tensor]:
        """Return the bytes of the tensors that are neither shared nor weights, as they were sent last."""
        return {**self.values} if self.buffers is self.unshared else self.buffers.flat()

    def restore_values(self) -> None:
        """Give the tensors that are not shared the values that were recorded last."""
        self.unshared.set(self.values)

    @property
    def weights(self) -> list[Tensor]:
        """The tensors that get gradients."""
        return [tensor for tensor in self.tensors if tensor.requires_grad and tensor.is_leaf]

    @property
    def shared(self) -> list[Tensor]:
        """The tensors in memory that helpers see."""
        both = zip(self.tensors, self.is_shared, strict=True)
        return [tensor for tensor, is_shared in both if is_shared]

    def _version(self, tensor: Tensor) -> tuple[Any, int | None]:
        return self._place(tensor), version_of(tensor)

    def _place(self, tensor: Tensor) -> tuple[Any, ...]:
        """Return where a tensor is in memory; a later file may have the address of one that has ended."""
        file = 0 if self.weights_in_files is None else self.weights_in_files.number_of(tensor)
        return file, *memory_of(tensor)


def _is_compared(tensor: Tensor) -> bool:
    """Return whether the values of a tensor are compared, for which the host waits for a device."""
    return tensor.device.type != "meta" and tensor.nbytes < _LARGE


class Mirrors:
    """The mirrors of a script's modules, from the view of the main rank."""

    def __init__(self, weights: SharedWeights | None) -> None:
        self._weights = weights
        """The weights in memory that helpers see; None if they see none."""
        self._count = 0
        self._unshared: set[int] = set()
        """The tensors that calls write to."""

    def mirrored(
        self,
        module: nn.Module,
        state: MirrorState,
        before: MirroredModule | None = None,
        *,
        rewrites: bool | None = None,
    ) -> tuple[MirroredModule, MirrorMessage]:
        """Return a new mirror of a module, and the message with it.

        Args:
            module: the module.
            state: its present state.
            before: its earlier mirror.
            rewrites: whether the calls write to large tensors; None if that is unknown, as in a check.

        Raises:
            MirrorError: it cannot be sent.
        """
        tensors: list[Tensor] = []
        numbers: dict[int, int] = {}

        def refer(tensor: Tensor) -> int:
            if type(tensor) not in (Tensor, nn.Parameter) or tensor.layout is not torch.strided:
                raise MirrorError(f"it holds a tensor of the kind {type(tensor).__name__} ({tensor.layout})")
            if id(tensor) not in numbers:
                if tensor.requires_grad and not tensor.is_leaf and id(tensor) not in carried:
                    raise MirrorError("it holds a tensor that is computed from weights outside of the call")
                numbers[id(tensor)] = len(tensors)
                tensors.append(tensor)
            return numbers[id(tensor)]

        if replaced := replaced_functions(module):
            raise MirrorError(f"it calls {replaced}, which the script has replaced")
        held = [getattr(module_parts.submodule(module, name), key) for name, key in carried_by(module)]
        carried = {id(tensor) for _, tensor in leaves(held)}
        classes: WeakKeyDictionary[type, str] = WeakKeyDictionary()
        try:
            with scripts_modules_by_value(), classes_of(classes):
                content = pickled_module(module, refer)
        except MirrorError:
            raise
        except Exception as error:  # noqa: BLE001 - of any object of the script
            why = one_line(str(error))
            raise MirrorError(f"it cannot be sent to helpers ({type(error).__name__}: {why})") from None
        if any(isinstance(value, Tensor) and id(value) not in numbers for value in state.objects):
            raise MirrorError("it has a tensor that is not sent with it: a class defines how it is pickled")
        if before is not None:
            self._unshared |= {id(before.tensors[place]) for place in before.is_written}
        norms = (part for part in module_parts.modules(module) if isinstance(part, _NormBase))
        of_norms = frozenset(id(buffer) for norm in norms for buffer in norm.buffers(recurse=False))
        known, described = self._shared(tensors, of_norms, before, rewrites=rewrites)
        known.classes = classes
        known.record(state)
        replaces = None if before is None else before.number
        sent = content, described, env.snapshot(), files_of_script()
        return known, MirrorMessage(known.number, *sent, replaces)

    def _shared(
        self,
        tensors: list[Tensor],
        uncounted: frozenset[int],
        before: MirroredModule | None,
        *,
        rewrites: bool | None,
    ) -> tuple[MirroredModule, list[TensorState]]:
        """Share the tensors of a new mirror, as far as it can be done, and describe all of them."""
        if rewrites:
            self._unshared |= _large(tensors)
        large = frozenset() if self._weights is None else _large(tensors) - self._unshared
        unshared = self._unshared if rewrites is False else self._unshared | large
        if self._weights is not None:
            self._weights.share(
                tensor for tensor in tensors if is_weight(tensor) or id(tensor) in large - unshared
            )
        self._count += 1
        places = [self._place_of(tensor, unshared) for tensor in tensors]
        is_shared = [place is not None for place in places]
        flags = [tensor.requires_grad for tensor in tensors]
        known = MirroredModule(self._count, tensors, is_shared, self._weights, requires_grad=flags)
        known.large, known.shares_large = large, rewrites is False
        known.uncounted = uncounted
        earlier = {} if before is None else before.places_of_buffers()
        both = zip(tensors, places, strict=True)
        return known, [_described(tensor, place, earlier.get(id(tensor))) for tensor, place in both]

    def _place_of(self, tensor: Tensor, unshared: AbstractSet[int]) -> SharedTensor | None:
        """Return the place of a tensor in memory that helpers see; None if it is not there, or `unshared`."""
        if self._weights is None or id(tensor) in unshared:
            return None
        place = self._weights.place_of(tensor)
        return None if place is None else SharedTensor(self._weights.file_of(tensor), place)


def is_weight(tensor: Tensor) -> bool:
    """Return whether a tensor of a module is a parameter, frozen or not, or another leaf with a gradient."""
    return isinstance(tensor, nn.Parameter) or (tensor.requires_grad and tensor.is_leaf)


def _large(tensors: Iterable[Tensor]) -> frozenset[int]:
    """Return the ids of the tensors of the host that are no weights, and are worth to be shared."""
    of_host = (tensor for tensor in tensors if tensor.device.type == "cpu" and not is_weight(tensor))
    return frozenset(id(tensor) for tensor in of_host if tensor.nbytes >= _LARGE)


def _described(tensor: Tensor, place: SharedTensor | None, earlier: int | None) -> TensorState:
    value = tensor.detach() if place is None else place
    requires_grad = tensor.requires_grad and tensor.is_leaf
    return TensorState(
        value, isinstance(tensor, nn.Parameter), requires_grad, fields_of_tensor(tensor), earlier
    )


@dataclass(eq=False, slots=True)
class Mirror:
    """A mirror on a helper."""

    module: nn.Module
    tensors: list[Tensor]
    unshared: Groups
    environment: Mapping[str, str]
    """The variables of the main rank's environment."""

    @property
    def weights(self) -> list[Tensor]:
        """The tensors that get gradients."""
        return [tensor for tensor in self.tensors if tensor.requires_grad]


def _publish_globals(module: nn.Module) -> None:
    """Let `torch.compile` find the globals of a mirror's functions, which it looks up by their module's name.

    A helper has none of the script's modules.
    """
    for function in functions_of(module):
        names = function.__globals__
        name = str(names.get("__name__"))
        if name in known_files or name == "__main__":
            namespace = sys.modules.setdefault(name, ModuleType(name))
            vars(namespace).update({key: value for key, value in names.items() if not key.startswith("__")})


class MappedWeights:
    """The memory files of the main rank that this helper has mapped, as long as a mirror uses them."""

    def __init__(self) -> None:
        self._files: WeakValueDictionary[int, mmap.mmap] = WeakValueDictionary()
        self._environment: Mapping[str, str] = {}

    def mirror(self, message: MirrorMessage, before: Mirror | None) -> Mirror:
        """Return the mirror of a message, given the earlier one, if there is one."""
        self.forget_writes()
        self.use(message.environment)
        known_files.update(message.files)
        earlier = [] if before is None else before.tensors
        tensors = [self._tensor(state, earlier) for state in message.tensors]
        module: nn.Module = unpickled(message.module, tensors.__getitem__)
        forget_classes()
        if is_compiled(module):
            _publish_globals(module)
        states = zip(tensors, message.tensors, strict=True)
        unshared = Groups(tensor for tensor, state in states if not isinstance(state.value, SharedTensor))
        return Mirror(module, tensors, unshared, message.environment)

    def use(self, environment: Mapping[str, str]) -> None:
        """Let the code of mirrors read this environment, which may lack variables of the last one."""
        if environment is not self._environment:
            env.replace(self._environment, environment)
            self._environment = environment

    def forget_writes(self) -> None:
        """See the weights as the main rank has them again, also where a call here has written to them.

        What is written here goes to this process's copy of a page, which has other weights, too.
        """
        for memory in [*self._files.values()]:
            memory.madvise(mmap.MADV_DONTNEED)

    def _tensor(self, state: TensorState, earlier: Sequence[Tensor]) -> Tensor:
        value = state.value
        if state.earlier is not None and state.earlier < len(earlier) and isinstance(value, Tensor):
            tensor = earlier[state.earlier]
            if _form(tensor) == _form(value):
                # Through `data`, as torch's batch norm writes: the graph of an earlier call reads it.
                tensor.data.copy_(value)
                vars(tensor).clear()
                vars(tensor).update(state.fields)
                return tensor
        if isinstance(value, SharedTensor):
            number = value.file.number
            memory = self._files.get(number)
            if memory is None:
                self._files[number] = memory = value.file.opened(shared=False)
            tensor = value.place.of(memory)
        else:
            tensor = value.clone()
        if state.is_parameter:
            tensor = nn.Parameter(tensor, requires_grad=state.requires_grad)
        vars(tensor).update(state.fields)
        return tensor.requires_grad_(state.requires_grad)
