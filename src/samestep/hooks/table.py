"""Lists all declared hooks, for the reference and the self-test."""

from collections.abc import Iterator

from samestep.hooks import declarations, device_declarations, verify_declarations
from samestep.hooks.registry import Hook


def declared() -> Iterator[Hook]:
    """Yield every hook that is declared by name."""
    for module in (declarations, device_declarations, verify_declarations):
        for value in vars(module).values():
            hooks = value if isinstance(value, tuple) else (value,)
            yield from (one for one in hooks if isinstance(one, Hook))


ALL = tuple(declared())
