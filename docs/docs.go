// Package docs has the pages that tell operators what to do, as of the version of the program.
// Package runbook shows them.
package docs

import "embed"

// Pages has the how-to pages and the references, as Markdown.
//
//go:embed how-to/*.md reference/*.md
var Pages embed.FS
