"""`verify` names the cause, the rank and the line of scripts that hang or crash on two workers."""

import pytest

from gallery_hangs.manifest import SCRIPTS
from samestep.base.errors import UsageError
from samestep.base.folders import shown
from support.hang_reports import read_report
from support.tiers import mostly_long, stem
from support.verifier import SHORT_HANG_S

NAMES = [
    "early_break_before_metric",
    "uneven_batches",
    "exits_0",
    "exits_3",
    "evaluation_on_rank_0",
    "loader_blocks",
    "dtypes_differ",
    "segfault",
    "loader_raises",
    "rank_0_twice",
]


@pytest.mark.parametrize(
    "script",
    mostly_long(
        [script for script in SCRIPTS if stem(script) in NAMES],
        ("evaluation_on_rank_0", "segfault", "uneven_batches"),
        stem,
    ),
)
def test_cause_rank_and_line_are_named(verifier, script):
    hang_s = SHORT_HANG_S if script.kind in ("hang", "out of step") else 20.0
    finding = verifier.verify(script.path, mode="native", hang_s=hang_s)["findings"][0]
    report = read_report(finding["message"])

    assert finding["code"] == script.cause
    assert report.ranks[: len(script.ranks)] == script.ranks
    assert f"{shown(str(script.path))}:{script.line}" in finding["message"]


def test_a_run_on_one_worker_that_hangs_is_ended(verifier, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import queue, torch.distributed as dist\n\nqueue.Queue().get()\n")

    with pytest.raises(UsageError, match=rf"{script}:3"):
        verifier.verify(script, mode="native", hang_s=SHORT_HANG_S)
