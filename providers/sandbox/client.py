"""How a client calls the sandbox cloud: one protocol, over HTTP or in this process. Both refuse in the same way."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

import httpx
from pydantic import BaseModel, TypeAdapter, ValidationError

from providers.parsing import read_date
from providers.sandbox.cloud import wire
from providers.sandbox.cloud.cloud import PAGE, SandboxCloud
from providers.sandbox.cloud.refusals import AnswerLost, RefusalCode, SandboxRefused, SandboxUnreachable

ResourceKind = str
"""``volume`` or ``port``."""
M = TypeVar("M", bound=BaseModel)
_OFFERS = TypeAdapter(list[wire.OfferView])
_NOTICES = TypeAdapter(list[wire.NoticeView])


class CloudApi(Protocol):
    """The calls of a provider. All raise Refused, AnswerLost or Unreachable."""

    parallel: int
    """Calls that may usefully run side by side."""

    def offers(self) -> list[wire.OfferView]:
        """All that is sold."""
        ...

    def launch(self, body: wire.LaunchBody) -> wire.InstanceView:
        """Makes one instance, or gives back the one that its token made."""
        ...

    def instances(self, tags: Mapping[str, str], limit: int, marker: str) -> wire.PageView[wire.InstanceView]:
        """A page of the instances with these tags."""
        ...

    def terminate(self, instance_id: str) -> None:
        """Ends one."""
        ...

    def console(self, instance_id: str) -> str:
        """Its console's output."""
        ...

    def list_resources(
        self, kind: ResourceKind, tags: Mapping[str, str], limit: int, marker: str
    ) -> wire.PageView[wire.ResourceView]:
        """A page of the volumes or ports with these tags."""
        ...

    def remove(self, kind: ResourceKind, part_id: str) -> None:
        """Removes one that belongs to no instance."""
        ...

    def quota(self) -> wire.QuotaView:
        """Limit and use."""
        ...

    def supplies(self) -> wire.SuppliesView:
        """Images and free addresses."""
        ...

    def time(self) -> float:
        """Its clock, in seconds since 1970."""
        ...

    def notices(self, tags: Mapping[str, str]) -> list[wire.NoticeView]:
        """What was announced of instances with these tags."""
        ...

    def acknowledge(self, receipts: list[str]) -> None:
        """Has the cloud forget announcements."""
        ...

    def create_disk(self, body: wire.DiskBody) -> wire.DiskView:
        """Makes a disk."""
        ...

    def disks(self, tags: Mapping[str, str], limit: int, marker: str) -> wire.PageView[wire.DiskView]:
        """A page of the disks with these tags."""
        ...

    def attach_disk(self, disk_id: str, body: wire.AttachBody) -> None:
        """Attaches one."""
        ...

    def detach_disk(self, disk_id: str, body: wire.AttachBody) -> None:
        """Detaches one."""
        ...

    def remove_disk(self, disk_id: str) -> None:
        """Destroys one that is attached to nothing."""
        ...

    def close(self) -> None:
        """Gives connections back."""
        ...


