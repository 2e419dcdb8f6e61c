"""A tree of everything that file systems have and data is made of, and whether it is there as it was."""

# Names that are no text.
# ruff: noqa: PTH115, PTH208

from __future__ import annotations

import os
import stat
from pathlib import Path

from burstd.domain.staging import ObjectRange
from burstd.transfer.content_store.manifest import ManifestEntry
from tests.transfer.agent_rig import ADA, AgentRig, directory, small

MIB = 1 << 20
NEW_YEAR = 1_700_000_000_123_456_789


def awkward(rig: AgentRig) -> list[ManifestEntry]:
    large = [os.urandom(MIB), os.urandom(2 * MIB)]
    words = b"firstsecondthird"
    pack, *rest = rig.put(words), *(rig.put(body) for body in large)
    return [
        directory(mtime_ns=NEW_YEAR),
        directory(b"sub dir", 0o750, NEW_YEAR + 1),
        small(b"sub dir/new\nline", pack, 0, 5, 0o644, NEW_YEAR + 2),
        small(b"not \xff utf-8", pack, 5, 6, 0o755, 5),
        small(b"-rf", pack, 11, 5, 0o640),
        ManifestEntry(b"empty", "f", 0o600, NEW_YEAR),
        ManifestEntry(
            b"large",
            "f",
            0o644,
            NEW_YEAR,
            3 * MIB,
            pieces=(ObjectRange(rest[0], 0, MIB), ObjectRange(rest[1], 0, 2 * MIB)),
        ),
        ManifestEntry(
            b"sparse",
            "f",
            0o644,
            NEW_YEAR,
            65 * MIB + 5,
            pieces=(
                ObjectRange("", 0, 32 * MIB),
                ObjectRange(rest[0], 0, MIB),
                ObjectRange("", 0, 32 * MIB),
                ObjectRange(pack, 0, 5),
            ),
        ),
        ManifestEntry(b"all hole", "f", 0o644, NEW_YEAR, 9 * MIB, pieces=(ObjectRange("", 0, 9 * MIB),)),
        ManifestEntry(b"sub dir/hard", "f", 0o644, NEW_YEAR, 5, hardlink_to=b"sub dir/new\nline"),
        ManifestEntry(b"link", "l", 0o777, NEW_YEAR, link_target=b"/etc/\xfe nowhere"),
        directory(b"locked", 0o500, NEW_YEAR + 3),
        small(b"locked/in", pack, 0, 5, 0o400),
        directory(b"empty dir", 0o711, NEW_YEAR + 4),
    ]


def check_awkward(root: bytes, *, read_only: bool, owner: int = ADA) -> None:
    drop = 0o222 if read_only else 0

    def of(name: bytes) -> os.stat_result:
        about = os.lstat(root + b"/" + name)
        assert about.st_uid == owner
        assert about.st_gid == owner or owner != ADA
        return about

    def read(name: bytes) -> bytes:
        return Path(os.fsdecode(root + b"/" + name)).read_bytes()

    assert set(os.listdir(root)) == {
        b"sub dir", b"not \xff utf-8", b"-rf", b"empty", b"large", b"sparse", b"all hole", b"link", b"locked",
        b"empty dir",
    }  # fmt: skip
    assert (read(b"sub dir/new\nline"), read(b"not \xff utf-8"), read(b"-rf"), read(b"empty")) == (
        b"first", b"second", b"third", b"",
    )  # fmt: skip
    for name, mode, mtime in (
        (b"sub dir", 0o750, NEW_YEAR + 1), (b"sub dir/new\nline", 0o644, NEW_YEAR + 2), (b"not \xff utf-8", 0o755, 5),
        (b"-rf", 0o640, 10**18 + 7), (b"empty", 0o600, NEW_YEAR), (b"large", 0o644, NEW_YEAR),
        (b"locked", 0o500, NEW_YEAR + 3), (b"locked/in", 0o400, 10**18 + 7), (b"empty dir", 0o711, NEW_YEAR + 4),
        (b"", 0o755, NEW_YEAR),
    ):  # fmt: skip
        assert (name, oct(stat.S_IMODE(of(name).st_mode)), of(name).st_mtime_ns) == (name, oct(mode & ~drop), mtime)
    assert len(read(b"large")) == 3 * MIB
    sparse = read(b"sparse")
    assert (len(sparse), sparse[:MIB].strip(b"\0"), sparse[32 * MIB : 33 * MIB], sparse[-5:]) == (
        65 * MIB + 5, b"", read(b"large")[:MIB], b"first",
    )  # fmt: skip
    assert of(b"sparse").st_blocks * 512 < 3 * MIB
    assert (of(b"all hole").st_size, of(b"all hole").st_blocks) == (9 * MIB, 0)
    assert of(b"sub dir/hard").st_ino == of(b"sub dir/new\nline").st_ino
    assert (os.readlink(root + b"/link"), of(b"link").st_mtime_ns) == (b"/etc/\xfe nowhere", NEW_YEAR)
