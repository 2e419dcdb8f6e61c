"""A container of Swift with the credentials of the user that this process is: his clouds.yaml. Imports openstacksdk."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import openstack.config
from keystoneauth1 import exceptions, loading
from urllib3.exceptions import HTTPError

from staging.objects import swift_access
from staging.objects.user_store import (
    TRANSIENT_ERRNO,
    FilePart,
    MultipartUpload,
    UserObject,
    UserObjectHead,
    checked_listing,
    cut_into_parts,
    format_mtime,
    parse_mtime,
    sorted_by_key,
)

CLOUD = "burst"
_WHOLE_BYTES = 5 << 30
"""What Swift takes in one object."""
_SEGMENT_BYTES = 64 << 20
"""Larger objects are put in parts, side by side."""
_MOST_PARTS = 1000
_BLOCK = 1 << 20
_PAGE = 5000
_TRIES = 3
_TIMEOUT_S = 60.0
_STAMP_HEADER = "X-Object-Meta-Mtime"
_TEMPAUTH = frozenset({"v1password", "v1", "v1auth", "tempauth"})
_KINDS = ("password", "v3password", "token", "v3token", "v3applicationcredential", "v3oidcclientcredentials")


def prepare() -> Callable[[str], UserSwiftContainer]:
    """Reads openstacksdk's files, which the user may not be able to; call the result, with a container, as the user."""
    openstack.config.OpenStackConfig(config_files=[os.devnull], vendor_files=[os.devnull], load_envvars=False)
    for kind in _KINDS:
        with suppress(exceptions.NoMatchingPlugin):
            loading.get_plugin_loader(kind)
    "burst".encode("idna")  # what the standard library reads at the first connection
    return UserSwiftContainer


