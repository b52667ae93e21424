"""Verifies that a script takes the same steps on several workers as on one (``samestep verify``).

There are six kinds of runs, each stopped after some steps:

* the reference on one worker;
* the control: the reference with its gradients disturbed by rounding, which measures the effect of rounding;
* one run for each number of workers, whose ranks list folders in different orders;
* if such a run differs and no cause explains it: reference, control and run again up to the step that
  differs, with the calls of all modules in that step;
* if such a run differs and has legitimate differences between ranks (batch norm over each worker's share,
  dropout, augmentation): reference, control and run again with these disabled or synchronized;
* if only values differ in single precision: reference, control and run again in double precision.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from samestep.autopilot.files.folder_listings import ShuffledListings
from samestep.base.errors import UsageError
from samestep.launch.job import Program
from samestep.launch.source.classify import user_modules
from samestep.run.decision import source_file
from samestep.verify.causes import causes
from samestep.verify.compare import Comparison
from samestep.verify.first_difference import with_module
from samestep.verify.model_parallel import joined_parts, joined_sequences
from samestep.verify.parameter_alignment import (
    UnmatchedParametersError,
    align_parameters,
    drop_parameters,
)
from samestep.verify.precision import decided_in_double, may_be_rounding
from samestep.verify.probed_run import rank_of_process
from samestep.verify.rank_features import exceptions_of, of_own_generators
from samestep.verify.run_length import TOTAL_S, FixedLength, RunLength, UntilEvaluated, WithinTime
from samestep.verify.run_record import RunRecord
from samestep.verify.sample_causes import folder_order, hash_order
from samestep.verify.script_findings import (
    UNMATCHED,
    baseline_findings,
    is_conclusive,
    not_compared,
    not_reached,
    notes_of,
    nothing_compared,
    of_files,
    other_samples,
    row_of,
)
from samestep.verify.script_runs import Script, ScriptRuns, length_after
from samestep.verify.verdict import Finding, NotCompared, Report, Row, faults_of

_RANDOM = ("random-per-worker", "random-alike-on-workers")
_NEUTRAL = "rank-dependent features disabled"


@dataclass(slots=True, kw_only=True)
class Verification:
    """A verification of one script."""

    script: Script  # the script
    against: Script | None  # script whose run on one worker is the reference; the script itself, if None
    workers: Sequence[int]  # numbers of workers to run it on
    # number of steps of each optimizer in each run; None for as many as show an evaluation and a second
    # epoch, if that takes no more than `TOTAL_S`
    steps: int | None
    runs: ScriptRuns  # runs the scripts
    # references and controls that are changed alike, by the changes
    _changed: dict[tuple[Any, ...], tuple[RunRecord, RunRecord]] = field(init=False, default_factory=dict)
    _length: RunLength = field(init=False)
    _limit_s: float = field(init=False)  # time limit of a run in seconds, if `steps` is None
    # faults and notes of the run on one worker
    _of_reference: Sequence[Finding] = field(init=False, default=())
    # shapes of the reference's parameters, by name
    _wholes: Mapping[str, Sequence[int]] = field(init=False, default_factory=dict)
    # first step whose samples depend on rounding; None if there is none
    _limit: int | None = field(init=False, default=None)
    # what runs on several workers did not record
    _missing: dict[NotCompared, str] = field(init=False, default_factory=dict)

    def run(self) -> Report:
        """Execute all runs and compare them.

        Raises:
            UsageError: the reference fails, or has no step.
        """
        reference, control = self.runs.baseline(self._origin, 1, "reference", length=self._length)
        self._wholes = {
            parameter.name: parameter.shape
            for parameters in reference.facts.parameters
            for parameter in parameters
            if parameter.name
        }
        if self.steps is None:
            self._length = length_after(reference)
        differing_step = other_samples(reference, control)
        if differing_step and other_samples(reference, self._run(self._origin, 1, "again")) is None:
            self._limit = differing_step
            reference, control = reference.until(differing_step), control.until(differing_step)
        findings = baseline_findings(reference, control)
        self._of_reference = [*findings, *notes_of(reference)]
        if not is_conclusive(findings):
            return Report(rows=[], findings=self._of_reference, steps=reference.steps)
        rows = [self._row(size, reference, control) for size in self.workers]
        missing = {**not_reached(reference), **self._missing}
        if self._limit is not None:
            missing["later-steps"] = f"step after {self._limit - 1}: from there rounding changes the samples"
        return Report(rows=rows, findings=self._of_reference, steps=reference.steps, not_compared=missing)

    def __post_init__(self) -> None:
        # The reference, its control, perhaps a third run on one worker, and each number of workers.
        self._limit_s = TOTAL_S / (3 + len(self.workers))
        self._length = (
            WithinTime(UntilEvaluated(), self._limit_s)
            if self.steps is None
            else FixedLength(self.steps, of_each=True)
        )

    @property
    def _origin(self) -> Script:
        return self.against or self.script

    def _row(self, size: int, reference: RunRecord, control: RunRecord) -> Row:
        comparison, of_order = self._with_other_orders(reference, size, control)
        findings, run = causes(comparison), comparison.run
        if not findings and run.failure is None:
            of_order += self._of_hashes(size, comparison)
        self._missing |= not_compared(comparison)
        findings = findings or nothing_compared(comparison)
        exceptions: list[Finding] = []
        if faults_of(findings) and run.failure is None:
            findings, exceptions = self._without(exceptions_of(comparison), size, findings)
        if may_be_rounding(comparison, findings):
            double = self._repeated(size, neutral=bool(exceptions), double=True)
            findings = decided_in_double(findings, double)
        if not exceptions and run.failure is None and faults_of(findings):
            findings = with_module(findings, comparison, partial(self._recorded, size, neutral=False))
        notes = [*notes_of(run, known=self._of_reference), *of_files(run)]
        return row_of(comparison, [*of_order, *findings, *notes])

    def _with_other_orders(
        self, reference: RunRecord, size: int, control: RunRecord
    ) -> tuple[Comparison, list[Finding]]:
        """Return the comparison of a run, and the exception that it depends on the order of a folder.

        The ranks get the folders that they list in other orders, but if the run differs, in the same one.
        """
        order = None if self.script.kind == "serial" else ShuffledListings(rank_of_process)
        comparison = self._compared(reference, self._run(self.script, size, "", order=order), control)
        listed = comparison.run.listed
        faults = [finding.cause for finding in faults_of(causes(comparison))]
        if not (listed and faults):
            return comparison, []
        same = self._compared(reference, self._run(self.script, size, "folders in one order"), control)
        if faults == [finding.cause for finding in faults_of(causes(same))]:
            return same, []
        return same, [folder_order(comparison, listed)]

    def _of_hashes(self, size: int, comparison: Comparison) -> list[Finding]:
        """Return the exception that a run differs if each rank has a hash seed of its own."""
        if size == 1 or self.script.kind != "native" or not _uses_hashes(self.script.program):
            return []
        run = self._run(self.script, size, "each rank with its own order of sets", own_hashes=True)
        by_hashes = self._compared(comparison.reference, run, comparison.control)
        return hash_order(by_hashes)

    def _compared(self, reference: RunRecord, run: RunRecord, control: RunRecord) -> Comparison:
        """Return the comparison of a run, its parameters in the order of the reference's."""
        if run.runs_once and run.facts.ended == "steps" and run.steps < reference.steps:  # its time was over
            reference, control = reference.until(run.steps), control.until(run.steps)
            self._missing |= not_reached(reference)
        elif run.runs_once and has_other_time(self.script.program, reference, run):
            both = min(record.steps for record in (reference, run, control))
            reference, run, control = (record.steps_alone(both) for record in (reference, run, control))
            self._missing |= not_reached(reference)
            self._missing["later-steps"] = f"step after {both - 1}: the clock ends the script's loop"
        run = joined_sequences(reference, run)
        try:
            whole = joined_parts(reference, run)
            comparison = Comparison(*align_parameters(reference, whole, control, drops=True))
        except UnmatchedParametersError:
            self._missing["parameters"] = UNMATCHED
            return Comparison(*map(drop_parameters, (reference, run, control)))
        if comparison.run.has_unmatched:
            lost = "parameter of which ranks hold parts that do not join to that of one worker"
            self._missing.setdefault("parameters", lost)
        return comparison

    def _without(
        self, exceptions: list[Finding], size: int, findings: list[Finding]
    ) -> tuple[list[Finding], list[Finding]]:
        """Return the exceptions after what remains with them disabled, and the exceptions alone."""
        may_draw = self.script.kind != "serial" and _makes_generators(self.script.program)
        repeated = self._repeated(size, neutral=True) if exceptions or may_draw else None
        if repeated is None:  # or only these runs failed, so they prove nothing
            return _undecided(findings, exceptions), []
        of_generators = of_own_generators(repeated)
        if of_generators is not None and all(finding.cause not in _RANDOM for finding in exceptions):
            exceptions = [*exceptions, of_generators]
        if not exceptions:
            return findings, []
        still = with_module(causes(repeated), repeated, partial(self._recorded, size, neutral=True))
        same, differs = "without it the runs are the same", "the other differences remain without it"
        result = differs if faults_of(still) else same
        exceptions = [replace(finding, message=f"{finding.message}; {result}.") for finding in exceptions]
        return [*still, *exceptions], exceptions

    def _repeated(self, size: int, *, neutral: bool, double: bool = False) -> Comparison | None:
        """Return the comparison of runs with rank-dependent features disabled, in double precision, or both.

        It is None if one of them fails.
        """
        label = ", ".join([*[_NEUTRAL] * neutral, *["in double precision"] * double])
        runs = self._changed_runs(size, label, neutral=neutral, double=double)
        if any(record.failure is not None or not record.steps for record in runs):
            return None
        return self._compared(*runs)

    def _recorded(self, size: int, step: int, *, neutral: bool) -> Comparison:
        """Return the comparison of runs up to a step, with the modules of that step."""
        return self._compared(
            *self._changed_runs(size, f"modules of step {step}", neutral=neutral, modules_of=step)
        )

    def _changed_runs(self, size: int, label: str, **changed: Any) -> tuple[RunRecord, RunRecord, RunRecord]:
        """Return reference, run and control with the same changes; those on one worker are executed once."""
        key = tuple(changed.items())
        if key not in self._changed:
            disturbed = f"{label}, gradients disturbed"
            self._changed[key] = (
                self._run(self._origin, 1, label, **changed),
                self._run(self._origin, 1, disturbed, disturb=True, **changed),
            )
        reference, control = self._changed[key]
        return reference, self._run(self.script, size, label, **changed), control

    def _length_of_run(self, script: Script, size: int) -> RunLength:
        """Return the length of a run; rank 0 of a serial script can end one that takes too long."""
        if self.steps is None and script.kind == "serial" and size > 1:
            return WithinTime(self._length, self._limit_s)
        return self._length

    def _run(
        self,
        script: Script,
        size: int,
        label: str,
        *,
        neutral: bool = False,
        modules_of: int | None = None,
        **changed: Any,
    ) -> RunRecord:
        """Run a script; `label` names the run, and `changed` are further arguments of `TracedRun`."""
        record = self.runs.run(
            script,
            size,
            label,
            length=self._length_of_run(script, size) if modules_of is None else FixedLength(modules_of + 1),
            neutral=self.script.kind if neutral else None,
            has_other_reference=self.against is not None and script is self.script,
            modules_of=modules_of,
            wholes=self._wholes if size > 1 else {},
            **changed,
        )
        return record if self._limit is None else record.until(self._limit)


