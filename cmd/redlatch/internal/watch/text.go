package watch

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// printable replaces what is no visible text: names are anybody's, and an escape would reach the
// terminal.
func printable(s string) string {
	clean := func(r rune) rune {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}
	return strings.Map(clean, s)
}

// width is the number of columns of a rune on a terminal.
func width(r rune) int {
	switch {
	case unicode.Is(unicode.Mn, r) || unicode.Is(unicode.Me, r):
		return 0
	case r < 0x1100:
		return 1
	case r <= 0x115f, r >= 0x2e80 && r <= 0xa4cf, r >= 0xac00 && r <= 0xd7a3, r >= 0xf900 && r <= 0xfaff,
		r >= 0xfe30 && r <= 0xfe6f, r >= 0xff00 && r <= 0xff60, r >= 0xffe0 && r <= 0xffe6,
		r >= 0x1f300 && r <= 0x1faff, r >= 0x20000 && r <= 0x3fffd:
		return 2
	}
	return 1
}

// fit cuts or pads s to n columns. What it cuts shows as "…".
func fit(s string, n int) string {
	if n <= 0 {
		return ""
	}
	columns, cut, cutColumns := 0, 0, 0 // cut: where to cut so that "…" still fits
	for i, r := range s {
		w := width(r)
		if columns+w > n {
			return s[:cut] + "…" + strings.Repeat(" ", n-cutColumns-1)
		}
		if columns+w <= n-1 {
			cut, cutColumns = i+len(string(r)), columns+w
		}
		columns += w
	}
	return s + strings.Repeat(" ", n-columns)
}

// right is fit for numbers.
func right(s string, n int) string {
	if len(s) >= n {
		return fit(s, n)
	}
	return strings.Repeat(" ", n-len(s)) + s
}

// thousands writes 1234567 as 1,234,567.
func thousands(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// short writes a duration in at most 6 columns.
func short(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", max(d, 0).Truncate(100*time.Millisecond).Seconds())
	case d < 100*time.Second:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	case d < 10_000*24*time.Hour:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
	return "years"
}

// rate writes a number of events a second.
func rate(perSecond float64) string {
	if perSecond < 100 {
		return fmt.Sprintf("%.1f/s", perSecond)
	}
	return thousands(int64(perSecond+0.5)) + "/s"
}
