// Command image writes the image of a release, an archive in the OCI image layout, from the programs of the
// release: image -version v1.2.3 -revision COMMIT -time UNIX -out FILE DIR_linux_amd64 DIR_linux_arm64. Each
// folder contains the program "relay" and LICENSES.txt. It is the image of the Dockerfile, with the licences and made without a container runtime.
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// authorities are what TLS verifies certificates against; the Dockerfile copies the same file.
const authorities = "/etc/ssl/certs/ca-certificates.crt"

func main() {
	var i image
	flag.StringVar(&i.version, "version", "", "version, such as v1.2.3")
	flag.StringVar(&i.revision, "revision", "", "commit")
	unix := flag.Int64("time", 0, "Unix time of everything in the image")
	out := flag.String("out", "", "file to write")
	flag.Parse()
	i.created = time.Unix(*unix, 0).UTC()
	data, err := i.build(flag.Args())
	if err == nil {
		err = os.WriteFile(*out, data, 0o644) //nolint:gosec // a file to publish
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// image is an image under construction.
type image struct {
	version, revision string
	created           time.Time
	blobs             []file
}

type file struct {
	name string
	data []byte
	mode fs.FileMode // with fs.ModeDir for a folder
}

// descriptor is how one blob of an image names another one.
type descriptor struct {
	MediaType string    `json:"mediaType"`
	Digest    string    `json:"digest"`
	Size      int       `json:"size"`
	Platform  *platform `json:"platform,omitempty"`
	// Annotations has the tag, in the index of the archive.
	Annotations map[string]string `json:"annotations,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

type manifest struct {
	SchemaVersion int               `json:"schemaVersion"`
	MediaType     string            `json:"mediaType"`
	Config        *descriptor       `json:"config,omitempty"`
	Layers        []descriptor      `json:"layers,omitempty"`
	Manifests     []descriptor      `json:"manifests,omitempty"`
	Annotations   map[string]string `json:"annotations,omitempty"`
}

// config describes how a container of the image is started.
type config struct {
	platform

	Created string    `json:"created"`
	Config  execution `json:"config"`
	RootFS  rootFS    `json:"rootfs"`
}

type rootFS struct {
	Type    string   `json:"type"`
	DiffIDs []string `json:"diff_ids"`
}

type execution struct {
	User         string
	Env          []string
	ExposedPorts map[string]struct{}
	Entrypoint   []string
	Healthcheck  healthcheck // Docker's own; others ignore it
	Labels       map[string]string
}

type healthcheck struct {
	Test                           []string
	Interval, Timeout, StartPeriod time.Duration
}

// dockerfile is what the last stage of the Dockerfile says, which a test compares.
func dockerfile() execution {
	return execution{
		User: "65532:65532", Env: []string{"RELAY_CONFIG=/etc/relay/relay.yaml"},
		ExposedPorts: map[string]struct{}{"7070/tcp": {}}, Entrypoint: []string{"/relay"},
		Healthcheck: healthcheck{
			Test:     []string{"CMD", "/relay", "health"},
			Interval: 10 * time.Second, Timeout: 5 * time.Second, StartPeriod: 30 * time.Second,
		},
	}
}

// build returns the archive with an image for each folder.
func (i *image) build(folders []string) ([]byte, error) {
	if len(folders) == 0 {
		return nil, errors.New("no folder")
	}
	index := manifest{SchemaVersion: 2, MediaType: "application/vnd.oci.image.index.v1+json"}
	for _, folder := range folders {
		d, err := i.add(folder)
		if err != nil {
			return nil, err
		}
		index.Manifests = append(index.Manifests, d)
	}
	list, err := i.addJSON(index.MediaType, index)
	if err != nil {
		return nil, err
	}
	list.Annotations = map[string]string{"org.opencontainers.image.ref.name": i.version}
	top, err := json.Marshal(manifest{SchemaVersion: 2, MediaType: index.MediaType, Manifests: []descriptor{list}})
	if err != nil {
		return nil, err
	}
	return i.tar(append(i.blobs, file{"oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`), 0o644}, file{"index.json", top, 0o644}))
}

// add adds the image of one platform.
func (i *image) add(folder string) (descriptor, error) {
	_, arch, found := strings.Cut(filepath.Base(folder), "_linux_")
	if !found {
		return descriptor{}, fmt.Errorf("%s does not end in _linux_ARCH", folder)
	}
	relay, err := os.ReadFile(filepath.Join(folder, "relay"))
	if err != nil {
		return descriptor{}, err
	}
	licences, err := os.ReadFile(filepath.Join(folder, "LICENSES.txt"))
	if err != nil {
		return descriptor{}, err
	}
	certificates, err := os.ReadFile(authorities)
	if err != nil {
		return descriptor{}, err
	}
	layer, err := i.tar([]file{
		{"LICENSES.txt", licences, 0o644},
		{"etc/", nil, fs.ModeDir | 0o755},
		{"etc/ssl/", nil, fs.ModeDir | 0o755},
		{"etc/ssl/certs/", nil, fs.ModeDir | 0o755},
		{authorities[1:], certificates, 0o644},
		{"relay", relay, 0o755},
		{"tmp/", nil, fs.ModeDir | 0o1777},
	})
	if err != nil {
		return descriptor{}, err
	}
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err = z.Write(layer); err == nil {
		err = z.Close()
	}
	if err != nil {
		return descriptor{}, err
	}
	c := config{platform: platform{arch, "linux"}, Created: i.created.Format(time.RFC3339), Config: dockerfile(), RootFS: rootFS{"layers", []string{digest(layer)}}}
	c.Config.Labels = map[string]string{
		"org.opencontainers.image.source": "https://github.com/outboxrelay/relay", "org.opencontainers.image.licenses": "Apache-2.0",
		"org.opencontainers.image.version": i.version, "org.opencontainers.image.revision": i.revision,
	}
	configured, err := i.addJSON("application/vnd.oci.image.config.v1+json", c)
	if err != nil {
		return descriptor{}, err
	}
	one := manifest{
		SchemaVersion: 2, MediaType: "application/vnd.oci.image.manifest.v1+json", Config: &configured,
		Layers: []descriptor{i.addBlob("application/vnd.oci.image.layer.v1.tar+gzip", packed.Bytes())},
	}
	d, err := i.addJSON(one.MediaType, one)
	d.Platform = &c.platform
	return d, err
}

func (i *image) addJSON(mediaType string, v any) (descriptor, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return descriptor{}, err
	}
	return i.addBlob(mediaType, data), nil
}

func (i *image) addBlob(mediaType string, data []byte) descriptor {
	d := descriptor{MediaType: mediaType, Digest: digest(data), Size: len(data)}
	i.blobs = append(i.blobs, file{"blobs/sha256/" + strings.TrimPrefix(d.Digest, "sha256:"), data, 0o644})
	return d
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// tar returns an archive whose files belong to root and have the image's time.
func (i *image) tar(files []file) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		h := &tar.Header{Name: f.name, Mode: int64(f.mode & 0o7777), Size: int64(len(f.data)), ModTime: i.created, Typeflag: tar.TypeReg, Format: tar.FormatUSTAR}
		if f.mode.IsDir() {
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return out.Bytes(), err
}
