// The checks of the site, and a server for it. A module of its own, so that what drives
// the browser is not in the module graph of those who compile against the product.
module github.com/flakelease/allocator/deploy/site

go 1.26.0

require (
	github.com/chromedp/chromedp v0.23.0
	golang.org/x/net v0.61.0
)

require (
	github.com/chromedp/cdproto v0.159.0 // indirect
	github.com/go-json-experiment/json v0.0.0-20260213210345-44df1a37e875 // indirect
)
