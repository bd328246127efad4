package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Media types of the OCI image specification.
const (
	typeIndex    = "application/vnd.oci.image.index.v1+json"
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
	typeLayer    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

// descriptor points to a blob.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    *platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

// imageConfig is the configuration blob: Docker's image ID is its digest.
type imageConfig struct {
	Created      string  `json:"created"`
	Architecture string  `json:"architecture"`
	OS           string  `json:"os"`
	Config       config  `json:"config"`
	RootFS       rootFS  `json:"rootfs"`
	History      []entry `json:"history"`
}

type rootFS struct {
	Type    string   `json:"type"`
	DiffIDs []string `json:"diff_ids"`
}

type entry struct {
	Created   string `json:"created"`
	CreatedBy string `json:"created_by"`
}

// pack writes the image of a Dockerfile to an archive, and its digests to out.
func pack(file, context string, id identity, tags []string, to string, out io.Writer) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	created := id.created.UTC().Format(time.RFC3339)
	c, copies, err := parse(f, map[string]string{"VERSION": id.version, "REVISION": id.revision, "CREATED": created})
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}

	tree := files{}
	for _, cp := range copies {
		if err := tree.copy(context, cp); err != nil {
			return fmt.Errorf("%s: COPY: %w", file, err)
		}
	}
	layer, err := tree.tar(id.created)
	if err != nil {
		return err
	}
	var packed bytes.Buffer
	z, _ := gzip.NewWriterLevel(&packed, gzip.BestCompression) // the level is one that exists
	if _, err := z.Write(layer); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}

	a := newArchive(to, id.created)
	conf := imageConfig{
		Created: created, Architecture: id.arch, OS: "linux", Config: c,
		RootFS:  rootFS{Type: "layers", DiffIDs: []string{digest(layer)}},
		History: []entry{{created, "deploy/image, from " + path.Base(filepath.ToSlash(file))}},
	}
	layerAt := a.blob(typeLayer, packed.Bytes())
	configAt := a.json(typeConfig, conf)
	manifestAt := a.json(typeManifest, map[string]any{
		"schemaVersion": 2, "mediaType": typeManifest, "config": configAt, "layers": []descriptor{layerAt},
	})
	manifestAt.Platform = &platform{id.arch, "linux"}
	manifestAt.Annotations = map[string]string{
		"org.opencontainers.image.ref.name": tags[0],
		"io.containerd.image.name":          fullName(tags[0]), // what containerd imports it as
	}
	a.file("index.json", encode(map[string]any{"schemaVersion": 2, "mediaType": typeIndex, "manifests": []descriptor{manifestAt}}))
	a.file("oci-layout", encode(map[string]string{"imageLayoutVersion": "1.0.0"}))
	// What docker load reads, in versions of any age.
	a.file("manifest.json", encode([]map[string]any{{"Config": blobPath(configAt.Digest), "RepoTags": tags, "Layers": []string{blobPath(layerAt.Digest)}}}))
	if err := a.close(); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s\n  manifest  %s\n  image ID  %s\n  layer     %.1f MB, %.1f MB packed\n  tags      %s\n",
		to, manifestAt.Digest, configAt.Digest, float64(len(layer))/1e6, float64(packed.Len())/1e6, strings.Join(tags, " "))
	return err
}

// fullName returns the name of an image with the registry that Docker and the
// kubelet think of where none is named.
func fullName(tag string) string {
	host, rest, ok := strings.Cut(tag, "/")
	switch {
	case !ok:
		return "docker.io/library/" + tag
	case strings.ContainsAny(host, ".:") || host == "localhost":
		return host + "/" + rest
	}
	return "docker.io/" + tag
}

// node is a file or a folder of the image.
type node struct {
	dir      bool
	mode     int64
	uid, gid int
	data     []byte
}

// files are the image's, by path without the leading slash.
type files map[string]node

