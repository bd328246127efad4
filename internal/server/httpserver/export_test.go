package httpserver

import (
	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/server"
)

// Route is a pattern of the API, and what it requires of callers.
type Route struct {
	Pattern string
	Scope   access.Scope
	Open    bool
}

// Routes lists all of them.
func Routes(s *server.Service) (out []Route) {
	for _, r := range (&handler{service: s}).routes() {
		out = append(out, Route{r.pattern, r.need.Scope, r.need.Open})
	}
	return out
}
