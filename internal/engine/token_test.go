package engine

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTokensThatWentBackwards(t *testing.T) {
	for _, tt := range []struct {
		name      string
		token     int64 // after 7
		late      bool  // the request was sent before 7 was known
		mayRepeat bool
		want      int64
	}{
		{name: "greater", token: 8},
		{name: "equal", token: 7, want: 7},
		{name: "equal, of another hold of the same owner", token: 7, mayRepeat: true},
		{name: "smaller", token: 1, want: 7},
		{name: "smaller, of an owner with several holds", token: 1, mayRepeat: true, want: 7},
		{name: "smaller, but the answer is late", token: 6, late: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := seenTokens{byNames: map[string]seenToken{}}
				early := time.Now()
				time.Sleep(time.Second)
				require.Zero(t, s.see("x", 7, early, false))
				require.Zero(t, s.see("y", 1, time.Now(), false), "another name")
				time.Sleep(time.Second)
				sent := time.Now()
				if tt.late {
					sent = early
				}
				require.Equal(t, tt.want, s.see("x", tt.token, sent, tt.mayRepeat))
				if tt.want > 0 {
					time.Sleep(time.Second)
					require.Zero(t, s.see("x", tt.token+1, time.Now(), false), "it is reported once")
				}
			})
		})
	}
}

func TestTokensOfManyNamesAreForgotten(t *testing.T) {
	s := seenTokens{byNames: map[string]seenToken{}}
	for i := range maxTokens + 10 {
		require.Zero(t, s.see(strconv.Itoa(i), 1, time.Now(), false))
	}
	require.Len(t, s.byNames, maxTokens)
}
