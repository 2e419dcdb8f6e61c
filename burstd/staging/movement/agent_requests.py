"""What agents on nodes ask for and claim: bound to their job, and looked at before anything follows from it."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Collection, Iterable, Sequence
from typing import Annotated, Any, Literal

import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from burstd.domain.plugins.stager import OBJECT_BYTES, NoSuchObject, ObjectTooLarge, Stager, is_key
from burstd.domain.staging import Piece, Tree
from burstd.staging.controller.tasks import Cancelled, Collected, StageFailed
from burstd.staging.movement.output_delivery import FILE, MISSING
from burstd.transfer.content_store.index import Index
from burstd.transfer.content_store.manifest import ENTRIES, TREE_BYTES, decode, object_key
from burstd.transfer.privsep.client import printable

log = structlog.get_logger(__name__)

KEYS_AT_ONCE = 1000
"""More objects no agent asks for in one question."""
_MANIFEST_PIECES = 1024
_WARNINGS = 1000
_SHOWN = 1000


class _Word(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


_Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", max_length=64)]
_Piece = Annotated[tuple[_Digest, Literal[0], Annotated[int, Field(gt=0, le=OBJECT_BYTES)]], Field(strict=False)]


class _Tree(_Word):
    digest: _Digest
    manifest: list[_Piece] = Field(max_length=_MANIFEST_PIECES)
    entries: int = Field(ge=0, le=ENTRIES)
    size: int = Field(ge=0, le=TREE_BYTES)
    single: bool


class _Collected(_Word):
    trees: list[_Tree]
    files: list[_Tree | None]
    missing: _Tree | None
    sent: int = Field(ge=0, le=TREE_BYTES)
    seconds: float = Field(ge=0, le=1e9, allow_inf_nan=False)
    warnings: list[str]


def collected(node: str, prefix: str, lines: Sequence[int], files: Sequence[str], said: dict[str, Any]) -> Collected:
    """What a node has put into the store, as its agent claims. ``lines`` and ``files``: what it was asked for.

    Raises StageFailed where no agent of burstd's says so.
    """
    try:
        word = _Collected.model_validate(said)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise StageFailed(f"{node}: {_STRANGE} ({printable(where)}: {first['msg']})", again=True) from None
    if len(word.trees) != len(lines) or len(word.files) != len(files):
        raise StageFailed(f"{node}: {_STRANGE} (it was not asked for that)", again=True)
    named = {str(number): tree for number, tree in zip(lines, word.trees, strict=True)}
    named |= {f"{FILE}{path}": tree for path, tree in zip(files, word.files, strict=True) if tree is not None}
    named |= {MISSING: word.missing} if word.missing is not None else {}
    if sum(tree.size for tree in named.values()) > TREE_BYTES:
        raise StageFailed(f"{node}: {_STRANGE} (more bytes than any node has)", again=True)
    trees = {
        name: Tree(prefix, t.digest, tuple(Piece(*piece) for piece in t.manifest), t.entries, t.size, t.single)
        for name, t in named.items()
    }
    warnings = tuple(printable(text[:_SHOWN]) for text in word.warnings[:_WARNINGS])
    return Collected(trees, word.sent, word.seconds, warnings)


_STRANGE = "its agent tells of output what no agent of burstd's would: see who is root there, and replace it"


def answer(stager: Stager, node: str, may: Sequence[str], prefix: str, asked: dict[str, Any]) -> dict[str, Any]:
    """The answer to an agent's question. ``may``: methods, of objects whose keys begin with ``prefix/``.

    Raises StageFailed where it asks for more: somebody else speaks on that node.
    """
    match asked:
        case {"sign": {"method": "GET" | "PUT" as method, "keys": [*keys]}} if method in may and _all(prefix, keys):
            return {"urls": dict(stager.sign(method, keys))}
        case {"present": [*keys]} if "PUT" in may and _all(prefix, keys):
            return {"present": list(stager.present(keys))}
        case {"sign": _} | {"present": _}:
            text = f"{node}: its agent asked for objects that are not of its job: see who is root there, and replace it"
            raise StageFailed(text, again=False)
    return {"error": "burstd does not know this question"}


def _all(prefix: str, keys: Sequence[object]) -> bool:
    return len(keys) <= KEYS_AT_ONCE and all(
        isinstance(key, str) and is_key(key) and key.startswith(f"{prefix}/") for key in keys
    )


def repair(
    stager: Stager, index: Index, trees: Iterable[Tree], named: Collection[str], cancelled: threading.Event
) -> bool:
    """Looks at objects of these trees that a node says are damaged, and removes those that are.

    Many jobs rely on an object, so a node's word is not enough: its own memory or disk may be what is damaged. True:
    objects are wrong or gone, so that the trees have to be sent again. Raises Cancelled, ManifestDamaged, StagerError
    kinds.
    """
    found = False
    for tree in trees:
        manifest = {piece.key for piece in tree.manifest}
        wrong = _wrong(stager, tree.prefix, manifest, cancelled)
        if not wrong:
            wrong = _wrong(stager, tree.prefix, _keys(stager, tree, cancelled).intersection(named), cancelled)
        if wrong:
            found = True
            log.warning("objects are damaged", store=stager.name, prefix=tree.prefix, keys=sorted(wrong)[:10])
            _remove(stager, index, tree.prefix, wrong)
    return found


def _keys(stager: Stager, tree: Tree, cancelled: threading.Event) -> set[str]:
    """All objects that hold a tree's content. Raises ManifestDamaged."""
    parts = (
        _get(stager, object_key(tree.prefix, piece.key), cancelled)[piece.offset :][: piece.length]
        for piece in tree.manifest
    )
    return {piece.key for entry in decode(parts) for piece in entry.pieces if piece.key}


def _wrong(stager: Stager, prefix: str, keys: Iterable[str], cancelled: threading.Event) -> set[str]:
    """Of these objects, those that are not there, or not what their names say."""
    found = set()
    for key in keys:
        try:
            body = _get(stager, object_key(prefix, key), cancelled)
        except (NoSuchObject, ObjectTooLarge):
            body = b""
        if hashlib.sha256(body).hexdigest() != key:
            found.add(key)
    return found


def _get(stager: Stager, name: str, cancelled: threading.Event) -> bytes:
    if cancelled.is_set():
        raise Cancelled("it was told to stop")
    return stager.get(name)


def _remove(stager: Stager, index: Index, prefix: str, keys: Collection[str]) -> None:
    """So that no sender relies on them meanwhile; what one is just putting anew stays."""
    index.forget_keys(stager.name, prefix, keys)
    taken = index.strays(stager.name, prefix, dict.fromkeys(keys, 0))
    try:
        stager.delete([object_key(prefix, stored.key) for stored in taken])
    except BaseException:
        index.keep(taken)
        raise
    index.forget(taken)
