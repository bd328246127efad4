-- Reads IDs of {{.Format}} in PostgreSQL 14 or later. NULL is what is no such ID.
CREATE OR REPLACE FUNCTION {{.Schema}}id_ms(id bigint) RETURNS bigint LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN (id >> {{.Low}}) * {{.Unit}} + {{.Epoch}};
CREATE OR REPLACE FUNCTION {{.Schema}}id_time(id bigint) RETURNS timestamptz
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN timestamptz '1970-01-01 00:00:00Z' + ((id >> {{.Low}}) * {{.Unit}} + {{.Epoch}}) * interval '1 ms';
CREATE OR REPLACE FUNCTION {{.Schema}}id_sid(id bigint) RETURNS int LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN ((id >> {{.SIDShift}}) & {{.SIDMask}})::int;
-- The smallest ID of a time: WHERE id >= id_first(a) AND id < id_first(b)
CREATE OR REPLACE FUNCTION {{.Schema}}id_first(at timestamptz) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN least(greatest(0, ceil((extract(epoch FROM at) * 1000 - {{.Epoch}}) / {{.Unit}})) * {{.PerUnit}},
  9223372036854775807)::bigint;
CREATE OR REPLACE FUNCTION {{.Schema}}id_time(id uuid) RETURNS timestamptz
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN timestamptz '1970-01-01 00:00:00Z' + ('x' || left(replace(id::text, '-', ''), 12))::bit(48)::bigint
  * interval '1 ms';
CREATE OR REPLACE FUNCTION {{.Schema}}uuid_first(at timestamptz) RETURNS uuid
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN rpad(lpad(to_hex(least(greatest(0, ceil(extract(epoch FROM at) * 1000)), 281474976710655)::bigint), 12, '0'),
  32, '0')::uuid;
-- The UUIDv7 of an ID; bits that the ID has no value for are random, others each time.
CREATE OR REPLACE FUNCTION {{.Schema}}to_uuid(id bigint) RETURNS uuid LANGUAGE sql VOLATILE STRICT PARALLEL SAFE
RETURN (lpad(to_hex((id >> {{.Low}}) * {{.Unit}} + {{.Epoch}}), 12, '0')
  || to_hex(28672 | ((id & {{.LowMask}}) >> {{.HighShift}}))
  || to_hex((-9223372036854775807 - 1) | ((id & {{.BesideMask}}) << {{.Random}})
     | (('x' || right(replace(gen_random_uuid()::text, '-', ''), 16))::bit(64)::bigint & {{.RandomMask}})))::uuid;
CREATE OR REPLACE FUNCTION {{.Schema}}from_uuid(id uuid) RETURNS bigint LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN (SELECT CASE WHEN a >> 12 = 7 AND (b >> 62) & 3 = 2 AND ms >= {{.Epoch}} AND ms < {{.End}}
    AND (ms - {{.Epoch}}) % {{.Unit}} = 0 AND low <= {{.LowMask}}
  THEN ((ms - {{.Epoch}}) / {{.Unit}} << {{.Low}}) | low END
  FROM (SELECT *, ((a & 4095) << {{.HighShift}}) | ((b >> {{.Random}}) & {{.BesideMask}}) AS low
  FROM (SELECT ('x' || substr(t, 1, 12))::bit(48)::bigint AS ms, ('x' || substr(t, 13, 4))::bit(16)::bigint AS a,
    ('x' || substr(t, 17))::bit(64)::bigint AS b
  FROM (SELECT replace(id::text, '-', '') AS t) hex) words) parts);
CREATE OR REPLACE FUNCTION {{.Schema}}to_flake(id bigint) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN {{encode "id" 13}};
CREATE OR REPLACE FUNCTION {{.Schema}}from_flake(id text) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN (SELECT CASE WHEN id ~ {{.FlakePattern}} THEN {{decode "t" 1 13}} END FROM (SELECT upper(id) AS t) u);
CREATE OR REPLACE FUNCTION {{.Schema}}to_ulid(id uuid) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN (SELECT {{encode "a" 10}} || {{encode "b" 8}} || {{encode "c" 8}}
  FROM (SELECT ('x' || substr(t, 1, 12))::bit(48)::bigint AS a, ('x' || substr(t, 13, 10))::bit(40)::bigint AS b,
    ('x' || substr(t, 23))::bit(40)::bigint AS c
  FROM (SELECT replace(id::text, '-', '') AS t) hex) words);
CREATE OR REPLACE FUNCTION {{.Schema}}from_ulid(id text) RETURNS uuid LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN (SELECT CASE WHEN id ~ {{.ULIDPattern}} THEN (lpad(to_hex({{decode "t" 1 10}}), 12, '0')
  || lpad(to_hex({{decode "t" 11 8}}), 10, '0') || lpad(to_hex({{decode "t" 19 8}}), 10, '0'))::uuid END
  FROM (SELECT upper(id) AS t) u);
