"""What is noted about each script of this folder, which has one mistake on one worker already."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Script:
    """A serial training script with one mistake.

    Attributes:
        name: the file in this folder.
        code: the code of its note.
    """

    name: str
    code: str

    @property
    def path(self) -> Path:
        """Where it lies."""
        return Path(__file__).parent / self.name


SCRIPTS = [
    Script("unused_layer.py", "no-gradient"),
]
