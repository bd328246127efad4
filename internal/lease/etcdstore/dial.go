package etcdstore

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/flakelease/allocator/internal/lease/etcdstore/etcdlog"
)

// Config is how to connect to etcd.
type Config struct {
	// Endpoints are URLs, at least one.
	Endpoints []string
	// TLS is nil for what the scheme of the endpoints says, with the system's roots.
	TLS *tls.Config
	// Without a Username there is no password authentication.
	Username string
	Password string

	// DialTimeout bounds the authentication in Dial, and each attempt to connect.
	// 0: 3 s; after that time without an answer the next endpoint is tried.
	DialTimeout time.Duration

	// Log takes what etcd's client logs. It may be nil.
	Log slog.Handler

	// Options are added to our gRPC options, such as a dialer or an interceptor.
	Options []grpc.DialOption
}

// keepAliveTime is how long a connection may be idle before it is probed: the minimum of gRPC's
// client. Below 5 s etcd closes the connection.
const keepAliveTime = 10 * time.Second

// ErrConfig is returned by Validate and Dial for a bad Config.
var ErrConfig = errors.New("etcdstore: bad configuration")

// Validate returns nil, or ErrConfig with the field and the rule that it breaks.
func (c Config) Validate() error {
	switch {
	case len(c.Endpoints) == 0:
		return fmt.Errorf("%w: Endpoints: none given", ErrConfig)
	case (c.Username == "") != (c.Password == ""):
		return fmt.Errorf("%w: Username and Password: only one given", ErrConfig)
	case c.DialTimeout < 0:
		return fmt.Errorf("%w: DialTimeout: %v is negative", ErrConfig, c.DialTimeout)
	}
	return nil
}

// Dial returns a client of etcd, which the caller closes. It connects in the
// background, so etcd need not answer yet, unless there is a Username: then it
// authenticates first, within DialTimeout.
//
// It returns ErrConfig, or the error of the client or of the authentication.
func Dial(c Config) (*clientv3.Client, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	c.DialTimeout = cmp.Or(c.DialTimeout, 3*time.Second)
	log := zap.NewNop()
	if c.Log != nil {
		log = zap.New(etcdlog.Log{Handler: c.Log, Level: quiet})
	}
	ctx := withAttempts(context.Background())
	client, err := clientv3.New(clientv3.Config{
		Context:              ctx,
		Endpoints:            c.Endpoints,
		TLS:                  c.TLS,
		Username:             c.Username,
		Password:             c.Password,
		DialTimeout:          c.DialTimeout,
		DialKeepAliveTime:    keepAliveTime,
		DialKeepAliveTimeout: 3 * time.Second,
		Logger:               log,
		DialOptions: append([]grpc.DialOption{
			grpc.WithConnectParams(grpc.ConnectParams{
				// A window lasts about 25 s into an outage. gRPC's default waits up to 120 s
				// between attempts, which would turn a short outage into a long one.
				Backoff: backoff.Config{
					BaseDelay:  100 * time.Millisecond,
					Multiplier: 1.6,
					Jitter:     0.2,
					MaxDelay:   maxReconnect,
				},
				MinConnectTimeout: c.DialTimeout,
			}),
			grpc.WithChainUnaryInterceptor(keepAttempt),
		}, c.Options...),
	})
	if err != nil {
		return nil, fmt.Errorf("dial etcd at %q: %w", c.Endpoints, because(ctx, err))
	}
	return client, nil
}

// maxReconnect is the longest pause between two attempts to connect, less than
// the time between two extensions of a window: with its jitter it stays under 1 s.
const maxReconnect = time.Second * 4 / 5

// quiet maps zap's levels to debug: what the client logs as an error comes back as that of a call.
func quiet(zapcore.Level) slog.Level { return slog.LevelDebug }
