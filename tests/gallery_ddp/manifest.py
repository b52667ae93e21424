"""The expected verdict and cause of each script of this folder on several workers."""

from dataclasses import dataclass
from pathlib import Path

SAME = "same"
SAME_BUT = "same but for exceptions"
DIFFERENT = "different"
INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class Script:
    """A distributed training script, started by a launcher that sets the usual environment.

    Attributes:
        name: the file in this folder.
        verdict: whether it trains on 2 or 4 workers as it does on one.
        cause: the one thing that makes the difference, or prevents a comparison; empty where there is none.
        twin: the file with the same training for one process that knows of no other, where there is one.
        beside: an independent cause that is found beside it.
        mode: "native" where it says nothing of `torch.distributed` and would be taken for a serial script.
    """

    name: str
    verdict: str
    cause: str = ""
    twin: str = ""
    beside: str = ""
    mode: str = "auto"

    @property
    def path(self) -> Path:
        """The path of the script."""
        return Path(__file__).parent / self.name


SCRIPTS = [
    Script("ddp_tutorial.py", SAME, twin="ddp_tutorial_serial.py"),
    Script("global_batches.py", SAME, twin="global_batches_serial.py"),
    Script("averaged_by_hand.py", SAME, twin="averaged_by_hand_serial.py"),
    Script("accumulation_no_sync.py", SAME),
    Script("accumulation_and_schedule.py", SAME),
    Script("snapshots.py", SAME),
    Script("saved_and_loaded.py", SAME),
    Script("two_networks.py", SAME),
    Script("tensor_parallel.py", SAME),
    Script("missing_values.py", SAME),
    Script("batch_norm_local.py", SAME_BUT, "batch-norm-local"),
    Script("dropout_per_rank.py", SAME_BUT, "random-per-worker"),
    Script("vae_per_rank.py", SAME_BUT, "random-per-worker", twin="vae_per_rank_serial.py"),
    Script("diffusion.py", SAME_BUT, "random-per-worker"),
    Script("own_generator_per_rank.py", SAME_BUT, "random-per-worker"),
    Script("own_generator_alike.py", SAME_BUT, "random-alike-on-workers"),
    Script("noisy_loader.py", SAME_BUT, "augmentation-per-worker"),
    Script("folder_order.py", SAME_BUT, "folder-order"),
    Script("order_of_a_set.py", SAME_BUT, "set-order"),
    Script("accumulation_not_averaged.py", DIFFERENT, "accumulation-not-averaged"),
    Script("batch_means_evaluated.py", DIFFERENT, "local-metric"),
    Script("crash.py", DIFFERENT, "crash"),
    Script("divided_twice.py", DIFFERENT, "divided-twice"),
    Script("experts_in_no_optimizer.py", DIFFERENT, "not-in-optimizer"),
    Script("layer_left_out.py", DIFFERENT, "parameters-missing"),
    Script("lr_times_n.py", DIFFERENT, "lr-times-n"),
    Script("mean_of_means.py", DIFFERENT, "mean-of-means"),
    Script("means_of_tokens.py", DIFFERENT, "mean-of-means"),
    Script("wrong_model_called.py", DIFFERENT, "never-averaged"),
    Script("norm_of_a_part.py", DIFFERENT, "never-averaged"),
    Script("no_set_epoch.py", DIFFERENT, "no-set-epoch", beside="other-order"),
    Script("overlapping_shards.py", DIFFERENT, "overlapping-shards"),
    Script("same_batches.py", DIFFERENT, "overlapping-shards"),
    Script("own_random_split.py", DIFFERENT, "overlapping-shards"),
    Script("padded_and_local_metric.py", DIFFERENT, "padded-evaluation", beside="local-metric"),
    Script("parts_not_reduced.py", DIFFERENT, "never-averaged"),
    Script("perturbed_by_rank.py", DIFFERENT, "replicas-differ-in-step"),
    Script("samples_left_out_slices.py", DIFFERENT, "samples-left-out"),
    Script("schedule_n_times.py", DIFFERENT, "schedule-n-times"),
    Script("silent_copies.py", DIFFERENT, "silent-copies", mode="native"),
    Script("silent_copies_without_slurm.py", DIFFERENT, "silent-copies"),
    Script("steps_differ.py", DIFFERENT, "steps-differ"),
    Script("sum_not_mean.py", DIFFERENT, "sum-not-mean"),
    Script("teachers_differ.py", DIFFERENT, "buffers-differ-at-start"),
    Script("weight_decay_times_n.py", DIFFERENT, "weight-decay-times-n"),
    Script("unseeded_data.py", INCONCLUSIVE, "unseeded-data"),
    Script("unseeded_order.py", INCONCLUSIVE, "unseeded-data"),
    Script("unseeded_shards.py", DIFFERENT, "overlapping-shards"),
    Script("zero_loss.py", INCONCLUSIVE, "zero-loss"),
]
