"""Runs a script on one worker and on several, and compares its output and files.

A script that differs is run again on one worker, with the last bits of every layer's output changed, or cut
off. If this changes its output too, the script amplifies rounding (it takes the maximum of values that are
zero but for rounding), and another order of sums cannot give its result.
"""

import io
import re
import shutil
import sys
from contextlib import redirect_stderr
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch.nn.modules.module import register_module_forward_hook

from samestep.autopilot.script.call_account import IN_PARTS
from support.process_pool import RankFailed
from support.random_scripts.scripts import make_script
from support.script_runner import difference, run_script
from support.written_files import files, same_contents

CLASSES = "equal", "in parts", "unsplit", "different", "unstable"
EQUAL, PARTLY, UNSPLIT, DIFFERENT, UNSTABLE = CLASSES
"""Every call split; parts of an unsplit call split; no such parts; wrong; wrong as rounding is amplified."""
_LAST_BITS = 4
"""Largest change of an output, in units of its last place."""
_GRID = 2.0**-42
"""Distance of the numbers to which outputs are rounded: values that are zero but for rounding become zero."""
_UNSPLIT = re.compile(r" calls? unsplit \(")


@dataclass(frozen=True)
class Comparison:
    """The result of a script on several workers, compared with its run on one.

    Attributes:
        seed: the seed of the script.
        size: the number of workers.
        found: one of `CLASSES`.
        reasons: the reasons of unsplit calls, or the differences.
    """

    seed: int
    size: int
    found: str
    reasons: tuple[str, ...] = ()

    def __str__(self):
        return f"seed {self.seed} on {self.size} workers: {self.found}" + "".join(
            f"\n    {one}" for one in self.reasons
        )


class SerialRunFailed(AssertionError):
    """A script failed on one worker: a fault of the generator."""


def compare(processes, seed, folder, sizes=(2, 3)):
    """Run the script of a seed on one worker and on `sizes` workers, in new folders in `folder`."""
    return compare_source(processes, make_script(seed), seed, folder, sizes)


def compare_source(processes, source, seed, folder, sizes=(2, 3)):
    """Run a script on one worker and on `sizes` workers, in new folders in `folder`."""
    folder = Path(folder) / str(seed)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    script = folder / "script.py"
    script.write_text(source)
    ((printed, _, trace),) = _run(processes, script, 1)
    if trace or "nan" in printed:
        raise SerialRunFailed(f"seed {seed}: {trace or 'it prints nan'}")
    return [_compared(processes, seed, script, size, printed) for size in sizes]


def _run(processes, script, size):
    folder = script.parent / str(size)
    folder.mkdir()
    return processes.run(_run_quietly, 1, str(script), folder, size - 1)


def _kind_of_difference(processes, script, differs):
    """Return `UNSTABLE` if a script on one worker differs from itself once last bits of its layers change.

    Args:
        differs: compares what it prints, and the folder of its files, with those of the unchanged script.
    """
    for change in (_with_other_last_bits, _without_last_bits):
        folder = script.parent / change.__name__
        folder.mkdir(exist_ok=True)
        ((printed, _, trace),) = processes.run(_run_changed, 1, str(script), folder, change)
        if trace or differs(printed, folder):
            return UNSTABLE
    return DIFFERENT


def _run_changed(world, script, folder, change):
    hook = register_module_forward_hook(partial(_changed, change))
    try:
        return _run_quietly(world, script, folder, 0)
    finally:
        hook.remove()


def _changed(change, module, _inputs, output):
    """Change what a module without children returns."""
    if any(module.children()) or not isinstance(output, torch.Tensor) or not output.is_floating_point():
        return None
    return change(output)


def _with_other_last_bits(output):
    generator = torch.Generator().manual_seed(output.numel())
    steps = torch.randint(-_LAST_BITS, _LAST_BITS + 1, output.shape, generator=generator)
    return output * (1 + steps * torch.finfo(output.dtype).eps)


def _without_last_bits(output):
    return output + (torch.round(output / _GRID) * _GRID - output).detach()


def _run_quietly(world, script, folder, helpers):
    """Run a script with helpers; return its traceback, which torch's hook would print."""
    hook, sys.excepthook = sys.excepthook, sys.__excepthook__
    try:
        with redirect_stderr(io.StringIO()):
            return run_script(world, script, (), folder, helpers=helpers)
    finally:
        sys.excepthook = hook


def _compared(processes, seed, script, size, serial):
    try:
        ((printed, account, trace),) = _run(processes, script, size)
    except RankFailed as error:
        return Comparison(seed, size, DIFFERENT, (f"no answer: {str(error).splitlines()[0]}",))
    if trace:
        *frames, last = trace.strip().splitlines()
        return Comparison(seed, size, DIFFERENT, (f"failed: {last}", *frames[-6:]))
    lines = difference(serial, printed)
    if lines is not None:
        found = _kind_of_difference(processes, script, lambda text, _: difference(serial, text) is not None)
        return Comparison(seed, size, found, (f"serial: {lines[0]}", f"here:   {lines[1]}", *account))
    alone = script.parent / "1"
    unlike = _unlike(alone, script.parent / str(size))
    if unlike:
        # Such as the bias of keys, whose gradient is zero but for rounding, which Adam divides by itself.
        found = _kind_of_difference(
            processes, script, lambda _, folder: set(unlike) <= set(_unlike(alone, folder))
        )
        return Comparison(seed, size, found, (f"files: {', '.join(unlike)}", *account))
    unsplit = [line for line in account if _UNSPLIT.search(line)]
    if unsplit:
        found = PARTLY if any(IN_PARTS in line for line in unsplit) else UNSPLIT
        return Comparison(seed, size, found, tuple(map(_reason, unsplit)))
    return Comparison(seed, size, EQUAL)


def _unlike(one, other):
    """Return the names of the files that exist in only one folder, or that differ."""
    first, second = set(files(one)), set(files(other))
    shared = first & second
    return sorted(first ^ second) + [
        name for name in sorted(shared) if not same_contents(one / name, other / name)
    ]


def _reason(line):
    """Return the reason of unsplit calls, without source lines and numbers."""
    return line[line.index("(") + 1 : -1]
