"""The data of a job: what its script asks for, how far it has come, and what is known of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

WORKDIR_INPUT = "workdir"
"""The name of the input that the line ``workdir`` asks for."""
_SHOWN = 300
"""Characters of a faulty line."""


class Access(StrEnum):
    """How a job uses an input."""

    READ_ONLY = "read_only"
    """Shared with other jobs on the node; on premises a link to the source."""
    COPY = "copy"
    """The job's own, which it may change."""


class OutputCondition(StrEnum):
    """After which end of the job an output is brought home."""

    SUCCESS = "success"
    FAILURE = "failure"
    ALWAYS = "always"


@dataclass(frozen=True, slots=True)
class StageIn:
    """``#BURST stage_in SOURCE [as NAME] [read_only|copy]``. ``line``: of the script, from 1.

    ``source`` is a pattern: ``[*]`` stands for a quoted ``*``, ``${HOME}`` and the like for variables; what path that
    is says burstd.staging.directives.lexer.resolve.
    """

    source: str
    name: str
    access: Access = Access.READ_ONLY
    line: int = 0
    dataset: str = ""
    """``NAME`` or ``NAME@VERSION`` where it came from ``#BURST dataset``; ``source`` is then filled in by settings."""


@dataclass(frozen=True, slots=True)
class StageOut:
    """``#BURST stage_out PATTERN to DESTINATION [on success|failure|always]``; PATTERN is relative to $BURST_OUT.

    ``pattern`` and ``destination`` are written as StageIn.source is; a destination has no wildcards.
    """

    pattern: str
    destination: str
    when: OutputCondition = OutputCondition.ALWAYS
    line: int = 0


@dataclass(frozen=True, slots=True)
class CheckpointLine:
    """``#BURST checkpoint PATH [every=TIME] [keep=NUMBER] [signal=[B:]NAME | command=COMMAND] [within=TIME]``.

    Times in seconds.

    ``pattern`` is written as StageOut.pattern is: relative to $BURST_OUT. Without wildcards it is what is taken, with
    wildcards the newest match is.
    """

    pattern: str
    every_s: float = 900.0
    keep: int = 2
    signal: str = ""
    """What tells the job to write one before its machine goes: ``USR1`` for its steps, ``B:USR1`` for its batch shell;
    empty: nothing does."""
    within_s: float = 60.0
    """How long the job may take to write it."""
    line: int = 0
    command: str = ""
    """What writes one before the job's machine goes, for ``sh -c`` in the job on its first node; empty: nothing."""


@dataclass(frozen=True, slots=True)
class VolumeLine:
    """``#BURST volume NAME [SIZE]``: the user's volume that the job has at $BURST_VOLUMES/NAME, its alone meanwhile."""

    name: str
    size_bytes: int = 0
    """0: the line has none, and takes the volume as it is."""
    line: int = 0


@dataclass(frozen=True, slots=True)
class Directives:
    """All that a script asks for. Non-UTF-8 bytes in paths are surrogates, as in os.fsdecode."""

    stage_in: tuple[StageIn, ...] = ()
    stage_out: tuple[StageOut, ...] = ()
    scratch_bytes: int = 0
    checkpoint: CheckpointLine | None = None
    shared_scratch_bytes: int | None = None
    """``scratch shared [SIZE]``: room in the directory that all nodes of the job share; 0: no size is given."""
    volume: VolumeLine | None = None
    workdir: bool | None = None
    """``workdir``: nodes have a copy of the job's working directory, and what is new or changed there comes home.

    False: ``workdir off``; None: no line says anything of it.
    """
    container: str = ""
    """``container IMAGE``: the name of the input that is the image in which the script runs; empty: in none."""

    @property
    def all_scratch_bytes(self) -> int:
        """What the first node of the job must have free."""
        return self.scratch_bytes + (self.shared_scratch_bytes or 0)

    @property
    def input_names(self) -> tuple[str, ...]:
        """Of all inputs, in the order of their lines, the working directory last."""
        return (*(wanted.name for wanted in self.stage_in), *([WORKDIR_INPUT] if self.workdir else []))

    @property
    def registry_image(self) -> StageIn | None:
        """The input that is an image of a registry: nobody has it before burstd has converted it."""
        found = (wanted for wanted in self.stage_in if wanted.name == self.container)
        return next((wanted for wanted in found if wanted.source.startswith("docker://")), None)

    def __bool__(self) -> bool:
        shared = self.shared_scratch_bytes is not None
        named = self.stage_in or self.stage_out or self.checkpoint or self.volume or self.workdir is not None
        return bool(named or self.scratch_bytes or shared)


