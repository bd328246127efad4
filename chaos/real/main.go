package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
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

// usageError is what the caller could have known.
type usageError struct{ error }

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// The first signal ends the run in order, the second at once: processes that
	// were started die with this one.
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
	return exitUnknown // nothing was shown either way
}

func command() *cobra.Command {
	root := &cobra.Command{Use: "chaos", Short: "Hurt a cluster of allocators, and check what it promises",
		SilenceUsage: true, SilenceErrors: true, CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		RunE: func(cmd *cobra.Command, args []string) error {
			_ = cmd.Help()
			return usageError{errors.New("name a command")}
		}, Args: cobra.ArbitraryArgs}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(runCommand(), soakCommand(), verifyCommand(), tableCommand(), listCommand())
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
	nodes    int
	dir      string
	schedule string
	loopback bool
	real     bool
	limit    int64 // of the history, in MiB
}

func (o *options) flags(cmd *cobra.Command, lasts time.Duration, limit int64) {
	f := cmd.Flags()
	f.DurationVar(&o.lasts, "for", lasts, "how long the load runs")
	f.StringArrayVar(&o.faults, "fault", nil, "only this fault, or this class of faults; may be given again")
	f.StringVar(&o.seed, "seed", "", "of the schedule; drawn and printed if not given")
	f.IntVar(&o.nodes, "nodes", 5, "allocator processes, 3 to 32; from 10 on each has fewer clients")
	f.StringVar(&o.dir, "dir", "", "where results go; a new folder bin/chaos-… if not given")
	f.StringVar(&o.schedule, "schedule", "", "play this schedule.json again")
	f.BoolVar(&o.loopback, "loopback", false, "stay on loopback: no faults of the network")
	f.BoolVar(&o.real, "default-timing", false, "leases and windows of the default length (15 s, 30 s), not brisk ones (3 s, 5 s)")
	f.Int64Var(&o.limit, "limit", limit, "bound of the history on disk, in MiB")
}

func (o *options) check() error {
	switch {
	case o.nodes < 3 || o.nodes > 32:
		return usageError{fmt.Errorf("--nodes %d: 3 to 32 are possible", o.nodes)}
	case o.lasts < 5*time.Second:
		return usageError{fmt.Errorf("--for %v: less than 5s shows nothing", o.lasts)}
	case o.schedule != "" && (len(o.faults) > 0 || o.seed != ""):
		return usageError{errors.New("--schedule says which faults strike and when: it goes with neither --fault nor --seed")}
	}
	if o.seed != "" {
		if _, err := strconv.ParseUint(o.seed, 10, 64); err != nil {
			return usageError{fmt.Errorf("--seed %q is not a number", o.seed)}
		}
	}
	return nil
}

// enter takes the program to where networks can be made, if there is such a place.
// The program is then started once more, away from the machine's own network, so
// everything that may have to be fetched is fetched before.
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
	_ = netswitch.Enter() // what stays impossible, the rig reports
	return nil
}

// timing returns what nodes are told.
func (o *options) timing() rig.Timing {
	if o.real {
		return rig.Default
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
			return nil, usageError{fmt.Errorf("--fault %q: there is none of that name; «chaos list» names them", name)}
		}
	}
	return out, nil
}

func runCommand() *cobra.Command {
	var o options
	cmd := &cobra.Command{Use: "run", Short: "One run: load, faults, checks", Args: noArgs,
		Long: `Run starts three etcd members and the nodes, loads them with clients, lets faults
strike by a schedule that the seed fixes, heals all of them, and checks the claims.

Without --fault it is the profile of CI: at least one fault of every class. Results,
history, schedule and logs are left in the folder of the run.`}
	o.flags(cmd, time.Minute, 1024)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := o.check(); err != nil {
			return err
		}
		if err := o.enter(cmd.Context()); err != nil {
			return err
		}
		table := nemesis.Table()
		var faults []nemesis.Fault
		profile := "smoke"
		for _, f := range table {
			if f.Smoke {
				faults = append(faults, f)
			}
		}
		if len(o.faults) > 0 {
			var err error
			if faults, err = choose(table, o.faults); err != nil {
				return err
			}
			profile = "run --fault " + strings.Join(o.faults, " --fault ")
		}
		return campaign(cmd.Context(), &o, profile, faults, len(o.faults) > 0)
	}
	return cmd
}

func soakCommand() *cobra.Command {
	var o options
	cmd := &cobra.Command{Use: "soak", Short: "A long run, all faults again and again", Args: noArgs}
	o.flags(cmd, 8*time.Hour, 8192)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := o.check(); err != nil {
			return err
		}
		if err := o.enter(cmd.Context()); err != nil {
			return err
		}
		table := nemesis.Table()
		faults := table
		if len(o.faults) > 0 {
			var err error
			if faults, err = choose(table, o.faults); err != nil {
				return err
			}
		}
		return campaign(cmd.Context(), &o, "soak", faults, true)
	}
	return cmd
}

func verifyCommand() *cobra.Command {
	return &cobra.Command{Use: "verify DIR", Short: "Check the history of an old run again",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError{errors.New("name the folder of one run")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return verify(args[0]) }}
}

func listCommand() *cobra.Command {
	return &cobra.Command{Use: "list", Short: "The faults, what they need, and what is expected of them", Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
			fmt.Fprintln(w, "FAULT\tCLASS\tCI\tNEEDS\tDOES\tEXPECTED")
			for _, f := range nemesis.Table() {
				ci := ""
				if f.Smoke {
					ci = "yes"
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", f.Name, f.Class, ci, f.Needs, f.About, f.Expect(rig.Brisk).Word)
			}
			return w.Flush()
		}}
}
