// Package api has the contract of the HTTP API; the one of gRPC is in api/allocator/v1.
package api

import _ "embed" // for the document

// OpenAPI is openapi.yaml, which nodes serve at /openapi.yaml. Do not write to it.
//
//go:embed openapi.yaml
var OpenAPI []byte
