"""Describes Kubernetes jobs, writes and submits their manifests, and reads the state of their pods.

Each pod is a node: samestep is started once in it, and forks its workers if there are several in a pod. The
pods are an Indexed Job with a headless Service, or the custom resource of an operator, which must be
installed in the cluster::

    operator = none         Job and Service     the pod's number is in JOB_COMPLETION_INDEX
    operator = jobset       JobSet              the same; it creates the Service itself
    operator = pytorchjob   PyTorchJob          Kubeflow's operator sets RANK, WORLD_SIZE and MASTER_ADDR
"""

import json
import re
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

from samestep.base.env import SECRET_FILE
from samestep.base.errors import Error, UsageError
from samestep.base.units import counted
from samestep.submit.follow import JobStatus
from samestep.submit.job_command import JobCommand, NodeSizes
from samestep.submit.shell import Ask, comment, run_command, slug
from samestep.submit.site_defaults import KubernetesSite

Document: TypeAlias = dict[str, Any]
OPERATORS = ("none", "jobset", "pytorchjob")
_PORT = 29500  # the default of torch; each pod has its own ports
_SECRET_FOLDER = "/run/samestep"  # noqa: S105 - a path
_SECRET_MODE = 0o440  # the mounted file's group is --fs-group, or root's
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,40}[a-z0-9])?")
"""A name of a Service, short enough that those of its pods are names of hosts."""
_PLAIN = re.compile(r"-{0,2}[A-Za-z_/]([\w./:-]*[\w/])?", re.ASCII)
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
"""Characters that JSON contains as they are, and that YAML refuses or takes for line breaks."""
_YAML_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesJob(NodeSizes):
    """A job of pods that each run the same command."""

    command: JobCommand
    name: str  # of the job and its Service
    operator: str = "none"  # which kind of resource is written; see `OPERATORS`
    site: KubernetesSite

    def __post_init__(self) -> None:
        if self.operator not in OPERATORS:
            raise UsageError(f"--operator {self.operator!r} is not one of {', '.join(OPERATORS)}.")
        if not _NAME.fullmatch(self.name):
            raise UsageError(
                f"{self.name!r} is no name of a Kubernetes service; give --job-name with at most 42 small "
                "letters, digits and dashes, and a letter first."
            )
        if not self.site.image:
            raise UsageError("no image is given; give --image IMAGE, with a Python that has samestep.")
        super(KubernetesJob, self).__post_init__()  # with slots=True, super() without arguments fails

    @property
    def resource(self) -> str:
        """The resource that has the state of the job, as kubectl names it."""
        return f"{'job' if self.operator == 'none' else self.operator}/{self.name}"

    @property
    def pods(self) -> str:
        """The selector of the job's pods."""
        labels = {
            "none": "batch.kubernetes.io/job-name",
            "jobset": "jobset.sigs.k8s.io/jobset-name",
            "pytorchjob": "training.kubeflow.org/job-name",
        }
        return f"{labels[self.operator]}={self.name}"


def service_name(name: str) -> str:
    """Return `name` as that of a Service.

    >>> service_name("My_training.v2"), service_name("7b")
    ('my-training-v2', 'job-7b')
    """
    text = re.sub(r"[^a-z0-9]+", "-", slug(name).lower()).strip("-")
    return (text if text[:1].isalpha() else f"job-{text}")[:42].strip("-")


def manifest(job: KubernetesJob) -> str:
    """Return the manifest of `job`, which ``kubectl create -f`` reads; pure.

    Raises:
        UsageError: an argument is not text.
    """
    each = ", with a GPU each" if job.per_node == job.gpus_per_node else ""
    head = [
        comment(f"{job.name}: {counted(job.workers, 'worker')} in {counted(job.nodes, 'pod')}{each}."),
        comment("Written by samestep submit kubernetes; kubectl create -f takes this file as it is."),
    ]
    if job.nodes > 1:
        head += [
            comment(f"The pods authenticate each other by the Secret {job.site.secret}, created once by"),
            comment(secret_command(job.site.secret)),
        ]
    try:
        texts = ["\n".join(_yaml(document)) for document in _documents(job)]
        "".join(texts).encode()
    except UnicodeEncodeError:
        raise UsageError("an argument is not UTF-8, which a manifest must be; rename the file.") from None
    return "\n".join(head) + "\n" + "\n---\n".join(texts) + "\n"


