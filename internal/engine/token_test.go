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
		{"greater", 8, false, false, 0},
		{"equal", 7, false, false, 7},
		{"equal, of another hold of the same owner", 7, false, true, 0},
		{"smaller", 1, false, false, 7},
		{"smaller, of an owner with several holds", 1, false, true, 7},
		{"smaller, but the answer is late", 6, true, false, 0},
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
