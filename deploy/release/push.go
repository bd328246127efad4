package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// push copies the images and the chart of a release to a registry, such as
// registry.example.org/flakelease, with the credentials that `docker login` or `cosign login`
// left. It prints what it copied, by digest, and fails where the registry has another one.
func push(dir, registry string, insecure bool, out io.Writer) error {
	images, err := readImages(dir)
	if err != nil {
		return err
	}
	var options []name.Option
	if insecure {
		options = append(options, name.Insecure)
	}
	for _, i := range images {
		tag, err := name.NewTag(registry+"/"+i.Name+":"+i.Tag, options...)
		if err != nil {
			return err
		}
		if err := pushImage(filepath.Join(dir, i.File), i, tag); err != nil {
			return fmt.Errorf("push %s: %w", tag, err)
		}
		there, err := remote.Head(tag, keychain)
		if err != nil {
			return fmt.Errorf("read back %s: %w", tag, err)
		}
		if there.Digest.String() != i.Digest {
			return fmt.Errorf("%s is %s in the registry, and %s here", tag, there.Digest, i.Digest)
		}
		fmt.Fprintf(out, "%s@%s\n", tag, there.Digest)
	}
	return nil
}

var keychain = remote.WithAuthFromKeychain(authn.DefaultKeychain)

func pushImage(file string, i image, tag name.Tag) error {
	dir, err := os.MkdirTemp("", "push-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := unpackLayout(file, dir); err != nil {
		return err
	}
	digest, err := v1.NewHash(i.Digest)
	if err != nil {
		return err
	}
	p, err := layout.FromPath(dir)
	if err != nil {
		return err
	}
	if i.Platforms == nil {
		one, err := p.Image(digest)
		if err != nil {
			return err
		}
		return remote.Write(tag, one, keychain)
	}
	root, err := p.ImageIndex()
	if err != nil {
		return err
	}
	index, err := root.ImageIndex(digest)
	if err != nil {
		return err
	}
	return remote.WriteIndex(tag, index, keychain)
}

// maxLayout bounds what is unpacked: the images are 100 MB.
const maxLayout = 2 << 30

// unpackLayout unpacks an archive that writeLayout made.
func unpackLayout(file, dir string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	left := int64(maxLayout)
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if left -= h.Size; left < 0 || h.Typeflag != tar.TypeReg || !filepath.IsLocal(h.Name) {
			return fmt.Errorf("%s is no OCI layout, or one of over %d bytes: %s", file, int64(maxLayout), h.Name)
		}
		to := filepath.Join(dir, filepath.FromSlash(h.Name))
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		out, err := os.Create(to)
		if err != nil {
			return err
		}
		if _, err := io.Copy(out, r); err != nil {
			return errors.Join(err, out.Close())
		}
		if err := out.Close(); err != nil {
			return err
		}
	}
}
