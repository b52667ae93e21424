"""Manifests of Kubernetes jobs are valid by the published schemas, and give each pod its place."""

import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from samestep.base.errors import Error, UsageError
from samestep.base.polling import holds_within
from samestep.launchers.detect import detect
from samestep.submit.follow import follow
from samestep.submit.job_command import parse_command
from samestep.submit.kubernetes import (
    OPERATORS,
    FollowedKubernetesJob,
    KubernetesJob,
    manifest,
    service_name,
    submit,
)
from samestep.submit.shell import Answer
from samestep.submit.site_defaults import KubernetesSite
from support.manifests import documents, wrong

FULL = KubernetesSite(
    image="registry.example/torch:2",
    workdir="/data",
    claim="work",
    cpus_per_task=4,
    mem="64Gi",
    namespace="ml",
    secret="pods",
    fs_group=1000,
)


def job(*words, site=FULL, **changes):
    command = parse_command(list(words or ("train", "digits", "--epochs", "3")))
    sizes = {"name": "train", "nodes": 2, "per_node": 4, "gpus_per_node": 4}
    return KubernetesJob(command=command, site=site, **sizes | changes)


def containers(document):
    """Return the containers of each pod template in a document."""
    if isinstance(document, list):
        return [one for item in document for one in containers(item)]
    if not isinstance(document, dict):
        return []
    return [*document.get("containers", []), *(one for item in document.values() for one in containers(item))]


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("nodes", [1, 2, 64])
@pytest.mark.parametrize("site", [FULL, KubernetesSite(image="torch")], ids=["full", "least"])
def test_a_manifest_is_valid_by_the_published_schemas(operator, nodes, site):
    made = documents(manifest(job(operator=operator, nodes=nodes, site=site)))
    assert [wrong(document) for document in made] == [[] for _ in made]
    kinds = {"none": ["Service", "Job"] if nodes > 1 else ["Job"], "jobset": ["JobSet"]}
    assert [document["kind"] for document in made] == kinds.get(operator, ["PyTorchJob"])


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_schemas_find_a_misspelled_field_and_a_wrong_type(operator):
    (*_, made) = documents(manifest(job(operator=operator)))
    (container, *_) = containers(made)
    container["comand"] = container.pop("command")
    assert any("comand" in one for one in wrong(made))
    del container["comand"]
    container["env"][0]["value"] = 1
    assert any("value" in one for one in wrong(made))


def test_an_indexed_job_has_its_service_resources_mounts_and_secret():
    service, made = documents(manifest(job()))
    spec = made["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 2, 2)
    pod = spec["template"]["spec"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["metadata"]["name"] == pod["subdomain"] == "train"
    (container,) = pod["containers"]
    assert container["resources"] == {"limits": {"cpu": "16", "memory": "64Gi", "nvidia.com/gpu": "4"}}
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts == {"memory": "/dev/shm", "secret": "/run/samestep", "work": "/data"}
    assert container["workingDir"] == "/data"
    secret = next(volume["secret"] for volume in pod["volumes"] if volume["name"] == "secret")
    assert (secret["defaultMode"], pod["securityContext"]) == (0o440, {"fsGroup": 1000})


@pytest.mark.parametrize("operator", ["none", "jobset"])
def test_a_pod_detects_its_place_from_the_variables_of_the_manifest(operator):
    (*_, made) = documents(manifest(job(operator=operator)))
    (container,) = containers(made)
    variables = {one["name"]: one["value"] for one in container["env"]} | {"JOB_COMPLETION_INDEX": "1"}
    found = detect(variables)
    assert (found.launcher, found.place.rank, found.place.size, found.place.node) == ("kubernetes", 1, 2, 1)
    assert found.master == ({"none": "train-0.train", "jobset": "train-workers-0-0.train"}[operator], 29500)
    assert found.notes == ()


def test_a_rank_of_the_manifest_precedes_the_number_of_the_pod():
    own = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    place = detect({"JOB_COMPLETION_INDEX": "1", **own}).place
    assert (place.rank, place.local_rank, place.node, place.nodes) == (3, 1, 1, 2)


def test_a_pod_of_an_indexed_job_without_a_number_of_workers_is_a_single_process():
    assert detect({"JOB_COMPLETION_INDEX": "3"}).place.size == 1


@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1), max_size=6
    )
)
@example(["a\x85b", "\x7f", "\ufffe", "\u2028", "\ufeff"])
def test_kubernetes_passes_arguments_on_unchanged(arguments):
    made = documents(manifest(job("train", "digits", "--x", *arguments, per_node=1, gpus_per_node=0)))
    words = containers(made)[0]["command"]
    given_words = [word.replace("$$", "$") for word in words]  # as Kubernetes does
    assert given_words == ["python3", "-m", "samestep", "train", "digits", "--x", *arguments]
    assert not any("$(" in word.replace("$$", "") for word in words)


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "Train"},
        {"name": "7"},
        {"name": "t" * 43},
        {"operator": "mpi"},
        {"site": KubernetesSite()},
        {"nodes": 0},
        {"per_node": 8},
    ],
)
def test_a_job_that_cannot_be_created_is_refused(changes):
    with pytest.raises(UsageError):
        job(**changes)


