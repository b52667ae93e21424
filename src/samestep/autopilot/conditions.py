"""What a call depends on, and leaves, beside tensors: flags, numbers, texts; and hooks that see slices.

A proof holds under its conditions: a model that is told its epoch may do something else in the next one.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from torch import nn

from samestep.autopilot.plans import Given
from samestep.watch.tree import Path, parts_of, text

Attributes: TypeAlias = Mapping[tuple[int, str], Any]
"""Values by the place of their module among those in the one called, and their name."""

_PLAIN = (bool, int, float, str, type(None))
_TORCHS = frozenset(vars(nn.Module()))


def plain_arguments(given: Given) -> tuple[Any, ...]:
    """Return the flags, numbers and texts among a call's arguments."""
    named = [*enumerate(given.args), *given.kwargs.items()]
    return tuple((key, value) for key, value in named if isinstance(value, _PLAIN))


def plain_attributes(module: nn.Module) -> Attributes:
    """Return the flags, numbers and texts that classes of the script keep in a module and those in it.

    torch's own layers are left out: none compares samples because of one.
    """
    return {
        (place, key): value
        for place, one in enumerate(_modules(module))
        if not _is_torchs(type(one))
        for key, value in vars(one).items()
        if isinstance(value, _PLAIN) and key not in _TORCHS
    }


def left_behind(module: nn.Module) -> Attributes:
    """Return `plain_attributes`, and the last of each list, with the length."""
    found = dict(plain_attributes(module))
    for place, one in enumerate(_modules(module)):
        for key, value in vars(one).items():
            if type(value) is list and key not in _TORCHS:
                last = value[-1] if value and isinstance(value[-1], _PLAIN) else None
                found[place, key] = (len(value), last)
    return found


def changed(before: Attributes, after: Attributes) -> Attributes:
    """Return what is other than it was."""
    return {key: value for key, value in after.items() if key not in before or not _same(before[key], value)}


def told_of_slice(whole: Attributes, part: Attributes, total: int) -> str | None:
    """Return the name of what a call has left that is not known to be the whole batch's, if there is any.

    Args:
        whole: what was other after the call of the whole batch.
        part: after that of a slice.
        total: the samples of the batch.
    """
    for key in {**whole, **part}:
        one = whole.get(key)
        number = one[1] if isinstance(one, tuple) else one
        if key not in whole or key not in part or not _same(one, part[key]) or _is_share(number, total):
            return key[1]
    return None


def returned_number(whole: Any, part: Any, total: int) -> str | None:
    """Return the place of a number among outputs that is not known to be the whole batch's, if there is any.

    Args:
        whole: the outputs of the call of the whole batch.
        part: those of a slice.
        total: the samples of the batch.
    """
    other = dict(_numbers(part))
    for path, value in _numbers(whole):
        if value == 0 or other.get(path) != value or _is_share(value, total):
            return text(path)
    return None


def _is_share(value: Any, total: int) -> bool:
    """Return whether a number may be the share of samples of which something holds, an accuracy.

    It may be the same in a slice by chance, and then tells nothing of the next batch.
    """
    return isinstance(value, float) and (value * total).is_integer()


def hooked(module: nn.Module) -> str | None:
    """Return the name of a module or a parameter of which a hook would see a slice, if there is one."""
    for one in _modules(module):
        if one._forward_hooks or one._backward_hooks or one._backward_pre_hooks:  # noqa: SLF001
            return next(name for name, other in module.named_modules() if other is one) or "it"
        for parameter in one._parameters.values():  # noqa: SLF001 - named_parameters takes ten times as long
            if parameter is not None and _is_hooked(parameter):
                return next(name for name, other in module.named_parameters() if other is parameter)
    return None


def _modules(module: nn.Module) -> Iterator[nn.Module]:
    """Yield a module and those in it, as often as they are there: `modules` takes several times as long."""
    yield module
    waiting = [module]
    while waiting:
        for one in waiting.pop()._modules.values():  # noqa: SLF001
            if one is not None:
                yield one
                waiting.append(one)


def _is_torchs(kind: type[nn.Module]) -> bool:
    return kind.__module__.startswith("torch.")


def _is_hooked(parameter: nn.Parameter) -> bool:
    if parameter._backward_hooks:  # noqa: SLF001 - nothing else tells
        return True
    after = getattr(parameter, "_post_accumulate_grad_hooks", None)
    return after is not None and not all(map(_is_ours, after.values()))


def _is_ours(hook: Any) -> bool:
    """Return whether a hook is one of those that average gradients."""
    return getattr(getattr(hook, "func", hook), "__module__", "").startswith("samestep.replicas.")


def _numbers(value: Any, path: Path = ()) -> Iterator[tuple[Path, float]]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value
    for key, part in parts_of(value):
        yield from _numbers(part, (*path, key))


def _same(one: Any, other: Any) -> bool:
    return bool(type(one) is type(other) and (one == other or repr(one) == repr(other) == "nan"))


def without(attributes: Attributes, keys: Iterable[tuple[int, str]]) -> tuple[Any, ...]:
    """Return attributes but for some, to be looked up by."""
    own = set(keys)
    return tuple((key, value) for key, value in attributes.items() if key not in own)
