"""What goes to the terminal: over a slow line blanks would be most of a screen."""

from __future__ import annotations

import re

from textual.drivers.linux_driver import LinuxDriver

_BLANK_ENDS = re.compile(r" {4,}(?=\r?\n|\x1b\[[0-9]+;1H|\Z)")
"""Of lines, which all are as wide as the screen. Those with a style are followed by its end."""


class ErasingDriver(LinuxDriver):
    """Erases the rest of a line in the place of writing blanks."""

    def write(self, data: str) -> None:
        """To the terminal, by the thread that does so."""
        super().write(_BLANK_ENDS.sub("\x1b[K", data))
