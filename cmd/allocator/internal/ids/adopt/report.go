package adopt

import "github.com/flakelease/allocator/internal/audit"

// Report is what a sample is, as its JSON shows it.
type Report struct {
	Clean      bool      `json:"clean"` // a layout fits all of it, and no ID is there twice
	IDs        int64     `json:"ids"`
	Invalid    int64     `json:"invalid"`    // lines that are no ID
	Duplicates uint64    `json:"duplicates"` // surplus: an ID that is there three times counts two
	Disorder   int64     `json:"disorder"`   // IDs below the one of the line before
	Layouts    []Verdict `json:"layouts"`    // the named one, then those that fit, that with the youngest IDs first
	Rounded    string    `json:"rounded"`    // why the IDs are not those that generators made; "": no sign of it
	Hints      []Hint    `json:"hints,omitempty"`
	Plan       *Plan     `json:"plan"` // nil: rounded, no layout fits, or several do and none has IDs of today

	ShownInvalid    []audit.InvalidLine `json:"invalid_shown"` // the first ten
	ShownDuplicates []audit.DuplicateID `json:"duplicates_shown"`

	header string // a first line that is no ID
}

// Verdict says whether a layout and epoch fit.
type Verdict struct {
	Layout string   `json:"layout"`         // a value of --layout
	Same   []string `json:"same,omitempty"` // layouts of the same bits and epoch: IDs do not tell them apart
	Fits   bool     `json:"fits"`
	Why    string   `json:"why,omitempty"` // why it does not fit
	From   string   `json:"from,omitempty"`
	To     string   `json:"to,omitempty"`
}

// Hint is a layout and epoch that the IDs may have, where no known one fits.
type Hint struct {
	Layout  string `json:"layout"`            // a value of --layout
	Library string `json:"library,omitempty"` // "": its epoch is the latest, and earlier by the newest ID's age
}

// StepBack says that IDs of a sid go back by hours.
type StepBack struct {
	SID  int    `json:"sid"`
	Line uint64 `json:"line"`
	By   string `json:"by"`
}

// Plan is how a space goes on from a sample.
type Plan struct {
	Layout   string     `json:"layout"`
	From     string     `json:"from"` // times of the least and the greatest ID of the past
	To       string     `json:"to"`
	Above    string     `json:"above"` // the greatest ID of the past
	Stale    bool       `json:"stale"` // the last ID is older than a day
	Holders  int        `json:"holders"`
	SIDsSeen int        `json:"sids_seen"`
	Lowest   int        `json:"lowest_sid"`
	Highest  int        `json:"highest_sid"`
	SIDs     []SIDCount `json:"sids"`              // the ten with most IDs
	NodeSIDs string     `json:"node_sids"`         // for nodes; Init keeps the others for the old generators; "": none
	Future   int64      `json:"future"`            // IDs more than a minute ahead of the clock
	Last     string     `json:"last,omitempty"`    // the greatest of these
	LastAt   string     `json:"last_at,omitempty"` // time of Last
	Ahead    string     `json:"-"`                 // what Last being some hours ahead can mean
	StepBack *StepBack  `json:"step_back,omitempty"`
	Fast     []int      `json:"future_sids"`     // sids that have IDs of the future alone: a fast clock, or no sids
	MoreBits int64      `json:"more_bits"`       // IDs that the layout cannot have
	Outside  int64      `json:"outside"`         // IDs of sids that nobody is said to have
	Init     string     `json:"init,omitempty"`  // the commands
	Serve    string     `json:"serve,omitempty"` // a node beside the old generators
}

// SIDCount is how many IDs a sid has.
type SIDCount struct {
	SID int   `json:"sid"`
	IDs int64 `json:"ids"`
}
