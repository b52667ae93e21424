"""States which options of all verbs exclude or need each other, in tables, and refuses the others.

A rule names an option alone, or with the values that it holds for, such as ``--sync flat|ddp``.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from samestep.base.errors import UsageError


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule about an option and others."""

    option: str
    relation: Literal["excludes", "needs", "excludes all but"]
    others: str  # separated by commas
    why: str  # the reason, and what to do


OF_COMMANDS = (
    Rule("-m", "excludes", "--no-python", "a program is a Python module or an executable"),
    Rule("--mode autopilot", "excludes", "--no-python", "only Python scripts can be split"),
    Rule(
        "-n auto",
        "excludes",
        "--threads, --nproc-per-node, --nnodes, --sanitize, --explain",
        "it measures workers and threads of this host; give -n a number",
    ),
    Rule("--redirects", "needs", "--log-dir", "the streams go to files in that folder"),
    Rule("--clock-steps", "needs", "--clock", "the steps are recorded in that folder"),
    Rule("--standalone", "excludes", "--nnodes", "it is for one node"),
    Rule("--rdzv-conf", "needs", "--nnodes", "it is for several nodes"),
    Rule("--rdzv-endpoint", "excludes", "--master-addr, --master-port", "both set the endpoint"),
    Rule("--warning", "needs", "--requeue", "without it no worker gets a warning"),
    Rule("--detach", "excludes", "--figures, --pdf", "it waits for no results; give them with --collect"),
    Rule(
        "--collect",
        "excludes all but",
        "--worth, --figures, --pdf, --json, --quiet",
        "it collects a study as it was submitted",
    ),
    Rule("--resume", "excludes", "--out", "it names the run folder itself"),
    Rule("--resume", "excludes", "--batch-per-worker, --lr-scale", "a run keeps its batch and its rate"),
    Rule("--batch-per-worker", "excludes", "--batch-size", "the latter is the global batch"),
    Rule("--lr-scale", "needs", "--batch-per-worker", "with a global batch nothing is scaled"),
    Rule("--from", "needs", "--eval-only", "only an evaluation reads other weights"),
    Rule("--eval-only", "needs", "--from", "it evaluates that checkpoint"),
    Rule(
        "--eval-only",
        "excludes all but",
        "--from, --config, --fast, --data, --data-dir, --model, --batch-size, --precision, --channels-last, "
        "--loader-workers, --metric, -n, --threads, --bind, --secret-file, --max-restarts, --hang-timeout, "
        "--json, --quiet",
        "it trains and writes nothing",
    ),
)
"""Rules of the options that are given to one command."""

OF_SETTINGS = (
    Rule(
        "--nesterov",
        "excludes",
        "--optimizer adamw, --momentum 0",
        "it is a form of SGD momentum; --no-nesterov switches it off",
    ),
    Rule("--schedule multistep", "needs", "--milestones", "the rate drops after these epochs"),
    Rule("--schedule one-cycle", "excludes", "--warmup", "it has its own warm-up"),
    Rule("--compress powersgd", "needs", "--sync ddp", "it is a hook of torch's DDP"),
    Rule(
        "--compress powersgd",
        "excludes",
        "--precision fp16",
        "its error feedback never recovers from an overflow; use bf16",
    ),
    Rule(
        "--compress fp16|bf16",
        "excludes",
        "--sync reference|flat",
        "only the others compress gradients",
    ),
    Rule(
        "--exact",
        "excludes",
        "--sync bucketed|flat|reference|ddp, --compress fp16|bf16|powersgd",
        "it has its own all-reduce",
    ),
    Rule("--exact", "excludes", "--batch-norm", "it computes statistics over each logical shard"),
)
"""Rules of the settings of a training, from flags, recipe and file."""

OF_FLAGS_BESIDE_SETTINGS = (
    Rule("--momentum", "excludes", "--optimizer adamw", "that has none"),
    Rule("--step-epochs", "needs", "--schedule step", "it has no effect on others"),
    Rule("--milestones", "needs", "--schedule multistep", "it has no effect on others"),
    Rule("--gamma", "needs", "--schedule step|multistep", "it has no effect on others"),
    Rule("--data-dir", "excludes", "--data digits|synthetic|synthetic:*", "these have no files"),
)
"""Rules of the flags of a training; a recipe and a file also have settings without effect."""


def check_options(
    rules: Sequence[Rule], values: Mapping[str, Any], given: Mapping[str, Any] | None = None
) -> None:
    """Check that the values of options fit together.

    Args:
        rules: the rules; each is about an option that is `given`, and about others in `values`.
        values: values by option, such as ``{"--sync": "ddp"}``; without those that are defaults.
        given: the options that the rules are about; None for all.

    Raises:
        UsageError: they do not; the message names two options, and why they do not go together.
    """
    given = values if given is None else given
    for rule in rules:
        if not (option := next(_present(rule.option, given), None)):
            continue
        others = rule.others.split(", ")
        found = [shown for one in others for shown in _present(one, values)]
        if rule.relation == "needs" and not found:
            needed = " or ".join(rule.others.split("|"))
            raise UsageError(f"{option} needs {needed}: {rule.why}.")
        if rule.relation == "excludes all but":
            known = {*others, option.partition(" ")[0]}
            found = [shown for one in values if one not in known for shown in _present(one, values)]
        if rule.relation != "needs" and found:
            raise UsageError(f"{option} does not go with {found[0]}: {rule.why}.")


def _present(spec: str, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield an option as it is typed, if it has one of the values that `spec` names, or any without names."""
    option, _, patterns = spec.partition(" ")
    value = values.get(option)
    text = ",".join(map(_text, value)) if isinstance(value, tuple) else _text(value)
    if any(fnmatchcase(text, one) for one in patterns.split("|")) if patterns else value:
        yield option if isinstance(value, bool) else f"{option} {text}"


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
