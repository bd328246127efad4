package main

import (
	"cmp"
	"fmt"
	"os"
	"path"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerfile/shell"
)

// readDockerfile returns the configuration that a Dockerfile describes, and its
// COPY instructions. args are the values of its ARGs. What it cannot carry out is
// an error, since it would be missing from the image without notice.
func readDockerfile(file string, args map[string]string) (c v1.Config, copies []*instructions.CopyCommand, err error) {
	f, err := os.Open(file)
	if err != nil {
		return c, nil, err
	}
	defer f.Close()
	parsed, err := parser.Parse(f)
	if err != nil {
		return c, nil, err
	}
	stages, global, err := instructions.Parse(parsed.AST, nil)
	if err != nil {
		return c, nil, err
	}
	if len(stages) != 1 || stages[0].BaseName != "scratch" || len(global) > 0 {
		return c, nil, fmt.Errorf("unsupported stages: want one, FROM scratch")
	}
	c.Labels, c.ExposedPorts = map[string]string{}, map[string]struct{}{}
	lex, vars := shell.NewLex(parsed.EscapeToken), []string(nil)
	for _, command := range stages[0].Commands {
		if e, ok := command.(instructions.SupportsSingleWordExpansion); ok {
			err := e.Expand(func(word string) (string, error) {
				word, _, err := lex.ProcessWord(word, shell.EnvsFromSlice(vars))
				return word, err
			})
			if err != nil {
				return c, nil, fmt.Errorf("%s: %w", command.Name(), err)
			}
		}
		supported := true
		switch i := command.(type) {
		case *instructions.ArgCommand:
			for _, a := range i.Args {
				vars = append(vars, a.Key+"="+cmp.Or(args[a.Key], a.ValueString()))
			}
		case *instructions.LabelCommand:
			for _, l := range i.Labels {
				c.Labels[l.Key] = l.Value
			}
		case *instructions.CopyCommand:
			copies = append(copies, i)
			supported = i.From == "" && i.Chmod == "" && !i.Parents && len(i.SourceContents) == 0 &&
				len(i.ExcludePatterns) == 0 &&
				path.IsAbs(i.DestPath) && (len(i.SourcePaths) == 1 || strings.HasSuffix(i.DestPath, "/"))
		case *instructions.UserCommand:
			c.User = i.User
		case *instructions.ExposeCommand:
			for _, port := range i.Ports {
				c.ExposedPorts[port] = struct{}{}
				supported = supported && strings.Contains(port, "/")
			}
		case *instructions.HealthCheckCommand:
			h := i.Health
			c.Healthcheck = &v1.HealthConfig{
				Test:        h.Test,
				Interval:    h.Interval,
				Timeout:     h.Timeout,
				StartPeriod: h.StartPeriod,
				Retries:     h.Retries,
			}
			supported = h.StartInterval == 0 && h.Test[0] == "CMD" // not CMD-SHELL: there is no shell
		case *instructions.StopSignalCommand:
			c.StopSignal = i.Signal
		case *instructions.EntrypointCommand:
			c.Entrypoint, supported = i.CmdLine, !i.PrependShell
		default:
			supported = false
		}
		if !supported {
			return c, nil, fmt.Errorf("line %d: unsupported instruction or form: %s",
				command.Location()[0].Start.Line, command)
		}
	}
	return c, copies, nil
}
