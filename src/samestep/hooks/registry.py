"""Replaces attributes of torch, Python and other libraries by declared hooks, and restores them.

A `Hook` declares one attribute that a feature replaces. Several hooks of one attribute form a chain: one of
higher order is outside of one of lower order, and of equal order the later attached is outside. The attribute
is restored when the last of them is detached, in any order, also after an error::

    script -> hook attached last -> hook attached first -> original

Functions that libraries import by name are replaced in every module that refers to them.
"""

import glob
import inspect
import os
import pathlib
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import wraps
from importlib.machinery import ModuleSpec
from itertools import count
from pkgutil import resolve_name
from typing import Any, TypeAlias, cast

from samestep.base.console import write_stderr
from samestep.base.errors import UsageError

Make: TypeAlias = Callable[[Any], Any]
"""Returns the replacement of the attribute that it gets."""

_MISSING = object()


@dataclass(frozen=True, slots=True)
class Hook:
    """An attribute that a feature replaces."""

    # the module, or module and class separated by a colon: ``torch.autograd``, ``torch.nn:Module``
    owner: str
    attribute: str  # its name
    feature: str  # the feature that needs it
    reason: str  # why the feature replaces it
    order: int = 0  # its position in the chain of the attribute's hooks; higher is outside
    arguments: tuple[str, ...] = ()  # names of the first parameters that the replacement relies on
    # whether the feature does without an attribute that is missing; otherwise it is refused
    optional: bool = False

    @property
    def name(self) -> str:
        """The full name of the attribute."""
        return f"{self.owner.replace(':', '.')}.{self.attribute}"

    @property
    def library(self) -> str:
        """The library that it belongs to."""
        return self.owner.partition(":")[0].partition(".")[0]


@dataclass(slots=True)
class _Chain:
    """The hooks that are attached to one attribute."""

    owner: Any
    attribute: str
    before: Any  # the attribute before the first hook, as the owner holds it; `_MISSING` for an inherited one
    original: Any
    installed: Any = None
    hooks: list[tuple[tuple[int, int], Make]] = field(default_factory=list)


_lock = threading.RLock()  # reentrant: the garbage collector may detach a hook while another is attached
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
_chains: dict[tuple[int, str], _Chain] = {}
_first: dict[tuple[int, str], Any] = {}
"""The library's own value of each attribute that `put` has set."""
_numbers = count()


@contextmanager
def attached(hook: Hook, make: Make) -> Iterator[None]:
    """Replace the attribute of `hook` with `make(original)` for the duration of a block.

    Args:
        hook: the declared attribute.
        make: returns the replacement; it is called again if a hook below it in the chain comes or goes.

    Raises:
        UsageError: the installed version of the library has no such attribute.
    """
    with attached_to(_owner(hook), hook, make):
        yield


@contextmanager
def attached_to(owner: Any, hook: Hook, make: Make) -> Iterator[None]:
    """Replace the attribute of `hook` on an object that was found at run time, such as a subclass."""
    detach = attach_to(owner, hook, make)
    try:
        yield
    finally:
        detach()


def attach(hook: Hook, make: Make) -> Callable[[], None]:
    """Replace the attribute of `hook` until the returned function is called."""
    return attach_to(_owner(hook), hook, make)


def attach_to(owner: Any, hook: Hook, make: Make) -> Callable[[], None]:
    """Replace an attribute of `owner` until the returned function is called."""
    if owner is None or not hasattr(owner, hook.attribute):
        if hook.optional:
            return lambda: None
        raise UsageError(
            f"{hook.feature} needs {hook.name}, which the installed {hook.library} does not have. "
            "`samestep doctor` lists all hooks that do not fit."
        )
    key = id(owner), hook.attribute
    with _lock:
        chain = _chains.get(key)
        # If another library has replaced it since, this hook is outside of theirs.
        if chain is None or _held(chain) is not chain.installed:
            before = vars(owner).get(hook.attribute, _MISSING)
            chain = _Chain(owner, hook.attribute, before, getattr(owner, hook.attribute))
            _chains[key] = chain
        entry = (hook.order, next(_numbers)), make
        installed = chain.installed
        chain.hooks.append(entry)
        try:
            _install(chain)
        except BaseException:
            chain.installed = installed
            chain.hooks.remove(entry)
            if not chain.hooks:
                del _chains[key]
            raise
    return lambda: _detach(key, chain, entry)


def put(hook: Hook, value: Any) -> Any:
    """Set the attribute of `hook`, and return its previous value; nothing restores it."""
    owner = _owner(hook)
    before = getattr(owner, hook.attribute)
    _first.setdefault((id(owner), hook.attribute), before)
    setattr(owner, hook.attribute, value)
    return before


@contextmanager
def attached_all(hooks: Mapping[Hook, Make]) -> Iterator[None]:
    """Attach several hooks, in their order; detach them in reverse."""
    with ExitStack() as stack:
        for hook, make in hooks.items():
            stack.enter_context(attached(hook, make))
        yield


