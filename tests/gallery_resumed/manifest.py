"""The expected verdict and cause of each script of this folder after an interruption and a resume."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

SAME = "same"
DIFFERENT = "different"


@dataclass(frozen=True, kw_only=True)
class Script:
    """A training that is ended after a step, and started again in the same folder to resume.

    Steps are those of the optimizer, the first is 1.

    Attributes:
        name: the file in this folder, or the command's words for a built-in training.
        kind: its library, which decides the interpreter and the launcher.
        steps: number of steps of the uninterrupted run.
        stop_after: the step after which the run is ended, before the script can save that step.
        resume: further arguments of the resumed run; without any the script looks for its checkpoint.
        resumes_after: the step whose weights the resumed run starts with; None where timing decides.
        resumed_steps: number of steps of the resumed run; None where timing decides.
        verdict: whether the resumed run goes on as the uninterrupted one.
        cause: the one thing that makes the difference; empty where there is none.
        differs_at: the first step that the resumed run takes in another way; None if there is none.
        ended_by: the signal that ends the run, where the signal decides what was saved.
        workers: number of workers.
    """

    name: str
    kind: Literal["serial", "ddp", "trainer", "accelerate", "lightning", "samestep train"] = "serial"
    steps: int
    stop_after: int
    resume: tuple[str, ...] = ()
    resumes_after: int | None
    resumed_steps: int | None
    verdict: str = SAME
    cause: str = ""
    differs_at: int | None = None
    ended_by: Literal["any", "SIGKILL", "SIGTERM"] = "any"
    workers: int = 1

    @property
    def command(self) -> tuple[str, ...]:
        """The words after the interpreter, without the arguments that resume."""
        if self.kind == "samestep train":
            return ("-m", "samestep", *self.name.split())
        return (str(Path(__file__).parent / self.name),)


RIGHT = [
    Script(
        name="every_epoch.py",
        steps=40,
        stop_after=19,
        resume=("--resume", "checkpoint.pth.tar"),
        resumes_after=16,
        resumed_steps=24,
    ),
    Script(
        name="every_steps.py",
        steps=40,
        stop_after=16,
        resume=("--resume",),
        resumes_after=12,
        resumed_steps=28,
    ),
    Script(
        name="saved_on_sigterm.py",
        steps=50,
        stop_after=17,
        resumes_after=10,
        resumed_steps=40,
        ended_by="SIGKILL",
    ),
    Script(
        name="saved_on_sigterm.py",
        steps=50,
        stop_after=17,
        resumes_after=17,
        resumed_steps=33,
        ended_by="SIGTERM",
    ),
    Script(
        name="ddp_skipped_batches.py",
        kind="ddp",
        steps=40,
        stop_after=18,
        resumes_after=14,
        resumed_steps=26,
        workers=2,
    ),
    Script(
        name="distributed_state.py",
        kind="ddp",
        steps=24,
        stop_after=10,
        resumes_after=8,
        resumed_steps=16,
        workers=2,
    ),
    Script(
        name="trainer_checkpoints.py",
        kind="trainer",
        steps=24,
        stop_after=12,
        resume=("--resume_from_checkpoint",),
        resumes_after=10,
        resumed_steps=14,
    ),
    Script(
        name="accelerate_states.py",
        kind="accelerate",
        steps=40,
        stop_after=21,
        resume=("--resume_from_checkpoint", "out/step_18"),
        resumes_after=18,
        resumed_steps=22,
    ),
    Script(
        name="lightning_last.py",
        kind="lightning",
        steps=32,
        stop_after=19,
        resume=("--resume",),
        resumes_after=16,
        resumed_steps=16,
    ),
    # Its other checkpoints are between the micro-batches of a step.
    Script(
        name="accumulation_in_middle.py",
        steps=18,
        stop_after=6,
        resume=("--resume", "last"),
        resumes_after=5,
        resumed_steps=13,
    ),
    # The checkpoints are written in the background: the last one can be lost.
    Script(
        name="train digits --subset 640 --epochs 3 --checkpoint-steps 4 --resume runs/digits",
        kind="samestep train",
        steps=30,
        stop_after=17,
        resumes_after=None,
        resumed_steps=None,
    ),
]
WRONG = [
    Script(
        name="shuffled_again.py",
        steps=48,
        stop_after=32,
        resumes_after=29,
        resumed_steps=19,
        verdict=DIFFERENT,
        cause="resumed-other-order",
        differs_at=30,
    ),
    Script(
        name="order_restarts.py",
        steps=32,
        stop_after=19,
        resume=("--restore", "exp"),
        resumes_after=16,
        resumed_steps=16,
        verdict=DIFFERENT,
        cause="resumed-other-order",
        differs_at=17,
    ),
    Script(
        name="from_first_batch.py",
        steps=64,
        stop_after=29,
        resume=("--resume",),
        resumes_after=20,
        resumed_steps=48,
        verdict=DIFFERENT,
        cause="resumed-repeats",
        differs_at=21,
    ),
    Script(
        name="ddp_position_ahead.py",
        kind="ddp",
        steps=48,
        stop_after=18,
        resume=("--load", "checkpoints/000015.pt"),
        resumes_after=15,
        resumed_steps=33,
        verdict=DIFFERENT,
        cause="resumed-skips",
        differs_at=16,
        workers=2,
    ),
    Script(
        name="accumulation_in_middle.py",
        steps=18,
        stop_after=9,
        resume=("--resume", "last"),
        resumes_after=7,
        resumed_steps=11,
        verdict=DIFFERENT,
        cause="resumed-skips",
        differs_at=8,
    ),
    Script(
        name="from_best.py",
        steps=56,
        stop_after=33,
        resume=("--resume",),
        resumes_after=14,
        resumed_steps=28,
        verdict=DIFFERENT,
        cause="resumed-skips",
        differs_at=15,
    ),
    Script(
        name="exhausted_loader.py",
        steps=40,
        stop_after=27,
        resume=("--resume",),
        resumes_after=24,
        resumed_steps=8,
        verdict=DIFFERENT,
        cause="resumed-short",
        differs_at=25,
    ),
    Script(
        name="exhausted_loader.py",
        steps=40,
        stop_after=37,
        resume=("--resume",),
        resumes_after=32,
        resumed_steps=0,
        verdict=DIFFERENT,
        cause="resumed-short",
        differs_at=33,
    ),
    Script(
        name="rate_ahead.py",
        steps=48,
        stop_after=21,
        resumes_after=16,
        resumed_steps=32,
        verdict=DIFFERENT,
        cause="resumed-rate",
        differs_at=17,
    ),
    Script(
        name="accelerate_schedule_lost.py",
        kind="accelerate",
        steps=48,
        stop_after=29,
        resume=("--resume",),
        resumes_after=24,
        resumed_steps=24,
        verdict=DIFFERENT,
        cause="resumed-rate",
        differs_at=26,
    ),
    Script(
        name="moments_lost.py",
        steps=40,
        stop_after=19,
        resume=("--continue",),
        resumes_after=16,
        resumed_steps=24,
        verdict=DIFFERENT,
        cause="resumed-optimizer",
        differs_at=17,
    ),
    Script(
        name="scaler_lost.py",
        steps=33,
        stop_after=15,
        resumes_after=12,
        resumed_steps=17,
        verdict=DIFFERENT,
        cause="resumed-optimizer",
        differs_at=13,
    ),
    Script(
        name="dropout_restarts.py",
        steps=32,
        stop_after=19,
        resumes_after=16,
        resumed_steps=16,
        verdict=DIFFERENT,
        cause="resumed-draws",
        differs_at=17,
    ),
    Script(
        name="lightning_dropout.py",
        kind="lightning",
        steps=40,
        stop_after=23,
        resumes_after=20,
        resumed_steps=20,
        verdict=DIFFERENT,
        cause="resumed-draws",
        differs_at=21,
    ),
    Script(
        name="augmentation_restarts.py",
        steps=40,
        stop_after=19,
        resume=("--resume", "last.pt"),
        resumes_after=16,
        resumed_steps=24,
        verdict=DIFFERENT,
        cause="resumed-draws",
        differs_at=17,
    ),
    # All steps are the same; what follows from them is not.
    Script(
        name="ema_lost.py",
        steps=40,
        stop_after=19,
        resume=("--resume", "models/last.pt"),
        resumes_after=16,
        resumed_steps=24,
        verdict=DIFFERENT,
        cause="printed",
    ),
    Script(
        name="batch_norm_lost.py",
        steps=36,
        stop_after=21,
        resume=("--resume",),
        resumes_after=18,
        resumed_steps=18,
        verdict=DIFFERENT,
        cause="printed",
    ),
    Script(
        name="patience_lost.py",
        steps=25,
        stop_after=24,
        resume=("--resume",),
        resumes_after=20,
        resumed_steps=20,
        verdict=DIFFERENT,
        cause="number-of-steps",
    ),
]
SCRIPTS = [*RIGHT, *WRONG]
