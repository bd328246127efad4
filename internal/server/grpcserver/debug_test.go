package grpcserver_test

import (
	"bytes"
	"context"
	"io"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/servertest"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/internal/access"
)

// ask returns the files that a node sends.
func ask(ctx context.Context, env *servertest.Env, profileMs int32) (files map[string][]byte, err error) {
	files = map[string][]byte{}
	stream, err := pb.NewAdminServiceClient(env.Dial()).GetDebug(ctx, &pb.GetDebugRequest{ProfileMs: profileMs})
	for err == nil {
		var part *pb.DebugPart
		if part, err = stream.Recv(); err == nil {
			files[part.GetName()] = append(files[part.GetName()], part.GetData()...)
		}
	}
	if err == io.EOF {
		err = nil
	}
	return files, err
}

func TestGetDebug(t *testing.T) {
	env, tokens, _ := servertest.NewGuarded(t, access.Config{})
	for _, tc := range []struct {
		scope   string
		profile int32
		code    codes.Code
		want    string
	}{
		{"read", 10_000, codes.OK, "0s"}, // A profile needs scope admin.
		{"admin", 10_000, codes.OK, "10s"},
		{"admin", 10_001, codes.InvalidArgument, ""},
		{"admin", -1, codes.InvalidArgument, ""},
		{"issue", 0, codes.PermissionDenied, ""},
	} {
		ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+tokens[tc.scope])
		files, err := ask(ctx, env, tc.profile)
		if got := string(files["profile.txt"]); status.Code(err) != tc.code || got != tc.want {
			t.Errorf("%s, %d ms: %q, %v", tc.scope, tc.profile, got, err)
		}
	}
}

// A large file comes whole, and one caller at a time is served.
func TestGetDebugOneAtATime(t *testing.T) {
	large := bytes.Repeat([]byte("0123456789abcdef"), 8<<10)
	under, goOn := make(chan struct{}), make(chan struct{})
	env := servertest.New(t, func(c *servertest.Config) {
		c.Debug = func(ctx context.Context, _ time.Duration, send func(string, []byte) error) error {
			close(under)
			<-goOn
			return send("large", large)
		}
	})
	first := make(chan error)
	go func() {
		files, err := ask(t.Context(), env, 0)
		if !bytes.Equal(files["large"], large) {
			t.Errorf("%d bytes", len(files["large"]))
		}
		first <- err
	}()
	<-under
	if _, err := ask(t.Context(), env, 0); status.Code(err) != codes.ResourceExhausted {
		t.Error(err)
	}
	close(goOn)
	if err := <-first; err != nil {
		t.Error(err)
	}
}

// TestGetDebugUnread: a caller that does not read what it is sent keeps others out for 5 s, whatever its profile takes.
func TestGetDebugUnread(t *testing.T) {
	t.Parallel()
	sent := make(chan error, 1)
	env := servertest.New(t, func(c *servertest.Config) {
		c.Debug = func(_ context.Context, profile time.Duration, send func(string, []byte) error) error {
			if profile == 0 {
				return nil
			}
			err := send("large", make([]byte, 4<<20))
			sent <- err
			return err
		}
	})
	stream, err := pb.NewAdminServiceClient(env.Dial()).GetDebug(t.Context(), &pb.GetDebugRequest{ProfileMs: 10_000})
	if err != nil {
		t.Fatal(err)
	}
	if <-sent == nil {
		t.Fatal("4 MiB were sent to a caller that reads nothing")
	}
	for err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("it was told: %v", err)
	}
	wait.Until(t, "another caller is served", func() bool {
		_, err := ask(t.Context(), env, 0)
		return err == nil
	})
}
