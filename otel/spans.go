package otel

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/redlatch/redlatch/primitives"
)

// waitSpan makes the span of an acquisition, or of a wait for a latch, that waited or failed with
// an error. To find a lock taken is no error, nor is the end of ctx.
func (o *Observer) waitSpan(ctx context.Context, e primitives.Event) {
	failed := e.Outcome() == primitives.OutcomeError || e.Outcome() == primitives.OutcomeUnavailable
	if e.Kind == primitives.EventWaited {
		failed = e.Err != nil && ctx.Err() == nil
	}
	if e.Waited == 0 && !failed {
		return
	}
	o.span(ctx, "redlatch.wait", e.Waited, e, failed, outcomeKey.String(string(e.Outcome())))
}

// holdSpan makes the span of a hold.
func (o *Observer) holdSpan(ctx context.Context, e primitives.Event) {
	acquired := o.traces.end(e.ID, e.Held)
	if !trace.SpanContextFromContext(ctx).IsValid() {
		ctx = trace.ContextWithSpanContext(ctx, acquired)
	}
	failed := e.Kind != primitives.EventReleased && e.Kind != primitives.EventDetached
	o.span(ctx, "redlatch.hold", e.Held, e, failed, endKey.String(string(e.Kind)))
}

// span makes a span of the given length that ends now. Without a trace in ctx it does nothing: a
// span alone for each use of a lock would only be noise.
func (o *Observer) span(
	ctx context.Context, name string, length time.Duration, e primitives.Event, failed bool, result attribute.KeyValue,
) {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return
	}
	now := time.Now()
	attributes := []attribute.KeyValue{kindKey.String(e.Lock), asText(nameKey.String(e.Name))}
	if e.ID != "" {
		attributes = append(attributes, asText(idKey.String(e.ID)))
	}
	if result.Value.AsString() != "" {
		attributes = append(attributes, result)
	}
	_, span := o.tracer.Start(ctx, name, trace.WithTimestamp(now.Add(-length)), trace.WithAttributes(attributes...))
	if failed {
		description := string(e.Kind)
		if e.Err != nil {
			span.RecordError(e.Err, trace.WithTimestamp(now))
			description = e.Err.Error()
		}
		span.SetStatus(codes.Error, description)
	}
	span.End(trace.WithTimestamp(now))
}

// asText makes an attribute text. Names and ids may be any bytes, but a collector refuses the whole
// batch then.
func asText(kv attribute.KeyValue) attribute.KeyValue {
	if kv.Value.Type() == attribute.STRING {
		kv = kv.Key.String(strings.ToValidUTF8(kv.Value.AsString(), "�"))
	}
	return kv
}

// traces remembers in which trace holds were acquired, because events that the background finds
// have no context. Nested holds, and the holds of a cohort, share an id. A hold without a trace is
// remembered too: its end must not be taken for that of another one.
type traces struct {
	mu   sync.Mutex
	byID map[string][]acquiredIn // by the hold's id, each hold that has not ended
}

// acquiredIn is the acquisition of a hold.
type acquiredIn struct {
	span trace.SpanContext // not valid: outside of a trace
	at   time.Time
}

// begin notes that a hold with this id was acquired with ctx.
func (t *traces) begin(ctx context.Context, id string) {
	if id == "" {
		return
	}
	acquired := acquiredIn{trace.SpanContextFromContext(ctx), time.Now()}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byID == nil {
		t.byID = make(map[string][]acquiredIn)
	}
	t.byID[id] = append(t.byID[id], acquired)
}

// end notes that a hold with this id has ended, and returns the span in which it was acquired. Of
// several holds with the id it is the one whose age is closest to held; of several, the latest one.
func (t *traces) end(id string, held time.Duration) trace.SpanContext {
	began := time.Now().Add(-held)
	t.mu.Lock()
	defer t.mu.Unlock()
	holds := t.byID[id]
	if len(holds) == 0 {
		return trace.SpanContext{}
	}
	ended := 0
	for i, h := range holds {
		if h.at.Sub(began).Abs() <= holds[ended].at.Sub(began).Abs() {
			ended = i
		}
	}
	span := holds[ended].span
	if len(holds) == 1 {
		delete(t.byID, id)
	} else {
		t.byID[id] = slices.Delete(holds, ended, ended+1)
	}
	return span
}
