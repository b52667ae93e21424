"""Native scripts whose ranks train independently are ended in their first steps, and the line is reported."""

import pytest

from support import silent_copy_scripts
from support.forked_commands import samestep

SEPARATE = {
    "no group": silent_copy_scripts.NO_GROUP,
    "groups of one": silent_copy_scripts.GROUPS_OF_ONE,
    "a variable with another meaning": "dist.init_process_group('gloo', 'tcp://127.0.0.1:0', rank=0, "
    "world_size=int(os.environ.get('SLURM_GPUS', 1)))",
}
TOGETHER = {
    "Slurm": silent_copy_scripts.BY_SLURM,
    "Slurm's nodes": "dist.init_process_group('gloo', 'tcp://' + os.environ['SLURM_JOB_NODELIST'] + ':' + "
    "os.environ['MASTER_PORT'], rank=int(os.environ['SLURM_PROCID']), world_size=2)",
    "Open MPI": silent_copy_scripts.BY_OPEN_MPI,
    "MPICH": "dist.init_process_group('gloo', rank=int(os.environ['PMI_RANK']), "
    "world_size=int(os.environ['PMI_SIZE']))",
}


def run(folder, group, *flags):
    script = folder / "train.py"
    script.write_text(silent_copy_scripts.script(group))
    return samestep("run", "-n", 2, *flags, script)


@pytest.mark.parametrize("group", SEPARATE.values(), ids=SEPARATE)
def test_ranks_that_train_independently_are_ended_in_their_first_steps(tmp_path, group):
    ended = run(tmp_path, group)

    assert ended.code == 2
    assert "step" not in ended.out
    assert "train.py:12" in ended.err
    assert "Traceback" not in ended.err


def test_the_variable_that_the_script_reads_is_named(tmp_path):
    ended = run(tmp_path, SEPARATE["a variable with another meaning"])

    assert "train.py:4 reads SLURM_GPUS" in ended.err


def test_intended_copies_run_in_native_mode(tmp_path):
    ended = run(tmp_path, SEPARATE["no group"], "--mode", "native")

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


def test_a_variable_that_is_read_only_if_it_is_set_refuses_nothing(tmp_path):
    guarded = "name = os.environ['SLURM_JOB_NAME'] if 'SLURM_JOB_NAME' in os.environ else ''"
    ended = run(tmp_path, f"{guarded}\ndist.init_process_group('gloo')")

    assert (ended.code, ended.out.splitlines()[-1]) == (0, "step 99"), ended.err


def test_an_error_that_the_script_catches_ends_the_run(tmp_path):
    script = tmp_path / "train.py"
    text = silent_copy_scripts.script(silent_copy_scripts.NO_GROUP)
    caught = "    try: optimizer.step()\n    except ValueError: pass"
    script.write_text(text.replace("    optimizer.step()", caught))

    assert samestep("run", "-n", 2, script).code == 2