// copy carries out a COPY as Docker does, except for modes: those of a working
// tree depend on the umask, so a file is 0755 if its owner may run it, else 0644.
func (t files) copy(context string, cp copying) error {
	for _, from := range cp.from {
		source := filepath.Join(context, filepath.FromSlash(from))
		info, err := os.Stat(source)
		if err != nil {
			return err
		}
		target := cp.to
		if !info.IsDir() && strings.HasSuffix(target, "/") {
			target += path.Base(from)
		}
		target = strings.TrimPrefix(path.Clean(target), "/")
		err = filepath.WalkDir(source, func(p string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(source, p)
			if err != nil {
				return err
			}
			return t.add(path.Join(target, filepath.ToSlash(rel)), p, d, cp)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (t files) add(name, source string, d fs.DirEntry, cp copying) error {
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if _, ok := t[dir]; !ok {
			t[dir] = node{dir: true, mode: 0o755}
		}
	}
	switch {
	case d.IsDir():
		if name != "." {
			t[name] = node{dir: true, mode: 0o755, uid: cp.uid, gid: cp.gid}
		}
		return nil
	case !d.Type().IsRegular():
		return fmt.Errorf("%s is neither a file nor a folder", source)
	}
	info, err := d.Info()
	if err != nil {
		return err
	}
	n := node{mode: 0o644, uid: cp.uid, gid: cp.gid}
	if info.Mode()&0o100 != 0 {
		n.mode = 0o755
	}
	n.data, err = os.ReadFile(source)
	t[name] = n
	return err
}

// tar returns the layer, sorted by name and with one time for all.
func (t files) tar(at time.Time) ([]byte, error) {
	names := make([]string, 0, len(t))
	for name := range t {
		names = append(names, name)
	}
	slices.Sort(names)
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, name := range names {
		n := t[name]
		h := &tar.Header{Name: name, Mode: n.mode, Uid: n.uid, Gid: n.gid, Size: int64(len(n.data)), ModTime: at, Typeflag: tar.TypeReg, Format: tar.FormatPAX}
		if n.dir {
			h.Name, h.Typeflag = name+"/", tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(n.data); err != nil {
			return nil, err
		}
	}
	return buf.Bytes(), w.Close()
}

// archive is the tar that holds an image. The first error sticks.
type archive struct {
	to   string
	at   time.Time
	f    *os.File
	w    *tar.Writer
	have map[string]bool
	err  error
}

func newArchive(to string, at time.Time) *archive {
	a := &archive{to: to, at: at, have: map[string]bool{}}
	if a.f, a.err = os.Create(to + ".new"); a.err == nil {
		a.w = tar.NewWriter(a.f)
		for _, dir := range []string{"blobs/", "blobs/sha256/"} {
			a.header(&tar.Header{Name: dir, Typeflag: tar.TypeDir, Mode: 0o755})
		}
	}
	return a
}

func (a *archive) header(h *tar.Header) {
	if a.err == nil {
		h.ModTime, h.Format = a.at, tar.FormatPAX
		a.err = a.w.WriteHeader(h)
	}
}

func (a *archive) file(name string, data []byte) {
	if a.have[name] {
		return
	}
	a.have[name] = true
	a.header(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(data))})
	if a.err == nil {
		_, a.err = a.w.Write(data)
	}
}

func (a *archive) blob(mediaType string, data []byte) descriptor {
	d := descriptor{MediaType: mediaType, Digest: digest(data), Size: len(data)}
	a.file(blobPath(d.Digest), data)
	return d
}

func (a *archive) json(mediaType string, v any) descriptor { return a.blob(mediaType, encode(v)) }

// close puts the archive in its place, where all went well.
func (a *archive) close() error {
	if a.f == nil {
		return a.err
	}
	if a.err == nil {
		a.err = a.w.Close()
	}
	if err := a.f.Close(); a.err == nil {
		a.err = err
	}
	if a.err != nil {
		_ = os.Remove(a.to + ".new")
		return a.err
	}
	return os.Rename(a.to+".new", a.to)
}

func blobPath(digest string) string { return "blobs/" + strings.Replace(digest, ":", "/", 1) }

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// encode writes v with its keys sorted, as encoding/json does for maps.
func encode(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("image: %T is no JSON: %v", v, err))
	}
	return data
}
