"""Keeps a mirror of each module of the script on the helpers, which compute slices of its calls.

A mirror is sent once, and again whenever the module has changed in another way than in its tensors::

    parameters, other tensors with gradients     in shared memory: the helpers see what the optimizer writes
    other tensors, such as buffers               with each call before which they were written to
    everything else                              the module again

Classes and functions of the script travel by value, so helpers run no code of the script but that of calls.
"""

import mmap
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from samestep.autopilot.helpers.mirror_state import (
    MirrorError,
    fields_of_tensor,
    objects_of,
    replaced_functions,
)
from samestep.autopilot.helpers.pickling import (
    classes_of_their_own,
    files_of_script,
    pickled,
    scripts_modules_by_value,
    unpickled,
)
from samestep.autopilot.helpers.shared_storage import MemoryFile, Place, SharedWeights
from samestep.autopilot.split.guards import Attributes
from samestep.autopilot.state.reachable_state import forget_classes, known_files
from samestep.autopilot.state.saved_state import carried_by, version_of
from samestep.base import env
from samestep.hooks import module_parts
from samestep.hooks.tensor_tree import leaves

_LARGE = 1 << 16
"""Bytes from which a tensor without gradients is shared, unless calls write to it."""


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


@dataclass(eq=False, slots=True)
class MirroredModule:
    """The mirrors of one module, from the view of the main rank."""

    number: int
    tensors: list[Tensor]
    is_shared: list[bool]
    versions: list[Any] = field(default_factory=list)
    """The memory and version of each tensor that is shared, after the last call."""
    values: dict[torch.dtype, Tensor] = field(default_factory=dict)
    """The values of the tensors that are not shared, after the last call."""
    is_written: set[int] = field(default_factory=set)
    """The shared tensors that a call has written to."""
    objects: list[Any] = field(default_factory=list)
    """References to the submodules, tensors and objects that the module reaches; weak ones where that is
    possible, since an object may refer to the module."""
    requires_grad: list[bool] = field(default_factory=list)
    """The flag of each tensor when the mirror was sent."""
    plain: Attributes = field(default_factory=dict)
    """The flags, numbers and texts that it reaches, after the last call."""

    def record(self, module: nn.Module, plain: Attributes) -> None:
        """Record that the mirror now is as the module."""
        self.objects = [_reference(one) for one in objects_of(module)]
        self.plain = plain
        self.record_values()

    def record_values(self) -> None:
        """Record that the tensors of the mirror are as those of the module."""
        self.versions = [
            _version(tensor) if is_shared else None
            for tensor, is_shared in zip(self.tensors, self.is_shared, strict=True)
        ]
        self.values = {dtype: _flat(tensors) for dtype, tensors in self._unshared().items()}

    def is_as(self, module: nn.Module, plain: Attributes) -> bool:
        """Return whether the module differs from its mirror at most in the values of tensors."""
        if self.is_written:
            return False
        for tensor, version in zip(self.tensors, self.versions, strict=True):
            if version is not None and version[0] != tensor.data_ptr():
                return False
        if [tensor.requires_grad for tensor in self.tensors] != self.requires_grad:
            return False
        objects = objects_of(module)
        return (
            len(objects) == len(self.objects)
            and all(_refers(known, one) for known, one in zip(self.objects, objects, strict=True))
            and plain == self.plain
        )

    def note_written(self) -> None:
        """Note the shared tensors that the last call has written to: helpers do not see what it wrote."""
        for place, (tensor, version) in enumerate(zip(self.tensors, self.versions, strict=True)):
            if version is not None and not tensor.requires_grad and version != _version(tensor):
                self.is_written.add(place)

    def _unshared(self) -> dict[torch.dtype, list[Tensor]]:
        found: dict[torch.dtype, list[Tensor]] = {}
        for tensor, is_shared in zip(self.tensors, self.is_shared, strict=True):
            if not is_shared:
                found.setdefault(tensor.dtype, []).append(tensor)
        return found

    def written(self) -> dict[int, Tensor]:
        """Return the tensors that are not shared, by their place, if any of their values has changed.

        Their versions do not show it: batch norm and writes through ``data`` leave them as they are.
        """
        for dtype, tensors in self._unshared().items():
            flat, known = _flat(tensors), self.values[dtype]
            if flat.shape != known.shape or not torch.equal(flat, known):
                break
        else:
            return {}
        return {
            place: tensor.detach() for place, tensor in enumerate(self.tensors) if not self.is_shared[place]
        }

    def restore_values(self) -> None:
        """Give the tensors that are not shared the values that were recorded last."""
        for dtype, tensors in self._unshared().items():
            strided = [tensor for tensor in tensors if tensor.layout is torch.strided]
            parts = torch.split(self.values[dtype], [tensor.nbytes for tensor in strided])
            for tensor, part in zip(strided, parts, strict=True):
                if tensor.nbytes:
                    tensor.data.copy_(part.view(dtype).view(tensor.shape))

    @property
    def weights(self) -> list[Tensor]:
        """The tensors that get gradients."""
        return [tensor for tensor in self.tensors if tensor.requires_grad and tensor.is_leaf]


def _reference(value: Any) -> Any:
    try:
        return weakref.ref(value)
    except TypeError:
        return value


