package config

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/flakelease/allocator/internal/text"
)

// Sources is what Load reads, besides the defaults.
type Sources struct {
	File  string         // path of a YAML file; "" is none
	Env   []string       // as os.Environ gives it
	Flags *pflag.FlagSet // with flags by AddFlags, parsed; nil is none
	// Given are values by key that a program sets: above all others.
	Given map[string]string
	// Base is what options have that no source sets; nil is Default.
	Base *Config
}

// Setting is one option with its value and where that came from.
type Setting struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Source string `json:"source"` // default, file PATH, env NAME, flag --NAME or program
}

// List returns the settings of c as a program made it, in the order of the options.
func (c Config) List() []Setting {
	var out []Setting
	def := Default()
	before := def.options()
	for i, o := range c.options() {
		source := "program"
		if o.text() == before[i].text() {
			source = "default"
		}
		out = append(out, Setting{Key: o.Key, Value: o.text(), Source: source})
	}
	return out
}

// Errors of Load. They come wrapped with the key and its source.
var (
	ErrUnknownKey = errors.New("config: unknown key")
	ErrValue      = errors.New("config: bad value")
	ErrFile       = errors.New("config: unreadable file")
)

// Variables that commands read and that are no options of a node.
const (
	EnvConfig = EnvPrefix + "CONFIG" // path of the file, where --config is not given
	EnvAddr   = EnvPrefix + "ADDR"   // nodes that client commands ask
	EnvToken  = EnvPrefix + "TOKEN"  // Client commands show the token in this variable.
)

// layer is one source of settings: raw values by key.
type layer struct {
	values map[string]string
	source func(key string) string
}

// Load returns the configuration and each of its settings, in the order of the
// options. It does not call Validate: what breaks a rule can still be shown.
//
// It returns all of ErrUnknownKey and ErrValue that it found, or ErrFile.
func Load(s Sources) (Config, []Setting, error) {
	known := map[string]bool{}
	for _, o := range Options() {
		known[o.Key] = true
	}
	var layers []layer
	var errs []error
	for _, read := range []func(Sources, map[string]bool) (layer, error){fromFile, fromEnv, fromFlags, fromProgram} {
		l, err := read(s, known)
		layers, errs = append(layers, l), append(errs, err)
	}
	maps.DeleteFunc(layers[1].values, func(key, v string) bool {
		_, inFile := layers[0].values[key]
		return v == "" && !inFile
	})

	c := Default()
	if s.Base != nil {
		c = *s.Base
	}
	var settings []Setting
	for _, o := range c.options() {
		source := "default"
		for _, l := range layers {
			raw, ok := l.values[o.Key]
			if !ok {
				continue
			}
			source = l.source(o.Key)
			if err := o.value.Set(raw); err != nil {
				errs = append(errs, fmt.Errorf("%w: %s (%s): %w", ErrValue, o.Key, source, err))
			}
		}
		settings = append(settings, Setting{Key: o.Key, Value: o.text(), Source: source})
	}
	c.derive()
	return c, settings, errors.Join(errs...)
}

func fromFile(s Sources, known map[string]bool) (layer, error) {
	l := layer{values: map[string]string{}, source: func(string) string { return "file " + s.File }}
	if s.File == "" {
		return l, nil
	}
	var sections map[string]any
	b, err := os.ReadFile(s.File)
	if err == nil {
		err = yaml.Unmarshal(b, &sections)
	}
	if err != nil {
		if path, ok := errors.AsType[*fs.PathError](err); ok {
			err = path.Err // this error names the path already
		}
		return l, fmt.Errorf("%w: %s: %w", ErrFile, s.File, err)
	}
	values := map[string]any{}
	flatten(sections, "", values)
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(values)) {
		v := values[key]
		switch {
		case known[key]:
			if v != nil { // `key:` with nothing behind it sets nothing
				l.values[key] = scalar(v)
			}
		case v == nil && isSection(key, known):
		default:
			errs = append(errs, fmt.Errorf("%w: %q in %s: %s", ErrUnknownKey, key, s.File, hint(key, known)))
		}
	}
	return l, errors.Join(errs...)
}

