package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	testresult "github.com/in-toto/attestation/go/predicates/test_result/v0"
	intoto "github.com/in-toto/attestation/go/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"helm.sh/helm/v3/pkg/chart/loader"
	helmregistry "helm.sh/helm/v3/pkg/registry"

	"github.com/flakelease/allocator/chaos/fatal"
)

var commitTime = time.Unix(1.7e9, 0).UTC()

// fakeWork makes a directory of work whose programs are only a few bytes. Modes and times
// are others each time.
func fakeWork(t *testing.T, at time.Time) string {
	t.Helper()
	work := t.TempDir()
	for _, platform := range platforms {
		dir := filepath.Join(work, platform, "allocator")
		fatal.If(t, os.MkdirAll(dir, 0o755))
		for file, mode := range map[string]os.FileMode{"allocator": 0o700, "LICENSE": 0o600, "NOTICE": 0o644, "allocator.spdx.json": 0o640} {
			path := filepath.Join(dir, file)
			fatal.If(t, os.WriteFile(path, []byte(platform+" "+file), mode))
			fatal.If(t, os.Chtimes(path, at, at))
		}
	}
	for _, arch := range []string{"amd64", "arm64"} {
		for _, name := range []string{"allocator", "dev"} {
			writeDocker(t, filepath.Join(work, "linux-"+arch, name+".tar"), arch, name)
		}
	}
	return work
}

// writeDocker writes an archive of one layer as deploy/image does.
func writeDocker(t *testing.T, file, arch, content string) {
	t.Helper()
	one, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: arch, RootFS: v1.RootFS{Type: "layers"}})
	fatal.If(t, err)
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	fatal.If(t, w.WriteHeader(&tar.Header{Name: content, Mode: 0o755, Size: 1}))
	if _, err := w.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	fatal.If(t, w.Close())
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layer.Bytes())), nil })
	fatal.If(t, err)
	one, err = mutate.Append(one, mutate.Addendum{Layer: l, History: v1.History{CreatedBy: "deploy/image"}})
	fatal.If(t, err)
	tag, err := name.NewTag("x:latest")
	fatal.If(t, err)
	fatal.If(t, tarball.WriteToFile(file, tag, one))
}

// packed packs a release of fake programs, in the root of the repository.
func packed(t *testing.T, at time.Time) (dir, printed string) {
	t.Helper()
	work := fakeWork(t, at)
	dir = t.TempDir()
	t.Chdir(root)
	var out bytes.Buffer
	fatal.If(t, run([]string{"pack", "--version", "0.1.0-rc.1", "--work", work, "--out", dir, "--time", commitTime.Format(time.RFC3339)}, &out))
	return dir, out.String()
}

// root is the root of the repository, whichever directory a test is in.
var root = func() string {
	dir, err := filepath.Abs("../..")
	if err != nil {
		panic(err)
	}
	return dir
}()

// A release has all of its files, and a second one of the same commit has the same bytes,
// whatever the modes and times of what it is made of.
func TestPack(t *testing.T) {
	dir, printed := packed(t, time.Unix(1e9, 0))
	sums := checkSums(t, dir)
	want := []string{
		"SHA256SUMS",
		"allocator-0.1.0-rc.1.tgz", "allocator-0.1.0~rc.1-1.aarch64.rpm", "allocator-0.1.0~rc.1-1.x86_64.rpm",
		"allocator-dev_0.1.0-rc.1_images.oci.tar",
		"allocator_0.1.0-rc.1_chart.oci.tar",
		"allocator_0.1.0-rc.1_darwin_arm64.spdx.json", "allocator_0.1.0-rc.1_darwin_arm64.tar.gz",
		"allocator_0.1.0-rc.1_images.oci.tar",
		"allocator_0.1.0-rc.1_linux_amd64.spdx.json", "allocator_0.1.0-rc.1_linux_amd64.tar.gz",
		"allocator_0.1.0-rc.1_linux_arm64.spdx.json", "allocator_0.1.0-rc.1_linux_arm64.tar.gz",
		"allocator_0.1.0~rc.1_amd64.deb", "allocator_0.1.0~rc.1_arm64.deb",
		"flakelease-allocator-0.1.0-rc.1.tgz", "flakelease_allocator-0.1.0rc1-py3-none-any.whl", "flakelease_allocator-0.1.0rc1.tar.gz",
		"images.json",
	}
	if got := names(t, dir); !slices.Equal(got, want) {
		t.Errorf("files (-want +got):\n%s", cmp.Diff(want, got))
	}
	if !strings.Contains(printed, "no archive of the site") {
		t.Errorf("it does not say that there is no site: %s", printed)
	}
	again, _ := packed(t, time.Unix(17e8, 0))
	if diff := cmp.Diff(sums, checkSums(t, again)); diff != "" {
		t.Errorf("a second release differs:\n%s", diff)
	}

	files := unpack(t, filepath.Join(dir, "allocator_0.1.0-rc.1_linux_arm64.tar.gz"))
	for _, want := range []string{"allocator -rwxr-xr-x", "LICENSE -rw-r--r--", "NOTICE -rw-r--r--", "allocator.spdx.json -rw-r--r--", "systemd/allocator.service -rw-r--r--"} {
		if !slices.Contains(files, want) {
			t.Errorf("the archive has %q, without %q", files, want)
		}
	}
	c, err := loader.LoadFile(filepath.Join(dir, "allocator-0.1.0-rc.1.tgz"))
	if err != nil || c.Metadata.Version != "0.1.0-rc.1" || c.AppVersion() != "0.1.0-rc.1" || len(c.Templates) == 0 {
		t.Errorf("the chart: %v, %+v", err, c)
	}
}

