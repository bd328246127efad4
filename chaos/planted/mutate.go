package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A mutant is one small change of a file, made by a rule and not by a person.
type mutant struct {
	File   string // from the repository's root, with slashes
	Line   int
	Func   string // Func contains the changed line.
	Before string // the changed line, without spaces around it
	After  string // After replaces Before; "" deletes what was changed.
	text   string // The text is that of the whole changed file.
}

// keys are what a known survivor is found by, since line numbers change with every edit: the
// change itself, any change of its line, and any change of its function. The first is printed.
func (m mutant) keys() [3]string {
	after := m.After
	if after == "" {
		after = "(deleted)"
	}
	where := m.File + " " + m.Func + "\n"
	line := where + "- " + m.Before + "\n"
	return [...]string{line + "+ " + after + "\n", line + "+ (any change)\n", where + "- (any line)\n"}
}

// explains reports whether a list has a reason for m.
func explains(list string, m mutant) bool {
	keys := m.keys()
	return slices.ContainsFunc(keys[:], func(key string) bool { return strings.Contains(list, "\n"+key) })
}

// swaps are the operators that are exchanged.
var swaps = map[token.Token][]token.Token{
	token.LSS: {token.LEQ, token.GEQ}, token.LEQ: {token.LSS, token.GTR},
	token.GTR: {token.GEQ, token.LEQ}, token.GEQ: {token.GTR, token.LSS},
	token.EQL: {token.NEQ}, token.NEQ: {token.EQL},
	token.LAND: {token.LOR}, token.LOR: {token.LAND},
	token.ADD: {token.SUB}, token.SUB: {token.ADD}, token.MUL: {token.QUO}, token.QUO: {token.MUL},
	token.SHL: {token.SHR}, token.SHR: {token.SHL}, token.AND: {token.OR}, token.OR: {token.AND},
}

// mutantsOf returns every mutant of a file: each comparison and operator exchanged, each
// condition of an if never true, and each assignment, increment and call deleted.
// Statements that only panic are left alone: they are not reached.
func mutantsOf(file string, source []byte) ([]mutant, error) {
	files := token.NewFileSet()
	tree, err := parser.ParseFile(files, file, source, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var out []mutant
	for _, d := range tree.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Body == nil {
			continue
		}
		edit := func(from, to token.Pos, text string) {
			begin, end := files.Position(from), files.Position(to)
			changed := string(source[:begin.Offset]) + text + string(source[end.Offset:])
			line := func(s string) string {
				at := strings.LastIndexByte(s[:begin.Offset], '\n') + 1
				rest, _, _ := strings.Cut(s[at:], "\n")
				return strings.TrimSpace(rest)
			}
			m := mutant{File: file, Line: begin.Line, Func: f.Name.Name, Before: line(string(source)), text: changed}
			if text != "" {
				m.After = line(changed)
			}
			out = append(out, m)
		}
		ast.Inspect(f.Body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BinaryExpr:
				for _, other := range swaps[n.Op] {
					edit(n.OpPos, n.OpPos+token.Pos(len(n.Op.String())), other.String())
				}
			case *ast.IfStmt:
				from, to := files.Position(n.Cond.Pos()).Offset, files.Position(n.Cond.End()).Offset
				edit(n.Cond.Pos(), n.Cond.End(), "false && ("+string(source[from:to])+")")
			case *ast.ExprStmt:
				if call, ok := n.X.(*ast.CallExpr); ok && !panics(call) {
					edit(n.Pos(), n.End(), "")
				}
			case *ast.AssignStmt:
				if n.Tok != token.DEFINE {
					edit(n.Pos(), n.End(), "")
				}
			case *ast.IncDecStmt:
				edit(n.Pos(), n.End(), "")
			}
			return true
		})
	}
	return out, nil
}

func panics(call *ast.CallExpr) bool {
	f, ok := call.Fun.(*ast.Ident)
	return ok && f.Name == "panic"
}

// testsOf are the arguments of go test for packages whose own tests are not enough, or too
// slow to be run for each mutant: faults of whole nodes and processes are left out.
var testsOf = map[string][]string{
	"client": {"./client",
		"-skip=TestRandomFaults"},
	"internal/daemon": {"./internal/daemon",
		"-skip=TestFilesAreReplaced|TestHostileClients|TestEtcdAppears"},
	"internal/lease/keeper": {"./internal/lease/keeper", "-skip=OnEtcd"},
	"internal/lease/catalog": {"./internal/lease/catalog", "./internal/lease/protocol",
		"-skip=TestEveryCallFails|TestRandomSchedules"},
	"internal/lease/marker": {"./internal/lease/marker", "./internal/lease/protocol",
		"-skip=TestEveryCallFails|TestRandomSchedules"},
	"internal/lease/protocol": {"./internal/lease/protocol", "-seeds=30", "-skip=TestEveryCallFails"},
	// Its replies are checked where they are used.
	"internal/server/resp": {"./internal/server/resp", "./internal/server/respserver"},
}

// outcomes of a mutant.
const (
	killed   = "killed"
	survived = "SURVIVED"
	known    = "known"        // a survivor that the list explains
	notRun   = "not executed" // by any test
	invalid  = "invalid"      // does not compile
)

// listOfMutants explains the survivors.
const listOfMutants = "chaos/planted/mutants.txt"

