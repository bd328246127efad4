// Package debug holds the command that gathers what explains a fault: from every node that answers, from etcd, and
// what other commands print. It changes nothing.
package debug

import (
	"archive/zip"
	"bytes"
	"cmp"
	"context"
	_ "embed" // for the page
	"errors"
	"fmt"
	"html/template"
	"io"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/cmd/allocator/internal/deployment"
	"github.com/flakelease/allocator/cmd/allocator/internal/remote"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/text"
)

// Command returns "allocator debug". root makes the whole command line.
func Command(a *cli.App, root func(*cli.App) *cobra.Command) *cobra.Command {
	return cli.Parent("debug", "Gather what explains a fault", zipCommand(a, root))
}

const (
	profileTime = 5 * time.Second
	maxOfNode   = 16 << 20 // bytes of the files of a node
)

func zipCommand(a *cli.App, root func(*cli.App) *cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "zip",
		Short: "Write a file with what explains a fault: all nodes, etcd, doctor",
		Long: `Zip asks every node that is registered or known to those of --addr for its status, settings,
conditions, events, last hour, metrics and latest log lines, and etcd for its state and the records of
the space. Doctor's report is added. A caller with scope admin also gets goroutines and a profile, which
takes 5 s. Begin with index.html.

No token, key, password or variable is in the file; names, addresses and log lines are. A node that does
not answer is named. After --timeout what is there is written.`,
		Example: "  allocator debug zip --config /etc/allocator/allocator.yaml\n" +
			"  allocator debug zip --addr 10.0.0.5:9000 --token-file /etc/allocator/token --ca ca.pem",
		Args: cobra.NoArgs,
	}
	addrs := cmd.Flags().StringSlice("addr", nil, "gRPC addresses of nodes, comma-separated or given several times, "+
		"besides those that are registered")
	output := cmd.Flags().String("output", "", "`file` to write, or - for stdout; default: allocator-debug-TIME.zip "+
		"here")
	timeout := cmd.Flags().Duration("timeout", 10*time.Second, "how long to wait for answers")
	_ = cmd.MarkFlagFilename("output", "zip")
	load := a.Settings(cmd)
	cli.ListSettings(cmd, "etcd", "space", "root", "advertise.grpc", "listen.grpc")
	files := remote.FileFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		d, err := files().Anyway(a, cli.Logger(config.Log{Level: "error"}, a.Err))
		if err != nil {
			return err
		}
		c, _, err := load()
		if err != nil {
			return err
		}
		given := deployment.NodeAddrs(nil, *addrs)
		if err := d.MayCall(given...); err != nil {
			return err
		}
		now := time.Now().UTC()
		name := cmp.Or(*output, "allocator-debug-"+now.Format("20060102T150405Z")+".zip")
		out, told, done, discard := a.Out, a.Err, func() error { return nil }, func() {}
		if name != "-" {
			f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if err != nil {
				return cli.UsageError("--output: %w", err)
			}
			defer f.Close()
			out, told, done, discard = f, a.Out, f.Close, func() { _ = os.Remove(name) }
		} else if a.OutTerminal() != nil {
			return cli.UsageError("--output -: stdout is a terminal: redirect it to a file")
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), *timeout)
		defer cancel()
		progress := a.Progress()
		defer progress.End()
		progress.Set("gathering from nodes and etcd")
		g := gathering{
			App:    a,
			dialer: d,
			root:   root,
			limit:  *timeout / 3,
			At:     now,
			Files:  map[string][]byte{},
		}
		g.gather(ctx, cmd.Flags(), c, given, load)
		if errors.Is(cmd.Context().Err(), context.Canceled) {
			discard()
			return cli.ErrInterrupted
		}
		if err := errors.Join(g.write(out), done()); err != nil {
			discard()
			return err
		}
		progress.End()
		answered := 0
		for _, n := range g.Nodes {
			if n.Err == "" {
				answered++
			} else {
				fmt.Fprintf(a.Err, "allocator: %s: %s\n", n.Label, n.Err)
			}
		}
		if _, err := fmt.Fprintf(told, "%s: %d files of %d of %s; begin with index.html\n", name, len(g.Files),
			answered, text.Count(len(g.Nodes), "node")); err != nil {
			return err
		}
		if answered == 0 && g.Files["etcd/records.txt"] == nil {
			return cli.Exit(cli.ExitUnavailable, errors.New("no node and no etcd answered: give --addr or "+
				"--etcd.endpoints"))
		}
		return nil
	}
	return cmd
}

