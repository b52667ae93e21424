"""``samestep run -n auto`` measures only where workers and threads of one host's cores are the choice."""

import pytest

from samestep.base import env
from samestep.cli import run as module
from samestep.cli.main import run_command

SERIAL = "import torch\nmodel = torch.nn.Linear(2, 1)\ntorch.optim.SGD(model.parameters(), lr=0.1)\n"
DDP = "import torch.distributed as dist\ndist.init_process_group()"
TASK = {
    "OMPI_COMM_WORLD_RANK": "0",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run ``samestep run --dry-run -n auto ... SCRIPT``; return its exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def command(*arguments, text=SERIAL, environment=None, gpus=0):
        (tmp_path / "train.py").write_text(text)
        monkeypatch.setattr(env, "snapshot", lambda: dict(environment or {}))
        monkeypatch.setattr(module, "accelerator_count", lambda: gpus)
        code = run_command(["run", "--dry-run", "-n", "auto", *arguments, "train.py", "--lr", "1"])
        return code, *capsys.readouterr()

    return command


@pytest.mark.parametrize(
    ("arguments", "changes", "named"),
    [
        (["--nnodes", "2", "--node-rank", "0"], {}, "--nnodes"),
        (["--threads", "2"], {}, "--threads"),
        (["--nproc-per-node", "2"], {}, "--nproc-per-node"),
        (["--sanitize"], {}, "--sanitize"),
        (["--explain"], {}, "--explain"),
        (["--mode", "native"], {}, "train.py"),
        ([], {"text": DDP}, "train.py"),
        ([], {"gpus": 2}, "2 GPUs"),
        ([], {"environment": TASK}, "openmpi"),
        ([], {"environment": {"SLURM_JOB_ID": "7"}}, "Slurm"),
    ],
)
def test_auto_is_refused_for_other_launches(run, arguments, changes, named):
    code, out, err = run(*arguments, **changes)

    assert (code, out) == (2, "")
    assert named in err


def test_the_runs_share_the_cores_and_have_the_flags_of_the_training(run, monkeypatch):
    monkeypatch.setattr(module, "cpu_share", lambda: type("Share", (), {"usable": 4}))

    code, out, _ = run("--short-calls", "split", "--device", "cpu", gpus=2)

    lines = out.splitlines()
    sizes = [int(line.split(" -n ")[1].split()[0]) for line in lines]
    assert (code, sorted(sizes)) == (0, [1, 1, 2, 4])
    for workers, line in zip(sizes, lines, strict=True):
        assert f"--threads={4 // workers} " in line or (workers == 1 and "--threads=1 " in line)
        assert {"--short-calls=split", "--device=cpu"} <= set(line.split())
        assert "--scratch=" in line
        assert line.endswith("train.py --lr 1")


def test_a_number_of_workers_that_is_no_number_is_refused(run, tmp_path, capsys):
    assert run_command(["run", "--dry-run", "-n", "many", str(tmp_path / "train.py")]) == 2
    assert "'many'" in capsys.readouterr().err
