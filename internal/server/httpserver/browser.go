package httpserver

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/server/runbook"
)

// Hosts are the names that requests may have in their Host header. A page whose name its
// owner has made an address of this node (DNS rebinding) may read all answers, and is
// recognized by that name alone. A nil *Hosts allows every name.
type Hosts struct {
	names    []string
	suffixes []string // with a dot in front
}

// privateSuffixes are of names that nobody can register, so none can be made an address
// of this node from outside.
var privateSuffixes = []string{".localhost", ".svc", ".cluster.local", ".internal"}

// AnyHost is the entry that allows every name.
const AnyHost = "*"

// NewHosts returns the names of a list: host names, suffixes with a dot in front such as
// .example.com, or AnyHost. Always allowed are addresses, names without a dot, and names
// under .localhost, .svc, .cluster.local and .internal.
func NewHosts(list ...string) *Hosts {
	h := &Hosts{suffixes: privateSuffixes}
	for _, name := range list {
		name = strings.TrimSuffix(strings.ToLower(name), ".")
		switch {
		case name == AnyHost:
			return nil
		case strings.HasPrefix(name, "."):
			h.suffixes = append(slices.Clip(h.suffixes), name)
		case name != "":
			h.names = append(h.names, name)
		}
	}
	return h
}

// Allow reports whether a Host header has an allowed name. The port does not count.
func (h *Hosts) Allow(header string) bool {
	if h == nil {
		return true
	}
	host := header
	if name, _, err := net.SplitHostPort(header); err == nil {
		host = name
	}
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return true
	}
	host = strings.TrimSuffix(host, ".")
	if !strings.Contains(host, ".") {
		return host != ""
	}
	host = strings.ToLower(host)
	return slices.Contains(h.names, host) ||
		slices.ContainsFunc(h.suffixes, func(s string) bool { return strings.HasSuffix(host, s) })
}

// Handler returns next behind the check of Host, for handlers without the other checks of
// this package.
func (h *Hosts) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !h.Allow(r.Host) {
			other := otherHost(r)
			http.Error(w, other.refusal.Message+"\n"+other.help, http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func otherHost(r *http.Request) *fault {
	bad := malformed("the Host header %.80q is not a name of this node", r.Host)
	bad.status = http.StatusMisdirectedRequest
	bad.help = "Call the node by an address or one of its names, or add the name to http.hosts."
	return bad
}

// crossOrigin recognizes requests that a browser sends on behalf of another site's page.
var crossOrigin http.CrossOriginProtection

// CrossSite reports whether a browser sends a request on behalf of another site's page. page
// says that the path is one that people open: following a link to it is no such request.
func CrossSite(r *http.Request, page bool) bool {
	if crossOrigin.Check(r) != nil {
		return true
	}
	if from := r.Header.Get("Sec-Fetch-Site"); from != "cross-site" && from != "same-site" {
		return false
	}
	link := r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
	return !page || !link
}

// browser returns why a request is rejected that a page of another site may have caused;
// nil: it is not.
func (h *handler) browser(r *http.Request) *fault {
	if !h.cfg.Hosts.Allow(r.Host) {
		return otherHost(r)
	}
	if CrossSite(r, r.URL.Path == "/openapi.yaml" || strings.HasPrefix(r.URL.Path, runbook.Path)) {
		return &fault{refusal: &node.Refusal{
			Reason: node.PermissionDenied,
			Message: "the request was sent by a page of another site: IDs are for programs; call the node from " +
				"your server",
		}, help: "No token helps: call the node from a program."}
	}
	return nil
}
