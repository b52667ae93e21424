"""Finds and replaces the tensors in a module's inputs and outputs: in tuples, dicts, dataclasses, objects.

A batch is a tree: each path has a value, also one that another path has, since the structure is built again
around other tensors. `samestep.hooks.object_graph` enters all that objects store instead, each once.
"""

from collections import OrderedDict, UserDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from itertools import chain
from types import ModuleType
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from samestep.hooks.raw_containers import (
    base_of,
    elements,
    fields_of,
    is_mapping,
    items,
    length,
    stored_fields,
    with_fields,
    with_items,
)

_DEEPEST = 8
"""The depth to which structures are searched: objects may refer to each other."""
_ATOMS = frozenset({bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device})
"""Types without parts, which most arguments of a function have: searching them would be most of the work."""
_CONTAINERS = (list, tuple, dict, OrderedDict)
Path: TypeAlias = tuple[str | int, ...]
"""Path of a part in a structure: keys, indices and names from the outside in."""
Change: TypeAlias = Callable[[Path, Tensor], Any]


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Tensor]]:
    """Yield the tensors in `value` with their paths, in order.

    Packed sequences are skipped: their rows are time steps, not samples.
    """
    if isinstance(value, Tensor):
        yield path, value
    elif len(path) < _DEEPEST:
        for key, part in parts_of(value):
            if isinstance(part, Tensor):
                yield (*path, key), part
            elif not _is_atom(part):
                yield from leaves(part, (*path, key))


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors that `leaves` finds, those nearest to `value` first, and enter each object once.

    An attribute may be a trainer, whose parts refer to each other: they have paths without number.
    """
    entered: set[int] = set()
    level = [value]
    for _ in range(_DEEPEST + 1):
        yield from (part for part in level if isinstance(part, Tensor))
        new = {id(part): part for part in level if not isinstance(part, Tensor) and id(part) not in entered}
        entered |= new.keys()
        level = [part for container in new.values() for part in _inside(container)]
        if not level:  # as in most attributes
            return


def _inside(container: Any) -> list[Any]:
    """Return the parts of a container, but none of one that has numbers and texts only, as a vocabulary."""
    kind = type(container)
    if kind is tuple or kind is list or kind is dict:
        values = [*container.values()] if kind is dict else [*container]
        with suppress(TypeError):  # a metaclass has no hash
            return [] if _ATOMS.issuperset(map(type, values)) else values
    return [part for _, part in parts_of(container)]


def parts_beside_tensors(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield the parts of `value` that are neither tensors nor containers, with their paths.

    A container at the depth to which structures are searched counts as a part.
    """
    is_searched = len(path) < _DEEPEST
    parts = [*parts_of(value)] if is_searched else []
    for key, part in parts:
        yield from parts_beside_tensors(part, (*path, key))
    is_container = base_of(value) in _CONTAINERS and not isinstance(value, PackedSequence)
    if not (parts or isinstance(value, Tensor) or (is_container and is_searched)):
        yield path, value


def mapped(value: Any, change: Change, path: Path = ()) -> Any:
    """Return `value` with each tensor replaced; containers are copied, everything else is shared."""
    if isinstance(value, Tensor):
        return change(path, value)
    if len(path) >= _DEEPEST or _is_atom(value):
        return value
    parts = {key: mapped(part, change, (*path, key)) for key, part in parts_of(value)}
    kind = type(value)
    if parts and (kind is list or kind is dict):
        return [*parts.values()] if kind is list else parts
    return _with_parts(value, parts)


def replaced(value: Any, new: Mapping[Path, Any], path: Path = ()) -> Any:
    """Return `value` with the parts at some paths replaced; the containers around them are copied."""
    if path in new:
        return new[path]
    if not any(changed[: len(path)] == path for changed in new):
        return value
    return _with_parts(value, {key: replaced(part, new, (*path, key)) for key, part in parts_of(value)})