@contextmanager
def once_imported(library: str, then: Callable[[], None]) -> Iterator[None]:
    """Call `then` when a library is imported within the block, or at once if it has been before."""
    if library in sys.modules:
        then()
    finder = _FinderOf(library, then)
    finders: list[Any] = sys.meta_path
    finders.insert(0, finder)
    try:
        yield
    finally:
        if finder in finders:
            finders.remove(finder)


class _FinderOf:
    """A finder of one library that asks the next ones; it calls a function when the library is imported."""

    def __init__(self, library: str, then: Callable[[], None]) -> None:
        self._library, self._then = library, then

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name != self._library:
            return None
        finders: list[Any] = [*sys.meta_path]
        further = finders[finders.index(self) + 1 :]
        # As Python does, it passes over a finder of an old protocol.
        specs = (finder.find_spec(name, path, target) for finder in further if hasattr(finder, "find_spec"))
        spec = next((spec for spec in specs if spec is not None), None)
        loader: Any = None if spec is None else spec.loader
        if execute := getattr(loader, "exec_module", None):

            def exec_module(module: Any) -> None:
                vars(loader).pop("exec_module", None)  # that of a zip file has more modules
                execute(module)
                self._then()

            with suppress(AttributeError):  # of a loader without attributes of its own
                loader.exec_module = exec_module
        return spec


def original_of(value: Any) -> Any:
    """Return the attribute that a replacement stands for; another value as it is."""
    return next((chain.original for chain in [*_chains.values()] if chain.installed is value), value)


def wrapping(wrap: Callable[..., Any]) -> Make:
    """Return a `Make` whose replacement calls `wrap(original, ...)`."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: wrap(original, *args, **kwargs)

    return named(make)


def named(make: Make) -> Make:
    """Return a `Make` whose replacement has the name and signature of the original."""
    return lambda original: wraps(original)(make(original))


def instead(value: Any) -> Make:
    """Return a `Make` that ignores the original."""
    return lambda _: value


def problems(hooks: Iterable[Hook]) -> Iterator[str]:
    """Yield a sentence for each hook that does not fit the installed libraries.

    Each hook is attached and detached once, but for those of attributes that samestep has replaced already;
    nothing else may run in this process meanwhile.
    """
    for hook in hooks:
        try:
            owner = _owner(hook)
        except UsageError as error:
            yield str(error)
            continue
        if owner is None or not hasattr(owner, hook.attribute):
            if not hook.optional:
                yield f"{hook.name} is missing; {hook.feature} is refused"
            continue
        key, before = (id(owner), hook.attribute), vars(owner).get(hook.attribute, _MISSING)
        chain = _chains.get(key)
        original = getattr(owner, hook.attribute) if chain is None else chain.original
        original = _first.get(key, original)
        parameters = _parameters(original)
        missing = [] if parameters is None else [name for name in hook.arguments if name not in parameters]
        if missing:
            yield f"{hook.name} has no parameter {', '.join(missing)}; {hook.feature} relies on it"
        if chain is not None or key in _first:
            continue
        if before is not _MISSING and _is_foreign(hook, original):
            yield f"{hook.name} is replaced by {original.__module__}; {hook.feature} runs around that"
        with attached_to(owner, hook, lambda function: function):
            pass
        if vars(owner).get(hook.attribute, _MISSING) is not before:
            yield f"{hook.name} was not restored"


def _owner(hook: Hook) -> Any:
    try:
        return resolve_name(hook.owner)
    except (ImportError, AttributeError) as error:
        if hook.optional:
            return None
        raise UsageError(f"{hook.feature} needs {hook.name}, which cannot be imported: {error}") from error


def _held(chain: _Chain) -> Any:
    """Return the attribute as the owner holds it: `getattr` returns a new object for each class method."""
    return vars(chain.owner).get(chain.attribute, _MISSING)


def _install(chain: _Chain) -> None:
    """Set the attribute to the chain of its hooks, or back."""
    value = chain.original
    for _, make in sorted(chain.hooks, key=lambda entry: entry[0]):
        value = make(value)
    if chain.hooks:
        chain.installed = value
        setattr(chain.owner, chain.attribute, value)
    elif chain.before is _MISSING:
        delattr(chain.owner, chain.attribute)
    else:
        setattr(chain.owner, chain.attribute, chain.before)


def _detach(key: tuple[int, str], chain: _Chain, entry: tuple[tuple[int, int], Make]) -> None:
    with _lock:
        if entry not in chain.hooks:
            return
        chain.hooks.remove(entry)
        if not chain.hooks and _chains.get(key) is chain:
            del _chains[key]
        is_ours = _held(chain) is chain.installed
        if is_ours:
            _install(chain)
    if not is_ours:  # another library has replaced it since, and may call this chain: its replacement stays
        _warn_of_conflict(chain)


def _warn_of_conflict(chain: _Chain) -> None:
    replacement = getattr(chain.owner, chain.attribute, None)
    owner = getattr(chain.owner, "__qualname__", None) or getattr(chain.owner, "__name__", repr(chain.owner))
    by = getattr(replacement, "__module__", None) or type(replacement).__name__
    text = f"{by} has replaced {owner}.{chain.attribute} while samestep used it; its replacement stays."
    try:
        warnings.warn(text, RuntimeWarning, stacklevel=4)
    except RuntimeWarning:  # under `python -W error`; it would replace the script's result or error
        write_stderr(f"samestep: {text}\n")


def _parameters(value: Any) -> tuple[str, ...] | None:
    try:
        return tuple(inspect.signature(value).parameters)
    except (TypeError, ValueError):  # compiled code has no signature
        return None


def _is_foreign(hook: Hook, value: Any) -> bool:
    """Return whether a function is of another library than the owner of its attribute."""
    module = getattr(value, "__module__", None)
    if hook.library not in ("torch", "numpy") or not inspect.isfunction(value) or not isinstance(module, str):
        return False
    return module.partition(".")[0] not in (hook.library, "samestep")


_Pairs: TypeAlias = dict[int, tuple[Any, Any]]
_PLAIN = ("posix", "_io", "importlib", "samestep", "_frozen_importlib", "_frozen_importlib_external")
"""Packages in which functions are not replaced: Python's import system, and samestep."""


