package watch

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// Control sequences.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J" // alternate screen, no cursor, no wrapping, empty
	leaveScreen = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
	eraseScreen = "\x1b[0m\x1b[2J"
)

// screen writes the lines that have changed since the last frame.
type screen struct {
	out   io.Writer
	color bool
	shown []line
	wide  int
}

// draw shows the lines. All that changed goes in one write, so that no half-drawn frame is seen.
func (s *screen) draw(lines []line, columns int) error {
	var b strings.Builder
	if columns != s.wide || len(lines) != len(s.shown) {
		b.WriteString(eraseScreen)
		s.wide, s.shown = columns, make([]line, len(lines))
		for i := range s.shown {
			s.shown[i].text = strings.Repeat(" ", columns)
		}
	}
	for i, l := range lines {
		if l == s.shown[i] {
			continue
		}
		fmt.Fprintf(&b, "\x1b[%d;1H%s%s\x1b[0m", i+1, s.sequence(l.style), l.text)
	}
	s.shown = slices.Clone(lines)
	if b.Len() == 0 {
		return nil
	}
	_, err := io.WriteString(s.out, b.String())
	return err
}

// forget makes the next draw write everything.
func (s *screen) forget() { s.shown, s.wide = nil, 0 }

func (s *screen) sequence(st style) string {
	switch st {
	case bold:
		return "\x1b[1m"
	case dim:
		return "\x1b[2m"
	case reverse:
		return "\x1b[7m"
	case alarm:
		if s.color {
			return "\x1b[1;31m"
		}
		return "\x1b[1m"
	default:
		return ""
	}
}
