package console

import (
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/play/player"
	"github.com/flakelease/allocator/chaos/sim"
	"github.com/flakelease/allocator/chaos/tier"
)

// buildPlay returns a directory with the page of the simulation in its directory "console",
// which is where open looks for a page.
var buildPlay = sync.OnceValues(func() (string, error) {
	root := filepath.Join(programs, "play")
	dir := filepath.Join(root, "console")
	build := exec.Command("go", "run", "./chaos/play", "-dir", dir)
	build.Dir = "../../.."
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%v: %w\n%s", build, err, out)
	}
	return root, nil
})

// played is the page of the simulation in a tab.
type played struct{ *page }

// openPlay opens the page of the simulation under the strictest policy that it promises to work with.
func openPlay(t *testing.T, hash string, options ...option) played {
	t.Helper()
	if !*long && !*pictures {
		// TestScenes and TestRules show the same without a browser, and TestPlayFile shows a browser.
		tier.Nightly(t, "a cluster in the page, beside other tests, takes all there is of two cores")
	}
	browser(t) // it may skip the test
	root, err := buildPlay()
	fatal.If(t, err)
	files := http.FileServer(http.Dir(root))
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy", "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src data:")
		files.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	p := played{open(t, s.URL+"/console/", hash, options...)}
	p.until("view")
	return p
}

// field returns a text of the counter, or of what is said of the run, without commas.
func (p played) field(name string) string {
	p.t.Helper()
	return strings.ReplaceAll(eval[string](p.page, fmt.Sprintf("document.querySelector('[data-field=%s]').textContent", name)), ",", "")
}

func (p played) faster(speed string) {
	p.t.Helper()
	eval[bool](p.page, fmt.Sprintf("{ const s = document.querySelector('#speed'); s.value = %q; s.dispatchEvent(new Event('change')) }", speed))
}

func (p played) pause() {
	p.t.Helper()
	eval[int](p.page, "play(false), 1")
	p.until("document.body.dataset.playing === 'false' && shown > 0")
}

// claims compares what the page shows with the simulation's own view.
func (p played) claims(want player.View) {
	p.t.Helper()
	p.until("shown > 0") // The texts are those of the last view.
	for name, want := range map[string]any{
		"ids": want.IDs, "duplicates": want.Duplicates, "disorder": want.Disorder, "refused": want.Refused, "event": want.Event,
		"hash": want.Hash, "seed": want.Seed, "mode": want.Mode,
	} {
		if got := p.field(name); got != fmt.Sprint(want) {
			p.t.Errorf("the page shows %s %s, and the simulation has %v", name, got, want)
		}
	}
	states := eval[[]string](p.page, "[...document.querySelectorAll('#cards [data-state]')].map((c) => c.dataset.state)")
	for i, n := range want.Nodes {
		state := "refusing"
		switch {
		case !n.Up:
			state = "down"
		case n.Paused:
			state = "paused"
		case n.Serving:
			state = "issuing"
		case n.Reason == "NO_SID":
			state = "standby"
		case n.Reason == "STARTING", !n.Held && (n.Reason == "" || n.Reason == "CLOCK_UNVERIFIED"):
			state = "starting"
		}
		if states[i] != state {
			p.t.Errorf("the page shows that %s is %s, and the simulation has %s", n.Name, states[i], state)
		}
	}
}

// repeated compares a run that is paused with the same one, played here from what its link says.
func (p played) repeated() {
	p.t.Helper()
	events, err := strconv.Atoi(p.field("event"))
	fatal.If(p.t, err)
	var same player.Player
	o := eval[player.Options](p.page, "({ seed: view.seed, mode: view.mode, nodes: view.nodes.length, sids, acts: new URLSearchParams(location.hash.slice(1)).get('acts') ?? '' })")
	o.Until = events
	if v := same.Begin(o); v.Hash != p.field("hash") || v.Error != "" {
		p.t.Errorf("%+v has hash %s after %d events, the page shows %s: %s", o, v.Hash, v.Event, p.field("hash"), v.Error)
	}
}

// tour goes through the texts of a scene that was begun.
func (p played) tour(s player.SceneText) {
	p.t.Helper()
	for i, step := range s.Steps {
		p.until(fmt.Sprintf("scene?.name === %q && stepAt === %d && document.querySelector('#guide-text').textContent === %q && document.body.dataset.playing === 'false'", s.Name, i, step.Text))
		p.run(click("#next"))
	}
}

