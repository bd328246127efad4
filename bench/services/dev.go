package services

import (
	"context"
	"fmt"
	"io"
	"net"

	"github.com/flakelease/allocator/internal/dev/loopback"
)

// devRESP is where a node of "allocator dev" answers Redis clients.
const devRESP = "127.0.0.1:6380"

// Dev measures each listener of a node of "allocator serve" and of one of "allocator dev", in turns, and writes a
// table.
func Dev(ctx context.Context, allocator, self string, p Plan, out io.Writer) error {
	e, err := newEnv(allocator, self)
	if err != nil {
		return err
	}
	defer e.Close()
	if err := e.startEtcd(ctx); err != nil {
		return err
	}
	if err := e.startNode(ctx); err != nil {
		return err
	}
	dev := *e // It has the same processes.
	dev.Node[0] = Node{GRPC: loopback.Address(), HTTP: loopback.Address(), RESP: devRESP}
	_, grpc, _ := net.SplitHostPort(dev.Node[0].GRPC)
	_, http, _ := net.SplitHostPort(dev.Node[0].HTTP)
	if err := e.spawn(dev.Node[0].GRPC, allocator, "dev", "--nodes", "1", "--resp", "--grpc-port", grpc, "--http-port",
		http); err != nil {
		return err
	}
	if err := e.issues(ctx, dev.Node[0]); err != nil {
		return err
	}
	cases := eachListener()
	all := [2][]Result{}
	once := p
	once.Rounds = 1
	for round := range p.Rounds {
		for i := range all {
			at := (round + i) % len(all)
			once.Seed = p.Seed + uint64(round)
			results, err := Run(ctx, []*Env{e, &dev}[at], cases, once)
			if err != nil {
				return err
			}
			for i, r := range results {
				if round == 0 {
					all[at] = append(all[at], Result{Case: r.Case})
				}
				all[at][i].Samples = append(all[at][i].Samples, r.Samples...)
			}
		}
	}
	fmt.Fprint(out, "| | µs of processor time a request: serve, dev with its etcd | dev ÷ serve "+
		"| IDs a second: serve, dev | dev ÷ serve |\n|---|--:|--:|--:|--:|\n")
	for i, serve := range all[0] {
		cpu, cpuDev := serve.spread(Sample.cpu).Median, all[1][i].spread(Sample.cpu).Median
		ids, idsDev := serve.spread(Sample.ids).Median, all[1][i].spread(Sample.ids).Median
		fmt.Fprintf(out, "| %s, %s | %s, %s | %.2f | %s, %s | %.2f |\n", serve.Group, serve.Name, micros(cpu),
			micros(cpuDev), cpuDev/cpu, Count(ids), Count(idsDev), idsDev/ids)
	}
	return nil
}

// eachListener are the cases of each listener of one node, with one request and with several at once.
func eachListener() (cases []Case) {
	for _, c := range Cases() {
		if c.Ours && (c.Group == Single || c.Group == Pipelined) {
			cases = append(cases, c)
		}
	}
	return cases
}

// startNode starts the first node, with a listener for Redis clients.
func (e *Env) startNode(ctx context.Context) error {
	node, args := e.node("127.0.0.1", 0, e.endpoint()...)
	node.RESP = loopback.Address()
	e.Node[0] = node
	if err := e.spawn(node.GRPC, e.binary, append(args, "--listen.resp", node.RESP)...); err != nil {
		return err
	}
	return e.issues(ctx, node)
}