// gathering is what was found so far.
type gathering struct {
	*cli.App
	dialer remote.Dialer
	root   func(*cli.App) *cobra.Command
	limit  time.Duration // Etcd and a first node have it; other nodes are asked in the rest.
	At     time.Time
	all    sync.WaitGroup
	asked  sync.Map // addresses, and instances of nodes

	mu    sync.Mutex // guards the rest
	Nodes []node
	Files map[string][]byte // by path
}

// node is a node that was asked.
type node struct {
	Label, Dir string
	Err        string // what kept it from answering all; "": nothing
}

func (g *gathering) add(name string, data []byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.Files[name] = data
}

// gather asks all at the same time, until ctx ends.
func (g *gathering) gather(ctx context.Context, flags *pflag.FlagSet, c config.Config, given []string,
	load cli.Loader) {
	g.all.Go(func() { g.command(ctx, flags, given, "doctor") })
	g.all.Go(func() { g.command(ctx, flags, nil, "config", "print") })
	g.all.Go(func() { g.command(ctx, flags, nil, "version") })
	for _, addr := range given {
		g.visit(ctx, "", addr)
	}
	var registered []lease.Registration
	if len(c.Etcd.Addresses()) > 0 {
		g.all.Go(func() { g.command(ctx, flags, nil, "etcd", "status") })
		registered = g.records(ctx, load)
	}
	if len(registered)+len(given) == 0 {
		g.visit(ctx, "", cmp.Or(c.Advertise.GRPC, c.Listen.GRPC))
	}
	for _, r := range registered {
		g.visit(ctx, r.Node, r.GRPC)
	}
	g.all.Wait()
}

// command adds what another command prints, with the flags of this one that it has.
func (g *gathering) command(ctx context.Context, flags *pflag.FlagSet, addrs []string, words ...string) {
	args := slices.Clone(words)
	target, _, err := g.root(g.App).Find(words)
	if err != nil {
		panic(fmt.Sprintf("debug: no command %v: %v", words, err))
	}
	flags.Visit(func(f *pflag.Flag) {
		if target.Flags().Lookup(f.Name) != nil && f.Name != "addr" && f.Name != "timeout" {
			args = append(args, "--"+f.Name+"="+f.Value.String())
		}
	})
	if target.Flags().Lookup("timeout") != nil {
		args = append(args, "--timeout="+g.limit.String())
	}
	for _, addr := range addrs {
		args = append(args, "--addr="+addr)
	}
	var out bytes.Buffer
	code := g.Again(ctx, g.root, &out, args...)
	fmt.Fprintf(&out, "\nexit code %d\n", code)
	g.add(strings.Join(words, "-")+".txt", out.Bytes())
}

// records adds the records of the space, and returns the nodes that are registered.
func (g *gathering) records(ctx context.Context, load cli.Loader) []lease.Registration {
	ctx, cancel := context.WithTimeout(ctx, g.limit)
	defer cancel()
	s, err := deployment.ViewSpace(g.App, "debug zip", load)
	if err == nil {
		defer s.Close()
		var b bytes.Buffer
		kvs, failed := s.Store.Dump(ctx)
		for _, kv := range kvs {
			fmt.Fprintf(&b, "%s\trevision %d\tlease %x\n%s\n", kv.Key, kv.Rev, kv.Lease, kv.Raw)
		}
		if err = failed; err == nil {
			g.add("etcd/records.txt", b.Bytes())
			v, _ := s.Store.Load(ctx) // Without it nodes tell who the others are.
			return v.Nodes
		}
	}
	g.add("etcd/records.error.txt", []byte(err.Error()))
	return nil
}

// dirs are the characters that names of directories have.
var dirs = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

