"""A process that is one of several and has lost its rank is refused; MPI ranks find the host of rank 0."""

import socket
import threading

import pytest

from samestep.base.errors import DetectionError
from samestep.cli.main import run_command
from samestep.doctor.checks import Options, run_checks
from samestep.launchers import detect_task as module
from samestep.launchers.detect import detect
from samestep.launchers.detect_task import (
    Parent,
    detect_task,
    open_mpi_first,
    refuse_duplicates,
    refuse_pods,
    runs_command,
    with_main_host,
)
from samestep.ranks.rendezvous.endpoint import choose
from samestep.ranks.world import join as joining
from support.recordings import recording


def without(name, *variables):
    return {key: value for key, value in recording(name).environment.items() if key not in variables}


@pytest.mark.parametrize(
    ("environment", "lacking", "launcher"),
    [
        (without("slurm_step_2x2_rank3", "SLURM_PROCID"), "SLURM_PROCID", "slurm"),
        (without("slurm_step_2x2_rank3", "SLURM_STEP_ID"), "SLURM_STEP_ID", "slurm"),
        (
            without("openmpi_2x2_rank3", "OMPI_COMM_WORLD_RANK", "PMIX_RANK"),
            "OMPI_COMM_WORLD_RANK",
            "openmpi",
        ),
        (without("mpich_2x2_rank3", "PMI_RANK"), "PMI_RANK", "mpich"),
        ({"SLURM_PROCID": "2"}, "SLURM_STEP_ID", "slurm"),
        ({"FLUX_JOB_SIZE": "4"}, "FLUX_TASK_RANK", "flux"),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, "SLURM_STEP_ID", "slurm"),
        ({"SLURM_PROCID": "0", "SLURM_JOB_ID": "5"}, "SLURM_STEP_ID", "slurm"),
        (
            {**recording("slurm_sbatch_script").environment, "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1"},
            "SLURM_STEP_ID",
            "slurm",
        ),
    ],
)
def test_incomplete_variables_of_a_launcher_are_refused(environment, lacking, launcher):
    with pytest.raises(DetectionError, match=f"{lacking} is not set.* {launcher}.*its rank is unknown"):
        detect(environment)


@pytest.mark.parametrize(
    "environment",
    [
        {"MV2_COMM_WORLD_RANK": "0", "MV2_COMM_WORLD_SIZE": "4"},
        {"JSM_NAMESPACE_RANK": "3", "JSM_NAMESPACE_SIZE": "4"},
        {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "4"},
        {"PALS_RANKID": "0", "PALS_LOCAL_RANKID": "0"},
    ],
)
def test_an_unsupported_launcher_is_refused(environment):
    with pytest.raises(DetectionError, match="a launcher that samestep does not support started"):
        detect(environment)


@pytest.mark.parametrize(
    "environment",
    [
        {"MV2_COMM_WORLD_RANK": "0", "MV2_COMM_WORLD_SIZE": "1"},
        {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "1"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "1"},
        recording("slurm_sbatch_script").environment,
        recording("slurm_interactive_step").environment,
        {"OMPI_COMM_WORLD_SIZE": "1"},
    ],
)
def test_a_process_without_peers_is_a_single_process(environment):
    assert detect(environment).place.size == 1


@pytest.mark.parametrize(
    "parents",
    [
        [],
        [Parent(name="slurmstepd", pid=7, duplicates=1)],
        [Parent(name="bash", pid=7, duplicates=3)],
    ],
)
def test_a_process_without_duplicates_below_a_launcher_is_accepted(parents):
    refuse_duplicates({}, lambda: parents)


def test_duplicate_processes_below_a_launcher_are_refused():
    parents = [Parent(name="bash", pid=8, duplicates=1), Parent(name="mpirun.openmpi", pid=7, duplicates=4)]
    with pytest.raises(DetectionError, match=r"mpirun\.openmpi \(process 7\) started 4 processes like this"):
        refuse_duplicates({}, lambda: parents)


