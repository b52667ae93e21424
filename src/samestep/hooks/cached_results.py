"""Reads the results that `functools.lru_cache` and `functools.cache` keep, and makes caches that have them.

Results may be random numbers, or of a setting that the script has changed since: computed again, they may be
others.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, update_wrapper
from gc import get_referents
from itertools import pairwise
from typing import Any, TypeAlias

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
