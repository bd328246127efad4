package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// built is a small program to pack.
var built = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "image-test-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	for name, text := range map[string]string{
		"go.mod":  "module example.org/small\n\ngo 1.26\n",
		"main.go": "package main\n\nfunc main() { println(\"here\") }\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", "small", ".")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOWORK=off", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	return os.ReadFile(filepath.Join(dir, "small"))
})

func program(t *testing.T, dir string) string {
	t.Helper()
	data, err := built()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "small")
	if err := os.WriteFile(path, data, 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

const smallDockerfile = `# comment
FROM scratch
ARG VERSION=none
LABEL a.b="c d" \
      v="${VERSION}"
ENV A=1 B="two words"
COPY LICENSE notes.txt /
COPY small /bin/small
COPY --chown=7:8 data/ /var/lib/x/
USER 65532:65532
EXPOSE 1/tcp 2/udp
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s --retries=3 CMD ["/bin/small", "ok"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["/bin/small"]
CMD ["x"]
`

// tree is a build: the same files, made at another time in another folder with
// other rights.
func tree(t *testing.T, umask os.FileMode, at time.Time) string {
	t.Helper()
	dir := t.TempDir()
	program(t, dir)
	for name, text := range map[string]string{"LICENSE": "free", "notes.txt": "notes", "data/inside": "x", "Dockerfile": smallDockerfile} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755&^umask); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o666&^umask); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func packTree(t *testing.T, dir string) (string, []byte) {
	t.Helper()
	to := filepath.Join(dir, "image.tar")
	var out bytes.Buffer
	err := run([]string{"pack", "--file", filepath.Join(dir, "Dockerfile"), "--context", dir, "--binary", filepath.Join(dir, "small"),
		"--version", "v1", "--tag", "small:latest", "-o", to}, &out)
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(to)
	if err != nil {
		t.Fatal(err)
	}
	return out.String(), data
}

func TestSameImageFromAnyFolderAtAnyTime(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "")
	_, one := packTree(t, tree(t, 0o022, time.Unix(1e9, 0)))
	_, two := packTree(t, tree(t, 0o077, time.Unix(17e8, 0)))
	if !bytes.Equal(one, two) {
		t.Error("two builds of the same files differ")
	}
	t.Setenv("SOURCE_DATE_EPOCH", "1000")
	if _, three := packTree(t, tree(t, 0o022, time.Unix(1e9, 0))); bytes.Equal(one, three) {
		t.Error("the time that was asked for is not in it: what was compared?")
	}
}

func untar(t *testing.T, r io.Reader) (map[string][]byte, []tar.Header) {
	t.Helper()
	out, headers := map[string][]byte{}, []tar.Header(nil)
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if err == io.EOF {
			return out, headers
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		out[h.Name], headers = data, append(headers, *h)
	}
}

func decode[T any](t *testing.T, data []byte) (v T) {
	t.Helper()
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatalf("%v in %s", err, data)
	}
	return v
}