@dataclass(frozen=True, slots=True)
class WorkdirRules:
    """``[staging.workdir]``: what of a working directory may be staged. Size in bytes."""

    max_bytes: int = 10 << 30
    max_files: int = 100_000
    """Files, directories and links."""
    ignore: tuple[str, ...] = ("slurm-*.out",)
    """Lines that stand before those of every ignore file."""


@dataclass(frozen=True, slots=True)
class DirectiveFault:
    """What is wrong in one line, and what is allowed."""

    line: int
    text: str
    """The line as written."""
    problem: str
    expected: str

    def __str__(self) -> str:
        stop = "" if self.problem.endswith("?") else "."
        return f"line {self.line}: {_cut(self.text)}: {_cut(self.problem)}{stop} {self.expected}"


def _cut(text: str) -> str:
    """As much of it as a person reads."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} ..."


class StageState(StrEnum):
    """The life of a job's data; which move may follow which is in STAGE_TRANSITIONS."""

    WAITING = "waiting"
    """Asked for; its turn has not come."""
    UPLOADING = "uploading"
    """Input is on its way to the store."""
    STAGED = "staged"
    """All input is in the store: Slurm may allocate."""
    FETCHING = "fetching"
    """Nodes are allocated, their agents fetch the input."""
    FETCHED = "fetched"
    """The job has its input; its output, if any, is on the nodes."""
    COLLECTING = "collecting"
    """The job has ended; its output is on its way from the nodes to the store."""
    DELIVERING = "delivering"
    """Its output is in the store and on its way home; the nodes are not needed any more."""
    DELIVERED = "delivered"
    """Its output is at its destination, with a manifest."""
    HELD = "held"
    """Given up with a reason; ``resume`` says from where it goes on when it is told to."""
    CLEARED = "cleared"
    """Nothing of the job is left in the store and on nodes. The end."""


_T = StageState
STAGE_TRANSITIONS: dict[StageState, frozenset[StageState]] = {
    _T.WAITING: frozenset({_T.UPLOADING, _T.STAGED, _T.HELD, _T.CLEARED}),
    _T.UPLOADING: frozenset({_T.WAITING, _T.STAGED, _T.HELD, _T.CLEARED}),
    # Requeued: its input is looked at again. Cancelled before it ran: cleared.
    _T.STAGED: frozenset({_T.FETCHING, _T.WAITING, _T.HELD, _T.CLEARED}),
    _T.FETCHING: frozenset({_T.FETCHED, _T.WAITING, _T.COLLECTING, _T.HELD, _T.CLEARED}),
    _T.FETCHED: frozenset({_T.COLLECTING, _T.WAITING, _T.HELD, _T.CLEARED}),
    _T.COLLECTING: frozenset({_T.DELIVERING, _T.DELIVERED, _T.HELD, _T.CLEARED}),
    _T.DELIVERING: frozenset({_T.DELIVERED, _T.HELD, _T.COLLECTING, _T.CLEARED}),
    _T.DELIVERED: frozenset({_T.CLEARED, _T.WAITING}),
    _T.HELD: frozenset({_T.WAITING, _T.COLLECTING, _T.DELIVERING, _T.CLEARED}),
    _T.CLEARED: frozenset(),
}
OUTPUT_ON_NODES = frozenset({_T.FETCHING, _T.FETCHED, _T.COLLECTING})
"""A node of the job is not let go in these."""
INPUT_NEEDED = frozenset({_T.WAITING, _T.UPLOADING, _T.STAGED, _T.FETCHING, _T.FETCHED})
"""Trees of the job are not evicted from the store in these."""


