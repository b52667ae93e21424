"""Writes the package index's description: the README, with its links to files made absolute."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[((?:[^\[\]]|!\[[^\]]*\]\([^)]*\))*)\]\((?!https?:|#|mailto:)([^)\s]+)\)")
_IMAGE = re.compile(r'(<img[^>]* src=")(?!https?:)([^"]+)')


def absolute(text: str, source: str) -> str:
    """Return `text` with its links to files as addresses below `source`, images as the files themselves."""

    def renewed(found: re.Match[str]) -> str:
        image, words, target = found.groups()
        return f"{image}[{_LINK.sub(renewed, words)}]({source}/{'raw' if image else 'blob'}/main/{target})"

    return _IMAGE.sub(rf"\g<1>{source}/raw/main/\g<2>", _LINK.sub(renewed, text))


class Description(MetadataHookInterface):
    """Adds the field `readme`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the README of the project's folder."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        readme = absolute(text, metadata["urls"]["Source"])
        metadata["readme"] = {"content-type": "text/markdown", "text": readme}
