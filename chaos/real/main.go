package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/chaos/build"
	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/chaos/real/nemesis"
	"github.com/flakelease/allocator/chaos/real/netswitch"
	"github.com/flakelease/allocator/chaos/real/rig"
	"github.com/flakelease/allocator/flake"
)

// Exit codes.
const (
	exitPass = iota
	exitFail
	exitUsage
	exitUnknown
)

// verdictError ends the program with the code of a verdict.
type verdictError history.Verdict

func (v verdictError) Error() string { return "verdict: " + string(v) }

// usageError is an error in how the command was called.
type usageError struct{ error }

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// The first signal ends the run in order, the second one at once: the processes
	// of the run die with this one.
	context.AfterFunc(ctx, stop)
	root := command()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	var verdict verdictError
	var usage usageError
	switch {
	case err == nil:
		return exitPass
	case errors.As(err, &verdict) && history.Verdict(verdict) == history.Broken:
		return exitFail
	case errors.As(err, &verdict):
		return exitUnknown
	case errors.As(err, &usage):
		fmt.Fprintf(os.Stderr, "chaos: %v\n", err)
		return exitUsage
	}
	fmt.Fprintf(os.Stderr, "chaos: %v\n", err)
	if ctx.Err() != nil {
		return exitUnknown // It was interrupted: the run proves nothing.
	}
	return exitFail // What cannot run at all is no verdict about this machine.
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use:               "chaos",
		Short:             "Inject faults into a cluster of allocators, and check its claims",
		SilenceUsage:      true,
		SilenceErrors:     true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		RunE: func(cmd *cobra.Command, args []string) error {
			_ = cmd.Help()
			if len(args) > 0 {
				return usageError{fmt.Errorf("there is no command %q", args[0])}
			}
			return usageError{errors.New("no command given")}
		},
		Args: cobra.ArbitraryArgs,
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(runCommand(), soakCommand(), verifyCommand(), listCommand())
	return root
}

func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("unexpected argument %q", args[0])}
	}
	return nil
}

// options are the flags of run and soak.
type options struct {
	lasts    time.Duration
	faults   []string
	seed     string
	layout   string
	format   flake.Format // parsed from layout
	nodes    int
	dir      string
	schedule string
	loopback bool
	etcd     string // own or inside
	real     bool
	limit    int64 // largest size of the history, in MiB
}

func (o *options) flags(cmd *cobra.Command, lasts time.Duration, limit int64) {
	f := cmd.Flags()
	f.DurationVar(&o.lasts, "for", lasts, "how long the load runs")
	f.StringArrayVar(&o.faults, "fault", nil, "only this fault or class of faults; may be repeated")
	f.StringVar(&o.seed, "seed", "", "of the schedule; random if not given, and printed")
	f.StringVar(&o.layout, "layout", flake.Default.String(), "of the space, as allocator init takes it")
	f.IntVar(&o.nodes, "nodes", 5, "allocator processes, 3 to 32; from 10 on each has fewer clients")
	f.StringVar(&o.dir, "dir", "", "directory of the results; a new one bin/chaos-… of the repository if not given")
	f.StringVar(&o.schedule, "schedule", "", "repeat this schedule.json")
	f.BoolVar(&o.loopback, "loopback", false, "use loopback only: no network faults")
	f.StringVar(&o.etcd, "etcd", "own", "own: etcd's program; inside: the members that nodes run inside")
	f.BoolVar(&o.real, "default-timing", false,
		"leases and windows of the default length (15 s, 30 s), not short ones (3 s, 5 s)")
	f.Int64Var(&o.limit, "limit", limit, "maximum size of the history, in MiB")
}

func (o *options) check() (err error) {
	switch {
	case o.nodes < 3 || o.nodes > 32:
		return usageError{fmt.Errorf("--nodes %d: must be 3 to 32", o.nodes)}
	case o.lasts < 5*time.Second:
		return usageError{fmt.Errorf("--for %v: must be at least 5s", o.lasts)}
	case o.schedule != "" && (len(o.faults) > 0 || o.seed != "" || o.layout != flake.Default.String()):
		return usageError{
			errors.New("--schedule cannot be combined with --fault, --seed or --layout: it determines them")}
	}
	if o.etcd != "own" && o.etcd != "inside" {
		return usageError{fmt.Errorf("--etcd %q: must be own or inside", o.etcd)}
	}
	if o.format, err = flake.ParseFormat(o.layout); err != nil {
		return usageError{fmt.Errorf("--layout: %w", err)}
	}
	if o.seed != "" {
		if _, err := strconv.ParseUint(o.seed, 10, 64); err != nil {
			return usageError{fmt.Errorf("--seed %q is not a number", o.seed)}
		}
	}
	return nil
}

