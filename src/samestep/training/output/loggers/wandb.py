"""Logs to Weights & Biases, on its server or in the run folder, for ``--logger wandb``."""

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import wandb

from samestep.training.output.loggers.logger import evaluation_figures, step_figures
from samestep.training.output.result import Result


class Wandb:
    """A logger to a run of wandb, whose x-axis is the training step.

    Steps that a resumed run repeats are logged again with the same figures, because a run on the server can
    only grow.
    """

    def __init__(self, run: wandb.Run) -> None:
        self._run = run
        run.define_metric("*", step_metric="step")

    def steps(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """See `Logger.steps`."""
        for row in rows:
            self._run.log({"step": row["step"], **step_figures(row)})

    def evaluation(self, row: Mapping[str, Any]) -> None:
        """See `Logger.evaluation`."""
        self._run.log({"step": row["step"], **evaluation_figures(row)})

    def close(self, result: Result | None) -> None:
        """See `Logger.close`."""
        if result is not None:
            self._run.summary.update({f"result/{name}": value for name, value in result.as_dict().items()})
        self._run.finish(exit_code=0 if result is not None else 1)


def open_logger(run_folder: Path, config: Mapping[str, Any], report: Callable[[str], None]) -> Wandb:
    """Return a logger to the wandb run of a run folder, a new one the first time.

    The user configures wandb as usual, by ``wandb login``, ``WANDB_MODE`` and its other variables. Without a
    login, or if the server cannot be reached, wandb writes files for ``wandb sync``, without a prompt.
    """
    settings = wandb.setup().settings
    if settings.mode != "online":
        return _init(run_folder, config)
    try:
        if _logged_in(settings):
            return _init(run_folder, config, resume="allow")
        reason = "there is no login"
    except wandb.errors.Error as error:
        reason = " ".join(str(error).split()).rstrip(".")
    report(
        f"wandb: {reason}; the figures are stored in {run_folder}/wandb. "
        "Send them with `wandb login` and `wandb sync`"
    )
    return _init(run_folder, config, mode="offline")


def _init(run_folder: Path, config: Mapping[str, Any], **how: Any) -> Wandb:
    """Start the wandb run of a run folder, or resume it."""
    settings = wandb.setup().settings
    id_file = run_folder / "wandb" / "run-id"
    id_file.parent.mkdir(parents=True, exist_ok=True)
    run = wandb.init(
        dir=run_folder,
        project=settings.project or "samestep",
        name=settings.run_name or run_folder.absolute().name,
        id=id_file.read_text(encoding="utf-8").strip() if id_file.exists() else None,
        config=dict(config),
        **how,
    )
    id_file.write_text(f"{run.id}\n", encoding="utf-8")
    return Wandb(run)


def _logged_in(settings: wandb.Settings) -> bool:
    """Return whether wandb finds a login without a prompt."""
    if "prompt" in signature(wandb.login).parameters:  # since 0.31, which deprecates the older call
        return wandb.login(prompt=False, verify=False)  # type: ignore[call-arg]
    return bool(wandb.api.api_key or settings.identity_token_file)
