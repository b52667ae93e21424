"""The module that is reported for each script of this folder on several workers."""

from dataclasses import dataclass
from pathlib import Path

from samestep.base.folders import shown


@dataclass(frozen=True)
class Script:
    """A script with a fault inside of its model, correct on one worker.

    Attributes:
        name: the file in this folder.
        module: qualified name of the module with the fault, or its class if it is called by the loop.
        phase: whether it computes something else in forward or in backward.
        line: a line of the script's text that begins the named place.
        after: a line before that one, where several lines are equal.
    """

    name: str
    module: str
    phase: str
    after: str
    line: str = "    def forward("

    @property
    def path(self) -> Path:
        """The path of the script."""
        return Path(__file__).parent / self.name

    @property
    def place(self) -> tuple[str, int]:
        """File and line that are named."""
        lines = self.path.read_text().splitlines()
        start = next(k for k, text in enumerate(lines) if text.startswith(self.after))
        return shown(str(self.path)), next(k for k in range(start, len(lines)) if self.line in lines[k]) + 1


SCRIPTS = [
    Script("backward_hook.py", "blocks.1", "backward", after="class Block"),
    Script("backward_scale.py", "layers.0", "backward", after="class Adapter"),
    Script("batch_function.py", "features.1", "forward", after="class BatchScale"),
    Script("batch_mean.py", "blocks.0", "forward", after="class Block"),
    Script("boxes_of_rank.py", "BoxLoss", "forward", after="class BoxLoss"),
    Script("contrastive_loss.py", "NTXent", "forward", after="class NTXent"),
    Script("expert_capacity.py", "moe", "forward", after="class MoE"),
    Script("gather_without_gradient.py", "similarity", "backward", after="class Similarity"),
    Script("memory_bank.py", "memory", "forward", after="class MemoryBank"),
    Script(
        "parameter_hook.py", "hidden", "backward", after="class Net", line="self.out(torch.relu(self.hidden("
    ),
    Script("quantization_scale.py", "quantize", "forward", after="class Quantize"),
    Script("rank_in_forward.py", "experts", "forward", after="class Experts"),
    Script("reduced_activation.py", "mlp.down", "forward", after="class RowParallel"),
    Script("scale_by_batch.py", "layers.0", "forward", after="class Attention"),
    Script("sync_batch_norm_by_hand.py", "norm", "backward", after="class SyncBatchNorm"),
    Script("wrong_count.py", "stem.1", "forward", after="class SyncBatchNorm"),
]
