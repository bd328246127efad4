package console

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/chromedp/chromedp"
)

var pictures = flag.Bool("pictures", false, "write the pictures of docs/images anew")

// TestPictures makes the pictures of the documents, light and dark: a clock of three was set ahead.
func TestPictures(t *testing.T) {
	if !*pictures {
		t.Skip("only with -pictures")
	}
	c := dev(t)
	p := open(t, c.console, "break")
	p.until(`[...document.querySelectorAll(".card[data-node]")].every((c) => c.dataset.answer === "OK")`)
	p.until(`Number(document.querySelector("[data-broken=ids]").textContent.replace(/[^0-9]/g, "")) > 100000`)
	p.press("node-2", "skew")
	p.until(`document.querySelector(".card[data-node=node-2]").dataset.answer === "CLOCK_SKEW"`)
	p.until(`document.querySelector("#summary .text").textContent.includes("2 of 3 nodes serve")`)
	p.until(`document.querySelector("#sids tr[data-key='` + strconv.Itoa(c.nodes[1].SID) + `']").dataset.state === "refusing"`)
	p.picture("console-break", 620)
	p = open(t, c.console, "clocks")
	p.until(`probe.snapshots > 20 && document.querySelectorAll("#matrix td[data-state=far]").length === 4`)
	p.picture("console-clocks", 1090)
	p = open(t, c.console, "pool")
	p.until(`probe.snapshots > 3`)
	p.picture("console-pool", 560)
	if err := os.WriteFile(filepath.Join(images, sumFile), []byte(pagesSum(t)), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestPicturesAreCurrent: the documents show the pages as they are.
func TestPicturesAreCurrent(t *testing.T) {
	for _, name := range []string{"console-break", "console-clocks", "console-pool"} {
		for _, file := range []string{name + ".png", name + "-dark.png"} {
			if _, err := os.Stat(filepath.Join(images, file)); err != nil {
				t.Errorf("a picture is missing: %v", err)
			}
		}
	}
	if got, err := os.ReadFile(filepath.Join(images, sumFile)); err != nil || string(got) != pagesSum(t) {
		t.Errorf("the pictures are of other pages, %v: run go -C chaos/real test ./console -run TestPictures -pictures", err)
	}
}

const (
	images  = "../../../docs/images"
	sumFile = "console.sha256" // The pictures were made when the files of the pages had this sum.
)

// pagesSum is a digest of what the pages are made of.
func pagesSum(t *testing.T) string {
	t.Helper()
	sum := sha256.New()
	for _, dir := range []string{"static", "templates"} {
		files, err := filepath.Glob(filepath.Join("../../../internal/server/console", dir, "*"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s has no files: %v", dir, err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(sum, "%s %d\n%s", filepath.Base(file), len(data), data)
		}
	}
	return fmt.Sprintf("%x\n", sum.Sum(nil))
}

// picture writes the top of a page, in light and in dark.
func (p *page) picture(name string, height int) {
	p.t.Helper()
	p.call("Emulation.setDeviceMetricsOverride",
		map[string]any{"width": 1160, "height": height, "deviceScaleFactor": 1, "mobile": false}, nil)
	p.until(`window.innerWidth === 1160 && (scrollTo(0, 0), true)`)
	for suffix, set := range map[string]option{"": light, "-dark": dark} {
		seen := eval[int](p, "probe.snapshots")
		set(p)
		p.until(fmt.Sprintf("probe.snapshots > %d", seen+2)) // charts are drawn again in their colors
		png, err := chromedp.Run(p.ctx, chromedp.CaptureScreenshot())
		if err == nil {
			err = os.WriteFile(filepath.Join(images, name+suffix+".png"), png, 0o644)
		}
		if err != nil {
			p.t.Fatal(err)
		}
	}
}