// enter starts this program again in a namespace where networks can be created, if
// the machine supports it. The machine's own network is unreachable from there, so
// everything that may have to be downloaded is downloaded before.
func (o *options) enter(ctx context.Context) error {
	if o.loopback {
		return nil
	}
	if os.Geteuid() != 0 {
		dir, err := os.MkdirTemp("", "chaos-build-")
		if err != nil {
			return err
		}
		_, err = build.Etcd(ctx, dir)
		if err := errors.Join(err, os.RemoveAll(dir)); err != nil {
			return err
		}
	}
	_ = netswitch.Enter() // the rig reports what is not supported
	return nil
}

// timing returns the times that nodes are configured with.
func (o *options) timing() rig.Timing {
	inside := o.etcd == "inside"
	switch {
	case o.real && inside:
		return rig.DefaultInside
	case o.real:
		return rig.Default
	case inside:
		return rig.BriskInside
	}
	return rig.Brisk
}

// choose picks faults by name and class.
func choose(table []nemesis.Fault, names []string) ([]nemesis.Fault, error) {
	var out []nemesis.Fault
	found := map[string]bool{}
	for _, f := range table {
		for _, name := range names {
			if name == f.Name || name == string(f.Class) || name == "all" {
				found[name] = true
				if nemesis.Find(out, f.Name) == nil {
					out = append(out, f)
				}
			}
		}
	}
	for _, name := range names {
		if !found[name] {
			return nil, usageError{fmt.Errorf("--fault %q: no such fault or class; see \"chaos list\"", name)}
		}
	}
	return out, nil
}

func runCommand() *cobra.Command {
	cmd := campaignCommand("run", time.Minute, 1024, false)
	cmd.Short = "One run: load, faults, checks"
	cmd.Long = `Run starts three etcd members, the nodes and their clients, injects faults by a
schedule that the seed determines, heals all of them, and checks the claims.

Without --fault it is the profile of CI: at least one fault of every class. Report,
results, history, schedule and logs are in the directory of the run.`
	return cmd
}

func soakCommand() *cobra.Command {
	cmd := campaignCommand("soak", 8*time.Hour, 8192, true)
	cmd.Short = "A long run that repeats all faults"
	return cmd
}

// campaignCommand returns a command that carries out one run. A long one has all faults, where none are named.
func campaignCommand(name string, lasts time.Duration, limit int64, long bool) *cobra.Command {
	var o options
	cmd := &cobra.Command{Use: name, Args: noArgs}
	o.flags(cmd, lasts, limit)
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if err := o.check(); err != nil {
			return err
		}
		if err := o.enter(cmd.Context()); err != nil {
			return err
		}
		faults, profile := nemesis.Table(), "soak"
		if !long {
			profile = strings.Join(append([]string{"run"}, o.faults...), " --fault ")
		}
		switch {
		case len(o.faults) > 0:
			if faults, err = choose(faults, o.faults); err != nil {
				return err
			}
		case !long:
			profile = "smoke"
			faults = slices.DeleteFunc(faults, func(f nemesis.Fault) bool { return !f.Smoke })
		}
		return campaign(cmd.Context(), &o, profile, faults, long || len(o.faults) > 0)
	}
	return cmd
}

func verifyCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "verify DIR",
		Short: "Check the history of a run again",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError{errors.New("expected the directory of one run")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return verify(args[0]) },
	}
}

func listCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the faults, what they need, and the expected effect",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
			fmt.Fprintln(w, "FAULT\tCLASS\tCI\tNEEDS\tDOES\tEXPECTED")
			for _, f := range nemesis.Table() {
				ci := ""
				if f.Smoke {
					ci = "yes"
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", f.Name, f.Class, ci, f.Needs, f.About,
					f.Expect(rig.Brisk).Text)
			}
			return w.Flush()
		},
	}
}