// flatten adds the values of nested sections to out, by keys with dots.
func flatten(section map[string]any, prefix string, out map[string]any) {
	for key, v := range section {
		switch v := v.(type) {
		case map[string]any:
			flatten(v, prefix+key+".", out)
		case map[any]any: // YAML has keys that are no strings
			named := map[string]any{}
			for k, v := range v {
				named[fmt.Sprint(k)] = v
			}
			flatten(named, prefix+key+".", out)
		default:
			out[prefix+key] = v
		}
	}
}

// scalar returns a value of YAML as an option reads it.
func scalar(v any) string {
	switch v := v.(type) {
	case []any:
		parts := make([]string, len(v))
		for i := range v {
			parts[i] = scalar(v[i])
		}
		return strings.Join(parts, ",")
	case time.Time: // YAML knows dates
		return v.Format(time.RFC3339Nano)
	default:
		return fmt.Sprint(v)
	}
}

// serviceLinks are the variables that Kubernetes and Docker set for a Service or
// link named allocator, or allocator-something.
var serviceLinks = regexp.MustCompile(`^ALLOCATOR_(PORT.*|SERVICE_.*|.*_TCP.*|` +
	`.*_SERVICE_(HOST|PORT.*)|.*_PORT|.*_PORT_\d+_.*)$`)

// emptyCounts is the one setting that an empty variable takes out of the file: the node is a client then.
const emptyCounts = "etcd.inside"

func fromEnv(s Sources, known map[string]bool) (layer, error) {
	keys := map[string]string{} // by variable
	for key := range known {
		keys[Option{Key: key}.Env()] = key
	}
	l := layer{values: map[string]string{}, source: func(key string) string { return "env " + Option{Key: key}.Env() }}
	var errs []error
	for _, pair := range s.Env {
		name, v, _ := strings.Cut(pair, "=")
		key, ok := keys[name]
		switch {
		// Charts and compose files leave a setting out like this: tokens and TLS of the file must stay.
		case v == "" && key != emptyCounts:
		case ok:
			l.values[key] = v
		case !strings.HasPrefix(name, EnvPrefix), name == EnvConfig, name == EnvAddr, name == EnvToken:
		case serviceLinks.MatchString(name):
		default:
			meant := allSettings
			if best := text.Nearest(name, slices.Sorted(maps.Keys(keys))); best != "" {
				meant = "did you mean " + best + "?"
			}
			errs = append(errs, fmt.Errorf("%w: variable %s: %s", ErrUnknownKey, name, meant))
		}
	}
	return l, errors.Join(errs...)
}

func fromFlags(s Sources, known map[string]bool) (layer, error) {
	l := layer{values: map[string]string{}, source: func(key string) string { return "flag --" + key }}
	if s.Flags == nil {
		return l, nil
	}
	s.Flags.Visit(func(f *pflag.Flag) { // those that were set
		if v, ours := f.Value.(*Value); ours && known[f.Name] {
			l.values[f.Name] = v.text
		}
	})
	return l, nil
}

func fromProgram(s Sources, known map[string]bool) (layer, error) {
	l := layer{values: s.Given, source: func(string) string { return "program" }}
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(s.Given)) {
		if !known[key] {
			errs = append(errs, fmt.Errorf("%w: %q given by the program: %s", ErrUnknownKey, key, hint(key, known)))
		}
	}
	return l, errors.Join(errs...)
}

func isSection(key string, known map[string]bool) bool {
	for k := range known {
		if strings.HasPrefix(k, key+".") {
			return true
		}
	}
	return false
}

const allSettings = `run "allocator config print" for the names of all settings`

// hint suggests what an unknown key was meant to be.
func hint(key string, known map[string]bool) string {
	keys := slices.Sorted(maps.Keys(known))
	if isSection(key, known) {
		inside := slices.DeleteFunc(keys, func(k string) bool { return !strings.HasPrefix(k, key+".") })
		return "it is a section: set " + strings.Join(inside, ", ")
	}
	if best := text.Nearest(key, keys); best != "" {
		return fmt.Sprintf("did you mean %q?", best)
	}
	return allSettings
}
