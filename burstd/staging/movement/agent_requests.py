"""What agents on nodes ask for and claim: bound to their job, and looked at before anything follows from it."""

from __future__ import annotations

import fnmatch
import hashlib
import re
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal, TypeVar

import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from burstd.domain.plugins.stager import OBJECT_BYTES, NoSuchObject, ObjectTooLarge, Stager, is_key
from burstd.domain.staging import ObjectRange, Tree
from burstd.staging.controller.tasks import CollectedCheckpoint, CollectedOutput, CommandEnd, StageFailed
from burstd.staging.directives.lexer import literal_text
from burstd.staging.movement.output_delivery import FILE_PREFIX, MISSING_KEY, WORKDIR_KEY
from burstd.transfer.content_store.index import ContentIndex
from burstd.transfer.content_store.manifest import (
    MAX_ENTRIES,
    MAX_TREE_BYTES,
    ManifestDamaged,
    ManifestEntry,
    decode_manifest,
    object_key,
)
from burstd.transfer.content_store.upload_pool import TransferCancelled
from burstd.transfer.privsep.client import printable
from burstd.transfer.trees.admission import admitted_entries

log = structlog.get_logger(__name__)

MAX_KEYS_PER_REQUEST = 1000
"""More objects no agent asks for in one question."""
_MANIFEST_PIECES = 1024
_MAX_PATH = 4096
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_MAX_WARNINGS = 1000
_MAX_WARNING_CHARS = 1000


