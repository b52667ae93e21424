from samestep.base.place import Place
from samestep.launch.local.local_backend import Round, place_variables, worker_variables
from samestep.launchers.detect import detect

PLACE = Place(rank=3, size=4, local_rank=1, local_size=2, node=1, nodes=2)
ROUND = Round(run_id="abc", restarts=1, max_restarts=2, master=("host", 1234))


def test_workers_get_the_variables_of_torchrun():
    assert worker_variables(PLACE, ROUND) == {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_NAME": "default",
        "ROLE_RANK": "3",
        "ROLE_WORLD_SIZE": "4",
        "MASTER_ADDR": "host",
        "MASTER_PORT": "1234",
        "TORCHELASTIC_RUN_ID": "abc",
        "SAMESTEP_RUN_ID": "abc",
        "TORCHELASTIC_RESTART_COUNT": "1",
        "TORCHELASTIC_MAX_RESTARTS": "2",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def test_a_worker_detects_its_place_from_its_variables():
    found = detect(worker_variables(PLACE, ROUND))

    assert (found.place.rank, found.place.size, found.place.local_rank) == (3, 4, 1)
    assert found.master == ("host", 1234)


def test_a_joined_task_gets_the_variables_of_torchrun_without_those_of_its_agent():
    variables = place_variables(PLACE, ("host", 1))

    assert variables["RANK"] == "3"
    assert variables["MASTER_ADDR"] == "host"
    assert not any(name.startswith("TORCHELASTIC") for name in variables)
    assert "MASTER_ADDR" not in place_variables(PLACE, None)
