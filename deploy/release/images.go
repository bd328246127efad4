package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// An image is what push copies: a container image of two architectures, or the chart.
type image struct {
	// Name is what follows the registry, such as allocator-dev or charts/allocator.
	Name string `json:"name"`
	// Tag is the version.
	Tag string `json:"tag"`
	// File is the OCI layout, as a tar archive, in the same directory.
	File string `json:"file"`
	// Digest is that of the index, or of the manifest of the chart.
	Digest string `json:"digest"`
	// Platforms has the digests of the manifests in an index, such as of linux/amd64.
	Platforms map[string]string `json:"platforms,omitempty"`
}

// images writes the container images, each with both architectures in one index.
func (r release) images() (all []image, err error) {
	for _, i := range []struct{ archive, name string }{{"allocator", "allocator"}, {"dev", "allocator-dev"}} {
		index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
		made := image{
			Name:      i.name,
			Tag:       r.version,
			File:      fmt.Sprintf("%s_%s_images.oci.tar", i.name, r.version),
			Platforms: map[string]string{},
		}
		for _, arch := range []string{"amd64", "arm64"} {
			file := filepath.Join(r.work, "linux-"+arch, i.archive+".tar")
			docker, err := tarball.ImageFromPath(file, nil)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			one, err := ociImage(docker)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			config, err := one.ConfigFile()
			if err != nil {
				return nil, err
			}
			if config.Architecture != arch {
				return nil, fmt.Errorf("%s is for %s", file, config.Architecture)
			}
			digest, err := one.Digest()
			if err != nil {
				return nil, err
			}
			made.Platforms["linux/"+arch] = digest.String()
			index = mutate.AppendManifests(index,
				mutate.IndexAddendum{
					Add:        one,
					Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
				})
		}
		digest, err := index.Digest()
		if err != nil {
			return nil, err
		}
		made.Digest = digest.String()
		err = writeLayout(filepath.Join(r.dir, made.File), r.at, func(p layout.Path) error {
			return p.AppendIndex(index, named(r.version))
		})
		if err != nil {
			return nil, err
		}
		all = append(all, made)
	}
	return all, nil
}

// ociImage returns an image with the same layers and settings, in the types of OCI: an index
// of OCI must not hold manifests of Docker.
func ociImage(docker v1.Image) (v1.Image, error) {
	config, err := docker.ConfigFile()
	if err != nil {
		return nil, err
	}
	layers, err := docker.Layers()
	if err != nil {
		return nil, err
	}
	history := config.History
	if len(history) != len(layers) {
		return nil, fmt.Errorf("%d layers with %d lines of history", len(layers), len(history))
	}
	config = config.DeepCopy()
	config.History, config.RootFS.DiffIDs = nil, nil
	one, err := mutate.ConfigFile(mutate.MediaType(empty.Image, types.OCIManifestSchema1), config)
	if err != nil {
		return nil, err
	}
	one = mutate.ConfigMediaType(one, types.OCIConfigJSON)
	for n, layer := range layers {
		one, err = mutate.Append(one,
			mutate.Addendum{Layer: layer, History: history[n], MediaType: types.OCILayer})
		if err != nil {
			return nil, err
		}
	}
	return one, nil
}

func named(tag string) layout.Option {
	return layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": tag})
}

// writeLayout writes an OCI layout as a tar archive, with what fill puts into it.
func writeLayout(to string, at time.Time, fill func(layout.Path) error) (err error) {
	dir, err := os.MkdirTemp("", "layout-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	p, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	if err := fill(p); err != nil {
		return err
	}
	files := map[string]string{}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			var name string
			if name, err = filepath.Rel(dir, path); err == nil {
				files[filepath.ToSlash(name)] = path
			}
		}
		return err
	})
	if err != nil {
		return err
	}
	f, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return writeTar(f, files, at)
}

func readImages(dir string) (all []image, err error) {
	text, err := os.ReadFile(filepath.Join(dir, imagesFile))
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("%s: %w", imagesFile, err)
	}
	return all, nil
}
