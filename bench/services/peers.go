package services

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/internal/inside/etcdserver"
	"github.com/flakelease/allocator/internal/inside/member"
	"github.com/flakelease/allocator/internal/server/httpserver"
)

// Serve runs a server at addr until the process is signaled: one that does
// nothing, of kind tcp, epoll, http, http-limits or grpc, an etcd of one member, or
// a member of several.
func Serve(kind, addr string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	switch kind {
	case "etcd":
		return serveEtcd(ctx, addr)
	case "etcd-member":
		return serveMember(ctx, strings.Split(addr, ","))
	case "embed":
		return printFirst(ctx, addr)
	}
	network, addr := "tcp", addr
	if path, ok := strings.CutPrefix(addr, unixPrefix); ok {
		network, addr = "unix", path
	}
	l, err := net.Listen(network, addr)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() {
		_ = l.Close()
		if kind == "epoll" { // its loop does not wait for l
			os.Exit(0)
		}
	})
	switch kind {
	case "tcp":
		err = echo(l)
	case "epoll":
		err = constantEpoll(l.(filer))
	case "http":
		err = (&http.Server{Handler: http.HandlerFunc(nothing)}).Serve(l)
	case "http-limits":
		err = httpserver.NewServer(http.HandlerFunc(nothing), slog.New(slog.DiscardHandler)).Serve(l)
	case "grpc":
		g := grpc.NewServer()
		pb.RegisterAllocatorServiceServer(g, newIdle())
		err = g.Serve(l)
	default:
		return fmt.Errorf("services: no server is called %q", kind)
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// filer is a listener of a socket.
type filer interface{ File() (*os.File, error) }

func serveEtcd(ctx context.Context, addr string) error {
	s, err := etcdserver.Start(ctx, etcdserver.Alone{Run: member.Run{Client: "http://" + addr}})
	if err != nil {
		return err
	}
	<-ctx.Done()
	return s.Close()
}

// serveMember runs a member of etcd with its own times: where clients call it, its directory, its peers' address, and
// those of the other members.
func serveMember(ctx context.Context, at []string) error {
	if len(at) < 3 {
		return fmt.Errorf("services: %q names no member", at)
	}
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir = at[2], at[1]
	client, peer := []url.URL{{Scheme: "http", Host: at[0]}}, []url.URL{{Scheme: "http", Host: at[2]}}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = client, client
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = peer, peer
	var members []string
	for _, other := range at[2:] {
		members = append(members, other+"=http://"+other)
	}
	cfg.InitialCluster = strings.Join(members, ",")
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return err
	}
	<-ctx.Done()
	e.Close()
	return nil
}

// echo sends back what it reads: the minimum that a server can do.
func echo(l net.Listener) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer func() { _ = c.Close() }()
			b := make([]byte, 16<<10)
			for {
				n, err := c.Read(b)
				if err != nil {
					return
				}
				if _, err := c.Write(b[:n]); err != nil {
					return
				}
			}
		}()
	}
}

// An answer as long as ours, and headers that keep net/http from guessing.
var (
	idleBody = []byte(`{"ids":["02MVQDZ9NFSQ0"],"node":"node-1","sid":7}` + "\n")
	idleType = []string{"application/json"}
)

func nothing(w http.ResponseWriter, _ *http.Request) {
	w.Header()["Content-Type"] = idleType
	_, _ = w.Write(idleBody)
}

// idle answers every request with the same message.
type idle struct {
	pb.UnimplementedAllocatorServiceServer
	response *pb.AllocateResponse
	streamed *pb.AllocateStreamResponse
}

func newIdle() *idle {
	res := &pb.AllocateResponse{
		First:       1 << 60,
		Count:       1,
		Stride:      32,
		Node:        "node-1",
		Sid:         7,
		Layout:      1,
		EpochUnixMs: 1_704_067_200_000,
	}
	return &idle{
		response: res,
		streamed: &pb.AllocateStreamResponse{
			Sequence: 1,
			Result:   &pb.AllocateStreamResponse_Response{Response: res},
		},
	}
}

func (i *idle) Allocate(context.Context, *pb.AllocateRequest) (*pb.AllocateResponse, error) {
	return i.response, nil
}

func (i *idle) AllocateStream(stream pb.AllocatorService_AllocateStreamServer) error {
	for {
		if _, err := stream.Recv(); err != nil {
			return err
		}
		if err := stream.Send(i.streamed); err != nil {
			return err
		}
	}
}
