//go:build js && wasm

// Command guest is the part of the playground that runs in the browser, in a worker: see ../page/worker.js.
//
// It defines the function redlatchBegin, to which the worker passes the settings as JSON, and redlatchDo, which carries
// out an action of a client. It calls redlatchChanged with the state as JSON.
package main

import (
	"encoding/json"
	"syscall/js"
	"time"

	"github.com/redlatch/redlatch/playground/stage"
)

// atMostEvery is the least time between two states that are sent.
const atMostEvery = 40 * time.Millisecond

func main() {
	var played *stage.Stage
	changed := make(chan struct{}, 1)
	change := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	js.Global().Set("redlatchBegin", js.FuncOf(func(_ js.Value, args []js.Value) any {
		var settings stage.Settings
		err := json.Unmarshal([]byte(args[0].String()), &settings)
		if err != nil {
			return err.Error()
		}
		played, err = stage.New(settings, change)
		if err != nil {
			return err.Error()
		}
		go send(played, changed)
		return ""
	}))
	js.Global().Set("redlatchDo", js.FuncOf(func(_ js.Value, args []js.Value) any {
		if err := played.Do(args[0].Int(), args[1].String()); err != nil {
			return err.Error()
		}
		return ""
	}))
	select {} // the callbacks need the program
}

// send sends the state whenever it has changed.
func send(s *stage.Stage, changed <-chan struct{}) {
	for range changed {
		text, err := json.Marshal(s.State())
		if err != nil {
			panic(err) // a state has numbers and texts only
		}
		js.Global().Call("redlatchChanged", string(text))
		time.Sleep(atMostEvery)
	}
}
