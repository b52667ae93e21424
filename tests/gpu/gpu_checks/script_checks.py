"""Runs training scripts by Python alone and by ``samestep run``, and compares the numbers that they print."""

import re
from dataclasses import replace
from importlib.util import find_spec
from unittest import SkipTest

from gpu_checks.context import (
    Context,
    Figures,
    close,
    command,
    last_lines,
    python,
    require,
    skip_without_triton,
    succeeded,
    user_script,
)
from gpu_checks.forks import Ended, Fork
from gpu_checks.scripts_table import SCRIPTS, SERIAL, Script
from samestep.autopilot.split.bypassed_modules import CAPTURED

_RUN = ("run", "--short-calls", "split", "-n")
"""A run in which calls of small networks are split too, although that takes longer."""
_IS_SPLIT = re.compile(r"\d calls? split")
_IS_UNSPLIT = re.compile(r"^.*\d calls? unsplit (?!\(fewer samples than workers).*$", re.MULTILINE)


def compared(context: Context, name: str) -> Figures:
    """Return the largest relative difference of the losses from those of Python alone on the first GPU.

    A script that names CUDA, and has the same numbers on a CPU, runs on two CPU ranks too.
    """
    return _compared(context, SCRIPTS[name])


def _compared(context: Context, script: Script) -> Figures:
    if lacking := [one for one in script.packages if find_spec(one) is None]:
        raise SkipTest(f"{lacking[0]} is not installed")
    if script.arguments == ("compile",):
        skip_without_triton()
    words = (user_script(context, script.path), *script.arguments)
    runs: dict[str, Fork] = {}
    if context.is_cpu and script.names_cuda:
        expected = command(context, "run", "-n", 1, "--device", "cpu", *words)
    else:
        expected = python(context, *words)
    if script.names_cuda and script.is_for_cpus:
        runs["2 CPU ranks"] = command(context, *_RUN, 2, "--device", "cpu", *words)
    if not (context.is_cpu and script.names_cuda):
        where = "CPU" if context.is_cpu else "GPU"
        runs[f"{context.ranks} {where} ranks"] = command(context, *_RUN, context.ranks, *words)
    losses = _losses(succeeded(expected))
    figures = {}
    for name, run in runs.items():
        ended = succeeded(run)
        figures[name] = close(_losses(ended), losses, script.tolerance, name)
        if not (name.startswith("1 ") or script.has_unsplit):
            require_split(ended.err, name)
    return figures


def require_split(report: str, name: str) -> None:
    """Raise unless the report of a run lists split calls, and unsplit ones of very small batches only."""
    require(_IS_SPLIT.search(report), f"{name}: no call was split")
    unsplit = _IS_UNSPLIT.search(report)
    require(unsplit is None, f"{name}: {unsplit and unsplit.group()}")


def _losses(ended: Ended) -> list[float]:
    return [float(line.split()[1]) for line in ended.out.splitlines() if line.startswith("loss ")]


def graphs(context: Context) -> Figures:
    """Run a script with a captured graph, which computes its calls unsplit on several ranks."""
    script = Script(path=SERIAL, arguments=("graphs",), shows="", names_cuda=True, is_for_cpus=False)
    alone = _compared(replace(context, count=1, shares=False), script)
    if context.ranks < 2:
        return alone
    expected = succeeded(command(context, "run", "-n", 1, user_script(context, SERIAL), "graphs"))
    ended = succeeded(command(context, "run", "-n", 2, user_script(context, SERIAL), "graphs"))
    require(CAPTURED in ended.err, f"the reason is missing: {last_lines(ended.err)}")
    return {**alone, "2 ranks": close(_losses(ended), _losses(expected), script.tolerance, "2 ranks")}
