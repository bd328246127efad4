package console

import (
	"crypto/sha256"
	"encoding/base64"
	"io/fs"
	"net/http"
	"path"
	"strconv"
)

// asset is a file that pages refer to.
type asset struct {
	content []byte
	kind    string
	tag     string // ETag
}

var kinds = map[string]string{
	".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml",
	".LICENSE": "text/plain; charset=utf-8",
}

func (c *Console) loadAssets() {
	list, err := fs.ReadDir(files, "static")
	if err != nil {
		panic(err) // it is embedded
	}
	for _, f := range list {
		content, err := fs.ReadFile(files, "static/"+f.Name())
		if err != nil {
			panic(err)
		}
		sum := sha256.Sum256(content)
		c.assets[f.Name()] = asset{content, kinds[path.Ext(f.Name())],
			strconv.Quote(base64.RawURLEncoding.EncodeToString(sum[:12]))}
	}
}

// serveAsset serves a file to everybody: it is the same in every build of this version.
func (c *Console) serveAsset(w http.ResponseWriter, r *http.Request) {
	a, ok := c.assets[r.PathValue("name")]
	if !ok {
		c.fail(w, r, http.StatusNotFound, "there is no such file")
		return
	}
	h := w.Header()
	h.Set("Cache-Control", "no-cache")
	h.Set("ETag", a.tag)
	if r.Header.Get("If-None-Match") == a.tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	h.Set("Content-Type", a.kind)
	h.Set("Content-Length", strconv.Itoa(len(a.content)))
	_, _ = w.Write(a.content)
}
