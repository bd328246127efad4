package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
)

// pack writes the image of a Dockerfile to an archive, and its digests to out.
func pack(file, context string, p program, tag, to string, out io.Writer) error {
	ref, err := name.NewTag(tag)
	if err != nil {
		return err
	}
	config, copies, err := readDockerfile(file,
		map[string]string{"VERSION": p.version, "REVISION": p.revision, "CREATED": p.created.Format(time.RFC3339)})
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	t := tree{}
	for _, c := range copies {
		if err := t.copy(os.DirFS(context), c); err != nil {
			return fmt.Errorf("%s: %s: %w", file, c, err)
		}
	}
	layer, err := t.layer(p.created)
	if err != nil {
		return err
	}
	created := v1.Time{Time: p.created}
	image, err := mutate.ConfigFile(empty.Image,
		&v1.ConfigFile{
			Architecture: p.arch,
			OS:           "linux",
			Created:      created,
			Config:       config,
			RootFS:       v1.RootFS{Type: "layers"},
		})
	if err != nil {
		return err
	}
	image, err = mutate.Append(image,
		mutate.Addendum{Layer: layer, History: v1.History{Created: created, CreatedBy: "deploy/image"}})
	if err != nil {
		return err
	}
	if err := tarball.WriteToFile(to, ref, image); err != nil {
		return err
	}
	digest, err := image.Digest()
	if err != nil {
		return err
	}
	id, err := image.ConfigName()
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s: %s\n  image ID  %s\n  manifest  %s\n", to, tag, id, digest)
	return err
}

// tree holds the files and directories of an image by path, without the leading slash.
type tree map[string]entry

type entry struct {
	tar.Header
	data []byte
}

// copy carries out a COPY as Docker does, except for modes: those of a working
// tree depend on the umask, so a file is 0755 if its owner may execute it, else 0644.
func (t tree) copy(context fs.FS, c *instructions.CopyCommand) error {
	var uid, gid int
	if _, err := fmt.Sscanf(c.Chown, "%d:%d", &uid, &gid); err != nil && c.Chown != "" {
		return fmt.Errorf("unsupported owner %q: want UID:GID as numbers", c.Chown)
	}
	for _, from := range c.SourcePaths {
		from = path.Clean(from)
		err := fs.WalkDir(context, from, func(p string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			to := path.Join(c.DestPath, strings.TrimPrefix(p, from))
			if p == from && !d.IsDir() && strings.HasSuffix(c.DestPath, "/") {
				to = path.Join(to, path.Base(p))
			}
			to = strings.TrimPrefix(to, "/")
			for dir := path.Dir(to); dir != "."; dir = path.Dir(dir) {
				if _, ok := t[dir]; !ok {
					t[dir] = entry{Header: tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755}}
				}
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			e := entry{Header: tar.Header{Typeflag: tar.TypeReg, Name: to, Mode: 0o644, Uid: uid, Gid: gid}}
			switch {
			case d.IsDir():
				e.Typeflag, e.Name, e.Mode = tar.TypeDir, to+"/", 0o755
				t[to] = e
				return nil
			case !d.Type().IsRegular():
				return fmt.Errorf("%s is neither a file nor a directory", p)
			case info.Mode()&0o100 != 0:
				e.Mode = 0o755
			}
			e.data, err = fs.ReadFile(context, p)
			t[to] = e
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// layer returns the tree as a layer: sorted by path, all at one time.
func (t tree) layer(at time.Time) (v1.Layer, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, p := range slices.Sorted(maps.Keys(t)) {
		e := t[p]
		e.ModTime, e.Size = at, int64(len(e.data))
		if err := w.WriteHeader(&e.Header); err != nil {
			return nil, err
		}
		if _, err := w.Write(e.data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil }
	return tarball.LayerFromOpener(open, tarball.WithCompressionLevel(gzip.BestCompression),
		tarball.WithCompressedCaching)
}