// TestPlayOpening: who opens the page sees a scene begin, with windows, IDs and its first text, in the first screen.
func TestPlayOpening(t *testing.T) {
	t.Parallel()
	for _, options := range [][]option{nil, {reducedMotion}} {
		p := openPlay(t, "", options...)
		s := player.Catalog().Scenes[0]
		p.until("stepAt === 0 && shown > 0")
		if options != nil && eval[bool](p.page, "playing") {
			t.Error("the page plays by itself, though less motion is asked for")
		}
		if text := eval[string](p.page, "document.querySelector('#guide-text').textContent"); text != s.Steps[0].Text {
			t.Errorf("the first text is %q", text)
		}
		if bars := eval[int](p.page, "past.rows.filter((r) => r.windows.length > 0 && r.issues.length > 0).length"); bars != s.SIDs {
			t.Errorf("%d rows have a window and IDs, want %d", bars, s.SIDs)
		}
		words := eval[[]string](p.page, "(() => { const c = network.getContext('2d'), said = []; c.fillText = (words) => said.push(words); drawNetwork(0); delete c.fillText; return said })()")
		for _, want := range []string{"etcd", "era 1", "n1", "n4", "issuing", "standby"} {
			if !slices.Contains(words, want) {
				t.Errorf("the picture of the network says %q, which lacks %q", words, want)
			}
		}
		// Nothing is wrong yet, and nothing is red.
		if red := eval[int](p.page, "past.rows.reduce((n, r) => n + r.refusals.length, 0)"); red > 0 || p.field("refused") != "0" {
			t.Errorf("the timeline has %d refusals, the counter %s", red, p.field("refused"))
		}
		if about := eval[string](p.page, "document.querySelector('#about').innerText"); !strings.Contains(about, "allocator") || !strings.Contains(about, "IDs") {
			t.Errorf("the page says of itself %q", about)
		}
		p.run(chromedp.EmulateViewport(1160, 900))
		p.until("innerWidth === 1160")
		if off := eval[[]string](p.page, "['#network', '#timeline', '#guide', '#play', '#next', '#scenes', '#acts'].filter((s) => document.querySelector(s).getBoundingClientRect().bottom > innerHeight)"); len(off) > 0 {
			t.Errorf("not in the first screen: %q", off)
		}
		// On a phone what the text is about is in the first screen too.
		p.run(chromedp.EmulateViewport(390, 844))
		p.until("innerWidth === 390")
		if off := eval[[]string](p.page, "['#guide-text', '#timeline'].filter((s) => document.querySelector(s).getBoundingClientRect().bottom > innerHeight)"); len(off) > 0 {
			t.Errorf("not in the first screen of a phone: %q", off)
		}
	}
}

// TestPlayScene: a scene says what it has to say, ends, and shows what the simulation has then. The Go tests of the player
// play every scene.
func TestPlayScene(t *testing.T) {
	t.Parallel()
	p := openPlay(t, "")
	p.faster("30")
	s := player.Catalog().Scenes[0]
	p.run(click(fmt.Sprintf("#scenes button[value=%q]", s.Name)))
	p.tour(s)
	p.until(fmt.Sprintf("document.querySelector('#guide-text').textContent === %q", s.Then))
	var same player.Player
	same.Begin(player.Options{Seed: s.Seed, Mode: s.Mode, Nodes: s.Nodes, SIDs: s.SIDs, Acts: s.Acts})
	p.claims(same.Advance(s.Ends, 1<<30))
}

