"""Secrets of known forms come out of texts, wherever they are planted; what only looks like one stays."""

from __future__ import annotations

import base64
import hashlib
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burstd.cli.scrub import Scrubber
from burstd.runtime.secret_forms import without_secrets
from tests.security.fuzz import fuzzed

SCRUBBER = Scrubber({}, (), {})
BEGIN, END = "-----BEGIN RSA PRIVATE KEY-----", "-----END RSA PRIVATE KEY-----"
LINE = base64.b64encode(hashlib.sha384(b"a line of a key").digest()).decode()


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ('password = "two words" # of sky', 'password = "***" # of sky'),
        ("db_password='it is \\'quoted\\' twice', user=ada", "db_password='***', user=ada"),
        (r'"text": "say \"secret\": \"two words\" and"', r'"text": "say \"secret\": \"***\" and"'),
        ("password='cut off", "password='***"),
        ("postgresql://ann:p@ss:w@rd@db/x?a=b@c", "postgresql://ann:***@db/x?a=b@c"),
        ("https://h:8080/a@b", "https://h:8080/a@b"),
        ("mysql --password X1 --user ann", "mysql --password *** --user ann"),
        ("run --api-token 'a b' -v", "run --api-token '***' -v"),
        ('["run", "--token", "X1", "-v"]', '["run", "--token", "***", "-v"]'),
        ("--token password='a b'", "--token password='***'"),
        ("git clone with ghp_0123456789abcdefABCD.", "git clone with ***."),
        ("AWS_ID AKIAIOSFODNN7EXAMPLE;", "AWS_ID ***;"),
        ("bot xoxb-1234567890-abc", "bot ***"),
        ("id eyJhbGciOiJI.eyJzdWIiOiIx.c2ln ok", "id *** ok"),
        ("Authorization: Bearer x1", "Authorization: ***"),
        ('Authorization: Digest username="a", response="b c"', "Authorization: ***"),
        ('{"authorization": "Token a,b c", "n": 1}', '{"authorization": "***", "n": 1}'),
        ("with bearer abcdefgh12 sent", "with bearer *** sent"),
        ("root:$6$salt$0123456789012345678901234567890:1", "root:***:1"),
        ("https://hooks.slack.com/services/T0/B0/xyz!", "https://hooks.slack.com/***"),
        ("https://x.example/api?token=abc&y=1", "https://x.example/api?token=***&y=1"),
        ("X-Auth-Token: gAAAAABh", "X-Auth-Token: ***"),
        ("munge said MUNGE:AwQFAAD+/=: here", "munge said *** here"),
        (f"a\n{BEGIN}\n{LINE}\nc2hvcnQ=\n{END}\nb", "a\n***\nb"),
        (f"a\n{BEGIN}\n{LINE}\n{LINE[:9]}", "a\n***"),
        (f"{LINE}\n{LINE}\nc2hvcnQ=\n{END}\nb", "***\n***\n***\nb"),
        (f"munge.key in base64: {LINE} ok", "munge.key in base64: *** ok"),
        ("token_file = '/etc/burstd/token'", "token_file = '/etc/burstd/token'"),
        ('{"token": null, "x_secret": true}', '{"token": null, "x_secret": true}'),
        (f"object {hashlib.sha256(b'').hexdigest()}", f"object {hashlib.sha256(b'').hexdigest()}"),
        ("/home/Ada/Projects2/" + "Data/" * 8, "/home/Ada/Projects2/" + "Data/" * 8),
        ("job 101 is on gpu1 (sandbox, 3.06 EUR/h)", "job 101 is on gpu1 (sandbox, 3.06 EUR/h)"),
    ],
)
def test_what_is_a_secret_by_its_form(text: str, left: str) -> None:
    assert SCRUBBER.text(text) == left
    assert SCRUBBER.text(left) == left


FORMS = (
    "password={}", "pass_phrase: passphrase = {}", 'SECRET_KEY="{} {}"', "db-password: '{} {}'", '{{"api_key": "{}"}}',
    "https://ann:{}@{}@git.example/x", "--password {}", "--api-token={}", "--secret '{} {}'",
    "Authorization: Basic {}", "authorization: {} {}", "Bearer {}", "X-Auth-Token: {}", "ghp_{}", "github_pat_{}",
    "xoxb-{}", "hf_{}", "gAAAAA{}", "eyJ{}.{}.{}", "MUNGE:{}:", "$6$salt${}",
    "https://chat.example/hooks/{}", f"{BEGIN}\n{{}}\n{{}}", f"{{}}\n{END}", f"{BEGIN}\n{{}}\n{END}",
)  # fmt: skip
NOISE = st.one_of(
    st.text(max_size=60), st.sampled_from(["token=", "password: '", 'x="', "--token", "a://b:c@", "Bearer"])
)


@fuzzed
@given(st.sampled_from(FORMS), st.binary(max_size=4), NOISE, NOISE)
def test_fuzz_a_planted_secret_never_comes_out(form: str, seed: bytes, before: str, after: str) -> None:
    secret = hashlib.sha256(seed).hexdigest()[:32]
    text = f"{before} {form.replace('{}', secret)}\n{after}"
    assert secret not in without_secrets(text)
    assert secret not in SCRUBBER.text(text)
    assert secret not in json.dumps(SCRUBBER.value({"log": [text]}))


@fuzzed
@given(st.binary(max_size=1024), st.integers(0, 900), st.integers(80, 400))
def test_fuzz_a_piece_of_a_key_never_comes_out(seed: bytes, start: int, length: int) -> None:
    """A munge key of 1024 bytes, as ``base64`` prints it."""
    piece = base64.encodebytes(hashlib.shake_256(seed).digest(1024))[start : start + length].decode()
    assert not any(re.fullmatch(r"[\w+/]{40,}=*", line) for line in SCRUBBER.text(f"key:\n{piece}").splitlines())
