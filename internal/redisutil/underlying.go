package redisutil

import (
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/redis/go-redis/v9"
)

// maxEmbedded is how deep Underlying looks. A type that embeds itself ends there, too.
const maxEmbedded = 16

// Underlying returns the go-redis client that rdb is or embeds: a [redis.Client],
// [redis.ClusterClient] or [redis.Ring]. Programs wrap a client in a struct that embeds it, or that
// embeds an interface such as [redis.UniversalClient], at any depth. Such a type has the methods
// that send commands, but may lack the ones that say what kind of client it is and how it connects.
//
// As in Go itself, the shallowest field counts. A field that is not embedded does not count: the
// type may use that client for something else. If rdb's Options method returns options other than
// the client's, Underlying returns rdb. It also returns rdb if that embeds no client, but has an
// Options method. Otherwise it returns an error, which says what is wrong with rdb.
func Underlying(rdb redis.UniversalClient) (redis.UniversalClient, error) {
	switch rdb.(type) {
	case *redis.Client, *redis.ClusterClient, *redis.Ring:
		if reflect.ValueOf(rdb).IsNil() {
			return nil, errors.New("a nil redis client")
		}
		return rdb, nil
	case nil:
		return nil, errors.New("a nil redis client")
	}
	level := []reflect.Value{reflect.ValueOf(rdb)}
	for range maxEmbedded {
		var found []redis.UniversalClient
		var deeper []reflect.Value
		for _, v := range level {
			client, embedded := look(v)
			if client != nil && !slices.Contains(found, client) {
				found = append(found, client)
			}
			deeper = append(deeper, embedded...)
		}
		switch {
		case len(found) == 1 && hasOptionsOf(rdb, found[0]):
			return found[0], nil
		case len(found) == 1:
			return rdb, nil
		case len(found) > 1:
			return nil, fmt.Errorf("a %T, which embeds several redis clients", rdb)
		}
		level = deeper
	}
	v := reflect.ValueOf(rdb)
	isNil := v.Kind() == reflect.Pointer && v.IsNil()
	if !isNil && tellsOptions(rdb) {
		return rdb, nil
	}
	return nil, fmt.Errorf("a %T, which embeds no client of go-redis", rdb)
}

// look returns the client that v is. If v is not a client, look returns its embedded fields.
func look(v reflect.Value) (client redis.UniversalClient, embedded []reflect.Value) {
	for v.Kind() == reflect.Interface || v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return nil, nil
		}
		if v.Kind() == reflect.Pointer && v.Elem().Kind() != reflect.Struct {
			return nil, nil // methods are promoted through no further pointer
		}
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct {
		return nil, nil
	}
	if v.CanAddr() {
		// NewAt, because Interface refuses a value that was found in an unexported field.
		switch c := reflect.NewAt(v.Type(), v.Addr().UnsafePointer()).Interface().(type) {
		case *redis.Client:
			return c, nil
		case *redis.ClusterClient:
			return c, nil
		case *redis.Ring:
			return c, nil
		}
	}
	for i := range v.NumField() {
		if v.Type().Field(i).Anonymous {
			embedded = append(embedded, v.Field(i))
		}
	}
	return nil, embedded
}

// optionsOf returns the pointer to a client's options, or nil if it has no Options method.
func optionsOf(rdb redis.UniversalClient) any {
	switch c := rdb.(type) {
	case interface{ Options() *redis.Options }:
		return c.Options()
	case interface{ Options() *redis.ClusterOptions }:
		return c.Options()
	case interface{ Options() *redis.RingOptions }:
		return c.Options()
	default:
		return nil
	}
}

// tellsOptions reports whether rdb has an Options method. It does not call the method, because a
// pointer that rdb embeds may be nil.
func tellsOptions(rdb redis.UniversalClient) bool {
	switch rdb.(type) {
	case interface{ Options() *redis.Options }, interface{ Options() *redis.ClusterOptions },
		interface{ Options() *redis.RingOptions }:
		return true
	default:
		return false
	}
}

// hasOptionsOf reports whether rdb has the options of the client that it embeds, or no Options
// method.
func hasOptionsOf(rdb, embedded redis.UniversalClient) bool {
	own := optionsOf(rdb)
	return own == nil || own == optionsOf(embedded)
}
