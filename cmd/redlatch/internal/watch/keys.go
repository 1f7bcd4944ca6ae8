package watch

import "unicode/utf8"

// key is a key that was pressed: a rune, or one of the constants.
type key rune

const (
	keyUp key = -1 - iota
	keyDown
	keyPageUp
	keyPageDown
	keyHome
	keyEnd
	keyEnter
	keyEsc
	keyBackspace
	keyInterrupt
	keyRedraw
	keyUnknown
)

// sequences are what terminals send for keys without a rune, without the leading escape.
var sequences = map[string]key{
	"[A": keyUp, "[B": keyDown, "OA": keyUp, "OB": keyDown,
	"[5~": keyPageUp, "[6~": keyPageDown,
	"[H": keyHome, "[F": keyEnd, "OH": keyHome, "OF": keyEnd, "[1~": keyHome, "[4~": keyEnd, "[7~": keyHome, "[8~": keyEnd,
}

// decode returns the keys in the bytes from a terminal, and the bytes of an incomplete key at the
// end. If final, nothing follows for now: an escape is then the key of that name.
func decode(b []byte, final bool) (keys []key, rest []byte) {
	for len(b) > 0 {
		if b[0] == 0x1b {
			k, n := escape(b, final)
			if n == 0 {
				return keys, b
			}
			keys, b = append(keys, k), b[n:]
			continue
		}
		if !final && !utf8.FullRune(b) {
			return keys, b
		}
		r, n := utf8.DecodeRune(b)
		b = b[n:]
		switch {
		case r == '\r' || r == '\n':
			keys = append(keys, keyEnter)
		case r == 0x7f || r == 0x08:
			keys = append(keys, keyBackspace)
		case r == 0x03:
			keys = append(keys, keyInterrupt)
		case r == 0x0c:
			keys = append(keys, keyRedraw)
		case r >= ' ' && r != utf8.RuneError:
			keys = append(keys, key(r))
		default:
			keys = append(keys, keyUnknown)
		}
	}
	return keys, nil
}

// escape returns the key at the start of b, which begins with an escape, and its length; 0:
// incomplete.
func escape(b []byte, final bool) (key, int) {
	if len(b) == 1 || b[1] != '[' && b[1] != 'O' {
		if len(b) == 1 && !final {
			return 0, 0
		}
		return keyEsc, 1
	}
	for n := 2; n < len(b); n++ {
		if b[n] >= 0x40 && b[n] <= 0x7e { // the final byte of a control sequence
			k, ok := sequences[string(b[1:n+1])]
			if !ok {
				k = keyUnknown
			}
			return k, n + 1
		}
	}
	if final {
		return keyUnknown, len(b)
	}
	return 0, 0
}
