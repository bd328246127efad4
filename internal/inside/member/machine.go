package member

// Machine is one member's start: what it has heard, and what is next. The shell carries out each step, and tells what
// came of it. It is not safe for concurrent use.
type Machine struct {
	own  Own
	data *Data
	seen map[string]Answer
	step Step // the last one
}

// NewMachine returns the start of own with what its directory holds; nil: nothing. For restored data in which etcd
// has never run, own is what OfRestored returns.
func NewMachine(own Own, data *Data) *Machine {
	return &Machine{own: own, data: data, seen: map[string]Answer{}}
}

// Event is what came of a step.
type Event interface{ event() }

type (
	// Tick says that a pause is over, or that nothing has happened yet.
	Tick struct{}
	// Heard is what the others answered to Ask, by address. Where lost members are replaced, each list of members
	// in it is the one that a majority has.
	Heard map[string]Answer
	// There is what the address answered that AskAt named.
	There Answer
	// Listed has the cluster and its members as a majority has them.
	Listed Answer
	// Done says that the step was carried out.
	Done struct{}
	// Failed says why the step may not have been carried out.
	Failed struct{ Err error }
)

func (Tick) event()   {}
func (Heard) event()  {}
func (There) event()  {}
func (Listed) event() {}
func (Done) event()   {}
func (Failed) event() {}

// Step takes what came of the last step, and returns the next one. After Start, Begin and Join there is none.
func (m *Machine) Step(e Event) Step {
	step, err := m.next(e)
	if err != nil {
		step = Step{Action: Wait, Why: err.Error(), Err: err}
	}
	m.step = step
	return step
}

// Data returns what the directory holds; nil: nothing.
func (m *Machine) Data() *Data { return m.data }

func (m *Machine) next(e Event) (Step, error) {
	switch e := e.(type) {
	case Failed:
		return Step{}, e.Err
	case Heard:
		m.hear(e)
		if m.data != nil && m.own.Token == "" {
			if at := elsewhere(m.own, *m.data, m.seen); at != "" {
				return Step{Action: AskAt, At: at}, nil
			}
		}
		return m.decide()
	case There:
		m.own.Before = Answer(e)
		return m.decide()
	case Listed:
		return Decide(m.own, nil, Heard{"a majority": Answer(e)})
	case Done:
		switch m.step.Action {
		case Intend:
			m.own.Intends = true
		case Discard:
			m.data, m.own.Intends = nil, false
		case Add:
			return Step{Action: Wait, Why: "the members to list " + m.own.Host}, nil
		case Move:
			m.data.Host, m.data.Peer = m.own.Host, m.own.Peer
			return Step{Action: Start}, nil
		}
	}
	return Step{Action: Ask}, nil
}

// hear keeps answers. In a node, a host that waited and is silent now has begun: it closes the port at which it
// waited. So it has waited until it answers as a member. A pod answers whatever it does.
func (m *Machine) hear(answers Heard) {
	if m.own.Replaces {
		m.seen = answers
		return
	}
	for host, a := range answers {
		if a.Err == nil || m.seen[host].Waiting == nil {
			m.seen[host] = a
		}
	}
}

// decide is Decide, but a member joins only by the list that a majority has. Each member's own list may be behind, and
// this one could come back as itself without the data that it had meanwhile.
func (m *Machine) decide() (Step, error) {
	step, err := Decide(m.own, m.data, m.seen)
	if err == nil && step.Action == Join && !m.own.Replaces {
		step.Action = List
	}
	return step, err
}
