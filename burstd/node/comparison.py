"""Compares what a machine says it is with a node of the site: the reference.

``_COMPARISONS`` is the table of what is compared as one value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from burstd.node.expected import CheckFailure, ExpectedMachine
from burstd.node.facts import MAX_TREE_MODULES, NO_LIMIT, SYSTEMD_AUTOMOUNT, WHOLE_TREE, MachineFacts
from burstd.planner.lifecycle.listing import abbreviated_list

_REFERENCE_REMEDY = "take the reference anew after a change of the site (burstctl node reference NODE)"
_DOCKER_NVIDIA = "docker-nvidia"
_RUNTIME_LABELS = {_DOCKER_NVIDIA: "NVIDIA's runtime of docker"}


@dataclass(frozen=True, slots=True)
class _Comparison:
    """A value that a machine and the reference have. What the reference does not say is not compared."""

    name: str
    value: Callable[[MachineFacts], str]
    fits: Callable[[str, str], bool]
    """Whether what was found is as good as what the reference has."""
    remedy: str
    bound: str = ""
    """What goes after the reference's value, where more than that fits too."""
    gpus_only: bool = False


def _equal(found: str, wanted: str) -> bool:
    return found == wanted


def _same_release(found: str, wanted: str) -> bool:
    """``rocky 9.5`` is as good as ``rocky 9.4``."""
    return found.partition(".")[0] == wanted.partition(".")[0]


def _not_older(found: str, wanted: str) -> bool:
    return _numbers(found) >= _numbers(wanted)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"[0-9]{1,19}", version))


def _limit(name: str, unit: str) -> _Comparison:
    def value(facts: MachineFacts) -> str:
        limit = facts.limits.get(name)
        return "" if limit is None else "unlimited" if limit >= NO_LIMIT else f"{limit} {unit}"

    remedy = f"Raise Limit{name.upper()}= of slurmd.service in the image"
    return _Comparison(name, value, _not_lower, remedy, bound=" or more")


def _not_lower(found: str, wanted: str) -> bool:
    return found == "unlimited" or (wanted != "unlimited" and _numbers(found) >= _numbers(wanted))


_COMPARISONS = (
    _Comparison("architecture", lambda facts: facts.arch, _equal, "Choose an instance type of this architecture"),
    _Comparison("kernel", lambda facts: facts.kernel, _equal, "Build the image with the same kernel"),
    _Comparison(
        "glibc", lambda facts: facts.glibc, _not_older,
        "Programs built at the site do not start with an older C library: build the image from a newer release",
        bound=" or newer",
    ),
    _Comparison(
        "driver", lambda facts: facts.driver, _not_older, "Install this NVIDIA driver in the image, or a newer one",
        bound=" or newer", gpus_only=True,
    ),
    _Comparison(
        "cuda", lambda facts: facts.cuda, _not_older, "Install an NVIDIA driver that knows this CUDA in the image",
        bound=" or newer", gpus_only=True,
    ),
    _limit("memlock", "bytes"),
    _limit("nofile", "open files"),
    _limit("stack", "bytes"),
    _limit("nproc", "processes"),
    _Comparison("timezone", lambda facts: facts.timezone, _equal, "Set timezone in [node], or in the image"),
)  # fmt: skip


def reference_failures(
    facts: MachineFacts, expected: ExpectedMachine, reference: MachineFacts
) -> Iterator[CheckFailure]:
    """Of values that a machine has and a node of the site."""
    if not expected.os and reference.os and not _same_release(facts.os, reference.os):
        remedy = "Build the image from the same release"
        yield CheckFailure("os", reference.os, facts.os or "an unknown system", remedy)
    for row in _COMPARISONS:
        wanted, found = row.value(reference), row.value(facts)
        if not wanted or (row.gpus_only and not expected.shape.gpus()):
            continue
        if not found or not row.fits(found, wanted):
            yield CheckFailure(row.name, f"{wanted}{row.bound}", found or "unknown", row.remedy)
    if reference.lang and reference.lang not in facts.locales:
        yield CheckFailure(
            "locale", reference.lang, "no such locale", "Generate it in the image (locale-gen, or langpacks)"
        )
    yield from _revisions(facts, expected, reference)
    yield from _runtimes(facts, expected, reference)
    yield from _network_mounts(facts, expected, reference)


def _revisions(facts: MachineFacts, expected: ExpectedMachine, reference: MachineFacts) -> Iterator[CheckFailure]:
    for path in expected.sentinels:
        wanted, found = reference.revisions.get(path), facts.revisions.get(path)
        if wanted is None:
            continue
        least = wanted - expected.cvmfs_max_behind
        if found is None:
            remedy = "Mount the repository there, and install attr in the image, which reads its revision"
            yield CheckFailure("cvmfs", f"{path} at revision {least} or newer", "no revision of CVMFS", remedy)
        elif found < least:
            remedy = "Look at the proxy and the Stratum 1 that the machine asks, and at the cache of its image"
            yield CheckFailure("cvmfs", f"{path} at revision {least} or newer", f"revision {found}", remedy)


