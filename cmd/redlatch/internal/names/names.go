// Package names shows names and ids of any bytes. In Redis a name need not be UTF-8, nor visible.
package names

import (
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Base64 is the field name_base64 of JSON: a name in base64 if it is not UTF-8, which JSON cannot
// express; else "".
func Base64(name string) string {
	if utf8.ValidString(name) {
		return ""
	}
	return base64.StdEncoding.EncodeToString([]byte(name))
}

// FromBase64 returns the name that somebody gave in base64.
func FromBase64(text string) (string, error) {
	name, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return "", fmt.Errorf("%q is no base64: %w", text, err)
	}
	return string(name), nil
}

// Shown is a name or an id for people. It is quoted if it could do something to a terminal or to a
// table: a byte that is no UTF-8 may begin an escape sequence, too. Different names look different,
// so one that begins with a quotation mark is quoted as well.
func Shown(s string) string {
	isHidden := func(r rune) bool { return !unicode.IsPrint(r) }
	if !utf8.ValidString(s) || strings.ContainsFunc(s, isHidden) || strings.HasPrefix(s, `"`) {
		return strconv.Quote(s)
	}
	return s
}