// The packages start the program where they put it, and hold no name of this machine.
func TestPackages(t *testing.T) {
	dir, _ := packed(t, time.Now())
	deb := filepath.Join(dir, "allocator_0.1.0~rc.1_amd64.deb")
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip("not run: dpkg-deb is not installed")
	}
	to := t.TempDir()
	if out, err := exec.Command("dpkg-deb", "--raw-extract", deb, to).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for name, command := range map[string]string{"allocator": "serve", "allocator-agent": "agent", "allocator-sql": "sql run", "allocator-doctor": "doctor"} {
		unit, err := os.ReadFile(filepath.Join(to, "usr/lib/systemd/system", name+".service"))
		if err != nil || !bytes.Contains(unit, []byte("\nExecStart=/usr/bin/allocator "+command+" ")) || bytes.Contains(unit, []byte("/usr/local")) {
			t.Errorf("%v: the unit is\n%s", err, unit)
		}
	}
	fields, err := exec.Command("dpkg-deb", "--field", deb, "Package", "Version", "Architecture", "Recommends").Output()
	if want := "Package: allocator\nVersion: 0.1.0~rc.1\nArchitecture: amd64\nRecommends: time-daemon\n"; err != nil || string(fields) != want {
		t.Errorf("got %s, %v, want %s", fields, err, want)
	}
	if conf, err := os.ReadFile(filepath.Join(to, "DEBIAN/conffiles")); err != nil || strings.TrimSpace(string(conf)) != "/etc/allocator/allocator.yaml" {
		t.Errorf("settings that upgrades keep: %q, %v", conf, err)
	}
	host, err := os.Hostname()
	fatal.If(t, err)
	if rpm, err := os.ReadFile(filepath.Join(dir, "allocator-0.1.0~rc.1-1.x86_64.rpm")); err != nil || !bytes.Contains(rpm, []byte("reproducible\x00")) || len(host) > 3 && bytes.Contains(rpm, []byte(host+"\x00")) {
		t.Errorf("the rpm has the name of this machine: %v", err)
	}
}

// Images and chart are pushed to a registry that the test starts, and pulled back by others:
// the digests are those of the release, both architectures are there, and Helm takes the chart.
func TestPush(t *testing.T) {
	dir := *releaseDir
	if dir == "" {
		dir, _ = packed(t, time.Now())
	}
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	where := strings.TrimPrefix(server.URL, "http://") + "/flakelease"
	var out bytes.Buffer
	for range 2 { // The second time everything is there.
		out.Reset()
		fatal.If(t, run([]string{"push", "--dir", dir, "--insecure", where}, &out))
	}
	images, err := readImages(dir)
	if err != nil || len(images) != 3 {
		t.Fatalf("%d images, %v", len(images), err)
	}
	for _, i := range images {
		ref, err := name.NewTag(where+"/"+i.Name+":"+i.Tag, name.Insecure)
		fatal.If(t, err)
		got, err := remote.Get(ref)
		if err != nil || got.Digest.String() != i.Digest || !strings.Contains(out.String(), i.Name+":"+i.Tag+"@"+i.Digest) {
			t.Errorf("%s: %v, got %+v, printed %s", ref, err, got, &out)
			continue
		}
		if i.Platforms == nil {
			pullChart(t, where, i.Tag)
			continue
		}
		index, err := got.ImageIndex()
		fatal.If(t, err)
		if err := validate.Index(index); err != nil {
			t.Errorf("%s: %v", ref, err)
		}
		for platform, digest := range i.Platforms {
			p, err := v1.ParsePlatform(platform)
			fatal.If(t, err)
			one, err := remote.Image(ref, remote.WithPlatform(*p))
			fatal.If(t, err)
			if d, err := one.Digest(); err != nil || d.String() != digest {
				t.Errorf("%s for %s: %v, %v, want %s", ref, platform, d, err, digest)
			}
			if m, err := one.MediaType(); err != nil || m != types.OCIManifestSchema1 {
				t.Errorf("%s is %s, %v", ref, m, err)
			}
		}
	}
}

