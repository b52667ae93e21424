"""Lists all declared hooks, for the reference and the self-test."""

from collections.abc import Iterator

from samestep.hooks import declarations, verify_declarations
from samestep.hooks.registry import Hook


def declared() -> Iterator[Hook]:
    """Yield every hook that is declared by name."""
    for value in (*vars(declarations).values(), *vars(verify_declarations).values()):
        yield from (one for one in (value if isinstance(value, tuple) else (value,)) if isinstance(one, Hook))


ALL = tuple(declared())
