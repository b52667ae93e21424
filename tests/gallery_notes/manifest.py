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
    Script("list_of_layers.py", "no-optimizer", "torch.optim.Adam(model.parameters()"),
    Script("forgotten_head.py", "no-optimizer", "optim.SGD(params"),
    Script("unused_layer.py", "no-gradient", "torch.optim.SGD(model.parameters()"),
    Script("slow_warmup.py", "no-change", "torch.optim.SGD(model.parameters()"),
    Script("copied_model.py", "optimizer-holds-other", "torch.optim.Adam(template.parameters()"),
    Script("replaced_head.py", "optimizer-holds-other", "torch.optim.SGD(model.parameters()"),
    Script("detached_loss.py", "loss-without-graph", "loss.backward()"),
    Script("never_zeroed.py", "gradients-not-zeroed", "optimizer.step()"),
    Script("zeroed_too_late.py", "gradients-thrown-away", "opt.step()"),
    Script("eval_kept.py", "eval-not-undone", "model.eval()"),
    Script("dropout_in_validation.py", "train-mode-in-evaluation", "net(x), y).item()"),
    Script("scheduler_first.py", "schedule-before-optimizer", "scheduler.step()"),
    Script("skipped_steps.py", "amp-steps-skipped", "scaler.step(gain_optimizer)", steps=24),
    Script("clipped_scaled.py", "clip-before-unscale", "clip_grad_norm_"),
    Script("softmax_twice.py", "softmax-before-loss", "loss.backward()"),
    Script("broadcast_targets.py", "loss-broadcast", "loss.backward()"),
    Script("epoch_never_set.py", "same-order-in-epochs", "for x, y in loader", steps=14),
    Script("loader_seeds.py", "loader-workers-draw-same", "def __getitem__"),
]
