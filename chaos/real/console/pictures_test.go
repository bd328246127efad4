package console

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/flakelease/allocator/chaos/fatal"
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
	p.until(`probe.snapshots > 20 && document.querySelector("#clocks tr[data-state=refusing]")`)
	p.picture("console-clocks", 1090)
	p = open(t, c.console, "")
	p.until(`probe.snapshots > 20 && document.querySelectorAll("canvas").length > 1`)
	p.picture("console-nodes", 860)
	p = open(t, c.console, "break")
	p.press("node-2", "repair")
	p.press("node-2", "kill")
	p.until(`document.querySelector("#summary .text").textContent.includes("2 of 3 nodes")`)
	p.run(chromedp.Sleep(20 * time.Second))
	p.press("node-2", "repair")
	p.until(`[...document.querySelectorAll(".card[data-node]")].every((c) => c.dataset.answer === "OK")`)
	p.run(chromedp.Sleep(20 * time.Second))
	p = open(t, c.console, "timeline?by=sid&span=180&at="+time.Now().UTC().Add(-50*time.Second).Format("2006-01-02T15:04:05.000Z"))
	p.until(`document.querySelector("#timeline .lane") && document.querySelectorAll("#stretches tr[data-key]").length > 3`)
	p.picture("console-timeline", 620)
	p = open(t, c.console, "break")
	p.press("etcd", "stop")
	p = open(t, c.console, "")
	p.until(`document.querySelector("#summary .text").textContent.includes("etcd does not answer")`)
	p.picture("console-night", 400)
	play := openPlay(t, "")
	play.faster("30")
	play.run(click(`#scenes button[value=pause]`))
	steps := player.Catalog().Scenes[1].Steps
	for i := range len(steps) - 1 {
		play.until(fmt.Sprintf("stepAt === %d && document.body.dataset.playing === 'false'", i))
		play.run(click("#next"))
	}
	play.until(fmt.Sprintf("stepAt === %d && document.body.dataset.playing === 'false'", len(steps)-1))
	play.picture("play", 900)
	fatal.If(t, os.WriteFile(filepath.Join(images, sumFile), []byte(pagesSum(t)), 0o644))
}

// TestPicturesAreCurrent: the documents show the pages as they are.
func TestPicturesAreCurrent(t *testing.T) {
	for _, name := range []string{"console-break", "console-clocks", "console-nodes", "console-timeline", "console-night", "play"} {
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
	for _, list := range []string{
		"internal/server/console/static/*", "internal/server/console/templates/*", "internal/server/console/*.go",
		"chaos/play/page/*", "chaos/play/player/*.go",
	} {
		files, err := filepath.Glob(filepath.Join("../../..", list))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s finds no files: %v", list, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			data, err := os.ReadFile(file)
			fatal.If(t, err)
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
		fatal.If(p.t, err)
	}
}