class DirectApi:
    """A cloud in this process. What it returns has been through the wire's models, as over HTTP."""

    parallel = 1

    def __init__(self, cloud: SandboxCloud) -> None:
        self._cloud = cloud

    def offers(self) -> list[wire.OfferView]:
        """What the cloud sells."""
        return wire.offer_views(self._cloud.catalog, self._cloud.offers())

    def launch(self, body: wire.LaunchBody) -> wire.InstanceView:
        """Launches an instance."""
        return wire.InstanceView.from_machine(self._cloud.launch(body.request()))

    def instances(
        self, tags: Mapping[str, str], limit: int = PAGE, marker: str = ""
    ) -> wire.PageView[wire.InstanceView]:
        """The instances with these tags."""
        return wire.instances_page_view(self._cloud.instances(tags, limit, marker))

    def terminate(self, instance_id: str) -> None:
        """Terminates an instance; one that is gone is no error."""
        self._cloud.terminate(instance_id)

    def console(self, instance_id: str) -> str:
        """An instance's console output."""
        return self._cloud.console(instance_id)

    def list_resources(
        self, kind: ResourceKind, tags: Mapping[str, str], limit: int = PAGE, marker: str = ""
    ) -> wire.PageView[wire.ResourceView]:
        """Resources with these tags."""
        return wire.resources_page_view(self._cloud.list_resources(kind, tags, limit, marker))

    def remove(self, kind: ResourceKind, part_id: str) -> None:
        """Deletes a resource."""
        self._cloud.remove(kind, part_id)

    def quota(self) -> wire.QuotaView:
        """Limits and use."""
        limit, used = self._cloud.quota()
        return wire.QuotaView(limit=limit, used=used)

    def supplies(self) -> wire.SuppliesView:
        """Images and free addresses."""
        images, free = self._cloud.supplies()
        return wire.SuppliesView(images=images, free_addresses=free)

    def time(self) -> float:
        """Its clock."""
        return self._cloud.now()

    def notices(self, tags: Mapping[str, str]) -> list[wire.NoticeView]:
        """Notices for instances with these tags."""
        return [wire.NoticeView.model_validate(n, from_attributes=True) for n in self._cloud.notices(tags)]

    def acknowledge(self, receipts: list[str]) -> None:
        """Removes notices by their receipts."""
        self._cloud.acknowledge(receipts)

    def create_disk(self, body: wire.DiskBody) -> wire.DiskView:
        """Makes a disk."""
        return wire.DiskView.from_disk(self._cloud.disks.create(body.zone, body.size_bytes, body.tags), ready=True)

    def disks(self, tags: Mapping[str, str], limit: int = PAGE, marker: str = "") -> wire.PageView[wire.DiskView]:
        """The disks with these tags."""
        return wire.disks_page_view(self._cloud.disks.page(tags, limit, marker))

    def attach_disk(self, disk_id: str, body: wire.AttachBody) -> None:
        """Attaches a disk."""
        self._cloud.disks.attach(disk_id, body.instance)

    def detach_disk(self, disk_id: str, body: wire.AttachBody) -> None:
        """Detaches a disk."""
        self._cloud.disks.detach(disk_id, body.instance)

    def remove_disk(self, disk_id: str) -> None:
        """Deletes a disk."""
        self._cloud.disks.remove(disk_id)

    def close(self) -> None:
        """Nothing to give back."""


