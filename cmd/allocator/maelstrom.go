package main

import (
	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/maelstrom"
)

func (a *app) maelstromCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "maelstrom",
		Short: "Run one node under Maelstrom, with its lin-kv service in place of etcd",
		Long: `Maelstrom (https://github.com/jepsen-io/maelstrom) starts nodes, carries their messages,
breaks its network, and checks what they answer. This command is a node of its
workload unique-ids: it reads JSON messages from stdin, a line each, answers init
and generate on stdout, and logs to stderr. It issues IDs by the same code as
«allocator serve», from windows reserved in Maelstrom's service lin-kv.

An ID is a string of 13 letters. A refusal is error 11: nothing was issued. Nodes do
not compare clocks here.

The example is for those who have Maelstrom: it hands what follows the two dashes to
the program that --bin names. We have not run it: our tests speak the same protocol
from a small runner of their own, which also cuts nodes off from lin-kv, loses
messages to it, and kills and pauses nodes.`,
		Example: "  maelstrom test -w unique-ids --bin bin/allocator --time-limit 30 --rate 1000 --node-count 3 --availability total --nemesis partition -- maelstrom",
		Args:    cobra.NoArgs,
	}
	window := cmd.Flags().Duration("window", config.Default().Lease.Window,
		"how far ahead of the clock milliseconds are reserved: for as long lin-kv may be away; all other times follow from it")
	level := choose(cmd, "log-level", "what is logged to stderr", "info", "debug", "warn", "error")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c := maelstrom.Config{
			Window: *window, Version: versionOf().Version,
			Logger: logger(config.Log{Level: level.value, Format: "text"}, a.err),
		}
		if err := c.Validate(); err != nil {
			return &exitError{exitUsage, err}
		}
		return maelstrom.Run(cmd.Context(), c, a.in, a.out)
	}
	return cmd
}