class UserSwiftContainer:
    """A container of Swift as a UserStore. Large objects are static ones, with segments in CONTAINER_segments."""

    def __init__(self, container: str) -> None:
        """Reads ~/.config/openstack/clouds.yaml. Raises OSError."""
        self._container = container
        self._cloud = CLOUD
        self._file = str(Path("~/.config/openstack/clouds.yaml").expanduser())
        try:
            self._session, found = self._open_session()
            self._base = found.rstrip("/")
        except openstack.exceptions.ConfigException as error:
            raise self._settings_error(f"the cloud {self._cloud} cannot be used: {error}") from None
        except exceptions.ClientException as error:
            raise self._transport_error("", error) from None
        if not self._base:
            raise self._settings_error(f"the cloud {self._cloud} has no object-store in its catalogue")
        self.origin = f"{self._base}/{container}"

    def url(self, key: str) -> str:
        """Returns the URL to show to people."""
        return f"swift://{self._container}/{key}"

    def list_sorted(self, prefix: str) -> Iterator[UserObject]:
        """Lists the objects whose key begins so, in the order of keys."""
        return sorted_by_key(self.list_unsorted(prefix))

    def list_unsorted(self, prefix: str) -> Iterator[UserObject]:
        """Lists the objects whose key begins so, in the server's order."""
        return checked_listing(prefix, self._pages(prefix))

    def _pages(self, prefix: str) -> Iterator[list[UserObject]]:
        after = ""
        while True:
            query = {"format": "json", "prefix": prefix, "limit": str(_PAGE), "marker": after}
            answer = self.send_request("GET", self.object_path(), prefix, params=query)
            page = answer.json() if answer.status_code != 204 else []
            yield [
                UserObject(
                    row["name"], row["bytes"], _ns(row["last_modified"]),
                    str(row.get("slo_etag") or row["hash"]).strip('"'),
                )
                for row in page
            ]  # fmt: skip
            if not page:
                return
            after = page[-1]["name"]

    def head(self, key: str) -> UserObjectHead | None:
        """Returns one object; None: it is not there."""
        try:
            about = self.send_request("HEAD", self.object_path(key), key).headers
        except FileNotFoundError:
            return None
        when = int(float(about["X-Timestamp"]) * 10**9)
        found = UserObject(key, int(about["Content-Length"]), when, about["Etag"].strip('"'))
        return UserObjectHead(found, parse_mtime(about.get(_STAMP_HEADER, ""), when))

    def read_range(self, found: UserObject, offset: int, length: int) -> Iterator[bytes]:
        """Reads bytes of the object as it was found; EAGAIN: it has changed since."""
        headers = {"Range": f"bytes={offset}-{offset + length - 1}", "If-Match": f'"{found.tag}"'}
        with closing(
            self.send_request("GET", self.object_path(found.key), found.key, headers=headers, stream=True)
        ) as answer:
            try:
                while block := answer.raw.read(_BLOCK):
                    yield block
            except (HTTPError, OSError) as error:
                raise OSError(TRANSIENT_ERRNO, f"the connection broke: {error}", self.url(found.key)) from None

    def part_ranges(self, size: int) -> list[tuple[int, int]]:
        """Returns the parts (offset, length) in which an object of this size is put."""
        return cut_into_parts(size, _SEGMENT_BYTES, _MOST_PARTS) if size > _SEGMENT_BYTES else [(0, size)]

    def put(self, key: str, part: FilePart, mtime_ns: int) -> None:
        """Writes an object."""
        old = self.segments(key)
        headers = {
            "ETag": _md5(part),
            "Content-Type": "application/octet-stream",
            _STAMP_HEADER: format_mtime(mtime_ns),
        }
        self.send_request("PUT", self.object_path(key), key, data=part, headers=headers)
        self.delete_segments(old)

    def begin_upload(self, key: str, mtime_ns: int) -> MultipartUpload:
        """Begins an object of several parts."""
        segments = f"{self._container}_segments"
        self.send_request("PUT", f"/{quote(segments)}", key)
        own = f"{key}/burst/"
        in_use = set(self.segments(key))
        query = {"format": "json", "prefix": own}
        listed = self.send_request("GET", f"/{quote(segments)}", key, params=query)
        left = [f"/{segments}/{row['name']}" for row in (listed.json() if listed.status_code != 204 else [])]
        # What a machine that lost its power left of an earlier try.
        self.delete_segments([path for path in left if path not in in_use])
        return _SwiftUpload(self, key, f"{segments}/{own}{time.time_ns()}", mtime_ns)

    def copy(self, source: UserObject, key: str) -> None:
        """Makes a second object of the same content."""
        if source.size > _WHOLE_BYTES:
            raise OSError(errno.EFBIG, "is too large to be copied within Swift in one call", self.url(key))
        headers = {"X-Copy-From": quote(f"{self._container}/{source.key}"), "Content-Length": "0"}
        old = self.segments(key)
        self.send_request("PUT", self.object_path(key), key, headers=headers)
        self.delete_segments(old)

    def delete(self, key: str) -> None:
        """Removes objects; a missing one is no error."""
        old = self.segments(key)
        with suppress(FileNotFoundError):
            self.send_request("DELETE", self.object_path(key), key)
        self.delete_segments(old)

    def check_writable(self, key: str) -> None:
        """Offers an object with another's checksum, which Swift refuses after it has checked the right to put it."""
        answer = self._send(
            "PUT",
            self.object_path(key),
            key,
            data=b"x",
            headers={"ETag": hashlib.md5(b"", usedforsecurity=False).hexdigest()},
        )
        if answer.status_code != 422:
            self._check(answer, key)

    def segments(self, key: str) -> list[str]:
        """Paths of the segments of a large object that is about to be replaced."""
        try:
            about = self.send_request("HEAD", self.object_path(key), key).headers
            if about.get("X-Static-Large-Object", "").lower() != "true":
                return []
            listed = self.send_request("GET", self.object_path(key), key, params={"multipart-manifest": "get"}).json()
        except FileNotFoundError:
            return []
        own = f"/{self._container}_segments/{key}/"
        return [row["name"] for row in listed if row["name"].startswith(own)]

    def delete_segments(self, segments: list[str]) -> None:
        """Removes them."""
        for path in segments:
            with suppress(FileNotFoundError):
                self.send_request("DELETE", quote(path), path)

    def object_path(self, key: str | None = None) -> str:
        """The path of an object, or of the container."""
        return quote(f"/{self._container}" if key is None else f"/{self._container}/{key}")

    def send_request(self, method: str, path: str, key: str, **words: Any) -> Any:
        """An answer that says yes. Raises OSError."""
        return self._check(self._send(method, path, key, **words), key)

    def _send(self, method: str, path: str, key: str, **words: Any) -> Any:
        for left in reversed(range(_TRIES)):
            if isinstance(part := words.get("data"), FilePart):
                part.seek(0)
            try:
                return self._session.request(
                    self._base + path, method, raise_exc=False, log=False, redirect=False, **words
                )
            except exceptions.ClientException as error:
                # A server may have closed a connection that waited for the next request.
                if not left or not isinstance(error, exceptions.ConnectFailure):
                    raise self._transport_error(key, error) from None
        raise AssertionError

    def _check(self, answer: Any, key: str) -> Any:
        status, url = answer.status_code, self.url(key)
        if status < 300:
            return answer
        answer.close()
        if status == 404:
            # An object's 404 and its container's are the same.
            whole = f"/{quote(self._container)}"
            if answer.request.method != "HEAD" and self._send("HEAD", whole, key).status_code == 404:
                raise FileNotFoundError(errno.ENOENT, f"there is no container {self._container}", url)
            raise FileNotFoundError(errno.ENOENT, "there is no such object", url)
        if status in {401, 403}:
            text = f"the credentials of {self._cloud} in {self._file} do not allow it; ask the container's owner"
            raise PermissionError(errno.EACCES, text, url)
        if status in {413, 507}:
            raise OSError(errno.ENOSPC, "the server has no space, or the container's quota is reached", url)
        if status == 412:
            text = "changes while it is read; see that nothing writes it while it is staged"
            raise OSError(TRANSIENT_ERRNO, text, url)
        if status in {408, 409, 422, 425, 429, 498, 499} or status >= 500:
            raise OSError(TRANSIENT_ERRNO, f"the server has no time or is broken ({status}); it is asked again", url)
        raise OSError(errno.EINVAL, f"the server refuses: {status} {answer.reason}", url)

    def _transport_error(self, key: str, error: exceptions.ClientException) -> OSError:
        temporary = isinstance(
            error, exceptions.ConnectFailure | exceptions.ConnectTimeout | exceptions.UnknownConnectionError
        )
        if temporary and not isinstance(error, exceptions.SSLError):
            return OSError(TRANSIENT_ERRNO, f"the server does not answer: {error}", self.url(key))
        text = f"{self._cloud} does not let in whom {self._file} names: {error}; correct that file"
        return PermissionError(errno.EACCES, text, self.url(key))

    def _settings_error(self, text: str) -> OSError:
        return PermissionError(errno.EACCES, f"{text}; look at {self._file}", self.url(""))

    def _open_session(self) -> tuple[Any, str]:
        """A session, and the URL of the account."""
        try:
            # All by name: it looked for the folder of its files when it was imported.
            folder = Path(self._file).parent
            config = openstack.config.OpenStackConfig(
                config_files=[self._file, str(folder / "clouds.yml"), str(folder / "clouds.json")],
                secure_files=[str(folder / "secure.yaml")],
                vendor_files=[str(folder / "clouds-public.yaml")],
                load_envvars=False,
            )
        except (openstack.exceptions.ConfigException, OSError, ValueError) as error:
            raise self._settings_error(f"it cannot be read: {error}") from None
        known: Mapping[str, Any] = (config.cloud_config or {}).get("clouds") or {}
        # "defaults" is openstacksdk's own, where there is none.
        clouds = {name: entry for name, entry in known.items() if (entry or {}).get("auth")}
        name = next((name for name in (CLOUD, "openstack", *clouds) if name in clouds), "")
        if not name:
            text = f"there are no credentials in {self._file}: write a cloud there that is called {CLOUD}"
            raise PermissionError(errno.EACCES, text, self.url(""))
        if len(clouds) > 1 and name not in {CLOUD, "openstack"}:
            raise self._settings_error(f"of its {len(clouds)} clouds none is called {CLOUD}")
        self._cloud = name
        entry = clouds[name]
        if str(entry.get("auth_type", "")) not in _TEMPAUTH:
            region = config.get_one(name, api_timeout=_TIMEOUT_S)
            return region.get_session(), str(region.get_session_endpoint("object-store") or "")
        auth = entry.get("auth") or {}
        lacks = [word for word in ("auth_url", "username", "password") if not auth.get(word)]
        if lacks:
            raise self._settings_error(f"the auth of cloud {name} lacks {', '.join(lacks)}")
        url, user, key = (str(auth[word]) for word in ("auth_url", "username", "password"))
        session = swift_access.tempauth_session(url, user, key, _TIMEOUT_S, str(entry.get("cacert") or ""))
        there = str(session.get_endpoint(service_type="object-store") or "")
        return session, str(entry.get("object_store_endpoint_override") or there)


