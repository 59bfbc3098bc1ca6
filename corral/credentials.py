"""Keys and tokens: taken as they come from files and the environment, and never shown in an error or a record. Pure."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

from corral.errors import ConfigError


def header_value(given: object, what: str) -> str:
    """``given`` without the white space around it, which a file or a ``.env`` with Windows' line ends leaves there.

    ConfigError, which says ``what`` it is and does not show it, where no HTTP header can carry it.
    """
    text = given.strip() if isinstance(given, str) else None
    if text is None or not text.isascii() or not text.isprintable():
        raise ConfigError(f"{what} must be text of printable ASCII characters (what was given is not shown here)")
    return text


def secret(given: object, what: str) -> str:
    """The same for a key or a token, which cannot be empty."""
    text = header_value(given, what)
    if not text:
        raise ConfigError(f"{what} must not be empty")
    return text


def without_login(url: str) -> str:
    """An address as it may be shown: without a user name and password, and without what follows the path."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