// What Docker and what the OCI specification read lead to the same image, and
// every digest is that of what it names.
func TestArchive(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	said, data := packTree(t, tree(t, 0o022, time.Now()))
	have, _ := untar(t, bytes.NewReader(data))

	index := decode[struct{ Manifests []descriptor }](t, have["index.json"])
	at := index.Manifests[0]
	manifest := decode[struct {
		Config descriptor
		Layers []descriptor
	}](t, have[blobPath(at.Digest)])
	for _, d := range append(manifest.Layers, manifest.Config, at) {
		if blob := have[blobPath(d.Digest)]; digest(blob) != d.Digest || len(blob) != d.Size {
			t.Errorf("%s of %d bytes is %s of %d bytes", d.Digest, d.Size, digest(blob), len(blob))
		}
		if !strings.Contains(said, at.Digest) || !strings.Contains(said, manifest.Config.Digest) {
			t.Errorf("it was not said:\n%s", said)
		}
	}
	docker := decode[[]struct {
		Config           string
		RepoTags, Layers []string
	}](t, have["manifest.json"])
	if docker[0].Config != blobPath(manifest.Config.Digest) || docker[0].Layers[0] != blobPath(manifest.Layers[0].Digest) || docker[0].RepoTags[0] != "small:latest" {
		t.Errorf("manifest.json: %+v", docker)
	}

	z, err := gzip.NewReader(bytes.NewReader(have[blobPath(manifest.Layers[0].Digest)]))
	if err != nil {
		t.Fatal(err)
	}
	layer, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	conf := decode[imageConfig](t, have[blobPath(manifest.Config.Digest)])
	if got, want := conf.RootFS.DiffIDs, []string{digest(layer)}; !slices.Equal(got, want) {
		t.Errorf("diff IDs %v, want %v", got, want)
	}
	if conf.Created != "2023-11-14T22:13:20Z" || conf.OS != "linux" || conf.Architecture == "" {
		t.Errorf("created %s, for %s/%s", conf.Created, conf.OS, conf.Architecture)
	}
	want := config{
		User: "65532:65532", ExposedPorts: map[string]struct{}{"1/tcp": {}, "2/udp": {}}, Env: []string{"A=1", "B=two words"},
		Entrypoint: []string{"/bin/small"}, Cmd: []string{"x"}, Labels: map[string]string{"a.b": "c d", "v": "v1"}, StopSignal: "SIGTERM",
		Healthcheck: &healthcheck{[]string{"CMD", "/bin/small", "ok"}, 10 * time.Second, 3 * time.Second, 5 * time.Second, 3},
	}
	if diff := cmp.Diff(want, conf.Config); diff != "" {
		t.Errorf("config (-want +got):\n%s", diff)
	}

	var got []string
	_, headers := untar(t, bytes.NewReader(layer))
	for _, h := range headers {
		got = append(got, strings.Join([]string{h.Name, h.FileInfo().Mode().String()}, " "))
		if owner := strings.HasPrefix(h.Name, "var/lib/x/"); (h.Uid == 7 && h.Gid == 8) != owner || h.ModTime.Unix() != 1700000000 {
			t.Errorf("%s: of %d:%d, at %v", h.Name, h.Uid, h.Gid, h.ModTime)
		}
	}
	if diff := cmp.Diff([]string{
		"LICENSE -rw-r--r--", "bin/ drwxr-xr-x", "bin/small -rwxr-xr-x", "notes.txt -rw-r--r--",
		"var/ drwxr-xr-x", "var/lib/ drwxr-xr-x", "var/lib/x/ drwxr-xr-x", "var/lib/x/inside -rw-r--r--",
	}, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

// What cannot be built is said, and never left out.
func TestDockerfileErrors(t *testing.T) {
	for text, want := range map[string]string{
		"":                               "no FROM",
		"USER 1":                         "before FROM",
		"FROM alpine":                    "FROM scratch",
		"FROM scratch\nFROM scratch":     "only one",
		"FROM scratch\nRUN true":         "RUN is nothing",
		"FROM scratch\nENTRYPOINT /x":    "no shell",
		"FROM scratch\nHEALTHCHECK NONE": "without CMD",
		"FROM scratch\nHEALTHCHECK --x=1 CMD [\"a\"]": "unknown option",
		"FROM scratch\nCOPY --chmod=1 a /b":           "not known",
		"FROM scratch\nCOPY --chown=me a /b":          "want numbers",
		"FROM scratch\nCOPY a":                        "what and where to",
		"FROM scratch\nCOPY a b":                      "absolute",
		"FROM scratch\nCOPY a b /c":                   "folder",
		"FROM scratch\nLABEL a":                       "key=value",
		"FROM scratch\nUSER 1 \\":                     "nothing follows",
	} {
		_, _, err := parse(strings.NewReader(text), nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

func TestPackErrors(t *testing.T) {
	dir := tree(t, 0o022, time.Now())
	to := filepath.Join(dir, "x.tar")
	args := func(context string) []string {
		return []string{"pack", "--file", filepath.Join(dir, "Dockerfile"), "--context", context, "--binary", filepath.Join(dir, "small"), "--tag", "x:1", "-o", to}
	}
	if err := run(args(t.TempDir()), io.Discard); err == nil || !strings.Contains(err.Error(), "COPY") {
		t.Errorf("nothing to copy: %v", err)
	}
	if _, err := os.Stat(to); err == nil {
		t.Error("an archive of half an image was left")
	}
	t.Setenv("SOURCE_DATE_EPOCH", "today")
	if err := run(args(dir), io.Discard); err == nil || !strings.Contains(err.Error(), "seconds since 1970") {
		t.Errorf("a bad time: %v", err)
	}
	for _, args := range [][]string{nil, {"push"}, {"pack"}, {"sbom"}, {"sbom", filepath.Join(dir, "Dockerfile")}} {
		if err := run(args, io.Discard); err == nil {
			t.Errorf("%v: no error", args)
		}
	}
}

// The images of this repository: of nobody with rights, and with nothing in them
// that could give a shell.
func TestOurDockerfiles(t *testing.T) {
	for file, program := range map[string]string{"../Dockerfile": "/allocator", "../etcd/Dockerfile": "/etcd"} {
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		c, copies, err := parse(f, map[string]string{"VERSION": "v1", "REVISION": "abc", "CREATED": "2026-01-02T03:04:05Z"})
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if !regexp.MustCompile(`^[1-9]\d*:[1-9]\d*$`).MatchString(c.User) {
			t.Errorf("%s: user %q is no number, or root", file, c.User)
		}
		if !slices.Equal(c.Entrypoint, []string{program}) || c.Healthcheck == nil {
			t.Errorf("%s: entry point %v, health check %v", file, c.Entrypoint, c.Healthcheck)
		}
		for key, want := range map[string]string{"version": "v1", "revision": "abc", "created": "2026-01-02T03:04:05Z", "licenses": "Apache-2.0", "title": "", "source": "", "description": ""} {
			if got, ok := c.Labels["org.opencontainers.image."+key]; !ok || got == "" || want != "" && got != want {
				t.Errorf("%s: label %s is %q, want %q", file, key, got, want)
			}
		}
		if !slices.ContainsFunc(copies, func(cp copying) bool {
			return slices.ContainsFunc(cp.from, func(s string) bool { return strings.HasSuffix(s, ".spdx.json") })
		}) {
			t.Errorf("%s: the list of what is in it is not in it", file)
		}
	}
}

// What SPDX 2.3 demands of a document, and what it would be read for.
func TestSBOM(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "")
	id, err := identify(program(t, t.TempDir()), "")
	if err != nil {
		t.Fatal(err)
	}
	id.info.Deps = []*debug.Module{
		{Path: "example.org/z", Version: "v1.2.3+incompatible", Sum: "h1:x"},
		{Path: "example.org/A_b", Version: "v1", Replace: &debug.Module{Path: "example.org/fork", Version: "v2"}},
	}
	var first, second bytes.Buffer
	for _, w := range []io.Writer{&first, &second} {
		if err := writeSBOM(w, id); err != nil {
			t.Fatal(err)
		}
	}
	if first.String() != second.String() {
		t.Error("two lists of one binary differ")
	}
	d := decode[document](t, first.Bytes())
	if d.SPDXVersion != "SPDX-2.3" || d.DataLicense != "CC0-1.0" || d.SPDXID != "SPDXRef-DOCUMENT" || d.DocumentNamespace == "" || len(d.CreationInfo.Creators) == 0 {
		t.Errorf("document: %+v", d)
	}
	if _, err := time.Parse("2006-01-02T15:04:05Z", d.CreationInfo.Created); err != nil {
		t.Error(err)
	}
	form, ids, names := regexp.MustCompile(`^SPDXRef-[a-zA-Z0-9.-]+$`), map[string]bool{d.SPDXID: true}, map[string]string{}
	for _, p := range d.Packages {
		if !form.MatchString(p.SPDXID) || ids[p.SPDXID] || p.Name == "" || p.DownloadLocation == "" {
			t.Errorf("package %+v", p)
		}
		ids[p.SPDXID], names[p.Name] = true, p.VersionInfo
	}
	related := map[string]bool{}
	for _, r := range d.Relationships {
		if !ids[r.Element] || !ids[r.Related] {
			t.Errorf("%+v names what is not there", r)
		}
		related[r.Related] = true
	}
	if len(related) != len(d.Packages) {
		t.Errorf("%d packages, %d of them related to anything", len(d.Packages), len(related))
	}
	if names["small"] == "" || names["stdlib"] == "" || names["example.org/fork"] != "v2" || names["example.org/A_b"] != "" ||
		!strings.Contains(first.String(), `"pkg:golang/example.org/z@v1.2.3%2Bincompatible"`) {
		t.Errorf("missing among %v", names)
	}
}

// The kubelet asks containerd for the full name, whatever a manifest says.
func TestFullName(t *testing.T) {
	for tag, want := range map[string]string{
		"allocator:latest":                   "docker.io/library/allocator:latest",
		"flakelease/allocator:1":             "docker.io/flakelease/allocator:1",
		"registry.example.org/allocator:1":   "registry.example.org/allocator:1",
		"localhost/allocator:1":              "localhost/allocator:1",
		"registry:5000/flakelease/allocator": "registry:5000/flakelease/allocator",
	} {
		if got := fullName(tag); got != want {
			t.Errorf("%s is %s, want %s", tag, got, want)
		}
	}
}
