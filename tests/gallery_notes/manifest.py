"""The expected note on each script of this folder, which has one mistake already on one worker."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Script:
    """A serial training script with one mistake.

    Attributes:
        name: the file in this folder.
        code: the code of its note.
        line: a part of the line that the note names.
        steps: number of steps after which its runs are stopped.
    """

    name: str
    code: str
    line: str
    steps: int = 8

    @property
    def path(self) -> Path:
        """The path of the script."""
        return Path(__file__).parent / self.name


SCRIPTS = [
    Script("forgotten_head.py", "no-optimizer", "optim.SGD(params"),
    Script("clipped_scaled.py", "clip-before-unscale", "clip_grad_norm_"),
    Script("epoch_never_set.py", "same-order-in-epochs", "for x, y in loader", steps=14),
    Script("loader_seeds.py", "loader-workers-draw-same", "def __getitem__"),
]