def _undecided(findings: Sequence[Finding], possible: Sequence[Finding]) -> list[Finding]:
    """Return findings whose faults state the exceptions that they may follow from."""
    if not possible:
        return list(findings)
    named = "; ".join(exception.message for exception in possible)
    why = f"The repetition without these exceptions failed, so they may be the cause: {named}."
    return [
        replace(finding, message=f"{finding.message} {why}") if finding.kind == "fault" else finding
        for finding in findings
    ]


_HASHED = ("set", "frozenset", "hash")
"""Functions of Python whose result can depend on the hash of a text, which differs between processes."""


def _makes_generators(program: Program) -> bool:
    """Return whether a script, or a module of its user, names the class of torch's or NumPy's generators."""
    names = ("Generator", "default_rng", "RandomState")
    return any(
        (isinstance(node, ast.Attribute) and node.attr in names)
        or (isinstance(node, ast.Name) and node.id in names)
        for node in _nodes(program)
    )


def _uses_hashes(program: Program) -> bool:
    """Return whether a script, or a module of its user, makes sets or calls `hash`."""
    return any(
        isinstance(node, ast.Set | ast.SetComp)
        or (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _HASHED)
        for node in _nodes(program)
    )


def _nodes(program: Program) -> Iterator[ast.AST]:
    with suppress(RecursionError):
        for tree in _trees(program):
            yield from ast.walk(tree)


