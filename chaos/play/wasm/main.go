//go:build js && wasm

// Command wasm is the simulation for a page. It hands the page an object whose functions take
// and return JSON, and runs until its function exit is called.
package main

import (
	"encoding/json"
	"syscall/js"

	"github.com/flakelease/allocator/chaos/play/player"
)

func main() {
	var p player.Player
	done := make(chan struct{})
	sim := js.Global().Get("Object").New()
	for name, f := range map[string]func(args []js.Value) any{
		"begin": func(args []js.Value) any {
			var o player.Options
			if err := json.Unmarshal([]byte(args[0].String()), &o); err != nil {
				return player.View{Error: err.Error()}
			}
			return p.Begin(o)
		},
		"advance": func(args []js.Value) any { return p.Advance(args[0].Float(), args[1].Int()) },
		"step":    func([]js.Value) any { return p.Step() },
		"act":     func(args []js.Value) any { return p.Act(args[0].String()) },
		"back":    func(args []js.Value) any { return p.Back(args[0].Int()) },
		"catalog": func([]js.Value) any { return player.Catalog() },
		"exit":    func([]js.Value) any { close(done); return nil },
	} {
		sim.Set(name, js.FuncOf(func(_ js.Value, args []js.Value) any { return player.JSON(f(args)) }))
	}
	js.Global().Call("allocatorReady", sim)
	<-done
}
