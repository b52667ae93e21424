"""Runs a check with a time limit, so that a hung driver or file server does not hang the doctor."""

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_stuck: list[threading.Thread] = []


def within(limit_s: float, look: Callable[[], T]) -> T:
    """Return what `look` returns, or raise what it raises.

    Args:
        limit_s: time limit in seconds; a call that takes longer goes on in its thread.
        look: the function to call.

    Raises:
        TimeoutError: the call took longer.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            results.append(look())
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            errors.append(error)

    thread = threading.Thread(target=call, name="samestep-doctor", daemon=True)
    thread.start()
    thread.join(limit_s)
    if errors:
        raise errors[0]
    if not results:
        _stuck.append(thread)
        raise TimeoutError(f"no answer within {limit_s:g} s")
    return results[0]


def any_stuck() -> bool:
    """Return whether a check still runs after its time limit; this process must not wait for it."""
    return any(thread.is_alive() for thread in _stuck)