def secret_command(name: str) -> str:
    """Return the command that creates a Secret."""
    return f"head -c 32 /dev/urandom | kubectl create secret generic {name} --from-file=secret=/dev/stdin"


def _documents(job: KubernetesJob) -> list[Document]:
    if job.operator == "pytorchjob":
        return [_pytorch_job(job)]
    if job.operator == "jobset":
        return [_job_set(job)]
    service: Document = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(job),
        "spec": {
            "clusterIP": "None",  # pods get names; nothing is balanced
            "publishNotReadyAddresses": True,
            "selector": {"batch.kubernetes.io/job-name": job.name},
        },
    }
    indexed = {"apiVersion": "batch/v1", "kind": "Job", "metadata": _metadata(job), "spec": _indexed(job)}
    return [service, indexed] if job.nodes > 1 else [indexed]


def _job_set(job: KubernetesJob) -> Document:
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": _metadata(job),
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "replicatedJobs": [{"name": "workers", "replicas": 1, "template": {"spec": _indexed(job)}}],
        },
    }


def _pytorch_job(job: KubernetesJob) -> Document:
    def replicas(count: int) -> Document:
        return {"replicas": count, "restartPolicy": "Never", "template": _template(job)}

    roles = {"Master": replicas(1)}
    if job.nodes > 1:
        roles["Worker"] = replicas(job.nodes - 1)
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": _metadata(job),
        "spec": {
            "nprocPerNode": "1",  # RANK is the number of the pod; samestep starts its workers
            "runPolicy": {"cleanPodPolicy": "None", "backoffLimit": 0},
            "pytorchReplicaSpecs": roles,
        },
    }


def _indexed(job: KubernetesJob) -> Document:
    template = _template(job)
    if job.operator == "none" and job.nodes > 1:
        template["spec"] = {"subdomain": job.name, **template["spec"]}  # gives each pod a name: NAME-0.NAME
    return {
        "completionMode": "Indexed",
        "completions": job.nodes,
        "parallelism": job.nodes,
        "backoffLimit": 0,  # a failed pod ends the others
        "template": template,
    }


def _template(job: KubernetesJob) -> Document:
    site = job.site
    volumes, mounts = _volumes(job)
    limits = {
        "cpu": "" if site.cpus_per_task is None else str(site.cpus_per_task * job.per_node),
        "memory": site.mem,
        site.gpu_resource: str(job.gpus_per_node or ""),
    }
    limits = {name: amount for name, amount in limits.items() if amount}
    words = job.command.plain_words(job.workers if job.per_node > 1 else None)
    container: Document = {
        "name": "pytorch",  # PyTorchJob requires this name
        "image": site.image,
        "command": [_unexpanded(word) for word in ("python3", "-m", "samestep", *words)],
        "env": [{"name": name, "value": value} for name, value in _variables(job).items()],
    }
    if folder := _folder(job):
        container["workingDir"] = folder
    if limits:
        container["resources"] = {"limits": limits}
    container["volumeMounts"] = mounts
    pod: Document = {"restartPolicy": "Never", "containers": [container], "volumes": volumes}
    if site.fs_group is not None:
        pod["securityContext"] = {"fsGroup": site.fs_group}
    return {"spec": pod}


def _volumes(job: KubernetesJob) -> tuple[list[Document], list[Document]]:
    """Return the volumes of a pod, and where they are mounted."""
    volumes: list[Document] = [{"name": "memory", "emptyDir": {"medium": "Memory"}}]
    mounts: list[Document] = [{"name": "memory", "mountPath": "/dev/shm"}]  # noqa: S108 - 64 MB without it
    if job.nodes > 1:
        volumes.append(
            {"name": "secret", "secret": {"secretName": job.site.secret, "defaultMode": _SECRET_MODE}}
        )
        mounts.append({"name": "secret", "mountPath": _SECRET_FOLDER, "readOnly": True})
    if job.site.claim:
        volumes.append({"name": "work", "persistentVolumeClaim": {"claimName": job.site.claim}})
        mounts.append({"name": "work", "mountPath": _folder(job)})
    return volumes, mounts


def _folder(job: KubernetesJob) -> str:
    """Return the working folder of the pods; empty for that of the image."""
    return job.site.workdir or ("/work" if job.site.claim else "")


