package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/redlatch/redlatch/cmd/redlatch/internal/timeline"
)

// maxBroken is how many broken lines are reported one by one.
const maxBroken = 10

func timelineCommand() *cli.Command {
	return &cli.Command{
		Name:      "timeline",
		Usage:     "draw what several processes did with locks, from the files of their events",
		ArgsUsage: "FILE...",
		Description: withExamples(
			"Draws waits, holds, hand-overs and losses of one or more processes on one axis. The files have\n"+
				"the events of package eventlog, an observer for primitives.WithObserver, a JSON object in each line; \"-\" is\n"+
				"standard input. It needs no Redis.\n\n"+
				"It writes a page (HTML) to standard output or to a file, and text to a terminal.\n\n"+
				"A line without an end is normal after a crash. Other lines that are no events are reported with their\n"+
				"file and number; the rest is drawn, and the exit code is 1.\n\n"+
				"If the clocks of two processes differ, one seems to have a lock before the other has released it. The\n"+
				"command says so, and --shift corrects it.",
			"redlatch timeline -o incident.html shop.jsonl billing.jsonl", "redlatch timeline --text shop.jsonl billing.jsonl"),
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "write it to a `FILE`"},
			&cli.BoolFlag{Name: "text", HideDefault: true, Usage: "text of 80 columns instead of a page"},
			&cli.StringFlag{Name: "name", Usage: "draw only names that match this `GLOB`"},
			&cli.DurationFlag{
				Name: "last", HideDefault: true, Usage: "draw only so much time before the last event, a `DURATION`",
			},
			&cli.StringSliceFlag{
				Name: "shift", Usage: "add to the clock of a process, as `PROCESS=DURATION`; repeatable",
			},
		},
		Action: func(_ context.Context, c *cli.Command) error {
			if !c.Args().Present() {
				return badUsage("which FILE? (see redlatch timeline --help)")
			}
			o := timeline.Options{Pattern: c.String("name"), Last: c.Duration("last"), Shifts: map[string]time.Duration{}}
			for _, shift := range c.StringSlice("shift") {
				at := strings.LastIndex(shift, "=")
				if at < 0 {
					return badUsage("--shift %s: want PROCESS=DURATION", shift)
				}
				d, err := time.ParseDuration(shift[at+1:])
				if err != nil {
					return badUsage("--shift %s: %v", shift, err)
				}
				o.Shifts[shift[:at]] = d
			}
			if c.Bool("text") && c.Bool("json") {
				return badUsage("--text and --json contradict each other")
			}
			log, err := readEvents(c)
			if err != nil {
				return err
			}
			drawn, err := log.Draw(o)
			if err != nil {
				return badUsage("%v", err)
			}
			if len(drawn.Names) == 0 {
				err = failure("there is no event to draw in %d files", log.Files)
			} else {
				err = writeTimeline(c, drawn)
			}
			if err == nil && len(log.Broken) > 0 {
				err = failure("%d lines are no events", len(log.Broken))
			}
			return err
		},
	}
}

// readEvents reads the files, and says what is wrong with them.
func readEvents(c *cli.Command) (*timeline.Log, error) {
	log := &timeline.Log{}
	for _, name := range c.Args().Slice() {
		if name == "-" {
			err := log.Read("standard input", c.Root().Reader)
			if err != nil {
				return nil, failure("%w", err)
			}
			continue
		}
		file, err := os.Open(name)
		if err != nil {
			return nil, badUsage("%v", err)
		}
		err = log.Read(name, file)
		_ = file.Close() // it was only read
		if err != nil {
			return nil, badUsage("%v", err)
		}
	}
	for i, broken := range log.Broken {
		if i == maxBroken {
			notesOf(c).note("broken", "and %d more lines are no events", len(log.Broken)-maxBroken)
			break
		}
		notesOf(c).note("broken", "%v", broken)
	}
	if log.Torn > 0 {
		notesOf(c).note("torn", "lines without an end, as after a crash: %d", log.Torn)
	}
	return log, nil
}

// writeTimeline writes it where and how the flags say.
func writeTimeline(c *cli.Command, t *timeline.Timeline) error {
	draw := func(out io.Writer) error {
		return timeline.Page(out, "Timeline of locks", t.Subtitle(), timeline.Part{Timeline: t})
	}
	file := c.String("output")
	stdout, isFile := c.Root().Writer.(*os.File)
	isForTerminal := file == "" && isFile && isTerminal(stdout)
	switch {
	case c.Bool("json"):
		draw = t.JSON
	case c.Bool("text"), isForTerminal:
		draw = t.Text
	}
	if file == "" {
		return draw(c.Root().Writer)
	}
	var text bytes.Buffer
	err := draw(&text)
	if err == nil {
		err = os.WriteFile(file, text.Bytes(), 0o600) // names may be confidential
	}
	if err != nil {
		return failure("%w", fmt.Errorf("--output: %w", err))
	}
	notesOf(c).note("written", "the timeline is in %s", file)
	return nil
}