@pytest.mark.parametrize(
    ("seen", "alike"),
    [
        ([["python", "train.py"]], True),
        ([["env", "-i", "PATH=/bin", "python", "train.py"]], True),  # before its exec
        ([[], [], ["python", "train.py"]], True),  # during its exec
        ([["python", "other.py"]], False),
        ([["sh"]], False),
    ],
)
def test_processes_that_run_or_are_about_to_run_the_same_command_are_duplicates(seen, alike):
    commands = iter(seen)
    assert runs_command(lambda: next(commands), ["python", "train.py"]) == alike


def test_a_process_without_a_command_is_no_duplicate():
    assert not runs_command(list, ["python", "train.py"], patience_s=0.0)


def test_a_job_script_is_accepted_below_a_parent_with_duplicates():
    environment = recording("slurm_interactive_step").environment
    refuse_duplicates(environment, lambda: [Parent(name="slurmstepd", pid=7, duplicates=2)])


def test_each_parent_of_this_process_has_at_least_one_child_of_its_command():
    assert all(parent.duplicates >= 1 for parent in module._parents())


def without_master(name, **changes):
    environment = {k: v for k, v in recording(name).environment.items() if not k.startswith("MASTER_")}
    return environment | changes


@pytest.mark.parametrize(
    ("hosts", "nodes", "first"),
    [
        ("login,node[1:0-1]@0(3)", 2, "node0"),
        ("node[1:0-1]@0(2)", 2, "node0"),
        ("gpu-[2:8-9,12]-ib@0(3)", 3, "gpu-08-ib"),
        ("login,a,b@0(3)", 2, "a"),
        ("a,b,c,d", 2, None),
        ("", 0, None),
    ],
)
def test_the_first_host_is_read_from_the_list_of_open_mpi(hosts, nodes, first):
    env = {"OMPI_MCA_orte_node_regex": hosts, "OMPI_MCA_orte_num_nodes": str(nodes)}
    assert open_mpi_first(env) == first


def test_the_rendezvous_of_open_mpi_is_on_the_first_host():
    environment = without_master("openmpi_2x2_rank3")
    assert choose(with_main_host(detect(environment), environment))[0] == "node0"


def test_open_mpi_on_a_part_of_an_allocation_has_its_rendezvous_on_its_own_first_host():
    environment = without_master("openmpi_2x2_rank3", SLURM_JOB_NODELIST="first,node[0-1]")
    assert choose(with_main_host(detect(environment), environment))[0] == "node0"


def test_a_known_or_unneeded_host_of_rank_0_is_not_requested():
    for name in ("openmpi_2x2_rank3", "mpich_one_host_rank3", "slurm_step_2x2_rank3", "single"):
        environment = recording(name).environment
        assert with_main_host(detect(environment), environment) == detect(environment)


class Hydra(threading.Thread):
    """Answers one rank as MPICH's process manager does; `others` has the values that other ranks have put."""

    def __init__(self, others):
        super().__init__()
        self.values, self.commands = dict(others), []
        ours, self.theirs = socket.socketpair()
        self._stream = ours.makefile("rw")
        ours.close()

    def run(self):
        with self._stream:
            for line in self._stream:
                fields = dict(word.split("=", 1) for word in line.split())
                self.commands.append(fields["cmd"])
                self._stream.write(self._answer(fields) + "\n")
                self._stream.flush()

    def _answer(self, asked):
        if asked["cmd"] == "put":
            self.values[asked["key"]] = asked["value"]
        return {
            "init": "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0",
            "get_my_kvsname": "cmd=my_kvsname kvsname=kvs_17_0",
            "put": "cmd=put_result rc=0 msg=success",
            "barrier_in": "cmd=barrier_out",
            "get": f"cmd=get_result rc=0 msg=success value={self.values.get(asked.get('key'))}",
            "finalize": "cmd=finalize_ack",
        }[asked["cmd"]]


@pytest.fixture
def hydra():
    module._exchanged.cache_clear()
    started = []

    def start(**others):
        manager = Hydra(others)
        manager.start()
        started.append(manager)
        return manager

    yield start
    for manager in started:
        manager.theirs.close()
        manager.join()


def test_a_rank_of_mpich_gets_the_host_of_rank_0_from_hydra_once(hydra):
    manager = hydra(samestep="node7")
    environment = without_master("mpich_2x2_rank3", PMI_FD=str(manager.theirs.fileno()))

    for _ in range(2):
        found = with_main_host(detect(environment), environment)
        assert (found.master_addr, found.job) == ("node7", "kvs_17_0")
    assert manager.commands == ["init", "get_my_kvsname", "barrier_in", "get", "finalize"]