def _variables(job: KubernetesJob) -> Mapping[str, str]:
    variables = {"PYTHONUNBUFFERED": "1"}
    if job.nodes > 1:
        variables[SECRET_FILE] = str(PurePosixPath(_SECRET_FOLDER, "secret"))
        if job.operator != "pytorchjob":
            first = f"{job.name}-workers-0-0" if job.operator == "jobset" else f"{job.name}-0"
            variables |= {
                "WORLD_SIZE": str(job.nodes),
                "MASTER_ADDR": f"{first}.{job.name}",
                "MASTER_PORT": str(_PORT),
            }
    return variables


def _metadata(job: KubernetesJob) -> Document:
    return {"name": job.name, **({"namespace": job.site.namespace} if job.site.namespace else {})}


def _unexpanded(word: str) -> str:
    """Return a word of a command in which Kubernetes replaces no ``$(NAME)``."""
    return word.replace("$", "$$")


def _yaml(value: Mapping[str, Any], indent: str = "") -> list[str]:
    """Return the lines of a mapping as YAML in block style."""
    lines: list[str] = []
    for key, item in value.items():
        if isinstance(item, Mapping):
            lines += [f"{indent}{_scalar(key)}:", *_yaml(item, indent + "  ")]
        elif isinstance(item, Sequence) and not isinstance(item, str):
            lines += [f"{indent}{_scalar(key)}:", *_list(item, indent)]
        else:
            lines.append(f"{indent}{_scalar(key)}: {_scalar(item)}")
    return lines


def _list(items: Sequence[Any], indent: str) -> list[str]:
    lines: list[str] = []
    for item in items:
        inner = _yaml(item, indent + "  ") if isinstance(item, Mapping) else [f"{indent}  {_scalar(item)}"]
        lines += [f"{indent}- {inner[0].strip()}", *inner[1:]]
    return lines


def _scalar(value: object) -> str:
    """Return a value as YAML; text that YAML could take for something else is quoted as in JSON."""
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _YAML_WORDS:
        return value
    return _UNPRINTABLE.sub(
        lambda character: f"\\u{ord(character[0]):04x}", json.dumps(value, ensure_ascii=False)
    )


_ENDS = {"Complete": True, "Completed": True, "Succeeded": True, "Failed": False}
"""Conditions of a Job, JobSet or PyTorchJob that has ended, and whether it ended well."""
_FLUSH_S = 10.0
"""Seconds that the last lines of the log may take after the job has ended."""
_STARTED = "running", "ended", "failed"
"""The states of a pod that has output."""
_PRINT_HERE = "print the job with --dry-run, and submit it where kubectl reaches the cluster"


def submit(job: KubernetesJob, file: Path, *, ask: Ask = run_command) -> None:
    """Create the resources of a manifest.

    Raises:
        UsageError: there is no kubectl, the cluster refuses them, or it has no Secret for the pods.
    """
    site = job.site
    if job.nodes > 1:
        advice = f" Create the Secret once: {secret_command(site.secret)}"
        _asked(ask, [*_kubectl(job), "get", "secret", site.secret], advice=advice)
    _asked(ask, [*_kubectl(job), "create", "-f", str(file)], advice="")


def _kubectl(job: KubernetesJob) -> list[str]:
    return ["kubectl", *(["--namespace", job.site.namespace] if job.site.namespace else [])]


_LOG_LINE = re.compile(r"[IWE]\d{4} ")
"""The begin of a line that kubectl's libraries log before its message."""


def _asked(ask: Ask, words: list[str], *, advice: str) -> None:
    """Run kubectl; `advice` is the remedy for what the cluster refuses."""
    answer = ask(words)
    if answer.code == 0:
        return
    lines = [line for line in answer.err.splitlines() if _LOG_LINE.match(line) is None]
    reason = " ".join(" ".join(lines).split()).removesuffix(".") or f"exit code {answer.code}"
    if "Error from server" not in answer.err:
        raise UsageError(f"kubectl cannot submit the job: {reason}; {_PRINT_HERE}.")
    raise UsageError(f"Kubernetes refuses the job: {reason}.{advice}")


