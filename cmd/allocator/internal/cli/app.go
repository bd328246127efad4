// Package cli is what all commands share: where they read and write, exit codes,
// flags of several commands, and how output is written.
//
// It knows no command. Packages beside it hold the commands, by who uses them.
package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"
)

// Exit codes.
const (
	ExitOK          = 0
	ExitInvalid     = 1 // an input is invalid, or a request was refused
	ExitUsage       = 2
	ExitUnavailable = 3 // etcd or every node asked is unavailable, or what this machine needs to serve is

	ExitInterrupted = 130 // what shells report of a process that SIGINT ended
)

// ExitError is an error with the exit code it stands for. Without a
// cause the program ends silently.
type ExitError struct {
	Code int
	err  error
}

// Error returns the message; "" if there is none.
func (e *ExitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

// Unwrap returns the cause.
func (e *ExitError) Unwrap() error { return e.err }

// Exit returns an error that ends the program with a code; err nil is silent.
func Exit(code int, err error) error { return &ExitError{code, err} }

// ErrInterrupted ends a command that was asked to stop, silently.
var ErrInterrupted = Exit(ExitInterrupted, nil)

// ErrInvalid ends a command that has already reported which inputs are invalid.
var ErrInvalid = Exit(ExitInvalid, nil)

// UsageError returns an error that ends the program with ExitUsage.
func UsageError(format string, args ...any) error {
	return Exit(ExitUsage, fmt.Errorf(format, args...))
}

// App is what commands share: where they read and write, and the environment.
type App struct {
	In       io.Reader
	Out, Err io.Writer
	Env      []string
	version  string // It is "" if this is no release: then the build info has the version.
	started  bool   // a command's own code ran: its errors are not cobra's
}

// Run carries out one command line and returns the exit code.
func Run(ctx context.Context, args []string, in io.Reader, out, stderr io.Writer, env []string, version string,
	build func(*App) *cobra.Command) int {
	stdout := &recorder{out: out}
	a := &App{In: in, Out: stdout, Err: stderr, Env: env, version: version}
	root := a.finish(build(a))
	root.SetArgs(args)
	root.SetIn(in)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	stderr = a.Err // The command may have called DetachErr.
	if d, ok := stderr.(*detached); ok {
		defer d.flush()
	}
	if lost := stdout.lost(); err == nil && lost != nil {
		err = Exit(ExitInvalid, lost)
	}
	var exit *ExitError
	switch {
	case err == nil:
		return ExitOK
	case errors.Is(err, syscall.EPIPE): // the reader has what it wanted
		return ExitOK
	case errors.As(err, &exit):
		if exit.err != nil {
			fmt.Fprintf(stderr, "allocator: %v\n", exit.err)
		}
		return exit.Code
	case a.started:
		fmt.Fprintf(stderr, "allocator: %v\n", err)
		return ExitInvalid
	default:
		fmt.Fprintf(stderr, "allocator: %s\nRun \"%s --help\" for usage.\n", mistake(cmd, err), cmd.CommandPath())
		return ExitUsage
	}
}

// Again carries out another command line, which writes everything to out, and returns its exit code.
func (a *App) Again(ctx context.Context, build func(*App) *cobra.Command, out io.Writer, args ...string) int {
	return Run(ctx, args, strings.NewReader(""), out, out, a.Env, a.version, build)
}

// A recorder keeps the first error of a write, for callers that ignore it, such as
// cobra's help.
type recorder struct {
	out io.Writer

	mu  sync.Mutex // guards err
	err error
}

func (w *recorder) Write(p []byte) (int, error) {
	n, err := w.out.Write(p)
	if err != nil {
		w.mu.Lock()
		w.err = cmp.Or(w.err, err)
		w.mu.Unlock()
	}
	return n, err
}

func (w *recorder) lost() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// finish adds to root what all commands have in common.
func (a *App) finish(root *cobra.Command) *cobra.Command {
	root.SilenceErrors, root.SilenceUsage = true, true
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		if err := cmd.ValidateFlagGroups(); err != nil { // cobra does so only after this
			return UsageError("%w", err)
		}
		a.started = true
		return nil
	}
	root.Version = a.Build().String()
	root.SetVersionTemplate("{{.Version}}\n")
	each(root, suggest)
	each(root, nameArguments)
	root.SetOut(a.Out) // before cobra's own commands are made: they keep it
	strictTopics(root)
	each(root, completeFlags)
	return root
}

// each calls f for a command and all below it.
func each(cmd *cobra.Command, f func(*cobra.Command)) {
	f(cmd)
	for _, sub := range cmd.Commands() {
		each(sub, f)
	}
}

// suggest makes commands that only hold others print their help, and name those that a
// mistyped one may mean: cobra does so for a root that takes arguments alone.
func suggest(cmd *cobra.Command) {
	if !cmd.HasSubCommands() {
		return
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.SuggestionsMinimumDistance = 2
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		meant := ""
		if names := cmd.SuggestionsFor(args[0]); len(names) > 0 {
			meant = ". Did you mean " + strings.Join(names, " or ") + "?"
		}
		return fmt.Errorf("unknown command %q for %q%s", args[0], cmd.CommandPath(), meant)
	}
}

// strictTopics makes usage errors of what cobra answers with help and 0: a
// script would source the help where a shell's name is mistyped.
func strictTopics(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "help":
			cmd.Args = func(_ *cobra.Command, topic []string) error {
				of, rest, err := root.Find(topic)
				if err == nil && len(rest) > 0 {
					err = fmt.Errorf("unknown command %q for %q", rest[0], of.CommandPath())
				}
				return err
			}
		case "completion":
			cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		}
	}
}

// Build is what a binary knows of its origin.
type Build struct {
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"`
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
}

// String returns it in a line, as "allocator version" prints it.
func (b Build) String() string {
	commit := ""
	if b.Commit != "" {
		commit = ", commit " + b.Commit
	}
	return fmt.Sprintf("allocator %s (%s, %s/%s%s)", b.Version, b.Go, b.OS, b.Arch, commit)
}

// Build returns what this binary knows of its origin.
func (a *App) Build() Build {
	v := Build{Version: a.version, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		v.Version = cmp.Or(v.Version, info.Main.Version)
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				v.Commit = s.Value
			}
		}
	}
	v.Version = cmp.Or(v.Version, "(devel)")
	return v
}
