"""Submits jobs to Kubernetes by kubectl, and reads the state of their pods."""

import json
import subprocess
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from samestep.base.errors import UsageError
from samestep.submit.follow import JobStatus
from samestep.submit.kubernetes import KubernetesJob, secret_command
from samestep.submit.shell import Ask, run_command

_ENDS = {"Complete": True, "Completed": True, "Succeeded": True, "Failed": False}
"""Conditions of a Job, JobSet or PyTorchJob that has ended, and whether it ended well."""
_FLUSH_S = 10.0
"""Seconds that the last lines of the log may take after the job has ended."""
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


def _asked(ask: Ask, words: list[str], *, advice: str) -> None:
    """Run kubectl; `advice` is the remedy for what the cluster refuses."""
    answer = ask(words)
    if answer.code == 0:
        return
    reason = " ".join(answer.err.split()).removesuffix(".") or f"exit code {answer.code}"
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

    def status(self) -> JobStatus:
        """Return the present state of the job."""
        found = self._get([self._job.resource])
        pods = self._get(["pods", "--selector", self._job.pods]).get("items", [])
        self._read_log(pods)
        states = Counter(_state(pod) for pod in pods)
        ended = _ended_well(found)
        if ended is None:
            words = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
            waits = not states["running"]
            return JobStatus(
                words=f"has pods: {words}" if words else "has no pods yet", log=self._log, waits=waits
            )
        self._end_log()
        codes = [code for pod in pods for code in _exit_codes(pod) if code]
        code = 0 if ended else next(iter(codes), 1)
        words = "has ended well" if ended else f"has failed, exit code {code}"
        return JobStatus(words=words, log=self._log, exit_code=code, cut_off=not ended and not codes)

    def _get(self, words: list[str]) -> dict[str, Any]:
        """Return resources; none while the cluster does not answer, because the job continues."""
        answer = self._ask([*_kubectl(self._job), "get", *words, "--output", "json"])
        with suppress(ValueError):
            if answer.code == 0 and isinstance(found := json.loads(answer.out), dict):
                return found
        return {}

    def _read_log(self, pods: list[dict[str, Any]]) -> None:
        """Copy the output of the pod with rank 0 from when it has started."""
        first = next((pod["metadata"]["name"] for pod in pods if _is_first(pod)), "")
        started = any(_is_first(pod) and _state(pod) in ("running", "ended", "failed") for pod in pods)
        if self._copy is None and started:
            with self._log.open("wb") as output:
                self._copy = subprocess.Popen(
                    [*_kubectl(self._job), "logs", "--follow", first],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )

    def _end_log(self) -> None:
        if self._copy is not None:
            with suppress(subprocess.TimeoutExpired):
                self._copy.wait(_FLUSH_S)
            self._copy.kill()
            self._copy.wait()


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
    if any(one.get("reason") == "Unschedulable" for one in status.get("conditions", [])):
        return "not started (no node has room for it)"
    phases = {"Running": "running", "Succeeded": "ended", "Failed": "failed"}
    return phases.get(status.get("phase", ""), "starting")


def _exit_codes(pod: dict[str, Any]) -> list[int]:
    containers = pod.get("status", {}).get("containerStatuses", [])
    return [int(one.get("state", {}).get("terminated", {}).get("exitCode", 0)) for one in containers]


def _ended_well(found: dict[str, Any]) -> bool | None:
    """Return whether a job ended well; None while it has not ended."""
    for condition in found.get("status", {}).get("conditions", []):
        if condition.get("status") == "True" and condition.get("type") in _ENDS:
            return _ENDS[condition["type"]]
    return None