// TestPlayRule: the run without a rule ends with what the rule prevents, and says which sentence was broken. Then the
// visitor plays the same run with the rule. chaos/planted leaves out every rule.
func TestPlayRule(t *testing.T) {
	t.Parallel()
	// With another seed than the scene has, and an act of the visitor.
	p := openPlay(t, "#seed=3&mode=calm&nodes=5&sids=4&rule=ceiling&acts=kill:3s:n5:1s;cut:12s:n1:70s")
	p.faster("30")
	p.until("!document.querySelector('#broken').hidden")
	rules := player.Catalog().Rules
	left := rules[slices.IndexFunc(rules, func(r player.RuleText) bool { return r.Name == "ceiling" })]
	if shown := eval[string](p.page, "document.querySelector('#broken').innerText"); !strings.Contains(shown, left.Sentence) || !strings.Contains(shown, left.Claim) {
		t.Errorf("the sentence %q of %s is not in %q", left.Sentence, left.Claim, shown)
	}
	twins := eval[[]string](p.page, "[...document.querySelectorAll('#broken li')].map((li) => li.textContent)")
	if len(twins) != 2 || twins[0] == twins[1] || twins[0][:flakeLen] != twins[1][:flakeLen] || p.field("duplicates") == "0" {
		t.Errorf("%q, and %s duplicates", twins, p.field("duplicates"))
	}
	seed, acts := p.field("seed"), p.field("acts")
	if seed != "3" || !strings.HasPrefix(acts, "kill:3s:n5:1s;cut:12s:n1:") {
		t.Errorf("the run has seed %s, acts %s", seed, acts)
	}
	p.run(click("#broken button"))
	p.until("rule === '' && ended && document.querySelector('#broken').hidden && document.querySelector('#guide-text').textContent.includes('the rule held')")
	p.repeated()
	if p.field("duplicates") != "0" || p.field("seed") != seed || p.field("acts") != acts {
		t.Errorf("with the rule: %s duplicates, seed %s, acts %s; it was seed %s, acts %s", p.field("duplicates"), p.field("seed"), p.field("acts"), seed, acts)
	}
	link, title, hash := eval[string](p.page, "location.hash"), eval[string](p.page, "scene.title"), eval[string](p.page, "view.hash")
	again := openPlay(t, link)
	again.faster("30")
	again.until("rule === '' && ended && document.querySelector('#guide-text').textContent.includes('the rule held')")
	if got, end := eval[string](again.page, "scene.title"), eval[string](again.page, "view.hash"); got != title || end != hash {
		t.Errorf("the link %s plays %q to hash %s, and it was %q with hash %s", link, got, end, title, hash)
	}
}

// TestPlaySceneLeft: the counter says how fast a scene is played, and a visitor who acts in a scene leaves it, since the
// rest of its texts would be false.
func TestPlaySceneLeft(t *testing.T) {
	t.Parallel()
	p := openPlay(t, "#scene=restore")
	p.until("stepAt === 0")
	p.run(click("#next")) // 46 s pass until the next text, in 8.
	p.until(`/^1× \(([2-9]|\d\d)\.\d×\)$/.test(document.querySelector("[data-field=speed]").textContent)`)
	p.run(click("#acts button[value^=kill]"))
	p.until(`scene === null && document.querySelector("#guide-title").textContent === "Free play"`)
	if link, said := eval[string](p.page, "location.hash"), eval[string](p.page, `document.querySelector("#said").textContent`); strings.Contains(link, "scene=") || !strings.Contains(link, "kill:") || said == "" {
		t.Errorf("after an act in a scene the link is %s, and the page says %q", link, said)
	}
	p.until(`document.querySelector("[data-field=speed]").textContent === "1×"`)
}

const flakeLen = 13

// TestPlayLink: what a visitor does is in the link, and the link repeats it.
func TestPlayLink(t *testing.T) {
	t.Parallel()
	p := openPlay(t, "#seed=18446744073709551615&mode=calm&nodes=5")
	p.faster("10")
	for i, keys := range []string{"2k", "3p", "4S", "1c", "5g", "0a"} {
		p.until(fmt.Sprintf("view.now > %d && playing", 2000*(i+1)))
		p.run(sendKeys("#main", keys))
		if said := eval[string](p.page, "document.querySelector('#said').textContent"); said != "" {
			t.Errorf("after the keys %s the page says %q", keys, said)
		}
	}
	p.until("view.now > 20e3")
	p.pause()
	p.repeated()
	acts := p.field("acts")
	for _, kind := range []string{"kill:", "pause:", "step:", "cut:", "gossip:", "etcd:"} {
		if !strings.Contains(acts, kind) {
			t.Errorf("%s is not among the acts %s", kind, acts)
		}
	}
	again := openPlay(t, eval[string](p.page, "location.hash"))
	again.faster("10")
	again.until("view.now > 15e3")
	again.pause()
	again.repeated()
	if got := again.field("acts"); got != acts {
		t.Errorf("the link has the acts %s, and they were %s", got, acts)
	}
	again.run(click("#copy")) // It says so, or why not.
	again.until("document.querySelector('#said').textContent")

	// The form shows what the run has, and not what was chosen before.
	all := openPlay(t, "#seed=640&mode=everything")
	all.until("view && document.querySelector('#count').value === '8' && view.nodes.length === 8")
	all.run(click("#finish"))
	all.until("(finishing || view.over) && document.querySelector('#speed').value === (finishing ? '' : String(speed))")
}

