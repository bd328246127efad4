// Command play writes the page of the simulation into a directory: whole clusters of the
// product's own code, compiled to WebAssembly. Any browser opens it, also as a file.
//
// Each rule that can be left out has a program of its own. Its planted bug is a change of text, such as another
// condition of a case, which no switch turns on while a program runs; with copies of the changed functions behind a
// switch, no program would run the product's own code. What the programs have in common is compiled once.
package main

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/flakelease/allocator/chaos/play/player"
)

func main() {
	dir := flag.String("dir", "bin/play", "directory to write the page into")
	site := flag.Bool("site", false, "make the page for the directory play of the site, and link to the site's pages")
	flag.Parse()
	if err := build(*dir, *site); err != nil {
		fmt.Fprintln(os.Stderr, "play:", err)
		os.Exit(1)
	}
}

// maxSize is how many bytes a browser loads at first, compressed as files of a site are.
const maxSize = 3 << 20

// build writes the page into dir. It runs in the root of the repository.
func build(dir string, site bool) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	size, err := copyFiles(dir, site)
	if err != nil {
		return err
	}
	fmt.Println("compiling the simulation for the browser; the first time it takes some minutes")
	n, err := program(dir, "sim", "")
	if err != nil {
		return err
	}
	if size += n; size > maxSize {
		return fmt.Errorf("the page has %d bytes, compressed, and may have %d", size, maxSize)
	}
	rules := player.Catalog().Rules
	fmt.Printf("the page is %s, with %.1f MB compressed: open it now; a rule can be left out as soon as its program "+
		"is compiled\n", filepath.Join(dir, "index.html"), float64(size)/1e6)
	size = 0
	for i, r := range rules {
		fmt.Printf("compiling without a rule, %d of %d: %s\n", i+1, len(rules), r.Name)
		n, err := program(dir, "rule-"+r.Name, r.Bug)
		if err != nil {
			return err
		}
		size += n
	}
	fmt.Printf("the programs without a rule have %.1f MB\n", float64(size)/1e6)
	return nil
}

// copyFiles copies what is not made, and returns its size, compressed. Links of the page lead to the documents of the
// repository, or to those of the site.
func copyFiles(dir string, site bool) (size int, err error) {
	here, err := filepath.Abs(".")
	if err != nil {
		return 0, err
	}
	there, err := filepath.Abs(dir)
	if err != nil {
		return 0, err
	}
	top, err := filepath.Rel(there, here)
	if err != nil {
		return 0, err
	}
	links := strings.NewReplacer("../../", filepath.ToSlash(top)+"/")
	if site {
		links = strings.NewReplacer("../../README.md", "../", "../../docs/DESIGN.md", "../docs/DESIGN.html")
	}
	root, err := output("go", "env", "GOROOT")
	if err != nil {
		return 0, err
	}
	files, err := filepath.Glob("chaos/play/page/*")
	if err != nil {
		return 0, err
	}
	files = append(files, filepath.Join(strings.TrimSpace(root), "lib", "wasm", "wasm_exec.js"))
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return 0, err
		}
		if filepath.Base(f) == "index.html" {
			b = []byte(links.Replace(string(b)))
		}
		size += len(compressed(b))
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(f)), b, 0o644); err != nil {
			return 0, err
		}
	}
	return size, nil
}

// program writes a script that has the simulation as WebAssembly, with a bug or without, and
// returns its size.
func program(dir, name, bug string) (int, error) {
	work, err := os.MkdirTemp("", "play")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(work)
	wasm := filepath.Join(work, "sim.wasm")
	args := []string{"build", "-trimpath", "-ldflags=-s -w", "-o", wasm}
	if bug != "" {
		if _, err := output("go", "run", "./chaos/planted", "-bugs", "^"+bug+"$", "-overlay", work); err != nil {
			return 0, err
		}
		args = append(args, "-overlay", filepath.Join(work, "overlay.json"))
	}
	if _, err := output("go", append(args, "./chaos/play/wasm")...); err != nil {
		return 0, err
	}
	raw, err := os.ReadFile(wasm)
	if err != nil {
		return 0, err
	}
	// Text, since a page that is a file may load scripts and nothing else.
	text := base64.StdEncoding.EncodeToString(compressed(raw))
	script := fmt.Sprintf("(globalThis.allocatorPrograms ??= {})[%q] = %q;\n", name, text)
	return len(script), os.WriteFile(filepath.Join(dir, name+".js"), []byte(script), 0o644)
}

// output runs a command for the browser's platform if it is a build.
func output(name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	if args[0] == "build" {
		cmd.Env = append(os.Environ(), "GOOS=js", "GOARCH=wasm")
	}
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = fmt.Errorf("%v: %w\n%s", cmd, err, exit.Stderr)
	}
	return string(out), err
}

// compressed returns b, compressed as well as gzip can.
func compressed(b []byte) []byte {
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err == nil {
		_, err = w.Write(b)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		panic(err) // into memory
	}
	return out.Bytes()
}
