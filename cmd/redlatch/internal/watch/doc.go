// Package watch is the live view of the command "redlatch watch".
//
// A Source reads snapshots from Redis. A model turns snapshots, keys and the size of the terminal
// into a state, and render turns that state into lines. Both are pure. A screen writes the lines
// that changed. A terminal has the raw mode, the keys and the size.
//
//	Source --Snapshot--> model --render--> screen --> terminal
//	                       ^--- keys, size, time ------'
//
// A Page shows the same in a browser: it has a history of the last snapshots, and page.html draws
// its state.
//
// A look reads many locks with one command (look.lua), and sends fewer than 100 commands to each
// server. So, if very many locks are held, it reads only some of them again. A snapshot contains
// the latest reading of each.
//
// Redis tells nobody who acquires or loses a lock, and MONITOR would slow the server down, so all
// rates come from comparing snapshots: see changes.
package watch
