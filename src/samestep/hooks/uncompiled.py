"""Excludes methods from torch.compile although compiled code calls them.

Dynamo would compile each method with guards on all that it reads, and recompile when that changes: in every
step, for the hooks that log events.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

from samestep.hooks import declarations
from samestep.hooks.registry import attached, named

_skipped_folders: set[str] = set()


@contextmanager
def uncompiled(owner: type) -> Iterator[None]:
    """Exclude a class's methods, and the functions they call, from compilation inside a block."""
    methods = [one for one in vars(owner).values() if isinstance(one, FunctionType)]

    def marking(compiling: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            _mark(methods)
            return compiling(*args, **kwargs)

        return call

    if "torch._dynamo" in sys.modules:  # importing it takes more than a second
        _mark(methods)
    with attached(declarations.COMPILE, named(marking)):
        yield


def _mark(methods: list[FunctionType]) -> None:
    # The public spelling gives another function.
    from torch._dynamo import decorators, eval_frame, trace_rules

    dynamo: Any = eval_frame
    if not hasattr(dynamo, "FrameExecStrategy"):  # torch 2.6 can only skip files
        folders = {__package__, *(one.__module__.rpartition(".")[0] for one in methods)}
        for folder in folders - _skipped_folders:
            trace_rules.add(folder)
            _skipped_folders.add(folder)
        return
    for one in methods:
        decorators.skip(one)
        # Some versions compile the functions that a skipped one calls.
        skip = dynamo.FrameAction.SKIP
        dynamo.set_code_exec_strategy(one.__code__, dynamo.FrameExecStrategy(skip, skip))
