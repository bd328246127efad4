package console

import (
	"errors"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/quota"
	"github.com/flakelease/allocator/internal/server"
	"github.com/flakelease/allocator/internal/server/httpserver"
)

// cookie has the token of a browser. Scripts cannot read it, and browsers do not send
// it along for pages of other sites.
const cookie = "allocator_token"

// maxForm is the size of the body of a form, in bytes: some 2,000 IDs.
const maxForm = 64 << 10

// admit reports whether the caller of r has a scope. Else it has answered: with the
// login page, if a token is missing.
func (c *Console) admit(w http.ResponseWriter, r *http.Request, scope access.Scope) bool {
	caller, err := c.identify(r, tokenOf(r))
	if err == nil {
		err = c.cfg.Guard.Allow(caller, scope)
	}
	if err == nil {
		httpserver.Valid(r)
		return true
	}
	if errors.Is(err, access.ErrUnauthenticated) {
		httpserver.Pay(r, quota.CostFailure)
	}
	if errors.Is(err, access.ErrUnauthenticated) && r.Method == http.MethodGet && !wantsJSON(r) {
		http.Redirect(w, r, Path+"login?to="+url.QueryEscape(r.URL.Path), http.StatusSeeOther)
		return false
	}
	refusal := server.AccessRefusal(err, caller, scope)
	c.fail(w, r, server.WireOf(refusal.Reason).Status, refusal.Error())
	return false
}

// identify returns the caller with a token.
func (c *Console) identify(r *http.Request, token string) (access.Caller, error) {
	from, _ := netip.ParseAddrPort(r.RemoteAddr) // invalid: not an address
	creds := server.CredentialsOf(r.TLS, from.Addr())
	if c.cfg.Guard.NeedsToken() {
		creds.Token = token
	}
	return c.cfg.Guard.Identify(creds)
}

// tokenOf returns the token in the cookie or, for programs, in the header.
func tokenOf(r *http.Request) string {
	if headers := r.Header["Authorization"]; len(headers) > 0 {
		token, err := server.Bearer(headers)
		if err != nil {
			return " " // not a token
		}
		return token
	}
	if found, err := r.Cookie(cookie); err == nil {
		return found.Value
	}
	return ""
}

// login is what the login page shows.
type loginData struct{ To, Problem string }

// target returns the page to go to after the login: one of the console.
func target(to string) string {
	if !strings.HasPrefix(to, Path) || strings.ContainsAny(to, "\\?#") || strings.HasPrefix(to, Path+"log") {
		return Path
	}
	return to
}

func (c *Console) showLogin(w http.ResponseWriter, r *http.Request) {
	c.show(w, r, http.StatusOK, "login", loginData{To: target(r.URL.Query().Get("to"))})
}

func (c *Console) login(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, 4<<10)
	if err := r.ParseForm(); err != nil {
		c.fail(w, r, http.StatusBadRequest, "the form could not be read")
		return
	}
	token, to := strings.TrimSpace(r.PostForm.Get("token")), target(r.PostForm.Get("to"))
	caller, err := c.identify(r, token)
	if err == nil {
		err = c.cfg.Guard.May(caller, access.Read)
	}
	if err != nil {
		httpserver.Pay(r, quota.CostFailure)
		refusal := server.AccessRefusal(err, caller, access.Read)
		c.show(w, r, server.WireOf(refusal.Reason).Status, "login", loginData{To: to, Problem: refusal.Message})
		return
	}
	httpserver.Valid(r)
	if c.cfg.Guard.NeedsToken() {
		http.SetCookie(w, tokenCookie(r, token, 0))
	}
	http.Redirect(w, r, to, http.StatusSeeOther)
}

func (c *Console) logout(w http.ResponseWriter, r *http.Request) {
	http.SetCookie(w, tokenCookie(r, "", -1))
	http.Redirect(w, r, Path+"login", http.StatusSeeOther)
}

// tokenCookie returns the cookie for a token. A proxy that says it was called over TLS
// only makes it stricter.
func tokenCookie(r *http.Request, token string, age int) *http.Cookie {
	return &http.Cookie{
		Name: cookie, Value: token, Path: Path, MaxAge: age, HttpOnly: true, SameSite: http.SameSiteStrictMode,
		Secure: r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https",
	}
}