// TestPlayTimeline: the timeline says in words what it draws, zooms, and follows the run again when it is asked to.
func TestPlayTimeline(t *testing.T) {
	t.Parallel()
	p := openPlay(t, "#seed=7&mode=calm&nodes=3&acts=drift:2s:n1:500us;step:3s:n2:60s;kill:4s:n1:10s;pause:4s:n3:5s;etcd:5s::3s")
	p.faster("3")
	p.until("view.now > 10e3")
	p.pause()
	for _, at := range []struct {
		row, ms int
		want    []string
	}{
		{0, 2000, []string{"n1: ", "clock drifts, +500 µs a second"}},
		{0, 100, []string{"n1: ", "starting"}},
		{0, 6000, []string{"n1: ", "sid ", "term 1", "holder gone", "down", "etcd is away"}},
		{1, 3000, []string{"n2: ", "clock +60.0 s"}},
		{2, 4100, []string{"n3: ", "paused"}},
		{2, 8900, []string{"n3: ", "paused"}},
		{2, 59000, nil},
	} {
		got := eval[string](p.page, fmt.Sprintf("timeline.at(timeline.x(%d), timeline.rowHeight * %d.5)", at.ms, at.row))
		if at.want == nil && got != "" {
			t.Errorf("in %d ms nothing is drawn, and it says %q", at.ms, got)
		}
		for _, want := range at.want {
			if !strings.Contains(got, want) {
				t.Errorf("row %d at %d ms says %q, which lacks %q", at.row, at.ms, got, want)
			}
		}
	}
	// A window and a pause are drawn, as is the time without etcd, and where nothing was is nothing.
	drawn := eval[[]int](p.page, `[[9200, 1.5], [8500, 2.9], [6500, 1.97], [57000, 2.5]].map(([t, row]) =>
		timeline.canvas.getContext("2d").getImageData(timeline.x(t) * devicePixelRatio, row * timeline.rowHeight * devicePixelRatio, 1, 1).data[3])`)
	if slices.Contains(drawn[:3], 0) || drawn[3] != 0 {
		t.Errorf("what is drawn at a window, a pause, without etcd, and of the future: %d", drawn)
	}
	p.run(click("#back-second")) // Moments are exact after it, too.
	if got := eval[string](p.page, "timeline.at(timeline.x(4100), timeline.rowHeight * 2.5)"); !strings.Contains(got, "paused") {
		t.Errorf("after a second back row 2 at 4100 ms says %q", got)
	}
	if marks := eval[string](p.page, "JSON.stringify(past.rows.map((r) => r.marks))"); strings.Contains(marks, "NaN") || strings.Contains(marks, "+0 µs") {
		t.Errorf("the timeline has marks that say nothing: %s", marks)
	}
	// In the scene of the pause the window of n1, which does not hold sid 0, is sealed when its sid is another's.
	p.run(click(`#scenes button[value=pause]`))
	p.faster("30")
	p.tour(player.Catalog().Scenes[1])
	p.until("ended")
	if got := eval[string](p.page, "{ const w = past.rows[0].windows.filter((w) => w.until !== null); JSON.stringify(w.map((w) => [w.sid > 0, w.until > 52e3 && w.until < 75e3, w.ceil === past.rows[1].windows[0].base])) }"); got != "[[true,true,true]]" {
		t.Errorf("n1 has sealed windows %s", got)
	}
	p.run(click("#leave"))
	p.until("!pinned")
	p.faster("3")
	p.pause()
	shown := func() float64 { return eval[float64](p.page, "timeline.data.to - timeline.data.from") }
	p.run(sendKeys("#main", "+"))
	p.until("width === 30e3 && timeline.data.to - timeline.data.from < 31e3")
	p.run(click("#zoom-out"), click("#earlier"))
	p.until("pinned && !document.querySelector('#follow').hidden")
	if got := shown(); math.Abs(got-60e3) > 1 {
		t.Errorf("after zooming in and out %v ms are shown", got)
	}
	eval[int](p.page, `{ const c = document.querySelector("#timeline"), at = { clientX: 0, clientY: 0, bubbles: true, cancelable: true };
		c.dispatchEvent(new WheelEvent("wheel", { ...at, deltaY: -1, ctrlKey: true })); 1 }`)
	p.until("timeline.data.to - timeline.data.from < 49e3")
	p.run(click("#follow"))
	p.until("!pinned && timeline.data.from <= view.now && view.now < timeline.data.to")
}