// visit adds the files of a node, and of those that it knows, each once.
func (g *gathering) visit(ctx context.Context, name, addr string) {
	if _, asked := g.asked.LoadOrStore(addr, true); asked || addr == "" {
		return
	}
	g.all.Go(func() {
		first, cancel := context.WithTimeout(ctx, g.limit)
		defer cancel()
		r := deployment.AskNode(first, g.dialer, addr)
		if grpcstatus.Code(r.Err) == codes.Unavailable {
			// A node closes a connection that a busy machine opens too slowly.
			r = deployment.AskNode(first, g.dialer, addr)
		}
		r.Name = cmp.Or(r.Name, name)
		if _, asked := g.asked.LoadOrStore(r.Cluster.Self.Instance, true); asked && r.Err == nil {
			return // It is asked at another of its addresses.
		}
		for _, other := range r.Cluster.Nodes {
			if other.Instance != r.Cluster.Self.Instance {
				g.visit(ctx, other.Name, other.GRPC)
			}
		}
		n := node{Label: r.Label(), Dir: "nodes/" + dirs.ReplaceAllString(r.Label(), "_")}
		if r.Err == nil {
			r.Err = g.ask(ctx, addr, n.Dir)
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		n.Err = g.problem(r.Err, len(g.Of(n.Dir)) > 0)
		g.Nodes = append(g.Nodes, n)
	})
}

// problem says what kept a node from sending all.
func (g *gathering) problem(err error, some bool) string {
	if err == nil {
		return ""
	}
	s := grpcstatus.Convert(err)
	why := g.dialer.Hint(err.Error()) + s.Message()
	switch c := s.Code(); {
	case some:
		return "did not send all: " + why
	case c == codes.Unavailable || c == codes.DeadlineExceeded:
		return "does not answer: " + why
	}
	return why
}

func (g *gathering) ask(ctx context.Context, addr, dir string) error {
	conn, err := g.dialer.Dial(addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// It answered before.
	stream, err := pb.NewAdminServiceClient(conn).GetDebug(ctx,
		&pb.GetDebugRequest{ProfileMs: int32(profileTime.Milliseconds())}, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	for total := 0; total < maxOfNode; {
		part, err := stream.Recv()
		if err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		total += len(part.GetData())
		name := path.Join(dir, dirs.ReplaceAllString(part.GetName(), "_"))
		g.mu.Lock()
		g.Files[name] = append(g.Files[name], part.GetData()...)
		g.mu.Unlock()
	}
	return fmt.Errorf("it sent more than %d MiB", maxOfNode>>20)
}

// secrets are what no file has, with what stands in its place.
var secrets = []struct {
	pattern *regexp.Regexp
	by      string
}{
	{regexp.MustCompile(`(://[^/\s"'@:]*):[^/\s"']+@`), "$1:REMOVED@"},
	{regexp.MustCompile(`allocator_[A-Z2-7]{26}`), "REMOVED"},                         // tokens
	{regexp.MustCompile(`(w1\.[0-9]+\.[0-9]+\.)[A-Za-z0-9]+`), "${1}REMOVED"},         // handles of workers
	{regexp.MustCompile(`(?i)\b(bearer|basic) [A-Za-z0-9._~+/=-]{8,}`), "$1 REMOVED"}, // headers
	{regexp.MustCompile(`(?i)((?:passw\w*|secret|token)(?:=|\\?":\s*))(\\?"[^"\\]*\\?"|'[^']*'|[^\s"'&]+)`),
		"${1}REMOVED"}, // databases, addresses, JSON
	{regexp.MustCompile(`(?mi)^(\s*(?:passw\w*|secret|token):\s+)\S.*`), "${1}REMOVED"}, // YAML
	{regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|$)`), "REMOVED"},
}

// clean returns text without secrets.
func clean(data []byte, token string) []byte {
	if token != "" {
		data = bytes.ReplaceAll(data, []byte(token), []byte("REMOVED"))
	}
	for _, s := range secrets {
		data = s.pattern.ReplaceAll(data, []byte(s.by))
	}
	return data
}

//go:embed index.html
var indexHTML string

var index = template.Must(template.New("index.html").Parse(indexHTML))

// Of returns the paths of the files of a directory.
func (g *gathering) Of(dir string) (paths []string) {
	for _, name := range slices.Sorted(maps.Keys(g.Files)) {
		if path.Dir(name) == dir {
			paths = append(paths, name)
		}
	}
	return paths
}

// write writes the archive.
func (g *gathering) write(out io.Writer) error {
	slices.SortFunc(g.Nodes, func(a, b node) int { return strings.Compare(a.Label, b.Label) })
	for name, data := range g.Files {
		if path.Ext(name) != ".pprof" {
			g.Files[name] = clean(data, g.dialer.Token)
		}
	}
	var page bytes.Buffer
	if err := index.Execute(&page, g); err != nil {
		return err
	}
	g.Files["index.html"] = clean(page.Bytes(), g.dialer.Token)
	z := zip.NewWriter(out)
	for _, name := range slices.Sorted(maps.Keys(g.Files)) {
		w, err := z.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Deflate, Modified: g.At})
		if err == nil {
			_, err = w.Write(g.Files[name])
		}
		if err != nil {
			return err
		}
	}
	return z.Close()
}
