package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
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
	stdout := &recorder{out: out}
	a := &app{in: in, out: stdout, err: stderr, env: env}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if lost := stdout.lost(); err == nil && lost != nil {
		err = &exitError{exitInvalid, lost}
	}
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
		hint := ""
		if d, ok := strings.CutPrefix(err.Error(), "unknown shorthand flag: '"); ok && d[0] >= '0' && d[0] <= '9' {
			hint = "\nWrite -- in front of a number below 0."
		}
		fmt.Fprintf(stderr, "allocator: %v%s\nRun «%s --help» for usage.\n", err, hint, cmd.CommandPath())
		return exitUsage
	}
}

// A recorder remembers the first write that failed, for those who write without
// looking, such as cobra's help.
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

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "allocator",
		Short: "Unique, time-sorted IDs from nodes that never issue one twice",
		Long: `Allocator issues unique, time-sorted IDs. Nodes lease scalability IDs (sids) from
etcd, reserve windows of milliseconds, and issue IDs from memory; they refuse
rather than issue a duplicate. It also reads, checks and converts IDs, ULIDs and UUIDs
of any origin, and makes such that nobody coordinates.

To try it, ` + tryDev + `: it needs nothing else.

Results go to stdout, everything else to stderr. Exit codes: 0 all went well, 1 an ID is
invalid or a request was refused, 2 called wrongly, 3 etcd or every node asked is away.`,
		Example: `  allocator parse 01ARZ3NDEKTSV4RRFFQ69G5FAV        # what is in an ID, whatever its form
  allocator parse --format json < ids.txt           # the same of many, one JSON object a line
  allocator parse --as uuid 01ARZ3NDEKTSV4RRFFQ69G5FAV
  allocator validate < ids.txt                      # which ones are well-formed; exit code 1 if any is not
  allocator new 3                                   # 3 random ULIDs; --kind uuid or flake for others
  allocator monotonic 3                             # 3 that rise, whatever the clock does
  allocator from-time --min 2026-11-20              # the least ULID of a time, for a range query
  allocator get 3                                   # 3 that are unique by promise, from a node`,
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := cmd.ValidateFlagGroups(); err != nil { // cobra does so only after this
				return usage("%w", err)
			}
			a.started = true
			return nil
		},
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cmd.Help()
		},
	}
	root.CompletionOptions.HiddenDefaultCmd = false
	for _, g := range a.groups() {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title + ":"})
		for _, cmd := range g.commands {
			cmd.GroupID = g.title
			root.AddCommand(cmd)
		}
	}
	root.AddCommand(a.docsCommand())
	root.SetOut(a.out) // before cobra's own commands are made: they keep it
	strictTopics(root)
	completeFlags(root)
	return root
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

// group is some commands as the help lists them.
type group struct {
	title    string
	commands []*cobra.Command
}

func (a *app) groups() []group {
	return []group{
		{"IDs, without a node", []*cobra.Command{
			a.parseCommand(), a.validateCommand(), a.newCommand(), a.monotonicCommand(), a.fromTimeCommand(),
			a.auditCommand(),
		}},
		{"IDs from a cluster", []*cobra.Command{
			a.devCommand(), a.getCommand(), a.statusCommand(), a.benchCommand(),
		}},
		{"For operators", []*cobra.Command{
			a.initCommand(), a.serveCommand(), a.healthCommand(), a.doctorCommand(), a.adminCommand(), a.gossipCommand(), a.tokenCommand(), a.configCommand(), a.versionCommand(),
		}},
	}
}

// completeFlags says of every flag that was not told what its values are that
// file names are none: shells would offer them.
func completeFlags(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		file := f.Annotations[cobra.BashCompFilenameExt] != nil || f.Annotations[cobra.BashCompSubdirsInDir] != nil
		if _, told := cmd.GetFlagCompletionFunc(f.Name); told || file || f.NoOptDefVal != "" {
			return
		}
		_ = cmd.RegisterFlagCompletionFunc(f.Name, cobra.NoFileCompletions)
	})
	for _, sub := range cmd.Commands() {
		completeFlags(sub)
	}
}

// choice is a flag whose value is one of a few words.
type choice struct {
	value string
	words []string
}

func (c *choice) String() string { return c.value }

// Type is what help shows for a value: the words, or of many a name for them.
func (c *choice) Type() string {
	if words := strings.Join(c.words, "|"); len(words) < 40 {
		return words
	}
	return "WORD"
}

func (c *choice) Set(s string) error {
	if !slices.Contains(c.words, s) {
		return fmt.Errorf("%q is none of %s", s, strings.Join(c.words, ", "))
	}
	c.value = s
	return nil
}

// choose adds such a flag; the first word is the default, unless that is "":
// then there is none.
func choose(cmd *cobra.Command, name, help string, words ...string) *choice {
	c := &choice{value: words[0], words: words}
	if words[0] == "" {
		c.words = words[1:]
	}
	words = c.words
	if c.Type() == "WORD" {
		help += ": " + strings.Join(words, ", ")
	}
	cmd.Flags().Var(c, name, help)
	_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
	return c
}

// formatFlag adds --format.
func formatFlag(cmd *cobra.Command) *choice {
	return choose(cmd, "format", "shape of the output; json is one object a line", "text", "json")
}