class _AgentMessage(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


_Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", max_length=64)]
_PieceMessage = Annotated[tuple[_Digest, Literal[0], Annotated[int, Field(gt=0, le=OBJECT_BYTES)]], Field(strict=False)]


class _TreeMessage(_AgentMessage):
    digest: _Digest
    manifest: list[_PieceMessage] = Field(max_length=_MANIFEST_PIECES)
    entries: int = Field(ge=0, le=MAX_ENTRIES)
    size: int = Field(ge=0, le=MAX_TREE_BYTES)
    single: bool


_MessageT = TypeVar("_MessageT", bound=_AgentMessage)


def _validated(kind: type[_MessageT], node: str, reported: dict[str, Any]) -> _MessageT:
    try:
        return kind.model_validate(reported)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise StageFailed(f"{node}: {_FORGED} ({printable(where)}: {first['msg']})", retryable=True) from None


class _CollectedMessage(_AgentMessage):
    trees: list[_TreeMessage]
    files: list[_TreeMessage | None]
    missing: _TreeMessage | None
    workdir: _TreeMessage | None = None
    sent: int = Field(ge=0, le=MAX_TREE_BYTES)
    seconds: float = Field(ge=0, le=1e9, allow_inf_nan=False)
    warnings: list[str]


def parse_collected_output(
    node: str,
    prefix: str,
    lines: Sequence[int],
    files: Sequence[str],
    reported: dict[str, Any],
    *,
    workdir: bool = False,
) -> CollectedOutput:
    """What a node has put into the store, as its agent claims. ``lines``, ``files``, ``workdir``: what was asked for.

    Raises StageFailed where no agent of burstd's says so.
    """
    message = _validated(_CollectedMessage, node, reported)
    unasked = message.workdir is not None and (not workdir or message.workdir.single)
    if len(message.trees) != len(lines) or len(message.files) != len(files) or unasked:
        raise StageFailed(f"{node}: {_FORGED} (it was not asked for that)", retryable=True)
    named = {str(number): tree for number, tree in zip(lines, message.trees, strict=True)}
    named |= {f"{FILE_PREFIX}{path}": tree for path, tree in zip(files, message.files, strict=True) if tree is not None}
    named |= {MISSING_KEY: message.missing} if message.missing is not None else {}
    named |= {WORKDIR_KEY: message.workdir} if message.workdir is not None else {}
    if sum(tree.size for tree in named.values()) > MAX_TREE_BYTES:
        raise StageFailed(f"{node}: {_FORGED} (more bytes than any node has)", retryable=True)
    trees = {
        name: Tree(prefix, t.digest, tuple(ObjectRange(*piece) for piece in t.manifest), t.entries, t.size, t.single)
        for name, t in named.items()
    }
    warnings = tuple(printable(text[:_MAX_WARNING_CHARS]) for text in message.warnings[:_MAX_WARNINGS])
    return CollectedOutput(trees, message.sent, message.seconds, warnings)


_FORGED = "its agent tells of output what no agent of burstd's would: see who is root there, and replace it"


class _CheckpointMessage(_AgentMessage):
    path: str = Field(max_length=_MAX_PATH)
    fingerprint: str = Field(pattern=r"^([0-9a-f]{64})?$", max_length=64)
    tree: _TreeMessage | None
    changing: str
    sent: int = Field(ge=0, le=MAX_TREE_BYTES)
    seconds: float = Field(ge=0, le=1e9, allow_inf_nan=False)


def parse_collected_checkpoint(
    node: str, prefix: str, pattern: str, max_bytes: int, reported: dict[str, Any]
) -> CollectedCheckpoint:
    """What a node has put into the store of a checkpoint, as its agent claims. ``pattern``: that of the job's line.

    Raises StageFailed where no agent of burstd's says so.
    """
    message = _validated(_CheckpointMessage, node, reported)
    tree, t = None, message.tree
    if message.path and not _names(pattern, message.path):
        raise StageFailed(f"{node}: {_FORGED} (it was not asked for that)", retryable=True)
    if t is not None:
        if not message.path or not message.fingerprint or t.size > max_bytes:
            raise StageFailed(f"{node}: {_FORGED} (it was not asked for that)", retryable=True)
        pieces = tuple(ObjectRange(*piece) for piece in t.manifest)
        tree = Tree(prefix, t.digest, pieces, t.entries, t.size, t.single)
    changing = printable(message.changing[:_MAX_WARNING_CHARS])
    return CollectedCheckpoint(message.path, message.fingerprint, tree, changing, message.sent, message.seconds)


class _CommandMessage(_AgentMessage):
    exit_code: int | None = Field(ge=0, le=255)
    seconds: float = Field(ge=0, le=1e9, allow_inf_nan=False)


def parse_command_end(node: str, reported: dict[str, Any]) -> CommandEnd:
    """How a command in a job ended, as the agent of its node claims. Raises StageFailed."""
    message = _validated(_CommandMessage, node, reported)
    return CommandEnd(message.exit_code, message.seconds)


class _SharedPortMessage(_AgentMessage):
    port: int = Field(ge=0, le=65535)


def parse_shared_port(node: str, reported: dict[str, Any]) -> int:
    """The port at which a node serves its job's shared scratch, as its agent claims. Raises StageFailed."""
    return _validated(_SharedPortMessage, node, reported).port


def _names(pattern: str, path: str) -> bool:
    """Whether the pattern of a line may name a path, which goes into an environment. As burstd's agent matches."""
    parts, literal = path.split("/"), literal_text(pattern)
    if _CONTROL.search(path) or not {"", ".", ".."}.isdisjoint(parts):
        return False
    wanted = [part for part in (pattern if literal is None else literal).split("/") if part not in ("", ".")]
    if literal is not None or "**" in wanted:
        return literal is None or parts == wanted
    return len(parts) == len(wanted) and all(fnmatch.fnmatchcase(*pair) for pair in zip(parts, wanted, strict=True))


def answer_agent_request(
    stager: Stager, node: str, allowed_methods: Sequence[str], prefix: str, request: dict[str, Any]
) -> dict[str, Any]:
    """The answer to an agent's question. ``allowed_methods``: of objects whose keys begin with ``prefix/``.

    Raises StageFailed where it asks for more: somebody else speaks on that node.
    """
    match request:
        case {"sign": {"method": "GET" | "PUT" as method, "keys": [*keys]}} if (
            method in allowed_methods and _all_allowed(prefix, keys)
        ):
            return {"urls": dict(stager.sign(method, keys))}
        case {"present": [*keys]} if "PUT" in allowed_methods and _all_allowed(prefix, keys):
            return {"present": list(stager.present(keys))}
        case {"sign": _} | {"present": _}:
            text = f"{node}: its agent asked for objects that are not of its job: see who is root there, and replace it"
            raise StageFailed(text, retryable=False)
    return {"error": "burstd does not know this question"}


def _all_allowed(prefix: str, keys: Sequence[object]) -> bool:
    return len(keys) <= MAX_KEYS_PER_REQUEST and all(
        isinstance(key, str) and is_key(key) and key.startswith(f"{prefix}/") for key in keys
    )


def repair_objects(
    stager: Stager, index: ContentIndex, trees: Iterable[Tree], named: Collection[str], cancelled: threading.Event
) -> bool:
    """Looks at objects of these trees that a node says are damaged, and removes those that are.

    Many jobs rely on an object, so a node's word is not enough: its own memory or disk may be what is damaged. True:
    objects are wrong or gone, so that the trees have to be sent again. Raises TransferCancelled,
    ManifestDamaged, StagerError
    kinds.
    """
    found = False
    for tree in trees:
        manifest = {piece.key for piece in tree.manifest}
        wrong = _damaged_keys(stager, tree.prefix, manifest, cancelled)
        if not wrong:
            wrong = _damaged_keys(
                stager, tree.prefix, _content_keys(stager, tree, cancelled).intersection(named), cancelled
            )
        if wrong:
            found = True
            log.warning("objects are damaged", store=stager.name, prefix=tree.prefix, keys=sorted(wrong)[:10])
            _remove_objects(stager, index, tree.prefix, wrong)
    return found


def _content_keys(stager: Stager, tree: Tree, cancelled: threading.Event) -> set[str]:
    """All objects that hold a tree's content. Raises ManifestDamaged."""
    return {piece.key for entry in _stored_entries(stager, tree, cancelled) for piece in entry.pieces if piece.key}


def _stored_entries(stager: Stager, tree: Tree, cancelled: threading.Event) -> Iterator[ManifestEntry]:
    """Raises ManifestDamaged."""
    return decode_manifest(
        _fetch_object(stager, object_key(tree.prefix, piece.key), cancelled)[piece.offset :][: piece.length]
        for piece in tree.manifest
    )


def is_damaged(stager: Stager, tree: Tree, named: Collection[str], cancelled: threading.Event) -> bool:
    """Whether a tree that a node made cannot be put back, as another node says, which names objects.

    That node's word is not enough: it may be damaged itself. Raises TransferCancelled, StagerError kinds.
    """
    if _damaged_keys(stager, tree.prefix, {piece.key for piece in tree.manifest}, cancelled):
        return True
    content: set[str] = set()
    try:
        entries = _stored_entries(stager, tree, cancelled)
        for entry in admitted_entries(entries, tree, single_file_name=tree.single):
            content.update(piece.key for piece in entry.pieces if piece.key in named)
    except ManifestDamaged:
        return True
    return bool(_damaged_keys(stager, tree.prefix, content, cancelled))


def tree_keys(stager: Stager, tree: Tree, cancelled: threading.Event) -> Iterator[str]:
    """All objects of a tree, those of its manifest among them, again and again. Raises StagerError, ManifestDamaged."""
    yield from (piece.key for piece in tree.manifest)
    for entry in _stored_entries(stager, tree, cancelled):
        yield from (piece.key for piece in entry.pieces if piece.key)


def _damaged_keys(stager: Stager, prefix: str, keys: Iterable[str], cancelled: threading.Event) -> set[str]:
    """Of these objects, those that are not there, or not what their names say."""
    found = set()
    for key in keys:
        try:
            body = _fetch_object(stager, object_key(prefix, key), cancelled)
        except (NoSuchObject, ObjectTooLarge):
            body = b""
        if hashlib.sha256(body).hexdigest() != key:
            found.add(key)
    return found


def _fetch_object(stager: Stager, name: str, cancelled: threading.Event) -> bytes:
    if cancelled.is_set():
        raise TransferCancelled("the transfer was cancelled")
    return stager.get(name)


def _remove_objects(stager: Stager, index: ContentIndex, prefix: str, keys: Collection[str]) -> None:
    """So that no sender relies on them meanwhile; what one is just putting anew stays."""
    index.forget_lost_objects(stager.name, prefix, keys)
    evicting = index.take_untracked(stager.name, prefix, dict.fromkeys(keys, 0))
    try:
        stager.delete([object_key(prefix, stored.key) for stored in evicting])
    except BaseException:
        index.cancel_eviction(evicting)
        raise
    index.finish_eviction(evicting)
