// Command schemas writes a JSON schema for each kind in Kubernetes' OpenAPI document,
// in the form that kubeconform reads offline:
//
//	schemas swagger.json DIR
//
// A schema contains the definitions that it refers to. It refuses unknown fields.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"maps"
	"os"
	"path/filepath"
	"strings"
)

// object is any part of a schema.
type object = map[string]any

const refPrefix = "#/definitions/"

func main() {
	log.SetFlags(0)
	if len(os.Args) != 3 {
		log.Fatal("usage: schemas swagger.json DIR")
	}
	n, err := convert(os.Args[1], os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d kinds\n", n)
}

func convert(swagger, dir string) (int, error) {
	text, err := os.ReadFile(swagger)
	if err != nil {
		return 0, err
	}
	var doc struct {
		Definitions map[string]object `json:"definitions"`
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		return 0, err
	}
	for name, d := range doc.Definitions {
		switch {
		case strings.HasSuffix(name, ".IntOrString"):
			doc.Definitions[name] = object{"type": []string{"integer", "string"}}
		case strings.HasSuffix(name, ".Quantity"):
			doc.Definitions[name] = object{"type": []string{"number", "string"}}
		case d["properties"] != nil:
			d["additionalProperties"] = false
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return 0, err
	}
	n := 0
	for name, d := range doc.Definitions {
		kinds, _ := d["x-kubernetes-group-version-kind"].([]any)
		if len(kinds) != 1 {
			continue // options of requests, which belong to every group
		}
		of := kinds[0].(object)
		group, _, _ := strings.Cut(of["group"].(string), ".")
		file := strings.ToLower(of["kind"].(string))
		if group != "" {
			file += "-" + group
		}
		file += "-" + of["version"].(string) + ".json"
		used := map[string]object{}
		reach(doc.Definitions, d, used)
		whole := maps.Clone(d)
		whole["definitions"] = used
		out, err := json.Marshal(whole)
		if err != nil {
			return n, fmt.Errorf("%s: %w", name, err)
		}
		if err := os.WriteFile(filepath.Join(dir, file), out, 0o644); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// reach adds to used every definition that v refers to.
func reach(all map[string]object, v any, used map[string]object) {
	switch v := v.(type) {
	case object:
		if ref, ok := v["$ref"].(string); ok {
			name := strings.TrimPrefix(ref, refPrefix)
			if used[name] == nil {
				used[name] = all[name]
				reach(all, all[name], used)
			}
		}
		for _, sub := range v {
			reach(all, sub, used)
		}
	case []any:
		for _, sub := range v {
			reach(all, sub, used)
		}
	}
}
