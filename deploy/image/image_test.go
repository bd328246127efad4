package main

import (
	"archive/tar"
	"bytes"
	"errors"
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
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"github.com/google/licenseclassifier/v2/assets"
	spdxjson "github.com/spdx/tools-golang/json"
	spdx "github.com/spdx/tools-golang/spdx/v2/v2_3"

	"github.com/flakelease/allocator/chaos/fatal"
)

// buildSmall returns a small program to pack.
var buildSmall = sync.OnceValues(func() ([]byte, error) {
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

func writeSmall(t *testing.T, dir string) string {
	t.Helper()
	data, err := buildSmall()
	fatal.If(t, err)
	path := filepath.Join(dir, "small")
	fatal.If(t, os.WriteFile(path, data, 0o700))
	return path
}

const smallDockerfile = `# comment
FROM scratch
ARG VERSION=none
LABEL a.b="c d" \
      v="${VERSION}"
COPY LICENSE notes.txt /
COPY small /bin/small
COPY --chown=7:8 data/ /var/lib/x/
USER 65532:65532
EXPOSE 1/tcp 2/udp
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s --retries=3 CMD ["/bin/small", "ok"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["/bin/small"]
`

// writeContext makes a build context: the same files in a new directory, with
// other modes and times.
func writeContext(t *testing.T, umask os.FileMode, at time.Time) string {
	t.Helper()
	dir := t.TempDir()
	writeSmall(t, dir)
	for name, text := range map[string]string{"LICENSE": "free", "notes.txt": "notes", "data/inside": "x", "Dockerfile": smallDockerfile} {
		path := filepath.Join(dir, name)
		fatal.If(t, os.MkdirAll(filepath.Dir(path), 0o755&^umask))
		fatal.If(t, os.WriteFile(path, []byte(text), 0o666&^umask))
		fatal.If(t, os.Chtimes(path, at, at))
	}
	return dir
}

// packContext packs the image of a context, created at the given time, and returns
// the archive and what was printed.
func packContext(t *testing.T, dir string, created time.Time) (archive, printed string) {
	t.Helper()
	p, err := readProgram(filepath.Join(dir, "small"), "v1")
	fatal.If(t, err)
	p.created = created
	var out bytes.Buffer
	archive = filepath.Join(dir, "image.tar")
	fatal.If(t, pack(filepath.Join(dir, "Dockerfile"), dir, p, "small:latest", archive, &out))
	return archive, out.String()
}

func TestArchiveDependsOnlyOnContentAndCommitTime(t *testing.T) {
	read := func(archive, _ string) []byte {
		data, err := os.ReadFile(archive)
		fatal.If(t, err)
		return data
	}
	commit := time.Unix(1.7e9, 0).UTC()
	first := read(packContext(t, writeContext(t, 0o022, time.Unix(1e9, 0)), commit))
	second := read(packContext(t, writeContext(t, 0o077, time.Unix(17e8, 0)), commit))
	if !bytes.Equal(first, second) {
		t.Error("two archives of the same content differ")
	}
	if other := read(packContext(t, writeContext(t, 0o022, time.Unix(1e9, 0)), commit.Add(time.Second))); bytes.Equal(first, other) {
		t.Error("the archive of another commit time is the same")
	}
}

// The archive is what docker load reads: its digests are those of its content, the
// digest that was printed is that of the image, and the configuration and files are
// those of the Dockerfile.
func TestArchive(t *testing.T) {
	created := time.Unix(1.7e9, 0).UTC()
	archive, printed := packContext(t, writeContext(t, 0o022, time.Now()), created)
	image, err := tarball.ImageFromPath(archive, nil)
	fatal.If(t, err)
	if err := validate.Image(image); err != nil {
		t.Error(err)
	}
	if digest, err := image.Digest(); err != nil || !strings.Contains(printed, digest.String()) {
		t.Errorf("printed %q, want digest %v: %v", printed, digest, err)
	}
	manifest, err := tarball.LoadManifest(func() (io.ReadCloser, error) { return os.Open(archive) })
	if err != nil || len(manifest) != 1 || !slices.Equal(manifest[0].RepoTags, []string{"small:latest"}) {
		t.Errorf("manifest.json: %+v, %v", manifest, err)
	}

	file, err := image.ConfigFile()
	fatal.If(t, err)
	if !file.Created.Equal(created) || file.OS != "linux" || file.Architecture == "" {
		t.Errorf("created %s, for %s/%s", file.Created, file.OS, file.Architecture)
	}
	if diff := cmp.Diff(v1.Config{
		User: "65532:65532", ExposedPorts: map[string]struct{}{"1/tcp": {}, "2/udp": {}},
		Entrypoint: []string{"/bin/small"}, Labels: map[string]string{"a.b": "c d", "v": "v1"}, StopSignal: "SIGTERM",
		Healthcheck: &v1.HealthConfig{Test: []string{"CMD", "/bin/small", "ok"}, Interval: 10 * time.Second, Timeout: 3 * time.Second, StartPeriod: 5 * time.Second, Retries: 3},
	}, file.Config); diff != "" {
		t.Errorf("config (-want +got):\n%s", diff)
	}

	layers, err := image.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers, %v", len(layers), err)
	}
	content, err := layers[0].Uncompressed()
	fatal.If(t, err)
	var got []string
	for r := tar.NewReader(content); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		fatal.If(t, err)
		got = append(got, h.Name+" "+h.FileInfo().Mode().String())
		if owned := strings.HasPrefix(h.Name, "var/lib/x/"); (h.Uid == 7 && h.Gid == 8) != owned || !h.ModTime.Equal(created) {
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

// What cannot be carried out is an error, and never left out.
func TestDockerfileErrors(t *testing.T) {
	for text, want := range map[string]string{
		"":                               "no instructions",
		"USER 1":                         "no build stage",
		"FROM alpine":                    "FROM scratch",
		"FROM scratch\nFROM scratch":     "want one",
		"ARG A=1\nFROM scratch":          "want one",
		"FROM scratch\nRUN true":         "unsupported",
		"FROM scratch\nENV A=1":          "unsupported",
		"FROM scratch\nENTRYPOINT /x":    "unsupported",
		"FROM scratch\nEXPOSE 1":         "unsupported",
		"FROM scratch\nHEALTHCHECK NONE": "unsupported",
		"FROM scratch\nHEALTHCHECK --x=1 CMD [\"a\"]": "unknown flag",
		"FROM scratch\nHEALTHCHECK CMD a":             "unsupported",
		"FROM scratch\nCOPY --chmod=1 a /b":           "unsupported",
		"FROM scratch\nCOPY --from=other a /b":        "unsupported",
		"FROM scratch\nCOPY a":                        "at least two arguments",
		"FROM scratch\nCOPY a b":                      "unsupported",
		"FROM scratch\nCOPY a b /c":                   "unsupported",
		"FROM scratch\nCOPY <<a /c\na\n":              "unsupported",
		"FROM scratch\nLABEL a":                       "two arguments",
	} {
		file := filepath.Join(t.TempDir(), "Dockerfile")
		fatal.If(t, os.WriteFile(file, []byte(text), 0o600))
		if _, _, err := readDockerfile(file, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

func TestPackErrors(t *testing.T) {
	dir := writeContext(t, 0o022, time.Now())
	named := filepath.Join(dir, "Dockerfile.named")
	fatal.If(t, os.WriteFile(named, []byte("FROM scratch\nCOPY --chown=me small /"), 0o600))
	link := writeContext(t, 0o022, time.Now())
	fatal.If(t, os.Symlink("inside", filepath.Join(link, "data", "link")))
	for _, tc := range []struct{ file, context, tag, want string }{
		{filepath.Join(dir, "Dockerfile"), t.TempDir(), "x:1", "no such file"},
		{filepath.Join(dir, "Dockerfile"), link, "x:1", "neither a file nor a directory"},
		{named, dir, "x:1", "want UID:GID"},
		{filepath.Join(dir, "Dockerfile"), dir, "X:1", "repository"},
	} {
		to := filepath.Join(t.TempDir(), "x.tar")
		err := run([]string{"pack", "--file", tc.file, "--context", tc.context, "--binary", filepath.Join(dir, "small"), "--tag", tc.tag, "-o", to}, io.Discard)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("got %v, want %q", err, tc.want)
		}
		if _, err := os.Stat(to); err == nil {
			t.Errorf("%s: left an incomplete archive", tc.want)
		}
	}
	for _, args := range [][]string{nil, {"push"}, {"pack"}, {"sbom"}, {"sbom", filepath.Join(dir, "Dockerfile")}, {"notice"}, {"notice", filepath.Join(dir, "Dockerfile")}} {
		if err := run(args, io.Discard); err == nil {
			t.Errorf("%v: no error", args)
		}
	}
}

// The images of this repository run as an unprivileged user, have all labels and
// carry a list of what is in them.
func TestRepositoryDockerfiles(t *testing.T) {
	for _, file := range []string{"../Dockerfile", "../dev/Dockerfile"} {
		c, copies, err := readDockerfile(file, map[string]string{"VERSION": "v1", "REVISION": "abc", "CREATED": "2026-01-02T03:04:05Z"})
		fatal.If(t, err)
		if !regexp.MustCompile(`^[1-9]\d*:[1-9]\d*$`).MatchString(c.User) {
			t.Errorf("%s: user %q is not a number, or is root", file, c.User)
		}
		if !slices.Equal(c.Entrypoint, []string{"/allocator"}) || c.Healthcheck == nil {
			t.Errorf("%s: entry point %v, health check %v", file, c.Entrypoint, c.Healthcheck)
		}
		for key, want := range map[string]string{"version": "v1", "revision": "abc", "created": "2026-01-02T03:04:05Z", "licenses": "Apache-2.0", "title": "", "source": "", "description": ""} {
			if got := c.Labels["org.opencontainers.image."+key]; got == "" || want != "" && got != want {
				t.Errorf("%s: label %s is %q, want %q", file, key, got, want)
			}
		}
		var sources []string
		for _, c := range copies {
			sources = append(sources, c.SourcePaths...)
		}
		for _, want := range []string{"LICENSE", "NOTICE", "allocator.spdx.json"} {
			if !slices.Contains(sources, want) {
				t.Errorf("%s: copies %v, without %s", file, sources, want)
			}
		}
	}
}

// twoModules returns modules that are in a module cache of their own.
func twoModules(t *testing.T) []*debug.Module {
	t.Helper()
	l, err := newLicenses()
	fatal.If(t, err)
	bsd, err := os.ReadFile(filepath.Join(l.goroot, "LICENSE"))
	fatal.If(t, err)
	mpl, err := assets.ReadLicenseFile("License/MPL-2.0/license.txt")
	fatal.If(t, err)
	cache := t.TempDir()
	t.Setenv("GOMODCACHE", cache)
	for name, text := range map[string][]byte{
		"z@v1.2.3+incompatible/LICENSE": bsd, "z@v1.2.3+incompatible/NOTICE.txt": []byte("Made by Z."), "z@v1.2.3+incompatible/license.go": []byte("package z"),
		"fork@v2/COPYING": mpl,
	} {
		path := filepath.Join(cache, "example.org", name)
		fatal.If(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, text, 0o600)))
	}
	return []*debug.Module{
		{Path: "example.org/z", Version: "v1.2.3+incompatible", Sum: "h1:x"},
		{Path: "example.org/A_b", Version: "v1", Replace: &debug.Module{Path: "example.org/fork", Version: "v2"}},
	}
}

// A notice has every text once, names the modules that it is of, and says where source
// that has to be offered is. A module without a known license is an error.
func TestNotice(t *testing.T) {
	p, err := readProgram(writeSmall(t, t.TempDir()), "")
	fatal.If(t, err)
	p.info.Deps = twoModules(t)
	var out bytes.Buffer
	fatal.If(t, writeNotice(&out, []program{p, p}))
	stdlib := "stdlib@" + strings.TrimPrefix(p.info.GoVersion, "go")
	for _, want := range []string{
		"example.org/fork@v2                MPL-2.0\n", "example.org/z@v1.2.3+incompatible  BSD-3-Clause\n", "\ngo mod download -json example.org/fork@v2\n",
		"\nexample.org/z@v1.2.3+incompatible\n" + stdlib + ":\n\nCopyright", "\nMade by Z.\n", "Mozilla Public License Version 2.0",
	} {
		if strings.Count(out.String(), want) != 1 {
			t.Errorf("%d times %q in:\n%.1000s", strings.Count(out.String(), want), want, &out)
		}
	}
	if strings.Contains(out.String(), "package z") {
		t.Error("source is taken for a license")
	}
	for _, m := range []*debug.Module{{Path: "example.org/gone", Version: "v1"}, {Path: "example.org/bare", Version: "v1"}} {
		fatal.If(t, os.MkdirAll(filepath.Join(os.Getenv("GOMODCACHE"), "example.org/bare@v1"), 0o700))
		p.info.Deps = []*debug.Module{m}
		if err := errors.Join(writeNotice(io.Discard, []program{p}), writeSBOM(io.Discard, p)); err == nil || strings.Count(err.Error(), m.Path) != 2 {
			t.Errorf("%s: %v", m.Path, err)
		}
	}
}

// An SBOM has what SPDX 2.3 demands of a document, and names every module once, with its
// license.
func TestSBOM(t *testing.T) {
	path := writeSmall(t, t.TempDir())
	script, err := os.ReadFile("../../internal/server/console/static/uplot.js")
	fatal.If(t, err)
	binary, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	fatal.If(t, err)
	if _, err := binary.Write(script); err != nil { // as if it were embedded
		t.Fatal(err)
	}
	fatal.If(t, binary.Close())
	p, err := readProgram(path, "")
	fatal.If(t, err)
	p.info.Deps = twoModules(t)
	var first, second bytes.Buffer
	for _, w := range []io.Writer{&first, &second} {
		fatal.If(t, writeSBOM(w, p))
	}
	if first.String() != second.String() {
		t.Error("two SBOMs of one binary differ")
	}
	var d spdx.Document
	fatal.If(t, spdxjson.ReadInto(bytes.NewReader(first.Bytes()), &d))
	if d.SPDXVersion != "SPDX-2.3" || d.DataLicense != "CC0-1.0" || d.SPDXIdentifier != "DOCUMENT" || d.DocumentNamespace == "" || len(d.CreationInfo.Creators) == 0 {
		t.Errorf("document: %+v", d)
	}
	if _, err := time.Parse("2006-01-02T15:04:05Z", d.CreationInfo.Created); err != nil {
		t.Error(err)
	}
	form, ids, versions := regexp.MustCompile(`^[a-zA-Z0-9.-]+$`), map[string]bool{"DOCUMENT": true}, map[string]string{}
	for _, p := range d.Packages {
		id := string(p.PackageSPDXIdentifier)
		if !form.MatchString(id) || ids[id] || p.PackageName == "" || p.PackageDownloadLocation == "" || p.FilesAnalyzed {
			t.Errorf("package %+v", p)
		}
		ids[id], versions[p.PackageName] = true, p.PackageVersion
	}
	related := map[string]bool{}
	for _, r := range d.Relationships {
		from, to := string(r.RefA.ElementRefID), string(r.RefB.ElementRefID)
		if !ids[from] || !ids[to] {
			t.Errorf("%+v refers to a package that is not listed", r)
		}
		related[to] = true
	}
	if len(related) != len(d.Packages) {
		t.Errorf("%d packages, %d of them in a relationship", len(d.Packages), len(related))
	}
	for _, p := range d.Packages[1:] {
		if want := map[string]string{"example.org/fork": "MPL-2.0", "example.org/z": "BSD-3-Clause", "stdlib": "BSD-3-Clause", "uplot": "MIT"}[p.PackageName]; p.PackageLicenseDeclared != want {
			t.Errorf("%s: license %q, want %q", p.PackageName, p.PackageLicenseDeclared, want)
		}
	}
	if versions["small"] == "" || versions["stdlib"] == "" || versions["example.org/fork"] != "v2" || versions["example.org/A_b"] != "" || versions["uplot"] == "" ||
		!strings.Contains(first.String(), `"pkg:golang/example.org/z@v1.2.3%2Bincompatible"`) {
		t.Errorf("versions: %v", versions)
	}
}
