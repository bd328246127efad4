"""The offline functions, checked by the vectors that the Go packages are checked by."""

import json
import unittest
import uuid
from datetime import datetime, timezone
from pathlib import Path

import support  # noqa: F401
from flakelease_allocator import InvalidArgument, ids

VECTORS = json.loads((Path(__file__).parents[3] / "testdata/vectors/vectors.json").read_text())


def text(time):
    return time.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3].rjust(23, "0") + "Z"


class Vectors(unittest.TestCase):
    def test_flakes(self):
        for section, name in (("flake_standalone", "standalone"), ("flake_scalable", "scalable")):
            layout = ids.LAYOUTS[name]
            for v in VECTORS[section]:
                with self.subTest(v["base32"]):
                    number = int(v["int"])
                    self.assertEqual([ids.parse(f) for f in (v["base32"], v["base32"].lower(), v["int"], number)]
                                     if len(v["int"]) != 13 else [ids.parse(v["base32"])] * 4, [number] * 4)
                    self.assertEqual(ids.to_flake(number), v["base32"])
                    self.assertEqual(ids.unix_ms_of(number, layout), v["unix_ms"])
                    self.assertEqual(text(ids.time_of(number, layout)), v["time"])
                    self.assertEqual(ids.sid_of(number, layout), v.get("sid", 0))
                    first = ids.first_of(v["unix_ms"], layout)
                    self.assertEqual((first >> 20, first & (1 << 20) - 1), (v["ts_ms"], 0))

    def test_ulids(self):
        for v in VECTORS["ulid"]:
            with self.subTest(v["ulid"]):
                self.assertEqual(ids.parse(v["ulid"]), int(v["u128"]))
                self.assertEqual(str(ids.to_uuid(v["ulid"])), v["uuid"])
                self.assertEqual(ids.to_ulid(v["uuid"]), v["ulid"])
                self.assertEqual(ids.unix_ms_of(v["ulid"]), v["unix_ms"])
                if v["time"]:
                    self.assertEqual(text(ids.time_of(v["ulid"])), v["time"])
                else:
                    self.assertRaises(InvalidArgument, ids.time_of, v["ulid"])
        for v in VECTORS["uuid_v7"]:
            self.assertEqual(ids.to_ulid(v["uuid"]), v["ulid"])
            self.assertEqual(ids.unix_ms_of(uuid.UUID(v["uuid"])), v["unix_ms"])
        self.assertRaisesRegex(InvalidArgument, "no UUIDv7", ids.time_of, uuid.uuid4())

    def test_invalid(self):
        for section in ("flake_invalid_strings", "ulid_invalid_strings"):
            for v in VECTORS[section]:
                with self.subTest(v["input"]), self.assertRaises(InvalidArgument):
                    ids._decode(v["input"], *((13, 63) if section[0] == "f" else (26, 128)))
        for v in VECTORS["flake_invalid_ints"]:
            with self.subTest(v["input"]), self.assertRaises(InvalidArgument):
                ids.parse(v["input"])
        for section, length, bits in (("flake_lenient", 13, 63), ("ulid_lenient", 26, 128)):
            for v in VECTORS[section]:
                with self.subTest(v["input"]):
                    try:
                        ids._decode(v["input"], length, bits)
                        self.assertTrue(v["strict_accepts"])
                    except InvalidArgument:
                        self.assertFalse(v["strict_accepts"])


class Conversions(unittest.TestCase):
    # Of one ID of each layout: the text of the wide form, and the ID, as `allocator parse` reads it.
    def test_wide(self):
        self.assertEqual(ids.to_int("01a1f9d9-1a9a-7082-a8a2-962be40838f5"), 95552449898644130)
        self.assertEqual(ids.sid_of("01M7WXJ6MTE21AH8MP5FJ0GE7N"), 2)
        self.assertEqual(ids.unix_ms_of(ids.to_int("01M7WXJ6MTE21AH8MP5FJ0GE7N")), 1795193117338)
        for wrong in ("01M7WXJ6MTE21AH8MP5FJ0GE7N"[:13] + "0" * 13, str(uuid.UUID(int=0)), uuid.uuid4()):
            with self.subTest(wrong), self.assertRaises(InvalidArgument):
                ids.to_int(wrong)
        for name, layout in ids.LAYOUTS.items():
            number = ids.first_of(layout.epoch + 10**9, layout) + 1234
            field = max(layout.low_bits, 12)
            low = number & (1 << layout.low_bits) - 1
            wide = ids.unix_ms_of(number, layout) << 80 | 7 << 76 | low >> field - 12 << 64 | 2 << 62 \
                | (low << 74 - field & (1 << 62) - 1) | 5
            with self.subTest(name):
                self.assertEqual(ids.to_int(uuid.UUID(int=wide), layout), number)

    def test_time(self):
        first = ids.first_of(datetime(2026, 11, 27, 1, 2, 3, 4000, tzinfo=timezone.utc))
        self.assertEqual(first, 96127285203042304)
        self.assertEqual(ids.time_of(first).isoformat(), "2026-11-27T01:02:03.004000+00:00")
        for wrong in (datetime(2026, 11, 27), 1704067199999, 1 << 60):
            with self.subTest(wrong), self.assertRaises(InvalidArgument):
                ids.first_of(wrong)

    def test_bad_input(self):
        for wrong, why in ((2.0**53 + 2, "float"), (True, "bool"), (None, "NoneType"), (-1, "not within"),
                           (1 << 63, "not within"), (1 << 9999, "not within"), ("", "no ID"), ("-1", "no ID"),
                           ("007", "no ID"),
                           ("0x1F", "no ID"), ("9223372036854775808", "not within"), ("٣", "no ID"),
                           ("1" * 20, "no ID"),
                           ("zzzzzzzzzzzzz", "63 bits"), ("01M7WXJ6MTE21AH8MP5FJ0GE7U", "'U'"),
                           ("0" * 12 + "ſ", "characters"),
                           ("01a1f9d9-1a9a-7082-a8a2-962be40838fg", "no UUID"),
                           ("01a1f9d91a9a-7082-a8a2-962be40838f5-", "no UUID")):
            with self.subTest(wrong), self.assertRaisesRegex(InvalidArgument, why):
                ids.parse(wrong)


if __name__ == "__main__":
    unittest.main()
