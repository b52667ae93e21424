"""Correct distributed scripts in styles that a comparison with one worker can misinterpret."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Script:
    """A correct script, started by a launcher that sets the usual environment.

    Attributes:
        name: the file in this folder.
        codes: codes of its findings, none of which is a fault.
        missing: codes of what cannot be compared, beside an evaluation or a second epoch that it lacks.
        workers: numbers of workers to run it on.
        steps: number of steps of each run.
        device: "cpu" for a script that names GPUs.
    """

    name: str
    codes: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    workers: tuple[int, ...] = (2, 3)
    steps: int = 8
    device: str = "auto"

    @property
    def path(self) -> Path:
        """The path of the script."""
        return Path(__file__).parent / self.name

    @property
    def verdict(self) -> str:
        """The verdict: with notes only it is "same"."""
        exceptions = {"batch-norm-local", "compressed-gradients", "local-print"}
        return "same but for exceptions" if exceptions & {*self.codes} else "same"


SCRIPTS = [
    Script("accumulation_and_clipping.py", steps=6),
    Script("amp_bf16.py"),
    Script("batch_norm_of_groups.py", codes=("batch-norm-local",), workers=(3,), steps=4, device="cpu"),
    Script("bucketed_sampler.py"),
    Script("contrastive_gathered.py"),
    Script("distillation.py"),
    Script("distributed_checkpoint.py", workers=(2,)),
    Script("ema_weights.py"),
    Script("evaluation_meters.py", codes=("local-print",), steps=6),
    Script("fp16_compress_hook.py", codes=("compressed-gradients",), workers=(2,)),
    Script("fsdp1.py", missing=("parameters",)),
    Script("fsdp2.py", steps=5),
    Script("full_evaluation_everywhere.py"),
    Script("gather_and_cut.py"),
    Script("iterable_shards.py"),
    Script("join_accumulated.py", steps=10),
    Script("join_uneven.py"),
    Script("mean_teacher.py", codes=("local-print",)),
    Script("meters_and_rates.py", steps=10),
    Script("pipeline.py", workers=(2, 4), steps=5),
    Script("pipeline_by_hand.py"),
    Script("post_local_sgd.py"),
    Script("ppo.py", codes=("local-print",)),
    Script("q_learning.py", codes=("local-print",)),
    Script("reduced_in_step.py"),
    Script("running_means.py", codes=("local-print",)),
    Script("sorted_folder.py", steps=4),
    Script("subgroup_evaluation.py"),
    Script("tensor_and_data_parallel.py", workers=(4,), steps=4),
    Script("tensor_parallel.py", steps=5),
    Script("very_deep.py", codes=("single-precision",), workers=(2,), steps=2),
    Script("weighted_tokens.py"),
    Script("wgan_gp.py", missing=("later-steps",), workers=(2,), steps=4),
    Script("zero_optimizer.py"),
]
