package agent

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/flakelease/allocator/chaos/real/rig"
)

// caller is a kind of program that draws IDs.
type caller struct {
	name    string
	process *rig.Process // what its requests go to; nil: each request is a process
	atOnce  int          // requests at a time
	// draw makes a request, and returns what the program printed.
	draw func(context.Context) (string, error)
}

// fpm is PHP-FPM with 16 children.
func fpm(dir, agent string) (*caller, error) {
	program, err := filepath.Glob("/usr/sbin/php-fpm*")
	if err != nil || len(program) == 0 {
		return nil, errors.New("php-fpm is not installed")
	}
	if out, err := exec.Command("php", "-r", `echo class_exists("Redis");`).Output(); err != nil || string(out) != "1" {
		return nil, errors.New("php-redis is not installed")
	}
	script, err := filepath.Abs("testdata/ids.php")
	if err != nil {
		return nil, err
	}
	socket, conf := filepath.Join(dir, "fpm.sock"), filepath.Join(dir, "fpm.conf")
	text := fmt.Sprintf("[global]\nerror_log = /dev/stderr\n[www]\nlisten = %s\npm = static\npm.max_children = 16\n"+
		"env[AGENT] = %s\ncatch_workers_output = yes\n", socket, agent)
	args := []string{"--nodaemonize", "--fpm-config", conf}
	if os.Getuid() == 0 {
		text += "user = root\ngroup = root\n"
		args = append(args, "--allow-to-run-as-root")
	}
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return nil, err
	}
	params := map[string]string{
		"SCRIPT_FILENAME": script, "REQUEST_METHOD": "GET", "SCRIPT_NAME": "/ids.php", "REQUEST_URI": "/ids.php",
		"AGENT": agent,
	}
	return &caller{
		name:    "PHP-FPM",
		process: &rig.Process{Name: "fpm", Place: rig.Loopback{}, Path: program[0], Args: args, Dir: dir},
		atOnce:  16,
		draw:    func(ctx context.Context) (string, error) { return fastCGI(ctx, socket, params) },
	}, nil
}

// fastCGI makes one request, and returns the body of the answer.
//
// Source: FastCGI Specification, sections 3.3 and 5.
func fastCGI(ctx context.Context, socket string, params map[string]string) (string, error) {
	const begin, end, paramsType, stdin, stdout = 1, 3, 4, 5, 6
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if until, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(until)
	}
	record := func(kind byte, content []byte) []byte {
		head := []byte{1, kind, 0, 1, 0, 0, 0, 0}
		binary.BigEndian.PutUint16(head[4:], uint16(len(content)))
		return append(head, content...)
	}
	var pairs []byte
	for k, v := range params {
		pairs = append(append(append(pairs, byte(len(k)), byte(len(v))), k...), v...)
	}
	var request []byte
	for _, r := range [][]byte{record(begin, []byte{0, 1, 0, 0, 0, 0, 0, 0}), record(paramsType, pairs),
		record(paramsType, nil), record(stdin, nil)} {
		request = append(request, r...)
	}
	if _, err := conn.Write(request); err != nil {
		return "", err
	}
	var out strings.Builder
	for {
		var head [8]byte
		if _, err := io.ReadFull(conn, head[:]); err != nil {
			return "", err
		}
		content := make([]byte, int(binary.BigEndian.Uint16(head[4:]))+int(head[6]))
		if _, err := io.ReadFull(conn, content); err != nil {
			return "", err
		}
		switch content = content[:len(content)-int(head[6])]; head[1] {
		case stdout:
			out.Write(content)
		case end:
			_, body, ok := strings.Cut(out.String(), "\r\n\r\n")
			if !ok {
				return "", fmt.Errorf("an answer without a body: %q", out.String())
			}
			return body, nil
		}
	}
}

// debianPython has the packages of Debian, where another one may come first.
const debianPython = "/usr/bin/python3"

// gunicorn is gunicorn with 8 processes that were forked before the first request.
func gunicorn(dir, agent string) (*caller, error) {
	program, err := exec.LookPath("gunicorn")
	if err != nil {
		return nil, errors.New("gunicorn is not installed")
	}
	if err := exec.Command(debianPython, "-c", "import redis").Run(); err != nil {
		return nil, errors.New("python3-redis is not installed")
	}
	code, err := filepath.Abs("testdata")
	if err != nil {
		return nil, err
	}
	socket := filepath.Join(dir, "gunicorn.sock")
	hc := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
	return &caller{
		name: "gunicorn",
		process: &rig.Process{
			Name: "gunicorn", Place: rig.Loopback{}, Path: program, Dir: dir,
			Args: []string{"--workers", "8", "--bind", "unix:" + socket, "--chdir", code, "--worker-tmp-dir", dir, "ids:app"},
			Env:  []string{"AGENT=" + agent, "PYTHONDONTWRITEBYTECODE=1"},
		},
		atOnce: 8,
		draw: func(ctx context.Context) (string, error) {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost/", nil)
			if err != nil {
				return "", err
			}
			res, err := hc.Do(req)
			if err != nil {
				return "", err
			}
			defer res.Body.Close()
			body, err := io.ReadAll(res.Body)
			if err == nil && res.StatusCode != http.StatusOK {
				err = fmt.Errorf("%s: %s", res.Status, body)
			}
			return string(body), err
		},
	}, nil
}

// redisCLI is a process for each ID.
func redisCLI(_, agent string) (*caller, error) {
	program, err := exec.LookPath("redis-cli")
	if err != nil {
		return nil, errors.New("redis-cli is not installed")
	}
	return &caller{name: "redis-cli", atOnce: 2, draw: func(ctx context.Context) (string, error) {
		for retries := 0; ; retries++ {
			out, err := exec.CommandContext(ctx, program, "-e", "-s", agent, "ID.NEXT").CombinedOutput()
			if err == nil {
				return fmt.Sprintf("%sRETRIES %d\n", out, retries), nil
			}
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
				return "", fmt.Errorf("%w: %s", err, out)
			}
		}
	}}, nil
}
