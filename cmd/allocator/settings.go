package main

import (
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/internal/config"
)

// settings adds --config and a flag for each option to cmd, and returns what
// loads them.
func (a *app) settings(cmd *cobra.Command) func() (config.Config, []config.Setting, error) {
	file := cmd.Flags().String("config", "", "YAML file with settings (or $"+config.EnvConfig+")")
	_ = cmd.MarkFlagFilename("config", "yaml", "yml")
	config.AddFlags(cmd.Flags())
	for name, words := range words {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
	}
	return func() (config.Config, []config.Setting, error) {
		path := *file
		if path == "" {
			path = a.getenv(config.EnvConfig)
		}
		c, list, err := config.Load(config.Sources{File: path, Env: a.env, Flags: cmd.Flags()})
		if err != nil {
			return c, list, &exitError{exitUsage, err}
		}
		return c, list, nil
	}
}

// words are the values of those settings that have few, for completion alone:
// what is right is for config to say.
var words = map[string][]string{
	"layout": {"scalable", "fleet"}, "clock.policy": {"allow", "refuse"}, "log.level": {"debug", "info", "warn", "error"}, "log.format": {"text", "json"},
}

// getenv returns a variable, or "".
func (a *app) getenv(name string) string {
	for _, pair := range a.env {
		if key, v, _ := strings.Cut(pair, "="); key == name {
			return v
		}
	}
	return ""
}

// logger returns what logs to w as the settings say. They need not be valid.
func logger(c config.Log, w io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.Level))
	opts := &slog.HandlerOptions{Level: level}
	if c.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}

// noEndpoints is the error of commands that need etcd and were not told where.
func noEndpoints(command string) error {
	return usage("%s needs etcd: give --etcd.endpoints http://HOST:2379 or $ALLOCATOR_ETCD_ENDPOINTS.\n"+
		"To try allocator without one, %s", command, tryDev)
}

func invalidSettings(err error) error {
	return &exitError{exitUsage, fmt.Errorf("%w\n«allocator config print» shows every setting and where it came from", err)}
}
