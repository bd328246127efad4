-- Reads IDs of {{.Format}} in MySQL 8 and MariaDB 10.10 or later. Times are UTC, and UUIDs BINARY(16).
-- NULL is what is no such ID. Columns may be BIGINT or BIGINT UNSIGNED.
--
-- Generated columns and their indexes take no functions. Take these expressions there:
--   ms BIGINT AS ({{template "ms" .}}) VIRTUAL
--   sid INT AS ({{template "sid" .}}) VIRTUAL
{{- define "ms"}}(id >> {{.Low}}) * {{.Unit}} + {{.Epoch}}{{end}}
{{- define "time"}}TIMESTAMP '1970-01-01 00:00:00' + INTERVAL ({{template "ms" .}}) * 1000 MICROSECOND{{end}}
{{- define "sid"}}(id >> {{.SIDShift}}) & {{.SIDMask}}{{end}}
{{- define "is"}} DETERMINISTIC NO SQL SQL SECURITY INVOKER
RETURN{{end}}
{{- $ms := "CAST(CONV(HEX(SUBSTR(id, 1, 6)), 16, 10) AS SIGNED)"}}
{{- $a := "CAST(CONV(HEX(SUBSTR(id, 7, 2)), 16, 10) AS UNSIGNED)"}}
{{- $b := "CAST(CONV(HEX(SUBSTR(id, 9)), 16, 10) AS UNSIGNED)"}}
{{- $low := printf "((%s & 4095) << %d | (%s >> %d) & %d)" $a .HighShift $b .Random .BesideMask}}
DROP FUNCTION IF EXISTS id_ms;
CREATE FUNCTION id_ms(id BIGINT) RETURNS BIGINT{{template "is"}} {{template "ms" .}};
DROP FUNCTION IF EXISTS id_time;
CREATE FUNCTION id_time(id BIGINT) RETURNS DATETIME(3){{template "is"}} {{template "time" .}};
DROP FUNCTION IF EXISTS id_sid;
CREATE FUNCTION id_sid(id BIGINT) RETURNS INT{{template "is"}} {{template "sid" .}};
-- The smallest ID of a time: WHERE id >= id_first(a) AND id < id_first(b)
{{- define "units"}}(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', at) - {{.Epoch}} * 1000 + {{.Unit}} * 1000 - 1) DIV
  ({{.Unit}} * 1000){{end}}
DROP FUNCTION IF EXISTS id_first;
CREATE FUNCTION id_first(at DATETIME(6)) RETURNS BIGINT{{template "is"}} IF({{template "units" .}} >= {{.Units}},
  9223372036854775807, GREATEST({{template "units" .}}, 0) << {{.Low}});
DROP FUNCTION IF EXISTS uuid_time;
CREATE FUNCTION uuid_time(id BINARY(16)) RETURNS DATETIME(3){{template "is"}} TIMESTAMP '1970-01-01 00:00:00'
  + INTERVAL {{$ms}} * 1000 MICROSECOND;
DROP FUNCTION IF EXISTS uuid_first;
CREATE FUNCTION uuid_first(at DATETIME(6)) RETURNS BINARY(16){{template "is"}} UNHEX(RPAD(LPAD(HEX(
  GREATEST((TIMESTAMPDIFF(MICROSECOND, '1970-01-01', at) + 999) DIV 1000, 0)), 12, '0'), 32, '0'));
-- The UUIDv7 of an ID; bits that the ID has no value for are random, others each time.
DROP FUNCTION IF EXISTS to_uuid;
CREATE FUNCTION to_uuid(id BIGINT) RETURNS BINARY(16) NOT DETERMINISTIC NO SQL SQL SECURITY INVOKER
RETURN UNHEX(CONCAT(LPAD(HEX({{template "ms" .}}), 12, '0'),
  HEX(28672 | ((id & {{.LowMask}}) >> {{.HighShift}})), HEX(9223372036854775808 | ((id & {{.BesideMask}}) << {{.Random}})
  | (CAST(CONV(HEX(RANDOM_BYTES(8)), 16, 10) AS UNSIGNED) & {{.RandomMask}}))));
DROP FUNCTION IF EXISTS from_uuid;
CREATE FUNCTION from_uuid(id BINARY(16)) RETURNS BIGINT{{template "is"}} IF({{$a}} >> 12 = 7
  AND {{$b}} >> 62 = 2 AND {{$ms}} >= {{.Epoch}} AND {{$ms}} < {{.End}}
  AND ({{$ms}} - {{.Epoch}}) % {{.Unit}} = 0 AND {{$low}} <= {{.LowMask}},
  (({{$ms}} - {{.Epoch}}) DIV {{.Unit}} << {{.Low}}) | {{$low}}, NULL);
DROP FUNCTION IF EXISTS to_flake;
CREATE FUNCTION to_flake(id BIGINT) RETURNS CHAR(13) CHARACTER SET ascii{{template "is"}} {{encode "id" 13}};
DROP FUNCTION IF EXISTS from_flake;
CREATE FUNCTION from_flake(id VARCHAR(40) CHARACTER SET utf8mb4) RETURNS BIGINT{{template "is"}} IF(LENGTH(id) = 13
  AND id REGEXP {{.FlakePattern}}, {{decode "UPPER(id)" 1 13}}, NULL);
DROP FUNCTION IF EXISTS to_ulid;
CREATE FUNCTION to_ulid(id BINARY(16)) RETURNS CHAR(26) CHARACTER SET ascii{{template "is"}} CONCAT(
  {{encode $ms 10}},
  {{encode "CAST(CONV(HEX(SUBSTR(id, 7, 5)), 16, 10) AS UNSIGNED)" 8}},
  {{encode "CAST(CONV(HEX(SUBSTR(id, 12)), 16, 10) AS UNSIGNED)" 8}});
DROP FUNCTION IF EXISTS from_ulid;
CREATE FUNCTION from_ulid(id VARCHAR(40) CHARACTER SET utf8mb4) RETURNS BINARY(16){{template "is"}} IF(
  LENGTH(id) = 26 AND id REGEXP {{.ULIDPattern}},
  UNHEX(CONCAT(LPAD(HEX({{decode "UPPER(id)" 1 10}}), 12, '0'),
  LPAD(HEX({{decode "UPPER(id)" 11 8}}), 10, '0'), LPAD(HEX({{decode "UPPER(id)" 19 8}}), 10, '0'))), NULL);