def _runtimes(facts: MachineFacts, expected: ExpectedMachine, reference: MachineFacts) -> Iterator[CheckFailure]:
    for name, wanted in reference.runtimes.items():
        if name == _DOCKER_NVIDIA and not expected.shape.gpus():
            continue
        found, label = facts.runtimes.get(name), _RUNTIME_LABELS.get(name, name)
        if found is None or not _not_older(found, wanted):
            version = f" {wanted} or newer" if wanted else ""
            there = f"no {label}" if found is None else f"{label} {found or 'of an unknown version'}"
            yield CheckFailure("container_runtimes", f"{label}{version}", there, f"Install {label} in the image")


def _network_mounts(facts: MachineFacts, expected: ExpectedMachine, reference: MachineFacts) -> Iterator[CheckFailure]:
    on_demand = tuple(
        f"{path}/" for path, what in facts.mounts.items() if what.startswith("autofs ") and what != SYSTEMD_AUTOMOUNT
    )
    for path, wanted in reference.mounts.items():
        found = facts.mounts.get(path, "")
        if is_shown(path, expected.shown_trees) or path.startswith(on_demand):
            continue
        if found and (found == wanted or SYSTEMD_AUTOMOUNT in (found, wanted)):
            continue
        remedy = "Mount it in the image, or show it to jobs (mounts.trees)"
        yield CheckFailure("network_mounts", f"{wanted} at {path}", found or "nothing of the network", remedy)


def is_shown(path: str, trees: Iterable[str]) -> bool:
    """Whether one of these trees is, is in, or holds the file system at a path."""
    below = (tree.replace("{home}", "/home/{user}").partition("{")[0].rstrip("/") for tree in trees)
    return any(f"{path}/".startswith(f"{tree}/") or f"{tree}/".startswith(f"{path}/") for tree in below)


def software_failures(facts: MachineFacts, expected: ExpectedMachine) -> Iterator[CheckFailure]:
    """What must be there at all, and as the reference has it."""
    reference = expected.reference or MachineFacts()
    for path in expected.sentinels:
        wanted, found = reference.sentinels.get(path, ""), facts.sentinels.get(path)
        if not found:
            remedy = "Look at the mount, the client's log and the network there"
            if path in reference.sentinels and not wanted:
                remedy = (
                    f"{reference.hostname}, the reference, cannot read it either: correct 'sentinels' in [node], or "
                    "bring it there and take the reference anew"
                )
            how = "no answer" if found is None else "nothing to read"
            yield CheckFailure("sentinels", f"{path} readable", how, remedy)
        elif wanted not in ("", found):
            remedy = f"Bring the same release of the software there, or {_REFERENCE_REMEDY}"
            yield CheckFailure("sentinels", f"{path} with checksum {wanted[:12]}", f"checksum {found[:12]}", remedy)
    if WHOLE_TREE in expected.modules:
        yield from _module_tree(facts, reference)
    for name in expected.modules:
        if name == WHOLE_TREE:
            continue
        there, here = facts.modules.get(name, ""), reference.modules.get(name, "")
        if not there or here not in ("", there):
            remedy = f"Bring the site's module tree there (MODULEPATH), or {_REFERENCE_REMEDY}"
            if not here and (name in reference.modules or not reference.module_command):
                remedy = f"{reference.hostname}, the reference, does not have it either: correct 'modules' in [node]"
            yield CheckFailure("modules", here or f"module {name}", there or f"no module {name}", remedy)


def _module_tree(facts: MachineFacts, reference: MachineFacts) -> Iterator[CheckFailure]:
    wanted, found = reference.module_tree, facts.module_tree
    if found and wanted in ("", found):
        return
    here, there = reference.tree_modules, facts.tree_modules
    # Both are sorted. A list that is cut off says nothing of what comes after its end.
    ends = [names[-1] for names in (here, there) if len(names) == MAX_TREE_MODULES]
    lacking = [name for name in {*here} - {*there} if all(name <= end for end in ends)]
    more = [name for name in {*there} - {*here} if all(name <= end for end in ends)]
    parts = [f"no {abbreviated_list(lacking)}"] if lacking and found else []
    parts += [f"besides {abbreviated_list(more)}"] if more and wanted else []
    text = "; ".join(parts) or (_tree_text(found) if found else "no answer from 'module avail'")
    remedy = f"Bring the site's module tree there (MODULEPATH), or {_REFERENCE_REMEDY}"
    yield CheckFailure("modules", _tree_text(wanted) if wanted else "some modules", text, remedy)


def _tree_text(tree: str) -> str:
    checksum, _, count = tree.partition(" ")
    return f"the tree of {count} modules with checksum {checksum[:12]}"
