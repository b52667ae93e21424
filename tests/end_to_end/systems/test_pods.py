"""The commands and variables of a Kubernetes manifest, started on nodes in the place of pods.

The names of the pods' hosts are the cluster's part: the address of the first pod is that of the first node.
"""

import sys
from pathlib import Path

import pytest
import yaml

from samestep.submit.job_command import parse_command
from samestep.submit.kubernetes import KubernetesJob, manifest
from samestep.submit.site_defaults import KubernetesSite
from support.commands import finish
from support.launches import PLACE, placed, places
from support.tiers import long_param

SERIAL = Path(__file__).parents[3] / "examples" / "serial.py"
OPERATOR_SETS = {"WORLD_SIZE": "2", "MASTER_PORT": "23456", "PET_NNODES": "2", "PET_NPROC_PER_NODE": "1"}
"""Return the variables that Kubeflow's operator sets in each of two pods, besides the number of the pod."""


def in_pods(nodes, tmp_path, *, operator, per_node, words):
    """Run the job of a manifest on two nodes, and return how the pods ended."""
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(range(32)))
    secret.chmod(0o400)
    job = KubernetesJob(
        command=parse_command(["run", *map(str, words)]),
        name="pods",
        nodes=2,
        per_node=per_node,
        operator=operator,
        site=KubernetesSite(image="none"),
    )
    (*_, document) = yaml.safe_load_all(manifest(job))
    spec = document["spec"]
    if operator == "pytorchjob":
        template = spec["pytorchReplicaSpecs"]["Worker"]["template"]
    else:
        template = spec["template"]
    (container,) = template["spec"]["containers"]
    variables = {one["name"]: one["value"] for one in container["env"]}
    variables |= {"MASTER_ADDR": "node0", "SAMESTEP_SECRET_FILE": str(secret)}
    started = []
    for index in range(2):
        own = {"JOB_COMPLETION_INDEX": str(index)}
        if operator == "pytorchjob":
            own = {**OPERATOR_SETS, "RANK": str(index), "PET_NODE_RANK": str(index)}
        python, *command = (word.replace("$$", "$") for word in container["command"])
        assert python == "python3"
        started.append(nodes.start(f"node{index}", sys.executable, *command, **variables, **own))
    return [finish(one, 110) for one in started]


@pytest.mark.parametrize("operator", ["none", "pytorchjob"])
@pytest.mark.parametrize("per_node", [long_param(1), 2])
def test_the_workers_of_all_pods_have_one_rendezvous_address(nodes, tmp_path, operator, per_node):
    both = in_pods(nodes, tmp_path, operator=operator, per_node=per_node, words=PLACE)

    assert [done.code for done in both] == [0, 0], both[0].err + both[1].err
    found, points = places("".join(done.out for done in both))
    assert found == placed(*["node0"] * per_node, *["node1"] * per_node)
    assert {point.partition(":")[0] for point in points} == {"node0"}
    assert len(points) == 1


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_serial_script_trains_in_two_pods_as_in_one_process(nodes, tmp_path):
    alone = nodes.run("node0", sys.executable, SERIAL)
    both = in_pods(nodes, tmp_path, operator="none", per_node=1, words=[SERIAL])

    assert [done.code for done in both] == [0, 0], both[0].err + both[1].err
    assert both[0].out.splitlines() == alone.out.splitlines()
    assert both[1].out == ""
