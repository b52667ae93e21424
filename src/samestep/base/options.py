"""Declares options: settings with their limits and ``--help`` text, and which options exclude or need others.

A setting is a field of a dataclass. A rule names an option alone, or with the values that it holds for, such
as ``--sync flat|ddp``.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from fnmatch import fnmatchcase
from typing import Any, Literal

from samestep.base.errors import UsageError

_MOST_COUNT = 10**15
"""Maximum of whole-number settings; the product of two is still exact."""


def option(  # noqa: PLR0913 - a setting has that many limits
    *,
    default: Any = MISSING,
    about: str,
    panel: str = "Training",
    metavar: str = "",
    names: Sequence[str] = (),
    choices: Sequence[str] = (),
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    below: float | None = None,
    hidden: bool = False,
) -> Any:
    """Return a dataclass field with its limits.

    Args:
        default: the field is required without one.
        about: one line for ``--help``.
        panel: heading in ``--help``.
        metavar: the value in ``--help``; empty for the name of the type.
        names: the spellings of the flag; by default that of the field.
        choices: the allowed names.
        least: the smallest allowed number.
        most: the largest allowed number.
        above: exclusive lower limit.
        below: exclusive upper limit.
        hidden: whether ``--help`` leaves it out.
    """
    metadata = {
        "about": about,
        "panel": panel,
        "metavar": metavar,
        "names": tuple(names),
        "choices": tuple(choices),
        "least": least,
        "most": most,
        "above": above,
        "below": below,
        "hidden": hidden,
    }
    return field(default=default, metadata=metadata)


def flag(name: str) -> str:
    """Return the command line's spelling of a setting."""
    return "--" + name.replace("_", "-")


def check(settings: Any) -> None:
    """Check each setting of a dataclass against its limits.

    Raises:
        UsageError: names the first one outside of its limits, and the limit.
    """
    for setting in fields(settings):
        value = getattr(settings, setting.name)
        if setting.metadata and value is not None:
            _check(setting, value)


def _check(setting: Field[Any], value: Any) -> None:
    name, limits = flag(setting.name), setting.metadata
    choices = limits["choices"]
    several = value if isinstance(value, tuple) else (value,)
    for choice in several:
        if choices and choice not in choices:
            raise UsageError(f"{name} {choice!r} is not one of {', '.join(choices)}.")
    for number in several:
        _check_range(name, number, limits)


def _check_range(name: str, number: Any, limits: Mapping[str, Any]) -> None:
    """Check a number against its limits; every comparison is false for NaN, so NaN is refused."""
    least, most, above, below = (limits[key] for key in ("least", "most", "above", "below"))
    if least is not None and not least <= number < math.inf:
        raise UsageError(f"{name} is {number}; use a number of {least} or more.")
    if above is not None and not above < number < math.inf:
        raise UsageError(f"{name} is {number}; use a number above {above}.")
    if most is None and isinstance(number, int):
        most = _MOST_COUNT
    if most is not None and not number <= most:
        raise UsageError(f"{name} is {number}; use {most} or less.")
    if below is not None and not number < below:
        raise UsageError(f"{name} is {number}; use a number below {below}.")


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule about an option and others."""

    option: str
    relation: Literal["excludes", "needs", "excludes all but"]
    partners: str  # the others, separated by commas
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
    Rule("--save", "excludes", "--reference, --against", "it keeps a run, and compares with none"),
    Rule("--resume-at", "excludes", "--save, --reference, --against, --steps", "it has its own runs"),
    Rule("--resume-with", "needs", "--resume-at", "it is for the run that is resumed"),
    Rule("--end-by", "needs", "--resume-at", "only then is a run ended"),
    Rule("--reference", "excludes", "--against, --steps", "the script is compared with the golden run"),
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
    Rule("--compress fp16|bf16", "excludes", "--sync reference|flat", "only the others compress gradients"),
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
    rules: Sequence[Rule], values: Mapping[str, Any], subjects: Mapping[str, Any] | None = None
) -> None:
    """Check that the values of options fit together.

    Args:
        rules: the rules; each is about an option in `subjects`, and about others in `values`.
        values: values by option, such as ``{"--sync": "ddp"}``; without those that are defaults.
        subjects: the options that the rules are about; None for all.

    Raises:
        UsageError: they do not; the message names two options, and why they do not go together.
    """
    subjects = values if subjects is None else subjects
    for rule in rules:
        if not (option := next(_present(rule.option, subjects), None)):
            continue
        partners = rule.partners.split(", ")
        present = [shown for spec in partners for shown in _present(spec, values)]
        if rule.relation == "needs" and not present:
            needed = " or ".join(rule.partners.split("|"))
            raise UsageError(f"{option} needs {needed}: {rule.why}.")
        if rule.relation == "excludes all but":
            known = {*partners, option.partition(" ")[0]}
            present = [shown for name in values if name not in known for shown in _present(name, values)]
        if rule.relation != "needs" and present:
            raise UsageError(f"{option} does not go with {present[0]}: {rule.why}.")


def _present(spec: str, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield an option as it is typed, if it has one of the values that `spec` names, or any without names."""
    option, _, patterns = spec.partition(" ")
    value = values.get(option)
    text = ",".join(map(_text, value)) if isinstance(value, tuple) else _text(value)
    is_set = value is not None and value is not False and value != ()
    if any(fnmatchcase(text, pattern) for pattern in patterns.split("|")) if patterns else is_set:
        yield option if isinstance(value, bool) else f"{option} {text}"


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