class FollowedKubernetesJob:
    """A submitted job; `ask` runs kubectl, and the output of the first pod is copied to `log`."""

    def __init__(self, job: KubernetesJob, file: Path, *, ask: Ask = run_command) -> None:
        self.name = f"job {job.name}"
        self.number = job.resource
        self.stop = f"{' '.join(_kubectl(job))} delete -f {file}"
        self._job, self._ask = job, ask
        self._log = file.with_suffix(".log")
        self._copy: subprocess.Popen[bytes] | None = None
        self._copied_until = datetime.now(timezone.utc)

    def status(self) -> JobStatus:
        """Return the present state of the job.

        Raises:
            Error: the cluster no longer has the job.
        """
        resource = self._get([self._job.resource])
        listing = self._get(["pods", "--selector", self._job.pods])
        if resource is None or listing is None:  # the cluster is busy or restarts, and the job goes on
            return JobStatus(words="Kubernetes does not answer", log=self._copied(), is_known=False)
        pods = listing.get("items", [])
        self._read_log(pods)
        states = Counter(_state(pod) for pod in pods)
        ended = _ended_well(resource)
        if ended is None:
            words = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
            waits = not states["running"]
            return JobStatus(
                words=f"has pods: {words}" if words else "has no pods yet", log=self._copied(), waits=waits
            )
        self._end_log()
        codes = [code for pod in pods for code in _exit_codes(pod) if code]
        code = 0 if ended else next(iter(codes), 1)
        words = "has ended well" if ended else f"has failed, exit code {code}"
        return JobStatus(words=words, log=self._copied(), exit_code=code, cut_off=not ended and not codes)

    def close(self) -> None:
        """End the copying of the output."""
        if self._copy is not None:
            self._copy.kill()
            self._copy.wait()

    def _get(self, words: list[str]) -> dict[str, Any] | None:
        """Return resources; None while the cluster does not answer."""
        answer = self._ask([*_kubectl(self._job), "get", *words, "--output", "json"])
        if "(NotFound)" in answer.err:
            raise Error(f"Kubernetes no longer has {self.name}: it was deleted.")
        with suppress(ValueError):
            if answer.code == 0 and isinstance(document := json.loads(answer.out), dict):
                return document
        return None

    def _copied(self) -> Path | None:
        """Return the file of the output; None if the first pod has not started, or is gone."""
        return None if self._copy is None else self._log

    def _read_log(self, pods: list[dict[str, Any]]) -> None:
        """Copy the output of the pod with rank 0 from when it has started; again if the copying breaks off.

        A copy that goes on may repeat lines of the seconds before.
        """
        first = next((pod for pod in pods if _is_first(pod)), None)
        state = "" if first is None else _state(first)
        if self._copy is not None and self._copy.poll() is None:
            self._copied_until = datetime.now(timezone.utc)
        elif first is not None and (state == "running" or (self._copy is None and state in _STARTED)):
            goes_on = self._copy is not None and self._log.stat().st_size > 0
            since = [f"--since-time={self._copied_until:%Y-%m-%dT%H:%M:%SZ}"] if goes_on else []
            with self._log.open("ab" if goes_on else "wb") as output:
                self._copy = subprocess.Popen(
                    [*_kubectl(self._job), "logs", "--follow", *since, first["metadata"]["name"]],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )

    def _end_log(self) -> None:
        if self._copy is not None:
            with suppress(subprocess.TimeoutExpired):
                self._copy.wait(_FLUSH_S)
            self.close()


def _is_first(pod: dict[str, Any]) -> bool:
    labels = pod["metadata"].get("labels", {})
    role, index = "training.kubeflow.org/replica-type", "batch.kubernetes.io/job-completion-index"
    return bool(labels.get(role) == "master" or labels.get(index) == "0")


def _state(pod: dict[str, Any]) -> str:
    """Return the state of a pod in a word: its phase, or why it has not started."""
    status = pod.get("status", {})
    for container in status.get("containerStatuses", []):
        reason = container.get("state", {}).get("waiting", {}).get("reason", "")
        if reason not in ("", "ContainerCreating", "PodInitializing"):
            return f"not started ({reason})"
    if any(condition.get("reason") == "Unschedulable" for condition in status.get("conditions", [])):
        return "not started (no node has room for it)"
    phases = {"Running": "running", "Succeeded": "ended", "Failed": "failed"}
    return phases.get(status.get("phase", ""), "starting")


def _exit_codes(pod: dict[str, Any]) -> list[int]:
    containers = pod.get("status", {}).get("containerStatuses", [])
    return [
        int(container.get("state", {}).get("terminated", {}).get("exitCode", 0)) for container in containers
    ]


def _ended_well(resource: dict[str, Any]) -> bool | None:
    """Return whether a job ended well; None while it has not ended."""
    for condition in resource.get("status", {}).get("conditions", []):
        if condition.get("status") == "True" and condition.get("type") in _ENDS:
            return _ENDS[condition["type"]]
    return None
