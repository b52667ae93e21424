"""Writes `docs/reference/commands.md` from the options of the command line.

python docs/list_commands.py            writes the page
python docs/list_commands.py --check    exits with 1 if the page is out of date
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from samestep.cli.main import PACKAGES, VERBS, application

PAGE = Path(__file__).parent / "reference" / "commands.md"
_HEAD = """# Command reference: all options

`samestep VERB --help` prints the same in a terminal. `docs/list_commands.py` writes this page.
"""


def commands() -> Iterator[tuple[str, str, list[Any]]]:
    """Return each command with its summary and its visible parameters."""
    for verb in (*VERBS, *PACKAGES):
        command: Any = get_command(application(verb)).commands[verb]  # type: ignore[attr-defined]
        below = getattr(command, "commands", {})
        yield f"samestep {verb}", VERBS.get(verb, command.help), [] if below else _visible(command)
        for name, one in below.items():
            yield (
                f"samestep {verb} {name}",
                (one.help or one.short_help or "").split("\n\n")[0],
                _visible(one),
            )


def _visible(command: Any) -> list[Any]:
    return [one for one in command.params if not getattr(one, "hidden", False) and one.name != "help"]


def _row(one: Any) -> str:
    if one.param_type_name == "argument":
        names = f"`{one.metavar or one.name.upper()}`"
    else:
        names = ", ".join(f"`{name}`" for name in (*one.opts, *getattr(one, "secondary_opts", ())))
        value = one.metavar or ""
        names += f" `{value}`".replace("|", "\\|") if value else ""
    about = re.sub(r"\s+", " ", getattr(one, "help", "") or "").replace("|", "\\|").replace("<", "&lt;")
    return f"| {names} | {about} |"


def page() -> str:
    """Return the page."""
    parts = [_HEAD]
    for name, summary, parameters in commands():
        parts.append(f"## {name}\n\n{re.sub(chr(10), ' ', summary).strip()}\n")
        if parameters:
            rows = "\n".join(map(_row, parameters))
            parts.append(f"| option | meaning |\n|---|---|\n{rows}\n")
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