def _refers(known: Any, value: Any) -> bool:
    """Return whether `_reference` has made `known` of this object."""
    return known is value or (isinstance(known, weakref.ref) and known() is value)


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    """Return the bytes of tensors of one type, one after another."""
    parts = [
        tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
        for tensor in tensors
        if tensor.layout is torch.strided
    ]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8, device="cpu")


def _version(tensor: Tensor) -> tuple[int, int | None]:
    return tensor.data_ptr(), version_of(tensor)


class Mirrors:
    """The mirrors of a script's modules, from the view of the main rank."""

    def __init__(self, weights: SharedWeights) -> None:
        self._weights = weights
        self._count = 0
        self._unshared: set[int] = set()
        """The large tensors that calls write to."""

    def mirrored(
        self, module: nn.Module, plain: Attributes, before: MirroredModule | None = None
    ) -> tuple[MirroredModule, MirrorMessage]:
        """Return a new mirror of a module, and the message with it; `before` is its earlier one.

        Raises:
            MirrorError: it cannot be sent.
        """
        tensors: list[Tensor] = []
        places: dict[int, int] = {}

        def refer(tensor: Tensor) -> int:
            if type(tensor) not in (Tensor, nn.Parameter) or tensor.layout is not torch.strided:
                raise MirrorError(f"it holds a tensor of the kind {type(tensor).__name__} ({tensor.layout})")
            if id(tensor) not in places:
                if tensor.requires_grad and not tensor.is_leaf and id(tensor) not in carried:
                    raise MirrorError("it holds a tensor that is computed from weights outside of the call")
                places[id(tensor)] = len(tensors)
                tensors.append(tensor)
            return places[id(tensor)]

        if replaced := replaced_functions(module):
            raise MirrorError(f"it calls {replaced}, which the script has replaced")
        attributes = {
            side: getattr(module_parts.submodule(module, side[0]), side[1]) for side in carried_by(module)
        }
        carried = {id(tensor) for _, tensor in leaves(attributes)}
        try:
            with scripts_modules_by_value(), classes_of_their_own():
                content = pickled(module, refer)
        except MirrorError:
            raise
        except Exception as error:  # noqa: BLE001 - of any object of the script
            why = " ".join(str(error).split())[:200]
            raise MirrorError(f"it cannot be sent to helpers ({type(error).__name__}: {why})") from None
        if before is not None:
            self._unshared |= {id(before.tensors[place]) for place in before.is_written}
        self._weights.share(tensor for tensor in tensors if self._is_to_be_shared(tensor))
        self._count += 1
        is_shared = [self._is_shared(one) for one in tensors]
        flags = [one.requires_grad for one in tensors]
        known = MirroredModule(self._count, tensors, is_shared, requires_grad=flags)
        known.record(module, plain)
        described = [self._described(one) for one in tensors]
        replaces = None if before is None else before.number
        files = files_of_script()
        return known, MirrorMessage(self._count, content, described, env.snapshot(), files, replaces)

    def _is_to_be_shared(self, tensor: Tensor) -> bool:
        is_weight = isinstance(tensor, nn.Parameter) or (tensor.requires_grad and tensor.is_leaf)
        return is_weight or (tensor.nbytes >= _LARGE and id(tensor) not in self._unshared)

    def _is_shared(self, tensor: Tensor) -> bool:
        return id(tensor) not in self._unshared and self._weights.place_of(tensor) is not None

    def _described(self, tensor: Tensor) -> TensorState:
        place = self._weights.place_of(tensor) if self._is_shared(tensor) else None
        value = tensor.detach() if place is None else SharedTensor(self._weights.file_of(tensor), place)
        requires_grad = tensor.requires_grad and tensor.is_leaf
        return TensorState(value, isinstance(tensor, nn.Parameter), requires_grad, fields_of_tensor(tensor))


@dataclass(eq=False, slots=True)
class Mirror:
    """A mirror on a helper."""

    module: nn.Module
    tensors: list[Tensor]

    @property
    def weights(self) -> list[Tensor]:
        """The tensors that get gradients."""
        return [tensor for tensor in self.tensors if tensor.requires_grad]

    def write(self, values: Mapping[int, Tensor]) -> None:
        """Overwrite tensors by the values of the main rank."""
        with torch.no_grad():
            for place, value in values.items():
                own = self.tensors[place]
                if own.shape == value.shape and own.dtype == value.dtype:
                    own.data.copy_(value)
                else:
                    own.data = value.clone()


class MappedWeights:
    """The memory files of the main rank that this helper has mapped, as long as a mirror uses them."""

    def __init__(self) -> None:
        self._files: weakref.WeakValueDictionary[int, mmap.mmap] = weakref.WeakValueDictionary()

    def mirror(self, message: MirrorMessage) -> Mirror:
        """Return the mirror of a message."""
        env.export(message.environment)
        known_files.update(message.files)
        tensors = [self._tensor(one) for one in message.tensors]
        module: nn.Module = unpickled(message.module, tensors.__getitem__)
        forget_classes()
        return Mirror(module, tensors)

    def _tensor(self, state: TensorState) -> Tensor:
        value = state.value
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
