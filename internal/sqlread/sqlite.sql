-- Reads IDs of {{.Format}} in SQLite 3.38 or later, which has no functions of its own: take the expressions,
-- with a column or a parameter for :id, :at, :uuid, :flake, :ulid. :at is in Unix ms: unixepoch('2026-11-20') * 1000.
-- Times are UTC, and UUIDs texts; for a BLOB write hex(id). NULL is what is no such ID. The first three and to_flake
-- may be in an index or a generated column.
{{- $hex := "FROM (SELECT lower(replace(:uuid, '-', '')) AS t)"}}
{{- define "ms"}}(:id >> {{.Low}}) * {{.Unit}} + {{.Epoch}}{{end}}
SELECT {{template "ms" .}} AS id_ms;
SELECT strftime('%Y-%m-%d %H:%M:%f', ({{template "ms" .}}) / 1000.0, 'unixepoch') AS id_time;
SELECT (:id >> {{.SIDShift}}) & {{.SIDMask}} AS id_sid;
-- The smallest ID of a time: WHERE id >= id_first of a AND id < id_first of b
SELECT (SELECT CASE WHEN n >= {{.Units}} THEN 9223372036854775807 ELSE max(n, 0) << {{.Low}} END
  FROM (SELECT (:at - {{.Epoch}} + {{.Unit}} - 1) / {{.Unit}} AS n)) AS id_first;
SELECT (SELECT strftime('%Y-%m-%d %H:%M:%f', {{hex "t" 1 12}} / 1000.0, 'unixepoch')
  {{$hex}}) AS uuid_time;
SELECT (SELECT printf('%08x-%04x-0000-0000-000000000000', n >> 16, n & 65535)
  FROM (SELECT max(:at, 0) AS n)) AS uuid_first;
-- The UUIDv7 of an ID; bits that the ID has no value for are random, others each time.
SELECT printf('%08x-%04x-%04x-%04x-%012x', ({{template "ms" .}}) >> 16, ({{template "ms" .}}) & 65535,
  28672 | ((:id & {{.LowMask}}) >> {{.HighShift}}),
  32768 | ((((:id & {{.BesideMask}}) << {{.Random}}) | (random() & {{.RandomMask}})) >> 48),
  (((:id & {{.BesideMask}}) << {{.Random}}) | (random() & {{.RandomMask}})) & 281474976710655) AS to_uuid;
SELECT (SELECT CASE WHEN a >> 12 = 7 AND (b >> 62) & 3 = 2 AND ms >= {{.Epoch}} AND ms < {{.End}}
    AND (ms - {{.Epoch}}) % {{.Unit}} = 0 AND low <= {{.LowMask}}
  THEN (((ms - {{.Epoch}}) / {{.Unit}}) << {{.Low}}) | low END
  FROM (SELECT *, ((a & 4095) << {{.HighShift}}) | ((b >> {{.Random}}) & {{.BesideMask}}) AS low
  FROM (SELECT {{hex "t" 1 12}} AS ms, {{hex "t" 13 4}} AS a, {{hex "t" 17 16}} AS b
  {{$hex}}))) AS from_uuid;
SELECT {{encode ":id" 13}} AS to_flake;
SELECT (SELECT CASE WHEN length(t) = 13 AND t GLOB '[0-7]*' AND NOT t GLOB '*[^0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]*'
  THEN {{decode "upper(t)" 1 13}} END FROM (SELECT :flake AS t)) AS from_flake;
SELECT (SELECT {{encode "a" 10}} || {{encode "b" 8}} || {{encode "c" 8}}
  FROM (SELECT {{hex "t" 1 12}} AS a, {{hex "t" 13 10}} AS b, {{hex "t" 23 10}} AS c
  {{$hex}})) AS to_ulid;
SELECT (SELECT CASE WHEN length(t) = 26 AND t GLOB '[0-7]*' AND NOT t GLOB '*[^0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]*'
  THEN printf('%08x-%04x-%04x-%04x-%02x%010x', a >> 16, a & 65535, b >> 24, (b >> 8) & 65535, b & 255, c) END
  FROM (SELECT t, {{decode "upper(t)" 1 10}} AS a, {{decode "upper(t)" 11 8}} AS b, {{decode "upper(t)" 19 8}} AS c
  FROM (SELECT :ulid AS t))) AS from_ulid;