def has_other_time(program: Program, reference: RunRecord, run: RunRecord) -> bool:
    """Return whether a run has another number of steps, and the clock ends the program's loops."""
    if not run.steps or run.steps == reference.steps or run.facts.ended not in ("steps", "end"):
        return False  # without a step, nothing is compared
    with suppress(RecursionError):
        return ends_loops_by_clock(_trees(program))
    return False


def _trees(program: Program) -> Sequence[ast.Module]:
    """Return the syntax trees of a script and the modules of its user, as far as they can be read."""
    trees: list[ast.Module] = []
    file, roots = source_file(program)
    if program.kind != "executable" and file is not None:
        with suppress(UsageError, RecursionError, MemoryError):
            trees.extend(tree for _, tree in user_modules(file, roots))
    return trees


_CLOCKS = frozenset(
    name + suffix
    for name in ("time", "monotonic", "perf_counter", "process_time", "thread_time")
    for suffix in ("", "_ns")
) | {"now", "utcnow"}
"""Functions of Python that return the present time."""
_ARITHMETIC = (ast.BinOp, ast.BoolOp, ast.UnaryOp, ast.Compare, ast.IfExp, ast.NamedExpr)
_OF_NUMBERS = frozenset(("abs", "float", "int", "max", "min", "round"))
"""Functions whose result is a time if an argument is."""
_ENDS = (ast.Break, ast.Return, ast.Raise)


