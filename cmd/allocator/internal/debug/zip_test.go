package debug

import "testing"

func TestClean(t *testing.T) {
	for given, want := range map[string]string{
		"GET http://user:p@ss-1@host/a?b":                                         "GET http://user:REMOVED@host/a?b",
		"https://10.0.0.1:2379,https://10.0.0.2:2379":                             "https://10.0.0.1:2379,https://10.0.0.2:2379",
		"authorization: Bearer abc.def-12345":                                     "authorization: Bearer REMOVED",
		"tried allocator_ABCDEFGHIJKLMNOPQRSTUVWXYZ today":                        "tried REMOVED today",
		`msg="the worker w1.7.12.Secret0123456789 is extended"`:                   `msg="the worker w1.7.12.REMOVED is extended"`,
		"host=db password=hunter2 user=ids":                                       "host=db password=REMOVED user=ids",
		"a\n-----BEGIN EC PRIVATE KEY-----\nMHc\n-----END EC PRIVATE KEY-----\nb": "a\nREMOVED\nb",
		"the token is mine":                                                       "the token is REMOVED",
	} {
		if got := string(clean([]byte(given), "mine")); got != want {
			t.Errorf("%q: %q, want %q", given, got, want)
		}
	}
}
