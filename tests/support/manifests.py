"""Checks manifests against the published schemas of Kubernetes, JobSet and PyTorchJob.

The schemas of Job, Service and JobSet are models of the package kubeflow-trainer-api, which is made from the
published ones. They leave out unknown fields, so that `unknown` looks for those. The outer fields of
PyTorchJob are declared here, after its custom resource definition.
"""

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import kubeflow_trainer_api.models as published
import yaml
from pydantic import BaseModel, ConfigDict, StrictInt, StrictStr, ValidationError

_SCALARS = ("Quantity", "IntOrString")
"""Models of values that are text or a number in a manifest."""


class _Declared(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class RunPolicy(_Declared):
    activeDeadlineSeconds: StrictInt | None = None
    backoffLimit: StrictInt | None = None
    cleanPodPolicy: Literal["None", "Running", "All"] | None = None
    suspend: bool | None = None
    ttlSecondsAfterFinished: StrictInt | None = None


class Replicas(_Declared):
    replicas: StrictInt
    restartPolicy: Literal["Always", "OnFailure", "Never", "ExitCode"]
    template: published.IoK8sApiCoreV1PodTemplateSpec


class PyTorchJobSpec(_Declared):
    nprocPerNode: StrictStr
    runPolicy: RunPolicy
    pytorchReplicaSpecs: dict[Literal["Master", "Worker"], Replicas]


class PyTorchJob(_Declared):
    apiVersion: Literal["kubeflow.org/v1"]
    kind: Literal["PyTorchJob"]
    metadata: published.IoK8sApimachineryPkgApisMetaV1ObjectMeta
    spec: PyTorchJobSpec


KINDS: dict[tuple[str, str], type[BaseModel]] = {
    ("v1", "Service"): published.IoK8sApiCoreV1Service,
    ("batch/v1", "Job"): published.IoK8sApiBatchV1Job,
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): published.JobsetV1alpha2JobSet,
    ("kubeflow.org/v1", "PyTorchJob"): PyTorchJob,
}


def documents(text: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(text))


def wrong(document: dict[str, Any]) -> list[str]:
    """Return the fields of a document that its schema does not have, lacks or has with other values."""
    schema = KINDS[document["apiVersion"], document["kind"]]
    found = list(unknown(schema, document, document["kind"]))
    try:
        schema.model_validate(document)
    except ValidationError as error:
        for one in error.errors():
            of = one.get("ctx", {}).get("class_name", "")
            if not (of.endswith(_SCALARS) and isinstance(one["input"], str | int)):
                found.append(f"{'.'.join(map(str, one['loc']))}: {one['msg']}")
    return found


def unknown(kind: Any, value: Any, path: str) -> Iterator[str]:
    """Find the fields of `value` that the models in `kind`, an annotation, do not have."""
    if isinstance(value, list):
        for at, item in enumerate(value):
            yield from unknown(kind, item, f"{path}[{at}]")
        return
    model = next(_models(kind), None)
    if model is None or not isinstance(value, dict):
        return
    if (isinstance(kind, type) and issubclass(kind, BaseModel)) or get_origin(kind) is not dict:
        known = {field.alias or name: field.annotation for name, field in model.model_fields.items()}
        for name, item in value.items():
            if name not in known:
                yield f"{path}.{name} is unknown"
            else:
                yield from unknown(_without_none(known[name]), item, f"{path}.{name}")
        return
    for name, item in value.items():
        yield from unknown(model, item, f"{path}.{name}")


def _without_none(kind: Any) -> Any:
    parts = [part for part in get_args(kind) if part is not type(None)]
    return parts[0] if type(None) in get_args(kind) and len(parts) == 1 else kind


def _models(kind: Any) -> Iterator[type[BaseModel]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    for part in get_args(kind):
        yield from _models(part)