def ends_loops_by_clock(trees: Sequence[ast.Module]) -> bool:
    """Return whether a comparison with a time ends a loop or a function of a script's modules.

    A loop with a time budget makes fewer steps where a step takes longer, also on one worker::

        while time.time() - start < 3600: ...
        if elapsed > budget: break
    """
    nodes = [node for tree in trees for node in ast.walk(tree)]
    times = _names_of_times(nodes)
    return any(_ends_by(node, times) for node in nodes)


def _ends_by(node: ast.AST, times: set[str]) -> bool:
    if isinstance(node, ast.While):
        return _is_time(node.test, times)
    if not isinstance(node, ast.If) or not _is_time(node.test, times):
        return False
    return any(isinstance(inner, _ENDS) for part in (*node.body, *node.orelse) for inner in ast.walk(part))


def _names_of_times(nodes: Sequence[ast.AST]) -> set[str]:
    """Return the names of variables, attributes and functions whose values are computed from the clock."""
    times: set[str] = set()
    before = -1
    while len(times) > before:
        before = len(times)
        times.update(name for node in nodes for name in _set_to_time(node, times))
    return times


def _set_to_time(node: ast.AST, times: set[str]) -> Iterator[str]:
    """Yield the names that a statement sets to a time; that of a function which returns one."""
    if isinstance(node, ast.FunctionDef):
        values = [part.value for part in ast.walk(node) if isinstance(part, ast.Return)]
        if any(value is not None and _is_time(value, times) for value in values):
            yield node.name
    elif isinstance(node, ast.Assign):
        yield from (name for target in node.targets for name in _times_in(target, node.value, times))
    elif isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.NamedExpr)) and node.value is not None:
        yield from _times_in(node.target, node.value, times)


def _times_in(target: ast.expr, value: ast.expr, times: set[str]) -> Iterator[str]:
    """Yield the names of a target that an assignment sets to a time."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for part, of_part in zip(target.elts, value.elts, strict=False):
            yield from _times_in(part, of_part, times)
    elif (name := _name_of(target)) and _is_time(value, times):
        yield name


def _is_time(node: ast.AST, times: set[str]) -> bool:
    """Return whether an expression is a time, or a number or a decision that is computed from one."""
    if isinstance(node, ast.Call):
        name = _name_of(node.func)
        is_method = isinstance(node.func, ast.Attribute) and _is_time(node.func.value, times)
        is_of_times = name in _OF_NUMBERS and any(_is_time(argument, times) for argument in node.args)
        return name in _CLOCKS or name in times or is_method or is_of_times
    if isinstance(node, _ARITHMETIC):
        return any(_is_time(part, times) for part in ast.iter_child_nodes(node))
    return _name_of(node) in times


def _name_of(node: ast.AST) -> str:
    """Return the name of a variable, or the last one of an attribute; empty for other expressions."""
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""