// TestPlayActs: each button does what it says, and the page shows it.
func TestPlayActs(t *testing.T) {
	t.Parallel()
	p := openPlay(t, "#seed=5&mode=calm&nodes=4")
	p.faster("10")
	press := func(node int, kind, shown string) {
		t.Helper()
		p.run(click(fmt.Sprintf("#cards [data-node='%d'] input", node)), click(fmt.Sprintf("#acts button[value^='%s']", kind)))
		if said := eval[string](p.page, "document.querySelector('#said').textContent"); said != "" {
			t.Errorf("%s: the page says %q", kind, said)
		}
		p.until(shown)
	}
	p.until("view.now > 31e3") // There is a backup.
	press(0, "drift:*:500us", "past.rows[0].marks.at(-1)?.text === 'clock drifts, +500 µs a second'")
	press(0, "drift:*:-500us", "past.rows[0].marks.at(-1)?.text === 'clock drifts, -500 µs a second'")
	press(1, "step:*:60s", "past.rows[1].marks.at(-1)?.text === 'clock +60.0 s'")
	press(1, "fix", "past.rows[1].marks.at(-1)?.text.startsWith('clock -60.0 s')")
	press(2, "replay", "document.querySelector('#cards [data-node=\"2\"]').textContent.includes('answers of etcd are lost')")
	press(-1, "restore", "view.nodes.some((n) => n.reason === 'HISTORY_REWOUND')")
	press(-1, "recover", "view.etcd.era === 2")
	p.until("view.nodes.every((n) => n.serving)")
	for i := range 4 {
		press(i, "gossip", fmt.Sprintf("view.nodes.slice(0, %d).every((n) => n.gossipCut)", i+1))
	}
	p.pause()
	p.repeated()
	if got := len(strings.Split(p.field("acts"), ";")); got != 11 || p.field("duplicates") != "0" || p.field("disorder") != "0" {
		t.Errorf("%d acts, %s duplicates: %s", got, p.field("duplicates"), p.field("acts"))
	}
}

// TestPlayAddress: nothing that a visitor presses or mistypes loses the run.
func TestPlayAddress(t *testing.T) {
	t.Parallel()
	p := openPlay(t, "#seed=9&mode=calm&nodes=3")
	p.until("view.now > 500")
	before := eval[string](p.page, "location.hash")
	eval[int](p.page, "document.querySelector('.skip').click(), 1")
	p.run(chromedp.Sleep(300 * time.Millisecond))
	if after := eval[string](p.page, "location.hash"); after != before || p.field("seed") != "9" || !eval[bool](p.page, "document.activeElement.id === 'main'") {
		t.Errorf("the link to the simulation leads from %s to %s, seed %s", before, after, p.field("seed"))
	}
	const drawn = "past.rows.reduce((n, r) => n + r.windows.length, 0)"
	p.until(drawn + " >= 3")
	for _, bad := range []string{"rule=ceiling&acts=bogus", "acts=bogus", "rule=nothing", "with=nothing", "seed=x", "seed=1&mode=calm&nodes=99", "seed=1&mode=everything&minutes=-1"} {
		eval[int](p.page, fmt.Sprintf("document.querySelector('#problem').hidden = true, location.hash = %q, 1", bad))
		p.until("!document.querySelector('#problem').hidden")
		if windows := eval[int](p.page, drawn); windows < 3 || p.field("seed") != "9" {
			t.Errorf("after %s the timeline has %d windows, of seed %s", bad, windows, p.field("seed"))
		}
		now := eval[float64](p.page, "play(true), view.now")
		p.until(fmt.Sprintf("view.now > %f", now))
	}
	// A program that ended is started anew for the next run.
	eval[int](p.page, "sim.advance = sim.exit = () => { throw new Error('Go program has already exited') }, play(true), 1")
	p.until("document.querySelector('#problem').textContent.includes('already exited')")
	p.run(click("#new-seed"))
	p.until("document.querySelector('#problem').hidden && view.seed !== '9' && view.now > 500")
	// The browser reports exceptions at the end of the test.
	eval[int](p.page, "location.hash = 'seed=15&mode=everything&minutes=0.5', 1")
	p.until("view.mode === 'everything' && view.over && document.body.dataset.over === 'true' && document.querySelector('#problem').hidden")
	want := sim.Run(15, sim.Options{Mode: sim.Everything, Virtual: 30 * time.Second})
	if got := p.field("hash"); got != fmt.Sprintf("%016x", want.Hash) {
		t.Errorf("with half a minute of faults the page shows hash %s, the seed has %016x", got, want.Hash)
	}
	if link := eval[string](p.page, "location.hash"); !strings.Contains(link, "minutes=0.5") {
		t.Errorf("the link lacks the minutes: %s", link)
	}
}

