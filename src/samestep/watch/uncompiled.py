"""Methods that torch's compiler leaves alone, though what it compiles calls them.

It would compile each with guards on all that the method reads, and anew where that has changed: in each
step, for what notes steps.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch

from samestep.watch.events import remade


@contextmanager
def uncompiled(owner: type) -> Iterator[None]:
    """Have the methods of a class, and what they call, left alone by whatever is compiled within."""
    methods = [one for one in vars(owner).values() if isinstance(one, FunctionType)]

    def marking(compiling: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            _mark(methods)
            return compiling(*args, **kwargs)

        return call

    if "torch._dynamo" in sys.modules:  # importing it takes more than a second
        _mark(methods)
    with remade(torch, "compile", marking):
        yield


def _mark(methods: list[FunctionType]) -> None:
    # The public spelling gives another function.
    from torch._dynamo import decorators, eval_frame

    dynamo: Any = eval_frame
    for one in methods:
        decorators.skip(one)
        if hasattr(dynamo, "FrameExecStrategy"):  # else what these call is compiled
            skip = dynamo.FrameAction.SKIP
            dynamo.set_code_exec_strategy(one.__code__, dynamo.FrameExecStrategy(skip, skip))
