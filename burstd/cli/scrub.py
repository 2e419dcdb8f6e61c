"""Takes secrets out of what is handed on: those of this site word by word, and others by their forms."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from burstd.runtime.logs import redacted
from burstd.runtime.secret_forms import HIDDEN, SECRET_NAMES, without_keys, without_secrets

_MAX_FILE_BYTES = 64 << 10
_MIN_SECRET = 8
"""Characters; shorter words stand in too many places."""
_ASSIGNED = re.compile(r"(?:- )?(?P<name>[\w.-]+)[\"']?\s*[:=]\s*[\"']?(?P<value>.*?)[\"']?")


class Scrubber:
    """Knows the secrets of this site."""

    def __init__(self, settings: Mapping[str, Any], files: Iterable[Path], environment: Mapping[str, str]) -> None:
        """``files``: more files of secrets, beside those that the settings name and that not everybody may read."""
        self.unread: list[str] = []
        """Files of secrets that this user cannot read: theirs are known by their forms only."""
        words = {value for name, value in environment.items() if SECRET_NAMES.search(name)}
        for path in dict.fromkeys((*_named_files(settings), *files)):
            words.update(self._words_of(path))
        longest = sorted((re.escape(w) for w in words if len(w) >= _MIN_SECRET), key=len, reverse=True)
        self._known = re.compile("|".join(longest)) if longest else None

    def text(self, text: str) -> str:
        """A text without secrets."""
        if self._known is not None:
            text = self._known.sub(HIDDEN, text)
        return without_keys(without_secrets(text))

    def value(self, value: Any) -> Any:
        """An answer or settings without them; of tables named environment the names stay only."""
        if isinstance(value, Mapping):
            return {
                key: dict.fromkeys(one, HIDDEN)
                if isinstance(one, Mapping) and str(key).lower() in ("environment", "env")
                else self.value(redacted(str(key), one) if isinstance(one, str) else one)
                for key, one in value.items()
            }
        if isinstance(value, list):
            return [self.value(one) for one in value]
        return self.text(value) if isinstance(value, str) else value

    def _words_of(self, path: Path) -> Iterator[str]:
        try:
            with path.open("rb") as file:
                content = file.read(_MAX_FILE_BYTES)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                self.unread.append(f"{path}: {error.strerror}")
            return
        for data in (content, content.strip()):
            yield from (base64.b64encode(data).decode(), data.hex())
        lines = [line for line in map(str.strip, content.decode("utf-8", "replace").splitlines()) if line]
        for line in lines:
            found = _ASSIGNED.fullmatch(line) if len(lines) > 1 else None
            if found is None:
                if not line.startswith("-----"):  # by which keys that are not known are found
                    yield line
            elif SECRET_NAMES.search(found["name"].replace("-", "_")):
                yield found["value"]


def _named_files(settings: Any) -> Iterator[Path]:
    if isinstance(settings, Mapping):
        settings = settings.values()
    elif isinstance(settings, str):
        path = Path(settings)
        try:
            private = path.is_absolute() and path.is_file() and not path.stat().st_mode & 0o004
        except OSError:
            private = True  # Its folder is closed to this user.
        if private:
            yield path
        return
    elif not isinstance(settings, list):
        return
    for one in settings:
        yield from _named_files(one)