// TestPlayFile: the page works as a file, without a server, and loads its mutants.
func TestPlayFile(t *testing.T) {
	t.Parallel()
	browser(t)
	root, err := buildPlay()
	fatal.If(t, err)
	p := played{open(t, "file://"+root, "index.html#seed=4&mode=calm&nodes=3")}
	p.until("view && view.now > 1000")
	p.pause()
	p.repeated()
	first := eval[string](p.page, "location.hash")
	p.run(click(`#rules input[value=ceiling]`))
	p.until("!document.querySelector('#broken').hidden")
	for _, link := range eval[[]string](p.page, "[...document.querySelectorAll('#about a, #broken a')].map((a) => a.href)") {
		u, err := url.Parse(link)
		fatal.If(t, err)
		text, err := os.ReadFile(u.Path)
		if heading := strings.ReplaceAll(u.Fragment, "-", " "); err != nil || !strings.Contains(strings.ToLower(string(text)), "# "+heading) {
			t.Errorf("%s leads nowhere: %v", link, err)
		}
	}
	// Another run hides what the one before broke as soon as it is asked for, and "back" leads to the runs before.
	p.run(click("#rules input[value=compare]"))
	if !eval[bool](p.page, "rule === 'compare' || document.querySelector('#broken').hidden") {
		t.Error("what was broken without the rule ceiling is shown while the program without the rule compare is loaded")
	}
	p.until("rule === 'compare'")
	for _, want := range []string{"rule === 'ceiling'", fmt.Sprintf("location.hash === %q && rule === '' && view.seed === '4'", first)} {
		eval[int](p.page, "history.back(), 1")
		p.until(want)
	}
}

func reducedMotion(p *page) {
	p.call("Emulation.setEmulatedMedia", map[string]any{"features": []any{map[string]any{"name": "prefers-reduced-motion", "value": "reduce"}}}, nil)
}

// TestPlayAccessible: axe-core finds nothing, in light and dark; on a phone nothing is wider than the screen.
func TestPlayAccessible(t *testing.T) {
	t.Parallel()
	source := axe(t)
	for _, look := range []struct {
		name    string
		options []option
	}{{"light", nil}, {"dark", []option{dark}}} {
		p := openPlay(t, "#seed=7&mode=calm&nodes=5&acts=step:3s:n2:60s;cut:3s:n4:30s;kill:4s:n1:10s;pause:4s:n3:10s", look.options...)
		p.faster("3")
		p.until("view.now > 9e3 && document.querySelector('#cards [data-state=down]')")
		p.run(click("#keys summary"), click("#log-section summary"))
		for _, state := range []string{"free", "scene", "rule"} {
			switch state {
			case "scene":
				p.run(click("#scenes button"))
				p.until("scene && stepAt === 0")
			case "rule":
				p.run(click("#rules input[value=ceiling]"))
				p.until("!document.querySelector('#broken').hidden")
			}
			for _, width := range []int64{1400, 360} {
				p.run(chromedp.EmulateViewport(width, 900))
				p.until(fmt.Sprintf("innerWidth === %d", width))
				if wide := eval[int64](p.page, "document.documentElement.scrollWidth"); wide > width {
					t.Errorf("%s, %s: the page is %d px wide on a screen of %d", look.name, state, wide, width)
				}
				p.accessible(source, fmt.Sprintf("%s, %s, %d px", look.name, state, width))
			}
		}
	}
}
