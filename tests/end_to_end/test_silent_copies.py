"""Native scripts whose ranks train apart are ended in their first steps, and named."""

import pytest

from support import apart
from support.forked_commands import samestep

APART = {
    "no group": apart.NO_GROUP,
    "groups of one": apart.GROUPS_OF_ONE,
    "a variable with another meaning": "dist.init_process_group('gloo', 'tcp://127.0.0.1:0', rank=0, "
    "world_size=int(os.environ.get('SLURM_GPUS', 1)))",
}
TOGETHER = {
    "Slurm": apart.BY_SLURM,
    "Slurm's nodes": "dist.init_process_group('gloo', 'tcp://' + os.environ['SLURM_JOB_NODELIST'] + ':' + "
    "os.environ['MASTER_PORT'], rank=int(os.environ['SLURM_PROCID']), world_size=2)",
    "Open MPI": apart.BY_OPEN_MPI,
    "MPICH": "dist.init_process_group('gloo', rank=int(os.environ['PMI_RANK']), "
    "world_size=int(os.environ['PMI_SIZE']))",
}


def run(folder, group, *flags):
    script = folder / "train.py"
    script.write_text(apart.script(group))
    return samestep("run", "-n", 2, *flags, script)


@pytest.mark.parametrize("group", APART.values(), ids=APART)
def test_ranks_that_train_apart_are_ended_in_their_first_steps(tmp_path, group):
    ended = run(tmp_path, group)

    assert ended.code == 2
    assert "step" not in ended.out
    assert "train.py:12" in ended.err
    assert "Traceback" not in ended.err


def test_the_variable_that_the_script_reads_is_named(tmp_path):
    ended = run(tmp_path, APART["a variable with another meaning"])

    assert "train.py:4 reads SLURM_GPUS" in ended.err


def test_copies_that_are_meant_run_natively(tmp_path):
    ended = run(tmp_path, APART["no group"], "--mode", "native")

    assert (ended.code, ended.out.splitlines()[-1]) == (0, "step 99")


@pytest.mark.parametrize("group", TOGETHER.values(), ids=TOGETHER)
def test_a_script_that_reads_its_launchers_variables_gets_them(tmp_path, group):
    ended = run(tmp_path, group)

    assert (ended.code, ended.out.splitlines()[-1]) == (0, "step 99"), ended.err


def test_a_script_that_needs_an_unknown_variable_is_refused_in_one_line(tmp_path):
    ended = run(tmp_path, "dist.init_process_group('gloo', rank=int(os.environ['SLURM_RESTART_COUNT']))")

    assert ended.code == 2
    assert "train.py:4 reads SLURM_RESTART_COUNT" in ended.err
    assert "Traceback" not in ended.err


def test_a_variable_that_is_read_if_it_is_there_refuses_nothing(tmp_path):
    guarded = "name = os.environ['SLURM_JOB_NAME'] if 'SLURM_JOB_NAME' in os.environ else ''"
    ended = run(tmp_path, f"{guarded}\ndist.init_process_group('gloo')")

    assert (ended.code, ended.out.splitlines()[-1]) == (0, "step 99"), ended.err


def test_an_error_that_the_script_catches_ends_the_run_all_the_same(tmp_path):
    script = tmp_path / "train.py"
    text = apart.script(apart.NO_GROUP)
    caught = "    try: optimizer.step()\n    except ValueError: pass"
    script.write_text(text.replace("    optimizer.step()", caught))

    assert samestep("run", "-n", 2, script).code == 2
