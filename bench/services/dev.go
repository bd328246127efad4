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
	if err := e.startNode(ctx, 0, loopback.Address()); err != nil {
		return err
	}
	dev := *e // It has the same processes.
	var args []string
	dev.Node[0], args = devNode()
	dev.Node[0].RESP = devRESP
	if err := e.first(ctx, dev.Node[0], append(args, "--resp")...); err != nil {
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

// startNode starts node i, with a listener for Redis clients.
func (e *Env) startNode(ctx context.Context, i int, resp string) error {
	node, args := e.node("127.0.0.1", i, e.endpoint()...)
	node.RESP = resp
	e.Node[i] = node
	return e.first(ctx, node, append(args, "--listen.resp", resp)...)
}

// devNode returns where the node of "allocator dev" listens, each time on other ports, and the arguments for that.
func devNode() (n Node, args []string) {
	n = Node{HTTP: loopback.Address(), GRPC: loopback.Address()} // The port after that of gRPC is the operator's.
	_, grpc, _ := net.SplitHostPort(n.GRPC)
	_, http, _ := net.SplitHostPort(n.HTTP)
	return n, []string{"dev", "--nodes", "1", "--grpc-port", grpc, "--http-port", http}
}

// first starts a node and returns when it has issued an ID.
func (e *Env) first(ctx context.Context, n Node, args ...string) error {
	if err := e.spawn(n.GRPC, e.binary, args...); err != nil {
		return err
	}
	return e.issues(ctx, n)
}