@given(st.text())
def test_any_program_name_becomes_a_valid_service_name(text):
    job(name=service_name(text))


class Cluster:
    """A replacement of kubectl with given answers."""

    def __init__(self, *states, secret=True):
        self.states, self.secret, self.asked = list(states), secret, []

    def __call__(self, words):
        self.asked.append(words)
        if "secret" in words and not self.secret:
            return Answer(1, err='Error from server (NotFound): secrets "pods" not found')
        if "create" in words or "secret" in words:
            return Answer(0)
        if "pods" in words:
            return Answer(0, json.dumps({"items": self.states[0][1]}))
        return Answer(0, json.dumps({"status": {"conditions": self.states[0][0]}}))


def pod(phase, *, waiting="", code=None, index="1"):
    state = {"waiting": {"reason": waiting}} if waiting else {}
    if code is not None:
        state = {"terminated": {"exitCode": code}}
    labels = {"batch.kubernetes.io/job-completion-index": index}
    status = {"phase": phase, "containerStatuses": [{"state": state}]}
    return {"metadata": {"name": f"train-{index}", "labels": labels}, "status": status}


def test_a_job_is_created_in_its_namespace_and_only_with_its_secret(tmp_path):
    cluster = Cluster()
    submit(job(), tmp_path / "x.yaml", ask=cluster)
    assert cluster.asked[-1] == ["kubectl", "--namespace", "ml", "create", "-f", str(tmp_path / "x.yaml")]
    with pytest.raises(UsageError, match="kubectl create secret generic pods"):
        submit(job(), tmp_path / "x.yaml", ask=Cluster(secret=False))


@pytest.mark.parametrize(
    ("condition", "codes", "exit_code"),
    [("Complete", [0, 0], 0), ("Completed", [0, 0], 0), ("Failed", [0, 3], 3), ("Failed", [], 1)],
)
def test_a_job_is_followed_to_its_end(tmp_path, condition, codes, exit_code):
    def ended(at):
        return [{"type": condition, "status": at}]

    pods = [pod("Failed" if code else "Succeeded", code=code) for code in codes]
    states = [
        ([], []),
        ([], [pod("Pending", waiting="ImagePullBackOff")]),
        (ended("False"), [pod("Running")] * 2),
        (ended("True"), pods),
    ]
    cluster, sentences, clock = Cluster(*states), [], iter(range(0, 10**6, 100))

    def wait(_):
        del cluster.states[0]

    followed = FollowedKubernetesJob(job(), tmp_path / "x.yaml", ask=cluster)
    code = follow(followed, log=sentences.append, show=print, pause=wait, now=lambda: next(clock))

    assert code == exit_code
    assert len(sentences) == len(states)
    assert "ImagePullBackOff" in sentences[1]
    assert "2 running" in sentences[2]


def test_no_process_copies_the_output_of_a_job_that_is_no_longer_followed(tmp_path, monkeypatch):
    kubectl = tmp_path / "kubectl"
    kubectl.write_text("#!/bin/sh\necho $$\nexec sleep 60\n")
    kubectl.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    followed = FollowedKubernetesJob(
        job(), tmp_path / "x.yaml", ask=Cluster(([], [pod("Running", index="0")]))
    )
    log = followed.status().log
    assert holds_within(log.read_text, 10)
    process = Path("/proc", log.read_text().strip())
    assert process.exists()

    followed.close()

    assert not process.exists()


def test_a_job_is_followed_on_if_the_cluster_does_not_answer(tmp_path):
    followed = FollowedKubernetesJob(job(), tmp_path / "x.yaml", ask=lambda _: Answer(1, err="refused"))
    status = followed.status()
    assert (status.exit_code, status.is_known) == (None, False)


def test_a_job_that_was_deleted_is_followed_no_more(tmp_path):
    deleted = Answer(1, err='Error from server (NotFound): jobs.batch "x" not found')
    followed = FollowedKubernetesJob(job(), tmp_path / "x.yaml", ask=lambda _: deleted)
    with pytest.raises(Error, match="deleted"):
        followed.status()


def test_the_output_of_a_pod_is_copied_on_after_the_copying_has_ended(tmp_path, monkeypatch):
    kubectl = tmp_path / "kubectl"
    kubectl.write_text("#!/bin/sh\necho $*\n")
    kubectl.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    pods = [pod("Running", index="0")]
    followed = FollowedKubernetesJob(job(), tmp_path / "x.yaml", ask=Cluster(([], pods)))
    log = followed.status().log

    assert holds_within(lambda: followed.status() and log.read_text().count("\n") > 1, 10)

    first, second, *_ = log.read_text().splitlines()
    assert "--since-time" not in first
    assert "--since-time" in second
    pods[:] = [pod("Succeeded", index="0")]
    followed.close()


def test_lines_that_kubectl_logs_are_no_part_of_its_reason(tmp_path):
    logged = 'E1129 16:05:03.1 31192 memcache.go:265] "Unhandled Error"\nThe connection was refused\n'
    with pytest.raises(UsageError, match=r"cannot submit the job: The connection was refused;"):
        submit(job(), tmp_path / "x.yaml", ask=lambda _: Answer(1, err=logged))
