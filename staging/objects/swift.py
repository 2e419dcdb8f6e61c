"""The store that is a container of OpenStack Swift, or of a Ceph gateway that speaks as Swift does.

Swift keeps nothing of a put that breaks, so nothing is ever unfinished there.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote, urlsplit

from pydantic import BaseModel, ConfigDict, Field, model_validator

from burstd.domain.plugins.stager import (
    OBJECT_BYTES,
    NodeAccess,
    NoSuchObject,
    ObjectTooLarge,
    StagerPlugin,
    StoreBusy,
    StoredObject,
    StoreRefused,
    StoreSpaceGone,
    UnfinishedUpload,
    valid_key,
)
from staging.names import cluster_prefix
from staging.objects import lookup

_SIGNED_S = 3600
_DELETED_AT_ONCE = 1000
_SIDE_BY_SIDE = 8
_KEY_HEADER = "X-Container-Meta-Temp-Url-Key"


class SwiftSettings(BaseModel):
    """``[staging.stores.NAME]`` of kind ``swift``: ``cloud``, or ``auth_url``, ``user`` and ``key_file``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    container: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,255}$")]
    cloud: str = ""
    """An entry of clouds.yaml."""
    clouds_file: Path | None = Field(default=None, json_schema_extra={"secret": True})
    """That file, where it is not where openstacksdk looks for it."""
    region: str = ""
    interface: Literal["public", "internal", "admin"] = "public"
    auth_url: Annotated[str, Field(pattern=r"^(https?://\S+)?$")] = ""
    """Of tempauth, ``.../auth/v1.0``."""
    user: str = ""
    key_file: Path | None = Field(default=None, json_schema_extra={"secret": True})
    endpoint: Annotated[str, Field(pattern=r"^(https?://[^/\s]+)?$")] = ""
    """Scheme, host and port by which the head reaches Swift, where Swift says others: ``https://swift:8080``."""
    node_endpoint: Annotated[str, Field(pattern=r"^(https?://[^/\s]+)?$")] = ""
    """The same for cloud nodes."""
    prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]*$")] = "burstd"
    """What all names begin with, before the cluster's."""
    ca_file: Path | None = None
    """CA certificates for tempauth with a private CA; others: ``cacert`` in clouds.yaml."""
    timeout_s: Annotated[float, Field(gt=0)] = 60.0
    """How long nothing may move while an answer is due, in seconds."""

    @model_validator(mode="after")
    def _one_login(self) -> SwiftSettings:
        tempauth = (self.auth_url, self.user, self.key_file)
        if bool(self.cloud) == any(tempauth) or (any(tempauth) and not all(tempauth)):
            raise ValueError("give either cloud, or auth_url, user and key_file")
        return self


