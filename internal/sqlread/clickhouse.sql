-- Reads IDs of {{.Format}} in ClickHouse 22 or later, whose functions are the server's: no database has them.
-- NULL is what is no such ID. Columns are Int64 or UInt64. UUIDs of ClickHouse sort by their second half, so keep
-- ULIDs where order counts. There is no to_uuid: random numbers of ClickHouse can be guessed.
{{- $word := "reinterpretAsInt64(reverse(substring(UUIDStringToNum(toString(id)), %d, %d)))"}}
{{- $ms := printf $word 1 6}}{{$a := printf $word 7 2}}{{$b := printf $word 9 8}}
{{- $low := printf "bitShiftLeft(bitAnd(%s, 4095), %d) + bitAnd(bitShiftRight(%s, %d), %d)" $a .HighShift $b .Random .BesideMask}}
{{- define "units"}}intDiv(toUnixTimestamp64Micro(toDateTime64(at, 6, 'UTC')) - {{.Epoch}} * 1000 + {{.Unit}} * 1000 - 1,
  {{.Unit}} * 1000){{end}}
{{- define "ms"}}toInt64(bitShiftRight(id, {{.Low}})) * {{.Unit}} + {{.Epoch}}{{end}}
CREATE OR REPLACE FUNCTION id_ms AS (id) -> {{template "ms" .}};
CREATE OR REPLACE FUNCTION id_time AS (id) -> fromUnixTimestamp64Milli({{template "ms" .}}, 'UTC');
CREATE OR REPLACE FUNCTION id_sid AS (id) -> bitAnd(bitShiftRight(id, {{.SIDShift}}), {{.SIDMask}});
-- The smallest ID of a time: WHERE id >= id_first(a) AND id < id_first(b)
CREATE OR REPLACE FUNCTION id_first AS (at) -> if({{template "units" .}} >= {{.Units}},
  toInt64(9223372036854775807), bitShiftLeft(toInt64(greatest({{template "units" .}}, 0)), {{.Low}}));
CREATE OR REPLACE FUNCTION uuid_time AS (id) -> fromUnixTimestamp64Milli({{$ms}}, 'UTC');
CREATE OR REPLACE FUNCTION uuid_first AS (at) -> toUUID(UUIDNumToString(toFixedString(unhex(
  rightPad(leftPad(hex(toUInt64(greatest(intDiv(toUnixTimestamp64Micro(toDateTime64(at, 6, 'UTC')) + 999, 1000), 0))),
  12, '0'), 32, '0')), 16)));
CREATE OR REPLACE FUNCTION from_uuid AS (id) -> if(bitShiftRight({{$a}}, 12) = 7
  AND bitAnd(bitShiftRight({{$b}}, 62), 3) = 2 AND {{$ms}} >= {{.Epoch}} AND {{$ms}} < {{.End}}
  AND ({{$ms}} - {{.Epoch}}) % {{.Unit}} = 0 AND {{$low}} <= {{.LowMask}},
  bitShiftLeft(intDiv({{$ms}} - {{.Epoch}}, {{.Unit}}), {{.Low}}) + {{$low}}, NULL);
CREATE OR REPLACE FUNCTION to_flake AS (id) -> {{encode "id" 13}};
CREATE OR REPLACE FUNCTION from_flake AS (id) -> if(match(id, {{.FlakePattern}}),
  {{decode "upper(id)" 1 13}}, NULL);
CREATE OR REPLACE FUNCTION to_ulid AS (id) -> concat({{encode (printf $word 1 6) 10}},
  {{encode (printf $word 7 5) 8}},
  {{encode (printf $word 12 5) 8}});
CREATE OR REPLACE FUNCTION from_ulid AS (id) -> if(match(id, {{.ULIDPattern}}),
  toUUIDOrNull(UUIDNumToString(toFixedString(unhex(concat(leftPad(hex({{decode "upper(id)" 1 10}}), 12, '0'),
  leftPad(hex({{decode "upper(id)" 11 8}}), 10, '0'),
  leftPad(hex({{decode "upper(id)" 19 8}}), 10, '0'))), 16))), NULL);
