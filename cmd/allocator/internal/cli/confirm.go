package cli

import (
	"bufio"
	"errors"
	"fmt"
	"strings"
)

// Confirm asks a person. Without a terminal, and without --yes, it fails.
func Confirm(a *App, yes bool, question string) error {
	if yes {
		return nil
	}
	if Terminal(a.In) {
		return ask(a, question)
	}
	return UsageError("nothing was written: stdin is not a terminal, so nobody can confirm; give --yes to skip " +
		"the confirmation")
}

func ask(a *App, question string) error {
	fmt.Fprintf(a.Err, "%s Type yes: ", question)
	answer, err := bufio.NewReader(a.In).ReadString('\n')
	if err != nil {
		fmt.Fprintln(a.Err)
		return UsageError("nothing was written: no answer was given; give --yes to skip the confirmation")
	}
	if strings.TrimSpace(answer) != "yes" {
		return Exit(ExitInvalid, errors.New("nothing was written"))
	}
	return nil
}
