"""Reads, writes and copies containers and objects without the methods of their classes.

A script may derive a class from a dict or a list whose methods compute what they return, count what was
read, or refuse to be written to. What a call reaches is saved, compared and restored as it is stored::

    class Scaled(OrderedDict):
        def __getitem__(self, key):
            return 2 * super().__getitem__(key)     # not called from here
"""

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from copy import copy
from functools import lru_cache, update_wrapper
from gc import get_referents
from itertools import pairwise
from operator import is_
from types import MemberDescriptorType
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
_BASES: tuple[Any, ...] = (OrderedDict, dict, list, tuple, deque, set, frozenset)


def base_of(value: Any) -> Any:
    """Return the class of Python that stores the items of a container; None for any other value."""
    return _base_of(type(value))


def _cached(compute: Callable[[Any], T]) -> Callable[[Any], T]:
    """Keep what a function returns for a class."""
    known = lru_cache(maxsize=4096)(compute)

    def cached(kind: Any) -> T:
        try:
            return known(kind)
        except TypeError:  # its metaclass has no hash
            return compute(kind)

    return cached


@_cached
def _base_of(kind: Any) -> Any:
    return next((base for base in kind.__mro__ if base in _BASES), None)


def is_mapping(value: Any) -> bool:
    """Return whether a value is a dict, by its actual class: a proxy may pretend to be one."""
    return base_of(value) in (dict, OrderedDict)


def length(container: Any) -> int:
    """Return the number of items."""
    return int(base_of(container).__len__(container))


def items(mapping: Any) -> list[tuple[Any, Any]]:
    """Return the keys of a dict with their values, at once: another thread may change it."""
    return [*base_of(mapping).items(mapping)]


def elements(container: Any) -> list[Any]:
    """Return the elements of a container that is no dict, at once."""
    base = base_of(container)
    if base in (list, tuple):
        return [*base.__getitem__(container, slice(None))]
    if base is set:
        return [*set.__iter__(set.copy(container))]
    while type(container) is not deque:
        with suppress(RuntimeError):  # another thread has changed it
            return [*base.__iter__(container)]
    return [*container]


def contents_of(container: Any) -> Any:
    """Return a copy of the items as a container of the class that stores them."""
    base = base_of(container)
    if is_mapping(container):
        return dict(items(container))
    return base(elements(container))


def refill(container: Any, contents: Any) -> None:
    """Replace the items of a list, a deque, a dict or a set by those of another container."""
    if contents is container:
        return
    base = base_of(container)
    if is_mapping(container):
        pairs = items(contents)
        base.clear(container)
        for key, value in pairs:
            base.__setitem__(container, key, value)
        return
    new = elements(contents)
    base.clear(container)
    (base.update if base is set else base.extend)(container, new)


def with_items(container: Any, new: Mapping[Any, Any]) -> Any:
    """Return a copy of a container with other items, by key or place, that keeps its class and its fields.

    A field that holds an item, as those of the outputs of Transformers do, holds the new one. A key ``.name``
    is that of another field.
    """
    kind: Any = type(container)
    if kind is tuple:  # most containers: it has no fields
        return container if all(map(is_, container, new.values())) else tuple(new.values())
    base = base_of(container)
    before = dict(items(container)) if is_mapping(container) else {}
    of_fields = {key for key in new if isinstance(key, str) and key[:1] == "." and key not in before}
    fields = {key[1:]: new[key] for key in of_fields}
    of_items = {key: part for key, part in new.items() if key not in of_fields}
    if base in (tuple, frozenset):
        if not fields_of(container) and all(map(is_, elements(container), of_items.values())):
            return container  # some classes make no second object, such as that of `sys.version_info`
        try:
            made = base.__new__(kind, [*of_items.values()])
        except TypeError:  # a class in C, such as that of the results of `torch.max`
            made = kind([*of_items.values()])
        return _with_fields(made, container, {}, fields)
    made = empty(kind, setting_of(container))
    if is_mapping(container):
        refill(made, {**before, **of_items})
        moved = {id(before[key]): (before[key], part) for key, part in of_items.items() if key in before}
        return _with_fields(made, container, moved, fields)
    refill(made, [*of_items.values()])
    return _with_fields(made, container, {}, fields)


def empty(kind: Any, setting: Any = None) -> Any:
    """Return a container of a class without items; `setting` is that of `setting_of`."""
    base = _base_of(kind)
    made = base.__new__(kind)
    if base is deque:
        deque.__init__(made, maxlen=setting)
    elif isinstance(made, defaultdict):
        made.default_factory = setting
    return made


def setting_of(container: Any) -> Any:
    """Return the default factory of a defaultdict, the greatest length of a deque; None for others."""
    if base_of(container) is deque:
        return container.maxlen
    return container.default_factory if isinstance(container, defaultdict) else None


def _with_fields(
    made: Any, container: Any, moved: Mapping[int, tuple[Any, Any]], new: Mapping[str, Any]
) -> Any:
    fields = {
        name: moved[id(value)][1] if id(value) in moved else value
        for name, value in fields_of(container).items()
    }
    if fields:
        restore_fields(made, {**fields, **new})
    return made


