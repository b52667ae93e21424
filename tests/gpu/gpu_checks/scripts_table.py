"""Lists the training scripts that the checks run by Python and on two ranks, whose numbers are compared."""

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).with_name("scripts")
SERIAL = Path(__file__).with_name("serial_script.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A training script for one device, which prints lines ``loss NUMBER``."""

    path: Path
    shows: str  # what the script has that others have not
    arguments: tuple[str, ...] = ()
    # largest relative difference of a loss on two ranks: sums over ranks round differently, and optimizers
    # that divide by a gradient's size enlarge that; bfloat16 rounds to 3 digits
    tolerance: float = 1e-3
    packages: tuple[str, ...] = ()  # modules without which it is skipped
    names_cuda: bool = False  # whether it names CUDA devices, so that the CPU runs it by ``--device cpu``
    is_for_cpus: bool = True  # whether a CPU can run it, with the numbers of a GPU
    on_cpu: bool = True  # whether the CPU can run its check, which tests its code
    has_unsplit: bool = False  # whether some of its calls cannot be split
    seconds: float = 90.0  # time limit of its check


def _named(feature: str, shows: str, **values: object) -> Script:
    """Return a feature of the script that names CUDA."""
    return Script(path=SERIAL, arguments=(feature,), shows=shows, names_cuda=True, **values)  # type: ignore[arg-type]


def _script(name: str, shows: str, *arguments: str, **values: object) -> Script:
    return Script(path=FOLDER / f"{name}.py", arguments=arguments, shows=shows, **values)  # type: ignore[arg-type]


_NAMING_CUDA = {
    "cuda-method": _named("cuda-method", ".cuda()"),
    "to-device": _named("to-device", '.to("cuda")'),
    "default-device": _named("default-device", "set_default_device"),
    "pinned": _named("pinned", "pinned loader, non_blocking"),
    "streams": _named("streams", "streams and events"),
    "autocast": _named("autocast", "autocast", tolerance=3e-2),
    "grad-scaler": _named("grad-scaler", "GradScaler"),
    "dropout": _named("dropout", "masks drawn on the GPU", is_for_cpus=False, on_cpu=False),
    "compile": _named("compile", "torch.compile", is_for_cpus=False, on_cpu=False, seconds=120.0),
}
_MODELS = {
    "images": _script("images", "batch norm, channels-last", "fp32"),
    "images-bf16": _script("images", "batch norm, channels-last, bfloat16 autocast", "bf16", tolerance=5e-2),
    "gpt": _script("gpt", "embeddings, attention, a loss in forward, ignored labels"),
    "lstm": _script("lstm", "an LSTM whose hidden state goes from batch to batch"),
    "digits": _script("digits", "dropout, two loaders with processes, evaluation"),
    "vae": _script("vae", "noise in forward, two loaders with processes"),
    "adder": _script("adder", "characters, answers by a growing sequence"),
    "gan": _script("gan", "two networks with batch norm and two optimizers", tolerance=1e-2),
    "hf-trainer": _script(
        "hf_trainer", "the Trainer of Transformers", packages=("transformers", "accelerate")
    ),
    "lightning": _script("lightning_module", "Lightning's Trainer", packages=("lightning",)),
}
_SPLITTING = {
    name: _script(
        "splitting", shows, name, has_unsplit=name in ("input-gradient", "switched", "switched-buffer")
    )
    for name, shows in {
        "uneven": "batches that ranks cannot halve, the last of one sample",
        "weighted-loss": "a loss in forward with class weights and ignored labels",
        "masked-mean": "a loss in forward with its own divisor",
        "time-first": "samples along the second dimension",
        "packed": "packed sequences",
        "sample-list": "samples of different sizes in a list",
        "noise": "random numbers in forward",
        "sparse": "sparse gradients of an embedding",
        "checkpoint": "activation checkpoints",
        "accumulation": "several backward passes for a step",
        "attributes": "a tensor that the model keeps as an attribute",
        "input-gradient": "a penalty of gradients by the inputs",
        "closure": "LBFGS",
        "beside-cpu": "a model of the CPU beside one of the device",
        "switched": "a number of the device on which forward branches, in an attribute",
        "switched-buffer": "an integer of the device on which forward branches, in a buffer",
    }.items()
}
SCRIPTS: dict[str, Script] = {
    **{f"autopilot-{name}": script for name, script in _NAMING_CUDA.items()},
    **{f"script-{name}": script for name, script in _MODELS.items()},
    **{f"split-{name}": script for name, script in _SPLITTING.items()},
}
"""The scripts by the names of their checks."""
