"""The page at /: one file, without anything from elsewhere, that shows /status as it changes.

Its style and script are allowed by their hashes, and nothing else is: a pod that is called <script>
stays a name.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from pathlib import Path

from ...transport.http import Answer

POLICY = "Content-Security-Policy"


@functools.lru_cache(maxsize=1)
def answer() -> Answer:
    """Read the page at the first request: an agent without visitors does not keep it in memory."""
    body = (Path(__file__).parent / "page.html").read_bytes()
    policy = (
        f"default-src 'none'; style-src {_hash(body, b'style')}; script-src "
        f"{_hash(body, b'script')}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    return Answer(200, body, "text/html; charset=utf-8", ((POLICY, policy),))


def _hash(body: bytes, tag: bytes) -> str:
    inside = body.partition(b"<" + tag + b">")[2].partition(b"</" + tag + b">")[0]
    return f"'sha256-{base64.b64encode(hashlib.sha256(inside).digest()).decode()}'"
