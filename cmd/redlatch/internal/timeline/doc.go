// Package timeline draws the events of several processes on one axis: who held a lock, who waited
// for it, how it went from one to the next, and what was lost.
//
//	files of package eventlog --Read--> Log --Draw--> Timeline --Text, Page, JSON-->
//
// Only Read does I/O. A Timeline has a row for each process of each name. Processes have clocks of
// their own. Two holders of an exclusive lock never hold at once, unless one of them has lost it.
// So if they seem to, their clocks differ, and the Timeline says by how much at least.
package timeline
