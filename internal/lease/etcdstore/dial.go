package etcdstore

import (
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
)

// Config says how to reach etcd.
type Config struct {
	Endpoints []string    // URLs, at least one
	TLS       *tls.Config // nil: as the endpoints' scheme says, with the system's roots
	Username  string      // "": no password authentication
	Password  string

	// DialTimeout bounds the authentication in Dial, and each attempt to connect.
	// 0: 3 s, the time after which a silent endpoint is given up for the next.
	DialTimeout time.Duration

	// KeepAliveTime is how long a connection may be silent before it is probed.
	// 0: 10 s, the least that gRPC carries out. Under 5 s etcd would hang up.
	KeepAliveTime time.Duration

	Log slog.Handler // of the client's own remarks; nil: dropped

	// Options are further ones of gRPC, after our own: another way to connect, or
	// an ear on the calls.
	Options []grpc.DialOption
}

// minKeepAlive is etcd's --grpc-keepalive-min-time.
const minKeepAlive = 5 * time.Second

// ErrConfig is what Validate and Dial return for a bad Config.
var ErrConfig = errors.New("etcdstore: bad configuration")

// Validate returns ErrConfig with the field and the rule it broke, or nil.
func (c Config) Validate() error {
	switch {
	case len(c.Endpoints) == 0:
		return fmt.Errorf("%w: Endpoints: none given", ErrConfig)
	case (c.Username == "") != (c.Password == ""):
		return fmt.Errorf("%w: Username and Password: only one given", ErrConfig)
	case c.DialTimeout < 0:
		return fmt.Errorf("%w: DialTimeout: %v is negative", ErrConfig, c.DialTimeout)
	case c.KeepAliveTime != 0 && c.KeepAliveTime < minKeepAlive:
		return fmt.Errorf("%w: KeepAliveTime: %v, at least %v", ErrConfig, c.KeepAliveTime, minKeepAlive)
	}
	return nil
}

// Dial returns a client of etcd, which the caller closes. It connects in the
// background, so etcd need not answer yet, unless there is a Username: then it
// authenticates first, within DialTimeout.
//
// It returns ErrConfig, or what the client or the authentication said.
func Dial(c Config) (*clientv3.Client, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if c.DialTimeout == 0 {
		c.DialTimeout = 3 * time.Second
	}
	if c.KeepAliveTime == 0 {
		c.KeepAliveTime = 10 * time.Second
	}
	log := zap.NewNop()
	if c.Log != nil {
		log = zap.New(logCore{c.Log})
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints:            c.Endpoints,
		TLS:                  c.TLS,
		Username:             c.Username,
		Password:             c.Password,
		DialTimeout:          c.DialTimeout,
		DialKeepAliveTime:    c.KeepAliveTime,
		DialKeepAliveTimeout: 3 * time.Second,
		Logger:               log,
		DialOptions: append([]grpc.DialOption{
			grpc.WithConnectParams(grpc.ConnectParams{
				// A window outlives an outage by some 25 s at most. gRPC's default waits
				// up to 120 s between attempts, and would turn a short outage into a long one.
				Backoff: backoff.Config{
					BaseDelay:  100 * time.Millisecond,
					Multiplier: 1.6,
					Jitter:     0.2,
					MaxDelay:   maxReconnect,
				},
				MinConnectTimeout: c.DialTimeout,
			}),
		}, c.Options...),
	})
	if err != nil {
		return nil, fmt.Errorf("dial etcd at %q: %w", c.Endpoints, err)
	}
	return client, nil
}

// maxReconnect is the longest pause between two attempts to connect, less than
// the time between two extensions of a window.
const maxReconnect = time.Second * 4 / 5 // ·(1 + jitter) stays under 1 s

// logCore hands what etcd's client logs through zap to a slog handler.
type logCore struct{ h slog.Handler }

// level maps zap's levels down: what the client warns of comes back to us as the
// error of a call, and is logged by whoever made that.
func (logCore) level(l zapcore.Level) slog.Level {
	if l >= zapcore.ErrorLevel {
		return slog.LevelWarn
	}
	return slog.LevelDebug
}

func (c logCore) Enabled(l zapcore.Level) bool {
	return c.h.Enabled(context.Background(), c.level(l))
}

func (c logCore) With(fields []zapcore.Field) zapcore.Core {
	return logCore{c.h.WithAttrs(attrs(fields))}
}

func (c logCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if !c.Enabled(e.Level) {
		return ce
	}
	return ce.AddCore(e, c)
}

func (c logCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	r := slog.NewRecord(e.Time, c.level(e.Level), e.Message, 0)
	if e.LoggerName != "" {
		r.AddAttrs(slog.String("logger", e.LoggerName))
	}
	r.AddAttrs(attrs(fields)...)
	return c.h.Handle(context.Background(), r)
}

func (logCore) Sync() error { return nil }

// attrs returns fields in their order.
func attrs(fields []zapcore.Field) []slog.Attr {
	out := make([]slog.Attr, 0, len(fields))
	for _, f := range fields {
		enc := zapcore.NewMapObjectEncoder() // one each: a map would lose the order
		f.AddTo(enc)
		for k, v := range enc.Fields {
			out = append(out, slog.Any(k, v))
		}
	}
	return out
}