class SwiftStager:
    """Objects under ``PREFIX/CLUSTER/`` of a container."""

    def __init__(self, name: str, cluster: str, settings: SwiftSettings) -> None:
        self.name = name
        self._settings = settings
        self._where = f"the container {settings.container} at {settings.cloud or settings.auth_url}"
        self._key_prefix = f"{settings.prefix}/{cluster_prefix(cluster)}/"
        self._lock = threading.Lock()
        self._session: Any = None
        self._endpoint = ""
        self._pool: ThreadPoolExecutor | None = None
        self._cluster_info: Mapping[str, Any] | None = None
        self._sign_key: bytes | None = None

    def put(self, key: str, body: bytes | memoryview) -> None:
        """Writes an object; Swift compares an MD5."""
        digest = hashlib.md5(body, usedforsecurity=False).hexdigest()
        headers = {"ETag": digest, "Content-Type": "application/octet-stream"}
        self._request("PUT", self._path(key), f"put the object {key}", data=body, headers=headers)

    def get(self, key: str) -> bytes:
        """Returns an object's content."""
        what = f"give the object {key}"
        with closing(self._request("GET", self._path(key), what, stream=True)) as answer:
            return self._content(answer, what)

    def present(self, keys: Sequence[str]) -> Mapping[str, int]:
        """Returns the sizes of those that are there."""
        return lookup.present([valid_key(key) for key in keys], self._page, self._sizes)

    def copy(self, source: str, target: str) -> None:
        """Makes a second object of the same content within Swift."""
        origin = f"{self._settings.container}/{self._key_prefix}{valid_key(source)}"
        headers = {"X-Copy-From": quote(origin), "Content-Length": "0"}
        self._request("PUT", self._path(target), f"copy the object {source}", headers=headers)

    def delete(self, keys: Sequence[str]) -> None:
        """Removes objects, a thousand a call where Swift offers that."""
        for key in keys:
            valid_key(key)
        bulk = self._capabilities().get("bulk_delete", {}) if len(keys) > 1 else {}
        if not bulk:
            for _ in self._side_by_side(self._delete_one, keys):
                pass
            return
        step = min(_DELETED_AT_ONCE, int(bulk.get("max_deletes_per_request", _DELETED_AT_ONCE)))
        for start in range(0, len(keys), step):
            self._delete_together(keys[start : start + step])

    def objects(self, prefix: str) -> Iterator[StoredObject]:
        """Lists the objects whose key begins so, page by page."""
        after = ""
        while True:
            page = self._list(self._key_prefix + prefix, after)
            yield from page
            if len(page) < lookup.PAGE_SIZE:
                return
            after = page[-1].key

    def unfinished(self) -> Iterator[UnfinishedUpload]:
        """Nothing ever is."""
        return iter(())

    def abort(self, unfinished: Sequence[UnfinishedUpload]) -> None:
        """Nothing to remove."""

    def free_bytes(self) -> int | None:
        """Of the container's quota, if it has one."""
        about = self._request("HEAD", "", "tell of itself").headers
        quota = about.get("X-Container-Meta-Quota-Bytes", "")
        return max(0, int(quota) - int(about.get("X-Container-Bytes-Used", 0))) if quota.isdigit() else None

    def node_access(self) -> NodeAccess:
        """By signed URLs."""
        return NodeAccess("http")

    def sign(self, method: Literal["GET", "PUT"], keys: Sequence[str]) -> Mapping[str, str]:
        """Returns a URL for each object, signed with the container's key, which is made where there is none."""
        secret, endpoint = self._signing_key(), self._account()
        digests = self._capabilities().get("tempurl", {}).get("allowed_digests", ["sha256"])
        digest = "sha256" if "sha256" in digests else "sha1"
        until = int(time.time()) + _SIGNED_S
        account_url = urlsplit(endpoint)
        base = self._settings.node_endpoint or f"{account_url.scheme}://{account_url.netloc}"
        urls = {}
        for key in keys:
            path = f"{account_url.path}/{self._settings.container}/{self._key_prefix}{valid_key(key)}"
            signature = hmac.new(secret, f"{method}\n{until}\n{path}".encode(), digest).hexdigest()
            urls[key] = f"{base}{quote(path)}?temp_url_sig={signature}&temp_url_expires={until}"
        return urls

    def close(self) -> None:
        """Gives connections back."""
        with self._lock:
            pool, self._pool = self._pool, None
            used, self._session = self._session, None
        if pool is not None:
            pool.shutdown()
        if used is not None:
            used.session.close()

    def _path(self, key: str) -> str:
        return f"/{self._key_prefix}{valid_key(key)}"

    def _content(self, answer: Any, what: str) -> bytes:
        from urllib3.exceptions import HTTPError  # noqa: PLC0415 - see _open

        try:
            # Its own way of reading, 10 KiB at a time, is slow.
            content: bytes = answer.raw.read(OBJECT_BYTES + 1)
        except (HTTPError, OSError) as error:
            raise StoreBusy(f"{self._where} does not {what}: the connection broke: {error}") from None
        if len(content) > OBJECT_BYTES:
            raise ObjectTooLarge(f"{self._where} does not {what}: more than {OBJECT_BYTES} bytes came")
        due = answer.headers.get("Content-Length")
        if due is not None and str(len(content)) != due:
            raise StoreBusy(f"{self._where} does not {what}: {len(content)} of {due} bytes came")
        return content

    def _list(self, prefix: str, after: str) -> Sequence[StoredObject]:
        query = {"format": "json", "prefix": prefix, "limit": str(lookup.PAGE_SIZE)}
        if after:
            query["marker"] = self._key_prefix + after
        answer = self._request("GET", "", "list its objects", params=query)
        rows, last = answer.json() if answer.status_code != 204 else (), query.get("marker", "")
        for row in rows:
            if not row["name"].startswith(prefix) or row["name"] <= last:
                raise StoreBusy(f"{self._where} lists {row['name']!r} out of its turn: is it Swift?")
            last = row["name"]
        return [self._listed(row) for row in rows]

    def _listed(self, row: Mapping[str, Any]) -> StoredObject:
        when = datetime.fromisoformat(row["last_modified"]).replace(tzinfo=UTC)
        return StoredObject(row["name"].removeprefix(self._key_prefix), row["bytes"], when.timestamp())

    def _page(self, after: str) -> tuple[Sequence[StoredObject], bool]:
        page = self._list(self._key_prefix, after)
        return page, len(page) == lookup.PAGE_SIZE

    def _sizes(self, keys: Sequence[str]) -> Iterator[tuple[str, int | None]]:
        return zip(keys, self._side_by_side(self._size, keys), strict=True)

    def _size(self, key: str) -> int | None:
        try:
            return int(self._request("HEAD", self._path(key), f"look for the object {key}").headers["Content-Length"])
        except NoSuchObject:
            return None

    def _delete_one(self, key: str) -> None:
        try:
            self._request("DELETE", self._path(key), f"remove the object {key}")
        except NoSuchObject:
            return

    def _delete_together(self, keys: Sequence[str]) -> None:
        names = "\n".join(quote(f"/{self._settings.container}/{self._key_prefix}{key}") for key in keys)
        headers = {"Content-Type": "text/plain", "Accept": "application/json"}
        what = "remove objects"
        answer = self._request("POST", None, what, params={"bulk-delete": ""}, data=names.encode(), headers=headers)
        try:
            said = json.loads(answer.content)
        except ValueError:
            raise StoreBusy(f"{self._where} does not {what}: its answer ends in the middle") from None
        if said.get("Errors") or not str(said.get("Response Status", "")).startswith(("200", "404")):
            first = said.get("Errors", [["", said.get("Response Status", "")]])[0]
            sentence = f"{self._where} does not {what}: {first[1]}"
            raise StoreRefused(sentence) if first[1].startswith(("401", "403")) else StoreBusy(sentence)

    def _side_by_side(self, one: Any, keys: Sequence[str]) -> Iterator[Any]:
        if len(keys) < 2:
            return map(one, keys)
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_SIDE_BY_SIDE, thread_name_prefix=f"burstd-{self.name}")
            return self._pool.map(one, keys)

    def _capabilities(self) -> Mapping[str, Any]:
        """What its proxy says of itself; nothing where it does not."""
        if self._cluster_info is None:
            account_url = urlsplit(self._account())
            url = f"{account_url.scheme}://{account_url.netloc}/info"
            answer = self._send("GET", url, "tell of itself", authenticated=False)
            self._cluster_info = answer.json() if answer.status_code == 200 else {}
        return self._cluster_info

    def _signing_key(self) -> bytes:
        if self._sign_key is None:
            what = "say its key for temporary URLs"
            key = self._request("HEAD", "", what).headers.get(_KEY_HEADER, "")
            if not key:
                self._request("POST", "", what, headers={_KEY_HEADER: secrets.token_urlsafe(32)})
                # As it is now: another burstd may have set one at the same moment.
                key = self._request("HEAD", "", what).headers.get(_KEY_HEADER, "")
            if not key:
                raise StoreRefused(f"{self._where} does not {what}: its user must be an administrator of the account")
            self._sign_key = key.encode()
        return self._sign_key

    def _request(self, method: str, path: str | None, what: str, **words: Any) -> Any:
        """An answer that says yes. ``path``: in the container; None: the account."""
        base = self._account()
        url = base if path is None else f"{base}/{quote(self._settings.container)}{quote(path)}"
        answer = self._send(method, url, what, **words)
        if answer.status_code < 300:
            return answer
        answer.close()
        raise self._response_error(what, answer, in_container=bool(path))

    def _response_error(self, what: str, answer: Any, *, in_container: bool) -> Exception:
        status = answer.status_code
        sentence = f"{self._where} does not {what}: {status} {answer.reason}"
        after = answer.headers.get("Retry-After", "")
        if status in {413, 507}:
            return StoreSpaceGone(sentence)
        if status in {408, 409, 422, 425, 429, 498, 499} or status >= 500:
            return StoreBusy(sentence, float(after) if after.isdigit() else 0.0)
        if status == 404 and in_container and answer.request.method != "HEAD":
            # An object's 404 and its container's are the same.
            self._request("HEAD", "", what)
        if status == 404 and in_container:
            return NoSuchObject(sentence)
        if status == 404:
            return StoreRefused(f"{self._where} is not there: make it, or correct container")
        return StoreRefused(f"{sentence}. Look at the user's rights in the account")

    def _send(self, method: str, url: str, what: str, **words: Any) -> Any:
        from keystoneauth1 import exceptions  # noqa: PLC0415 - see _open

        try:
            return self._open_session().request(url, method, raise_exc=False, log=False, redirect=False, **words)
        except exceptions.ClientException as error:
            raise self._transport_error(what, error) from None

    def _account(self) -> str:
        opened = self._open_session()
        if not self._endpoint:
            from keystoneauth1 import exceptions  # noqa: PLC0415 - see _open

            try:
                found = opened.get_endpoint(
                    service_type="object-store",
                    interface=self._settings.interface,
                    region_name=self._settings.region or None,
                )
            except exceptions.ClientException as error:
                raise self._transport_error("answer", error) from None
            if not found:
                raise StoreRefused(f"{self._where}: its catalogue has no object-store in this region")
            account_url = urlsplit(found.rstrip("/"))
            self._endpoint = (
                self._settings.endpoint or f"{account_url.scheme}://{account_url.netloc}"
            ) + account_url.path
        return self._endpoint

    def _transport_error(self, what: str, error: Any) -> StoreBusy | StoreRefused:
        """What never became an answer: Swift's name, its certificate, the connection, or being let in."""
        from keystoneauth1 import exceptions  # noqa: PLC0415 - see _open

        sentence = f"{self._where} does not {what}: {error}"
        if isinstance(error, exceptions.SSLError):
            return StoreRefused(f"{sentence}. Name the authority of its certificate")
        if isinstance(error, exceptions.ConnectionError):
            return StoreBusy(sentence)
        status = error.http_status if isinstance(error, exceptions.HttpError) else 0
        if status >= 500 or status in {408, 429}:
            return StoreBusy(sentence)
        with self._lock:
            self._session = None  # so that a corrected file of the key is read
        return StoreRefused(f"{sentence}. Look at the user's name and key, and at the catalogue")

    def _open_session(self) -> Any:
        with self._lock:
            if self._session is None:
                self._session = self._open()
            return self._session

    def _open(self) -> Any:
        at = self._settings
        try:
            # Late: a second, and sites without Swift have no openstacksdk.
            from staging.objects import swift_access  # noqa: PLC0415
        except ImportError:
            raise StoreRefused(f"the store {self.name} needs openstacksdk: pip install 'burstd[swift]'") from None
        if at.key_file is None:
            file = None if at.clouds_file is None else str(at.clouds_file)
            return swift_access.cloud_session(at.cloud, file, at.region, at.timeout_s)
        try:
            key = at.key_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no text"
            raise StoreRefused(f"{at.key_file} cannot be read: {reason}") from None
        return swift_access.tempauth_session(at.auth_url, at.user, key, at.timeout_s, str(at.ca_file or ""))


def _make(name: str, cluster: str, settings: SwiftSettings) -> SwiftStager:
    return SwiftStager(name, cluster, settings)


plugin = StagerPlugin(name="swift", settings=SwiftSettings, make=_make)
