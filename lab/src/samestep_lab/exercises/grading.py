"""Grades solutions of the exercises: functions by conformance checks, training scripts by a verification."""

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from samestep.base.errors import UsageError
from samestep.base.units import counted
from samestep.verify.verdict import Cause, Finding, NoteCode, Report
from samestep_lab.exercises.own_function import load_functions, parsed
from samestep_lab.exercises.starters import EXERCISES, serial_path
from samestep_lab.testing import (
    Check,
    check_all_gather,
    check_all_reduce,
    check_broadcast,
    check_gather,
    check_reduce,
    check_reduce_scatter,
    check_scatter,
)
from samestep_lab.testing.judge import Fault

Verify = Callable[[Path, Path, Sequence[int]], Report]
"""Compares a script with a serial one, on these numbers of workers."""

CHECKS: Mapping[str, Check] = {
    "broadcast": check_broadcast,
    "gather": check_gather,
    "reduce": check_reduce,
    "all_reduce": check_all_reduce,
    "ring_all_reduce": check_all_reduce,
    "all_gather": check_all_gather,
    "scatter": check_scatter,
    "reduce_scatter": check_reduce_scatter,
}
"""The check of a function, by its name."""
_FAULTY_NOTES: Sequence[NoteCode] = (
    "optimizer-holds-other",
    "no-optimizer",
    "no-gradient",
    "loss-without-graph",
    "gradients-not-zeroed",
    "gradients-thrown-away",
    "eval-not-undone",
    "several-writers",
    "module-keys",
)
"""Notes of a verification that are faults of a solution."""
_EXPLAINED: Sequence[Cause] = (
    "replicas-differ-at-start",
    "replicas-diverge",
    "never-averaged",
    "gradient",
    "gradient-norm",
    "loss",
    "update",
    "parameters",
)
"""Causes that follow from the notes about optimizers and gradients, which are graver then."""
_EXPLAINING = _FAULTY_NOTES[:6]
_ADVICE: Mapping[str, str] = {
    "replicas-differ-at-start": "Broadcast the parameters of rank 0 before the first step "
    "(DistributedDataParallel does so), or draw them from one seed.",
    "never-averaged": "Between backward and the optimizer's step, all-reduce each gradient and divide it by "
    "the number of ranks. DistributedDataParallel does so if it is called itself, not its .module.",
    "overlapping-shards": "Give each rank its own samples: DistributedSampler(data, size, rank, seed=SEED), "
    "with one seed on all ranks.",
    "other-order": "Shuffle as the serial script does: DistributedSampler with seed=SEED on all ranks, and "
    "set_epoch(epoch) in each epoch.",
    "padded-samples": "Use a number of ranks that divides BATCH.",
    "samples-left-out": "Use a number of ranks that divides BATCH, and batches of BATCH // size on each.",
    "padded-evaluation": "Give each rank every N-th sample: Subset(data, range(rank, len(data), size)).",
}
"""Advice in plain PyTorch, by cause, in the place of that of `verify`, which names functions of samestep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """The result of one function, or of one script."""

    name: str  # of the function or the file
    ranks: Sequence[int]  # numbers of ranks it ran on
    faults: Sequence[Fault]  # what is wrong, the gravest first; empty if the solution is right
    remarks: Sequence[str] = ()  # of a script that is right: differences that are legitimate

    @property
    def passed(self) -> bool:
        """Whether the solution is right."""
        return not self.faults

    def as_json(self) -> dict[str, Any]:
        """Return the grade as ``samestep lab grade --json`` prints it."""
        return {**asdict(self), "passed": self.passed}


def grade_file(file: Path, ranks: Sequence[int], *, verify: Verify, timeout_s: float = 10.0) -> list[Grade]:
    """Grade each function of `file` that is named as a collective, or the file as a training script.

    It is a script if it defines no such function, or if its serial script is beside it; `verify` compares the
    two. A call of a function is a deadlock after `timeout_s` seconds.

    Raises:
        UsageError: the file cannot be read, or it is a script without a serial one beside it.
    """
    tree = parsed(file)
    defined = (statement for statement in tree.body if isinstance(statement, ast.FunctionDef))
    functions = {function.name: function for function in defined if function.name in CHECKS}
    if not functions or serial_path(file).is_file():
        return [_graded_script(file, tree, ranks, verify)]
    unfinished = [name for name, function in functions.items() if _is_unfinished(function)]
    complete = [name for name in functions if name not in unfinished]
    loaded = load_functions(file, complete) if complete else []
    grades = {
        name: Grade(name=name, ranks=ranks, faults=[_gap(f"{name} has a gap.", ranks)]) for name in unfinished
    }
    for name, function in zip(complete, loaded, strict=True):
        grades[name] = _graded_function(name, function, file, ranks, timeout_s)
    return [grades[name] for name in functions]


def _is_unfinished(function: ast.FunctionDef) -> bool:
    return any(
        isinstance(statement, ast.Raise) and "NotImplementedError" in ast.dump(statement)
        for statement in function.body
    )


def _gap(text: str, ranks: Sequence[int]) -> Fault:
    return Fault(code="unfinished", text=text, ranks=min(ranks), count=1)


def _graded_function(
    name: str, function: Callable[..., object], file: Path, ranks: Sequence[int], timeout_s: float
) -> Grade:
    sends = _ring_volume if name == "ring_all_reduce" else None
    faults = CHECKS[name].faults(function, ranks, sends=sends, timeout_s=timeout_s)
    short = [replace(fault, text=fault.text.replace(str(file), file.name)) for fault in faults]
    return Grade(name=name, ranks=ranks, faults=short)


def _ring_volume(ranks: int) -> float:
    """Return how many times the tensor each rank of a ring sends."""
    return 2 * (ranks - 1) / ranks


def _graded_script(file: Path, tree: ast.Module, ranks: Sequence[int], verify: Verify) -> Grade:
    serial = serial_path(file)
    if not serial.is_file():
        functions = ", ".join(exercise.function for exercise in EXERCISES.values() if exercise.function)
        raise UsageError(
            f"{file} defines none of {functions}, and there is no {serial.name} beside it to compare a "
            "training script with; samestep lab start writes both."
        )
    if "init_process_group" not in ast.dump(tree):
        text = "the script has no process group yet: every rank would train alone."
        return Grade(name=file.name, ranks=ranks, faults=[_gap(text, ranks)])
    findings = verify(file, serial, ranks).all_findings
    wrong = _unexplained([finding for finding in findings if _is_fault(finding)])
    codes = dict.fromkeys(finding.cause for finding in wrong)
    faults = [_fault([finding for finding in wrong if finding.cause == code], file) for code in codes]
    remarks = [_text(finding, file) for finding in findings if finding.gravity == "exception"]
    return Grade(name=file.name, ranks=ranks, faults=faults, remarks=remarks)


def _is_fault(finding: Finding) -> bool:
    return finding.gravity in ("fault", "inconclusive") or finding.cause in _FAULTY_NOTES


def _unexplained(wrong: Sequence[Finding]) -> list[Finding]:
    """Return faults without those that follow from others."""
    codes = {finding.cause for finding in wrong}
    explained = _EXPLAINED if codes & {*_EXPLAINING} else ()
    return [finding for finding in wrong if finding.cause not in explained]


def _fault(findings: Sequence[Finding], file: Path) -> Fault:
    """Return one fault for findings of one cause."""
    first = findings[0]
    return Fault(code=first.cause, text=_text(first, file), ranks=first.workers, count=len(findings))


def _text(finding: Finding, file: Path) -> str:
    path, line = finding.place or ("", 0)  # of this file or of the serial script
    place = f", line {line}" if Path(path).name == file.name else ""
    message, advice = finding.message, _ADVICE.get(finding.cause, finding.advice)
    text = message.replace(finding.advice, advice) if finding.advice else message
    return f"on {counted(finding.workers, 'rank')}{place}: {text}"