@dataclass(frozen=True, slots=True)
class _Searched:
    """A module's namespace, as it was when it was searched."""

    namespace: int
    length: int
    names: Sequence[str]  # the names that refer to one of the functions


_functions: dict[int, Any] = {}
_searched: dict[str, _Searched] = {}


def search_references(functions: Iterable[Any]) -> None:
    """Find all names that refer to `functions`, which `references_replaced` then does not have to search.

    A forked process that reads all names of all modules copies most of its memory, which takes longer than
    the search. So the launcher searches before it forks; later searches are limited to modules that are new
    or grown.
    """
    known = {id(function): function for function in functions}
    if not known.keys() <= _functions.keys():
        _functions.update(known)
        _searched.clear()
    for module, names in _namespaces():
        if module != "__main__" and not _is_known(module, names):
            referring = [name for name, value in [*names.items()] if _functions.get(id(value)) is value]
            _searched[module] = _Searched(id(names), len(names), referring)


@contextmanager
def references_replaced(pairs: Sequence[tuple[Any, Any]]) -> Iterator[None]:
    """Replace functions in all modules for the duration of a block.

    Args:
        pairs: each function, and its replacement.
    """
    _replace_all({id(old): (old, new) for old, new in pairs})
    try:
        yield
    finally:
        _replace_all({id(new): (new, old) for old, new in pairs})


def _replace_all(pairs: _Pairs) -> None:
    are_searched = all(id(old) in _functions or id(new) in _functions for old, new in pairs.values())
    for module, names in _namespaces():
        is_known = are_searched and _is_known(module, names)
        _replace(names, pairs, _searched[module].names if is_known else [*names])
    import numpy as np  # not at the top: most processes replace no references

    openers = np.lib._datasource._file_openers._file_openers  # type: ignore[attr-defined]  # noqa: SLF001
    _replace(openers, pairs, [*openers])
    for holder in _holders_of_file_functions():
        for name, value in [*vars(holder).items()]:
            plain = value.__func__ if isinstance(value, staticmethod) else value
            if id(plain) in pairs and pairs[id(plain)][0] is plain:
                setattr(holder, name, staticmethod(pairs[id(plain)][1]))
    for group in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids):
        for old, new in pairs.values():
            if old in group:
                cast("set[Any]", group).discard(old)
                cast("set[Any]", group).add(new)


def _holders_of_file_functions() -> list[type]:
    """Return the classes by which pathlib calls functions of `os`: those of Python 3.10, and of 3.13."""
    classes = (getattr(pathlib, "_NormalAccessor", None), getattr(glob, "_StringGlobber", None))
    return [holder for holder in classes if holder is not None]


def _namespaces() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the namespace of each module in which functions are replaced."""
    for module, loaded in [*sys.modules.items()]:
        if module.partition(".")[0] not in _PLAIN:
            names = getattr(loaded, "__dict__", None)
            if isinstance(names, dict):
                yield module, names


def _is_known(module: str, names: dict[str, Any]) -> bool:
    """Return whether a module has been searched, and has as many names as then."""
    record = _searched.get(module)
    return record is not None and record.namespace == id(names) and record.length == len(names)


def _replace(names: dict[Any, Any], pairs: _Pairs, candidates: Iterable[Any]) -> None:
    for name in candidates:
        value = names.get(name)
        pair = pairs.get(id(value))
        if pair is not None and pair[0] is value:
            names[name] = pair[1]
