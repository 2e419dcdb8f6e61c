"""A bucket of S3 with the credentials of the user that this process is: his ~/.aws. Imports botocore."""

from __future__ import annotations

import base64
import errno
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import botocore.session
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    HTTPClientError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
)
from botocore.exceptions import (
    ConnectionError as NoConnection,
)
from urllib3.exceptions import HTTPError

from staging.objects.user_store import (
    PART_BYTES,
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

PROFILE = "burst"
_MOST_PARTS = 10_000
_COPIED_AT_ONCE = 5 << 30
_BLOCK = 1 << 20
_NOT_THERE = frozenset({"NoSuchKey", "NotFound", "404", "NoSuchUpload"})
_WRONG_KEY = frozenset(
    {"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "TokenRefreshRequired"}
)
_FULL = frozenset({"QuotaExceeded", "XMinioStorageFull", "InsufficientStorage", "StorageFull", "507"})
_RETRYABLE = frozenset(
    {"SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded", "TooManyRequests", "RequestTimeout",
     "InternalError", "ServiceUnavailable", "OperationAborted", "BadDigest", "IncompleteBody"}
)  # fmt: skip


def prepare() -> Callable[[str], UserS3Bucket]:
    """Reads botocore's files, which the user may not be able to; call the result, with a bucket, as the user."""
    nothing = {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
    os.environ.update(nothing)
    try:
        session = botocore.session.Session()
        loader = session.get_component("data_loader")
        # The keys are none: they only keep it from looking for some.
        session.create_client(
            "s3", "us-east-1", aws_access_key_id="none", aws_secret_access_key="none", config=_config()
        ).close()
    finally:
        for name in nothing:
            del os.environ[name]
    "burst".encode("idna")  # what the standard library reads at the first connection
    return lambda bucket: UserS3Bucket(bucket, loader)


def _config() -> Config:
    # Servers other than AWS's do not all know its newer checksums; MD5s guard what is put.
    return Config(
        connect_timeout=10, read_timeout=60, max_pool_connections=16,
        retries={"mode": "standard", "total_max_attempts": 3},
        request_checksum_calculation="when_required", response_checksum_validation="when_required",
    )  # fmt: skip


class UserS3Bucket:
    """A bucket of S3 as a UserStore."""

    def __init__(self, bucket: str, loader: Any) -> None:
        """Reads ~/.aws. Raises OSError."""
        self.name = bucket
        # The machine's role is the site's: a user has what he has himself.
        os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
        self._file = str(Path("~/.aws/credentials").expanduser())
        with self.translated_errors(""):
            session = botocore.session.Session()
            session.register_component("data_loader", loader)
            self._profile = PROFILE if PROFILE in session.available_profiles else "default"
            if self._profile == PROFILE:
                session = botocore.session.Session(profile=PROFILE)
                session.register_component("data_loader", loader)
            if session.get_credentials() is None:
                raise self._no_credentials("")
            region = session.get_config_variable("region") or "us-east-1"
            self.client = session.create_client("s3", region, config=_config())
        self.origin = f"{self.client.meta.endpoint_url} {bucket}"

    def url(self, key: str) -> str:
        """Returns the URL to show to people."""
        return f"s3://{self.name}/{key}"

    def list_sorted(self, prefix: str) -> Iterator[UserObject]:
        """Lists the objects whose key begins so, in the order of keys."""
        return sorted_by_key(self.list_unsorted(prefix))

    def list_unsorted(self, prefix: str) -> Iterator[UserObject]:
        """Lists the objects whose key begins so, in the server's order."""
        return checked_listing(prefix, self._pages(prefix))

    def _pages(self, prefix: str) -> Iterator[list[UserObject]]:
        token: dict[str, str] = {}
        while True:
            with self.translated_errors(prefix):
                page = self.client.list_objects_v2(Bucket=self.name, Prefix=prefix, **token)
            yield [
                UserObject(row["Key"], row["Size"], int(row["LastModified"].timestamp() * 10**9), row["ETag"])
                for row in page.get("Contents", ())
            ]
            if not page.get("IsTruncated"):
                return
            more = page.get("NextContinuationToken", "")
            if not more or token.get("ContinuationToken") == more:
                text = "the server says that there are more objects, and not where they begin"
                raise OSError(errno.EINVAL, text, self.url(prefix))
            token = {"ContinuationToken": more}

    def head(self, key: str) -> UserObjectHead | None:
        """Returns one object; None: it is not there."""
        try:
            with self.translated_errors(key):
                about = self.client.head_object(Bucket=self.name, Key=key)
        except FileNotFoundError:
            return None
        when = int(about["LastModified"].timestamp() * 10**9)
        found = UserObject(key, about["ContentLength"], when, about["ETag"])
        return UserObjectHead(found, parse_mtime(about.get("Metadata", {}).get("mtime", ""), when))

    def read_range(self, found: UserObject, offset: int, length: int) -> Iterator[bytes]:
        """Reads bytes of the object as it was found; EAGAIN: it has changed since."""
        with self.translated_errors(found.key):
            answer = self.client.get_object(
                Bucket=self.name, Key=found.key, IfMatch=found.tag, Range=f"bytes={offset}-{offset + length - 1}"
            )
            with answer["Body"] as body:
                while block := body.read(_BLOCK):
                    yield block

    def part_ranges(self, size: int) -> list[tuple[int, int]]:
        """Returns the parts (offset, length) in which an object of this size is put."""
        return cut_into_parts(size, PART_BYTES, _MOST_PARTS) if size > PART_BYTES else [(0, size)]

    def put(self, key: str, part: FilePart, mtime_ns: int) -> None:
        """Writes an object."""
        with self.translated_errors(key):
            self.client.put_object(
                Bucket=self.name, Key=key, Body=part, ContentMD5=_md5(part), Metadata={"mtime": format_mtime(mtime_ns)}
            )

    def begin_upload(self, key: str, mtime_ns: int) -> MultipartUpload:
        """Begins an object of several parts."""
        self._abort_earlier_uploads(key)
        with self.translated_errors(key):
            said = self.client.create_multipart_upload(
                Bucket=self.name, Key=key, Metadata={"mtime": format_mtime(mtime_ns)}
            )
        return _S3Upload(self, key, said["UploadId"])

    def copy(self, source: UserObject, key: str) -> None:
        """Makes a second object of the same content."""
        if source.size > _COPIED_AT_ONCE:
            raise OSError(errno.EFBIG, "is too large to be copied within S3 in one call", self.url(key))
        with self.translated_errors(key):
            origin = {"Bucket": self.name, "Key": source.key}
            self.client.copy_object(Bucket=self.name, Key=key, CopySource=origin)

    def delete(self, key: str) -> None:
        """Removes objects; a missing one is no error."""
        with suppress(FileNotFoundError), self.translated_errors(key):
            self.client.delete_object(Bucket=self.name, Key=key)

    def check_writable(self, key: str) -> None:
        """Begins an upload, which needs the same right, and ends it."""
        with self.translated_errors(key):
            upload = self.client.create_multipart_upload(Bucket=self.name, Key=key)["UploadId"]
            self.client.abort_multipart_upload(Bucket=self.name, Key=key, UploadId=upload)

    def _abort_earlier_uploads(self, key: str) -> None:
        """What a machine that lost its power left of an earlier try. Not seeing it, for want of rights, is no error."""
        with suppress(OSError), self.translated_errors(key):
            page = self.client.list_multipart_uploads(Bucket=self.name, Prefix=key)
            for upload in page.get("Uploads", ()):
                if upload["Key"] == key:
                    self.client.abort_multipart_upload(Bucket=self.name, Key=key, UploadId=upload["UploadId"])

    def _no_credentials(self, key: str) -> OSError:
        text = f"there are no credentials in {self._file}: write an access key there, under [{PROFILE}] or [default]"
        return PermissionError(errno.EACCES, text, self.url(key))

    @contextmanager
    def translated_errors(self, key: str) -> Iterator[None]:
        """Errors of botocore as OSError with a sentence."""
        try:
            yield
        except ClientError as error:
            raise self._response_error(key, error) from None
        except (NoCredentialsError, PartialCredentialsError):
            raise self._no_credentials(key) from None
        except (CredentialRetrievalError, ProfileNotFound) as error:
            raise PermissionError(errno.EACCES, f"{error}; correct {self._file}", self.url(key)) from None
        except (NoConnection, HTTPClientError, HTTPError) as error:
            raise OSError(TRANSIENT_ERRNO, f"the server does not answer: {error}", self.url(key)) from None
        except (BotoCoreError, ValueError) as error:
            text = f"{error}; look at {self._file} and at the file config beside it"
            raise OSError(errno.EINVAL, text, self.url(key)) from None

    def _response_error(self, key: str, error: ClientError) -> OSError:
        code = str(error.response.get("Error", {}).get("Code", ""))
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        url = self.url(key)
        if code == "NoSuchBucket":
            return FileNotFoundError(errno.ENOENT, f"there is no bucket {self.name}", url)
        if code in _NOT_THERE:
            return FileNotFoundError(errno.ENOENT, "there is no such object", url)
        if code in _FULL:
            return OSError(errno.ENOSPC, f"the server has no space: {code}", url)
        if code in _WRONG_KEY:
            text = f"the server does not take the access key of profile {self._profile} ({code}); correct {self._file}"
            return PermissionError(errno.EACCES, text, url)
        if status == 412:
            return OSError(
                TRANSIENT_ERRNO, "changes while it is read; see that nothing writes it while it is staged", url
            )
        if code in _RETRYABLE or status in {408, 429} or status >= 500:
            return OSError(
                TRANSIENT_ERRNO, f"the server has no time or is broken ({code or status}); it is asked again", url
            )
        text = f"the credentials of profile {self._profile} in {self._file} do not allow it"
        if status in {401, 403}:
            return PermissionError(errno.EACCES, f"{text} ({code}); ask the owner of the bucket", url)
        hint = "see region and endpoint_url in the file config beside it"
        return OSError(errno.EINVAL, f"the server refuses: {code or status}; look at {self._file}, {hint}", url)


class _S3Upload:
    """A multipart upload."""

    def __init__(self, bucket: UserS3Bucket, key: str, upload: str) -> None:
        self._bucket = bucket
        self._key = key
        self._location = {"Bucket": bucket.name, "Key": key, "UploadId": upload}
        self._tags: dict[int, str] = {}

    def put_part(self, number: int, part: FilePart) -> None:
        """Puts part ``number``, from 0."""
        with self._bucket.translated_errors(self._key):
            said = self._bucket.client.upload_part(
                **self._location, PartNumber=number + 1, Body=part, ContentMD5=_md5(part)
            )
        self._tags[number] = said["ETag"]

    def complete(self) -> None:
        """Makes the object of its parts."""
        parts = [{"PartNumber": number + 1, "ETag": tag} for number, tag in sorted(self._tags.items())]
        with self._bucket.translated_errors(self._key):
            self._bucket.client.complete_multipart_upload(**self._location, MultipartUpload={"Parts": parts})

    def abort(self) -> None:
        """Removes unfinished puts; a missing one is no error."""
        with suppress(FileNotFoundError), self._bucket.translated_errors(self._key):
            self._bucket.client.abort_multipart_upload(**self._location)


def _md5(part: FilePart) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    part.seek(0)
    while block := part.read(_BLOCK):
        digest.update(block)
    part.seek(0)
    return base64.b64encode(digest.digest()).decode()