func pullChart(t *testing.T, where, version string) {
	t.Helper()
	c, err := helmregistry.NewClient(helmregistry.ClientOptPlainHTTP(), helmregistry.ClientOptWriter(io.Discard))
	fatal.If(t, err)
	got, err := c.Pull(where + "/charts/allocator:" + version)
	fatal.If(t, err)
	chart, err := loader.LoadArchive(bytes.NewReader(got.Chart.Data))
	if err != nil || chart.Name() != "allocator" || chart.Metadata.Version != version || got.Chart.Meta.Version != version {
		t.Errorf("Helm pulled %+v, %v", got.Chart.Meta, err)
	}
}

// A layout that was damaged, or that is another, is not pushed.
func TestPushErrors(t *testing.T) {
	dir, _ := packed(t, time.Now())
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	where := strings.TrimPrefix(server.URL, "http://") + "/x"
	push := func(change func(images []image)) error {
		images, err := readImages(dir)
		fatal.If(t, err)
		change(images)
		other := t.TempDir()
		fatal.If(t, os.CopyFS(other, os.DirFS(dir)))
		fatal.If(t, writeJSON(filepath.Join(other, imagesFile), images))
		return run([]string{"push", "--dir", other, "--insecure", where}, io.Discard)
	}
	for what, change := range map[string]func([]image){
		"could not find":    func(i []image) { i[0].Digest = "sha256:" + strings.Repeat("0", 64) },
		"no such file":      func(i []image) { i[1].File = "gone" },
		"is no OCI layout":  func(i []image) { i[1].File = outside(t, dir) },
		"invalid reference": func(i []image) { i[0].Name = "UPPER" },
	} {
		err := push(change)
		if err == nil || !strings.Contains(err.Error(), what) && !strings.Contains(err.Error(), "repository can only contain") {
			t.Errorf("got %v, want %q", err, what)
		}
	}
	if err := run([]string{"push", "--dir", t.TempDir(), where}, io.Discard); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a directory without a release: %v", err)
	}
}

// outside writes an archive whose file would be unpacked outside of its directory.
func outside(t *testing.T, dir string) string {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	fatal.If(t, errors.Join(w.WriteHeader(&tar.Header{Name: "../x", Mode: 0o644, Size: 0, Typeflag: tar.TypeReg}), w.Close()))
	fatal.If(t, os.WriteFile(filepath.Join(dir, "outside.tar"), b.Bytes(), 0o644))
	return "outside.tar"
}

func TestCommands(t *testing.T) {
	for _, args := range [][]string{
		nil, {"x"}, {"pack"}, {"pack", "--work", "x", "--out", "y"}, {"pack", "--version", "v0.1.0", "--work", "x", "--out", "y"},
		{"pack", "--version", "0.1", "--work", "x", "--out", "y"}, {"pack", "--version", "0.1.0+x", "--work", "x", "--out", "y"},
		{"pack", "--version", "0.1.0", "--work", "x", "--out", t.TempDir(), "--time", "now"}, {"push"}, {"push", "--dir", "x"}, {"evidence"}, {"list"},
	} {
		if err := run(args, io.Discard); err == nil {
			t.Errorf("%q: no error", args)
		}
	}
}

