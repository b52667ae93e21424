"""The jobs of a study have the resources and the runs of their number of workers."""

import pytest

from samestep.base.errors import UsageError
from samestep.scaling.sweep.slurm_runs import jobs
from samestep.scaling.sweep.trial import Trial
from samestep.submit.site_defaults import SlurmSite


def trial(number, workers, nodes=1, **changes):
    return Trial(
        number=number,
        workers=workers,
        nodes=nodes,
        modes=("strong",),
        command=("run", f"--clock=/study/trials/{number}/clock", "train.py"),
        **{"folder": f"/study/trials/{number}"} | changes,
    )


def jobs_of(trials, folder, **changes):
    return jobs(trials, folder, name="train", site=SlurmSite(partition="gpu"), python="python", **changes)


def test_each_number_of_workers_is_a_job_with_its_runs_in_the_order_of_the_study(tmp_path):
    trials = [trial(0, 4, 2), trial(1, 1), trial(2, 1), trial(3, 4, 2)]

    small, large = jobs_of(trials, tmp_path)

    assert (small.request.nodes, small.request.per_node) == (1, 1)
    assert (large.request.nodes, large.request.per_node) == (2, 2)
    assert [one.number for one in large.trials] == [0, 3]
    assert large.request.output == str(tmp_path / "jobs" / "4-%j.log")
    lines = large.script().splitlines()
    assert "# Written by samestep scale; sbatch takes this file as it is." in lines
    assert "#SBATCH --job-name=train-4" in lines
    assert "#SBATCH --partition=gpu" in lines
    assert [line for line in lines if line.startswith("recorded /")] == [
        "recorded /study/trials/0 \\",
        "recorded /study/trials/3 \\",
    ]
    assert "    python -m samestep run --clock=/study/trials/3/clock train.py" in lines


def test_jobs_cannot_compare_launchers(tmp_path):
    assert jobs_of([trial(0, 1, launcher="srun")], tmp_path)
    with pytest.raises(UsageError, match="--compare launcher=torchrun "):
        jobs_of([trial(0, 1), trial(1, 1, launcher="torchrun")], tmp_path)


def test_a_job_has_as_many_gpus_as_workers(tmp_path):
    small, large = jobs_of([trial(0, 1), trial(1, 8, 2)], tmp_path, gpus=True)

    assert "#SBATCH --gpus-per-node=1" in small.script().splitlines()
    assert "#SBATCH --gpus-per-node=4" in large.script().splitlines()


def test_one_worker_with_the_cores_of_several_is_a_job_with_their_processors(tmp_path):
    trials = [trial(0, 1), trial(1, 1, cores_of=4), trial(2, 4)]
    made = jobs(trials, tmp_path, name="train", site=SlurmSite(cpus_per_task=2), python="python")

    assert [[one.number for one in job.trials] for job in made] == [[0], [1], [2]]
    assert len({job.request.output for job in made}) == 3
    requested = [[line for line in job.script().splitlines() if "#SBATCH --cpus" in line] for job in made]
    assert requested == [[f"#SBATCH --cpus-per-task={count}"] for count in (2, 8, 2)]
