// Ids prints IDs of an allocator cluster, one a line: go run . 1000
package main

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/flakelease/allocator/client"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	left, err := strconv.Atoi(append(os.Args, "10")[1])
	if err != nil {
		return err
	}
	options := client.Options{
		Targets:   strings.Split(cmp.Or(os.Getenv("NODES"), "127.0.0.1:9000"), ","),
		TokenFile: os.Getenv("TOKEN_FILE"), // "" where nodes require none
	}
	if file := os.Getenv("CA_FILE"); file != "" {
		pem, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		options.TLS = &tls.Config{RootCAs: x509.NewCertPool()}
		options.TLS.RootCAs.AppendCertsFromPEM(pem)
	}
	ids, err := client.New(options) // one for the whole program
	if err != nil {
		return err
	}
	defer ids.Close()

	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	for left > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		block, err := ids.Block(ctx, min(left, 1000))
		cancel()
		var refused *client.Refusal
		switch {
		case errors.As(err, &refused):
			return fmt.Errorf("no IDs, for the reason %s; try again in %v: %w", refused.Reason, refused.RetryAfter, err)
		case err != nil: // no node answered in time
			return err
		}
		for id := range block.All() {
			fmt.Fprintln(out, id.Int64())
		}
		left -= block.Count
	}
	return nil
}