// What a suite left becomes a statement that the library of in-toto accepts, on the digests of
// the image; what did not run gets none, and what failed makes the command fail.
func TestEvidence(t *testing.T) {
	dir, _ := packed(t, time.Now())
	in := t.TempDir()
	put := func(name, text string) string {
		path := filepath.Join(in, name)
		fatal.If(t, os.WriteFile(path, []byte(text), 0o644))
		return path
	}
	commit := strings.Repeat("ab", 20)
	args := []string{
		"evidence", "--dir", dir, "--commit", commit,
		"--chaos", put("results.json", `{"verdict":"unknown","command":"chaos run","ids":7,"seed":18446744073709551615,"took_ms":61000,"danger":{"zombies":3},
			"faults":[{"fault":"kill","verdict":"pass"},{"fault":"vm-pause","verdict":"unknown"},{"fault":"clock-back","verdict":"not run"}],
			"checks":[{"check":"unique","verdict":"pass"}]}`),
		"--model", put("model.log", "ok  base  states=17 time=1s  (-DMAXREQ=4)\nok  mutant no-seal: caught\nok  probe seen: reached\n3 passed, 0 failed\n"),
		"--bugs", put("bugs.md", "# Planted bugs\n\n| bug | breaks | incidents | kind | tier | seconds | found by | message |\n|---|\n"+
			"| **guard-off**: it goes back | I1 | T06 | unit | test | 1.5 | `TestX` | no |\n|  |  |  | sim | check | 2.0 | `TestSim`, seed 4 | no |\n"),
	}
	var out bytes.Buffer
	fatal.If(t, run(args, &out))
	images, err := readImages(dir)
	fatal.If(t, err)
	for suite, want := range map[string]struct {
		result                 string
		passed, warned, failed []string
	}{
		"chaos":        {"WARNED", []string{"claim unique", "fault kill"}, []string{"the whole run", "fault vm-pause"}, nil},
		"model":        {"PASSED", []string{"base", "mutant no-seal", "probe seen"}, nil, nil},
		"planted-bugs": {"PASSED", []string{"guard-off by unit", "guard-off by sim"}, nil, nil},
	} {
		s, r := readStatement(t, filepath.Join(dir, "evidence-"+suite+".json"))
		if s.Subject[0].Digest["sha256"] != strings.TrimPrefix(images[0].Digest, "sha256:") || len(s.Subject) != 3 {
			t.Errorf("%s is about %v", suite, s.Subject)
		}
		if r.Result != want.result || !slices.Equal(r.PassedTests, want.passed) || !slices.Equal(r.WarnedTests, want.warned) || !slices.Equal(r.FailedTests, want.failed) {
			t.Errorf("%s: %v", suite, r)
		}
		if len(r.Configuration) != 1 || r.Configuration[0].Digest["gitCommit"] != commit {
			t.Errorf("%s: configuration %v", suite, r.Configuration)
		}
		predicate, err := os.ReadFile(filepath.Join(dir, "predicate-"+suite+".json"))
		if err != nil || !json.Valid(predicate) || bytes.Contains(predicate, []byte("_type")) {
			t.Errorf("%s: the predicate alone is %s, %v", suite, predicate, err)
		}
	}
	if _, r := readStatement(t, filepath.Join(dir, "evidence-chaos.json")); fmt.Sprint(r.Configuration[0].Annotations.AsMap()["danger"]) != "map[zombies:3]" || r.Configuration[0].Annotations.AsMap()["seed"] != "18446744073709551615" {
		t.Errorf("numbers of the run: %v", r.Configuration[0].Annotations)
	}
	if !strings.Contains(out.String(), "simulation    no statement: it did not run") {
		t.Errorf("printed %s", &out)
	}
	checkSums(t, dir)

	failed := put("campaign.json", `{"First":5,"Next":69,"Simulated":3600000000000,"Played":{"everything":40,"tampered":24},"Failures":[{"Seed":9,"Mode":"tampered","Violation":"I1: twice"}]}`)
	err = run([]string{"evidence", "--dir", dir, "--commit", commit, "--sim", failed}, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "seed 9 of mode tampered: I1: twice") {
		t.Errorf("a failed seed: %v", err)
	}
	if _, r := readStatement(t, filepath.Join(dir, "evidence-simulation.json")); r.Result != "FAILED" || !slices.Equal(r.PassedTests, []string{"mode everything, 40 seeds"}) {
		t.Errorf("a failed seed: %v", r)
	}

	for flag, text := range map[string]string{
		"--chaos": `{}`, "--sim": `{"Played":{}}`, "--model": "ok  base\n5 passed, 0 failed\n", "--bugs": "| one | two |\n",
	} {
		if err := run([]string{"evidence", "--dir", dir, "--commit", commit, flag, put("bad", text)}, io.Discard); err == nil {
			t.Errorf("%s %q: no error", flag, text)
		}
	}
}

