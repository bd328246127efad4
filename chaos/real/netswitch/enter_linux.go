package netswitch

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// inside, in the environment, says what a program that Enter started is for.
const (
	inside = "NETSWITCH_INSIDE"
	probe  = "probe"
	run    = "run"
)

// Enter is for the first lines of main or TestMain: it takes the program to where
// hosts can be added.
//
// For root, it returns at once. For others it starts the same program once more, as
// root of a user namespace and a network namespace of its own, waits for that, and
// exits with its code: Enter returns nil in there. It returns ErrUnsupported, with
// the reason, in the program that it was called in if that would not help; nothing
// has changed then.
func Enter() error {
	if os.Getenv(inside) == run {
		_ = os.Unsetenv(inside)
		return loopback()
	}
	err := Supported()
	if os.Getenv(inside) == probe {
		if err != nil {
			fmt.Fprint(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if err == nil {
		return nil
	}
	if out, perr := again(probe).CombinedOutput(); perr != nil {
		reason := strings.TrimSpace(strings.TrimPrefix(string(out), ErrUnsupported.Error()+": "))
		if reason == "" {
			reason = perr.Error()
		}
		return fmt.Errorf("%w; and in a user namespace: %s", err, reason)
	}
	cmd := again(run)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// What a terminal sends goes to both of us; what is sent to us is passed on.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGHUP)
	signal.Ignore(syscall.SIGINT, syscall.SIGQUIT)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s)
		}
	}()
	err = cmd.Wait()
	var exit *exec.ExitError
	switch {
	case err == nil:
		os.Exit(0)
	case errors.As(err, &exit) && exit.ExitCode() >= 0:
		os.Exit(exit.ExitCode())
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
	return nil
}

// again returns this program once more, in namespaces of its own.
func again(what string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), inside+"="+what)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
		Pdeathsig:   syscall.SIGKILL,
	}
	return cmd
}

// loopback switches 127.0.0.1 on, which a new namespace has switched off.
func loopback() error {
	sock, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("%w: socket: %w", ErrUnsupported, err)
	}
	defer unix.Close(sock)
	if err := up(sock, "lo"); err != nil {
		return fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	return nil
}
