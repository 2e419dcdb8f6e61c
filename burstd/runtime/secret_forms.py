"""Takes secrets out of texts by their forms. detect-secrets finds them in source, line by line: it takes nothing out,
and knows neither a key's whole block nor crypt(3), headers, command lines and this program's own names.
"""

from __future__ import annotations

import re

HIDDEN = "***"
SECRET_NAMES = re.compile(
    r"pass(word|wd|phrase)?$|secret|token|credential|authorization|cookie|(munge|ssh|private|access|api|jwt)_?key$"
    r"|key_?(material|data)$",
    re.IGNORECASE,
)
_KEY = "[A-Z ]*PRIVATE KEY-----"
_NAME = (
    r"(?:pass(?:word|wd|phrase)|secret|token|credentials?"
    r"|(?:access|api|private|auth|secret|munge|jwt)[_-]?key(?:[_-]?id)?)"
)
_IS = r"\\?[\"']?\s*[:=]\s*"
_OPTION = rf"(?<![\w-])--?[\w-]{{0,30}}{_NAME}"
_NEXT = rf"(?!{_NAME}{_IS}|{_OPTION}\b)"
"""No value, but the name of another."""
_NEXT_QUOTED = rf"(?!(?:{_NAME}{_IS}|{_OPTION}[ \t]+)[\"'])"
_VALUE = (
    rf"(?:(\\[\"'])(?:(?!\2){_NEXT_QUOTED}.)+"  # quoted within something quoted
    rf"|([\"'])(?:\\.|(?!\3){_NEXT_QUOTED}.)+"
    rf"|(?!(?:null|true|false)\b|[\[{{])(?:(?:bearer|basic|token)[ \t]+)?(?:{_NEXT}[^\s,;&'\"\\])+)"
)
_FORMS = (
    (re.compile(rf"-----BEGIN {_KEY}.*?(?:-----END {_KEY}|\Z)", re.DOTALL), HIDDEN),
    (re.compile(rf"^(?:[^\n]*\n)?[^\n]*-----END {_KEY}", re.MULTILINE), HIDDEN),  # its beginning was cut off
    (re.compile(r"(\b[a-z][a-z0-9+.-]{0,30}://[^/\s:@\"]*:)[^/\s\"]+@", re.IGNORECASE), rf"\1{HIDDEN}@"),
    (re.compile(r"(\bauthorization\s*[:=]\s*)(?!\*\*\*)[^\s\"'\\][^\r\n]*", re.IGNORECASE), rf"\1{HIDDEN}"),
    (re.compile(r"(\bauthorization\\?[\"']\s*[:=]\s*\\?[\"'])[^\r\n\"'\\]+", re.IGNORECASE), rf"\1{HIDDEN}"),
    (re.compile(rf"({_NAME}{_IS}){_VALUE}", re.IGNORECASE), rf"\1\2\3{HIDDEN}"),
    (re.compile(rf"({_OPTION}(?:\\?[\"'],\s*|[ \t]+)){_VALUE}", re.IGNORECASE), rf"\1\2\3{HIDDEN}"),
    (
        re.compile(rf"\b((?:bearer|basic|token)\s+){_NEXT}[A-Za-z0-9._~+/=-]{{8,}}", re.IGNORECASE),
        rf"\1{HIDDEN}",
    ),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bAIza[\w-]{35}"), HIDDEN),
    (re.compile(r"\b(?:gh[oprsu]_|github_pat_|hf_|glpat-|nvapi-|xapp-|xox[a-z]-|gAAAAA)[\w-]{10,}=*"), HIDDEN),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]+(\.[\w-]*)?"), HIDDEN),
    (re.compile(r"\bMUNGE:[A-Za-z0-9+/=]+:"), HIDDEN),
    (re.compile(r"\$\w{1,2}\$[^\s:$]+\$[^\s:]{20,}"), HIDDEN),
    (
        re.compile(r"(https?://[^\s\"'/]+/)(?:services|hooks?|webhooks?|api/webhooks)/[^\s\"'\\]+", re.IGNORECASE),
        rf"\1{HIDDEN}",
    ),
)
"""Private keys, also such as are cut; passwords in URLs; headers; assignments and options; tokens of AWS, Google,
GitHub, Hugging Face, GitLab, NVIDIA, Slack and Keystone; JSON Web Tokens; munge's credentials; crypt(3); webhooks."""
_ROOTS = "home|opt|usr|var|etc|tmp|srv|run|mnt|cvmfs|scratch|data"
_BASE64 = re.compile(
    rf"(?<![\w+/=.-])(?!/(?:{_ROOTS})/)"
    r"(?=[a-z0-9+/]*[A-Z])(?=[A-Z0-9+/]*[a-z])[A-Za-z0-9+/]{40,}={0,2}(?![\w+/=.-])"
)
"""A word that may be a key, or a line of one: hexadecimal sums and paths are none."""


def without_secrets(text: str) -> str:
    """With HIDDEN in the place of what has the form of a secret."""
    for form, instead in _FORMS:
        text = form.sub(instead, text)
    return text


def without_keys(text: str) -> str:
    """Without words in base64 that are as long as keys too."""
    return _BASE64.sub(HIDDEN, text)
