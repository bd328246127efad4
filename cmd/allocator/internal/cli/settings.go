package cli

import (
	"cmp"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/config"
)

// Loader returns the settings of a command, and where each of them came from.
type Loader func() (config.Config, []config.Setting, error)

// Settings adds --config and a flag for each option to cmd, and returns what
// loads them.
func (a *App) Settings(cmd *cobra.Command) Loader {
	return a.SettingsOf(cmd, config.Default())
}

// SettingsOf is Settings with other defaults, for a command that has these settings alone: files and
// variables may have the others too, for serve.
func (a *App) SettingsOf(cmd *cobra.Command, base config.Config, keys ...string) Loader {
	file := cmd.Flags().String("config", "", "YAML file with settings (or $"+config.EnvConfig+")")
	_ = cmd.MarkFlagFilename("config", "yaml", "yml")
	config.AddFlags(cmd.Flags(), keys...)
	for _, o := range config.Options() {
		words := o.Choices
		if o.Key == "layout" { // The standalone layout has no sid, so no node can use it.
			words = slices.DeleteFunc(flake.Layouts(), func(l string) bool { return l == flake.Standalone.String() })
		}
		if words != nil && cmd.Flags().Lookup(o.Key) != nil {
			_ = cmd.RegisterFlagCompletionFunc(o.Key, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
		}
	}
	return func() (config.Config, []config.Setting, error) {
		path := cmp.Or(*file, a.Getenv(config.EnvConfig))
		c, list, err := config.Load(config.Sources{File: path, Env: a.Env, Flags: cmd.Flags(), Base: &base})
		if err != nil {
			return c, list, Exit(ExitUsage, err)
		}
		return c, list, nil
	}
}

// ListSettings leaves in cmd's help only the settings of these keys and sections. The
// others are taken all the same: files, and scripts, share them with serve.
func ListSettings(cmd *cobra.Command, used ...string) {
	for _, o := range config.Options() {
		section, _, _ := strings.Cut(o.Key, ".")
		if !slices.Contains(used, o.Key) && !slices.Contains(used, section) {
			cmd.Flags().Lookup(o.Key).Hidden = true
		}
	}
}

// Getenv returns a variable, or "".
func (a *App) Getenv(name string) string {
	for _, pair := range a.Env {
		if key, v, _ := strings.Cut(pair, "="); key == name {
			return v
		}
	}
	return ""
}

// Logger returns what logs to w with these settings, which need not be valid.
func Logger(c config.Log, w io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.Level))
	opts := &slog.HandlerOptions{Level: level}
	log := slog.New(slog.NewTextHandler(w, opts))
	if c.Format == "json" {
		log = slog.New(slog.NewJSONHandler(w, opts))
	}
	if d, ok := w.(*detached); ok {
		d.reportTo(log)
	}
	return log
}

// TryDev is how to start a cluster for a trial.
const TryDev = `run "allocator dev"`

// WithEtcd returns the settings that load gives to a command that needs etcd.
func WithEtcd(command string, load Loader) (config.Config, []config.Setting, error) {
	c, list, err := load()
	if err == nil && len(c.Etcd.Addresses()) == 0 {
		err = UsageError("%s needs etcd: give --etcd.join HOST,HOST,HOST of nodes with etcd inside, or "+
			"--etcd.endpoints http://HOST:2379 of your own, or their variables such as $ALLOCATOR_ETCD_ENDPOINTS.\n"+
			"To try allocator without one, %s", command, TryDev)
	}
	if err == nil {
		if err = c.Validate(); err != nil {
			err = InvalidSettings(err)
		}
	}
	return c, list, err
}

// InvalidSettings returns the error of settings that break rules.
func InvalidSettings(err error) error {
	return Exit(ExitUsage, fmt.Errorf("%w\n\"allocator config print\" shows every setting and where it came from", err))
}
