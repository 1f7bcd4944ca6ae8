package libraries

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/redlatch/redlatch/primitives"
)

// Exclusive is net/http middleware: one request for each key at a time, on all hosts. A request
// that waits for two seconds gets status 409, and 503 if Redis does not answer.
func Exclusive(client *primitives.Client, key func(*http.Request) string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		hold, err := client.Lock(key(r)).Acquire(r.Context(), primitives.WithWait(2*time.Second))
		switch {
		case errors.Is(err, primitives.ErrUnavailable):
			http.Error(w, "try again later", http.StatusServiceUnavailable)
		case errors.Is(err, primitives.ErrNotAcquired):
			http.Error(w, "somebody else is changing it", http.StatusConflict)
		case err != nil:
			http.Error(w, "internal error", http.StatusInternalServerError)
		default:
			defer hold.Release(context.WithoutCancel(r.Context()))
			next.ServeHTTP(w, r.WithContext(hold.Context()))
		}
	})
}
