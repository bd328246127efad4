package check

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// family holds the labels of a series by name, with their values; the values of
// target labels and of recorded series are unknown, which is nil.
type family map[string]map[string]bool

// catalog holds every series that an expression may use, by name.
type catalog map[string]family

// targets are the labels that Prometheus adds when it scrapes.
var targets = []string{"namespace", "job", "instance"}

// set is a set of label names.
type set map[string]bool

func setOf(names ...string) set {
	out := set{}
	for _, n := range names {
		out[n] = true
	}
	return out
}

func (s set) String() string { return "{" + strings.Join(slices.Sorted(maps.Keys(s)), ", ") + "}" }

// has fails if a name is not in s.
func (s set) has(what string, names ...string) error {
	for _, n := range names {
		if !s[n] {
			return fmt.Errorf("%s uses label %q, which is not in %v", what, n, s)
		}
	}
	return nil
}

// read returns the labels of an expression's result. It fails if the expression uses
// a series, label or value that does not exist, or matches two sides that never match.
func (c catalog) read(text string) (set, error) {
	e, err := parser.NewParser(parser.Options{}).ParseExpr(text)
	if err != nil {
		return nil, err
	}
	return c.labels(e)
}

func (c catalog) labels(e parser.Expr) (set, error) {
	switch e := e.(type) {
	case *parser.NumberLiteral, *parser.StringLiteral:
		return set{}, nil
	case *parser.ParenExpr:
		return c.labels(e.Expr)
	case *parser.UnaryExpr:
		return c.labels(e.Expr)
	case *parser.MatrixSelector:
		return c.labels(e.VectorSelector)
	case *parser.VectorSelector:
		return c.selector(e)
	case *parser.AggregateExpr:
		return c.aggregate(e)
	case *parser.Call:
		return c.call(e)
	case *parser.BinaryExpr:
		return c.binary(e)
	}
	return nil, fmt.Errorf("%T is not supported by this check: %s", e, e)
}

func (c catalog) selector(e *parser.VectorSelector) (set, error) {
	f, ok := c[e.Name]
	if !ok {
		return nil, fmt.Errorf("no node exposes %s", e.Name)
	}
	for _, m := range e.LabelMatchers {
		if m.Name == "__name__" {
			continue
		}
		values, ok := f[m.Name]
		if !ok {
			return nil, fmt.Errorf("%s has no label %q", e.Name, m.Name)
		}
		if values == nil {
			continue
		}
		for _, alternative := range strings.Split(m.Value, "|") {
			one := regexp.MustCompile("^(?:" + alternative + ")$")
			if m.Type == labels.MatchEqual || m.Type == labels.MatchNotEqual {
				one = regexp.MustCompile("^" + regexp.QuoteMeta(alternative) + "$")
			}
			if !slices.ContainsFunc(slices.Collect(maps.Keys(values)), one.MatchString) {
				return nil, fmt.Errorf("%s has no %s like %q, only %q", e.Name, m.Name, alternative, slices.Sorted(maps.Keys(values)))
			}
		}
	}
	return setOf(slices.Collect(maps.Keys(f))...), nil
}

func (c catalog) aggregate(e *parser.AggregateExpr) (set, error) {
	in, err := c.labels(e.Expr)
	if err != nil {
		return nil, err
	}
	if e.Without {
		return nil, fmt.Errorf("without is not supported by this check: %s", e)
	}
	if err := in.has(e.Op.String()+" by", e.Grouping...); err != nil {
		return nil, err
	}
	out := setOf(e.Grouping...)
	if e.Op == parser.COUNT_VALUES {
		out[e.Param.(*parser.StringLiteral).Val] = true
	}
	return out, nil
}

func (c catalog) call(e *parser.Call) (set, error) {
	out := set{}
	for _, a := range e.Args {
		in, err := c.labels(a)
		if err != nil {
			return nil, err
		}
		maps.Copy(out, in)
	}
	switch e.Func.Name {
	case "histogram_quantile":
		if err := out.has(e.Func.Name, "le"); err != nil {
			return nil, err
		}
		delete(out, "le")
	case "abs", "changes", "increase", "last_over_time", "max_over_time", "min_over_time", "rate", "time", "vector":
	default:
		return nil, fmt.Errorf("function %s is not supported by this check", e.Func.Name)
	}
	return out, nil
}

