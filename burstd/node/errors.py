"""What can go wrong between burstd and a machine. Each says through ``again`` whether trying again makes sense.

Beside those of burstd.domain.plugins.shell.
"""

from __future__ import annotations

from burstd.domain.errors import NodeNotReady, NodeRefused


class NotReachable(NodeNotReady):
    """Nothing answers at the address: it has not booted so far, or the network keeps us away."""

    again = True


class HostKeyUnknown(NodeNotReady):
    """Its console has not shown its host keys so far."""

    again = True


class NotAuthorizedYet(NodeNotReady):
    """It refuses our key, but may not have got as far as installing it."""

    again = True


class ClockNotSet(NodeNotReady):
    """Its clock is off and all else is well: time comes over the network, soon after the first boot."""

    again = True

    def __init__(self, message: str, off_s: float = 0.0) -> None:
        super().__init__(message)
        self.off_s = off_s
        """How far it is ahead of the head's, in seconds; less than 0: behind; 0: not known."""


class SlurmctldUnreachable(NodeNotReady):
    """It has no way to slurmctld, so far, and all else is well."""

    again = True


class SlurmdNotStarted(NodeNotReady):
    """slurmd did not start; slurmctld may be down, or not know the node so far."""

    again = True
    cause = "slurmd"


class NoConfiguration(NodeNotReady):
    """slurmctld does not give slurmd its configuration, so far."""

    again = True


class StepsRunning(NodeNotReady):
    """Steps of jobs still run on a machine that is to be another node."""

    again = True


class HeadNotReady(NodeNotReady):
    """The head itself lacks what a machine is to be given (its munge key, a credential of its munged)."""

    again = True


class AuthRefused(NodeRefused):
    """It has booted and refuses our key."""

    again = False

    def __init__(self, message: str) -> None:
        super().__init__(message, cause="auth")


class HostKeyMismatch(NodeRefused):
    """It showed another host key than it should have. Nothing was sent to it."""

    again = False

    def __init__(self, message: str) -> None:
        super().__init__(message, cause="hostkey")


class HostKeyUnobtainable(NodeRefused):
    """Its provider shows no console, so its host key can never be known."""

    again = False

    def __init__(self, message: str) -> None:
        super().__init__(message, cause="hostkey")


class Incompatible(NodeRefused):
    """It speaks no ssh that we do."""

    again = False

    def __init__(self, message: str) -> None:
        super().__init__(message, cause="ssh")


class ForwardingForbidden(NodeRefused):
    """Its sshd carries no connections to its ports."""

    again = False

    def __init__(self, message: str) -> None:
        super().__init__(message, cause="ssh")


class CommandFailed(NodeRefused):
    """A command on the machine ended with an error. ``rc``: its exit status; ``err``: the end of what it said."""

    again = False

    def __init__(self, message: str, *, rc: int, err: str, cause: str = "bootstrap") -> None:
        super().__init__(message, cause=cause)
        self.rc = rc
        self.err = err


class ValidationFailed(NodeRefused):
    """The machine is not what the pool promises or the reference is; each difference is named."""

    again = False
