package names

import (
	"encoding/json"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// hostile are names that look alike unless they are told apart with care.
var hostile = []string{
	"", "a", "\xff", "\xfe", "\xff\xfe", "a\xff", "\ufffd", `"\xff"`, `\xff`, `"`, `""`,
	"a\tb", "a\nb", "a\x00b", "\x1b[2J", "\x9b31m",
	"\u202e", "\u2028", "\xc3\x28", "\xed\xa0\x80", "\xf0\x28\x8c\xbc", "日本", " ", "?", "??",
}

// Any two names are shown differently, to people and in JSON.
func TestNamesAreToldApart(t *testing.T) {
	shown, coded := map[string]string{}, map[string]string{}
	for _, name := range hostile {
		require.NotContains(t, shown, Shown(name), "%q and %q", name, shown[Shown(name)])
		shown[Shown(name)] = name
		text, err := json.Marshal([]string{name, Base64(name)})
		require.NoError(t, err)
		require.NotContains(t, coded, string(text), "%q and %q", name, coded[string(text)])
		coded[string(text)] = name
	}
	_, err := FromBase64("no base64!")
	require.Error(t, err)
}

func FuzzNames(f *testing.F) {
	for i, name := range hostile {
		f.Add(name, hostile[(i+1)%len(hostile)])
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		if (Shown(a) == Shown(b)) != (a == b) {
			t.Errorf("%q and %q look alike: %s", a, b, Shown(a))
		}
		for _, r := range Shown(a) {
			if !unicode.IsPrint(r) {
				t.Errorf("%q in %q", r, Shown(a))
			}
		}
		coded := Base64(a)
		if (coded == "") != utf8.ValidString(a) {
			t.Errorf("%q: %q", a, coded)
		}
		if back, err := FromBase64(coded); coded != "" && (err != nil || back != a) {
			t.Errorf("%q became %q: %v", a, back, err)
		}
	})
}
