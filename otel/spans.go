package otel

import (
	"context"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/redlatch/redlatch/primitives"
)

// waitSpan makes the span of an acquisition, or of a wait for a latch, that waited or failed with an error.
// To find a lock taken is no error, nor is the end of ctx.
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
	acquired := o.traces.end(e.ID)
	if !trace.SpanContextFromContext(ctx).IsValid() {
		ctx = trace.ContextWithSpanContext(ctx, acquired)
	}
	failed := e.Kind != primitives.EventReleased && e.Kind != primitives.EventDetached
	o.span(ctx, "redlatch.hold", e.Held, e, failed, endKey.String(string(e.Kind)))
}

// span makes a span of the given length that ends now. Without a trace in ctx it does nothing: a span alone
// for each use of a lock would only be noise.
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

// asText makes an attribute text. Names and ids may be any bytes, but a collector refuses the whole batch then.
func asText(kv attribute.KeyValue) attribute.KeyValue {
	if kv.Value.Type() == attribute.STRING {
		kv = kv.Key.String(strings.ToValidUTF8(kv.Value.AsString(), "�"))
	}
	return kv
}

// traces remembers in which trace holds were acquired, because events that the background finds have no
// context. Nested holds, and the holds of a cohort, share an id: they are counted.
type traces struct {
	mu   sync.Mutex
	byID map[string]acquiredIn // by the hold's id; only holds that were acquired in a trace
}

type acquiredIn struct {
	span  trace.SpanContext
	holds int
}

// begin notes that a hold with this id was acquired with ctx.
func (t *traces) begin(ctx context.Context, id string) {
	span := trace.SpanContextFromContext(ctx)
	if id == "" || !span.IsValid() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byID == nil {
		t.byID = make(map[string]acquiredIn)
	}
	t.byID[id] = acquiredIn{span, t.byID[id].holds + 1}
}

// end notes that a hold with this id has ended, and returns the span in which the latest one was acquired.
func (t *traces) end(id string) trace.SpanContext {
	t.mu.Lock()
	defer t.mu.Unlock()
	acquired, ok := t.byID[id]
	if acquired.holds--; acquired.holds > 0 {
		t.byID[id] = acquired
	} else if ok {
		delete(t.byID, id)
	}
	return acquired.span
}
