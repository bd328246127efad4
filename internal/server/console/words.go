package console

import (
	"fmt"
	"slices"
	"strings"

	"github.com/flakelease/allocator/docs"
)

// explained are the words of the pages that a reader may ask about. A click, a tap or Enter on
// one shows the sentence of the glossary.
var explained = []string{"lead", "term", "verdict"}

// meaning is a word with its sentence in the glossary.
type meaning struct {
	Word, Says string
}

// meanings returns those of explained, as the program's glossary has them.
func meanings() (out []meaning) {
	glossary, err := docs.Pages.ReadFile("reference/glossary.md")
	if err != nil {
		panic(err) // it is embedded
	}
	for line := range strings.Lines(string(glossary)) {
		cells := strings.Split(line, "|")
		if len(cells) != 4 {
			continue
		}
		word, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(cells[1]), "["), "]")
		if slices.Contains(explained, word) {
			out = append(out, meaning{word, strings.ReplaceAll(strings.TrimSpace(cells[2]), "`", "")})
		}
	}
	if len(out) != len(explained) {
		panic(fmt.Sprintf("console: the glossary explains %v of %v", out, explained))
	}
	return out
}