class HttpApi:
    """A cloud server. ``url`` without the version, ``timeout_s`` for each step of a call; ``socket``: a unix socket.

    The token is read from its file for every call, so that it can be changed while we run.
    """

    parallel = 8

    def __init__(self, url: str, token_file: Path | None, timeout_s: float, socket: Path | None = None) -> None:
        self._token_file = token_file
        self._http = httpx.Client(
            base_url=url.rstrip("/") + "/v1",
            timeout=timeout_s,
            transport=None if socket is None else httpx.HTTPTransport(uds=str(socket), verify=False),
            trust_env=False,
        )

    def offers(self) -> list[wire.OfferView]:
        """What the cloud sells."""
        answer = self._call("GET", "/offers")
        try:
            return _OFFERS.validate_json(answer.content)
        except ValidationError as error:
            raise AnswerLost(0.0) from error

    def launch(self, body: wire.LaunchBody) -> wire.InstanceView:
        """Launches an instance."""
        return _read(wire.InstanceView, self._call("POST", "/instances", json=body.model_dump(mode="json")))

    def instances(
        self, tags: Mapping[str, str], limit: int = PAGE, marker: str = ""
    ) -> wire.PageView[wire.InstanceView]:
        """The instances with these tags."""
        answer = self._call("GET", "/instances", params=_page_of(tags, limit, marker))
        return _read(wire.PageView[wire.InstanceView], answer)

    def terminate(self, instance_id: str) -> None:
        """Terminates an instance; one that is gone is no error."""
        self._call("DELETE", f"/instances/{instance_id}")

    def console(self, instance_id: str) -> str:
        """An instance's console output."""
        return self._call("GET", f"/instances/{instance_id}/console").text

    def list_resources(
        self, kind: ResourceKind, tags: Mapping[str, str], limit: int = PAGE, marker: str = ""
    ) -> wire.PageView[wire.ResourceView]:
        """Resources with these tags."""
        return _read(
            wire.PageView[wire.ResourceView], self._call("GET", f"/{kind}s", params=_page_of(tags, limit, marker))
        )

    def remove(self, kind: ResourceKind, part_id: str) -> None:
        """Deletes a resource."""
        self._call("DELETE", f"/{kind}s/{part_id}")

    def quota(self) -> wire.QuotaView:
        """Limits and use."""
        return _read(wire.QuotaView, self._call("GET", "/quota"))

    def supplies(self) -> wire.SuppliesView:
        """Images and free addresses."""
        return _read(wire.SuppliesView, self._call("GET", "/supplies"))

    def time(self) -> float:
        """By the Date of an answer."""
        try:
            return read_date(self._call("GET", "/quota").headers["date"])
        except (LookupError, ValueError) as error:
            raise AnswerLost(0.0) from error

    def notices(self, tags: Mapping[str, str]) -> list[wire.NoticeView]:
        """Notices for instances with these tags."""
        answer = self._call("GET", "/notices", params={"tag": [f"{name}={value}" for name, value in tags.items()]})
        try:
            return _NOTICES.validate_json(answer.content)
        except ValidationError as error:
            raise AnswerLost(0.0) from error

    def acknowledge(self, receipts: list[str]) -> None:
        """Removes notices by their receipts."""
        self._call("POST", "/notices/acknowledge", json={"receipts": receipts})

    def create_disk(self, body: wire.DiskBody) -> wire.DiskView:
        """Makes a disk."""
        return _read(wire.DiskView, self._call("POST", "/disks", json=body.model_dump()))

    def disks(self, tags: Mapping[str, str], limit: int = PAGE, marker: str = "") -> wire.PageView[wire.DiskView]:
        """The disks with these tags."""
        return _read(wire.PageView[wire.DiskView], self._call("GET", "/disks", params=_page_of(tags, limit, marker)))

    def attach_disk(self, disk_id: str, body: wire.AttachBody) -> None:
        """Attaches a disk."""
        self._call("POST", f"/disks/{disk_id}/attach", json=body.model_dump())

    def detach_disk(self, disk_id: str, body: wire.AttachBody) -> None:
        """Detaches a disk."""
        self._call("POST", f"/disks/{disk_id}/detach", json=body.model_dump())

    def remove_disk(self, disk_id: str) -> None:
        """Deletes a disk."""
        self._call("DELETE", f"/disks/{disk_id}")

    def close(self) -> None:
        """Gives connections back."""
        self._http.close()

    def _call(self, method: str, path: str, **parts: Any) -> httpx.Response:
        try:
            answer = self._http.request(method, path, headers=self._headers(), **parts)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise SandboxUnreachable(f"{self._http.base_url} cannot be reached: {error}") from error
        except httpx.TransportError as error:
            raise AnswerLost(0.0) from error
        if answer.is_success:
            return answer
        raise _refusal(answer)

    def _headers(self) -> dict[str, str]:
        if self._token_file is None:
            return {}
        try:
            return {"Authorization": f"Bearer {self._token_file.read_text(encoding='utf-8').strip()}"}
        except OSError as error:
            raise SandboxRefused(
                RefusalCode.AUTH, f"the token in {self._token_file} cannot be read: {error.strerror}"
            ) from error


def _page_of(tags: Mapping[str, str], limit: int, marker: str) -> dict[str, str | int | list[str]]:
    return {"tag": [f"{name}={value}" for name, value in tags.items()], "limit": limit, "marker": marker}


def _read(model: type[M], answer: httpx.Response) -> M:
    try:
        return model.model_validate_json(answer.content)
    except ValidationError as error:
        raise AnswerLost(0.0) from error


def _refusal(answer: httpx.Response) -> SandboxRefused:
    try:
        error = answer.json()["error"]
        code, message = RefusalCode(error["code"]), str(error["message"])
    except (ValueError, KeyError, TypeError):
        code = RefusalCode.INTERNAL if answer.is_server_error else RefusalCode.BAD_REQUEST
        message = f"the answer is {answer.status_code} {answer.reason_phrase}"
    wait = answer.headers.get("retry-after", "0")
    return SandboxRefused(code, message, float(wait) if wait.replace(".", "", 1).isdigit() else 0.0)
