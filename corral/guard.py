"""The door of an environment server: who may come in. An ASGI wrapper, before anything is routed.

With a token, every request needs it; one trial's MCP address opens to that trial's own key as well, so that an agent
never holds the token. Without one, the server is for programs of this machine: a request must call it by a name that
is this machine's own (or a web page could reach it by a name of its own that resolves here), and must not come from a
web page of another origin.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Any
from urllib.parse import parse_qs

from corral.protocol import Forbidden, Refused, Unauthorized, encode, to_problem

LOOPBACK = ("localhost", "127.0.0.1", "[::1]", "corral", "testserver")
"""Names by which a server without a token may be called; "corral" is what clients on a Unix socket say."""

OPEN = frozenset({"/health"})
"""What needs no token: whoever watches over the server need not be able to use it."""

_READ = frozenset({b"authorization", b"host", b"origin"})
_MCP = re.compile(r"/trials/([^/]+)/mcp")


class Guard:
    """Lets requests through to ``app``, or refuses them."""

    def __init__(self, app: Any, token: str | None, allowed_hosts: tuple[str, ...]) -> None:
        self._app = app
        self._token = token
        self._hosts = {host.lower() for host in (*LOOPBACK, *allowed_hosts)}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Check one connection."""
        if scope["type"] == "http":
            try:
                self._check(scope)
            except Refused as refusal:
                await _refuse(refusal, send)
                return
        await self._app(scope, receive, send)

    def _check(self, scope: Any) -> None:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"] if name in _READ}
        if self._token is not None:
            self._check_token(self._token, headers, scope)
        elif "*" not in self._hosts:
            self._check_origin(headers)

    def _check_token(self, token: str, headers: dict[bytes, str], scope: Any) -> None:
        if scope["path"] in OPEN or _has_trial_key(token, scope):
            return
        scheme, _, given = headers.get(b"authorization", "").partition(" ")
        right = hmac.compare_digest(given.strip().encode(), token.encode())
        if scheme.lower() != "bearer" or not right:
            what = "the token is wrong" if given else "this server needs a token"
            raise Unauthorized(f"{what}: send 'Authorization: Bearer TOKEN' (clients take it from CORRAL_TOKEN)")

    def _check_origin(self, headers: dict[bytes, str]) -> None:
        host = headers.get(b"host", "").lower()
        name = re.sub(r":\d+$", "", host)
        if name not in self._hosts:
            raise Forbidden(f"this server is not called {name!r}: it answers to {', '.join(sorted(self._hosts))}")
        origin = headers.get(b"origin")
        if origin is not None and origin.lower().partition("://")[2] != host:
            raise Forbidden(f"this server takes no requests from web pages of {origin!r}")


def trial_key(token: str, runtime_id: str) -> str:
    """What opens one trial's MCP address, and nothing else, to who does not have the token."""
    return hmac.new(token.encode(), runtime_id.encode(), hashlib.sha256).hexdigest()[:32]


def _has_trial_key(token: str, scope: Any) -> bool:
    found = _MCP.fullmatch(scope["path"])
    given = parse_qs(scope["query_string"].decode("latin-1")).get("key", [""])[0]
    return found is not None and hmac.compare_digest(given.encode(), trial_key(token, found[1]).encode())


async def _refuse(refusal: Refused, send: Any) -> None:
    status, body, headers = to_problem(refusal)
    sent = [(name.encode(), value.encode()) for name, value in {"content-type": "application/json", **headers}.items()]
    await send({"type": "http.response.start", "status": status, "headers": sent})
    await send({"type": "http.response.body", "body": encode(body)})