func (c catalog) binary(e *parser.BinaryExpr) (set, error) {
	left, err := c.labels(e.LHS)
	if err != nil {
		return nil, err
	}
	right, err := c.labels(e.RHS)
	if err != nil {
		return nil, err
	}
	if e.LHS.Type() == parser.ValueTypeScalar {
		return right, nil
	}
	if e.RHS.Type() == parser.ValueTypeScalar {
		return left, nil
	}
	m := e.VectorMatching
	on := setOf(m.MatchingLabels...)
	switch {
	case e.Op == parser.LOR:
		both := set{}
		for n := range left {
			if right[n] {
				both[n] = true
			}
		}
		return both, nil
	case m.On:
		for _, side := range []set{left, right} {
			if err := side.has("on", m.MatchingLabels...); err != nil {
				return nil, err
			}
		}
	case len(on) > 0:
		return nil, fmt.Errorf("ignoring is not supported by this check: %s", e)
	default:
		if !maps.Equal(left, right) {
			return nil, fmt.Errorf("%v and %v never match: %s", left, right, e)
		}
		on = left
	}
	switch {
	case e.Op.IsSetOperator():
		return left, nil
	case m.Card == parser.CardManyToOne:
		if err := errors.Join(right.has("group_left", m.Include...), single(e.RHS, right, on)); err != nil {
			return nil, err
		}
		out := maps.Clone(left)
		maps.Copy(out, setOf(m.Include...))
		return out, nil
	case m.Card == parser.CardOneToOne:
		return on, errors.Join(single(e.LHS, left, on), single(e.RHS, right, on))
	}
	return nil, fmt.Errorf("%v is not supported by this check: %s", m.Card, e)
}

// single fails if several series of a side can have the same values of the labels
// that are matched on: Prometheus then fails to evaluate the expression. It does so
// only when there are several, so tests with one node do not show it.
func single(e parser.Expr, side, on set) error {
	rest := maps.Clone(side)
	for l := range on {
		delete(rest, l)
	}
	parser.Inspect(e, func(n parser.Node, _ []parser.Node) error {
		v, ok := n.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		for _, m := range v.LabelMatchers {
			if m.Type == labels.MatchEqual {
				delete(rest, m.Name)
			}
		}
		if strings.HasSuffix(v.Name, "info") {
			// One series for each target, whatever its labels.
			maps.DeleteFunc(rest, func(l string, _ bool) bool { return !slices.Contains(targets, l) })
		}
		return nil
	})
	if len(rest) > 0 {
		return fmt.Errorf("several series can match %v, since they differ in %v: %s", on, rest, e)
	}
	return nil
}

func TestReadFindsErrors(t *testing.T) {
	c := catalog{
		"a":    {"namespace": nil, "job": nil, "instance": nil, "kind": {"x": true, "y": true}},
		"info": {"namespace": nil, "job": nil, "instance": nil, "node": {"n": true}},
		"h":    {"job": nil, "le": {"1": true}},
	}
	const join = ` * on (namespace, job, instance) group_left (node) info`
	for text, want := range map[string]string{
		`a`:                                    "{instance, job, kind, namespace}",
		`sum by (job) (rate(a{kind="x"}[5m]))`: "{job}",
		`a{kind=~"x|y"}` + join:                "{instance, job, kind, namespace, node}",
		`a{kind="x"} / on (namespace, job, instance) info`:   "{instance, job, namespace}",
		`sum by (job) (a) / (sum by (job) (info) > 0) > 0.5`: "{job}",
		`histogram_quantile(0.9, sum by (job, le) (h))`:      "{job}",
		`count_values by (job) ("sid", a)`:                   "{job, sid}",
		`a and on (job) info`:                                "{instance, job, kind, namespace}",
		`sum(a) or vector(0)`:                                "{}",

		`b`:                                      "no node exposes b",
		`a{sort="x"}`:                            `no label "sort"`,
		`a{kind="z"}`:                            `no kind like "z"`,
		`a{kind!~"x|z"}`:                         `no kind like "z"`,
		`sum by (node) (a)`:                      `"node"`,
		`a * on (node) group_left () a`:          `"node"`,
		`a * on (job) group_left (space) info`:   `"space"`,
		`a / on (namespace, job, instance) info`: "differ in {kind}",
		`a * on (namespace, job) group_left (node) info`: "differ in {instance}",
		`sum by (job) (a) / info`:                        "never match",
		`histogram_quantile(0.9, sum by (job) (h))`:      `"le"`,
		`sum by (job (a)`:                                "parse error",
		`quantile_over_time(0.9, a[5m])`:                 "not supported",
	} {
		got, err := c.read(text)
		if fails := !strings.HasPrefix(want, "{"); fails {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v and %v, want error %q", text, got, err, want)
			}
		} else if err != nil || got.String() != want {
			t.Errorf("%s: %v and %v, want %s", text, got, err, want)
		}
	}
}
