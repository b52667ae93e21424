"""Holds one sentence for each code of a study; all other modules choose among them and fill in the facts."""

from collections.abc import Mapping, Sequence
from typing import Any

from samestep.studies.scaling.analysis.study import Finding

DIFFER = "the runs differ too much"
VAGUE = f"{DIFFER}; measure more of them on a quieter machine"
"""The reason for an inconclusive result if an interval is too wide."""

# Clauses of several sentences.
_REASONS = {
    "vague": VAGUE,
    "own_cores": "measure where each worker has its own cores",
    "more_runs": "measure more repeats of each",
}
NO_CONCLUSIONS = (
    "single-point",
    "baseline-oversubscribed",
    "all-oversubscribed",
    "superlinear",
    "inconclusive",
)
"""Summaries from which nothing follows."""
STATEMENTS: Mapping[str, Mapping[str, str]] = {
    "summary": {
        "single-point": "No conclusion: all runs are of {n}.",
        "baseline-oversubscribed": "No conclusion: {why}; {own_cores}.",
        "all-oversubscribed": "No conclusion: all runs of more than {n} were oversubscribed; {own_cores}.",
        "superlinear": "Inconclusive: {n} reached {efficiency} of the ideal; measure again.",
        "threads-as-fast": "{probably}more workers do not pay on this machine's cores; they can on several "
        "nodes or GPUs: {n} {gain}.",
        "inconclusive": "It is inconclusive whether {what}: {vague}.",
        "baseline-enough": "{probably}{few}: {n} {gain}, which costs more than it brings.",
        "speedup": "{n} {probably}{gain}{beyond}.",
        "not-worth": "{probably}not worth it at a bar of {bar}: {n} {gain}.",
        "worth": "{probably}worth it at a bar of {bar}, {reach} {n}, which {gain}.",
    },
    "baseline": {
        "slow-phase": "The step at {n} {slow}: speed that up first. {advice}",
        "idle-cores": "{who} computes with {threads} and has {cores} cores. With --threads {cores} the "
        "baseline can be faster, and the speedups smaller.",
        "superlinear": "{n} reached {efficiency} of the ideal. Either another program disturbed "
        "{base},{threads} or only a shard fits into the caches: measure again, with more --repeats and "
        "other --threads.",
    },
    "caveat": {
        "bar-undecided": "It is inconclusive whether {n} reach {bar}: {why}.",
        "faster-undecided": "It is inconclusive whether {n} are faster than {base}: {why}.",
        "speed-undecided": "The speed of {n} is inconclusive: {vague}.",
        "gain-undecided": "It is inconclusive whether {n} bring more than they cost: they are {low} to "
        "{high} as fast as {fewer}, and need {needed}; {more_runs}.",
        "single-runs": "Numbers of workers that ran once have no interval: measure more repeats.",
    },
    "advice": {
        "larger-batch": "{what} (another training)",
        "loader-workers": "{flag} ({why})",
        "other-disk": "another disk or host for rank {rank}, or {loaders}",
        "other-host": "another host for rank {rank}",
        "doctor": "samestep doctor on all ranks, which names the rank that differs",
        "pin-memory": "pin_memory and copies with non_blocking",
        "fused-optimizer": "a fused optimizer",
        "less-other-work": "less to print, log and compute between steps",
        "bind-cores": "--bind core, and no other program on the workers' machines",
        "same-threads": "--threads {threads} at every number of workers, to compare like with like",
        "fewer-workers": "fewer workers, since small shards are slow",
        "stay-at-baseline": "{n}, since a step of {step} is too small to be split",
        "more-machines": "more machines, since the workers of one share its memory and caches",
        "compress": "--compress {dtype}",
        "ddp-compress-hook": "DDP's {dtype}_compress_hook",
        "compare-sync": "--compare sync={sync},ddp",
    },
    "comparison": {
        "faster": "{where}: {name} is {more} faster than {other}{why}.",
        "no-difference": "{where}: no certain difference: {name} is between {low} slower and {high} faster "
        "than {other}.",
        "inconclusive": "{where}: the difference between {name} and {others} is inconclusive: {vague}.",
        "single-runs": "{where}: {name} was {faster} in single runs; measure more repeats for an interval.",
        "same-runs": "{where}: {names} have the same runs, since one worker does not communicate.",
        "cannot-differ": "{where}: {names} cannot differ, and their difference is chance: {why}.",
    },
    "note": {
        "run-failed": "{run} failed{code}: {error}.{log}",
        "run-empty": "{run} has no result: {error}.{log}",
        "interrupted": "Interrupted: {left} of {runs} were not executed.",
        "ended-early": "The training ended before {steps} steps were measured: {counts}.",
        "separate-jobs": "Each number of workers was a separate job, so the runs were not interleaved on the "
        "same nodes. Differences between jobs include those between their nodes and their times.",
        "background-load": "Other programs used {busy} before the runs, {usual} on average: rates can be "
        "lower than on a quiet machine, and speedups too large or too small.",
        "other-mode": "{mode} scaling was requested, in which {meaning}. The measured global batch was "
        "{batches}, so the mode of these points is {found}.",
        "strong-template": "For strong scaling, give the batch of each worker as {template}.",
        "no-common-host": "Some runs have no machine in common ({hosts}), so the speedups include their "
        "differences.",
        "mixed-runs": "The runs had several {things}: {values}.",
        "mixed-sync": "The runs had several gradient synchronizers: {values}.",
        "settings-differ": "The runs have different settings: {settings}.",
        "whole-runs-only": "Only the seconds of whole runs are known. The runs are assumed to have "
        "{work}.{bases}",
        "run-folder-steps": "The step time of a run folder is the mean over all ranks and all steps since "
        "the last start without the first {warm_up}. The run's own report counts other steps too, and has "
        "medians.",
        "loaded-not-rows": "Samples are those that were loaded. Models were called with {rows} rows for "
        "each: a step calls them several times, or their first dimension is not the batch.",
        "rows-counted": "No DataLoader returned the batch of each step: samples are the rows that models "
        "were called with, in all calls of a step, and the length of an epoch is unknown.",
        "batch-not-first": "With more workers, models were called with fewer elements in the same number of "
        "rows: the first dimension is not the batch. The batch was constant, and its unit is rows at the "
        "baseline.",
        "shards-of-loaded": "Each worker loads the global batch and trains on its shard, whose samples are "
        "counted.",
        "epoch-grows": "An epoch of {n} has {samples} samples, one of {base} {fewer}: each worker seems to "
        "read the whole data set, so the time of an epoch is not reported. Add a DistributedSampler if it "
        "is missing.",
        "evaluations-skipped": "Steps that are not counted due to an evaluation: {count}.",
        "evaluations-counted": "Most steps have an evaluation, so it is counted as part of the step.",
        "evaluations-mixed": "At {counts} most steps have an evaluation, which is counted as part of the "
        "step only there: the rates are not comparable.",
        "batch-grew": "The batch grew with the workers ({batches}), which is another training: speedups "
        "count samples.",
        "batch-mixed": "The batch was neither constant nor did it grow with the workers ({batches}): "
        "speedups count samples of different trainings.",
        "work-grew": "The work grew with the workers: speedups count work, not runs.",
        "baseline-of-several": "Speedups are against {n}, which count as {base}x.",
        "oversubscribed": "Oversubscribed, with more threads than cores or more workers than accelerators: "
        "{counts}. These points are in no fit, no comparison and no advice.",
        "single-runs": "Run once, so without an interval: {counts}.",
        "threads-differ": "The threads of each worker differ: {counts}{shared}.",
        "communication-hidden": "Without exposed communication, backward either hides the communication or "
        "includes it.",
    },
}
"""The sentences by kind of statement and code; the reference has a table of the codes."""


def statement(kind: str, code: str, /, **facts: Any) -> str:
    """Return the sentence of a code, with its facts filled in."""
    words = STATEMENTS[kind][code].format(**_REASONS, **facts).rstrip()
    return words if kind == "advice" else words[:1].upper() + words[1:]


def finding(
    kind: str, code: str, workers: Sequence[int] = (), /, *, variant: str = "", **facts: Any
) -> Finding:
    """Return a finding in the words of its code; they begin with the variant, if there is one."""
    words = statement(kind, code, **facts)
    words = f"{variant}: {words}" if variant else words
    return Finding(kind, code, words, tuple(workers), variant=variant)


def note(code: str, workers: Sequence[int] = (), /, *, variant: str = "", **facts: Any) -> Finding:
    """Return a note; see `finding`."""
    return finding("note", code, workers, variant=variant, **facts)
