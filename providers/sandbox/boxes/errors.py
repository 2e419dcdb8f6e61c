"""What can go wrong when this machine is asked to be a cloud; each error says what to do about it."""

from __future__ import annotations


class SandboxError(Exception):
    """Something about this machine keeps the sandbox from working. ``str()`` is one sentence and the remedy."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem} ({remedy})")
        self.problem = problem
        self.remedy = remedy


class MissingTool(SandboxError):
    """A program that the sandbox runs is not installed."""

    def __init__(self, tool: str, package: str) -> None:
        super().__init__(f"the program {tool} is not installed", f"apt install {package}")
        self.tool = tool


class NotRoot(SandboxError):
    """Namespaces, mounts and device nodes are for root."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} needs root", "run it with sudo")


class NoSpace(SandboxError):
    """A file system is full, or would be."""


class NoMirror(SandboxError):
    """No Debian archive is configured on this machine."""


class BuildFailed(SandboxError):
    """A root file system or a layer could not be made."""


class BoxFailed(SandboxError):
    """A box could not be started, or is not there."""


class NetworkFailed(SandboxError):
    """The lab's network could not be made or taken down."""
