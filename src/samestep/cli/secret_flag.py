"""Adds ``--secret-file`` to a verb: the secret of a job whose nodes share no home directory."""

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar

from samestep.base import env
from samestep.cli.options import WORKERS_PANEL, option
from samestep.ranks.rendezvous.job_secret import SECRET_FILE

Result = TypeVar("Result")
_NAME = "secret_file"
_OPTION = Annotated[
    str,
    option(
        "FILE",
        "File with the secret of the job, for nodes that share no home directory.",
        WORKERS_PANEL,
        "--secret-file",
    ),
]


def with_secret_file(verb: Callable[..., Result]) -> Callable[..., Result]:
    """Add the option ``--secret-file`` to a verb that starts or joins ranks on several nodes."""

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