def with_fields(record: Any, new: Mapping[str, Any]) -> Any:
    """Return a copy of an object with some other fields."""
    kind = type(record)
    try:
        made = object.__new__(kind)
    except TypeError:  # a class in C makes its objects itself
        made = copy(record)
    restore_fields(made, {**fields_of(record), **new})
    return made


def stored_fields(record: Any) -> dict[str, Any] | None:
    """Return the dict that stores the fields of an object; None if it has none."""
    try:
        stored = object.__getattribute__(record, "__dict__")
    except AttributeError:
        return None
    return stored if type(stored) is dict else None


def fields_of(record: Any) -> dict[str, Any]:
    """Return the fields of an object, from its dict and its slots; properties are not computed."""
    values = {}
    for name, slot in _slots_of(type(record)):
        with suppress(AttributeError):  # it may not be set
            values[name] = slot.__get__(record)
    return {**values, **(stored_fields(record) or {})}


def restore_fields(record: Any, fields: Mapping[str, Any]) -> None:
    """Replace the fields of an object."""
    slots = dict(_slots_of(type(record)))
    for name, slot in slots.items():
        if name in fields:
            slot.__set__(record, fields[name])
        else:
            with suppress(AttributeError):  # it was not set
                slot.__delete__(record)
    stored = stored_fields(record)
    if stored is not None:
        refill(stored, {name: value for name, value in fields.items() if name not in slots})


@_cached
def _slots_of(kind: Any) -> tuple[tuple[str, MemberDescriptorType], ...]:
    """Return the slots that the classes of Python code define, by their names.

    Of slots of one name, only that of the most derived class is read and written by the name.
    """
    slots = {
        name: slot
        for owner in reversed(kind.__mro__)
        if "__slots__" in vars(owner)
        for name, slot in vars(owner).items()
        if isinstance(slot, MemberDescriptorType)
    }
    return tuple(slots.items())


Result: TypeAlias = tuple[tuple[Any, ...], dict[str, Any], Any]
"""The arguments of a call, those with names, and its result."""


def results_in(function: Any) -> dict[Any, Any]:
    """Return the dict in which a function's cache has its results; an empty one if it is not found."""
    size = function.cache_info().currsize
    for known, after in pairwise(get_referents(function)):  # the dict comes before the function that fills it
        if type(known) is dict and len(known) == size:  # a result may be a dict, and be before an array
            filling = after, getattr(after, "__wrapped__", None)
            if any(function.__wrapped__ is candidate for candidate in filling):
                return known
    return {}


def results_of(function: Any) -> list[Result]:
    """Return the results of a function's cache, the least recently used first."""
    known, referents = results_in(function), get_referents(function)
    values: dict[Any, Any] = dict(known)
    if function.cache_parameters()["maxsize"] is not None:  # the dict has links
        kept = set(map(id, known))
        values = {key: result for key, result in _linked(function, referents, known) if id(key) in kept}
    if len(values) != function.cache_info().currsize:
        raise ValueError(f"the cached results of {function.__name__} are not found")
    is_typed, mark = function.cache_parameters()["typed"], _mark_in(referents)
    return [(*_arguments(key, mark, is_typed=is_typed), result) for key, result in values.items()]


def _linked(function: Any, referents: list[Any], known: dict[Any, Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the keys and results of a cache's links, which come before its dict, each with its type."""
    end = next(place for place, value in enumerate(referents) if value is known)
    begin = int(referents[0] is type(function))
    links = {type(link) for link in known.values()}
    step = 3 if end and any(referents[end - 1] is link for link in links) else 2
    yield from zip(referents[begin:end:step], referents[begin + 1 : end : step], strict=True)


def _mark_in(referents: list[Any]) -> Any:
    """Return the object that stands between arguments without and with names in a key."""
    return next(value for value in reversed(referents) if type(value) is object)


def _arguments(key: Any, mark: Any, *, is_typed: bool) -> tuple[tuple[Any, ...], dict[str, Any]]:
    parts = key if type(key) is tuple else (key,)
    place = next((place for place, part in enumerate(parts) if part is mark), None)
    if place is None:
        return parts[: len(parts) // 2] if is_typed and type(key) is tuple else parts, {}
    after = parts[place + 1 :]
    # One type stands for each value: of n arguments and m pairs there are n + 1 + 2 m + n + m parts.
    pairs = after[: 2 * (len(after) - place) // 3] if is_typed else after
    return parts[:place], dict(zip(pairs[::2], pairs[1::2], strict=True))


def cached(function: Callable[..., Any], parameters: Mapping[str, Any]) -> Any:
    """Return a function with an empty cache, which `add_results` can fill."""
    pending: list[Any] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        return pending.pop() if pending else function(*args, **kwargs)

    made = lru_cache(**parameters)(update_wrapper(call, function))
    made.__wrapped__ = function
    vars(made)["pending"] = pending
    return made


def add_results(made: Any, results: list[Result]) -> None:
    """Add results to the cache of a function that `cached` has made."""
    pending = vars(made).pop("pending")
    for args, kwargs, result in results:
        pending.append(result)
        made(*args, **kwargs)
