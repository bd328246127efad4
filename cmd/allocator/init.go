package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/internal/daemon"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
)

func (a *app) initCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Initialise a space in etcd",
		Long: `Init writes what every ID of a space means, its layout and epoch, to etcd. Nodes wait
until that was done once. Doing it again changes nothing.

IDs begin only when all that nodes of a lost etcd can still issue has passed, some
31 seconds after. Say --fresh for a space that never issued an ID.

A job that might be run again says --fresh-until instead: after that time init makes no
space and fails where there is none, so that an etcd that was wiped is noticed.`,
		Example: "  allocator init --etcd.endpoints http://10.0.0.1:2379",
		Args:    cobra.NoArgs,
	}
	fresh := cmd.Flags().Bool("fresh", false, "IDs may begin at once: no allocator ever issued any for this space")
	until := cmd.Flags().String("fresh-until", "", "as --fresh until this time, such as 2026-11-20T17:00:00Z, and then make no space")
	cmd.MarkFlagsMutuallyExclusive("fresh", "fresh-until")
	timeout := cmd.Flags().Duration("timeout", 10*time.Second, "how long to wait for etcd")
	format := formatFlag(cmd)
	load := a.settings(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, _, err := load()
		if err != nil {
			return err
		}
		if len(c.Etcd.Endpoints) == 0 {
			return noEndpoints("init")
		}
		if err := c.Validate(); err != nil {
			return invalidSettings(err)
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), *timeout)
		defer cancel()
		begin := *fresh
		if cmd.Flags().Changed("fresh-until") {
			t, err := time.Parse(time.RFC3339, *until)
			if err != nil {
				return usage("--fresh-until %s is no time such as 2026-11-20T17:00:00Z", show(*until))
			}
			begin = wallNow().Time().Before(t)
		}
		var created bool
		var now lease.View
		if begin || *until == "" {
			created, now, err = daemon.Init(ctx, c, begin, logger(c.Log, a.err))
		} else {
			now, err = daemon.Initialised(ctx, c, logger(c.Log, a.err))
		}
		var differs *daemon.SpaceError
		switch {
		case errors.Is(err, daemon.ErrNoSpace):
			return &exitError{exitInvalid, fmt.Errorf("space %q is not initialised, and --fresh-until %s has passed: was etcd wiped? "+
				"If it never issued an ID, run «allocator init --fresh»; else see docs/OPERATIONS.md", c.Space, *until)}
		case errors.As(err, &differs), errors.Is(err, etcdstore.ErrRemains):
			return &exitError{exitInvalid, err}
		case err != nil:
			return &exitError{exitUnavailable, fmt.Errorf("etcd at %v does not answer: %w", c.Etcd.Endpoints, err)}
		}
		space, era := now.Config.Value, now.Era.Value
		if format.value == "json" {
			return printLine(a.out, struct {
				Space   string `json:"space"`
				Created bool   `json:"created"`
				Layout  string `json:"layout"`
				Epoch   string `json:"epoch"`
				Pool    string `json:"pool"`
				Era     int64  `json:"era"`
				Floor   string `json:"floor"`
			}{c.Space, created, space.Layout.String(), space.Epoch.Time().Format(time.RFC3339Nano), space.Pool, era.Number,
				era.Floor.Time().Format(time.RFC3339Nano)})
		}
		what := "initialised"
		if !created {
			what = "was already initialised, with the same values"
		}
		_, err = fmt.Fprintf(a.out, "space %q %s: layout %s (%d holders), epoch %s, pool %s\n", c.Space, what,
			space.Layout, space.Layout.Holders(), space.Epoch.Time().Format(time.RFC3339Nano), space.Pool)
		if wait := time.Until(era.Floor.Time()); err == nil && wait > 0 {
			_, err = fmt.Fprintf(a.out, "IDs begin %s\n", relative(era.Floor.Time(), time.Now()))
		}
		return err
	}
	return cmd
}
