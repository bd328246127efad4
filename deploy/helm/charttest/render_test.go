package charttest

import (
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/release"
	"helm.sh/helm/v3/pkg/releaseutil"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/flakelease/allocator/chaos/fatal"
)

const chartDir = "../allocator"

// loadChart loads the chart once, with the files that a package would have.
var loadChart = sync.OnceValues(func() (*chart.Chart, error) { return loader.Load(chartDir) })

func loaded(t testing.TB) *chart.Chart {
	t.Helper()
	c, err := loadChart()
	fatal.If(t, err)
	return c
}

// rendered is what an installation or upgrade would send.
type rendered struct {
	objects []object // of the release, in installation order
	hooks   []object
	events  map[string][]release.HookEvent // of hooks, by kind and name
	notes   string
}

type object struct {
	text string // as rendered
	*unstructured.Unstructured
}

func (o object) id() string { return o.GetKind() + "/" + o.GetName() }

// occasion is the operation for which the chart is rendered.
type occasion struct {
	name, release string
	upgrade       bool
}

var (
	install = occasion{name: "install", release: "ids"}
	upgrade = occasion{name: "upgrade", release: "ids", upgrade: true}
)

// render does what Helm does before it sends objects to a cluster, including the
// check against the schema.
func render(t testing.TB, values map[string]any, at occasion) (rendered, error) {
	t.Helper()
	caps := chartutil.DefaultCapabilities.Copy()
	caps.KubeVersion = chartutil.KubeVersion{Version: "v1.36.3", Major: "1", Minor: "36"}
	c := loaded(t)
	options := chartutil.ReleaseOptions{Name: at.release, Namespace: "prod", Revision: 1, IsInstall: !at.upgrade, IsUpgrade: at.upgrade}
	if at.upgrade {
		options.Revision = 2
	}
	top, err := chartutil.ToRenderValues(c, values, options, caps)
	if err != nil {
		return rendered{}, err
	}
	files, err := engine.Render(c, top)
	if err != nil {
		return rendered{}, err
	}
	r := rendered{events: map[string][]release.HookEvent{}}
	for name, text := range files {
		if strings.HasSuffix(name, "NOTES.txt") {
			r.notes = text
			delete(files, name)
		}
	}
	hooks, manifests, err := releaseutil.SortManifests(files, nil, releaseutil.InstallOrder)
	if err != nil {
		return rendered{}, err
	}
	for _, h := range hooks {
		o := parse(t, h.Manifest)
		r.hooks = append(r.hooks, o)
		r.events[o.id()] = h.Events
	}
	for _, m := range manifests {
		r.objects = append(r.objects, parse(t, m.Content))
	}
	return r, nil
}

func parse(t testing.TB, text string) object {
	t.Helper()
	var m map[string]any
	if err := yaml.UnmarshalStrict([]byte(text), &m); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return object{text, &unstructured.Unstructured{Object: m}}
}

// mustRender is render for valid values.
func mustRender(t testing.TB, values map[string]any, at occasion) rendered {
	t.Helper()
	r, err := render(t, values, at)
	fatal.If(t, err)
	return r
}

func (r rendered) all() []object { return append(slices.Clone(r.objects), r.hooks...) }

// find returns the object with an id.
func (r rendered) find(t testing.TB, id string) object {
	t.Helper()
	for _, o := range r.all() {
		if o.id() == id {
			return o
		}
	}
	t.Fatalf("%s is not rendered", id)
	return object{}
}

func (r rendered) has(id string) bool {
	return slices.ContainsFunc(r.all(), func(o object) bool { return o.id() == id })
}

// read parses values as Helm parses a file.
func read(t testing.TB, text string) map[string]any {
	t.Helper()
	v, err := chartutil.ReadValues([]byte(text))
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return v
}

// asSet returns values as --set has them: whole numbers are int64, and those of files float64.
func asSet(values map[string]any) map[string]any {
	var convert func(v any) any
	convert = func(v any) any {
		switch v := v.(type) {
		case map[string]any:
			out := map[string]any{}
			for name, sub := range v {
				out[name] = convert(sub)
			}
			return out
		case []any:
			out := make([]any, len(v))
			for i, sub := range v {
				out[i] = convert(sub)
			}
			return out
		case float64:
			if v == math.Trunc(v) {
				return int64(v)
			}
		}
		return v
	}
	return convert(values).(map[string]any)
}

// minimal are the values that every installation needs.
const minimal = `
image: {registry: registry.example.org}
etcd: {endpoints: ["http://etcd:2379"]}
gossip: {existingSecret: gossip}
`

// with returns the minimal values with more on top.
func with(t testing.TB, more string) map[string]any {
	t.Helper()
	return chartutil.CoalesceTables(read(t, more), read(t, minimal))
}

// ciValues returns the values in ci/, by name.
func ciValues(t testing.TB) map[string]map[string]any {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(chartDir, "ci", "*-values.yaml"))
	if err != nil || len(paths) < 5 {
		t.Fatalf("%d files of values: %v", len(paths), err)
	}
	out := map[string]map[string]any{}
	for _, p := range paths {
		text, err := os.ReadFile(p)
		fatal.If(t, err)
		out[strings.TrimSuffix(filepath.Base(p), "-values.yaml")] = read(t, string(text))
	}
	return out
}

// forEach runs f for each file of ci/, at installation and at upgrade.
func forEach(t *testing.T, f func(t *testing.T, r rendered)) {
	values := ciValues(t)
	for _, name := range slices.Sorted(maps.Keys(values)) {
		for _, at := range []occasion{install, upgrade} {
			t.Run(fmt.Sprintf("%s/%s", name, at.name), func(t *testing.T) {
				f(t, mustRender(t, values[name], at))
			})
		}
	}
}
