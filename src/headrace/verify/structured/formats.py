"""What the `format` keyword of JSON Schema asserts where a task asks for it.

Known formats are all here, so that none passes because some package is not installed. May be
known by the worker.
"""

from __future__ import annotations

import datetime
import ipaddress
import re
import urllib.parse
import uuid
from collections.abc import Callable

from jsonschema import FormatChecker

__all__ = ["CHECKER", "KNOWN"]

_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIME = re.compile(r"(\d\d:\d\d):(\d\d)(?:\.\d+)?(?:[zZ]|[+-](?:[01]\d|2[0-3]):[0-5]\d)", re.ASCII)
_DURATION = re.compile(
    r"P(?!$)(?:\d+W|(?:\d+Y)?(?:\d+M)?(?:\d+D)?(?:T(?=\d)(?:\d+H)?(?:\d+M)?(?:\d+S)?)?)", re.ASCII
)
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*", re.ASCII)
_LOCAL = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?:\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*")
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE | re.ASCII)
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[^\s<>\"{}|\\^`]+", re.ASCII)


def _date(text: str) -> bool:
    return bool(_DATE.fullmatch(text)) and bool(datetime.date.fromisoformat(text))


def _time(text: str) -> bool:
    match = _TIME.fullmatch(text)
    if match is None:
        return False
    datetime.time.fromisoformat(match[1])
    return int(match[2]) <= 60


def _date_time(text: str) -> bool:
    return text[10:11] in ("T", "t") and _date(text[:10]) and _time(text[11:])


def _host(text: str) -> bool:
    return bool(_HOST.fullmatch(text))


def _email(text: str) -> bool:
    local, _, host = text.rpartition("@")
    return len(local) <= 64 and bool(_LOCAL.fullmatch(local)) and _host(host)


def _uri(text: str) -> bool:
    return bool(_URI.fullmatch(text)) and bool(urllib.parse.urlsplit(text).scheme)


def _pattern(text: str) -> bool:
    return bool(re.compile(text))


KNOWN: dict[str, Callable[[str], object]] = {
    "date": _date,
    "date-time": _date_time,
    "duration": lambda text: _DURATION.fullmatch(text) is not None,
    "email": _email,
    "hostname": _host,
    "ipv4": ipaddress.IPv4Address,
    "ipv6": ipaddress.IPv6Address,
    "regex": _pattern,
    "time": _time,
    "uri": _uri,
    "uuid": lambda text: _UUID.fullmatch(text) is not None and uuid.UUID(text),
}
"""By name: true, or anything but an error, for a text of the format."""


def _check(form: Callable[[str], object]) -> Callable[[object], bool]:
    return lambda value: not isinstance(value, str) or bool(form(value))


CHECKER = FormatChecker(formats=())
for _name, _form in KNOWN.items():
    CHECKER.checks(_name, raises=(ValueError, re.error))(_check(_form))
