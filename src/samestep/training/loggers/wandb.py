"""``--logger wandb``: a run of Weights & Biases, on its server or in the run folder."""

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import wandb

from samestep.training.loggers.logger import evaluation_figures, step_figures
from samestep.training.result import Result


class Wandb:
    """Logs to a run; its horizontal axis is our step.

    Steps that a resumed run takes again are logged again, upon the points that are there: a run on the
    server can only grow, and the figures are the same.

    Args:
        run: where to.
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


def open_logger(run_folder: Path, config: Mapping[str, Any], tell: Callable[[str], None]) -> Wandb:
    """Return a logger to the run that belongs to a run folder, which is a new one the first time.

    Where it goes is the user's to say, as anywhere with wandb: by ``wandb login`` and ``WANDB_MODE`` and its
    other variables. Where that fails, because nobody is logged in or the server is out of reach, files are
    written that can be sent later; nothing is asked.
    """
    settings = wandb.setup().settings
    if settings.mode != "online":
        return _begun(run_folder, config)
    try:
        if _logged_in(settings):
            return _begun(run_folder, config, resume="allow")
        reason = "nobody is logged in"
    except wandb.errors.Error as error:
        reason = " ".join(str(error).split()).rstrip(".")
    tell(
        f"wandb: {reason}; what is logged stays in {run_folder}/wandb, "
        "to be sent with `wandb login` and `wandb sync`"
    )
    return _begun(run_folder, config, mode="offline")


def _begun(run_folder: Path, config: Mapping[str, Any], **how: Any) -> Wandb:
    """Begin the run that belongs to a run folder, or go on with it."""
    settings = wandb.setup().settings
    known = run_folder / "wandb" / "run-id"
    known.parent.mkdir(parents=True, exist_ok=True)
    run = wandb.init(
        dir=run_folder,
        project=settings.project or "samestep",
        name=settings.run_name or run_folder.absolute().name,
        id=known.read_text(encoding="utf-8").strip() if known.exists() else None,
        config=dict(config),
        **how,
    )
    known.write_text(f"{run.id}\n", encoding="utf-8")
    return Wandb(run)


def _logged_in(settings: wandb.Settings) -> bool:
    """Whether wandb finds a login without asking for one."""
    if "prompt" in signature(wandb.login).parameters:  # from 0.31 on, which warns of the older way
        return wandb.login(prompt=False, verify=False)  # type: ignore[call-arg]
    return bool(wandb.api.api_key or settings.identity_token_file)
