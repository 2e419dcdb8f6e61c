"""The store that is a bucket of S3, or of a server that speaks it.

Objects are small enough to be put in one call, so that a put is whole or not there, and no part of one is left. The
common runtime of AWS (awscrt) is not used: it refuses endpoints that are addresses.
"""

from __future__ import annotations

import base64
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

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
_SIDE_BY_SIDE = 16
_EMPTY_PAGES = 100
_MOST_PAGES = 100_000
"""A hundred million objects."""
_DIRECTORY_BUCKET = "--x-s3"
"""Ends the name of a bucket of S3 Express, which lists in no order and from no key on."""
_NOT_THERE = frozenset({"NoSuchKey", "404", "NotFound", "NoSuchUpload"})
_FULL = frozenset({"QuotaExceeded", "XMinioStorageFull", "InsufficientStorage", "StorageFull", "507"})
_RETRYABLE = frozenset(
    {"SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded", "TooManyRequests", "RequestTimeout",
     "RequestTimeoutException", "InternalError", "ServiceUnavailable", "OperationAborted",
     "BadDigest", "IncompleteBody", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch"}
)  # fmt: skip


class S3Settings(BaseModel):
    """``[staging.stores.NAME]`` of kind ``s3``. Times in seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bucket: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{1,254}$")]
    endpoint: Annotated[str, Field(pattern=r"^(https?://\S+)?$")] = ""
    """Of a server that is not AWS."""
    node_endpoint: Annotated[str, Field(pattern=r"^(https?://\S+)?$")] = ""
    """As cloud nodes see it; ``endpoint`` where it is not given."""
    region: str = "us-east-1"
    prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]*$")] = "burstd"
    """What all keys begin with, before the cluster's name."""
    access_key_file: Path | None = Field(default=None, json_schema_extra={"secret": True})
    """Access key and secret key, a line each. Without it: what boto3 finds, the machine's role among it."""
    addressing: Literal["auto", "path", "virtual"] = "auto"
    ca_file: Path | None = None
    """CA certificates for a server with a private CA."""
    connections: Annotated[int, Field(ge=1, le=200)] = 32
    connect_timeout_s: Annotated[float, Field(gt=0)] = 10.0
    timeout_s: Annotated[float, Field(gt=0)] = 60.0
    """How long nothing may move while an answer is due."""


class S3Stager:
    """Objects under ``PREFIX/CLUSTER/`` of a bucket."""

    def __init__(self, name: str, cluster: str, settings: S3Settings) -> None:
        self.name = name
        self._settings = settings
        self._where = f"the bucket {settings.bucket} at {settings.endpoint or f'AWS {settings.region}'}"
        self._key_prefix = f"{settings.prefix}/{cluster_prefix(cluster)}/"
        self._lock = threading.Lock()
        self._clients: dict[str, Any] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._no_bulk_delete = False

    def put(self, key: str, body: bytes | memoryview) -> None:
        """Writes an object; the server compares a CRC-32 where it supports that."""
        content = _as_bytes(body)
        check = base64.b64encode(zlib.crc32(content).to_bytes(4, "big")).decode()
        with self._client_for(f"put the object {key}") as client:
            client.put_object(**self._location(key), Body=content, ChecksumCRC32=check)

    def get(self, key: str) -> bytes:
        """Returns an object's content."""
        with self._client_for(f"give the object {key}") as client:
            answer = client.get_object(**self._location(key))
            with answer["Body"] as stream:
                content: bytes = stream.read(OBJECT_BYTES + 1)
        if len(content) > OBJECT_BYTES:
            raise ObjectTooLarge(f"{self._where} gives more than {OBJECT_BYTES} bytes for the object {key}")
        # botocore compares only where all is read without a limit.
        due = answer.get("ContentLength", len(content))
        if len(content) != due:
            raise StoreBusy(f"{self._where} does not give the object {key}: {len(content)} of {due} bytes came")
        return content

    def present(self, keys: Sequence[str]) -> Mapping[str, int]:
        """Returns the sizes of those that are there."""
        page = None if self._settings.bucket.endswith(_DIRECTORY_BUCKET) else self._page
        return lookup.present([valid_key(key) for key in keys], page, self._sizes)

    def copy(self, source: str, target: str) -> None:
        """Makes a second object of the same content within the server."""
        origin = self._location(source)
        with self._client_for(f"copy the object {source}") as client:
            client.copy_object(**self._location(target), CopySource=origin)

    def delete(self, keys: Sequence[str]) -> None:
        """Removes objects, a thousand a call, or one by one where the server lacks that call."""
        for start in range(0, len(keys), _DELETED_AT_ONCE):
            some = keys[start : start + _DELETED_AT_ONCE]
            if self._no_bulk_delete or not self._delete_together(some):
                self._no_bulk_delete = True
                for _ in self._side_by_side(self._delete_one, some):
                    pass

    def objects(self, prefix: str) -> Iterator[StoredObject]:
        """Lists the objects whose key begins so, page by page."""
        token: dict[str, str] = {}
        empty = 0
        for _ in range(_MOST_PAGES):
            with self._client_for("list its objects") as client:
                page = client.list_objects_v2(Bucket=self._settings.bucket, Prefix=self._key_prefix + prefix, **token)
            rows = page.get("Contents", ())
            for row in rows:
                if not row["Key"].startswith(self._key_prefix + prefix):
                    raise StoreBusy(f"{self._where} lists {row['Key']!r}, which was not asked for: is it one of S3?")
                yield self._listed(row)
            if not page.get("IsTruncated"):
                return
            empty = 0 if rows else empty + 1
            more = page.get("NextContinuationToken", "")
            if not more or token.get("ContinuationToken") == more or empty > _EMPTY_PAGES:
                break
            token = {"ContinuationToken": more}
        raise StoreBusy(f"{self._where} lists its objects without an end: is it one of S3?")

    def unfinished(self) -> Iterator[UnfinishedUpload]:
        """Lists multipart uploads: burstd makes none, and lifecycles rarely end those of others."""
        marker: dict[str, str] = {}
        for _ in range(_MOST_PAGES):
            with self._client_for("list its uploads") as client:
                page = client.list_multipart_uploads(Bucket=self._settings.bucket, Prefix=self._key_prefix, **marker)
            for upload in page.get("Uploads", ()):
                key = upload["Key"].removeprefix(self._key_prefix)
                yield UnfinishedUpload(upload["UploadId"], key, upload["Initiated"].timestamp())
            if not page.get("IsTruncated"):
                return
            before = marker
            marker = {mark: page[f"Next{mark}"] for mark in ("KeyMarker", "UploadIdMarker") if page.get(f"Next{mark}")}
            if not marker or marker == before:
                break
        raise StoreBusy(f"{self._where} lists its uploads without an end: is it one of S3?")

    def abort(self, unfinished: Sequence[UnfinishedUpload]) -> None:
        """Removes unfinished puts; a missing one is no error."""
        for upload in unfinished:
            with suppress(NoSuchObject), self._client_for(f"end an upload of {upload.key}") as client:
                client.abort_multipart_upload(**self._location(upload.key), UploadId=upload.id)

    def free_bytes(self) -> int | None:
        """A bucket does not say."""
        return None

    def node_access(self) -> NodeAccess:
        """By signed URLs."""
        return NodeAccess("http")

    def sign(self, method: Literal["GET", "PUT"], keys: Sequence[str]) -> Mapping[str, str]:
        """Returns a URL for each object."""
        call = {"GET": "get_object", "PUT": "put_object"}[method]
        with self._client_for("sign URLs", self._settings.node_endpoint or self._settings.endpoint) as client:
            return {
                key: client.generate_presigned_url(
                    call, Params=self._location(key), ExpiresIn=_SIGNED_S, HttpMethod=method
                )
                for key in keys
            }

    def close(self) -> None:
        """Gives connections back."""
        with self._lock:
            pool, self._pool = self._pool, None
            clients, self._clients = self._clients, {}
        if pool is not None:
            pool.shutdown()
        for client in clients.values():
            client.close()

    def _location(self, key: str) -> dict[str, str]:
        return {"Bucket": self._settings.bucket, "Key": self._key_prefix + valid_key(key)}

    def _listed(self, row: Mapping[str, Any]) -> StoredObject:
        return StoredObject(row["Key"].removeprefix(self._key_prefix), row["Size"], row["LastModified"].timestamp())

    def _page(self, after: str) -> tuple[Sequence[StoredObject], bool]:
        with self._client_for("list its objects") as client:
            page = client.list_objects_v2(
                Bucket=self._settings.bucket,
                Prefix=self._key_prefix,
                StartAfter=self._key_prefix + after,
                MaxKeys=lookup.PAGE_SIZE,
            )
        return [self._listed(row) for row in page.get("Contents", ())], bool(page.get("IsTruncated"))

    def _sizes(self, keys: Sequence[str]) -> Iterator[tuple[str, int | None]]:
        return zip(keys, self._side_by_side(self._size, keys), strict=True)

    def _size(self, key: str) -> int | None:
        try:
            with self._client_for(f"look for the object {key}") as client:
                return int(client.head_object(**self._location(key))["ContentLength"])
        except NoSuchObject:
            return None

    def _delete_together(self, keys: Sequence[str]) -> bool:
        from botocore.exceptions import ClientError  # noqa: PLC0415 - see _client

        request = {"Objects": [{"Key": self._key_prefix + valid_key(key)} for key in keys], "Quiet": True}
        with self._client_for("remove objects") as client:
            try:
                answer = client.delete_objects(Bucket=self._settings.bucket, Delete=request)
            except ClientError as error:
                if error.response.get("Error", {}).get("Code") in {"NotImplemented", "MethodNotAllowed", "501", "405"}:
                    return False
                raise
        for fault in answer.get("Errors", ()):
            if fault.get("Code") not in _NOT_THERE:
                what = (
                    f"{self._where} did not remove {fault.get('Key')}: {fault.get('Code')} {fault.get('Message', '')}"
                )
                raise StoreRefused(what) if fault.get("Code") == "AccessDenied" else StoreBusy(what)
        return True

    def _delete_one(self, key: str) -> None:
        with suppress(NoSuchObject), self._client_for(f"remove the object {key}") as client:
            client.delete_object(**self._location(key))

    def _side_by_side(self, one: Any, keys: Sequence[str]) -> Iterator[Any]:
        if len(keys) < 2:
            return map(one, keys)
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_SIDE_BY_SIDE, thread_name_prefix=f"burstd-{self.name}")
            return self._pool.map(one, keys)

    @contextmanager
    def _client_for(self, what: str, endpoint: str | None = None) -> Iterator[Any]:
        """The client, and its errors in the kinds of StagerError."""
        client = self._client(self._settings.endpoint if endpoint is None else endpoint)
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - see _client

        try:
            yield client
        except ClientError as error:
            raise self._response_error(what, error) from None
        except BotoCoreError as error:
            raise self._transport_error(what, error) from None
        except RecursionError:
            # botocore asks for a bucket's region where a redirect says that it is another, and is redirected again.
            sentence = f"{self._where} does not {what}: it redirects every request. Look at endpoint and region"
            raise StoreRefused(sentence) from None

    def _client(self, endpoint: str) -> Any:
        with self._lock:
            if endpoint not in self._clients:
                self._clients[endpoint] = self._new_client(endpoint)
            return self._clients[endpoint]

    def _new_client(self, endpoint: str) -> Any:
        at = self._settings
        try:
            # Late: half a second, and sites without S3 have no boto3.
            import boto3  # noqa: PLC0415
            from botocore.config import Config  # noqa: PLC0415
        except ImportError:
            raise StoreRefused(f"the store {self.name} needs boto3: pip install 'burstd[s3]'") from None
        access: dict[str, str] = {}
        if at.access_key_file is not None:
            try:
                words = at.access_key_file.read_text(encoding="ascii").split()
            except (OSError, UnicodeDecodeError) as error:
                reason = error.strerror if isinstance(error, OSError) else "it is no text"
                raise StoreRefused(f"{at.access_key_file} cannot be read: {reason}") from None
            if len(words) != 2:
                raise StoreRefused(f"{at.access_key_file} must hold an access key and a secret key, a line each")
            access = {"aws_access_key_id": words[0], "aws_secret_access_key": words[1]}
        config = Config(
            signature_version="s3v4",
            connect_timeout=at.connect_timeout_s,
            read_timeout=at.timeout_s,
            max_pool_connections=at.connections,
            retries={"mode": "standard", "total_max_attempts": 2},
            # A digest of each body for its signature costs as much as sending it; put's CRC-32 guards it.
            s3={"addressing_style": at.addressing, "payload_signing_enabled": False},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        verify: bool | str | None = None if at.ca_file is None else str(at.ca_file)
        session = boto3.session.Session(**access)
        return session.client("s3", endpoint_url=endpoint or None, region_name=at.region, config=config, verify=verify)

    def _response_error(self, what: str, error: Any) -> StoreBusy | StoreRefused | StoreSpaceGone | NoSuchObject:
        said = error.response.get("Error", {})
        about = error.response.get("ResponseMetadata", {})
        code, status = str(said.get("Code", "")), about.get("HTTPStatusCode", 0)
        sentence = f"{self._where} does not {what}: {code} {said.get('Message', '')}".rstrip()
        if code == "NoSuchBucket":
            return StoreRefused(f"{self._where} is not there: make it, or correct bucket")
        if code in _FULL or status == 507:
            return StoreSpaceGone(sentence)
        if code in _NOT_THERE:
            return NoSuchObject(sentence)
        if code in _RETRYABLE or status in {408, 425, 429} or status >= 500:
            after = about.get("HTTPHeaders", {}).get("retry-after", "")
            return StoreBusy(sentence, float(after) if after.isdigit() else 0.0)
        self._drop_clients()
        return StoreRefused(f"{sentence}. Look at access_key_file and at what the bucket's policy allows")

    def _transport_error(self, what: str, error: Any) -> StoreBusy | StoreRefused:
        from botocore import exceptions  # noqa: PLC0415 - see _client

        sentence = f"{self._where} does not {what}: {error}"
        if isinstance(error, exceptions.SSLError):
            return StoreRefused(f"{sentence}. Where the certificate is of an authority of your own, name ca_file")
        if isinstance(error, exceptions.ConnectionError | exceptions.HTTPClientError | exceptions.IncompleteReadError):
            return StoreBusy(sentence)
        if isinstance(error, exceptions.NoCredentialsError | exceptions.PartialCredentialsError):
            self._drop_clients()
            return StoreRefused(f"{self._where}: there are no credentials: give access_key_file, or the machine a role")
        if isinstance(error, exceptions.CredentialRetrievalError | exceptions.MetadataRetrievalError):
            return StoreBusy(sentence)
        return StoreRefused(sentence)

    def _drop_clients(self) -> None:
        """So that a corrected file of keys is read."""
        with self._lock:
            self._clients.clear()


def _as_bytes(body: bytes | memoryview) -> bytes | bytearray:
    """What boto3 takes. A view of all of a bytearray is not copied: fresh memory costs more than the digest."""
    if isinstance(body, bytes):
        return body
    whole = body.obj
    return whole if isinstance(whole, bytearray) and len(whole) == body.nbytes else bytes(body)


def _make(name: str, cluster: str, settings: S3Settings) -> S3Stager:
    return S3Stager(name, cluster, settings)


plugin = StagerPlugin(name="s3", settings=S3Settings, make=_make)
