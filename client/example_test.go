package client_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/client/clienttest"
	"github.com/flakelease/allocator/flake"
)

func Example() {
	c, err := client.New(client.Options{Targets: []string{"allocator-0:9000", "allocator-1:9000"}})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	id, err := c.Next(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(id, id.Int64())
}

// Nodes that require TLS and a token.
func ExampleNew() {
	ca, err := os.ReadFile("/etc/allocator/ca.pem")
	if err != nil {
		log.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	c, err := client.New(client.Options{
		Targets:   []string{"allocator.example.com:9000"}, // a name stands for all of its addresses
		TLS:       &tls.Config{RootCAs: roots},
		TokenFile: "/etc/allocator/token", // read again when it changes
	})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
}

// Spans of calls and streams, by the program's own provider.
func ExampleOptions_traces() {
	c, err := client.New(client.Options{
		Targets:     []string{"allocator-0:9000"},
		DialOptions: []grpc.DialOption{grpc.WithStatsHandler(otelgrpc.NewClientHandler())}, // otelgrpc.WithTracerProvider: another
	})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
}

// connect returns a client of one node in memory, and what ends both.
func connect(o client.Options, n *clienttest.Node) (*client.Client, func()) {
	l := bufconn.Listen(1 << 16)
	s := grpc.NewServer()
	n.Register(s)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	o.Targets = []string{"192.0.2.1:9000"}
	o.DialOptions = []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) })}
	c, err := client.New(o)
	if err != nil {
		log.Fatal(err)
	}
	return c, func() {
		_ = c.Close()
		s.Stop()
		<-served
	}
}

func ExampleClient_Next() {
	c, stop := connect(client.Options{}, clienttest.NewNode(clienttest.Options{SID: 7})) // or client.New
	defer stop()

	id, err := c.Next(context.Background())
	fmt.Println(id, id.Int64(), flake.Default.SID(id), err)
	// Output: 01TT8HD010007 66226382439448583 7 <nil>
}

func ExampleClient_NextN() {
	c, stop := connect(client.Options{}, clienttest.NewNode(clienttest.Options{SID: 7})) // or client.New
	defer stop()

	ids := make([]flake.ID, 3)
	err := c.NextN(context.Background(), ids)
	fmt.Println(ids, err)
	// Output: [01TT8HD010007 01TT8HD010017 01TT8HD010027] <nil>
}

func ExampleClient_Block() {
	c, stop := connect(client.Options{}, clienttest.NewNode(clienttest.Options{SID: 7})) // or client.New
	defer stop()

	b, err := c.Block(context.Background(), 1000)
	fmt.Println(b, err)
	for i := range 2 {
		wide, err := b.ULID(i) // each call draws new random bits
		fmt.Println(b.At(i), wide.String()[:10], err)
	}
	// Output:
	// 1000 IDs from 01TT8HD010007 to 01TT8HD010Z77 of node-7, sid 7 <nil>
	// 01TT8HD010007 01KDVDNA01 <nil>
	// 01TT8HD010017 01KDVDNA01 <nil>
}

// An ID that another program was given, such as that of the message this one replies to,
// is below every ID drawn later.
func ExampleClient_Observe() {
	n := clienttest.NewNode(clienttest.Options{SID: 7})
	c, stop := connect(client.Options{}, n) // or client.New
	defer stop()

	question, _ := flake.Default.Make(n.Now().UnixMilli()+100, 0, 8) // of a node whose clock is 100 ms ahead
	c.Observe(question)
	answer, err := c.Next(context.Background())
	fmt.Println(answer > question, err)
	// Output: true <nil>
}

func ExampleRefusal() {
	n := clienttest.NewNode(clienttest.Options{})
	n.Refuse(client.Refusal{Reason: client.WindowExhausted, Message: "etcd has not answered for 30 s", RetryAfter: time.Second})
	c, stop := connect(client.Options{Timeout: 900 * time.Millisecond}, n) // or client.New
	defer stop()

	_, err := c.Next(context.Background())
	var refusal *client.Refusal
	switch {
	case errors.Is(err, &client.Refusal{Reason: client.AfterTooFar}):
		fmt.Println("the last ID is ahead of every node's clock")
	case errors.As(err, &refusal):
		fmt.Println(refusal.Reason, refusal.Node, refusal.RetryAfter)
	case errors.Is(err, client.ErrUnavailable):
		fmt.Println("no node answers")
	}
	// Output: WINDOW_EXHAUSTED 192.0.2.1:9000 1s
}
