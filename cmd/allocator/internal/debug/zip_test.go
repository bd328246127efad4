package debug

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestClean(t *testing.T) {
	for given, want := range map[string]string{
		"GET http://user:p@ss-1@host/a?b":                                         "GET http://user:REMOVED@host/a?b",
		"https://10.0.0.1:2379,https://10.0.0.2:2379":                             "https://10.0.0.1:2379,https://10.0.0.2:2379",
		"authorization: Bearer abc.def-12345":                                     "authorization: Bearer REMOVED",
		"tried allocator_ABCDEFGHIJKLMNOPQRSTUVWXYZ today":                        "tried REMOVED today",
		`msg="the worker w1.7.12.Secret0123456789 is extended"`:                   `msg="the worker w1.7.12.REMOVED is extended"`,
		"host=db password=hunter2 user=ids":                                       "host=db password=REMOVED user=ids",
		`error="dial: password=\"hunter 2\" user=ids"`:                            `error="dial: password=REMOVED user=ids"`,
		`{"password":"hunter2","user":"ids"}`:                                     `{"password":REMOVED,"user":"ids"}`,
		"etcd:\n  password: hunter2\n  password-file: /etc/p":                     "etcd:\n  password: REMOVED\n  password-file: /etc/p",
		"sslpassword='hunter 2' host=db":                                          "sslpassword=REMOVED host=db",
		"no token: give --token-file":                                             "no token: give --token-file",
		"auth.token-file: open /etc/tokens: not found":                            "auth.token-file: open /etc/tokens: not found",
		"a\n-----BEGIN EC PRIVATE KEY-----\nMHc\n-----END EC PRIVATE KEY-----\nb": "a\nREMOVED\nb",
		"the token is mine":                                                       "the token is REMOVED",
	} {
		if got := string(clean([]byte(given), "mine")); got != want {
			t.Errorf("%q: %q, want %q", given, got, want)
		}
	}
}

// Only a node that is silent "does not answer".
func TestProblem(t *testing.T) {
	for _, tc := range []struct {
		err  error
		some bool
		want string
	}{
		{nil, true, ""},
		{status.Error(codes.Unavailable, "connection refused"), false, "does not answer: connection refused"},
		{status.Error(codes.DeadlineExceeded, "it took 10s"), true, "did not send all: it took 10s"},
		{status.Error(codes.Unimplemented, "unknown method GetDebug"), false,
			"its version cannot send files for debugging: unknown method GetDebug"},
		{status.Error(codes.Unimplemented, "an agent issues IDs: ask n1:9000"), false, "an agent issues IDs: ask n1:9000"},
		{status.Error(codes.PermissionDenied, "it needs scope read"), false, "it needs scope read"},
	} {
		if got := new(gathering).problem(tc.err, tc.some); got != tc.want {
			t.Errorf("%v: %q, want %q", tc.err, got, tc.want)
		}
	}
}
