"""Lists the scripts of the gallery: their arguments, the files they write, the lines with durations."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Script:
    """A serial training script, run in an empty folder.

    Attributes:
        name: the file in this folder.
        files: the files in the current folder after all its runs.
        arguments: the command-line arguments.
        timing_patterns: regular expressions that match (`re.search`) the printed lines with a duration.
        deterministic: whether two runs print the same other lines, and write the same numbers.
        runs: the number of consecutive runs in the same folder.
        device: the value of `--device`, also on one worker.
        notes: the codes that `verify` notes in the first steps, whose model has layers that it does not use.
    """

    name: str
    files: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    timing_patterns: tuple[str, ...] = ()
    deterministic: bool = True
    runs: int = 1
    device: str = "auto"
    notes: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        """The path of the script."""
        return Path(__file__).parent / self.name


SCRIPTS = [
    Script("toplevel_cnn.py", ("model.ckpt",), timing_patterns=(r"^Training took \d+\.\d+ seconds$",)),
    Script(
        "main_argparse.py",
        ("checkpoints/checkpoint.pth.tar", "checkpoints/model_best.pth.tar"),
        arguments=("--epochs", "4", "--lr", "0.2"),
        timing_patterns=(r"^epoch time: \d+\.\d+s$",),
    ),
    Script("trainer_class.py", ("output/best.pt", "output/last.pt", "output/history.json")),
    Script(
        "notebook_export.py",
        ("losses.npy", "accs.npy", "net.pt"),
        timing_patterns=(r"^wall time \d+\.\d+$",),
    ),
    Script(
        "phases_in_one_loop.py",
        ("best_model_params.pt",),
        timing_patterns=(r"^Training time: \d+m \d+s$",),
    ),
    Script("gan.py", ("fake_images.npy", "gan.pth")),
    Script("wgan_gp.py", ("log.csv", "samples.npy")),
    Script(
        "vae.py",
        (*(f"reconstruction_{epoch}.npy" for epoch in range(1, 6)), "sample.npy"),
        arguments=("--epochs", "5"),
    ),
    Script("lbfgs.py", ("history.txt", "surrogate.pt")),
    Script("accumulation.py", ("log.json",), timing_patterns=(r"^done, \d+\.\d+ seconds$",)),
    Script("amp_scaler.py", ("amp.pt",), timing_patterns=(r"^Total execution time = \d+\.\d+ sec$",)),
    Script("clip_before_after.py", ("autoencoder.pt",)),
    Script("ema.py", ("ema.pth",)),
    Script("stop_on_loss.py", ("best_weights.pt",), timing_patterns=(r"^total time \d+\.\d+$",)),
    Script("endless_sampler.py", ("model-1.pt", "model-2.pt", "points.npy")),
    Script("language_model.py", ("model.pt",), timing_patterns=(r"\btime: +\d+\.\d+s$",)),
    Script("gpt_loss_inside.py", ("ckpt.pt",), timing_patterns=(r"^time per iteration \d+\.\d+ms$",)),
    Script("rnn_classifier.py", ("gru.pth",)),
    Script("regression_by_hand.py", ("fit.npz",)),
    Script("sliced_tensors.py", ("net.pt",), timing_patterns=(r"^\d+\.\d+ seconds$",)),
    Script("iterable_data.py", arguments=("5",)),
    Script("resume.py", ("checkpoint.pt", "log.csv"), runs=2),
    Script(
        "folder_of_samples.py",
        (
            *(
                f"samples/{name}.npy"
                for name in ("train/noise/0", "train/noise/105", "val/noise/0", "val/noise/42")
            ),
            "shapes.pt",
        ),
        runs=2,
    ),
    Script("per_batch_scheduler.py", ("history.pt",)),
    Script(
        "plateau_scheduler.py",
        ("results/history.json", "results/model_final.pth"),
        timing_patterns=(r"^average epoch time \d+\.\d+$",),
    ),
    Script("data_parallel.py", ("checkpoint/ckpt.pth",)),
    Script(
        "hard_coded_cuda.py",
        ("cuda.pth", "probabilities.npy"),
        timing_patterns=(r"^training took \d+\.\d+ ms",),
        device="cpu",
    ),
    Script("checkpointed.py", ("curve.npy",)),
    Script("compiled.py", ("compiled.pt", "surface.npy"), timing_patterns=(r"^took \d+\.\d+s$",)),
    Script("metric_learning.py", ("embeddings.npy", "history.npy")),
    Script("multi_output.py", ("metrics.json", "multitask.pt")),
    Script(
        "unseeded.py",
        ("rings.pt",),
        timing_patterns=(r"^elapsed time \d+\.\d+$",),
        deterministic=False,
    ),
    Script("dropout_zoo.py", ("zoo.pt",)),
    Script(
        "simclr_inside.py",
        ("curve.npy", "encoder.pth"),
        timing_patterns=(r"^pretraining time: \d+\.\d+$",),
    ),
    Script("zero_gate.py"),
    Script("time_first_dropout.py", ("losses.txt",)),
    Script("attention_dropout.py", ("attention.pt",)),
    Script("two_targets.py", notes=("no-gradient",)),
    Script("packed_sequences.py", ("packed.pt",), notes=("no-gradient",)),
    Script("cropped_to_longest.py"),
    Script("faint_coupling.py"),
    Script("small_router.py"),
    Script("changing_layers.py"),
    Script("changing_globals.py"),
    Script("inverted_residuals.py", ("statistics.npz",)),
    Script("strides.py", ("strides.npy",)),
    Script("compiled_dropout.py"),
    Script("forward_by_name.py"),
    Script("other_calls.py"),
    Script("state_in_containers.py", ("states.npz",)),
    Script("switched_by_values.py"),
    Script("prints_in_forward.py", ("activations.txt",)),
    Script("noisy_weights.py"),
    Script("rare_layers.py", ("layers.npz",)),
    Script("batch_memories.py"),
    Script("observed_wholes.py"),
    Script("cached_tables.py"),
    Script("trains_in_forward.py", ("adapted.pt", "trained.pt")),
    Script("kept_in_objects.py"),
    Script("pruned.py", ("pruned.pt",)),
    Script("sparse_embeddings.py", ("sparse.pt",)),
    Script("nested_reductions.py"),
    Script("meta_learning.py"),
    Script("time_budget.py", ("latest.pt",), deterministic=False),
    Script("weights_beside.py", ("weights.pt",)),
    Script("created_leaves.py", ("states.pt",)),
    Script("lists_of_samples.py", ("detector.pt",)),
    Script("table_lookups.py", ("tables.pt",)),
    Script("labels_as_indices.py", notes=("no-gradient",)),
    Script("physics_informed.py", ("net.pt",)),
    Script("neural_ode.py", ("field.pt",)),
    Script("threads_beside.py", ("changes0.pt", "changes1.pt", "rings.pt")),
]
