package status

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/flakelease/allocator/api"
	"github.com/flakelease/allocator/internal/watermark"
)

// schema is an object of openapi.yaml.
type schema struct {
	Required   []string          `yaml:"required"`
	Properties map[string]schema `yaml:"properties"`
	Enum       []string          `yaml:"enum"`
}

// schemas returns those of openapi.yaml.
func schemas(t *testing.T) map[string]schema {
	t.Helper()
	var doc struct {
		Components struct {
			Schemas map[string]schema `yaml:"schemas"`
		} `yaml:"components"`
	}
	if err := yaml.Unmarshal(api.OpenAPI, &doc); err != nil {
		t.Fatal(err)
	}
	return doc.Components.Schemas
}

// TestOpenAPI: each field of the contract is in openapi.yaml, and required where it is never
// left out. proto.go compares the fields with the proto file.
func TestOpenAPI(t *testing.T) {
	described := schemas(t)
	described["KernelClock"] = described["Clock"].Properties["kernel"]
	for name, typ := range map[string]reflect.Type{
		"Cluster":          reflect.TypeFor[Cluster](),
		"ClusterProblem":   reflect.TypeFor[Problem](),
		"Node":             reflect.TypeFor[Node](),
		"Report":           reflect.TypeFor[Report](),
		"Work":             reflect.TypeFor[Work](),
		"Etcd":             reflect.TypeFor[Etcd](),
		"PeerClock":        reflect.TypeFor[PeerClock](),
		"Sid":              reflect.TypeFor[SID](),
		"Self":             reflect.TypeFor[Self](),
		"Clock":            reflect.TypeFor[Clock](),
		"Watermark":        reflect.TypeFor[watermark.Answer](),
		"WatermarkBlocker": reflect.TypeFor[watermark.Blocker](),
		"KernelClock":      reflect.TypeFor[KernelClock](),
	} {
		s, fields := described[name], map[string]bool{}
		for i := range typ.NumField() {
			field, option, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
			fields[field] = true
			if _, ok := s.Properties[field]; !ok {
				t.Errorf("openapi.yaml: %s has no %s", name, field)
			}
			if required := option != "omitempty"; required != slices.Contains(s.Required, field) {
				t.Errorf("openapi.yaml: %s of %s: required has to be %t", field, name, required)
			}
		}
		for field := range s.Properties {
			if !fields[field] {
				t.Errorf("openapi.yaml: %s has %s, and %v does not", name, field, typ)
			}
		}
	}
}
