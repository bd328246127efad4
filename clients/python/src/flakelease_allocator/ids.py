"""Reads and converts IDs without a node. Functions are pure and strict: nothing is trimmed or guessed.

An ID has 63 bits and four forms: an int, a flake of 13 characters, and the wide forms, a ULID of 26 characters and
a UUID, which hold the same 63 bits beside random ones. Text of digits alone is an int unless it has 13 characters.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from .errors import InvalidArgument

ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
MAX_ID = (1 << 63) - 1
AnyID = int | str | uuid.UUID
_VALUES = {letter: value for value, upper in enumerate(ALPHABET) for letter in (upper, upper.lower())}
_UNIX = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True, slots=True)
class Layout:
    """Which bits of the IDs of a space are the time, the sid and the sequence. IDs do not carry it."""

    time_bits: int
    sid_bits: int
    sequence_bits: int
    epoch: int = 1_704_067_200_000  # Unix ms
    unit: int = 1  # ms
    sid_first: bool = False

    @property
    def low_bits(self) -> int:
        return self.sid_bits + self.sequence_bits


SCALABLE = Layout(43, 5, 15)
LAYOUTS = {
    "scalable": SCALABLE,
    "standalone": Layout(43, 0, 20),
    "fleet": Layout(43, 10, 10),
    "twitter": Layout(41, 10, 12, 1_288_834_974_657, sid_first=True),
    "discord": Layout(41, 10, 12, 1_420_070_400_000, sid_first=True),
    "instagram": Layout(40, 13, 10, 1_314_220_021_721, sid_first=True),
    "sonyflake": Layout(39, 16, 8, 1_409_529_600_000, unit=10),
    "leaf": Layout(41, 10, 12, 1_288_834_974_657, sid_first=True),
    "baidu": Layout(28, 22, 13, 1_463_673_600_000, unit=1000, sid_first=True),
    "js53": Layout(41, 5, 7, sid_first=True),
}


def _decode(text: str, length: int, bits: int) -> int:
    if len(text.encode("utf-8", "surrogatepass")) != length:
        raise InvalidArgument(f"{text[:40]!r} has {len(text)} characters, not {length}")
    number = 0
    for place, letter in enumerate(text):
        if letter not in _VALUES:
            raise InvalidArgument(f"{text!r}: {letter!r} at character {place} is not one of {ALPHABET}")
        number = number << 5 | _VALUES[letter]
    if number >> bits:
        raise InvalidArgument(f"{text!r} has more than {bits} bits: its first character is at most 7")
    return number


def _encode(number: int, length: int) -> str:
    return "".join(ALPHABET[number >> 5 * place & 31] for place in range(length - 1, -1, -1))


def to_flake(id: int) -> str:
    """Returns the 13 characters of an ID."""
    return _encode(check_int(id), 13)


def check_int(id: object) -> int:
    """Returns an int of at most 63 bits as it is. A float is refused: it has lost digits above 2^53."""
    if isinstance(id, bool) or not isinstance(id, int):
        rounds = ": it rounds IDs above 2^53; give an int or text" if isinstance(id, float) else ""
        raise InvalidArgument(f"{id!r:.60} is a {type(id).__name__} and no ID{rounds}")
    if not 0 <= id <= MAX_ID:
        raise InvalidArgument(f"{id if abs(id) < 1 << 200 else 'the ID'} is not within 0 and {MAX_ID}")
    return id


def parse(id: AnyID) -> int:
    """Returns the integer of an ID: of 63 bits for an int, its digits or a flake, of 128 for a ULID or a UUID."""
    if isinstance(id, uuid.UUID):
        return id.int
    if not isinstance(id, str):
        return check_int(id)
    match len(id):
        case 13:
            return _decode(id, 13, 63)
        case 26:
            return _decode(id, 26, 128)
        case 36:
            return _uuid(id).int
    if not (id.isascii() and id.isdigit() and len(id) <= 19 and (id == "0" or id[0] != "0")):
        raise InvalidArgument(f"{id[:40]!r} is no ID: write 13, 26 or 36 characters, or a decimal integer")
    return check_int(int(id))


def _uuid(text: str) -> uuid.UUID:
    if not re.fullmatch("[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}", text):
        raise InvalidArgument(f"{text[:40]!r} is no UUID: write 8-4-4-4-12 hexadecimal digits")
    return uuid.UUID(text)


def is_wide(id: AnyID) -> bool:
    """Reports whether an ID has 128 bits."""
    return isinstance(id, uuid.UUID) or isinstance(id, str) and len(id) in (26, 36)


def to_ulid(id: str | uuid.UUID) -> str:
    """Returns a ULID or UUID as a ULID: the same 16 bytes."""
    return _encode(_wide(id), 26)


def to_uuid(id: str | uuid.UUID) -> uuid.UUID:
    """Returns a ULID or UUID as a UUID: the same 16 bytes."""
    return uuid.UUID(int=_wide(id))


def _wide(id: str | uuid.UUID) -> int:
    if not is_wide(id):
        raise InvalidArgument(f"{id!r:.60} has not 128 bits: the random bits of a wide ID cannot be made up")
    return parse(id)


def _check_version(number: int, id: AnyID) -> None:
    if number >> 76 & 15 != 7 or number >> 62 & 3 != 2:
        raise InvalidArgument(f"{id} is no UUIDv7, so that it has no time and was not made from an ID")


def to_int(id: AnyID, layout: Layout = SCALABLE) -> int:
    """Returns the 63 bits of an ID in any form. Of a wide ID of another origin they were never issued."""
    number = parse(id)
    if not is_wide(id):
        return number
    _check_version(number, id)
    units, rest = divmod((number >> 80) - layout.epoch, layout.unit)
    field = max(layout.low_bits, 12)  # 12 bits beside the version, the rest below the variant
    low = (number >> 64 & 0xFFF) << field - 12 | (number & (1 << 62) - 1) >> 74 - field
    if units < 0 or units >> layout.time_bits or rest or low >> layout.low_bits:
        raise InvalidArgument(f"{id} was not made from an ID of layout {layout}")
    return units << layout.low_bits | low


def unix_ms_of(id: AnyID, layout: Layout = SCALABLE) -> int:
    """Returns the time of an ID in Unix milliseconds, at the start of its unit."""
    number = parse(id)
    if isinstance(id, uuid.UUID) or isinstance(id, str) and len(id) == 36:
        _check_version(number, id)
    return number >> 80 if is_wide(id) else layout.epoch + (number >> layout.low_bits) * layout.unit


def time_of(id: AnyID, layout: Layout = SCALABLE) -> datetime:
    """Returns the time of an ID, in UTC."""
    milliseconds = unix_ms_of(id, layout)
    try:
        return _UNIX + timedelta(milliseconds=milliseconds)
    except OverflowError:
        raise InvalidArgument(f"{id} is of the year 10000 or later: use unix_ms_of") from None


def sid_of(id: AnyID, layout: Layout = SCALABLE) -> int:
    """Returns the number of the holder that issued an ID."""
    return to_int(id, layout) >> (layout.sequence_bits if layout.sid_first else 0) & (1 << layout.sid_bits) - 1


def first_of(time: datetime | int, layout: Layout = SCALABLE) -> int:
    """Returns the smallest ID of a time: an aware datetime, or Unix milliseconds. For queries by time."""
    if isinstance(time, datetime):
        if time.utcoffset() is None:
            raise InvalidArgument(f"{time} has no time zone: give it one, such as tzinfo=timezone.utc")
        time = (time - _UNIX) // timedelta(milliseconds=1)
    units = (time - layout.epoch) // layout.unit
    if units < 0 or units >> layout.time_bits:
        raise InvalidArgument(f"{time} ms is not within the layout, which begins at {layout.epoch}")
    return units << layout.low_bits
