"""Settings of the PVC store."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from providers.openshift.settings import MiB, Name, Namespace, PodPath, Word
from staging.roots import AbsolutePath


class PvcSettings(BaseModel):
    """``[staging.stores.NAME]`` of kind ``pvc``. Times in seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kubeconfig: Path | None = Field(default=None, json_schema_extra={"secret": True})
    """As the provider's, and so are ``context``, ``namespace``, ``pull_secrets``, ``service_account``, ``security``
    and ``run_as``."""
    context: str = ""
    namespace: Namespace
    claim: Name
    """The PersistentVolumeClaim. It must be there: burstd makes none, and removes none."""
    path: PodPath
    """Where the provider's ``mounts`` put that claim in burst pods."""
    sub_path: str = ""
    """As in the provider's ``mounts``."""

    image: Word
    """Of the mover pod: a reference of an image with Python 3.11 or newer, such as that of the nodes."""
    python: Annotated[str, Field(pattern=r"^[A-Za-z0-9_./-]+$")] = "python3"
    """What runs Python 3.11 or newer there."""
    pull_secrets: tuple[Name, ...] = ()
    service_account: str = ""
    security: Literal["root", "restricted"] = "root"
    run_as: Annotated[int, Field(strict=True, ge=1)] | None = None
    selector: dict[Word, str] = Field(default_factory=dict)
    """Labels that the mover pod's node must have; empty: every node."""
    tolerations: tuple[dict[str, Any], ...] = ()
    """Of the mover pod, as in a pod's spec."""
    cpu: Annotated[str, Field(pattern=r"^[0-9]+m?$")] = "500m"
    """Of the mover pod, as Kubernetes writes it."""
    memory: MiB = 256
    """Of the mover pod, in MiB."""
    priority_class: str = ""

    one_node: bool = False
    """Takes a ReadWriteOnce claim: all pods that use it run on one node then, which selectors must see to."""
    roots: Mapping[AbsolutePath, AbsolutePath] = Field(default_factory=dict)
    """Folders as job scripts name them, and as burst pods see them where ``mounts`` put claims that have data already:
    inputs from there are not sent at all, and the head need not see them."""
    idle_s: Annotated[float, Field(ge=1)] = 300.0
    """How long the mover pod stays without work, some seconds more or less. burstd looks through a store that is awake
    every ten minutes: with more than that it never ends."""
    start_s: Annotated[float, Field(gt=0)] = 120.0
    """How long a call waits for the mover pod."""
    connections: Annotated[int, Field(ge=1, le=16)] = 3
    timeout_s: Annotated[float, Field(gt=0)] = 60.0
    """For an answer of the API server, and how long nothing may move while an answer is due."""
    sync: bool = False
    """Whether a put has reached the disk there before it counts."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.run_as is not None and self.security != "restricted":
            raise ValueError("run_as is for security = 'restricted'")
        if self.image.startswith("imagestream:"):
            raise ValueError(
                "must be a reference; oc get imagestream NAME -o jsonpath={.status.dockerImageRepository} prints that "
                "of an ImageStream"
            )
        return self

    @property
    def page(self) -> int:
        """Nothing is listed."""
        return 1

    @property
    def side_by_side(self) -> int:
        """Connections to the API server beside those of sessions."""
        return 1
