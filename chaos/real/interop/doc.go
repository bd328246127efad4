// Package interop tests the allocator's formats and protocols with other people's
// libraries: ULID and UUID decoders read its IDs, an OpenAPI validator reads its HTTP
// answers, OpenTelemetry traces its client, and nodes take over from other generators.
//
// It tests, and gives nothing to import.
package interop
