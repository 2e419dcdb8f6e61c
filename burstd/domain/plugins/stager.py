"""The interface of a stager: one store of objects beside the cloud nodes. burstd.transfer fills the objects."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from burstd.domain.errors import BurstdError

OBJECT_BYTES = 32 << 20
"""No object is larger: it is sent in one piece, and what a broken connection loses is at most this."""
KEY_LENGTH = 200
_KEY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(?:/[A-Za-z0-9_-][A-Za-z0-9._-]*)*", re.ASCII)


class StagerError(BurstdError):
    """A store's call failed. The message names the store, what was asked and the remedy; no secrets."""


class StoreBusy(StagerError):
    """Ask again later: a timeout, a lost connection, a rate limit, a server error."""

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class StoreRefused(StagerError):
    """Credentials or rights are missing, or the store (bucket, container, folder) is not there."""


class ObjectTooLarge(StoreRefused):
    """The object of this key is larger than OBJECT_BYTES: whoever put it there, it is not what its name says."""


class StoreSpaceGone(StagerError):
    """The store is full, or its quota is."""


class NoSuchObject(StagerError):
    """There is no object of this key."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object as listed. ``size`` in bytes, ``modified`` in seconds since 1970 by the store's clock."""

    key: str
    size: int
    modified: float


@dataclass(frozen=True, slots=True)
class UnfinishedUpload:
    """A put that never ended: a multipart upload, a temporary file. ``begun`` in seconds since 1970."""

    id: str
    key: str
    started: float


@dataclass(frozen=True, slots=True)
class NodeAccess:
    """How an agent on a node gets and puts objects. ``facts`` may hold secrets: they go to the agent's standard input.

    ``dir``: facts ``path``, the folder with the objects as the node sees it, and ``mark``, a word: the agent uses the
    folder only where ``.MARK`` is in it, which the stager has made, so that no folder of the node is taken for the
    store where the store is not mounted. Without a mark it is made where it is missing.
    ``ssh``: facts ``host``, ``port``, ``user``, ``key`` (private key, OpenSSH text), ``host_keys`` (lines of
    known_hosts without the host), ``command`` (what is run there: burstd.transfer.protocol.server).
    ``http``: no facts; the agent asks for each key a URL, which ``Stager.sign`` gives.
    """

    kind: Literal["dir", "ssh", "http"]
    facts: Mapping[str, Any] = field(default_factory=dict, repr=False)


def is_key(text: str) -> bool:
    """Whether a store takes it: ``[A-Za-z0-9._/-]``, at most KEY_LENGTH; parts between slashes begin with no dot."""
    return len(text) <= KEY_LENGTH and _KEY.fullmatch(text) is not None


def valid_key(key: str) -> str:
    """The key, if it is one. Raises StoreRefused."""
    if not is_key(key):
        raise StoreRefused(f"{key!r} is no key of an object")
    return key


def object_too_large(key: str) -> ObjectTooLarge:
    """The error for an object that is larger than any of ours."""
    return ObjectTooLarge(f"the object {key} is larger than {OBJECT_BYTES} bytes, so it is none of burstd's")


class Stager(Protocol):
    """A store. Calls block, are made from several threads at once, and raise StagerError kinds only.

    Keys are such that ``is_key`` takes (others are a StoreRefused), and none is what another has before a slash; a put
    is whole or not there. Constructed by an entry point of the group ``burstd.stagers`` (docs/stager-authors.md).
    """

    name: str

    def put(self, key: str, body: bytes | memoryview) -> None:
        """Writes an object of at most OBJECT_BYTES, replacing one of the same key. Raises StoreSpaceGone."""
        ...

    def get(self, key: str) -> bytes:
        """An object's content. Raises NoSuchObject, and ObjectTooLarge where it has more than OBJECT_BYTES."""
        ...

    def present(self, keys: Sequence[str]) -> Mapping[str, int]:
        """Of these keys, those that are there, with their sizes in bytes."""
        ...

    def copy(self, source: str, target: str) -> None:
        """Makes a second object of the same content within the store. Raises NoSuchObject."""
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """Removes them; keys that are gone already are no error."""
        ...

    def objects(self, prefix: str) -> Iterator[StoredObject]:
        """All objects whose key begins so, page by page; ends early only by raising."""
        ...

    def unfinished(self) -> Iterator[UnfinishedUpload]:
        """Puts of ours that have begun and not ended, those that are under way now among them."""
        ...

    def abort(self, unfinished: Sequence[UnfinishedUpload]) -> None:
        """Removes them; what is gone already is no error."""
        ...

    def free_bytes(self) -> int | None:
        """Room left, where the store can tell."""
        ...

    def node_access(self) -> NodeAccess:
        """How nodes get at it; asked in worker threads."""
        ...

    def sign(self, method: Literal["GET", "PUT"], keys: Sequence[str]) -> Mapping[str, str]:
        """URLs for one object each, good for an hour, for nodes (where ``reach`` is ``http``)."""
        ...

    def close(self) -> None:
        """Gives connections back."""
        ...


@runtime_checkable
class ServerStarter(Protocol):
    """An optional ability: who asks it starts its server, in place of another's whose settings differ.

    So a head that only wants to know whether it could lead does not ask.
    """

    starts_server: bool


@runtime_checkable
class InPlace(Protocol):
    """An optional ability: sources that nodes see as they are, so that nothing is sent."""

    def in_place(self, path: str) -> str | None:
        """The path by which nodes see this one of the head, None where they do not. Both absolute, as os.fsdecode."""
        ...


@runtime_checkable
class OnDemand(Protocol):
    """An optional ability: a store of which a part runs, and costs, only while somebody asks it something.

    burstd then looks through it once a day, and every few minutes only while it is awake anyway.
    """

    @property
    def awake(self) -> bool:
        """Whether it runs now, as far as is known here; nobody is asked."""
        ...


@dataclass(frozen=True, slots=True)
class StagerPlugin:
    """What an entry point of the group ``burstd.stagers`` names: how to make a stager from its settings."""

    name: str
    settings: type[Any]
    """A pydantic model that refuses unknown keys: the keys of ``[staging.stores.NAME]`` beside ``kind``."""
    make: Callable[[str, str, Any], Stager]
    """Takes the store's name, the cluster's name (objects of several clusters may share a bucket) and the settings;
    calls no store yet."""
