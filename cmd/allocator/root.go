package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// Exit codes.
const (
	exitOK          = 0
	exitInvalid     = 1 // an input is invalid, or a request was refused
	exitUsage       = 2
	exitUnavailable = 3 // etcd or every node asked is away
)

// exitError is an error with the exit code it stands for. Err nil ends the
// program without another word.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}
func (e *exitError) Unwrap() error { return e.err }

func usage(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

// app is what commands share: where they read and write, and the environment.
type app struct {
	in       io.Reader
	out, err io.Writer
	env      []string
	started  bool // a command's own code ran: its errors are no longer cobra's
}

// run carries out one command line and returns the exit code.
func run(ctx context.Context, args []string, in io.Reader, out, stderr io.Writer, env []string) int {
	a := &app{in: in, out: out, err: stderr, env: env}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	var exit *exitError
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, syscall.EPIPE): // the reader has what it wanted
		return exitOK
	case errors.As(err, &exit):
		if exit.err != nil {
			fmt.Fprintf(stderr, "allocator: %v\n", exit.err)
		}
		return exit.code
	case a.started:
		fmt.Fprintf(stderr, "allocator: %v\n", err)
		return exitInvalid
	default:
		fmt.Fprintf(stderr, "allocator: %v\nRun «%s --help» for usage.\n", err, cmd.CommandPath())
		return exitUsage
	}
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "allocator",
		Short: "Unique, time-sorted IDs from nodes that never issue one twice",
		Long: `Allocator issues unique, time-sorted IDs. Nodes lease scalability IDs (sids) from
etcd, reserve windows of milliseconds, and issue IDs from memory; they refuse
rather than issue a duplicate.

To try it, run «allocator dev»: it needs nothing else.`,
		SilenceErrors:     true,
		SilenceUsage:      true,
		PersistentPreRunE: func(*cobra.Command, []string) error { a.started = true; return nil },
		Args:              cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cmd.Help()
		},
	}
	root.CompletionOptions.HiddenDefaultCmd = false
	root.AddCommand(
		a.devCommand(), a.initCommand(), a.serveCommand(),
		a.getCommand(), a.parseCommand(), a.validateCommand(),
		a.statusCommand(), a.doctorCommand(), a.adminCommand(), a.gossipCommand(), a.configCommand(), a.versionCommand(), a.docsCommand(),
	)
	return root
}

// choice is a flag whose value is one of a few words.
type choice struct {
	value string
	words []string
}

func (c *choice) String() string { return c.value }
func (c *choice) Type() string   { return strings.Join(c.words, "|") }
func (c *choice) Set(s string) error {
	if !slices.Contains(c.words, s) {
		return fmt.Errorf("%q is none of %s", s, strings.Join(c.words, ", "))
	}
	c.value = s
	return nil
}

// choose adds such a flag; the first word is the default.
func choose(cmd *cobra.Command, name, help string, words ...string) *choice {
	c := &choice{value: words[0], words: words}
	cmd.Flags().Var(c, name, help)
	_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
	return c
}

// formatFlag adds --format.
func formatFlag(cmd *cobra.Command) *choice {
	return choose(cmd, "format", "shape of the output; json is one object a line", "text", "json")
}
