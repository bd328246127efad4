// Command dashboard prints the Grafana dashboard as JSON. It is the one source of
// ../dashboard.json, which a test compares with it:
//
//	go run ./deploy/monitoring/dashboard > deploy/monitoring/dashboard.json
package main

import (
	"encoding/json"
	"fmt"
	"os"
)

func main() {
	b, err := JSON()
	if err == nil {
		_, err = os.Stdout.Write(b)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "dashboard:", err)
		os.Exit(1)
	}
}

// JSON returns the dashboard, ending in a line feed.
func JSON() ([]byte, error) {
	b, err := json.MarshalIndent(build(rows), "", "  ")
	return append(b, '\n'), err
}
