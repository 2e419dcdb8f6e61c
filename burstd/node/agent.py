"""burstd's agent on nodes: delivered once to each, asked over the way in by which the node was proved."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from burstd.domain.claim import Claim
from burstd.domain.errors import BurstdError
from burstd.domain.plugins.shell import Shell
from burstd.node.errors import CommandFailed
from burstd.transfer.content_store.manifest import MAX_FILE_BYTES
from burstd.transfer.privsep.errors import printable
from burstd.transfer.protocol.bundle import agent_zipapp

AgentMessage = dict[str, Any]
AGENT_DIRECTORY = "/var/lib/burst"
AGENT_SILENCE_S = 15.0
"""An agent at work says something every few seconds; one that was not heard for so long is given up."""
_SHOWN = 2000
# The whole program is there under its name, or it is not there. What is there is reused only if it is that program.
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_DELIVER = """
set -eu
command -v python3 >/dev/null || exit 64
umask 077
mkdir -p "${1%/*}"
[ "$(sha256sum <"$1" 2>/dev/null)" = "$4  -" ] && exit 0
[ "$3" = look ] && exit 65
new=$(mktemp "$1.XXXXXX")
trap 'rm -f "$new"' EXIT
cat >"$new"
[ "$(wc -c <"$new")" -eq "$2" ] || exit 66
mv -f "$new" "$1"
"""


class _Progress(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)

    bytes: int = Field(0, ge=0, le=MAX_FILE_BYTES)
    of: int = Field(0, ge=0, le=MAX_FILE_BYTES)


class _AgentLine(BaseModel):
    """A line of an agent's: what it has done, why it could not, how far it is, or a question."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    done: AgentMessage | None = None
    error: str | None = None
    kind: str = Field("agent", max_length=20)
    keys: list[str] = Field([], max_length=100_000)
    progress: _Progress | None = None


class AgentError(BurstdError):
    """The agent says why it could not do what it was asked. ``kind``: that of the agent's AgentFault.

    ``keys``: of a damaged one, the objects whose content is not what their names say.
    """

    def __init__(self, kind: str, message: str, keys: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.kind = kind
        self.keys = tuple(keys)


class AgentStopped(BurstdError):
    """It was told to stop; the agent ends with the connection."""


class NodeAgent:
    """Has agents on nodes do things. May be called from several threads. ``connect``: a session with a claim's node."""

    def __init__(self, connect: Callable[[Claim], Shell], folder: str = AGENT_DIRECTORY) -> None:
        self._connect = connect
        self._bundle = agent_zipapp()
        self._digest = hashlib.sha256(self._bundle).hexdigest()
        self._path = f"{folder}/agent-{self._digest[:16]}.pyz"

    def run(
        self,
        claim: Claim,
        request: AgentMessage,
        *,
        answer: Callable[[AgentMessage], AgentMessage],
        progress: Callable[[int, int], None],
        cancelled: threading.Event,
    ) -> AgentMessage:
        """One request to the end; what the agent says is done. ``answer`` answers its questions.

        ``progress`` hears of bytes done, and bytes in all. What is done, and what is asked, is any JSON.

        Raises AgentError, AgentStopped, and NodeNotReady or NodeRefused where the node is not to be reached.
        """
        with self._connect(claim) as session:
            self._install_agent(session)
            with session.start_process(["python3", "-I", self._path]) as talk:
                talk.write_line(json.dumps(request).encode() + b"\n")
                while True:
                    line = talk.read_line(AGENT_SILENCE_S, cancelled)
                    if line is None:
                        raise AgentStopped("the agent was told to stop")
                    if not line:
                        raise AgentError("agent", f"the agent ended without a word: {talk.stderr_tail()}")
                    said = _parse_line(line)
                    if said.done is not None:
                        return said.done
                    if said.error is not None:
                        raise AgentError(said.kind, printable(said.error[:_SHOWN]), said.keys)
                    if said.progress is not None:
                        progress(said.progress.bytes, said.progress.of)
                    else:
                        talk.write_line(json.dumps(answer(said.model_extra or {})).encode() + b"\n")

    def _install_agent(self, session: Shell) -> None:
        size = str(len(self._bundle))
        done = session.script(_DELIVER, self._path, size, "look", self._digest)
        if done.rc == 65:
            done = session.script(_DELIVER, self._path, size, "write", self._digest, input=self._bundle)
        if done.rc == 64:
            raise AgentError("agent", "the node has no python3, which burstd's agent needs: add it to the image")
        if done.rc != 0:
            raise CommandFailed(
                f"burstd's agent could not be put at {self._path}: {done.last_line}", rc=done.rc, err=done.err
            )


def _parse_line(line: bytes) -> _AgentLine:
    try:
        # Bytes of names that are no UTF-8 are half a pair of surrogates each, which pydantic's reader does not take.
        return _AgentLine.model_validate_json(_SURROGATE.sub(rb"\\ufffd", line))
    except ValidationError:
        raise AgentError("agent", f"the agent said something that is no answer: {line[:200]!r}") from None