def _with_parts(value: Any, parts: Mapping[Any, Any]) -> Any:
    """Return a copy of a container with other parts."""
    if not parts:
        return value
    if base_of(value) is not None:
        return with_items(value, parts)
    if isinstance(value, UserDict):
        beside = {key[1:]: part for key, part in parts.items() if key not in value.data}
        stored = {key: part for key, part in parts.items() if key in value.data}
        return with_fields(value, {**beside, "data": {**value.data, **stored}})
    return with_fields(value, parts)


def parts_of(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the parts of a container with their keys; nothing for any other value.

    A field of a container that holds tensors beside its items has the key ``.name``.
    """
    kind = type(value)
    if kind is tuple or kind is list or kind is dict:  # most containers, without what takes longest below
        yield from [*value.items()] if kind is dict else enumerate([*value])
        return
    if _is_atom(value) or isinstance(value, PackedSequence):
        return
    base = base_of(value)
    if base in (list, tuple):
        pairs = [*enumerate(elements(value))]
    elif is_mapping(value):
        pairs = items(value)
    elif isinstance(value, UserDict):
        pairs = [*value.data.items()]
    elif is_dataclass(value) and not isinstance(value, type):
        stored = fields_of(value)
        names = [field.name for field in fields(value) if field.name in stored]
        yield from ((name, stored[name]) for name in names)
        beside = _fields_beside(value, [(name, stored[name]) for name in names])
        yield from ((name, part) for name, part in beside if name not in names)
        return
    else:
        yield from _fields_with_tensors(value).items()
        return
    yield from pairs
    if type(value) is not base:
        yield from ((f".{name}", part) for name, part in _fields_beside(value, pairs) if name != "data")


def _is_atom(value: Any) -> bool:
    try:
        return type(value) in _ATOMS
    except TypeError:  # its metaclass has no hash
        return False


def _fields_beside(value: Any, parts: Sequence[tuple[Any, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield the fields that hold tensors and are no parts, such as what `__post_init__` has computed."""
    known = {id(part) for _, part in parts}
    for name, part in fields_of(value).items():
        if id(part) not in known and _holds_tensors(part, 2):
            yield name, part


def _fields_with_tensors(value: Any, depth: int = 2) -> dict[str, Any]:
    """Return the fields of an object that holds tensors, or lists of objects that do; nothing for others."""
    fields = stored_fields(value)
    if fields is None or callable(value) or isinstance(value, (type, ModuleType)):
        return {}
    return fields if any(_holds_tensors(part, depth) for part in fields.values()) else {}


def _holds_tensors(part: Any, depth: int) -> bool:
    if isinstance(part, Tensor):
        return True
    first = part
    if is_mapping(part) and length(part):
        first = items(part)[0][1]
    elif (base := base_of(part)) in (list, tuple):
        first = next(base.__iter__(part), part)  # the others need not be copied
    if isinstance(first, Tensor):
        return True
    return depth > 0 and bool(_fields_with_tensors(first, depth - 1))


def data_in(value: Any, depth: int = _DEEPEST) -> list[Tensor]:
    """Return the first tensor in `value` that is not computed from parameters: its rows are samples.

    In a list, return all such tensors of one type and number of dimensions: they may be one image each. A
    list of inputs and labels is a batch, as a DataLoader collates it.
    """
    if isinstance(value, PackedSequence):
        value = value.data
    if isinstance(value, Tensor):
        return [value] if value.dim() and value.numel() and not value.requires_grad else []
    nested = filter(None, (data_in(part, depth - 1) for _, part in parts_of(value) if depth))
    first = next(nested, [])
    if not isinstance(value, list):
        return first
    of_list = [*first, *chain.from_iterable(nested)]
    return [tensor for tensor in of_list if (tensor.dim(), tensor.dtype) == (first[0].dim(), first[0].dtype)]


def text(path: Path) -> str:
    """Return a path as Python source: ``[0]['mask']``."""
    return "".join(f"[{key!r}]" for key in path)
