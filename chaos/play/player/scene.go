package player

import (
	"cmp"
	"strconv"
	"strings"
	"time"

	"github.com/flakelease/allocator/chaos/sim"
)

// Scene is a run with a text.
type Scene struct {
	Name  string
	Title string
	Mode  sim.Mode // empty: calm
	Seed  uint64
	Nodes int
	SIDs  int // 0: as many as the layout has
	Acts  []sim.Act
	From  time.Duration // It is worth looking at from here on.
	Ends  time.Duration
	Says  []Line
	Then  string // what the visitor may try now
}

// Line is a sentence, and when it is said.
type Line struct {
	At   time.Duration
	Text string
}

// Options returns what plays s.
func (s Scene) Options() sim.Options {
	return sim.Options{Mode: cmp.Or(s.Mode, sim.Calm), Nodes: s.Nodes, SIDs: s.SIDs, Acts: s.Acts}
}

// Rule is a rule of the protocol that can be left out: a known bug of chaos/planted runs instead.
type Rule struct {
	Name     string
	Title    string
	Bug      string // its name in chaos/planted
	Claim    string // It breaks without the rule.
	Section  string // docs/DESIGN.md says Sentence there.
	Sentence string
	Scene    Scene
}

// Texts are what the page offers.
type Texts struct {
	Scenes []SceneText `json:"scenes"`
	Rules  []RuleText  `json:"rules"`
}

// SceneText is a Scene for the page. Times are milliseconds.
type SceneText struct {
	Name  string     `json:"name"`
	Title string     `json:"title"`
	Mode  sim.Mode   `json:"mode"`
	Seed  string     `json:"seed"`
	Nodes int        `json:"nodes"`
	SIDs  int        `json:"sids"`
	Acts  string     `json:"acts"`
	From  float64    `json:"from"`
	Ends  float64    `json:"ends"`
	Steps []StepText `json:"steps"`
	Then  string     `json:"then"`
}

// StepText is a Line for the page.
type StepText struct {
	At   float64 `json:"at"`
	Text string  `json:"text"`
}

// RuleText is a Rule for the page.
type RuleText struct {
	Name     string    `json:"name"`
	Title    string    `json:"title"`
	Bug      string    `json:"bug"`
	Claim    string    `json:"claim"`
	Sentence string    `json:"sentence"`
	Section  string    `json:"section"`
	Scene    SceneText `json:"scene"`
}

// Catalog returns what the page offers.
func Catalog() (out Texts) {
	for _, s := range Scenes {
		out.Scenes = append(out.Scenes, s.text())
	}
	for _, r := range Rules {
		out.Rules = append(out.Rules, RuleText{
			r.Name, r.Title, r.Bug, r.Claim, r.Sentence, r.Section, r.Scene.text(),
		})
	}
	return out
}

func (s Scene) text() SceneText {
	o := s.Options()
	t := SceneText{
		Name: s.Name, Title: s.Title, Mode: o.Mode, Seed: strconv.FormatUint(s.Seed, 10), Nodes: s.Nodes, SIDs: s.SIDs,
		From: millis(s.From), Ends: millis(s.Ends), Steps: []StepText{}, Then: s.Then, Acts: actsText(s.Acts),
	}
	for _, l := range s.Says {
		t.Steps = append(t.Steps, StepText{millis(l.At), l.Text})
	}
	return t
}

// actsText returns acts as sim.ParseActs reads them.
func actsText(list []sim.Act) string {
	out := make([]string, 0, len(list))
	for _, a := range list {
		out = append(out, a.String())
	}
	return strings.Join(out, ";")
}
