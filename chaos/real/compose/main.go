package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if err := command(ctx, os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "composetest: %v\n", err)
		os.Exit(1)
	}
}

func command(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("no command is given: use run or load")
	}
	switch args[0] {
	case "load":
		return runLoad(ctx, args[1:], os.Stdout)
	case "run":
		err := runTest(ctx, args[1:], os.Stdout)
		if errors.Is(err, errMissing) {
			fmt.Printf("compose-test: SKIPPED, nothing was tested: %v\n", err)
			return nil
		}
		return err
	}
	return fmt.Errorf("unknown command %q: use run or load", args[0])
}