// readStatement reads a statement by in-toto's own types, which refuse other fields.
func readStatement(t *testing.T, file string) (*intoto.Statement, *testresult.TestResult) {
	t.Helper()
	text, err := os.ReadFile(file)
	fatal.If(t, err)
	var s intoto.Statement
	if err := protojson.Unmarshal(text, &s); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	if err := s.Validate(); err != nil {
		t.Errorf("%s: %v", file, err)
	}
	if s.PredicateType != "https://in-toto.io/attestation/test-result/v0.1" {
		t.Errorf("%s: %s", file, s.PredicateType)
	}
	inner, err := protojson.Marshal(s.Predicate)
	fatal.If(t, err)
	var r testresult.TestResult
	if err := protojson.Unmarshal(inner, &r); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return &s, &r
}

// FuzzEvidence: whatever a suite left, reading it ends in an error or in a verdict.
func FuzzEvidence(f *testing.F) {
	for _, seed := range []string{
		`{"verdict":"pass","checks":[{"check":"unique","verdict":"pass"}]}`, `{"Played":{"everything":1}}`,
		"ok  base\n1 passed, 0 failed\n", "| **a**: b | I1 |  | unit | test | 1.0 | `T` | x |\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		for _, read := range []func([]byte) (results, map[string]any, error){readChaos, readCampaign, readModel, readBugs} {
			r, _, err := read(in)
			if n := len(r.Passed) + len(r.Warned) + len(r.Failed); err == nil && n == 0 {
				t.Errorf("no test and no error: %q", in)
			}
		}
	})
}

// The files of a whole release, if the test is given one.
func TestRelease(t *testing.T) {
	if *releaseDir == "" {
		t.Skip("not run: make release DO=snapshot and make release DO=test do it")
	}
	checkSums(t, *releaseDir)
	images, err := readImages(*releaseDir)
	if err != nil || len(images) != 3 {
		t.Fatalf("%+v, %v", images, err)
	}
	v := images[0].Tag
	for _, want := range []string{
		"allocator_" + v + "_linux_amd64.tar.gz", "allocator_" + v + "_linux_arm64.tar.gz", "allocator_" + v + "_darwin_arm64.tar.gz",
		"allocator-" + v + ".tgz",
	} {
		if _, err := os.Stat(filepath.Join(*releaseDir, want)); err != nil {
			t.Error(err)
		}
	}
	dir := t.TempDir()
	if out, err := exec.Command("tar", "-xzf", filepath.Join(*releaseDir, "allocator_"+v+"_linux_amd64.tar.gz"), "-C", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := exec.Command(filepath.Join(dir, "allocator"), "dev", "--help").CombinedOutput(); err != nil || !bytes.Contains(out, []byte("starts an etcd")) {
		t.Errorf("dev: %v\n%s", err, out)
	}
}

// checkSums compares SHA256SUMS with the files and returns it, by file.
func checkSums(t *testing.T, dir string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS"))
	fatal.If(t, err)
	sums := map[string]string{}
	for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		sum, file, ok := strings.Cut(line, "  ")
		got, err := sumOf(filepath.Join(dir, file))
		if !ok || err != nil || got != sum {
			t.Errorf("%q: the file has %s, %v", line, got, err)
		}
		sums[file] = sum
	}
	if n := len(names(t, dir)) - 1; len(sums) != n {
		t.Errorf("SHA256SUMS has %d of %d files", len(sums), n)
	}
	return sums
}

func names(t *testing.T, dir string) (out []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	fatal.If(t, err)
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// unpack returns the names and modes of what is in an archive, and checks times and owners.
func unpack(t *testing.T, file string) (out []string) {
	t.Helper()
	f, err := os.Open(file)
	fatal.If(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	fatal.If(t, err)
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		fatal.If(t, err)
		if !h.ModTime.Equal(commitTime) || h.Uid != 0 || h.Uname != "" {
			t.Errorf("%s: at %v, of %d %s", h.Name, h.ModTime, h.Uid, h.Uname)
		}
		out = append(out, h.Name+" "+h.FileInfo().Mode().String())
	}
}