// mutate runs the tests of a package with mutants of the package, or of one file, at most limit
// mutants, and prints the survivors that the list does not explain. A
// test that hangs with a mutant has noticed it.
func mutate(ctx context.Context, root, pkg string, limit, atOnce int, seed uint64) error {
	pkg = strings.TrimSuffix(strings.TrimPrefix(filepath.ToSlash(pkg), "./"), "/")
	explained, err := os.ReadFile(filepath.Join(root, listOfMutants))
	if err != nil {
		return err
	}
	which := "*.go"
	if strings.HasSuffix(pkg, ".go") {
		pkg, which = path.Split(pkg)
		pkg = strings.TrimSuffix(pkg, "/")
	}
	names, err := filepath.Glob(filepath.Join(root, pkg, which))
	if err != nil || len(names) == 0 {
		return fmt.Errorf("there is no Go file %s in %s", which, pkg)
	}
	args, ok := testsOf[pkg]
	if !ok {
		args = []string{"./" + pkg}
	}
	temp, err := os.MkdirTemp("", "mutants-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(temp) }()

	profile := filepath.Join(temp, "cover")
	began, timed := time.Now(), time.Now()
	for _, more := range [][]string{nil, {"-coverpkg=./" + pkg, "-coverprofile=" + profile}, nil} {
		timed = time.Now() // The last run compiles nothing.
		if out, err := goTest(ctx, root, runLimit, slices.Concat(more, args)); err != nil {
			return fmt.Errorf("the tests of %s fail without a mutant: %w\n%s", pkg, err, out)
		}
	}
	allowed := 3*time.Since(timed) + 5*time.Second
	covered, err := readProfile(profile)
	if err != nil {
		return err
	}
	var all []mutant
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		source, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		more, err := mutantsOf(pkg+"/"+filepath.Base(name), source)
		if err != nil {
			return err
		}
		all = append(all, more...)
	}
	found := len(all)
	if limit > 0 && limit < found {
		rnd := rand.New(rand.NewPCG(seed, seed))
		rnd.Shuffle(found, func(i, j int) { all[i], all[j] = all[j], all[i] })
		all = all[:limit]
		slices.SortFunc(all, func(a, b mutant) int {
			return strings.Compare(fmt.Sprintf("%s:%6d", a.File, a.Line), fmt.Sprintf("%s:%6d", b.File, b.Line))
		})
	}
	result := make([]string, len(all))
	each(len(all), atOnce, func(i int) {
		m := all[i]
		switch {
		case ctx.Err() != nil:
			return
		case explains(string(explained), m):
			result[i] = known
			return
		case !covered(m.File, m.Line):
			result[i] = notRun
		default:
			result[i] = m.try(ctx, root, filepath.Join(temp, strconv.Itoa(i)), allowed, args)
		}
		if result[i] == survived || result[i] == notRun {
			fmt.Printf("%s:%d %s\n%s\n", m.File, m.Line, result[i], m.keys()[0])
		}
	})
	if err := ctx.Err(); err != nil {
		return err
	}
	count := map[string]int{}
	for _, r := range result {
		count[r]++
	}
	fmt.Printf("%s: %d of %d mutants: %d killed, %d survived, %d known survivors, %d not executed, %d do not "+
		"compile; seed %d, %v\n",
		pkg, len(all), found, count[killed], count[survived], count[known], count[notRun], count[invalid], seed,
		time.Since(began).Round(time.Second))
	if count[survived]+count[notRun] > 0 {
		return errMissed
	}
	return nil
}

// errMissed says that tests did not notice a change. What they missed was printed.
var errMissed = errors.New("mutants survived: add tests that notice them, or say why they do not matter in " +
	listOfMutants)

// try runs the tests with m.
func (m mutant) try(ctx context.Context, root, dir string, allowed time.Duration, args []string) string {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err.Error()
	}
	defer func() { _ = os.RemoveAll(dir) }()
	list, err := overlay(root, dir, map[string]string{m.File: m.text})
	if err != nil {
		return err.Error()
	}
	out, err := goTest(ctx, root, allowed, append([]string{"-overlay=" + list}, args...))
	switch {
	case err == nil:
		return survived
	case bytes.Contains(out, []byte("[build failed]")) || bytes.Contains(out, []byte("[setup failed]")):
		return invalid
	}
	return killed
}

// goTest runs go test, and returns what it printed. allowed bounds the tests, without
// compiling.
func goTest(ctx context.Context, root string, allowed time.Duration, args []string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, allowed+runLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go",
		append([]string{"test", "-count=1", "-vet=off", "-failfast", "-timeout=" + allowed.String()}, args...)...)
	cmd.Dir = root
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // go test then ends its tests
	cmd.WaitDelay = 10 * time.Second
	return cmd.CombinedOutput()
}

// readProfile returns whether any test executes a line.
func readProfile(name string) (func(file string, line int) bool, error) {
	raw, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	type span struct{ from, to int }
	executed := map[string][]span{}
	for line := range strings.Lines(string(raw)) {
		// path/file.go:12.30,14.5 2 1
		file, rest, ok := strings.Cut(strings.TrimSpace(line), ":")
		var s span
		var column, statements, count int
		if !ok || file == "mode" {
			continue
		}
		if _, err := fmt.Sscanf(rest, "%d.%d,%d.%d %d %d", &s.from, &column, &s.to, &column, &statements,
			&count); err != nil {
			return nil, fmt.Errorf("profile: %q: %w", line, err)
		}
		if count > 0 {
			executed[path.Base(file)] = append(executed[path.Base(file)], s)
		}
	}
	return func(file string, line int) bool {
		return slices.ContainsFunc(executed[path.Base(file)],
			func(s span) bool { return s.from <= line && line <= s.to })
	}, nil
}
