"""Writes the lists of hooks in `docs/reference/hooks.md` from their declarations.

python docs/list_hooks.py            writes the lists
python docs/list_hooks.py --check    exits with 1 if the lists are out of date
"""

import sys
from pathlib import Path

from samestep.hooks.declarations import ALL

PAGE = Path(__file__).parent / "reference" / "hooks.md"
_BEGIN, _END = "<!-- lists of hooks: docs/list_hooks.py -->\n", "<!-- end of the lists -->\n"


def lists() -> str:
    """Return a list for each feature: functions that are replaced for one reason share a line."""
    features: dict[str, dict[str, dict[str, list[str]]]] = {}
    for hook in ALL:
        why = f"{hook.reason} (optional)" if hook.optional else hook.reason
        owners = features.setdefault(hook.feature, {}).setdefault(why, {})
        owners.setdefault(hook.owner.replace(":", "."), []).append(hook.attribute)
    parts = []
    for feature, reasons in features.items():
        parts.append(f"### {feature[0].upper()}{feature[1:]}\n")
        for why, owners in reasons.items():
            names = [f"`{owner}.`: {_quoted(names)}" for owner, names in owners.items() if len(names) > 2]
            names += [f"`{owner}.{name}`" for owner, few in owners.items() if len(few) <= 2 for name in few]
            parts.append(f"* {why}: {', '.join(names)}")
        parts.append("")
    return "\n".join(parts)


def _quoted(names: list[str]) -> str:
    return " ".join(f"`{name}`" for name in names)


def main() -> int:
    """Write the lists, or check them."""
    text = PAGE.read_text()
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    new = f"{before}{_BEGIN}\n{lists()}\n{_END}{after}"
    if "--check" in sys.argv:
        return 0 if new == text else 1
    PAGE.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
