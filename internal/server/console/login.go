package console

import (
	"errors"
	"net/http"
	"net/url"
	"strings"

	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/server"
	"github.com/flakelease/allocator/internal/server/httpserver"
	"github.com/flakelease/allocator/internal/server/quota"
)

// cookie begins the names of cookies, which have the key of a session. Scripts cannot read
// them, and browsers do not send them along for pages of other sites.
const cookie = "allocator_session"

// maxForm is the size of the body of a form, in bytes: some 2,000 IDs.
const maxForm = 64 << 10

// admit reports whether the caller of r has a scope. Else it has answered: with the
// login page, if a token is missing.
func (c *Console) admit(w http.ResponseWriter, r *http.Request, scope access.Scope) bool {
	caller, err := c.identify(r)
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
		http.Redirect(w, r, Path+"login?to="+url.QueryEscape(r.URL.RequestURI()), http.StatusSeeOther)
		return false
	}
	refusal := server.AccessRefusal(err, caller, scope)
	c.fail(w, r, server.WireOf(refusal.Reason).Status(), refusal.Error())
	return false
}

// identify returns the caller of a request: by the token in its header, as programs send it,
// or by the session in its cookie.
func (c *Console) identify(r *http.Request) (access.Caller, error) {
	authorization := r.Header["Authorization"]
	if found, err := r.Cookie(c.cookieName()); err == nil && len(authorization) == 0 && c.cfg.Guard.NeedsToken() {
		if caller, ok := c.sessions.get(found.Value, c.cfg.Node.Clock().Now().Mono); ok {
			return caller, nil
		}
	}
	return server.Identify(c.cfg.Guard, server.CredentialsOf(r.TLS, r.RemoteAddr), authorization)
}

// login is what the login page shows.
type loginData struct{ To, Problem string }

// target returns the page to go to after the login: one of the console, with its query.
func target(to string) string {
	page, _, _ := strings.Cut(to, "?")
	if !strings.HasPrefix(page, Path) || strings.ContainsAny(to, "\\#") || strings.HasPrefix(page, Path+"log") {
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
	creds, to := server.CredentialsOf(r.TLS, r.RemoteAddr), target(r.PostForm.Get("to"))
	creds.Token = strings.TrimSpace(r.PostForm.Get("token"))
	caller, err := c.cfg.Guard.Identify(creds)
	if err == nil {
		err = c.cfg.Guard.May(caller, access.Read)
	}
	if err != nil {
		httpserver.Pay(r, quota.CostFailure)
		refusal := server.AccessRefusal(err, caller, access.Read)
		c.show(w, r, server.WireOf(refusal.Reason).Status(), "login", loginData{To: to, Problem: refusal.Message})
		return
	}
	httpserver.Valid(r)
	if c.cfg.Guard.NeedsToken() {
		http.SetCookie(w, c.sessionCookie(r, c.sessions.add(caller, caller.Name(), c.cfg.Node.Clock().Now().Mono), 0))
	}
	http.Redirect(w, r, to, http.StatusSeeOther)
}

func (c *Console) logout(w http.ResponseWriter, r *http.Request) {
	if found, err := r.Cookie(c.cookieName()); err == nil {
		c.sessions.end(found.Value)
	}
	http.SetCookie(w, c.sessionCookie(r, "", -1))
	http.Redirect(w, r, Path+"login", http.StatusSeeOther)
}

// sessionCookie returns the cookie for a session. A proxy that says it was called over TLS
// only makes it stricter.
func (c *Console) sessionCookie(r *http.Request, key string, age int) *http.Cookie {
	return &http.Cookie{
		Name: c.cookieName(), Value: key, Path: Path, MaxAge: age, HttpOnly: true, SameSite: http.SameSiteStrictMode,
		Secure: r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https",
	}
}
