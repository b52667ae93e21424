"""``--secret-file``: what the nodes of a job prove themselves with, where they share no home directory."""

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from samestep.base import env
from samestep.world.job_secret import SECRET_FILE

Result = TypeVar("Result")
_NAME = "secret_file"
_OPTION = Annotated[
    str,
    typer.Option(
        "--secret-file",
        metavar="FILE",
        help="What the nodes prove themselves with, where they share no home directory.",
    ),
]


def with_secret_file(verb: Callable[..., Result]) -> Callable[..., Result]:
    """Give a verb that starts or joins ranks on several nodes the flag ``--secret-file``."""

    @wraps(verb)
    def command(*arguments: Any, **options: Any) -> Result:
        if file := options.pop(_NAME, ""):
            env.export({SECRET_FILE: str(Path(file).absolute())})
        return verb(*arguments, **options)

    own = inspect.signature(verb, eval_str=True)
    named = list(own.parameters.values())
    if named and named[-1].kind is inspect.Parameter.VAR_KEYWORD:
        named.pop()
    flag = inspect.Parameter(_NAME, inspect.Parameter.KEYWORD_ONLY, default="", annotation=_OPTION)
    command.__signature__ = own.replace(parameters=[*named, flag])  # type: ignore[attr-defined]
    return command
