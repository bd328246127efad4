package console

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/flakelease/allocator/chaos/play/player"
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
	p = open(t, c.console, "")
	p.until(`probe.snapshots > 20 && document.querySelectorAll("canvas").length > 1`)
	p.picture("console-nodes", 860)
	play := openPlay(t, "")
	play.faster("30")
	play.run(click(`#scenes button[value=pause]`))
	for _, step := range player.Catalog().Scenes[1].Steps {
		play.until(fmt.Sprintf("document.querySelector('#guide-text').textContent === %q && document.body.dataset.playing === 'false'", step.Text))
		play.run(click("#next"))
	}
	play.until(`view.now >= 74900`)
	play.picture("play", 900)
	if err := os.WriteFile(filepath.Join(images, sumFile), []byte(pagesSum(t)), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestPicturesAreCurrent: the documents show the pages as they are.
func TestPicturesAreCurrent(t *testing.T) {
	for _, name := range []string{"console-break", "console-clocks", "console-pool", "console-nodes", "play"} {
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
	for _, dir := range []string{"internal/server/console/static", "internal/server/console/templates", "chaos/play/page"} {
		files, err := filepath.Glob(filepath.Join("../../..", dir, "*"))
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
		set(p)
		// Charts are drawn again in their colors.
		p.run(chromedp.Sleep(3 * time.Second))
		png, err := chromedp.Run(p.ctx, chromedp.CaptureScreenshot())
		if err == nil {
			err = os.WriteFile(filepath.Join(images, name+suffix+".png"), png, 0o644)
		}
		if err != nil {
			p.t.Fatal(err)
		}
	}
}