class _SwiftUpload:
    """A static large object."""

    def __init__(self, container: UserSwiftContainer, key: str, prefix: str, mtime_ns: int) -> None:
        self._container = container
        self._key = key
        self._prefix = prefix
        self._mtime_ns = mtime_ns
        self._parts: dict[int, tuple[str, int]] = {}
        self._begun: set[int] = set()

    def put_part(self, number: int, part: FilePart) -> None:
        """Puts part ``number``, from 0."""
        digest = _md5(part)
        self._begun.add(number)
        self._container.send_request("PUT", quote(self._path(number)), self._key, data=part, headers={"ETag": digest})
        self._parts[number] = (digest, part.length)

    def complete(self) -> None:
        """Makes the object of its parts."""
        old = self._container.segments(self._key)
        segments = [
            {"path": self._path(number), "etag": digest, "size_bytes": size}
            for number, (digest, size) in sorted(self._parts.items())
        ]
        headers = {_STAMP_HEADER: format_mtime(self._mtime_ns), "Content-Type": "application/octet-stream"}
        self._container.send_request(
            "PUT", self._container.object_path(self._key), self._key, params={"multipart-manifest": "put"},
            data=json.dumps(segments).encode(), headers=headers,
        )  # fmt: skip
        self._container.delete_segments(old)

    def abort(self) -> None:
        """Removes unfinished puts; a missing one is no error."""
        self._container.delete_segments([self._path(number) for number in sorted(self._begun)])

    def _path(self, number: int) -> str:
        return f"/{self._prefix}/{number:08d}"


def _md5(part: FilePart) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    part.seek(0)
    while block := part.read(_BLOCK):
        digest.update(block)
    part.seek(0)
    return digest.hexdigest()


def _ns(text: str) -> int:
    when = datetime.fromisoformat(text).replace(tzinfo=UTC)
    return int(when.timestamp()) * 10**9 + when.microsecond * 1000
