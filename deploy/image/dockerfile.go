package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// config is the part of an image's configuration that a Dockerfile gives, in the
// form that Docker and the OCI image specification write it.
type config struct {
	User         string              `json:"User,omitempty"`
	ExposedPorts map[string]struct{} `json:"ExposedPorts,omitempty"`
	Env          []string            `json:"Env,omitempty"`
	Entrypoint   []string            `json:"Entrypoint,omitempty"`
	Cmd          []string            `json:"Cmd,omitempty"`
	Healthcheck  *healthcheck        `json:"Healthcheck,omitempty"`
	Labels       map[string]string   `json:"Labels,omitempty"`
	StopSignal   string              `json:"StopSignal,omitempty"`
}

// healthcheck is Docker's own addition to that form; durations are nanoseconds.
type healthcheck struct {
	Test        []string      `json:"Test"`
	Interval    time.Duration `json:"Interval,omitempty"`
	Timeout     time.Duration `json:"Timeout,omitempty"`
	StartPeriod time.Duration `json:"StartPeriod,omitempty"`
	Retries     int           `json:"Retries,omitempty"`
}

// copying is one COPY.
type copying struct {
	from     []string
	to       string // absolute; with a slash at its end it is a folder
	uid, gid int
}

// parse reads a Dockerfile. args are values of its ARGs.
func parse(r io.Reader, args map[string]string) (config, []copying, error) {
	c := config{ExposedPorts: map[string]struct{}{}, Labels: map[string]string{}}
	var copies []copying
	vars := map[string]string{}
	first := true
	err := instructions(r, func(name, rest string) error {
		if name != "FROM" && first {
			return fmt.Errorf("%s stands before FROM", name)
		}
		if name != "FROM" && name != "ARG" {
			rest = os.Expand(rest, func(v string) string { return vars[v] })
		}
		switch name {
		case "FROM":
			if rest != "scratch" || !first {
				return fmt.Errorf("FROM %s: only one FROM scratch can be built here", rest)
			}
			first = false
		case "ARG":
			key, value, _ := strings.Cut(rest, "=")
			if v, ok := args[key]; ok {
				value = v
			}
			vars[key] = value
		case "LABEL", "ENV":
			pairs, err := assignments(rest)
			if err != nil {
				return err
			}
			for _, p := range pairs {
				if name == "LABEL" {
					c.Labels[p[0]] = p[1]
				} else {
					c.Env = append(c.Env, p[0]+"="+p[1])
				}
			}
		case "COPY":
			cp, err := parseCopy(rest)
			if err != nil {
				return err
			}
			copies = append(copies, cp)
		case "USER":
			c.User = rest
		case "STOPSIGNAL":
			c.StopSignal = rest
		case "EXPOSE":
			for _, port := range strings.Fields(rest) {
				c.ExposedPorts[port] = struct{}{}
			}
		case "ENTRYPOINT":
			return words(rest, &c.Entrypoint)
		case "CMD":
			return words(rest, &c.Cmd)
		case "HEALTHCHECK":
			h, err := parseHealthcheck(rest)
			c.Healthcheck = h
			return err
		default:
			return fmt.Errorf("%s is nothing that can be built here", name)
		}
		return nil
	})
	if err == nil && first {
		err = fmt.Errorf("there is no FROM")
	}
	return c, copies, err
}

// instructions calls f for each instruction, its continued lines joined.
func instructions(r io.Reader, f func(name, rest string) error) error {
	lines, joined, number := bufio.NewScanner(r), "", 0
	for lines.Scan() {
		number++
		line := strings.TrimSpace(lines.Text())
		if strings.HasPrefix(line, "#") || line == "" {
			continue
		}
		more := false
		if line, more = strings.CutSuffix(line, `\`); more {
			joined += line + " "
			continue
		}
		name, rest, _ := strings.Cut(joined+line, " ")
		joined = ""
		if err := f(strings.ToUpper(name), strings.TrimSpace(rest)); err != nil {
			return fmt.Errorf("line %d: %w", number, err)
		}
	}
	if joined != "" {
		return fmt.Errorf("line %d: continued, and nothing follows", number)
	}
	return lines.Err()
}

var assignment = regexp.MustCompile(`^([A-Za-z0-9._-]+)=("(?:[^"\\]|\\.)*"|[^\s"]+)(?:\s+|$)`)

// assignments reads key=value pairs, quoted or not.
func assignments(s string) (out [][2]string, err error) {
	for s != "" {
		m := assignment.FindStringSubmatch(s)
		if m == nil {
			return nil, fmt.Errorf("not key=value: %q", s)
		}
		value := m[2]
		if value[0] == '"' {
			if value, err = strconv.Unquote(value); err != nil {
				return nil, fmt.Errorf("%s: %w", m[2], err)
			}
		}
		out, s = append(out, [2]string{m[1], value}), s[len(m[0]):]
	}
	return out, nil
}

func parseCopy(rest string) (copying, error) {
	var cp copying
	fields := strings.Fields(rest)
	for len(fields) > 0 && strings.HasPrefix(fields[0], "--") {
		owner, ok := strings.CutPrefix(fields[0], "--chown=")
		if !ok {
			return cp, fmt.Errorf("COPY %s is not known here", fields[0])
		}
		if _, err := fmt.Sscanf(owner, "%d:%d", &cp.uid, &cp.gid); err != nil {
			return cp, fmt.Errorf("COPY --chown=%s: want numbers, uid:gid", owner)
		}
		fields = fields[1:]
	}
	if len(fields) < 2 {
		return cp, fmt.Errorf("COPY needs what and where to")
	}
	cp.from, cp.to = fields[:len(fields)-1], fields[len(fields)-1]
	if !strings.HasPrefix(cp.to, "/") {
		return cp, fmt.Errorf("COPY to %s: want an absolute path", cp.to)
	}
	if len(cp.from) > 1 && !strings.HasSuffix(cp.to, "/") {
		return cp, fmt.Errorf("COPY of several to %s: want a folder, with a / at its end", cp.to)
	}
	return cp, nil
}

// words reads the form of a command that needs no shell: a JSON array.
func words(s string, to *[]string) error {
	if err := json.Unmarshal([]byte(s), to); err != nil {
		return fmt.Errorf("%s: there is no shell in the image, so want [\"…\"]: %w", s, err)
	}
	return nil
}

func parseHealthcheck(rest string) (*healthcheck, error) {
	options, command, ok := strings.Cut(rest, "CMD ")
	if !ok {
		return nil, fmt.Errorf("HEALTHCHECK without CMD")
	}
	h := &healthcheck{}
	for _, o := range strings.Fields(options) {
		key, value, _ := strings.Cut(o, "=")
		var err error
		switch key {
		case "--interval":
			h.Interval, err = time.ParseDuration(value)
		case "--timeout":
			h.Timeout, err = time.ParseDuration(value)
		case "--start-period":
			h.StartPeriod, err = time.ParseDuration(value)
		case "--retries":
			h.Retries, err = strconv.Atoi(value)
		default:
			err = fmt.Errorf("unknown option")
		}
		if err != nil {
			return nil, fmt.Errorf("HEALTHCHECK %s: %w", o, err)
		}
	}
	var command0 []string
	if err := words(strings.TrimSpace(command), &command0); err != nil {
		return nil, err
	}
	h.Test = append([]string{"CMD"}, command0...)
	return h, nil
}
