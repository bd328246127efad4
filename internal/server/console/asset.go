package console

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strconv"
	"time"
)

// serveAsset serves a file that pages refer to. It is for everybody: it is the same in every build of this version.
func (c *Console) serveAsset(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	content, err := files.ReadFile("static/" + name)
	if err != nil {
		c.fail(w, r, http.StatusNotFound, "there is no such file")
		return
	}
	sum := sha256.Sum256(content)
	w.Header().Set("Cache-Control", "no-cache")
	w.Header().Set("ETag", strconv.Quote(base64.RawURLEncoding.EncodeToString(sum[:12])))
	http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(content))
}