def test_rank_0_of_mpich_puts_its_host(hydra):
    manager = hydra()
    environment = without_master(
        "mpich_2x2_rank3", PMI_RANK="0", MPI_LOCALRANKID="0", PMI_FD=str(manager.theirs.fileno())
    )

    assert with_main_host(detect(environment), environment).master_addr == socket.gethostname()


def test_a_rank_of_flux_gets_the_host_of_rank_0_in_the_same_way_and_keeps_its_job(hydra):
    manager = hydra(samestep="node7")
    environment = without_master("flux_2x2_rank3", PMI_FD=str(manager.theirs.fileno()))

    found = with_main_host(detect(environment), environment)
    assert (found.master_addr, found.job) == ("node7", "f2bLQ3kXy")


@pytest.mark.parametrize("descriptor", ["9999", "0"])
def test_a_descriptor_that_is_not_hydras_is_ignored(descriptor):
    module._exchanged.cache_clear()
    environment = without_master("mpich_2x2_rank3", PMI_FD=descriptor)
    assert with_main_host(detect(environment), environment) == detect(environment)


TRAIN_JOB = {
    "PET_NNODES": "2",
    "PET_NPROC_PER_NODE": "2",
    "PET_NODE_RANK": "1",
    "PET_MASTER_ADDR": "job-0",
    "PET_MASTER_PORT": "29500",
}
PYTORCH_JOB = {
    **recording("environment_pods_rank2").environment,
    "RANK": "1",
    "WORLD_SIZE": "4",
    "PET_NPROC_PER_NODE": "2",
    "PET_NNODES": "2",
    "PET_NODE_RANK": "1",
}


@pytest.mark.parametrize(
    "environment",
    [
        TRAIN_JOB,
        {"PET_NNODES": "1:4", "PET_RDZV_ENDPOINT": "job-0:29400"},
        {"PET_NODE_RANK": "1"},
        {"PET_NNODES": "2", "RANK": "0", "WORLD_SIZE": "1"},
    ],
)
def test_one_of_several_pods_is_refused(environment):
    with pytest.raises(DetectionError, match=r"PET_.*one of several pods.*torchrun --no-python"):
        refuse_pods(environment, detect(environment))


def test_the_number_of_a_pod_is_not_used_as_a_rank():
    with pytest.raises(
        DetectionError, match=r"RANK=1 is the number of this pod, not of one of its 2 workers"
    ):
        refuse_pods(PYTORCH_JOB, detect(PYTORCH_JOB))


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "4", "PET_NODE_RANK": "0"},
        {**TRAIN_JOB, **recording("torchrun_one_host_rank1").environment},
        {**TRAIN_JOB, **recording("slurm_step_2x2_rank3").environment},
        {**PYTORCH_JOB, "PET_NPROC_PER_NODE": "1"},
        {**PYTORCH_JOB, "PET_NPROC_PER_NODE": "auto"},
        {**PYTORCH_JOB, "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"},
    ],
)
def test_complete_settings_of_torchrun_or_another_launcher_are_accepted(environment):
    refuse_pods(environment, detect(environment))


def test_a_given_number_of_nodes_is_accepted():
    assert detect_task(TRAIN_JOB, nodes=2).place.size == 1
    with pytest.raises(DetectionError):
        detect_task(TRAIN_JOB)


def test_run_doctor_and_join_refuse_one_of_several_pods(monkeypatch, tmp_path, capsys):
    script = tmp_path / "x.py"
    script.write_text("print(1)")
    monkeypatch.setattr("samestep.base.env.snapshot", lambda: dict(TRAIN_JOB))
    assert run_command(["run", "--dry-run", str(script)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "one of several pods" in line
    pod = ["--nnodes", "2", "--node-rank", "1", "--nproc-per-node", "2", "--master-addr", "job-0"]
    assert run_command(["run", *pod, "--dry-run", str(script)]) == 0
    with pytest.raises(DetectionError):
        run_checks(TRAIN_JOB, Options(devices=False), checks=())
    with pytest.raises(DetectionError), joining.join():
        pass
