"""Writes `docs/reference/commands.md` from the options of the command line.

python docs/list_commands.py            writes the page
python docs/list_commands.py --check    exits with 1 if the page is out of date
"""

import re
import sys
from collections.abc import Collection, Iterator
from dataclasses import fields
from itertools import groupby
from pathlib import Path
from typing import Any

from typer.main import get_command

from samestep.cli.main import PACKAGES, VERBS, application
from samestep.training.settings import RunOptions, Settings

PAGE = Path(__file__).parent / "reference" / "commands.md"
_HEAD = """# Command reference: all options

`samestep VERB --help` prints the same in a terminal. `docs/list_commands.py` writes this page.
`samestep train` also has an option for each [setting of a training](../guide/training.md#options).
"""
_SETTINGS = {field.name for kind in (Settings, RunOptions) for field in fields(kind)}
_SHARED = "Options of several commands"


def commands() -> Iterator[tuple[str, str, list[str]]]:
    """Return each command with its summary and the rows of its visible parameters."""
    for verb in (*VERBS, *PACKAGES):
        command: Any = get_command(application(verb)).commands[verb]  # type: ignore[attr-defined]
        below = getattr(command, "commands", {})
        hidden = _SETTINGS if verb == "train" else ()
        yield verb, VERBS.get(verb, command.help), [] if below else _rows(command, hidden)
        for name, part in below.items():
            summary = (part.help or part.short_help or "").split("\n\n")[0]
            yield f"{verb} {name}", summary, _rows(part)


def _rows(command: Any, hidden: Collection[str] = ()) -> list[str]:
    shown = [one for one in command.params if one.name not in {"help", *hidden}]
    visible = [one for one in shown if not getattr(one, "hidden", False)]
    return list(map(_row, visible))


def _row(one: Any) -> str:
    if one.param_type_name == "argument":
        names = f"`{one.metavar or one.name.upper()}`"
    else:
        names = ", ".join(f"`{name}`" for name in (*one.opts, *getattr(one, "secondary_opts", ())))
        names += f" `{one.metavar}`" if one.metavar else ""
    names = names.replace("|", "\\|")
    about = re.sub(r"\s+", " ", getattr(one, "help", "") or "").replace("|", "\\|").replace("<", "&lt;")
    return f"| {names} | {about} |"


def _shared_table(users: dict[str, list[str]]) -> str:
    """Return the table of rows that several commands have: a verb stands for several commands below it."""
    rows = []
    for row, names in users.items():
        verbs = [name.split()[0] for name in names]
        shown = [verb if verbs.count(verb) > 1 else name for verb, name in zip(verbs, names, strict=True)]
        if len(names) > 1:
            rows.append(f"{row} {', '.join(dict.fromkeys(shown))} |")
    return f"## {_SHARED}\n\n| option | meaning | commands |\n|---|---|---|\n" + "\n".join(rows) + "\n"


def page() -> str:
    """Return the page: each option once, and of commands without options of their own the names."""
    listed = list(commands())
    users: dict[str, list[str]] = {}
    for name, _, rows in listed:
        for row in rows:
            users.setdefault(row, []).append(name)
    parts = [_HEAD, _shared_table(users)]
    for verb, verbs_commands in groupby(listed, lambda command: command[0].split()[0]):
        without = []
        for name, summary, rows in verbs_commands:
            own = [row for row in rows if len(users[row]) == 1]
            if own or name == verb:
                parts.append(f"## samestep {name}\n\n{re.sub(chr(10), ' ', summary).strip()}\n")
            else:
                without.append(f"`{name.split()[1]}`")
            if own:
                parts.append("| option | meaning |\n|---|---|\n" + "\n".join(own) + "\n")
        if without:
            parts.append(f"`samestep {verb}` also has {', '.join(without)}.\n")
    return "\n".join(parts)


def main() -> int:
    """Write the page, or check it."""
    new = page()
    if "--check" in sys.argv:
        return 0 if PAGE.read_text() == new else 1
    PAGE.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
