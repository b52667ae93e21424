"""The scripts that resume, ended and started again: each fault is named, and no right script accused."""

import pytest

from gallery_resumed.manifest import SCRIPTS

IN_PROCESS = ("serial", "ddp")
SHORT = (
    "every_epoch.py",
    "from_first_batch.py",
    "moments_lost.py",
    "ddp_position_ahead.py",
)
"""Scripts that `make test` verifies: a right one, faults of samples and of state, and one of DDP."""


def named(script):
    return f"{script.name}-{script.stop_after}-{script.ended_by}"


def marked(script):
    is_short = script.name in SHORT
    return pytest.param(script, id=named(script), marks=[] if is_short else [pytest.mark.long])


@pytest.mark.parametrize("script", [marked(script) for script in SCRIPTS if script.kind in IN_PROCESS])
def test_a_resumed_script_is_compared_with_the_uninterrupted_run(verifier, script):
    report = verifier.verify(
        script.command[0],
        resume_at=script.stop_after,
        resume_with=script.resume,
        end_by="term" if script.ended_by == "SIGTERM" else "kill",
        workers=(script.workers,),
    )
    codes = [finding["code"] for finding in report["findings"] if finding["gravity"] == "fault"]
    assert (report["verdict"], codes) == (script.verdict, [script.cause] if script.cause else [])
