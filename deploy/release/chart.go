package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	helm "helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
)

// Types of the parts of a chart in a registry, as Helm expects them.
const (
	chartConfig  types.MediaType = "application/vnd.cncf.helm.config.v1+json"
	chartContent types.MediaType = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
)

// chart writes the chart as an archive, and as an artifact for registries.
func (r release) chart(from string) (image, error) {
	made := image{
		Name: "charts/allocator",
		Tag:  r.version,
		File: fmt.Sprintf("allocator_%s_chart.oci.tar", r.version),
	}
	archive, c, err := chartArchive(from, r.version, r.at)
	if err != nil {
		return made, err
	}
	to := filepath.Join(r.dir, fmt.Sprintf("%s-%s.tgz", c.Name(), r.version))
	if err := os.WriteFile(to, archive, 0o644); err != nil {
		return made, err
	}
	artifact, err := chartArtifact(archive, c.Metadata, r.at)
	if err != nil {
		return made, err
	}
	digest, err := artifact.Digest()
	if err != nil {
		return made, err
	}
	made.Digest = digest.String()
	return made, writeLayout(filepath.Join(r.dir, made.File), r.at, func(p layout.Path) error {
		return p.AppendImage(artifact, named(r.version))
	})
}

var chartVersions = regexp.MustCompile(`(?m)^(version|appVersion): .*$`)

// chartArchive returns what `helm package` would, with the given version, but with one time
// in it: Helm writes the present one.
func chartArchive(from, version string, at time.Time) ([]byte, *helm.Chart, error) {
	c, err := loader.LoadDir(from)
	if err != nil {
		return nil, nil, err
	}
	files := map[string][]byte{}
	for _, f := range c.Raw {
		files[c.Name()+"/"+f.Name] = f.Data
	}
	about := c.Name() + "/Chart.yaml"
	if n := len(chartVersions.FindAll(files[about], -1)); n != 2 {
		return nil, nil, fmt.Errorf("%s/Chart.yaml has %d lines with version or appVersion: want 2", from, n)
	}
	files[about] = chartVersions.ReplaceAll(files[about], []byte(`$1: "`+version+`"`))
	archive, err := packTar(files, at)
	if err != nil {
		return nil, nil, err
	}
	packed, err := loader.LoadArchive(bytes.NewReader(archive))
	if err != nil {
		return nil, nil, err
	}
	return archive, packed, packed.Validate()
}

// chartArtifact returns the manifest of a chart with its two parts, as `helm push` makes it.
func chartArtifact(archive []byte, about *helm.Metadata, at time.Time) (v1.Image, error) {
	config, err := json.Marshal(about)
	if err != nil {
		return nil, err
	}
	layer := static.NewLayer(archive, chartContent)
	content, err := partial.Descriptor(layer)
	if err != nil {
		return nil, err
	}
	sum, size, err := v1.SHA256(bytes.NewReader(config))
	if err != nil {
		return nil, err
	}
	manifest, err := json.Marshal(v1.Manifest{
		SchemaVersion: 2,
		MediaType:     types.OCIManifestSchema1,
		Config:        v1.Descriptor{MediaType: chartConfig, Digest: sum, Size: size},
		Layers:        []v1.Descriptor{*content},
		Annotations: map[string]string{
			"org.opencontainers.image.title":       about.Name,
			"org.opencontainers.image.version":     about.Version,
			"org.opencontainers.image.description": about.Description,
			"org.opencontainers.image.source":      about.Home,
			"org.opencontainers.image.licenses":    "Apache-2.0",
			"org.opencontainers.image.created":     at.UTC().Format(time.RFC3339),
		},
	})
	if err != nil {
		return nil, err
	}
	return partial.CompressedToImage(artifact{manifest, config, layer})
}

// artifact is an image whose configuration is not that of a container.
type artifact struct {
	manifest, config []byte
	content          v1.Layer
}

func (artifact) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }
func (a artifact) RawManifest() ([]byte, error)      { return a.manifest, nil }
func (a artifact) RawConfigFile() ([]byte, error)    { return a.config, nil }
func (a artifact) LayerByDigest(h v1.Hash) (partial.CompressedLayer, error) {
	digest, err := a.content.Digest()
	if err != nil {
		return nil, err
	}
	if digest != h {
		return nil, fmt.Errorf("the artifact has no layer %s", h)
	}
	return a.content, nil
}
