"""Decides whether options that are typed after a script are those of the verb or those of the script.

An option that the verb does not have is the script's, and after ``--`` all are. An option of the verb is
refused if the script possibly has it too. With ``run`` it is the script's, as with torchrun, and refused if
the script does not have it.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import takewhile
from pathlib import Path
from typing import Any

from samestep.base.errors import UsageError
from samestep.cli.other_names import answer_to, dashed, own_name
from samestep.launch.job import Program
from samestep.launch.source.flags import Flags, flags_of
from samestep.run.decision import source_file

SETTINGS: Mapping[str, Any] = {
    "allow_interspersed_args": True,
    # Options that the verb does not have belong to the script.
    "ignore_unknown_options": True,
    # Other names of options belong to it as well.
    "token_normalize_func": dashed,
}
"""The settings of the context of a verb that takes options before and after a script."""

_LIKE = 0.8
"""Likeness from which an option is a misspelled one: ``--stepz`` is ``--steps``, ``--b`` not ``--bind``."""


def names_after(target: str, words: Sequence[str]) -> list[str]:
    """Return the options between a target and ``--`` in a command; none if ``--`` is before the target.

    >>> names_after("a.py", ["verify", "a.py", "--lr=1", "3", "--", "--steps"])
    ['--lr']
    """
    at = words.index(target) if target in words else len(words)
    if "--" in words[:at]:
        return []
    after = takewhile(lambda word: word != "--", words[at + 1 :])
    return [word.partition("=")[0] for word in after if word.startswith("-")]


def program_flags(program: Program) -> Flags | None:
    """Return the options in the source of a script or module; None if there is no source."""
    file, roots = source_file(program)
    return None if file is None else flags_of(file, roots=roots)


def can_have(known: Flags, name: str) -> bool:
    """Return whether a script possibly has an option; argparse also takes names that are cut short."""
    if known.parser is not None or known.reads_argv or name in known.literal:
        return True
    names = (name, name.replace("_", "-"))
    return name.startswith("--") and any(literal.startswith(names) for literal in known.literal)


def refuse_target(target: str, flags: Collection[str], *, verb: str) -> None:
    """Refuse an option that the verb does not have in the place of the script.

    Raises:
        UsageError: it is one.
    """
    if target.startswith("-"):
        name = target.partition("=")[0]
        answer = answer_to(f"--{own_name(name.strip('-'))}", [name])
        advice = next(
            (f"Did you mean {near}?" for near in _like(name, flags)), f"See: samestep {verb} --help"
        )
        raise UsageError(answer or f"samestep {verb} has no option {name}. {advice}")


def _like(name: str, flags: Collection[str]) -> list[str]:
    return get_close_matches(name, flags, n=1, cutoff=_LIKE) if name.startswith("--") else []


def refuse_unclear(program: Program, names: Sequence[str], flags: Collection[str], *, verb: str) -> None:
    """Refuse options after a script that possibly the verb and the script have, or misspelled ones.

    Args:
        program: the script or module.
        names: the options after it.
        flags: the options of the verb.
        verb: the verb.

    Raises:
        UsageError: there is one; the message names what to give instead.
    """
    known = program_flags(program) if names else None
    if known is None:
        return
    own_names = [name for name in names if dashed(name) in flags]
    claims, module = _claimed(known, own_names, program, verb), "-m " if program.kind == "module" else ""
    refuse_ambiguous(claims, program.target, of="the script", verb=verb, module=module)
    if program.kind == "module":  # an installed package can read options in files that are not searched
        return
    for name in names:
        near = [] if name in own_names or known.literal or can_have(known, name) else _like(name, flags)
        if near:
            raise UsageError(
                f"{program.target} reads no options, and samestep {verb} has no {name}. "
                f"Did you mean {near[0]}? All words after -- are the script's."
            )


def refuse_ambiguous(
    claims: Iterable[tuple[str, str]], target: str, *, of: str, verb: str, module: str = ""
) -> None:
    """Refuse the first of the options that the verb and its target have, each with the reason.

    `module` is ``-m `` if the target is a module.

    Raises:
        UsageError: there is one; the message shows how to make the command unambiguous.
    """
    for name, why in claims:
        raise UsageError(
            f"{name} is ambiguous: {why}. Put it before {target} for {verb}, or after -- for {of}: "
            f"samestep {verb} -n 1,2 {module}-- {target} {name} ..."
        )


def _claimed(known: Flags, names: Sequence[str], program: Program, verb: str) -> Iterator[tuple[str, str]]:
    """Yield the options of a verb that a script has or possibly has, each with the reason."""
    for name in names:
        if name in known.literal:
            yield name, f"{known.literal[name]} and samestep {verb} have it"
        elif (parser := known.parser) is not None:
            made = f"{parser.name} in {Path(parser.file)}:{parser.line} creates options at run time"
            yield name, f"samestep {verb} has it, and {program.target} possibly too ({made})"