@dataclass(frozen=True, slots=True)
class ObjectRange:
    """A run of bytes of a file: ``length`` bytes from ``offset`` of an object; an empty key: a hole (zeros).

    ``key`` is the SHA-256 of the whole object, in hexadecimal: who fetches it verifies it. Where the object lies in a
    store says the tree's prefix (burstd.transfer.content_store.manifest.object_key).
    """

    key: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Tree:
    """A source as it lies in a store: a manifest of entries, which name the objects that hold their content.

    ``prefix``: where its objects are, ``in`` for shared input, ``out/JOB/NODE`` for one job's output. ``digest``:
    SHA-256 of the manifest, hexadecimal; ``manifest``: the pieces of the manifest itself.
    """

    prefix: str
    digest: str
    manifest: tuple[ObjectRange, ...]
    entries: int
    size: int
    """Bytes of all files, holes included."""
    single: bool = False
    """The source was one file (or link), not a directory or glob."""
    node_path: str = ""
    """The source's path on nodes, which see it as it is: then nothing of it is in a store, and the rest is empty."""
    ignore: tuple[tuple[bool, str], ...] = ()
    """Of a working directory, what was left out, as rows of burstd.transfer.trees.ignore.IgnoreRules: the same stays
    on the node."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One checkpoint of a job, whole in the store. Sizes in bytes."""

    taken: float
    """When burstd had it, in burstd's time."""
    path: str
    """Of what was taken, relative to $BURST_OUT."""
    trees: Mapping[str, Tree]
    """By the number of the node in the job's list of nodes, from 0: what was there. Nodes that had nothing are not in
    it."""
    nodes: int
    """How many nodes the job had."""
    fingerprints: Mapping[str, str]
    """By the number of the node: what its agent recognises the same state by."""
    size: int = 0
    sent: int = 0
    """Of it, what had to be sent: the rest was in the store already."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Staging:
    """The data of one job, as recorded. Times in seconds since 1970 in burstd's own time, sizes in bytes."""

    job_id: str
    user: str
    uid: int
    gid: int
    directives: Directives
    state: StageState
    since: float
    created: float
    store: str = ""
    account: str = ""
    work_dir: str = ""
    """The job's working directory: relative sources and destinations start there."""
    trees: Mapping[str, Tree] = field(default_factory=dict)
    """Input name -> what was sent."""
    nodes: tuple[str, ...] = ()
    """The job's nodes, from allocation to the end of its output."""
    outputs: Mapping[str, Tree] = field(default_factory=dict)
    """Node -> what was collected there."""
    job_state: str = ""
    """How the job ended, by Slurm's name; empty while it has not."""
    exit_code: str = ""
    bytes_in: int = 0
    """Size of all input."""
    bytes_sent: int = 0
    """Of it, what had to be sent: the rest was in the store already."""
    bytes_out: int = 0
    estimated_ready: float = 0.0
    """When the input was expected to be in the store, when first estimated; 0: never estimated."""
    staged: float = 0.0
    """When it was."""
    attempts: int = 0
    """Tries in a row that failed; of a held one 0: trying was of no use, as its owner has something to mend."""
    error: str = ""
    resume: str = ""
    """The state from which a held one goes on."""
    reason: str = ""
    checkpoints: tuple[Checkpoint, ...] = ()
    """Those that are kept, the oldest first; they outlast the runs of the job."""
    checkpoint_error: str = ""
    """Why the last try to take one or to put one back failed; empty: it did not."""
    array_task: str = ""
    """Of a task of an array its id in the queue: ``123_7``. ``job_id`` is the number that Slurm's hooks use."""

    @property
    def name(self) -> str:
        """The job as its owner knows it."""
        return self.array_task or self.job_id

    @property
    def needs_attention(self) -> bool:
        """It goes on only after somebody has done something; ``error`` says what is wrong."""
        stuck = self.state is StageState.FETCHED or (self.state is StageState.COLLECTING and not self.attempts)
        return bool(self.error) and (bool(self.resume) or stuck)

    @property
    def is_owners_matter(self) -> bool:
        """Held for something that its owner is to mend; no machine is kept for it, and burstd has not failed at it."""
        return self.state is StageState.HELD and self.resume != StageState.COLLECTING and not self.attempts

    @property
    def attention_text(self) -> str:
        """What is wrong with one that needs a person, and which commands there are then."""
        if not self.resume or "burstctl stage" in self.error:
            return self.error
        ran = self.resume in (StageState.COLLECTING, StageState.DELIVERING)
        lost = f"; to give up its output, run 'burstctl stage discard {self.name}'" if ran else ""
        return f"{self.error}; repair this and run 'burstctl stage retry {self.name}'{lost}"


@dataclass(frozen=True, slots=True)
class StagingView:
    """What a decision needs to know of one job's data."""

    state: StageState
    ready_at: float
    """When its input is expected in the store, in burstd's time; 0: it is there, or nothing is known."""
    nodes: tuple[str, ...] = ()
    since: float = 0.0
    error: str = ""
    ended: float = 0.0
    """When the job ended; 0: it has not, or nobody knows, and ``since`` counts."""
    store: str = ""
    """The store that has its data, or is to have it."""
    size: int = 0
    """Bytes of its input; 0: it has none, or nobody knows."""
    bytes_left: int = 0
    """Bytes of it that are not in the store yet, as far as is known."""
    activity: str = ""
    """What is done before it can be sent, as the end of a sentence; empty: nothing."""
    last_checkpoint_until: float = 0.0
    """A machine of the job goes and its last checkpoint is on its way: the job is left alone until then, in burstd's
    time; 0: there is nothing to wait for."""
    checkpoint: str = ""
    """What of its checkpoints is in the store, and what is wrong with the next, for a person; empty: it names none."""
    checkpoint_taken: float = 0.0
    """When the newest was taken; 0: there is none."""
    volume_reason: str = ""
    """Why its volume lets no node be placed for it, or that it gets one of its own; empty: it names none, or has it."""
    scratch: int = 0
    """Bytes of scratch that it asks for on its first node, shared scratch among them."""
